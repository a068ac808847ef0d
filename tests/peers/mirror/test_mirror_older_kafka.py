"""Mirrors from Kafka 0.9, whose messages become batches, and from and into Kafka 3.9."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mirror.mirrors import RunningMirror, settings_of, stored
from tests.mirror.test_groups import committed
from tests.peers.client.kafka_server import JavaServer, kafka_0_9, kafka_4_3
from tests.peers.mirror.test_mirror_kafka_4_3 import check
from tests.peers.provision import Found
from tests.timeouts import PATIENCE_MS, until

from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.peer("java")


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


@pytest.fixture
def kafka_3_9(peer: Callable[[str], Found], tmp_path: Path) -> Iterator[JavaServer]:
    server = kafka_4_3(peer("java"), peer("kafka-3.9"), tmp_path)
    try:
        server.launch()
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.fixture
def old_kafka(peer: Callable[[str], Found], tmp_path: Path) -> Iterator[JavaServer]:
    servers = kafka_0_9(peer("java"), peer("kafka-broker-0.9"), tmp_path)
    try:
        for server in servers:
            server.launch()
            server.wait_until_listening()
        yield servers[1]
    finally:
        for server in reversed(servers):
            server.kill()


def produce_old(address: str, count: int, start: int, codec: str | None = None) -> None:
    """Messages that Kafka 0.9 can store: without headers and times."""
    with Producer(address, compression_type=codec) as producer:
        for number in range(start, start + count):
            producer.send("old", f"value-{number}".encode() * 5, key=f"{number}".encode())


@pytest.mark.peer("kafka-3.9")
def test_from_kafka_3_9_and_into_it(kafka_3_9: JavaServer, broker: EmbeddedBroker) -> None:
    check(kafka_3_9.address, broker.address, "from-it")
    check(broker.address, kafka_3_9.address, "into-it")


@pytest.mark.peer("kafka-broker-0.9")
def test_from_kafka_0_9(old_kafka: JavaServer, broker: EmbeddedBroker) -> None:
    """Offsets, keys and values are the same, also in sets of every codec; a group continues."""
    for number, codec in enumerate((None, "gzip", "snappy", "lz4")):
        produce_old(old_kafka.address, 40, start=40 * number, codec=codec)
    settings = settings_of({"old": old_kafka.address}, broker.address, topics="old", name="old", fetch_max_bytes=2000)
    with RunningMirror(settings) as mirror:
        mirror.caught_up(1)
        with Consumer(
            "old", bootstrap_servers=old_kafka.address, group_id="readers", auto_offset_reset="earliest",
            consumer_timeout_ms=PATIENCE_MS,
        ) as consumer:  # fmt: skip
            for _ in range(100):
                next(iter(consumer))
            consumer.commit()
            # Kafka 0.9 forgets the name of a group that has no members.
            until(lambda: committed(broker.address, "readers", "old") == 100, "the group can continue in the target")
        produce_old(old_kafka.address, 40, start=160)
        mirror.caught_up(1)
        records = stored(broker.address, "old").records
        assert records == stored(old_kafka.address, "old").records
        assert [each.key for each in records] == [f"{number}".encode() for number in range(200)]
        assert [each.offset for each in records] == list(range(200))
