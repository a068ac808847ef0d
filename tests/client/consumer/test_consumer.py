"""The blocking consumer with a real broker: reading, positions, commits, errors, the end."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.broker.wire_client import BEGIN_MS, WireClient, delete_topic, make_topic, on_loop
from tests.client.consumer.consumer_stories import fill, filled_topic, new_group, numbers, read, read_in_turns, reader
from tests.timeouts import NEVER_MS, PATIENCE_MS, PATIENCE_S, until

from penstock.client.admin import Admin
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
from penstock.client.consumer.consumer import Consumer
from penstock.client.consumer.fetcher import RebalanceCallback
from penstock.client.consumer.reader import RebalanceCallbacks, RebalanceListener, milliseconds
from penstock.client.errors import (
    BootstrapError,
    ClosedError,
    ConfigError,
    DeserializationError,
    NoOffset,
    PositionOutOfRange,
    TimedOut,
)
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.producer import Producer
from penstock.client.serializers import Text
from penstock.records import Codec
from penstock.testing.embedded_broker import EmbeddedBroker


def test_without_a_group_all_partitions_are_read_each_in_order(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 90, partitions=3)
    with reader(broker.address, topic) as consumer:
        by_partition: dict[int, list[int]] = {}
        for record in consumer:
            by_partition.setdefault(record.partition, []).append(int(record.value))
            if sum(map(len, by_partition.values())) == 90:
                break
    assert by_partition == {p: list(range(p, 90, 3)) for p in range(3)}


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read_as_records_and_as_columns(broker: EmbeddedBroker, codec: Codec) -> None:
    topic = filled_topic(broker, 50, codec=codec)
    with reader(broker.address, topic) as consumer:
        assert read(consumer, 50) == list(range(50))
        consumer.seek_to_beginning(topic)
        found: list[int] = []
        for batch in consumer.batches(max_records=7):
            table = batch.to_arrow()
            assert 0 < table.num_rows <= 7
            found += [int(value.as_py()) for value in table.column("value")]
            if len(found) == 50:
                break
    assert found == list(range(50))


def test_an_iteration_that_was_left_continues_at_its_position_by_any_means(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 60)
    with reader(broker.address, topic) as consumer:
        assert read(consumer, 5) == [0, 1, 2, 3, 4]
        assert int(next(consumer).value or b"") == 5
        polled = consumer.poll(PATIENCE_MS, max_records=8)
        assert numbers(polled[TopicPartition(topic, 0)]) == list(range(6, 14))
        assert numbers(next(iter(consumer.batches(max_records=3)))) == [14, 15, 16]
        assert consumer.position((topic, 0)) == 17
        assert read(consumer, 43) == list(range(17, 60))


def test_a_poll_without_records_ends_in_its_time(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)
    with reader(broker.address, topic) as consumer:
        begun = time.monotonic()
        assert consumer.poll(200) == {}
        assert time.monotonic() - begun > 0.15, "it was waited for"


def test_an_iteration_ends_when_nothing_comes_for_its_time_out(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 3)
    with reader(broker.address, topic, consumer_timeout_ms=300) as consumer:
        assert read_in_turns(consumer, 3) == [0, 1, 2]
        assert numbers(consumer) == []
        fill(broker, topic, [3])
        assert read_in_turns(consumer, 1) == [3]


def test_records_that_arrive_while_a_poll_waits_end_the_wait(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)
    with reader(broker.address, topic) as consumer:
        consumer.poll(100)
        writer = threading.Timer(0.2, fill, (broker, topic, [7]))  # most likely the poll waits by then
        writer.start()
        assert [numbers(records) for records in consumer.poll(NEVER_MS).values()] == [[7]]
        writer.join()


# Positions


def test_seeking_moves_the_reader_even_in_the_middle_of_an_iteration(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 30)
    seen = []
    with reader(broker.address, topic) as consumer:
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1, 2]:
                consumer.seek((topic, 0), 25)
            if len(seen) == 6:
                break
    assert seen == [0, 1, 2, 25, 26, 27]


def test_seeking_by_time_finds_the_first_record_at_or_after_it(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 30)
    with reader(broker.address, topic, group_id=new_group()) as consumer:
        consumer.seek_to_time(topic, BEGIN_MS + 12)
        assert read(consumer, 2) == [12, 13]
        consumer.seek_to_time((topic, 0), datetime.fromtimestamp((BEGIN_MS + 20) / 1000, UTC))
        assert read(consumer, 1) == [20]
        consumer.seek_to_time([topic], BEGIN_MS + 10**9)
        assert consumer.position((topic, 0)) == 30
        found = consumer.offsets_for_times({(topic, 0): BEGIN_MS + 7})
        assert found[TopicPartition(topic, 0)] == OffsetAndTimestamp(7, BEGIN_MS + 7, 0)
        assert consumer.offsets_for_times({(topic, 0): BEGIN_MS + 999}) == {(topic, 0): None}


def test_ends_lag_and_seeking_to_them(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 40, partitions=2)
    pair = [(topic, 0), (topic, 1)]
    with reader(broker.address, topic) as consumer:
        assert consumer.beginning_offsets(pair) == {pair[0]: 0, pair[1]: 0}
        assert consumer.end_offsets(pair) == {pair[0]: 20, pair[1]: 20}
        consumer.seek(pair[0], 15)
        consumer.seek_to_end(pair[1])
        assert consumer.lag() == {pair[0]: 5, pair[1]: 0}
        assert numbers(consumer.poll(PATIENCE_MS)[TopicPartition(*pair[0])]) == [30, 32, 34, 36, 38]
        consumer.seek_to_beginning()
        assert consumer.lag(pair[0]) == {pair[0]: 20}
        assert consumer.partitions_for_topic(topic) == {0, 1}
        assert consumer.partitions_for_topic("nowhere-to-be-found") == frozenset()


def test_a_paused_partition_is_not_handed_out_and_nothing_of_it_is_lost(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 200, partitions=2)
    with reader(broker.address, topic) as consumer:
        first = next(consumer)
        consumer.pause((topic, first.partition))
        assert consumer.paused() == {(topic, first.partition)}
        rest = [next(consumer) for _ in range(100)]
        assert {record.partition for record in rest} == {1 - first.partition}
        consumer.resume((topic, first.partition))
        assert [*numbers([first]), *read(consumer, 99)] == list(range(first.partition, 200, 2))


def test_seeking_before_reading_needs_no_reset_policy(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10, partitions=2)
    with reader(broker.address, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        until(lambda: consumer._core.queue.attention, "the missing offset is known")
        consumer.seek((topic, 0), 2)
        consumer.seek_to_beginning((topic, 1))
        assert sorted(read(consumer, 8)) == [1, 3, 4, 5, 6, 7, 8, 9]


def test_an_offset_that_does_not_exist_is_reset_by_policy(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10)
    with reader(broker.address, topic) as consumer:
        consumer.seek((topic, 0), 5_000)
        assert read(consumer, 1) == [0]
    with reader(broker.address, topic, auto_offset_reset="none") as consumer:
        with pytest.raises(NoOffset, match="auto_offset_reset"):
            next(consumer)
        consumer.seek((topic, 0), 5_000)
        with pytest.raises(PositionOutOfRange, match="5000"):
            next(consumer)
        consumer.seek((topic, 0), 3)
        assert read(consumer, 1) == [3]


def test_the_reset_policy_latest_begins_with_what_comes(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10)
    with reader(broker.address, topic, auto_offset_reset="latest") as consumer:
        assert consumer.position((topic, 0)) == 10
        fill(broker, topic, [10])
        assert read(consumer, 1) == [10]


def test_the_reset_policy_latest_skips_to_the_end_from_an_offset_that_does_not_exist(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10)
    here = TopicPartition(topic, 0)
    with Admin(broker.address) as admin:
        admin.delete_records({here: 5})
    with reader(broker.address, topic, auto_offset_reset="latest") as consumer:

        def is_at(end: int) -> bool:
            assert consumer.poll(20) == {}, "nothing is handed out on the way"
            return consumer.position(here) == end

        consumer.seek(here, 5_000)
        until(lambda: is_at(10), "it is reset from beyond the end")
        fill(broker, topic, [10])
        assert read(consumer, 1) == [10]
        consumer.seek(here, 2)
        until(lambda: is_at(11), "it is reset from what was deleted")
        fill(broker, topic, [11])
        assert read(consumer, 1) == [11]


# Commits


def test_a_group_continues_where_it_committed(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30), new_group()
    tp = TopicPartition(topic, 0)
    with reader(broker.address, topic, group_id=group, enable_auto_commit=False) as consumer:
        for record in consumer:
            if record.offset == 9:
                consumer.commit(record)
                assert consumer.committed(tp) == {tp: OffsetAndMetadata(10, 0, "")}
            if record.offset == 14:
                break
        consumer.commit({tp: OffsetAndMetadata(12, -1, "a note")})
        assert consumer.committed() == {tp: OffsetAndMetadata(12, -1, "a note")}
    with reader(broker.address, topic, group_id=group, enable_auto_commit=False) as consumer:
        assert read(consumer, 2) == [12, 13]
        consumer.commit()
        batch = next(iter(consumer.batches(max_records=4)))
        assert consumer.committed()[tp].offset == 14
        consumer.commit(batch)
        assert consumer.committed()[tp].offset == 18


def test_commits_without_waiting_report_their_outcome(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 5)
    heard = threading.Event()
    outcome: list[object] = []
    with reader(broker.address, topic, group_id=new_group(), enable_auto_commit=False) as consumer:
        read(consumer, 3)

        def tell(offsets: object, error: BaseException | None) -> None:
            outcome.append(error)
            heard.set()

        consumer.commit_async(callback=tell)
        assert heard.wait(PATIENCE_S)
        assert outcome == [None]
        assert consumer.committed()[TopicPartition(topic, 0)].offset == 3


def test_an_async_commit_finishes_before_the_consumer_is_closed(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 5), new_group()
    with reader(broker.address, topic, group_id=group, enable_auto_commit=False) as consumer:
        read(consumer, 3)
        consumer.commit_async()
    with reader(broker.address, topic, group_id=group) as consumer:
        assert read(consumer, 1) == [3]


def test_what_was_handed_out_is_committed_by_itself_on_close(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30), new_group()
    with reader(broker.address, topic, group_id=group) as consumer:
        read(consumer, 7)
    with reader(broker.address, topic, group_id=group) as consumer:
        assert read(consumer, 1) == [7]


def test_what_was_handed_out_is_committed_by_itself_as_time_goes_by(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30), new_group()
    with reader(broker.address, topic, group_id=group, auto_commit_interval_ms=50) as consumer:
        read(consumer, 7)

        def committed() -> bool:
            consumer.poll(0, max_records=1)
            return consumer.committed().get(TopicPartition(topic, 0), OffsetAndMetadata(0)).offset >= 7

        until(committed, "offsets are committed")
        consumer.close(autocommit=False)


class Broken(Exception):
    pass


def test_a_record_whose_handling_raised_is_read_again_though_offsets_are_committed(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30), new_group()

    def fail_while_iterating() -> None:
        with reader(broker.address, topic, group_id=group) as consumer:
            for record in consumer:
                if record.offset == 4:
                    raise Broken

    def fail_after_polling() -> None:
        with reader(broker.address, topic, group_id=group) as consumer:
            consumer.poll(2_000, max_records=3)
            consumer.poll(2_000, max_records=3)
            raise Broken

    with pytest.raises(Broken):
        fail_while_iterating()
    with reader(broker.address, topic, group_id=group) as consumer:
        assert read(consumer, 1) == [4]
    with pytest.raises(Broken):
        fail_after_polling()
    with reader(broker.address, topic, group_id=group) as consumer:
        assert read(consumer, 1) == [8]


def test_offsets_can_be_kept_in_a_store_of_ones_own(broker: EmbeddedBroker) -> None:
    class Memory:
        def __init__(self) -> None:
            self.kept: dict[tuple[str, int], OffsetAndMetadata] = {}
            self.owners: list[int] = []

        async def load(self, group: str, partitions):  # type: ignore[no-untyped-def]
            return {p: self.kept[p] for p in partitions if p in self.kept}

        async def save(self, group, offsets, membership) -> None:  # type: ignore[no-untyped-def]
            self.kept.update(offsets)
            self.owners.append(membership.generation)

        async def close(self) -> None:
            raise AssertionError("the store is the user's")

    topic, store, group = filled_topic(broker, 10), Memory(), new_group()
    with reader(broker.address, topic, group_id=group, offset_store=store) as consumer:
        read(consumer, 4)
    assert store.kept == {(topic, 0): OffsetAndMetadata(4, 0, "")}
    assert store.owners == [1]
    with reader(broker.address, topic, group_id=group, offset_store=store) as consumer:
        assert read(consumer, 1) == [4]


# Topics


def test_a_pattern_picks_up_topics_that_are_made_later(broker: EmbeddedBroker) -> None:
    mark = new_group()
    client = WireClient(broker.port)
    from penstock.cluster.controller.topics import NewTopic

    def make(name: str) -> None:
        on_loop(
            broker.broker, broker.broker.cluster.require_controller().create_topics([NewTopic(name, 1, 1, configs={})])
        )

    make(f"{mark}.a")
    make(f"{mark}.skip")
    fill(broker, f"{mark}.a", [1])
    fill(broker, f"{mark}.skip", [99])
    pattern = rf"{mark}\..*"
    with reader(
        broker.address, pattern=pattern, exclude=r".*\.skip", group_id=new_group(), metadata_max_age_ms=100
    ) as consumer:
        assert read(consumer, 1) == [1]
        make(f"{mark}.b")
        fill(broker, f"{mark}.b", [2])
        assert read(consumer, 1) == [2]
        assert consumer.subscription() == {f"{mark}.a", f"{mark}.b"}
    client.close()


def until_assigned(consumer: Consumer[bytes, bytes], count: int) -> None:
    until(lambda: consumer.poll(20) is not None and len(consumer.assignment()) == count, f"{count} are assigned")


def test_partitions_added_to_a_topic_are_read_too(broker: EmbeddedBroker) -> None:
    from penstock.cluster.controller.controller import NewPartitions

    topic = filled_topic(broker, 1)
    for group_id in (None, new_group()):
        with reader(broker.address, topic, group_id=group_id, metadata_max_age_ms=100) as consumer:
            before = len(consumer.partitions_for_topic(topic))
            consumer.position((topic, 0))
            more = [NewPartitions(topic, before + 1)]
            assert (
                on_loop(broker.broker, broker.broker.cluster.require_controller().create_partitions(more))[0].error
                is None
            )
            until_assigned(consumer, before + 1)


def test_a_topic_that_does_not_exist_yet_is_read_once_it_does(broker: EmbeddedBroker) -> None:
    from penstock.cluster.controller.topics import NewTopic

    name = new_group()
    with reader(broker.address, name, group_id=new_group(), allow_auto_create_topics=False) as consumer:
        assert consumer.poll(200) == {}
        on_loop(
            broker.broker, broker.broker.cluster.require_controller().create_topics([NewTopic(name, 1, 1, configs={})])
        )
        fill(broker, name, [5])
        assert read(consumer, 1) == [5]


def test_a_deleted_topic_does_not_end_the_reading_of_others(broker: EmbeddedBroker) -> None:
    gone, kept = filled_topic(broker, 3), filled_topic(broker, 3)
    with reader(broker.address, gone, kept, allow_auto_create_topics=False) as consumer:
        read(consumer, 6)
        delete_topic(broker.broker, gone)
        fill(broker, kept, [3])
        assert read(consumer, 1) == [3]


def test_partitions_can_be_named_and_changed_without_a_group(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 20, partitions=2)
    with reader(broker.address) as consumer:
        consumer.assign([(topic, 1)])
        assert read(consumer, 10) == list(range(1, 20, 2))
        consumer.assign([(topic, 0)])
        assert read(consumer, 10) == list(range(0, 20, 2))
        consumer.unsubscribe()
        assert consumer.assignment() == frozenset()


# Decoding


def test_a_record_that_cannot_be_decoded_raises_and_can_be_sought_past(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)
    with WireClient(broker.port) as client:
        from tests.broker.wire_client import batch_of

        client.produce(topic, batch_of(b"one", b"\xff", b"three"))
    with Consumer(topic, bootstrap_servers=broker.address, value=Text(), auto_offset_reset="earliest") as consumer:
        assert next(consumer).value == "one"
        with pytest.raises(DeserializationError) as caught:
            next(consumer)
        assert (caught.value.partition, caught.value.offset) == (0, 1)
        assert consumer.position((topic, 0)) == 1
        consumer.seek((topic, 0), 2)
        assert next(consumer).value == "three"
    with Consumer(
        topic, bootstrap_servers=broker.address, value=Text(), auto_offset_reset="earliest", on_decode_error="skip"
    ) as consumer:
        assert [r.value for r in consumer.poll(PATIENCE_MS)[TopicPartition(topic, 0)]] == ["one", "three"]


# Options and the end


def test_an_invalid_option_is_rejected_by_name_before_connecting() -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        Consumer("t", auto_offset_reset="smallest")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="no option max_pol_records"):
        Consumer("t", max_pol_records=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="max_poll_records"):
        Consumer("t", max_poll_records=0)
    with pytest.raises(ConfigError, match="cooperative-sticky"):
        Consumer("t", partition_assignment_strategy="stickiest")
    with pytest.raises(ConfigError, match="session_timeout_ms"):
        Consumer("t", heartbeat_interval_ms=500, session_timeout_ms=500)
    with pytest.raises(ConfigError, match="group_id"):
        Consumer("t", group_instance_id="i")
    wrong: dict[str, Any] = {
        "isolation_level": "x", "enable_auto_commit": "maybe", "check_crcs": 1, "group_id": 5, "client_id": 5,
        "fetch_min_bytes": "x", "request_timeout_ms": "x", "value": 5, "key": Text, "ssl": "yes",
    }  # fmt: skip
    for option, given in wrong.items():
        with pytest.raises(ConfigError, match=option):
            Consumer("t", **{option: given})


def test_options_that_contradict_exactly_once_are_rejected() -> None:
    contradictions: list[tuple[dict[str, Any], str]] = [
        ({}, "without group_id"),
        ({"group_id": "g", "enable_auto_commit": True}, "enable_auto_commit contradict"),
        ({"group_id": "g", "isolation_level": "read_uncommitted"}, "isolation_level"),
    ]
    for options, text in contradictions:
        with pytest.raises(ConfigError, match=text):
            Consumer("t", exactly_once=True, **options)
    same: dict[str, Any] = {"enable_auto_commit": False, "isolation_level": "read_committed"}
    with pytest.raises(BootstrapError):
        Consumer("t", bootstrap_servers="127.0.0.1:1", group_id="g", exactly_once=True, **same)


def test_topics_high_watermarks_and_metrics(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 30, partitions=2), new_group()
    reported: list[dict[str, float]] = []
    with reader(
        broker.address, topic, group_id=group, on_statistics=reported.append, statistics_interval_ms=1
    ) as consumer:
        assert topic in consumer.topics()
        assert not any(name.startswith("__") for name in consumer.topics())
        assert consumer.highwater((topic, 0)) is None or consumer.assignment()
        read(consumer, 30)
        consumer.commit()
        marks = [consumer.highwater((topic, partition)) for partition in (0, 1)]
        assert marks == [consumer.end_offsets([(topic, p)])[TopicPartition(topic, p)] for p in (0, 1)]
        assert consumer.highwater((topic, 7)) is None
        metrics = consumer.metrics()
        assert (metrics["records_fetched"], metrics["lag"], metrics["lag_max"]) == (30, 0, 0)
        assert (metrics["assigned_partitions"], metrics["rebalances"]) == (2, 1)
        assert metrics["commits"] >= 1
        assert metrics["commit_failures"] == 0
        assert metrics["fetches"] >= 1
        assert metrics["bytes_fetched"] > 0
        assert 0 < metrics["fetch_latency_ms_mean"] <= metrics["fetch_latency_ms_max"]
        assert metrics["connections"] >= 1
        until(lambda: reported and reported[-1]["records_fetched"] == 30, "the callback was called")
        assert reported[-1].keys() == metrics.keys()


class Listening(RebalanceListener):
    def __init__(self) -> None:
        self.heard: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.heard.append(("assigned", assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.heard.append(("revoked", revoked))


def test_a_listener_hears_of_partitions_that_come_and_go_until_the_next_subscription(broker: EmbeddedBroker) -> None:
    topic, other = filled_topic(broker, 1), filled_topic(broker, 1)
    listener = Listening()
    with Consumer(bootstrap_servers=broker.address, group_id=new_group(), auto_offset_reset="earliest") as consumer:
        for wrong in (5, object(), Listening):
            with pytest.raises(ConfigError, match="listener"):
                consumer.subscribe(topic, listener=wrong)  # type: ignore[arg-type]
        consumer.subscribe(topic, listener=listener)
        read(consumer, 1)
        assert listener.heard == [("assigned", [TopicPartition(topic, 0)])]
        consumer.subscribe(other)
        read(consumer, 1)
    assert len(listener.heard) == 1
    assert RebalanceCallbacks().of(RebalanceCallback("lose", frozenset(), [], lambda: None)) == []
    callbacks = RebalanceCallbacks()
    callbacks.listener = listener
    (lost,) = callbacks.of(RebalanceCallback("lose", frozenset(), [], lambda: None))
    lost([TopicPartition(topic, 0)])
    assert listener.heard[-1] == ("revoked", [TopicPartition(topic, 0)])


def test_time_outs_are_in_seconds_unless_they_say_otherwise(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 3)
    with reader(broker.address, topic) as consumer:
        assert consumer.wait_for_assignment(timeout=PATIENCE_S)
        assert sum(map(len, consumer.poll(timeout=PATIENCE_S).values()))
        assert consumer.poll(timeout=0.001) is not None
        assert consumer.end_offsets([(topic, 0)], timeout=PATIENCE_S) == {TopicPartition(topic, 0): 3}
        with pytest.raises(ConfigError, match="both given"):
            consumer.poll(timeout=1, timeout_ms=1000)
        with pytest.raises(ConfigError, match="both given"):
            consumer.end_offsets([(topic, 0)], timeout=1, timeout_ms=1000)
    assert milliseconds(1.5, None) == 1_500
    assert milliseconds(None, 20) == 20
    assert milliseconds(None, None) is None


def test_functions_read_keys_and_values(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)

    def digits(value: int) -> bytes:
        return b"%d" % value

    with Producer(broker.address, key=str.encode, value=digits) as producer:
        producer.send(topic, 5, key="k")
        producer.send(topic, None, key="k")
    with Consumer(
        topic, bootstrap_servers=broker.address, key=bytes.decode, value=int, auto_offset_reset="earliest"
    ) as consumer:
        first, second = next(consumer), next(consumer)
    assert (first.key, first.value) == ("k", 5)
    assert second.value is None


def test_no_broker_is_an_error_that_says_what_was_tried() -> None:
    with pytest.raises(BootstrapError, match=r"127\.0\.0\.1:1"):
        Consumer("t", bootstrap_servers="127.0.0.1:1")


def test_a_closed_consumer_says_so_and_closing_again_is_harmless(address: str) -> None:
    consumer = reader(address, "anything")
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll()
    with pytest.raises(ClosedError):
        next(consumer)
    with pytest.raises(ClosedError):
        consumer.position(("anything", 0))


def test_closing_from_another_thread_ends_an_iteration_that_waits(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker)
    consumer = reader(broker.address, topic, consumer_timeout_ms=None)
    closer = threading.Timer(0.2, consumer.close)
    closer.start()
    assert list(consumer) == []
    closer.join()


def test_a_position_that_cannot_be_known_times_out(broker: EmbeddedBroker) -> None:
    with reader(broker.address) as consumer:
        consumer.assign([("no-such-topic-here", 40)])
        with pytest.raises(TimedOut):
            consumer.position(("no-such-topic-here", 40), timeout_ms=300)


def test_nothing_is_left_behind_by_a_consumer(broker: EmbeddedBroker) -> None:
    import os

    topic = filled_topic(broker, 10)

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with reader(broker.address, topic, group_id=new_group()) as consumer:
        read(consumer, 10)
    before, threads = files(), threading.active_count()
    for _ in range(5):
        with reader(broker.address, topic, group_id=new_group()) as consumer:
            read(consumer, 10)
    until(lambda: threading.active_count() <= threads, "threads end")
    until(lambda: files() <= before + 2, "files are closed")
    assert not [t for t in threading.enumerate() if t.name == "penstock-client"]


def test_memory_for_what_is_fetched_ahead_is_bounded(broker: EmbeddedBroker) -> None:
    topic = make_topic(broker.broker, partitions=4)
    from penstock.records import encode_batch

    with WireClient(broker.port) as client:
        for partition in range(4):
            for _ in range(20):
                client.produce(topic, encode_batch([(0, None, b"x" * 50_000, ())]), partition=partition)
    with reader(
        broker.address, topic, buffer_memory=300_000, max_partition_fetch_bytes=100_000, fetch_max_bytes=200_000
    ) as consumer:
        budget = consumer._core.queue.budget
        count = 0
        for _ in consumer:
            assert budget.buffered <= 300_000 + 200_000
            count += 1
            if count == 80:
                break
        assert count == 80


@pytest.mark.parametrize("back", [0, 15])
def test_a_seek_at_the_end_of_the_log_does_not_wait_for_the_fetch_that_waits_there(
    broker: EmbeddedBroker, back: int
) -> None:
    topic = filled_topic(broker, 20)
    with reader(broker.address, topic, fetch_max_wait_ms=NEVER_MS) as consumer:
        assert read(consumer, 20) == list(range(20))
        for _ in range(3):
            assert consumer.poll(50) == {}
            consumer.seek((topic, 0), back)
            assert read(consumer, 20 - back) == list(range(back, 20))


def test_what_is_resumed_or_assigned_does_not_wait_for_the_fetch_that_waits(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 20, partitions=3)
    with reader(broker.address, fetch_max_wait_ms=NEVER_MS) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.pause((topic, 1))
        assert sorted(read(consumer, 7)) == list(range(0, 20, 3))
        assert consumer.poll(50) == {}
        consumer.resume((topic, 1))
        assert sorted(read(consumer, 7)) == list(range(1, 20, 3))
        assert consumer.poll(50) == {}
        consumer.assign([(topic, 0), (topic, 1), (topic, 2)])
        assert sorted(read(consumer, 6)) == list(range(2, 20, 3))
        fill(broker, topic, [20])
        assert read(consumer, 1) == [20]


def test_waiting_for_an_assignment_hands_out_nothing_and_calls_functions(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 10, partitions=2)
    with reader(broker.address, topic, group_id=new_group()) as consumer:
        calls: list[Any] = []
        consumer.on_assign(calls.append)
        both = consumer.wait_for_assignment(PATIENCE_MS)
        assert both == {(topic, 0), (topic, 1)} == consumer.assignment()
        assert calls == [[(topic, 0), (topic, 1)]]
        assert consumer.wait_for_assignment() == both
        assert sorted(read(consumer, 10)) == list(range(10))


def test_waiting_for_an_assignment_that_does_not_come_ends_in_time_and_says_why(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 1), new_group()
    with reader(broker.address, allow_auto_create_topics=False) as consumer:
        with pytest.raises(TimedOut, match="There is no subscription"):
            consumer.wait_for_assignment(50)
        consumer.subscribe(f"missing-{topic}")
        with pytest.raises(TimedOut, match="None of the topics exists"):
            consumer.wait_for_assignment(50)
        consumer.assign([(topic, 0)])
        assert consumer.wait_for_assignment(50) == {(topic, 0)}
    # The first keeps what it has.
    member = {"group_id": group, "partition_assignment_strategy": "cooperative-sticky"}
    with reader(broker.address, topic, **member) as first:
        first.wait_for_assignment()
        done = threading.Event()
        reading = threading.Thread(target=lambda: [first.poll(50) for _ in iter(done.is_set, True)])
        reading.start()
        try:
            with reader(broker.address, topic, **member) as second:
                until(
                    lambda: second.poll(20) is not None and second._core.commits.committer.member_id, "it is a member"
                )
                with pytest.raises(TimedOut, match=r"within 50 ms.*more members than partitions"):
                    second.wait_for_assignment(50)
        finally:
            done.set()
            reading.join()
