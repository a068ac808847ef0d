"""Kills of the mirror, of Apache Kafka 4.3 and of our broker under load: nothing is lost, and nothing is there twice.

PENSTOCK_KILLS=20 PENSTOCK_KILLS_SEED=1 make test-peers ARGS="-k mirror_kills" repeats the long run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.mirror.kill_stories import Cluster, Site, kills_wanted, our_broker
from tests.peers.client.kafka_server import kafka_4_3
from tests.peers.provision import Found

KILLS = kills_wanted(4)
SESSION_MS = 6_000  # a Kafka takes seconds to return
pytestmark = [
    pytest.mark.peer("java"),
    pytest.mark.peer("kafka-broker-4.3"),
    pytest.mark.timeout(300 + 30 * KILLS),
]
New = Callable[[str, Path], Cluster]


class Kafka:
    """A Kafka of the test's own, which it may kill."""

    def __init__(self, name: str, folder: Path, peer: Callable[[str], Found]) -> None:
        self.name = name
        own = folder / name
        own.mkdir()
        self._server = kafka_4_3(peer("java"), peer("kafka-broker-4.3"), own)
        self.address = self._server.address

    def start(self) -> None:
        self._server.launch()
        self._server.wait_until_listening()

    def kill(self) -> None:
        self._server.kill()


@pytest.fixture
def kafka(peer: Callable[[str], Found]) -> New:
    return lambda name, folder: Kafka(name, folder, peer)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def new_site(folder: Path, stack: ExitStack, source: New, target: New, more: str = "") -> Site:
    return Site(folder, stack, source("source", folder), target("target", folder), more, SESSION_MS)


def test_from_kafka_into_ours(kafka: New, tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, kafka, our_broker)
    site.run(KILLS)
    site.check_identical()


def test_from_ours_into_kafka(kafka: New, tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, our_broker, kafka)
    site.run(KILLS)
    site.check_identical()


def test_from_kafka_into_kafka(kafka: New, tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, kafka, kafka)
    site.run(KILLS)
    site.check_identical()


def test_into_a_shared_topic_of_kafka(kafka: New, tmp_path: Path, stack: ExitStack) -> None:
    site = new_site(tmp_path, stack, our_broker, kafka, 'mode = "shared"\nrename = "all"')
    site.run(KILLS, transactions=True)
    site.check_shared("all")
