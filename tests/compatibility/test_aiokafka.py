"""aiokafka, unmodified, against a broker. It speaks old versions of the protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError, MessageSizeTooLargeError
from aiokafka.structs import OffsetAndMetadata
from tests.compatibility.client_stories import (
    BEGIN_MS,
    BROKER_SETTINGS,
    HEARTBEAT_MS,
    HOUR_MS,
    JUST_FITS_BYTES,
    LIMIT_BYTES,
    PARTITIONS,
    SAMPLES,
    SESSION_TIMEOUT_MS,
    DoomedProcess,
    numbered,
)
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def consumer_of(address: str, *topics: str, **settings: Any) -> Any:
    return AIOKafkaConsumer(*topics, bootstrap_servers=address, auto_offset_reset="earliest", **settings)


def member(address: str, topic: str, group: str, **settings: Any) -> Any:
    quick = {"session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": HEARTBEAT_MS, **settings}
    return consumer_of(address, topic, group_id=group, metadata_max_age_ms=500, **quick)


def producer_of(address: str, **settings: Any) -> Any:
    return AIOKafkaProducer(bootstrap_servers=address, **settings)


async def take(consumer: Any, count: int) -> list[Any]:
    """The next `count` records, or more if they come together."""
    records: list[Any] = []

    async def poll() -> bool:
        for batch in (await consumer.getmany(timeout_ms=200)).values():
            records.extend(batch)
        return len(records) >= count

    await until(poll, f"{count} records")
    return records


async def until(done: Callable[[], Awaitable[bool]], what: str, within_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + within_s
    while not await done():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {within_s} s: {what}")


async def read_partition(address: str, topic: str, count: int, partition: int = 0, **settings: Any) -> list[Any]:
    async with consumer_of(address, **settings) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return await take(consumer, count)


async def send_all(address: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    async with producer_of(address) as producer:
        await asyncio.gather(*[await producer.send(topic, value, partition=partition) for value in values])


class Administering:
    """An admin client that is closed."""

    def __init__(self, address: str) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=address)

    async def __aenter__(self) -> Any:
        await self._admin.start()
        return self._admin

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()


# --- producing


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_of_every_codec_and_acks_come_back(address: str, topic: str, codec: str | None, acks: Any) -> None:
    async def story() -> None:
        values = numbered(100)
        async with producer_of(address, compression_type=codec, acks=acks, linger_ms=20) as producer:
            await producer.partitions_for(topic)
            for value in values:
                await producer.send(topic, value, partition=0)
            await producer.flush()
        assert [record.value for record in await read_partition(address, topic, 100)] == values

    asyncio.run(story())


def test_an_idempotent_producer_numbers_its_records(address: str, topic: str) -> None:
    async def story() -> None:
        values = numbered(50)
        async with producer_of(address, enable_idempotence=True, max_batch_size=500) as producer:
            sent = [await producer.send(topic, value, partition=1) for value in values]
            assert [outcome.offset for outcome in await asyncio.gather(*sent)] == list(range(50))
        assert [record.value for record in await read_partition(address, topic, 50, 1)] == values

    asyncio.run(story())


def test_keys_nulls_headers_and_timestamps_come_back(address: str, topic: str) -> None:
    async def story() -> None:
        async with producer_of(address) as producer:
            for sample in SAMPLES:
                await producer.send_and_wait(
                    topic,
                    sample.value,
                    key=sample.key,
                    headers=sample.headers,
                    timestamp_ms=sample.timestamp_ms,
                    partition=0,
                )
        records = await read_partition(address, topic, len(SAMPLES))
        got = [(record.key, record.value, list(record.headers), record.timestamp) for record in records]
        assert got == [tuple(sample) for sample in SAMPLES]
        assert [record.offset for record in records] == list(range(len(SAMPLES)))

    asyncio.run(story())


def test_a_record_just_below_the_limit_passes_and_one_beyond_it_is_rejected(address: str, topic: str) -> None:
    async def story() -> None:
        async with producer_of(address, max_request_size=4 * LIMIT_BYTES) as producer:
            assert (await producer.send_and_wait(topic, bytes(JUST_FITS_BYTES), partition=0)).offset == 0
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, bytes(LIMIT_BYTES), partition=0)
            assert (await producer.send_and_wait(topic, b"after", partition=0)).offset == 1
        # A reader whose own limit is smaller than the record gets it all the same.
        records = await read_partition(address, topic, 2, max_partition_fetch_bytes=1000)
        assert [len(record.value) for record in records] == [JUST_FITS_BYTES, 5]

    asyncio.run(story())


# --- reading


def test_earliest_latest_and_times_are_found(address: str, topic: str) -> None:
    async def story() -> None:
        async with producer_of(address) as producer:
            for number in range(10):
                at_ms = BEGIN_MS + number * HOUR_MS
                await producer.send_and_wait(topic, b"%d" % number, partition=0, timestamp_ms=at_ms)
        where = TopicPartition(topic, 0)
        async with consumer_of(address) as consumer:
            consumer.assign([where])
            assert await consumer.beginning_offsets([where]) == {where: 0}
            assert await consumer.end_offsets([where]) == {where: 10}
            found = (await consumer.offsets_for_times({where: BEGIN_MS + 4 * HOUR_MS + 1}))[where]
            assert (found.offset, found.timestamp) == (5, BEGIN_MS + 5 * HOUR_MS)
            assert await consumer.offsets_for_times({where: BEGIN_MS + 100 * HOUR_MS}) == {where: None}
            consumer.seek(where, found.offset)
            assert [record.value for record in await take(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]

    asyncio.run(story())


def test_a_reader_at_the_end_is_woken_by_what_comes(address: str, topic: str) -> None:
    async def story() -> None:
        await send_all(address, topic, [b"old"])
        where = TopicPartition(topic, 0)
        async with consumer_of(address, fetch_max_wait_ms=20_000) as consumer:
            consumer.assign([where])
            await consumer.seek_to_end(where)
            assert await consumer.position(where) == 1
            assert await consumer.getmany(timeout_ms=50) == {}
            await send_all(address, topic, [b"new"])
            assert [record.value for record in await take(consumer, 1)] == [b"new"]

    asyncio.run(story())


def test_an_offset_out_of_range_is_reset(address: str, topic: str) -> None:
    async def story() -> None:
        await send_all(address, topic, [b"only"])
        where = TopicPartition(topic, 0)
        async with consumer_of(address) as consumer:
            consumer.assign([where])
            consumer.seek(where, 1000)
            assert [record.value for record in await take(consumer, 1)] == [b"only"]

    asyncio.run(story())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_both_isolation_levels_read_plain_records(address: str, topic: str, isolation: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(5))
        records = await read_partition(address, topic, 5, isolation_level=isolation)
        assert [record.value for record in records] == numbered(5)

    asyncio.run(story())


# --- groups


def test_a_group_reads_every_partition_and_resumes_where_it_committed(address: str, topic: str, group: str) -> None:
    async def story() -> None:
        for partition in range(PARTITIONS):
            await send_all(address, topic, numbered(10), partition)
        async with member(address, topic, group, enable_auto_commit=False) as consumer:
            assert len(await take(consumer, 30)) == 30
            await consumer.commit()
        await send_all(address, topic, [b"later"], 2)
        async with member(address, topic, group) as consumer:
            assert [(record.partition, record.value) for record in await take(consumer, 1)] == [(2, b"later")]

    asyncio.run(story())


def test_commits_are_seen_by_others(address: str, topic: str, group: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(5))
        where = TopicPartition(topic, 0)
        async with consumer_of(address, group_id=group, enable_auto_commit=False) as consumer:
            consumer.assign([where])
            assert await consumer.committed(where) is None
            await consumer.commit({where: OffsetAndMetadata(3, "a note")})
            assert await consumer.committed(where) == 3
        async with Administering(address) as admin:
            assert await admin.list_consumer_group_offsets(group) == {where: OffsetAndMetadata(3, "a note")}

    asyncio.run(story())


def test_members_share_partitions_as_they_join_and_leave(address: str, topic: str, group: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(1))
        async with member(address, topic, group) as first:

            async def has_all() -> bool:
                await first.getmany(timeout_ms=50)
                return len(first.assignment()) == PARTITIONS

            await until(has_all, "all for one")
            async with member(address, topic, group) as second:

                async def shared() -> bool:
                    await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
                    mine, yours = first.assignment(), second.assignment()
                    return bool(mine and yours) and not mine & yours and len(mine | yours) == PARTITIONS

                await until(shared, "both have some")
            await until(has_all, "all again")

    asyncio.run(story())


DYING = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer
address, topic, group = sys.argv[1:]

async def main():
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, group_id=group, session_timeout_ms=2000,
                                heartbeat_interval_ms=200)
    await consumer.start()
    while not consumer.assignment():
        await consumer.getmany(timeout_ms=100)
    print(len(consumer.assignment()), flush=True)
    while True:
        await consumer.getmany(timeout_ms=100)

asyncio.run(main())
"""


