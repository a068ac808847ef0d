"""What a group promises: members join, leave and die, ours and others; the next continues at the committed offset."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.contract.contract import (
    Capabilities,
    MakeTopic,
    Worker,
    fill,
    fill_all,
    librdkafka_reader,
    member_process,
    new_group,
    new_name,
    partitions_of,
    reader,
    take,
    texts,
    values,
)
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, AsyncConsumer, MessageStreams, OffsetAndMetadata, SqlOffsetStore, TopicPartition, errors
from penstock.client.consumer import CommitFailed

STRATEGIES = ["range", "roundrobin", "sticky", "cooperative-sticky"]
# With one of them in `make test`.
SOME_LONG = ["range", *(pytest.param(strategy, marks=pytest.mark.long) for strategy in STRATEGIES[1:])]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_share_and_take_over_from_leaving_ones(bootstrap: str, make_topic: MakeTopic, strategy: str) -> None:
    topic, group = make_topic(4), new_group()
    fill_all(bootstrap, topic, 4, 10)
    options = {"partition_assignment_strategy": strategy}
    with Worker(bootstrap, topic, group, **options) as first:
        until(lambda: len(first.seen) == 40, "the first reads everything")
        with Worker(bootstrap, topic, group, **options) as second:
            until(lambda: len(first.partitions) == len(second.partitions) == 2, "they share")
            assert first.partitions | second.partitions == set(range(4))
            fill_all(bootstrap, topic, 4, 10, 10)
            until(lambda: len(first.seen) + len(second.seen) >= 80, "they read on")
        until(lambda: len(first.partitions) == 4, "the first takes over")
        fill_all(bootstrap, topic, 4, 1, 20)
        until(lambda: len(first.seen) + len(second.seen) >= 84, "and reads on")
    counts = Counter(first.seen + second.seen)
    assert set(counts) == {(partition, offset) for partition in range(4) for offset in range(21)}
    assert set(counts.values()) == {1}


def test_a_member_that_dies_is_replaced_when_its_session_ends(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(4), new_group()
    with member_process(bootstrap, topic, group) as process:
        assert process.stdout is not None
        assert any(line == "4\n" for line in process.stdout)
        with Worker(bootstrap, topic, group, session_timeout_ms=5_000) as survivor:
            until(lambda: len(survivor.partitions) == 2, "they share")
            process.kill()
            until(lambda: len(survivor.partitions) == 4, "the survivor has all")


def test_the_next_member_continues_at_the_committed_offset(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(), new_group()
    fill(bootstrap, topic, texts(30))
    manual: dict[str, Any] = {"group_id": group, "enable_auto_commit": False}
    with reader(bootstrap, topic, **manual) as consumer:
        found = take(consumer, 10)
        consumer.commit(found[4])
    with reader(bootstrap, topic, **manual) as consumer:
        assert values(take(consumer, 1)) == texts(1, 5)
        consumer.commit({(topic, 0): OffsetAndMetadata(12, metadata="note")})
        committed = consumer.committed((topic, 0))[TopicPartition(topic, 0)]
        assert (committed.offset, committed.metadata) == (12, "note")
    with reader(bootstrap, topic, group_id=group) as consumer:
        assert values(take(consumer, 3)) == texts(3, 12)
    with reader(bootstrap, topic, **manual) as consumer:
        assert values(take(consumer, 1)) == texts(1, 15)
        calls: list[BaseException | None] = []
        consumer.commit_async(callback=lambda _, error: calls.append(error))
        until(lambda: calls == [None], "the commit is acknowledged")
        assert consumer.committed((topic, 0))[TopicPartition(topic, 0)].offset == 16


def test_a_member_that_was_left_behind_cannot_commit(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(2), new_group()
    fill_all(bootstrap, topic, 2, 10)
    with reader(bootstrap, topic, group_id=group, max_poll_interval_ms=300, enable_auto_commit=False) as idle:
        record = next(idle)
        with Worker(bootstrap, topic, group) as other:
            until(lambda: len(other.partitions) == 2, "the other has all")
            with pytest.raises(CommitFailed):
                idle.commit(record)


def test_functions_are_called_before_partitions_go(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(2), new_group()
    fill_all(bootstrap, topic, 2, 20)
    calls: list[tuple[str, int]] = []
    with reader(bootstrap, topic, group_id=group, enable_auto_commit=False) as consumer:

        @consumer.on_assign
        def begin(partitions: list[TopicPartition]) -> None:
            calls.append(("+", len(partitions)))

        @consumer.on_revoke
        def finish(partitions: list[TopicPartition]) -> None:
            calls.append(("-", len(partitions)))
            consumer.commit()

        take(consumer, 40)
        with Worker(bootstrap, topic, group) as other:
            until(lambda: consumer.poll(20) is not None and len(other.partitions) == 1, "they share")
            assert calls[:3] == [("+", 2), ("-", 2), ("+", 1)]
            fill(bootstrap, topic, [b"x"], partition=min(other.partitions))
            until(lambda: bool(other.seen), "the other reads on")
            assert other.seen[0][1] == 20


def test_a_pattern_in_a_group_picks_up_topics_that_come_later(bootstrap: str, make_topic: MakeTopic) -> None:
    family, group = new_name("family"), new_group()
    one = make_topic(prefix=f"{family}.a")
    fill(bootstrap, one, [b"one"])
    options: dict[str, Any] = {"pattern": f"{family}.*", "group_id": group, "metadata_max_age_ms": 200}
    with reader(bootstrap, **options) as consumer:
        assert values(take(consumer, 1)) == [b"one"]
        two = make_topic(prefix=f"{family}.b")
        fill(bootstrap, two, [b"two"])
        assert values(take(consumer, 1)) == [b"two"]


def test_a_static_member_comes_back_without_a_rebalance(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("static_members")
    topic, group = make_topic(2), new_group()
    with Worker(bootstrap, topic, group) as other:
        with reader(bootstrap, topic, group_id=group, group_instance_id="one") as static:
            until(lambda: static.poll(10) is not None and len(static.assignment()) == 1, "they share")
            had, generation = static.assignment(), static.generation
        with reader(bootstrap, topic, group_id=group, group_instance_id="one") as static:
            until(lambda: static.poll(10) is not None and len(static.assignment()) == 1, "it is back")
            assert (static.assignment(), static.generation) == (had, generation)
            assert len(other.partitions) == 1
            with (
                reader(bootstrap, topic, group_id=group, group_instance_id="one") as usurper,
                pytest.raises(errors.FencedInstance),
            ):
                until(lambda: usurper.poll(50) is not None and static.poll(50) is None, "the first notices")


def test_static_membership_is_rejected_by_a_broker_without_it(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    if capabilities.static_members:
        pytest.skip(f"{capabilities.name} has static members")
    with (
        reader(bootstrap, make_topic(), group_id=new_group(), group_instance_id="one") as consumer,
        pytest.raises(errors.UnsupportedVersion, match="static members"),
    ):
        consumer.poll(10_000)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_one_group_with_members_of_librdkafka(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic, strategy: str
) -> None:
    topic, group = make_topic(4), new_group()
    with Worker(bootstrap, topic, group, partition_assignment_strategy=strategy) as ours:
        until(lambda: len(ours.partitions) == 4, "we have all")
        options = {
            "group_id": group, "partition_assignment_strategy": strategy, "heartbeat_interval_ms": 100,
            "session_timeout_ms": 10_000,
        }  # fmt: skip
        with librdkafka_reader(bootstrap, capabilities, **options) as theirs:
            theirs.subscribe([topic])

            def shared() -> bool:
                theirs.poll(0.05)
                return len(theirs.assignment()) == len(ours.partitions) == 2

            until(shared, f"they share with {strategy}")
            assert {p.partition for p in theirs.assignment()} | ours.partitions == {0, 1, 2, 3}
        until(lambda: len(ours.partitions) == 4, "we have all again")


@pytest.mark.parametrize("we_lead", [True, False])
@pytest.mark.parametrize("strategy", SOME_LONG)
def test_one_group_with_members_of_kafka_python(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic, strategy: str, we_lead: bool
) -> None:
    """Either may lead the group, and the other understands the assignment."""
    kafka = pytest.importorskip("kafka")
    topic, group = make_topic(4), new_group()
    ours: Worker | None = None
    if we_lead:
        ours = Worker(bootstrap, topic, group, partition_assignment_strategy=strategy)
        until(lambda: ours is not None and len(ours.partitions) == 4, "we have all")
    theirs = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        partition_assignment_strategy=[_kafka_python_assignor(strategy)],
        heartbeat_interval_ms=100,
        session_timeout_ms=10_000,
        **capabilities.kafka_python,
    )
    # It would join before it knows the topic's partitions, and then stay without.
    theirs.topics()
    theirs.subscribe([topic])
    try:
        if ours is None:
            until(lambda: theirs.poll(50) is not None and len(theirs.assignment()) == 4, "they have all")
            ours = Worker(bootstrap, topic, group, partition_assignment_strategy=strategy)
        with ours as mine:
            until(
                lambda: theirs.poll(50) is not None and len(theirs.assignment()) == len(mine.partitions) == 2,
                f"they share with {strategy}, {we_lead=}",
            )
            assert {p.partition for p in theirs.assignment()} | mine.partitions == {0, 1, 2, 3}
    finally:
        theirs.close()


def _kafka_python_assignor(strategy: str) -> Any:
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

    kinds = (
        RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor,
    )  # fmt: skip
    return next(kind for kind in kinds if kind.name == strategy)


def test_streams_for_threads_share_a_group(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(4), new_group()
    fill_all(bootstrap, topic, 4, 50)
    seen: list[list[tuple[int, int]]] = [[], []]
    with MessageStreams(
        topic, streams=2, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
    ) as streams:  # fmt: skip

        def work(number: int) -> None:
            for record in streams[number]:
                seen[number].append((record.partition, record.offset))

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(set(seen[0] + seen[1])) == 200, "everything is read")
        until(lambda: all(len(stream.consumer.assignment()) == 2 for stream in streams), "they share")
        streams.commit()
        streams.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    with Admin(bootstrap) as admin:
        committed = admin.group_offsets(group, partitions_of(topic, 4))
        assert {partition: one.offset for partition, one in committed.items()} == dict.fromkeys(
            partitions_of(topic, 4), 50
        )


def test_async_members_are_asked_before_partitions_go(bootstrap: str, make_topic: MakeTopic) -> None:
    topic, group = make_topic(2), new_group()
    fill_all(bootstrap, topic, 2, 5)
    options: dict[str, Any] = {"group_id": group, "auto_offset_reset": "earliest", "heartbeat_interval_ms": 100}
    gone: list[int] = []

    async def story() -> int:
        async with AsyncConsumer(topic, bootstrap_servers=bootstrap, **options) as first:

            @first.on_revoke
            async def drain(partitions: list[TopicPartition]) -> None:
                await asyncio.sleep(0)
                gone.append(len(partitions))

            count = 0
            async for _ in first:
                count += 1
                if count == 10:
                    break
            async with AsyncConsumer(topic, bootstrap_servers=bootstrap, **options) as second:
                async with asyncio.timeout(PATIENCE_S):
                    while not (len(first.assignment()) == len(second.assignment()) == 1):
                        await asyncio.gather(first.poll(50), second.poll(50))
            return count

    assert asyncio.run(story()) == 10
    assert gone[0] == 2


def test_offsets_can_be_kept_in_the_database_of_the_results(
    bootstrap: str, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic, group = make_topic(), new_group()
    fill(bootstrap, topic, texts(20))
    connect: Callable[[], sqlite3.Connection] = lambda: sqlite3.connect(tmp_path / "results.db")  # noqa: E731
    database = connect()
    database.execute("CREATE TABLE results (value TEXT)")
    for expected in (7, 20):
        store = SqlOffsetStore(connect)
        store.create_table(database)
        database.commit()
        options: dict[str, Any] = {"group_id": group, "offset_store": store, "enable_auto_commit": False}
        with reader(bootstrap, topic, **options) as consumer:
            for record in consumer:
                with database:
                    database.execute("INSERT INTO results VALUES (?)", (record.value.decode(),))
                    store.save_in(database, group, {(topic, 0): record.offset + 1})
                if record.offset + 1 == expected:
                    break
    stored = [row[0].encode() for row in database.execute("SELECT value FROM results ORDER BY rowid")]
    database.close()
    assert stored == texts(20)
