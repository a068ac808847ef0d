"""Partitions whose offsets differ from their sources': positions are committed in the transaction of the records.

One transaction takes what has arrived from all such partitions of a shard, and ends with a state record per source
partition: its position, and where its records are. So the position and the records are visible together or not at all.
In a shared topic every record also gets a header with its origin, and records that came from the target are dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import OffsetOutOfRange, PenstockError
from penstock.mirror.batches import Data, Step, with_origin
from penstock.mirror.errors import MirrorStopped
from penstock.mirror.offset_map import OffsetMap
from penstock.mirror.settings import SHARED
from penstock.mirror.source import EARLIEST, LATEST, SourceReader, Subscription, lost, offset_of
from penstock.mirror.source import truncated as truncated_at
from penstock.mirror.state import PartitionState, SourcePartition, as_value, encode_state
from penstock.mirror.target import ShardTransactions
from penstock.records.types import Buffer
from penstock.runtime.clock import Clock

_log = logging.getLogger(__name__)
_PARTITIONS_PER_TRANSACTION: Final = 200
_RETRY_S: Final = 0.5
_LOOKS: Final = 4


class Route(NamedTuple):
    """A source partition, where it goes, and how."""

    key: SourcePartition
    target: TopicPartition
    mode: str
    source_id: str
    target_id: str
    source_cluster: str
    target_cluster: str


class MappedPartition:
    """One source partition: its position, its offsets, and what has arrived of it."""

    def __init__(self, route: Route, state: PartitionState, reader: SourceReader, max_bytes: int) -> None:
        self.route = route
        self.state = state
        self.offsets = OffsetMap(state.runs)
        self.reader = reader
        self.source = TopicPartition(route.key.topic, route.key.partition)
        self._max_bytes = max_bytes
        self.subscription: Subscription | None = None

    async def open(self) -> Subscription:
        """Check the source, and read from the position on; raises MirrorStopped."""
        cluster = self.reader.cluster
        start = await offset_of(cluster, self.source, EARLIEST)
        position = self.state.position
        if position < 0:
            position = start
            self.state = msgspec.structs.replace(self.state, position=start)
        if position < start:
            raise lost(self.source, position, start)
        for look in range(_LOOKS):
            end = await offset_of(cluster, self.source, LATEST)
            if end >= position:
                break
            await asyncio.sleep(0.1 * 2**look)
        else:
            raise truncated_at(self.source, position, end)
        self.subscription = self.reader.subscribe(self.source, position, self.state.epoch, self._max_bytes)
        return self.subscription

    def close(self) -> None:
        if self.subscription is not None:
            self.reader.unsubscribe(self.subscription)
            self.subscription = None

    def prepared(self, step: Step) -> Data | None:
        """What is written of a step; None for nothing."""
        if not isinstance(step, Data):
            return None
        route = self.route
        if route.mode != SHARED:
            return step
        origin = f"{route.source_cluster}/{route.key.topic}/{route.key.partition}"
        return with_origin(step, origin, route.target_cluster)

    def advanced(self, last: Step) -> None:
        self.state = msgspec.structs.replace(
            self.state,
            position=last.next_offset,
            epoch=max(self.state.epoch, last.leader_epoch),
            runs=tuple(tuple(each) for each in self.offsets.runs) if self.route.mode != SHARED else (),
            stopped="",
            reason="",
        )


class _Write(NamedTuple):
    partition: MappedPartition
    step: Data


class MappedPartitions:
    """The mapped and shared partitions of a shard, and the loop that copies them."""

    def __init__(
        self,
        transactions: ShardTransactions,
        state_partition: TopicPartition,
        clock: Clock,
        *,
        limits: Callable[[str], int],
        on_saved: Callable[[dict[str, PartitionState]], None],
        save: Callable[[SourcePartition, PartitionState], Awaitable[None]],
    ) -> None:
        self._transactions = transactions
        self._state_partition = state_partition
        self._clock = clock
        self._limits = limits
        self._on_saved = on_saved
        self._save = save
        self._partitions: dict[SourcePartition, MappedPartition] = {}
        self._failed: dict[SourcePartition, asyncio.Event] = {}
        self._arrived = asyncio.Event()

    async def mirror(self, partition: MappedPartition) -> None:
        """Take part in the shard's transactions until cancelled; raises MirrorStopped."""
        key = partition.route.key
        try:
            while True:
                subscription = await self._opened(partition)
                if partition.state.stopped:
                    partition.state = msgspec.structs.replace(partition.state, stopped="", reason="")
                    await self._save(key, partition.state)
                subscription.on_arrival = self._arrived.set
                failed = asyncio.Event()
                self._failed[key] = failed
                self._partitions[key] = partition
                self._arrived.set()
                await failed.wait()
                partition.close()
                if isinstance(subscription.failure, MirrorStopped):
                    raise subscription.failure
                if not isinstance(subscription.failure, OffsetOutOfRange):
                    await asyncio.sleep(_RETRY_S)
        finally:
            self._partitions.pop(key, None)
            self._failed.pop(key, None)
            partition.close()

    async def _opened(self, partition: MappedPartition) -> Subscription:
        while True:
            try:
                return await partition.open()
            except MirrorStopped:
                raise
            except PenstockError as error:
                _log.info("partition waits: partition=%s reason=%s", partition.route.key, error)
            await asyncio.sleep(_RETRY_S)

    async def run(self) -> None:
        """Copy what arrives, one transaction after the other; raises ShardLost."""
        interval_s = self._limits("transaction.interval.ms") / 1000
        while True:
            await self._arrived.wait()
            if interval_s:
                await asyncio.sleep(interval_s)
            self._arrived.clear()
            while await self._copy():
                pass

    async def _copy(self) -> bool:
        """One transaction. False if nothing was waiting."""
        writes: list[_Write] = []
        ends: dict[SourcePartition, tuple[MappedPartition, Step]] = {}
        size = 0
        for key, partition in list(self._partitions.items()):
            subscription = partition.subscription
            if subscription is None or not subscription.has_arrivals:
                continue
            try:
                arrivals = subscription.take()
            except PenstockError:
                del self._partitions[key]
                self._failed[key].set()
                continue
            for arrival in arrivals:
                size += arrival.size
                ends[key] = partition, arrival.step
                step = partition.prepared(arrival.step)
                if step is not None:
                    writes.append(_Write(partition, step))
                if partition.route.mode == SHARED:
                    await asyncio.sleep(0)  # decoding takes its time
            if size >= self._limits("transaction.max.bytes") or len(ends) >= _PARTITIONS_PER_TRANSACTION:
                self._arrived.set()
                break
        if not ends:
            return False
        await self._commit(writes, ends)
        return True

    async def _commit(self, writes: list[_Write], ends: dict[SourcePartition, tuple[MappedPartition, Step]]) -> None:
        saved: dict[str, PartitionState] = {}

        def finish(bases: list[int]) -> tuple[TopicPartition, Buffer, int]:
            for write, base in zip(writes, bases, strict=True):
                write.partition.offsets.add(write.step.offset, base, write.step.count)
            for key, (partition, last) in ends.items():
                partition.advanced(last)
                saved[key.key] = partition.state
            values = {key: as_value(state) for key, state in saved.items()}
            return self._state_partition, encode_state(values, self._clock.now_ms()), len(values)

        batches = [(write.partition.route.target, write.step.batch, write.step.count) for write in writes]
        await self._transactions.commit(batches, finish)
        self._on_saved(saved)