def test_the_partitions_of_a_member_that_dies_go_to_the_others(address: str, topic: str, group: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(1))
        with DoomedProcess(DYING, address, topic, group) as doomed:
            assert await asyncio.to_thread(doomed.wait_for_its_line) == b"3"
            async with member(address, topic, group) as survivor:

                async def has(count: int) -> bool:
                    await survivor.getmany(timeout_ms=50)
                    return len(survivor.assignment()) >= count

                await until(lambda: has(1), "a share")
                doomed.kill()
                await until(lambda: has(PARTITIONS), "what the dead one had")

    asyncio.run(story())


def test_records_and_commits_outlive_a_restart_of_the_broker(tmp_path: Any, topic: str, group: str) -> None:
    async def before(address: str) -> None:
        async with producer_of(address, enable_idempotence=True) as producer:
            for value in numbered(10):
                await producer.send_and_wait(topic, value, partition=0)
        async with member(address, topic, group, enable_auto_commit=False) as consumer:
            await take(consumer, 10)
            await consumer.commit({TopicPartition(topic, 0): 7})

    async def after(address: str) -> None:
        await send_all(address, topic, [b"after"])
        async with member(address, topic, group) as consumer:
            assert [record.offset for record in await take(consumer, 4)] == [7, 8, 9, 10]

    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        asyncio.run(before(broker.address))
    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        asyncio.run(after(broker.address))


