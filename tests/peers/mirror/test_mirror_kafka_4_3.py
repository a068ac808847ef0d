"""Mirrors from Apache Kafka 4.3, into it, and between two of them. The promises are those of our own brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.mirror.mirrors import RunningMirror, create_topic, produce, same, settings_of, stored
from tests.peers.client.kafka_server import JavaServer

from penstock.client.admin import Admin
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as embedded:
        yield embedded


def fill_with_gaps(address: str, topic: str) -> None:
    """Plain records, transactions that are committed and aborted, and a log that does not start at 0."""
    create_topic(address, topic, 3)
    produce(address, topic, 300, compression_type="lz4")
    with Producer(address, transactional_id=f"of-{topic}") as producer:
        for number in range(4):
            producer.begin_transaction()
            for index in range(6):
                producer.send(topic, f"{number}-{index}".encode(), partition=index % 3)
            if number % 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    produce(address, topic, 100, start=300, compression_type="zstd")
    with Admin(address) as admin:
        admin.delete_records({(topic, 0): 20})


def check(source: str, target: str, topic: str) -> None:
    fill_with_gaps(source, topic)
    with RunningMirror(settings_of({"live": source}, target, topics=topic, name=topic)) as mirror:
        mirror.caught_up(3)
        same(source, target, topic, 3)
        assert stored(target, topic).start == 20
        produce(source, topic, 50, start=1000)
        mirror.caught_up(3)
    same(source, target, topic, 3)


def test_from_kafka_into_ours(kafka: JavaServer, broker: EmbeddedBroker) -> None:
    check(kafka.address, broker.address, "k-to-p")


def test_from_ours_into_kafka(kafka: JavaServer, broker: EmbeddedBroker) -> None:
    check(broker.address, kafka.address, "p-to-k")


def test_from_kafka_into_kafka(kafka: JavaServer, other_kafka: JavaServer) -> None:
    check(kafka.address, other_kafka.address, "k-to-k")


def test_mapped_and_shared_topics_in_kafka(kafka: JavaServer, broker: EmbeddedBroker) -> None:
    create_topic(broker.address, "table", 2, cleanup_policy="compact")
    create_topic(kafka.address, "sites", 1)
    produce(broker.address, "table", 200)
    with RunningMirror(settings_of({"p": broker.address}, kafka.address, topics="table", name="mapped")) as mirror:
        status = mirror.caught_up(2)
        assert {each.mode for each in status.partitions} == {"mapped"}
        for index in range(2):
            ours, theirs = stored(kafka.address, "table", index), stored(broker.address, "table", index)
            assert [each[1:] for each in ours.records] == [each[1:] for each in theirs.records]
    settings = settings_of(
        {"p": broker.address}, kafka.address, topics="table", name="shared", mode="shared", rename="sites"
    )
    with RunningMirror(settings) as mirror:
        mirror.caught_up(2)
        found = stored(kafka.address, "sites").records
        assert len(found) == 200
        assert all(each.headers[-1][0] == "mirror.origin" for each in found)
