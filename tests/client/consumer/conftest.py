"""One broker for the stories that leave it alone; each brings topics and groups of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def address(broker: EmbeddedBroker) -> str:
    return broker.address
