"""Coordinators and leaders of an Apache Kafka cluster die while records are read, processed and written.

Every record is handled exactly once, whichever broker dies; the program follows the advice of the errors.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from tests.client.contract.contract import fill_all, new_group, new_name, reader, texts
from tests.peers.client.kafka_cluster import OFFSETS_TOPIC, KafkaCluster
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Consumer, Producer, TopicSpec, errors

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_PARTITIONS = 3
_RECORDS = 4_000
_STEP = 150
_STATE_TOPIC = "__transaction_state"
_ANSWER_MS = 2_000


class Processing(threading.Thread):
    """Reads, processes and writes until everything is done, and counts what it had to do about errors."""

    def __init__(self, cluster: KafkaCluster, source: str, target: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._source, self._target = cluster, source, target
        self._name = new_name("tx")
        self.done = 0
        self.advised: Counter[str] = Counter()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with Consumer(
                self._source, bootstrap_servers=self._cluster.bootstrap, group_id=new_group(), exactly_once=True,
                auto_offset_reset="earliest", heartbeat_interval_ms=200, request_timeout_ms=_ANSWER_MS,
            ) as consumer:  # fmt: skip
                while self.done < _PARTITIONS * _RECORDS:
                    with Producer(
                        self._cluster.bootstrap, transactional_id=self._name, request_timeout_ms=_ANSWER_MS
                    ) as producer:
                        self._process(producer, consumer)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error

    def _process(self, producer: Producer[Any, Any], consumer: Consumer[bytes, bytes]) -> None:
        """Until everything is done, or the producer has to be replaced."""
        while self.done < _PARTITIONS * _RECORDS:
            count = 0
            try:
                with producer.transaction(consumer=consumer):
                    for records in consumer.poll(timeout=0.5, max_records=10).values():
                        for record in records:
                            producer.send(self._target, record.value, partition=record.partition)
                            count += 1
            except errors.PenstockError as error:
                advice = getattr(error, "advice", errors.Advice.ABORT)
                self.advised[advice] += 1
                if advice is errors.Advice.STOP:
                    return
                if advice is not errors.Advice.RETRY:
                    continue
                producer.commit_transaction(PATIENCE_S)
            self.done += count


def test_every_record_is_handled_once_while_each_broker_dies_once(cluster: KafkaCluster) -> None:
    source, target = new_name("source"), new_name("target")
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([TopicSpec(source, _PARTITIONS), TopicSpec(target, _PARTITIONS)])
        cluster.settle(admin, [source, target])
        fill_all(cluster.bootstrap[0], source, _PARTITIONS, _RECORDS)
        processing = Processing(cluster, source, target)
        processing.start()
        until(lambda: processing.done > _STEP or processing.failure, "it processes")
        topics = [source, target, OFFSETS_TOPIC, _STATE_TOPIC]
        for node in cluster.nodes:
            (coordinator,) = cluster.leaders(admin, [_STATE_TOPIC]).values()
            victim = coordinator if node == 1 else node
            cluster.nodes[victim].kill()
            cluster.without(admin, topics, victim)
            further = min(processing.done + _STEP, _PARTITIONS * _RECORDS)
            until(lambda goal=further: processing.done >= goal or processing.failure, "it continues")  # type: ignore[misc]
            cluster.nodes[victim].launch()
            cluster.nodes[victim].wait_until_listening()
            cluster.settle(admin, topics)
        processing.join(PATIENCE_S)
        assert processing.failure is None
        for partition in range(_PARTITIONS):
            with reader(cluster.bootstrap[0], isolation_level="read_committed", consumer_timeout_ms=None) as consumer:
                consumer.assign([(target, partition)])
                (end,) = consumer.end_offsets([(target, partition)]).values()
                found: list[bytes] = []
                while consumer.position((target, partition)) < end:
                    for records in consumer.poll(timeout=1).values():
                        found += [record.value for record in records]
            assert found == texts(_RECORDS), processing.advised
