"""A network and a broker that fail under load: no record is lost, skipped or reordered, and every call ends."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire_client import make_topic
from tests.client.consumer.consumer_stories import fill, filled_topic, new_group, read, reader
from tests.client.producer.proxy import Proxy
from tests.ports import free_port
from tests.timeouts import NEVER_MS, PATIENCE_MS, PATIENCE_S, until

from penstock.client.cluster_metadata import ClusterView, OffsetAndTimestamp, PartitionView, TopicPartition, TopicView
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.core import ConsumerCore
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import PenstockError, TimedOut
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

QUICK: dict[str, Any] = {"retry_backoff_ms": 10, "retry_backoff_max_ms": 50, "consumer_timeout_ms": PATIENCE_MS}


@contextmanager
def behind_a_proxy() -> Iterator[tuple[EmbeddedBroker, Proxy]]:
    port = free_port()
    with Proxy(port) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with EmbeddedBroker(port=port, settings=advertised) as broker:
            yield broker, proxy


def take(
    consumer: Consumer[Any, Any], upto: int, before_each: Callable[[int], None] = lambda number: None
) -> list[int]:
    """The numbers up to one, in the order in which they come."""
    seen: list[int] = []
    for record in consumer:
        seen.append(int(record.value))
        before_each(seen[-1])
        if seen[-1] == upto:
            break
    return seen


@pytest.mark.parametrize("step", [700, 3_000, 7_000])
@pytest.mark.parametrize("group", [False, True])
def test_connections_cut_in_the_middle_of_an_answer_lose_and_repeat_nothing(step: int, group: bool) -> None:
    with behind_a_proxy() as (broker, proxy):
        topic = filled_topic(broker, 3_000, a_batch=20)
        options = {"group_id": new_group()} if group else {}
        with reader(proxy.address, topic, max_partition_fetch_bytes=4_000, **QUICK, **options) as consumer:

            def cut_often(number: int) -> None:
                if number % 400 == 0:
                    proxy.cut_after(to_client=step)

            assert take(consumer, 2_999, cut_often) == list(range(3_000))
        assert proxy.cuts >= 2


def test_a_broker_restarted_under_load_is_read_on_by_the_same_members(tmp_path: Path) -> None:
    port = free_port()
    broker = EmbeddedBroker(str(tmp_path), port=port).start()
    topic = make_topic(broker.broker, partitions=2)
    for partition in (0, 1):
        fill(broker, topic, range(500), partition=partition)
    group = new_group()
    seen: dict[int, list[int]] = {0: [], 1: []}
    options = {**QUICK, "max_partition_fetch_bytes": 2_000, "group_id": group, "auto_commit_interval_ms": 50}
    with reader(f"127.0.0.1:{port}", topic, **options) as consumer:
        lost: list[Any] = []
        consumer.on_lost(lost.append)
        restarted = 0
        for record in consumer:
            seen[record.partition].append(int(record.value))
            total = sum(map(len, seen.values()))
            if total in (150, 700):
                broker.stop()
                broker = EmbeddedBroker(str(tmp_path), port=port).start()
                restarted += 1
            if total == 900:
                for partition in (0, 1):
                    fill(broker, topic, range(500, 510), partition=partition)
            if total == 1_020:
                break
        assert restarted == 2
    assert seen == {0: list(range(510)), 1: list(range(510))}
    with reader(f"127.0.0.1:{port}", topic, **options) as consumer:
        fill(broker, topic, [510])
        assert read(consumer, 1) == [510]
    broker.stop()


def test_a_broker_that_is_away_for_a_while_costs_the_members_nothing_but_time(tmp_path: Path) -> None:
    port = free_port()
    broker = EmbeddedBroker(str(tmp_path), port=port).start()
    topic = make_topic(broker.broker)
    fill(broker, topic, range(10))
    with reader(f"127.0.0.1:{port}", topic, group_id=new_group(), **QUICK) as consumer:
        assert read(consumer, 10) == list(range(10))
        broker.stop()
        assert consumer.poll(300) == {}
        with pytest.raises(PenstockError):
            consumer.commit({(topic, 0): 5}, timeout_ms=300)
        with pytest.raises(PenstockError):
            consumer.end_offsets([(topic, 0)], timeout_ms=300)
        broker = EmbeddedBroker(str(tmp_path), port=port).start()
        fill(broker, topic, [10])
        assert read(consumer, 1) == [10]
        consumer.commit()
    broker.stop()


def test_a_slow_broker_is_waited_for() -> None:
    with behind_a_proxy() as (broker, proxy):
        topic = filled_topic(broker, 300)
        proxy.delay_s = 0.02
        with reader(proxy.address, topic, group_id=new_group(), **QUICK) as consumer:
            assert take(consumer, 299) == list(range(300))
            consumer.commit()


def test_every_call_ends_though_the_broker_hangs() -> None:
    with behind_a_proxy() as (broker, proxy):
        topic = filled_topic(broker, 10)
        consumer = reader(proxy.address, topic, group_id=new_group(), **{**QUICK, "consumer_timeout_ms": 300})
        assert len(consumer.poll(PATIENCE_MS)[TopicPartition(topic, 0)]) == 10
        proxy.hold()
        calls: list[tuple[Callable[[], Any], bool]] = [
            (lambda: consumer.poll(300), False),
            (lambda: list(consumer), False),
            (lambda: consumer.commit(timeout_ms=300), True),
            (lambda: consumer.committed(timeout_ms=300), True),
            (lambda: consumer.end_offsets([(topic, 0)], timeout_ms=300), True),
            (lambda: consumer.lag(timeout_ms=300), True),
            (lambda: consumer.close(1.0), False),
        ]
        for call, raises in calls:
            if raises:
                with pytest.raises(TimedOut):
                    call()
            else:
                call()
        proxy.let_go()


def test_a_member_whose_broker_hung_for_longer_than_its_session_continues_at_its_committed_offset() -> None:
    with behind_a_proxy() as (broker, proxy):
        topic, group = filled_topic(broker, 100), new_group()
        options = {**QUICK, "session_timeout_ms": 6_000, "request_timeout_ms": 500, "group_id": group}
        with reader(proxy.address, topic, max_partition_fetch_bytes=500, **options) as consumer:
            first = read(consumer, 30)
            proxy.cut()
            proxy.hold()
            threading.Timer(1.0, proxy.let_go).start()
            assert first + take(consumer, 99) == list(range(100))


def test_what_a_record_deleted_under_the_reader_does(tmp_path: Path) -> None:
    """The log's beginning moves past the position: by policy the reader continues from there."""
    from tests.broker.wire_client import WireClient

    from penstock.wire.protocol import ApiKey
    from penstock.wire.schemas.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    with EmbeddedBroker(str(tmp_path)) as broker:
        topic = filled_topic(broker, 100)
        with reader(broker.address, topic, max_partition_fetch_bytes=1_000, **QUICK) as consumer:
            assert read(consumer, 5) == [0, 1, 2, 3, 4]
            with WireClient(broker.port) as client:
                wanted = DeleteRecordsPartition(partition_index=0, offset=80)
                topics = [DeleteRecordsTopic(name=topic, partitions=[wanted])]
                client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=topics, timeout_ms=5_000), 1)
            seen = take(consumer, 99)
            assert seen == sorted(seen)
            assert seen[-20:] == list(range(80, 100))


