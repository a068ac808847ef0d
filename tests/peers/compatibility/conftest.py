"""One broker for all the clients of a test process; each test brings topics and groups of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.peers.compatibility.peer_stories import BROKER_SETTINGS, unique

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
    """The name of a new topic, which the first write creates with three partitions."""
    return unique("topic")


@pytest.fixture
def group() -> str:
    return unique("group")
