"""Appends as compare-and-set, and shards that are fenced: what a process that was replaced can still do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.mirror.mirrors import create_topic, stored

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import BrokerError
from penstock.mirror.batches import stamped
from penstock.mirror.errors import ShardLost
from penstock.mirror.source import LATEST, offset_of
from penstock.mirror.state import encode_state, ensure_state_topic, read_state
from penstock.mirror.target import ShardTransactions, TargetWriter, new_producer_id
from penstock.records import encode_batch
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode


def batch(number: int) -> bytearray:
    return encode_batch([(number, b"k", f"{number}-{index}".encode(), ()) for index in range(5)])


def with_writer(address: str, story: Callable[[AsyncAdmin, TargetWriter], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AsyncAdmin(address) as admin:
            admin.cluster.follow_all()
            await admin.cluster.refresh()
            writer = TargetWriter(admin.cluster)
            try:
                await story(admin, writer)
            finally:
                await writer.close()

    asyncio.run(run())


def test_a_late_batch_of_a_replaced_process_changes_nothing(offline: EmbeddedBroker, name: str) -> None:
    create_topic(offline.address, name)
    to = TopicPartition(name, 0)

    async def story(admin: AsyncAdmin, writer: TargetWriter) -> None:
        producer = await new_producer_id(admin.cluster)

        async def append(number: int) -> int:
            return await writer.append(to, stamped(batch(number), *producer, number * 5, transactional=False))

        for number in range(8):
            assert await append(number) == number * 5
        assert await append(6) == 30  # among the last five: known, and acknowledged at its place
        for late in (0, 2):
            with pytest.raises(BrokerError) as caught:
                await append(late)
            assert caught.value.code in (ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(BrokerError):
            await append(9)  # too early
        assert await offset_of(admin.cluster, to, LATEST) == 40

    with_writer(offline.address, story)
    assert len(stored(offline.address, name).records) == 40


def test_an_empty_transaction_takes_one_offset_that_no_consumer_reads(offline: EmbeddedBroker, name: str) -> None:
    create_topic(offline.address, name)

    async def story(admin: AsyncAdmin, writer: TargetWriter) -> None:
        shard = ShardTransactions(writer, name)
        await shard.begin_epoch()
        for end in (1, 2, 3):
            await shard.commit([], also=[TopicPartition(name, 0)])
            while await offset_of(admin.cluster, TopicPartition(name, 0), LATEST) < end:
                await asyncio.sleep(0.005)

    with_writer(offline.address, story)
    found = stored(offline.address, name)
    assert (found.end, found.records) == (3, [])


def test_a_shard_that_was_taken_over_cannot_write_its_state(offline: EmbeddedBroker, name: str) -> None:
    async def story(admin: AsyncAdmin, writer: TargetWriter) -> None:
        assert await ensure_state_topic(admin, name, 2, -1) == 2
        assert await ensure_state_topic(admin, name, 5, -1) == 2  # the number of shards never changes
        to = TopicPartition(name, 1)
        old, new = ShardTransactions(writer, name), ShardTransactions(writer, name)
        with pytest.raises(ShardLost, match="has no epoch"):
            await old.commit([(to, encode_state({"a": {"n": 0}}, 0), 1)])
        await old.begin_epoch()
        await old.commit([(to, encode_state({"a": {"n": 1}, "b": {"n": 1}}, 0), 2)])
        await new.begin_epoch()
        with pytest.raises(ShardLost):
            await old.commit([(to, encode_state({"a": {"n": 2}}, 0), 1)])
        await new.commit([(to, encode_state({"b": None, "c": {"n": 3}}, 0), 2)])
        assert await read_state(admin.cluster, name, [1]) == {"a": {"n": 1}, "c": {"n": 3}}
        assert await read_state(admin.cluster, name, [0]) == {}

    with_writer(offline.address, story)


def test_a_partition_that_does_not_exist_is_named(offline: EmbeddedBroker, name: str) -> None:
    async def story(admin: AsyncAdmin, writer: TargetWriter) -> None:
        with pytest.raises(BrokerError, match=f"target {name}-0"):
            await writer.append(TopicPartition(name, 0), stamped(batch(0), 1, 0, 0, transactional=False))

    with_writer(offline.address, story)