CHILD = """
    import sys, threading, time
    from penstock.client.consumer.consumer import Consumer
    seen = []
    def tell():
        "Say that the main thread waits for the fourth record."
        while True:
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame is not None and frame.f_code.co_name != "_wait":
                frame = frame.f_back
            if frame is not None and len(seen) == 3:
                return print("waits", flush=True)
            time.sleep(0.01)
    threading.Thread(target=tell, daemon=True).start()
    options = {"session_timeout_ms": int(sys.argv[4]), "auto_offset_reset": "earliest"}
    with Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3], **options) as c:
        for record in c:
            print(int(record.value), flush=True)
            seen.append(record)
"""


def test_ctrl_c_ends_a_consumer_that_waits_and_its_place_is_free_at_once(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 3), new_group()
    command = [sys.executable, "-c", textwrap.dedent(CHILD), broker.address, topic, group, str(NEVER_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert [int(child.stdout.readline()) for _ in range(3)] == [0, 1, 2]
            assert child.stdout.readline() == "waits\n"
            child.send_signal(signal.SIGINT)
            _, errors = child.communicate(timeout=PATIENCE_S)
        finally:
            child.kill()
    assert child.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")
    with reader(broker.address, topic, group_id=group) as consumer:
        fill(broker, topic, [3])
        # It was waiting, so all it had been given was done, and committed on the way out.
        assert read(consumer, 1) == [3]


def test_a_program_that_ends_without_closing_leaves_its_group(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 3), new_group()
    code = """
        import sys
        from penstock.client.consumer.consumer import Consumer
        options = {"session_timeout_ms": int(sys.argv[4]), "auto_offset_reset": "earliest"}
        kept = Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3], **options)
        print(next(kept).value)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), broker.address, topic, group, str(NEVER_MS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "b'0'\n"
    assert done.stderr == ""
    with reader(broker.address, topic, group_id=group) as consumer:
        assert read(consumer, 3) == [0, 1, 2]


def test_hundreds_of_partitions_are_read_within_one_session(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker, partitions=300)
    with reader(broker.address, topic, **QUICK) as consumer:
        assert consumer.poll(300) == {}
        for partition in (0, 150, 299):
            fill(broker, topic, [partition], partition=partition)
        assert sorted(read(consumer, 3)) == [0, 150, 299]
        sessions = consumer._core._fetcher._sessions
        until(lambda: any(session.is_open for session in sessions.values()), "a session is kept")


def test_what_falls_due_between_two_looks_at_the_clock_is_not_forgotten(address: str) -> None:
    """Time passes between deciding what to fetch and setting the timer for what was put off."""

    class Jumping:
        def __init__(self) -> None:
            self.looks_ms = 0.0

        def now_ms(self) -> int:
            return 0

        def monotonic_ms(self) -> float:
            self.looks_ms += 100
            return self.looks_ms

    async def story() -> None:
        clock = Jumping()
        core = ConsumerCore(address, ConsumerSettings(), post=lambda work: None, clock=clock)
        state = core._set_assignment(frozenset({TopicPartition("t", 0)}))[0]
        state.seek(0)
        state.retry_at(clock.looks_ms + 150)
        core.pump()
        assert core._timer is not None
        await core.close()

    asyncio.run(story())


def test_a_broker_that_finds_times_by_segment_only_is_never_sought_past_the_wanted_time() -> None:
    """ListOffsets 0, as 0.9 has it: no segment written before a time means that everything is after it."""
    from tests.client.scripted import run

    from penstock.client.leader_requests import OffsetLookup

    asked: list[int] = []

    class OldBroker:
        def version_of(self, api_key: int, at_most: int | None = None) -> int:
            return 0

        async def request(self, api_key: int, message: Any, **more: Any) -> ListOffsetsResponse:
            wanted = message.topics[0].partitions[0]
            asked.append(wanted.timestamp)
            offsets = [7] if wanted.timestamp == -2 else []
            answer = ListOffsetsPartitionResponse(partition_index=0, old_style_offsets=offsets)
            return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[answer])])

    class Cluster:
        view = ClusterView(
            topics={
                "t": TopicView("t", None, (PartitionView(0, 1, -1, (1,), (1,), ErrorCode.NONE),), False, ErrorCode.NONE)
            }
        )

        async def to(self, node_id: int, *, lane: str) -> OldBroker:
            return OldBroker()

    lookup = OffsetLookup(Cluster(), isolation_level=0, timeout_ms=1_000)  # type: ignore[arg-type]
    partition = TopicPartition("t", 0)
    assert run(lookup.offsets({partition: 12_345})) == {partition: OffsetAndTimestamp(7, -1)}
    assert asked == [12_345, -2]


def test_a_position_is_validated_after_a_new_leader_though_nothing_is_being_fetched(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10)
    with reader(broker.address, topic) as consumer:
        assert read(consumer, 3) == [0, 1, 2]
        core = consumer._core
        consumer.pause((topic, 0))
        until(lambda: not core._fetcher._in_flight, "no fetch is in flight")
        validated: list[Any] = []

        async def note(states: list[Any]) -> None:
            validated.extend(states)
            for state in states:
                state.validated(state.version, -1, -1)

        core._resolver._validate = note  # type: ignore[method-assign]
        consumer._background.call(core.cluster.update_leader, topic, 0, 0, 7)
        until(lambda: bool(validated), "the position is looked at")


def test_a_missing_topic_is_looked_for_while_another_one_is_busy(broker: EmbeddedBroker) -> None:
    busy, late = filled_topic(broker, 10), f"late-{new_group()}"
    with reader(broker.address, busy, late, allow_auto_create_topics=False, fetch_max_wait_ms=50) as consumer:
        assert read(consumer, 10) == list(range(10))
        broker.create_topic(late)
        fill(broker, late, [77])
        assert read(consumer, 1) == [77], "long before metadata_max_age_ms"
