"""Consumers without a group, and `SimpleConsumer`, against any broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.contract.contract import (
    BEGIN_MS,
    Capabilities,
    MakeTopic,
    fill,
    fill_all,
    new_name,
    partitions_of,
    reader,
    take,
    texts,
    values,
)
from tests.timeouts import PATIENCE_S

from penstock import AsyncConsumer, Consumer, SimpleConsumer, TopicPartition, errors
from penstock.client.consumer import NoOffset, PositionOutOfRange
from penstock.client.consumer.simple_consumer import FetchFrom


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp((BEGIN_MS + milliseconds) / 1000, UTC)


def test_partitions_that_were_assigned_are_read_from_their_beginning(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    fill_all(bootstrap, topic, 3, 20)
    with reader(bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 2)])
        found = take(consumer, 40)
        assert {record.partition for record in found} == {0, 2}
        for partition in (0, 2):
            assert [r.offset for r in found if r.partition == partition] == list(range(20))
        assert consumer.position((topic, 2)) == 20
        assert consumer.lag() == {(topic, 0): 0, (topic, 2): 0}
        assert consumer.beginning_offsets(partitions_of(topic, 3)) == dict.fromkeys(partitions_of(topic, 3), 0)
        assert consumer.end_offsets(partitions_of(topic, 3)) == dict.fromkeys(partitions_of(topic, 3), 20)
        assert consumer.partitions_for_topic(topic) == {0, 1, 2}


def test_a_subscription_without_a_group_reads_all_partitions(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    fill_all(bootstrap, topic, 3, 20)
    with reader(bootstrap, topic) as consumer:
        assert sorted((r.partition, r.offset) for r in take(consumer, 60)) == [
            (partition, offset) for partition in range(3) for offset in range(20)
        ]


def test_reading_continues_where_it_seeks(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, texts(100), compression_type="gzip")
    with reader(bootstrap, topic) as consumer:
        assert values(take(consumer, 3)) == texts(3)
        consumer.seek((topic, 0), 77)
        assert values(take(consumer, 3)) == texts(3, 77)
        consumer.seek_to_beginning()
        assert values(take(consumer, 2)) == texts(2)
        consumer.seek_to_end((topic, 0))
        assert consumer.position((topic, 0)) == 100
        fill(bootstrap, topic, [b"new"])
        assert values(take(consumer, 1)) == [b"new"]


def test_reading_continues_at_a_time(bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic) -> None:
    capabilities.need("batches")
    topic = make_topic()
    fill(bootstrap, topic, texts(100))
    with reader(bootstrap, topic) as consumer:
        consumer.seek_to_time(topic, at(40))
        assert values(take(consumer, 2)) == texts(2, 40)
        found = consumer.offsets_for_times({(topic, 0): BEGIN_MS + 70})[TopicPartition(topic, 0)]
        assert found is not None
        assert (found.offset, found.timestamp) == (70, BEGIN_MS + 70)
        assert consumer.offsets_for_times({(topic, 0): BEGIN_MS + 1_000}) == {(topic, 0): None}
        consumer.seek_to_time(topic, at(1_000))
        assert consumer.position((topic, 0)) == 100


def test_a_paused_partition_waits_and_the_others_do_not(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    fill_all(bootstrap, topic, 2, 10)
    with reader(bootstrap) as consumer:
        consumer.assign(partitions_of(topic, 2))
        consumer.pause((topic, 1))
        assert consumer.paused() == {(topic, 1)}
        assert {record.partition for record in take(consumer, 10)} == {0}
        assert consumer.poll(300) == {}
        consumer.resume((topic, 1))
        assert {record.partition for record in take(consumer, 10)} == {1}


def test_batches_become_columns(bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic) -> None:
    pytest.importorskip("pyarrow")
    topic = make_topic()
    fill(bootstrap, topic, texts(1_000), compression_type="snappy")
    keys: list[bytes] = []
    offsets: list[int] = []
    with reader(bootstrap, topic) as consumer:
        for batch in consumer.batches(max_records=300):
            table = batch.to_arrow()
            assert table.num_rows <= 300
            assert set(table.column("topic").to_pylist()) == {topic}
            keys += table.column("key").to_pylist()
            offsets += table.column("offset").to_pylist()
            if capabilities.batches:
                assert table.column("timestamp")[0].value == BEGIN_MS + offsets[-table.num_rows]
            if len(offsets) >= 1_000:
                break
    assert (keys, offsets) == (texts(1_000), list(range(1_000)))


def test_polls_are_of_the_size_that_is_asked_for(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, texts(50))
    with reader(bootstrap, topic) as consumer:
        found = consumer.poll(PATIENCE_S * 1000, max_records=7)
        assert values(found[TopicPartition(topic, 0)]) == texts(7)


def test_small_fetches_bring_records_that_are_larger(bootstrap: str, make_topic: MakeTopic) -> None:
    """To an old broker a batch that does not fit is cut off, so it has to be asked again for more."""
    topic = make_topic()
    large = [b"%d" % number * 20_000 for number in range(5)]
    fill(bootstrap, topic, large)
    with reader(bootstrap, topic, max_partition_fetch_bytes=1_000, fetch_max_bytes=1_000) as consumer:
        assert values(take(consumer, 5)) == large


def test_an_offset_that_does_not_exist_follows_the_reset_policy(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, texts(5))
    with reader(bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1_000)
        assert values(take(consumer, 5)) == texts(5)
    with reader(bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(NoOffset):
            consumer.poll(5_000)
        consumer.seek((topic, 0), 1_000)
        with pytest.raises(PositionOutOfRange):
            consumer.poll(5_000)
    with reader(bootstrap, topic, auto_offset_reset="latest") as consumer:
        assert consumer.position((topic, 0)) == 5
        fill(bootstrap, topic, [b"new"])
        assert values(take(consumer, 1)) == [b"new"]


def test_a_pattern_picks_up_topics_that_come_later(bootstrap: str, make_topic: MakeTopic) -> None:
    family = new_name("family")
    one = make_topic(prefix=f"{family}.a")
    make_topic(prefix=f"{family}.not")
    fill(bootstrap, one, [b"one"])
    with reader(bootstrap, pattern=f"{family}.*", exclude=r".*\.not.*", metadata_max_age_ms=200) as consumer:
        assert values(take(consumer, 1)) == [b"one"]
        two = make_topic(prefix=f"{family}.b")
        fill(bootstrap, two, [b"two"])
        assert values(take(consumer, 1)) == [b"two"]
        assert consumer.subscription() == {one, two}


def test_only_committed_transactions_are_read_if_one_wants(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("transactions")
    confluent = pytest.importorskip("confluent_kafka")
    topic = make_topic()
    writer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": new_name("writer")})
    writer.init_transactions(PATIENCE_S)
    for number, ending in enumerate([writer.commit_transaction, writer.abort_transaction, writer.commit_transaction]):
        writer.begin_transaction()
        for record in range(10):
            writer.produce(topic, b"%d.%d" % (number, record))
        writer.flush(PATIENCE_S)
        ending(PATIENCE_S)
    writer.begin_transaction()
    writer.produce(topic, b"open")
    writer.flush(PATIENCE_S)

    def read(**options: Any) -> list[bytes]:
        with reader(bootstrap, topic, consumer_timeout_ms=600, **options) as consumer:
            return values(consumer)

    transactions = [[b"%d.%d" % (number, record) for record in range(10)] for number in range(3)]
    assert read(isolation_level="read_committed") == transactions[0] + transactions[2]
    assert read() == [*transactions[0], *transactions[1], *transactions[2], b"open"]
    with reader(bootstrap, topic, isolation_level="read_committed") as consumer:
        tables = []
        for batch in consumer.batches(timeout_ms=600):
            tables += batch.to_arrow().column("value").to_pylist()
        assert tables == transactions[0] + transactions[2]
        assert consumer.lag() == {(topic, 0): 0}
    with SimpleConsumer(bootstrap, isolation_level="read_committed") as simple:
        assert values(simple.fetch(topic, 0, 0).records) == transactions[0] + transactions[2]
    writer.abort_transaction(PATIENCE_S)


def test_async_iteration_reads_too(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(bootstrap, topic, texts(20))

    async def story() -> list[bytes]:
        found: list[bytes] = []
        async with AsyncConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                found.append(record.value)
                if len(found) == 20:
                    return found
        return found

    assert asyncio.run(story()) == texts(20)


def test_a_topic_that_is_not_there_is_waited_for(bootstrap: str, make_topic: MakeTopic) -> None:
    with Consumer(bootstrap_servers=bootstrap, allow_auto_create_topics=False) as consumer:
        assert consumer.partitions_for_topic(new_name("missing")) == frozenset()


def test_stateless_fetches(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(2)
    fill_all(bootstrap, topic, 2, 30)
    with SimpleConsumer(bootstrap) as simple:
        found = simple.fetch(topic, 0, 25)
        assert values(found.records) == texts(5, 25)
        assert (found.next_offset, found.high_watermark) == (30, 30)
        assert simple.fetch(topic, 0, 30, max_wait_ms=100).records == []
        with pytest.raises(errors.OffsetOutOfRange):
            simple.fetch(topic, 0, 1_000)
        both = simple.multi_fetch([FetchFrom(topic, 0, 10), FetchFrom(topic, 1, 20)])
        counts = {partition: len(one.records) for partition, one in both.items() if not isinstance(one, Exception)}
        assert counts == {(topic, 0): 20, (topic, 1): 10}
        assert simple.offsets_before(topic, 0, "earliest") == [0]
        assert simple.offsets_before(topic, 0, "latest") == [30]
        # An old broker knows only when its segments were written, newer ones answer by record.
        assert simple.offsets_before(topic, 0, datetime.now(UTC), max_offsets=5)[0] in (0, 30)
