"""Consumers in a group: members join, leave, are slow, are killed; every record is read, in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire_client import make_topic
from tests.client.consumer.consumer_stories import fill, filled_topic, new_group, read, reader
from tests.timeouts import PATIENCE_MS, PATIENCE_S, until

from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.consumer import Consumer
from penstock.client.errors import CommitFailed, FencedInstance, GroupError
from penstock.client.producer import Producer
from penstock.testing.embedded_broker import EmbeddedBroker

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]


class Worker(threading.Thread):
    """A member that reads until it is stopped, and records its callbacks and what it read."""

    def __init__(self, address: str, topic: str, group: str, **options: Any) -> None:
        super().__init__(daemon=True)
        self.consumer = reader(address, topic, group_id=group, consumer_timeout_ms=None, **options)
        self.seen: list[tuple[int, int]] = []
        self.events: list[tuple[str, list[TopicPartition]]] = []
        self.failure: BaseException | None = None
        self.pause_s = 0.0
        self.consumer.on_assign(lambda p: self.events.append(("+", p)))
        self.consumer.on_revoke(lambda p: self.events.append(("-", p)))
        self.start()

    def run(self) -> None:
        try:
            for record in self.consumer:
                self.seen.append((record.partition, record.offset))
                if self.pause_s:
                    time.sleep(self.pause_s)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error

    @property
    def partitions(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def stop(self) -> None:
        self.consumer.close()
        self.join(PATIENCE_S)
        assert self.failure is None


@contextmanager
def stopping(*workers: Worker) -> Iterator[None]:
    try:
        yield
    finally:
        for worker in workers:
            worker.stop()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_partitions_and_take_over_from_a_leaving_member(broker: EmbeddedBroker, strategy: str) -> None:
    topic, group = filled_topic(broker, 60, partitions=6), new_group()
    options = {"partition_assignment_strategy": strategy}
    first = Worker(broker.address, topic, group, **options)
    until(lambda: len(first.seen) == 60, "the first reads everything")
    second = Worker(broker.address, topic, group, **options)
    with stopping(first):
        with stopping(second):
            until(lambda: len(first.partitions) == len(second.partitions) == 3, "they share")
            assert first.partitions | second.partitions == set(range(6))
            for partition in range(6):
                fill(broker, topic, range(60, 70), partition=partition)
            until(lambda: len(first.seen) + len(second.seen) >= 120, "they read on")
        until(lambda: len(first.partitions) == 6, "the first takes over")
        fill(broker, topic, [70], partition=0)
        fill(broker, topic, [70], partition=5)
        until(lambda: len(first.seen) + len(second.seen) == 122, "and reads on")
    counts = Counter(first.seen + second.seen)
    assert set(counts.values()) == {1}
    assert len(counts) == 122
    for worker in (first, second):
        for partition in range(6):
            offsets = [offset for p, offset in worker.seen if p == partition]
            assert offsets == sorted(offsets)


def test_each_group_reads_everything_once_and_it_is_stored_once() -> None:
    marker = b"written-once-%s" % new_group().encode()
    with EmbeddedBroker() as own:

        def stored() -> int:
            return sum(path.read_bytes().count(marker) for path in Path(own.data_dir).rglob("*.log"))

        topic = "views"
        own.create_topic(topic, 2)
        with Producer(own.address) as producer:
            for number in range(60):
                producer.send(topic, marker, partition=number % 2)
        folders = [Path(own.data_dir, f"{topic}-{index}") for index in range(2)]
        before = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.log"))]
        assert (len(before), stored()) == (2, 60)
        groups = [[Worker(own.address, topic, name) for _ in range(count)] for name, count in (("a", 2), ("b", 1))]
        with stopping(*groups[0], *groups[1]):
            everything = {(partition, offset) for partition in range(2) for offset in range(30)}
            for workers in groups:
                until(lambda: {each for w in workers for each in w.seen} == everything, "a group has read")  # noqa: B023
            for worker in groups[0]:
                until_has(worker, 1)
        for workers in groups:
            assert Counter(each for worker in workers for each in worker.seen) == Counter(everything)
        with Admin(own.address) as admin:
            for name in ("a", "b"):
                assert {each.offset for each in admin.group_offsets(name).values()} == {30}
        assert [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.log"))] == before
        assert stored() == 60


def test_consumer_with_assigned_partitions_leaves_the_group_of_its_name_alone(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    member = Worker(broker.address, topic, group)
    with stopping(member), Admin(broker.address) as admin:
        until(lambda: len(member.seen) == 40, "the member has read everything")
        generation, members = member.consumer.generation, admin.describe_group(group).members
        with reader(broker.address, group_id=group, enable_auto_commit=False) as beside:
            beside.assign([(topic, 0), (topic, 1)])
            beside.seek_to_beginning()
            assert len(read(beside, 40)) == 40
            assert (beside.member_id, beside.generation) == ("", -1)
            found = admin.describe_group(group)
            assert (found.state, found.members) == ("Stable", members)
            assert len(members) == 1
        fill(broker, topic, [40])
        until(lambda: len(member.seen) == 41, "the member reads on")
        member.consumer.commit()  # rejected in any other generation
        assert member.consumer.generation == generation
        assert [kind for kind, _ in member.events] == ["+"]
        assert admin.describe_group(group).members == members


def test_cooperative_members_keep_what_does_not_move(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=4), new_group()
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    first = Worker(broker.address, topic, group, **options)
    until(lambda: len(first.partitions) == 4, "the first has all")
    second = Worker(broker.address, topic, group, **options)
    with stopping(first, second):
        until(lambda: len(first.partitions) == len(second.partitions) == 2, "they share")
        assert [kind for kind, _ in first.events] == ["+", "-"]
        assert {p.partition for p in first.events[1][1]} == second.partitions


def test_functions_are_called_before_partitions_go_and_can_commit_there(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    consumer = reader(broker.address, topic, group_id=group, enable_auto_commit=False)
    calls: list[tuple[str, int]] = []

    @consumer.on_assign
    def begin(partitions: list[TopicPartition]) -> None:
        calls.append(("+", len(partitions)))
        for partition in partitions:
            consumer.seek(partition, 10)

    @consumer.on_revoke
    def finish(partitions: list[TopicPartition]) -> None:
        calls.append(("-", len(partitions)))
        consumer.commit()

    with consumer:
        assert {record.offset for record in (next(consumer) for _ in range(20))} == set(range(10, 20))
        other = Worker(broker.address, topic, group)
        with stopping(other):
            until(lambda: bool(consumer.poll(20) is not None and other.partitions), "they share")
            assert calls[:3] == [("+", 2), ("-", 2), ("+", 1)]
            fill(broker, topic, [1], partition=min(other.partitions))
            until(lambda: bool(other.seen), "the other reads on")
            assert other.seen[0][1] == 20


def test_a_slow_reader_stays_a_member_and_gives_up_partitions_only_between_records(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    slow = reader(broker.address, topic, group_id=group, session_timeout_ms=6_000)
    with slow:
        next(slow)
        other = Worker(broker.address, topic, group)
        with stopping(other):
            with Admin(broker.address) as admin:
                until(lambda: admin.describe_group(group).state == "PreparingRebalance", "the other wants its share")
            assert other.partitions == set()
            assert len(slow.assignment()) == 2
            next(slow)
            until(lambda: slow.poll(10) is not None and len(other.partitions) == 1, "it gets its share")


def test_a_consumer_that_does_not_poll_loses_its_partitions_and_gets_them_back(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    lost: list[list[TopicPartition]] = []
    with reader(broker.address, topic, group_id=group, max_poll_interval_ms=300, enable_auto_commit=False) as idle:
        idle.on_lost(lost.append)
        record = next(idle)
        other = Worker(broker.address, topic, group)
        with stopping(other):
            until(lambda: len(other.partitions) == 2, "the other has all")
            with pytest.raises(CommitFailed, match="poll"):
                idle.commit(record)
            until(lambda: idle.poll(20) is not None and len(idle.assignment()) == 1, "it is back")
            assert len(lost[0]) == 2


@pytest.mark.long
def test_a_consumer_that_waits_for_records_counts_as_polling(broker: EmbeddedBroker) -> None:
    topic, group = make_topic(broker.broker), new_group()
    with reader(
        broker.address, topic, group_id=group, max_poll_interval_ms=1_500, consumer_timeout_ms=4_000
    ) as waiting:
        waiting.wait_for_assignment(PATIENCE_MS)
        generation = waiting.generation
        assert list(waiting) == []
        assert (waiting.generation, len(waiting.assignment())) == (generation, 1)


def test_a_static_member_comes_back_without_a_rebalance(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 40, partitions=2), new_group()
    other = Worker(broker.address, topic, group)
    with stopping(other):
        with reader(broker.address, topic, group_id=group, group_instance_id="one") as static:
            until(lambda: static.poll(10) is not None and len(static.assignment()) == 1, "they share")
            had, generation = static.assignment(), static.generation
        with reader(broker.address, topic, group_id=group, group_instance_id="one") as static:
            until(lambda: static.poll(10) is not None and len(static.assignment()) == 1, "it is back")
            assert static.assignment() == had
            assert static.generation == generation
            assert len(other.partitions) == 1


def test_a_second_static_member_of_the_same_name_fences_the_first(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 4), new_group()
    with reader(broker.address, topic, group_id=group, group_instance_id="one") as first:
        read(first, 1)
        with reader(broker.address, topic, group_id=group, group_instance_id="one") as second:
            until(lambda: second.poll(10) is not None and bool(second.assignment()), "the second has it")
            with pytest.raises(FencedInstance, match="group_instance_id"):
                until(lambda: first.poll(50) is None, "the first notices")


def test_members_without_a_common_assignor_get_an_error(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 4), new_group()
    with (
        reader(broker.address, topic, group_id=group) as first,
        reader(broker.address, topic, group_id=group, partition_assignment_strategy="sticky") as second,
    ):
        read(first, 1)
        with pytest.raises(GroupError, match="in common"):
            until(lambda: second.poll(50) is None, "it notices")


def test_an_invalid_session_timeout_is_rejected_with_the_limits(broker: EmbeddedBroker) -> None:
    consumer = reader(broker.address, "anything", group_id=new_group(), session_timeout_ms=100)
    with consumer, pytest.raises(GroupError, match=r"group\.min\.session\.timeout\.ms"):
        consumer.poll(PATIENCE_MS)


def test_an_assignor_of_ones_own_is_used(broker: EmbeddedBroker) -> None:
    class FirstTakesAll:
        name = "first-takes-all"
        protocol = "eager"

        def user_data(self, owned: Any, generation: int) -> bytes | None:
            return None

        def assign(self, partition_counts: Any, members: Any) -> dict[str, list[TopicPartition]]:
            everyone = sorted(members, key=lambda m: m.member_id)
            every = [TopicPartition(t, i) for t, n in partition_counts.items() for i in range(n)]
            return {m.member_id: every if m is everyone[0] else [] for m in everyone}

    topic, group = filled_topic(broker, 4, partitions=2), new_group()
    own = Worker(broker.address, topic, group, partition_assignment_strategy=FirstTakesAll())
    other = Worker(broker.address, topic, group, partition_assignment_strategy=[FirstTakesAll()])
    with stopping(own, other):
        until(lambda: {len(own.partitions), len(other.partitions)} == {0, 2}, "one has all")


def test_a_callback_that_raises_reaches_the_reader_and_the_group_continues(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 4), new_group()
    with reader(broker.address, topic, group_id=group) as consumer:

        @consumer.on_assign
        def fail(partitions: list[TopicPartition]) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            consumer.poll(PATIENCE_MS)
        assert read(consumer, 4) == [0, 1, 2, 3]


def test_a_subscription_can_change_within_the_group(broker: EmbeddedBroker) -> None:
    one, two, group = filled_topic(broker, 3), filled_topic(broker, 3), new_group()
    with reader(broker.address, one, group_id=group) as consumer:
        assert read(consumer, 3) == [0, 1, 2]
        consumer.subscribe([two])
        assert read(consumer, 3) == [0, 1, 2]
        until(lambda: consumer.poll(10) is not None and {p.topic for p in consumer.assignment()} == {two}, "it changed")


def until_has(worker: Worker, count: int) -> None:
    until(lambda: len(worker.partitions) == count, f"it has {count}")


@pytest.mark.long
@pytest.mark.parametrize("we_lead", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_group_with_kafka_pythons_members(broker: EmbeddedBroker, strategy: str, we_lead: bool) -> None:
    """Either may lead the group, and the other understands the assignment."""
    kafka = pytest.importorskip("kafka")
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    kinds = {
        k.name: k
        for k in (
            RangePartitionAssignor,
            RoundRobinPartitionAssignor,
            StickyPartitionAssignor,
            CooperativeStickyAssignor,
        )
    }
    topic, group = filled_topic(broker, 40, partitions=4), new_group()
    ours: Worker | None = None
    if we_lead:
        ours = Worker(broker.address, topic, group, partition_assignment_strategy=strategy)
        until_has(ours, 4)
    theirs = kafka.KafkaConsumer(
        bootstrap_servers=broker.address,
        group_id=group,
        partition_assignment_strategy=[kinds[strategy]],
        heartbeat_interval_ms=100,
    )
    # It would join before it knows the topic's partitions, and then stay without.
    theirs.topics()
    theirs.subscribe([topic])
    try:
        if ours is None:
            until(lambda: theirs.poll(2000) is not None and len(theirs.assignment()) == 4, "they have all")
            ours = Worker(broker.address, topic, group, partition_assignment_strategy=strategy)
        mine: Worker = ours
        with stopping(mine):
            until(
                lambda: theirs.poll(2000) is not None and len(theirs.assignment()) == len(mine.partitions) == 2,
                f"they share with {strategy}, {we_lead=}",
            )
            assert {p.partition for p in theirs.assignment()} | mine.partitions == {0, 1, 2, 3}
    finally:
        theirs.close()


def test_one_group_with_librdkafka(broker: EmbeddedBroker) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    for strategy in ("range", "roundrobin", "cooperative-sticky"):
        topic, group = filled_topic(broker, 40, partitions=4), new_group()
        ours = Worker(broker.address, topic, group, partition_assignment_strategy=strategy)
        until_has(ours, 4)
        theirs = confluent.Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": 100,
            }
        )
        theirs.subscribe([topic])

        def shared(worker: Worker = ours, peer: Any = theirs) -> bool:
            peer.poll(0.05)
            return len(peer.assignment()) == len(worker.partitions) == 2

        with stopping(ours):
            until(shared, f"they share with {strategy}")
            theirs.close()
            until_has(ours, 4)


def test_a_consumer_without_topics_can_be_typed(address: str) -> None:
    with Consumer(bootstrap_servers=address) as consumer:
        assert consumer.poll() == {}


def test_the_group_leader_finds_a_missing_topic_of_another_member(broker: EmbeddedBroker) -> None:
    present, late, group = filled_topic(broker, 3), f"late-{new_group()}", new_group()
    leader = Worker(broker.address, present, group)
    with stopping(leader):
        until(lambda: leader.partitions == {0}, "the first member leads")
        member = Worker(broker.address, late, group, allow_auto_create_topics=False)
        with stopping(member):
            until(lambda: len(leader.events) >= 3 and bool(member.events), "both are in the group")
            broker.create_topic(late)
            fill(broker, late, [5])
            until(lambda: len(member.seen) == 1, "the topic is found long before metadata_max_age_ms")


def test_a_pattern_that_matches_nothing_yet_is_looked_for_soon(broker: EmbeddedBroker) -> None:
    mark = new_group()
    with reader(broker.address, pattern=rf"{mark}\..*", group_id=new_group()) as consumer:
        assert consumer.poll(200) == {}
        broker.create_topic(f"{mark}.a")
        fill(broker, f"{mark}.a", [7])
        assert read(consumer, 1) == [7]
