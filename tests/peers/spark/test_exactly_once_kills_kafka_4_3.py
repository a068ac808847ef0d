"""Drivers, executors and Kafka 4.3 are killed while a stream writes exactly once: see `tests.spark.cluster.kills`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.peers.client.kafka_server import kafka_4_3
from tests.peers.provision import Found
from tests.spark.cluster.kills import Kills, kills_wanted, seed
from tests.spark.cluster.standalone import Standalone

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    running = Standalone(tmp_path / "standalone")
    yield running
    running.stop()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_every_row_is_visible_once_whatever_is_killed(
    peer: Callable[[str], Found], standalone: Standalone, tmp_path: Path
) -> None:
    (tmp_path / "kafka").mkdir()
    server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), tmp_path / "kafka")
    server.launch()
    try:
        server.wait_until_listening()
        kills = Kills(server, standalone, tmp_path, seed())
        kills.run(kills_wanted())
        assert kills.killed.total() == kills_wanted()
    finally:
        server.kill()
