"""One Apache Kafka 4.3, and one cluster of three, for all stories about them; those that end a node bring it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.peers.client.kafka_cluster import KafkaCluster
from tests.peers.client.kafka_server import JavaServer, kafka_4_3
from tests.peers.provision import Found


@pytest.fixture(scope="session")
def kafka(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"))
    try:
        server.launch()
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def cluster(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    nodes = KafkaCluster(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("cluster"))
    try:
        nodes.launch()
        yield nodes
    finally:
        nodes.kill()
