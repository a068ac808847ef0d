"""One Spark session and one broker for a test process, and topics on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.sessions import new_session

from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """`local[2]`, no user interface, Unix-domain sockets to the Python workers."""
    session = new_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """The name of a new topic of two partitions."""
    name = topic_name(request.node.name)
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
