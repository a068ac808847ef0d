"""One broker for all tests of a process; each test has its own topics and groups."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest
from tests.compatibility.client_stories import BROKER_SETTINGS, unique

from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=BROKER_SETTINGS) as embedded:
        yield embedded


@pytest.fixture
def address(broker: EmbeddedBroker) -> str:
    return broker.address


@pytest.fixture
def topic() -> str:
    """The name of a topic that does not exist yet; the first write creates it with three partitions."""
    return unique("topic")


@pytest.fixture
def group() -> str:
    return unique("group")


@pytest.fixture(autouse=True)
def _sockets_of_other_clients() -> Iterator[None]:
    """kafka-python leaves sockets open that it could not connect. They are collected here, not in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
