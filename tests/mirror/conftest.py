"""Two brokers that are clusters of their own. Each test has topics and a mirror of its own name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from penstock.testing.embedded_broker import EmbeddedBroker

SETTINGS = {"group.min.session.timeout.ms": "100"}


@pytest.fixture(scope="module")
def live() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as embedded:
        yield embedded


@pytest.fixture(scope="module")
def offline() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as embedded:
        yield embedded


@pytest.fixture
def name() -> str:
    """A name for a topic and a mirror."""
    return f"m-{uuid.uuid4().hex[:12]}"
