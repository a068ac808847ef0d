"""N streams for N threads, and stateless fetches."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from tests.broker.wire_client import BEGIN_MS
from tests.client.consumer.consumer_stories import fill, filled_topic, new_group, numbers, read_in_turns
from tests.timeouts import PATIENCE_S, until

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.message_streams import MessageStreams
from penstock.client.consumer.simple_consumer import FetchFrom, SimpleConsumer
from penstock.client.errors import ConfigError, OffsetOutOfRange, PenstockError, UnknownTopic
from penstock.client.serializers import Text
from penstock.testing.embedded_broker import EmbeddedBroker


def test_streams_share_the_partitions_and_every_record_comes_once(broker: EmbeddedBroker) -> None:
    topic, group = filled_topic(broker, 400, partitions=4), new_group()
    seen: list[list[tuple[int, int]]] = [[], []]
    with MessageStreams(
        topic,
        streams=2,
        bootstrap_servers=broker.address,
        group_id=group,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
    ) as streams:

        def work(number: int) -> None:
            for record in streams[number]:
                seen[number].append((record.partition, record.offset))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(streams))]
        for thread in threads:
            thread.start()
        until(lambda: len(set(seen[0] + seen[1])) == 400, "everything is read")
        until(lambda: all(len(s.consumer.assignment()) == 2 for s in streams), "they share")
        streams.commit()
        for partition in range(4):
            fill(broker, topic, range(10), partition=partition)
        until(lambda: len(set(seen[0] + seen[1])) == 440, "everything is read")
        streams.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert {partition for partition, _ in seen[0][-5:]} | {partition for partition, _ in seen[1][-5:]}


def test_a_stream_ends_when_nothing_comes_and_filters_choose_topics(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 5)
    with MessageStreams(
        pattern=topic[:-1] + ".",
        exclude="nothing",
        timeout_ms=1_500,
        bootstrap_servers=broker.address,
        group_id=new_group(),
        auto_offset_reset="earliest",
        value=Text(),
    ) as streams:
        assert read_in_turns(streams[0], 5) == [0, 1, 2, 3, 4]
        with pytest.raises(StopIteration):
            next(streams[0])


def test_topics_have_numbers_of_streams_of_their_own(broker: EmbeddedBroker) -> None:
    wide, narrow = filled_topic(broker, 40, partitions=4), filled_topic(broker, 10)
    with MessageStreams(
        streams={narrow: 1, wide: 3},
        timeout_ms=200,
        bootstrap_servers=broker.address,
        group_id=new_group(),
        auto_offset_reset="earliest",
        heartbeat_interval_ms=50,
    ) as streams:
        assert [stream.consumer.subscription() for stream in streams] == [{narrow, wide}, {wide}, {wide}]
        found: list[set[tuple[str, int]]] = [set(), set(), set()]

        def read_in_turn() -> set[tuple[str, int]]:
            for seen, stream in zip(found, streams, strict=True):
                seen.update((record.topic, int(record.value)) for record in stream)
            return set[tuple[str, int]]().union(*found)

        def topics_assigned() -> list[set[str]]:
            read_in_turn()
            return [{partition.topic for partition in stream.consumer.assignment()} for stream in streams]

        until(lambda: topics_assigned() == [{narrow, wide}, {wide}, {wide}], "the streams share the topics")
        until(lambda: len(read_in_turn()) == 50, "everything is read")
        assert {topic for topic, _ in found[1] | found[2]} <= {wide}
        assert {number for topic, number in found[0] if topic == narrow} == set(range(10))


def test_black_list_alone_reads_everything_else_and_follows_new_topics() -> None:
    before, after, hidden = "before", "after", "hidden"
    seen: set[tuple[str, int]] = set()
    with (
        EmbeddedBroker() as own,
        MessageStreams(
            exclude="hid.*",
            timeout_ms=100,
            bootstrap_servers=own.address,
            group_id=new_group(),
            auto_offset_reset="earliest",
            heartbeat_interval_ms=50,
            metadata_max_age_ms=200,
        ) as streams,
    ):
        for name in (before, hidden):
            own.create_topic(name)
            fill(own, name, range(3))

        def until_read(expected: set[tuple[str, int]]) -> None:
            def look() -> bool:
                seen.update((record.topic, int(record.value)) for record in streams[0])
                return seen >= expected

            until(look, f"{len(expected)} records are read")

        until_read({(before, number) for number in range(3)})
        own.create_topic(after)
        fill(own, after, range(3))
        fill(own, hidden, [3])
        until_read({(name, number) for name in (before, after) for number in range(3)})
        assert {topic for topic, _ in seen} == {before, after}
        assert streams[0].consumer.subscription() == {before, after}


def test_streams_need_a_group() -> None:
    with pytest.raises(ConfigError, match="group"):
        MessageStreams("t")
    with pytest.raises(ConfigError, match="streams"):
        MessageStreams("t", group_id="g", streams=0)
    for streams, problem in ({"t": 0}, "streams is 0"), ({}, "names no topic"):
        with pytest.raises(ConfigError, match=problem):
            MessageStreams(group_id="g", streams=streams)
    for pattern, exclude in (("t", None), (None, "t")):
        with pytest.raises(ConfigError, match="names the topics already"):
            MessageStreams(group_id="g", streams={"t": 1}, pattern=pattern, exclude=exclude)
    with pytest.raises(ConfigError, match="names the topics already"):
        MessageStreams("t", group_id="g", streams={"t": 1})


def test_a_fetch_returns_records_from_an_offset_and_the_next_offset(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 30)
    with SimpleConsumer(broker.address) as simple:
        found = simple.fetch(topic, 0, 25)
        assert numbers(found.records) == [25, 26, 27, 28, 29]
        assert (found.next_offset, found.high_watermark) == (30, 30)
        assert simple.fetch(topic, 0, 30, max_wait_ms=100).records == []
        offset, seen = 0, []
        while offset < 30:
            found = simple.fetch(topic, 0, offset, max_bytes=1)
            seen += numbers(found.records)
            offset = found.next_offset
        assert seen == list(range(30))


def test_a_multi_fetch_asks_many_partitions_at_once_and_errors_stay_with_theirs(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 30, partitions=2)
    with SimpleConsumer(broker.address, request_timeout_ms=3_000) as simple:  # so long is the topic looked for
        found = simple.multi_fetch(
            [FetchFrom(topic, 0, 10), FetchFrom(topic, 1, 99_999), FetchFrom("no-such-topic", 0, 0)]
        )
        good = found[TopicPartition(topic, 0)]
        assert not isinstance(good, PenstockError)
        assert numbers(good.records) == list(range(20, 30, 2))
        assert isinstance(found[TopicPartition(topic, 1)], OffsetOutOfRange)
        assert isinstance(found[TopicPartition("no-such-topic", 0)], UnknownTopic)
        with pytest.raises(OffsetOutOfRange):
            simple.fetch(topic, 1, 99_999)
        with pytest.raises(ConfigError):
            simple.fetch(topic, 0, -1)


def test_offsets_before_a_time(broker: EmbeddedBroker) -> None:
    topic = filled_topic(broker, 30)
    with SimpleConsumer(broker.address) as simple:
        assert simple.offsets_before(topic, 0, "latest") == [30]
        assert simple.offsets_before(topic, 0, "earliest") == [0]
        # One segment, which was written before this moment.
        assert simple.offsets_before(topic, 0, datetime(2100, 1, 1, tzinfo=UTC), max_offsets=5)[-1] == 0
        assert isinstance(simple.offsets_before(topic, 0, BEGIN_MS), list)
        with pytest.raises(ConfigError):
            simple.offsets_before(topic, 0, "yesterday")
