"""One broker for the commands about a cluster; each story brings topics and groups of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Shell

from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture(autouse=True)
def config_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests do not use the profiles of the user who runs them."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("PENSTOCK_PROFILE", raising=False)
    return folder


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def shell(broker: EmbeddedBroker) -> Shell:
    return Shell(broker.address)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A fresh topic of three partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=3)
    return name


@pytest.fixture
def single(broker: EmbeddedBroker) -> str:
    """A fresh topic of one partition, whose records have an order."""
    name = f"s-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name)
    return name


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"
