"""A broker and a registry for the stories of serializers that use one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from penstock.registry import Registry
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(scope="session")
def registry_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture(scope="session")
def registry(registry_broker: EmbeddedBroker) -> Iterator[Registry]:
    with Registry(registry_broker.address) as instance:
        yield instance


@pytest.fixture
def topic(registry_broker: EmbeddedBroker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    registry_broker.create_topic(name)
    return name
