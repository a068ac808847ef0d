"""One Spark session with the stock connector's jars, one Apache Kafka 4.3 and one broker of ours, for all stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benchmarks.spark.stock import stock_jars
from pyspark.sql import SparkSession
from tests.peers.client.kafka_server import JavaServer, kafka_4_3
from tests.peers.installing import NotAvailable
from tests.peers.provision import Found
from tests.peers.spark.kafka_cluster import KafkaCluster
from tests.spark.sessions import new_session

from penstock import Admin
from penstock.testing import Broker
from penstock.testing.pytest_plugin import topic_name


@pytest.fixture(scope="session")
def stock() -> list[Path] | str:
    """The stock connector's jars, or why there are none."""
    try:
        return stock_jars()
    except NotAvailable as error:
        return str(error)


@pytest.fixture(scope="session")
def spark(stock: list[Path] | str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    jars = {} if isinstance(stock, str) else {"spark.jars": ",".join(map(str, stock))}
    session = new_session(tmp_path_factory.mktemp("spark"), **jars)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"))
    try:
        server.launch()
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def broker(server: JavaServer) -> Iterator[KafkaCluster]:
    """Where the shared stories have our broker, they have Apache Kafka here."""
    with Admin(server.address) as admin:
        yield KafkaCluster(server, admin)


@pytest.fixture(scope="session")
def our_broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: KafkaCluster) -> str:
    """The name of a new topic of two partitions, on Apache Kafka."""
    name = topic_name(request.node.name)
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
