"""A consumer that says where it stands reads from the replica there, and from the leader when that one is away."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.client.contract.contract import new_name, take, texts, values
from tests.peers.client.kafka_cluster import KafkaCluster
from tests.timeouts import PATIENCE_S

from penstock import Admin, Consumer, Producer, TopicSpec

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_LEADER, _NEAR, _OTHER = 1, 2, 3


def _near_reader(cluster: KafkaCluster, topic: str, **options: Any) -> Consumer[bytes, bytes]:
    return Consumer(
        topic, bootstrap_servers=cluster.bootstrap, client_rack=f"rack-{_NEAR}", auto_offset_reset="earliest",
        consumer_timeout_ms=20_000, request_timeout_ms=2_000, **options,
    )  # fmt: skip


def _send(cluster: KafkaCluster, topic: str, count: int, first: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        producer.send_many(topic, texts(count, first), partition=0)
        producer.flush(PATIENCE_S)


def test_the_nearest_replica_is_read_and_the_leader_when_it_is_away(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock.client.consumer.fetcher")
    topic = new_name("near")
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TopicSpec(topic, assignments={0: [_LEADER, _NEAR, _OTHER]}))
        cluster.settle(admin, [topic])
        _send(cluster, topic, 1_000, 0)
        with _near_reader(cluster, topic) as consumer:
            assert values(take(consumer, 1_000)) == texts(1_000)
            assert f"broker={_NEAR}" in caplog.text
            cluster.nodes[_NEAR].kill()
            try:
                _send(cluster, topic, 500, 1_000)
                assert values(take(consumer, 500)) == texts(500, 1_000)
            finally:
                cluster.nodes[_NEAR].launch()
                cluster.nodes[_NEAR].wait_until_listening()
            cluster.settle(admin, [topic])
            _send(cluster, topic, 500, 1_500)
            assert values(take(consumer, 500)) == texts(500, 1_500)
