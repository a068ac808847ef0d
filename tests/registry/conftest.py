"""One broker and one registry for the stories about its API; each brings subjects of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.registry.api import Api

from penstock.registry import Registry
from penstock.testing.embedded_broker import EmbeddedBroker

SETTINGS = {"group.min.session.timeout.ms": "100"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def registry(broker: EmbeddedBroker) -> Iterator[Registry]:
    with Registry(broker.address) as instance:
        yield instance


@pytest.fixture
def api(registry: Registry) -> Api:
    return Api(registry.url)


@pytest.fixture
def subject() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"
