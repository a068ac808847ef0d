"""One Apache Kafka 4.3 for all stories about it. Those that restart it leave it running."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
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
