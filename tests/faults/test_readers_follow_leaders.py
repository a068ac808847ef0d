"""A reader of another client library follows the leader, also to brokers that it has not heard of.

kafka-python never asks a broker again that it was sent to without an address. So no reader may be sent anywhere without
one: a reader whose view is older than a broker's return must find that broker by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from tests.broker.cluster_stories import BrokerCluster, running
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicSpec

_TOPIC = "followed"
_READ_S = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running(str(tmp_path_factory.mktemp("cluster")), auto_leader_rebalance_enable="false") as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TopicSpec(_TOPIC, assignments={0: [0, 1, 2]}))
        brokers.until_in_sync(_TOPIC)
        yield brokers


def _send(cluster: BrokerCluster, *values: bytes) -> None:
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(_TOPIC, value).result(PATIENCE_S)


def _read(consumer: Any, count: int) -> list[bytes]:
    """That many records, or those that arrived in time; errors that the library reports are raised."""
    found: list[bytes] = []
    deadline_s = time.monotonic() + _READ_S
    while len(found) < count and time.monotonic() < deadline_s:
        for records in consumer.poll(timeout_ms=100).values():
            found += [record.value for record in records]
    return found


def _until_led_by(cluster: BrokerCluster, number: int) -> None:
    until(lambda: cluster.partition(_TOPIC).leader == number, f"broker {number} leads")


def _lead(cluster: BrokerCluster, replicas: list[int]) -> None:
    """Let the first of these lead."""
    with Admin(cluster.bootstrap) as admin:
        admin.alter_partition_reassignments({(_TOPIC, 0): replicas})
        admin.elect_leaders("preferred", [(_TOPIC, 0)])
    _until_led_by(cluster, replicas[0])


def test_a_reader_follows_the_leader_to_a_broker_that_was_offline_before(cluster: BrokerCluster) -> None:
    cluster.stop(0)
    until(lambda: all(0 not in cluster.image(number).brokers for number in (1, 2)), "broker 0 is gone")
    _until_led_by(cluster, 1)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest", fetch_max_wait_ms=_READ_S * 500
    )
    try:
        consumer.assign([TopicPartition(_TOPIC, 0)])
        _send(cluster, b"broker 0 is away")
        assert _read(consumer, 1) == [b"broker 0 is away"]
        cluster.start(0)
        cluster.until_in_sync(_TOPIC)
        for replicas in ([0, 1, 2], [1, 2, 0], [0, 1, 2], [2, 0, 1], [0, 1, 2]):
            # It asks, and hears that the leader is another one meanwhile: it looks there first, and asks then.
            assert consumer.poll(timeout_ms=0) == {}
            _lead(cluster, replicas)
            value = b"broker %d leads" % replicas[0]
            _send(cluster, value)
            assert _read(consumer, 1) == [value]
    finally:
        consumer.close()
