"""The contract against our own broker; tests/peers/client runs the same stories against Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from tests.client.contract.contract import KEPT, Capabilities, MakeTopic, new_name

from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"group.min.session.timeout.ms": "500"}) as embedded:
        yield embedded


@pytest.fixture(scope="session")
def bootstrap(broker: EmbeddedBroker) -> str:
    return broker.address


@pytest.fixture(scope="session")
def capabilities() -> Capabilities:
    return Capabilities("Penstock")


@pytest.fixture
def make_topic(broker: EmbeddedBroker) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str:
        name = new_name(prefix)
        broker.create_topic(name, partitions, {**KEPT, **(config or {})})
        return name

    return make
