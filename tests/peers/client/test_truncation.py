"""A log truncated by an unclean leader election, on Apache Kafka 4.3: consumers detect it (KIP-320)."""

from __future__ import annotations

import time

import pytest
from tests.client.contract.contract import new_name, texts
from tests.peers.client.kafka_cluster import KafkaCluster
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Consumer, Producer, TopicSpec
from penstock.client.admin.results import PartitionDescription
from penstock.client.errors import LogTruncated, TimedOut, UnknownTopic

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_FIRST, _LAST = 2, 1
_ANSWER_MS = 5_000


def _send(cluster: KafkaCluster, topic: str, count: int, first: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send_many(topic, texts(count, first), partition=0)
        producer.flush(PATIENCE_S)


def _partition(admin: Admin, topic: str) -> PartitionDescription | None:
    try:
        return admin.describe_topic(topic).partitions[0]
    except (TimedOut, UnknownTopic):
        return None  # who was asked is frozen, or has not heard of the topic yet


def _polled(consumer: Consumer[bytes, bytes], count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline_s:
        for records in consumer.poll(1000).values():
            found += [record.value for record in records]
    return found


def test_a_consumer_notices_that_what_it_read_was_cut_off(cluster: KafkaCluster) -> None:
    topic = new_name("cut")
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    with Admin(cluster.bootstrap, request_timeout_ms=_ANSWER_MS) as admin:
        admin.create_topic(TopicSpec(topic, assignments={0: [_LAST, _FIRST]}, config=config))
        until(
            lambda: (found := _partition(admin, topic)) is not None and len(found.isr) == 2,
            "both are in sync",
            PATIENCE_S,
        )
        _send(cluster, topic, 5, 0)
        cluster.nodes[_FIRST].freeze()
        with Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="none", request_timeout_ms=2_000
        ) as reader:
            try:
                until(lambda: (found := _partition(admin, topic)) is not None and found.isr == (_LAST,), "one is left")
                _send(cluster, topic, 5, 5)
                reader.assign([(topic, 0)])
                reader.seek((topic, 0), 0)
                assert len(_polled(reader, 10)) == 10
                cluster.nodes[_LAST].kill()
            finally:
                cluster.nodes[_FIRST].thaw()
            try:
                until(
                    lambda: (
                        (found := _partition(admin, topic)) is not None
                        and found.leader is not None
                        and found.leader.id == _FIRST
                    ),
                    "who lacks records leads",
                    PATIENCE_S,
                )
                _send(cluster, topic, 10, 100)
                with pytest.raises(LogTruncated) as cut:
                    _polled(reader, 1)
                assert (cut.value.position, cut.value.end_offset) == (10, 5)
                reader.seek((topic, 0), cut.value.end_offset)
                assert _polled(reader, 10) == texts(10, 100)
            finally:
                cluster.nodes[_LAST].launch()
                cluster.nodes[_LAST].wait_until_listening()
        until(lambda: len(admin.describe_topic(topic).partitions[0].isr) == 2, "both are back", PATIENCE_S)
