"""A broker for each module of tests, and connections to it. Override `broker_settings` to start it with settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tests.broker.wire_client import WireClient

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {}


@pytest.fixture(scope="module")
def embedded(broker_settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=broker_settings) as broker:
        yield broker


@pytest.fixture
def broker(embedded: EmbeddedBroker) -> Broker:
    return embedded.broker


@pytest.fixture
def client(embedded: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(embedded.port) as connected:
        yield connected


@pytest.fixture
def other(embedded: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(embedded.port) as connected:
        yield connected
