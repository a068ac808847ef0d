"""Leaders and coordinators of an Apache Kafka cluster move under load, in every way in which they can.

Nothing is lost, stored twice, read twice or out of order; the group continues; no call outlasts its time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.client.contract.contract import new_group, new_name
from tests.peers.client.kafka_cluster import OFFSETS_TOPIC, KafkaCluster
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Consumer, Delivery, Producer, TopicSpec
from penstock.client.errors import NoOffset

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_PARTITIONS = 3
_ENOUGH = 200
_PAUSE_S = 0.001
_POLL_MS = 200
# For how long a broker that is frozen is waited for.
_ANSWER_MS = 2_000
_COMMIT_MS = 60_000


class Sending(threading.Thread):
    """Sends numbers to all partitions in turn, and remembers what became of each."""

    def __init__(self, producer: Producer[Any, Any], topic: str) -> None:
        super().__init__(daemon=True)
        self.sent: list[list[Delivery]] = [[] for _ in range(_PARTITIONS)]
        self._producer = producer
        self._topic = topic
        self._is_ending = threading.Event()

    def run(self) -> None:
        while not self._is_ending.wait(_PAUSE_S):
            for partition, sent in enumerate(self.sent):
                sent.append(self._producer.send(self._topic, b"%d" % len(sent), partition=partition))

    def end(self) -> list[int]:
        """How many were sent to each partition."""
        self._is_ending.set()
        self.join(PATIENCE_S)
        return [len(sent) for sent in self.sent]

    def acknowledged(self) -> int:
        """How many are through in the partition that has the fewest of them."""
        return min(sum(each.done() for each in list(sent)) for sent in self.sent)


class Reading(threading.Thread):
    """A member of a group that polls and commits by itself; a commit that takes too long is its failure."""

    def __init__(self, cluster: KafkaCluster, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self.seen: list[list[tuple[int, bytes]]] = [[] for _ in range(_PARTITIONS)]
        self.commits = 0
        self.missing = 0
        self.lost: list[Any] = []
        self.failure: BaseException | None = None
        self._is_ending = threading.Event()
        self._consumer = Consumer(
            topic, bootstrap_servers=cluster.bootstrap, group_id=group, auto_offset_reset="none",
            enable_auto_commit=False, heartbeat_interval_ms=200, request_timeout_ms=_ANSWER_MS,
        )  # fmt: skip
        self._consumer.on_lost(self.lost.append)
        self.start()

    def run(self) -> None:
        try:
            while not self._is_ending.is_set():
                try:
                    records = self._consumer.poll(_POLL_MS)
                except NoOffset:
                    # Seen after a move on a busy machine: a new coordinator of Kafka may report that the group has no
                    # offsets. If they are lost, the reader never goes on, and the story fails.
                    self.missing += 1
                    continue
                for partition, found in records.items():
                    self.seen[partition.partition] += [(record.offset, record.value) for record in found]
                if records:
                    self._commit()
        except BaseException as error:  # noqa: BLE001 - shown by `end`
            self.failure = error
        finally:
            self._consumer.close()

    def _commit(self) -> None:
        self._consumer.commit(timeout_ms=_COMMIT_MS)
        self.commits += 1

    def counts(self) -> list[int]:
        """How many were read of each partition."""
        return [len(self.seen[partition]) for partition in range(_PARTITIONS)]

    def end(self) -> None:
        self._is_ending.set()
        self.join(PATIENCE_S)
        assert self.failure is None, self.failure


@contextmanager
def elected(cluster: KafkaCluster, admin: Admin, topics: list[str], _: int) -> Iterator[None]:
    cluster.elect(admin, topics)
    yield


@contextmanager
def stopped(cluster: KafkaCluster, admin: Admin, topics: list[str], leader: int) -> Iterator[None]:
    cluster.nodes[leader].stop()
    with _until_begun_again(cluster, admin, topics, leader):
        yield


@contextmanager
def killed(cluster: KafkaCluster, admin: Admin, topics: list[str], leader: int) -> Iterator[None]:
    cluster.nodes[leader].kill()
    with _until_begun_again(cluster, admin, topics, leader):
        yield


@contextmanager
def _until_begun_again(cluster: KafkaCluster, admin: Admin, topics: list[str], leader: int) -> Iterator[None]:
    try:
        cluster.without(admin, topics, leader)
        yield
    finally:
        cluster.nodes[leader].launch()
        cluster.nodes[leader].wait_until_listening()


@contextmanager
def frozen(cluster: KafkaCluster, admin: Admin, topics: list[str], leader: int) -> Iterator[None]:
    """Its connections stay open and say nothing; when it wakes it still believes that it leads."""
    cluster.nodes[leader].freeze()
    try:
        cluster.without(admin, topics, leader)
        yield
    finally:
        cluster.nodes[leader].thaw()


Move = Callable[[KafkaCluster, Admin, list[str], int], AbstractContextManager[None]]


def _move_on(
    cluster: KafkaCluster, admin: Admin, topic: str, sending: Sending, reading: Reading, move: Move, times: int
) -> None:
    topics = [topic, OFFSETS_TOPIC]

    def wait_for_progress() -> None:
        """Records that were sent from now on are acknowledged, read and committed."""
        sent, commits = max(map(len, sending.sent)), reading.commits
        until(lambda: min(sending.acknowledged(), *reading.counts()) > sent + _ENOUGH, "it is on", PATIENCE_S)
        until(lambda: reading.commits > commits + 1, "the group commits", PATIENCE_S)

    wait_for_progress()
    for round_ in range(times):
        # Alternate between the leader of a partition and the coordinator of the group.
        about = (topic, 0) if round_ % 2 == 0 else (OFFSETS_TOPIC, 0)
        with move(cluster, admin, topics, cluster.leaders(admin, topics)[about]):
            wait_for_progress()
        cluster.settle(admin, topics)
        wait_for_progress()


@pytest.mark.parametrize(("move", "times"), [(elected, 3), (stopped, 2), (killed, 2), (frozen, 2)])
def test_leaders_and_coordinator_move_under_load(cluster: KafkaCluster, move: Move, times: int) -> None:
    topic, group = new_name("moved"), new_group()
    with (
        Admin(cluster.bootstrap, request_timeout_ms=_ANSWER_MS) as admin,
        Producer(cluster.bootstrap, batch_size=2_000, linger_ms=1, request_timeout_ms=_ANSWER_MS) as producer,
    ):
        admin.create_topic(TopicSpec(topic, _PARTITIONS))
        cluster.settle(admin, [topic])
        admin.set_group_offsets(group, {(topic, index): 0 for index in range(_PARTITIONS)})
        sending, reading = Sending(producer, topic), Reading(cluster, topic, group)
        try:
            sending.start()
            _move_on(cluster, admin, topic, sending, reading, move, times)
            counts = sending.end()
            producer.flush(PATIENCE_S)
            until(lambda: reading.counts() >= counts, "all is read", PATIENCE_S)
        finally:
            sending.end()
            reading.end()
        committed = {at.partition: one.offset for at, one in admin.group_offsets(group).items()}
    for partition, sent in enumerate(sending.sent):
        wanted = list(range(counts[partition]))
        assert [delivery.result(0).offset for delivery in sent] == wanted
        assert reading.seen[partition] == [(number, b"%d" % number) for number in wanted]
    assert committed == dict(enumerate(counts))
    assert reading.lost == []
