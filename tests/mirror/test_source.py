"""What a fetch response does to a subscription: steps, retries, and what ends the reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import OffsetOutOfRange, PenstockError
from penstock.mirror.errors import TRUNCATED, UNREADABLE, MirrorStopped
from penstock.mirror.source import SourceReader, Subscription, Throttle
from penstock.records import encode_batch
from penstock.runtime.clock import SystemClock
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import EpochEndOffset, PartitionData


def with_subscription(story: Callable[[SourceReader, Subscription], Awaitable[None]]) -> None:
    async def run() -> None:
        reader = SourceReader(ClusterClient("127.0.0.1:1"), Throttle(0, SystemClock()))
        try:
            await story(reader, reader.subscribe(TopicPartition("views", 0), 10, 2, 1000))
        finally:
            await reader.close()

    asyncio.run(run())


def batch(base: int, count: int, epoch: int = 3) -> bytes:
    return bytes(encode_batch([(1, None, b"v", ())] * count, base_offset=base, leader_epoch=epoch))


def test_steps_move_the_position_and_the_epoch() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        reader._arrived(subscription, PartitionData(records=batch(10, 5) + batch(15, 2, 4)))
        assert (subscription.position, subscription.epoch) == (17, 4)
        arrivals = await subscription.get()
        assert [each.step.offset for each in arrivals] == [10, 15]
        reader._arrived(subscription, PartitionData(records=b""))
        assert not subscription.has_arrivals

    with_subscription(story)


def test_a_log_that_diverges_was_truncated() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        reader._arrived(subscription, PartitionData(diverging_epoch=EpochEndOffset(1, 7)))
        with pytest.raises(MirrorStopped, match="from 7 on") as caught:
            await subscription.get()
        assert caught.value.reason == TRUNCATED
        assert not subscription.has_room

    with_subscription(story)


def test_what_arrived_before_a_failure_is_not_lost() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        reader._arrived(subscription, PartitionData(records=batch(10, 5)))
        reader._arrived(subscription, PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        assert len(await subscription.get()) == 1
        with pytest.raises(OffsetOutOfRange):
            await subscription.get()

    with_subscription(story)


def test_errors_that_pass_are_waited_for() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        reader._arrived(subscription, PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert subscription.failure is None
        assert subscription.retry_at_ms > 0
        reader._arrived(subscription, PartitionData(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(PenstockError, match="source views-0"):
            await subscription.get()

    with_subscription(story)


def test_damaged_bytes_stop_the_partition() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        damaged = bytearray(batch(10, 5))
        damaged[-1] ^= 1
        reader._arrived(subscription, PartitionData(records=bytes(damaged)))
        with pytest.raises(MirrorStopped, match="checksum") as caught:
            await subscription.get()
        assert caught.value.reason == UNREADABLE

    with_subscription(story)


def test_a_batch_that_does_not_fit_is_asked_for_again_with_more_room() -> None:
    async def story(reader: SourceReader, subscription: Subscription) -> None:
        reader._arrived(subscription, PartitionData(records=batch(10, 500)[:1000]))
        assert (subscription.max_bytes, subscription.failure) == (2000, None)
        subscription.max_bytes = 1 << 28
        reader._arrived(subscription, PartitionData(records=batch(10, 500)[:1000]))
        with pytest.raises(MirrorStopped, match="larger than"):
            await subscription.get()

    with_subscription(story)
