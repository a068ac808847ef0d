"""Two clusters of Apache Kafka 4.3, of one broker each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.peers.client.kafka_server import JavaServer, kafka_4_3
from tests.peers.provision import Found


def _server(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp("kafka"))
    try:
        server.launch()
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def kafka(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    yield from _server(peer, tmp_path_factory)


@pytest.fixture(scope="session")
def other_kafka(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaServer]:
    yield from _server(peer, tmp_path_factory)