def test_a_member_goes_on_through_a_restart_of_the_broker(tmp_path: Any, topic: str, group: str) -> None:
    async def story() -> None:
        port = free_port()
        first = EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS)
        broker = await asyncio.to_thread(first.start)
        address = broker.address
        try:
            await send_all(address, topic, [b"before"])
            async with member(address, topic, group, session_timeout_ms=10_000) as consumer:
                assert [record.value for record in await take(consumer, 1)] == [b"before"]
                await asyncio.to_thread(broker.stop)
                again = EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS)
                broker = await asyncio.to_thread(again.start)
                await send_all(address, topic, [b"after"])
                assert (await take(consumer, 1))[-1].value == b"after"
        finally:
            await asyncio.to_thread(broker.stop)

    asyncio.run(story())


# --- administering


def test_topics_are_made_described_and_deleted(address: str, topic: str) -> None:
    async def story() -> None:
        async with Administering(address) as admin:
            made = await admin.create_topics([NewTopic(topic, 4, 1, topic_configs={"retention.ms": "1000000"})])
            assert [error[:2] for error in made.topic_errors] == [(topic, ErrorCode.NONE)]
            assert topic in await admin.list_topics()
            (described,) = await admin.describe_topics([topic])
            assert sorted(each["partition"] for each in described["partitions"]) == [0, 1, 2, 3]
            again = await admin.create_topics([NewTopic(topic, 4, 1)])
            assert [error[:2] for error in again.topic_errors] == [(topic, ErrorCode.TOPIC_ALREADY_EXISTS)]
            deleted = await admin.delete_topics([topic])
            assert deleted.topic_error_codes == [(topic, ErrorCode.NONE)]
            assert topic not in await admin.list_topics()
            missing = await admin.delete_topics([topic])
            assert missing.topic_error_codes == [(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]

    asyncio.run(story())


def test_partitions_are_added_never_taken(address: str, topic: str) -> None:
    async def story() -> None:
        async with Administering(address) as admin:
            await admin.create_topics([NewTopic(topic, 2, 1)])
            added = await admin.create_partitions({topic: NewPartitions(5)})
            assert [error[:2] for error in added.topic_errors] == [(topic, ErrorCode.NONE)]
            assert len((await admin.describe_topics([topic]))[0]["partitions"]) == 5
            with pytest.raises(InvalidPartitionsError):
                await admin.create_partitions({topic: NewPartitions(3)})
        await send_all(address, topic, [b"in the new one"], 4)
        assert [record.value for record in await read_partition(address, topic, 1, 4)] == [b"in the new one"]

    asyncio.run(story())


def test_a_topics_settings_are_shown_and_changed(address: str, topic: str) -> None:
    async def shown(admin: Any, key: str) -> Any:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = [entry for answer in answers for resource in answer.resources for entry in resource[4]]
        return {entry[0]: entry[1] for entry in entries}[key]

    async def story() -> None:
        async with Administering(address) as admin:
            await admin.create_topics([NewTopic(topic, 1, 1, topic_configs={"cleanup.policy": "compact"})])
            assert await shown(admin, "cleanup.policy") == "compact"
            changes = {"max.message.bytes": "2000"}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, changes)])
            assert await shown(admin, "max.message.bytes") == "2000"
            # This request replaces all that was set before.
            assert await shown(admin, "cleanup.policy") == "delete"
        async with producer_of(address) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, bytes(3000), partition=0)

    asyncio.run(story())


def test_groups_are_listed_and_described(address: str, topic: str, group: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(3))
        async with Administering(address) as admin:
            async with member(address, topic, group) as consumer:
                await take(consumer, 3)
                assert (group, "consumer") in await admin.list_consumer_groups()
                (described,) = (await admin.describe_consumer_groups([group]))[0].groups
                assert described[:4] == (ErrorCode.NONE, group, "Stable", "consumer")
            (described,) = (await admin.describe_consumer_groups([group]))[0].groups
            assert described[:3] == (ErrorCode.NONE, group, "Empty")

    asyncio.run(story())


def test_records_are_deleted_up_to_an_offset(address: str, topic: str) -> None:
    async def story() -> None:
        await send_all(address, topic, numbered(10))
        where = TopicPartition(topic, 0)
        async with Administering(address) as admin:
            assert await admin.delete_records({where: RecordsToDelete(before_offset=6)}) == {where: 6}
        assert [record.offset for record in await read_partition(address, topic, 4)] == [6, 7, 8, 9]

    asyncio.run(story())
