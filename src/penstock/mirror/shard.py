"""A shard: the source partitions that one process mirrors under one transactional id.

A process that gets a shard begins a new epoch of its transactional id, which fences the process that had it, and then
reads its state. Any failure of a transaction, and any doubt about its outcome, ends the epoch: the next one reads the
state again. Partitions of the shard come and go with the routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.client.producer.producer_batch import ProducerId
from penstock.mirror.errors import MirrorStopped, ShardLost
from penstock.mirror.identical import IdenticalPartition
from penstock.mirror.mapped import MappedPartition, MappedPartitions, Route
from penstock.mirror.settings import SAME, MirrorSettings
from penstock.mirror.source import SourceReader
from penstock.mirror.state import (
    PRODUCER_KEY,
    PartitionState,
    SourcePartition,
    Values,
    as_value,
    encode_state,
    partition_state,
    read_state,
)
from penstock.mirror.target import ShardTransactions, TargetWriter, new_producer_id

_log = logging.getLogger(__name__)
_RETRY_STOPPED_S: Final = 30.0


@dataclass(slots=True)
class MirrorContext:
    """What all shards of a process share."""

    settings: MirrorSettings
    target: AsyncAdmin
    writer: TargetWriter
    readers: Mapping[str, SourceReader]
    shards: int = 0
    routes: dict[SourcePartition, Route] = field(default_factory=dict)
    routes_changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class _GapRequest:
    """A gap to fill: its partition, state, and how many markers are missing."""

    __slots__ = ("count", "done", "key", "partition", "state")

    def __init__(self, partition: TopicPartition, key: SourcePartition, state: PartitionState) -> None:
        self.partition = partition
        self.key = key
        self.state = state
        self.count = state.gap_count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Shard:
    """Mirrors the partitions of one shard until cancelled. Implements `ShardState` for its partitions."""

    def __init__(self, index: int, context: MirrorContext) -> None:
        self.index = index
        self.values: Values = {}
        self.is_ready = asyncio.Event()
        """Whether its state was read in the current epoch."""
        self._context = context
        settings = context.settings
        self._state_partition = TopicPartition(settings.state_topic, index)
        self._transactions = ShardTransactions(context.writer, f"{settings.state_topic}.{index}")
        self._clock = context.target.cluster.clock
        self._producer = ProducerId(-1, -1)
        self._tasks: dict[SourcePartition, tuple[Route, asyncio.Task[None]]] = {}
        self._retry_at_ms: dict[SourcePartition, float] = {}
        self._gaps: list[_GapRequest] = []
        self._gap_waits = asyncio.Event()
        self._fills_gaps = False
        self._mapped: MappedPartitions | None = None

    # --- epochs

    async def run(self) -> None:
        """Epochs, one after the other."""
        backoff = self._context.target.cluster.new_backoff()
        while True:
            try:
                await self._epoch()
            except* PenstockError as group:
                _log.warning("shard restarts: shard=%s reason=%s", self.index, _first(group))
            finally:
                self.is_ready.clear()
            await asyncio.sleep(backoff.failed(self._clock.monotonic_ms()) / 1000)

    async def _epoch(self) -> None:
        context = self._context
        await self._transactions.begin_epoch()
        self.values = await read_state(context.target.cluster, context.settings.state_topic, [self.index])
        self._producer = await self._producer_id()
        self._gaps.clear()
        self._mapped = MappedPartitions(
            self._transactions,
            self._state_partition,
            self._clock,
            limits=context.settings.number,
            on_saved=self._saved,
            save=self.save,
        )
        _log.info("shard begins: shard=%s keys=%s", self.index, len(self.values))
        self.is_ready.set()
        self._retry_at_ms.clear()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._transactions.until_lost())
                group.create_task(self._mapped.run())
                group.create_task(self._fill_gaps())
                group.create_task(self._supervise(group))
        finally:
            self._tasks.clear()

    async def _producer_id(self) -> ProducerId:
        known = self.values.get(PRODUCER_KEY)
        if known is not None:
            return ProducerId(known["id"], known["epoch"])
        new = await new_producer_id(self._context.target.cluster)
        await self.write({PRODUCER_KEY: {"id": new.id, "epoch": new.epoch}})
        return new

    # --- partitions

    async def _supervise(self, group: asyncio.TaskGroup) -> None:
        context = self._context
        while True:
            now_ms = self._clock.monotonic_ms()
            wanted = {key: route for key, route in context.routes.items() if key.shard(context.shards) == self.index}
            for key, (route, task) in list(self._tasks.items()):
                if wanted.get(key) != route:
                    task.cancel()
                    await asyncio.wait([task])
                    self._retry_at_ms.pop(key, None)
                    del self._tasks[key]
                elif task.done() and self._retry_at_ms.get(key, 0) <= now_ms:
                    del self._tasks[key]
            for key, route in wanted.items():
                if key not in self._tasks:
                    self._tasks[key] = route, group.create_task(self._mirror(route), name=f"mirror {key}")
            async with context.routes_changed:
                try:
                    async with asyncio.timeout(_RETRY_STOPPED_S):
                        await context.routes_changed.wait()
                except TimeoutError:
                    pass

    async def _mirror(self, route: Route) -> None:
        """Mirror a partition until it stops, which is recorded."""
        state = self._state_of(route)
        try:
            if route.mode == SAME:
                await self._identical(route, state).run()
            elif self._mapped is not None:
                reader = self._context.readers[route.key.alias]
                max_bytes = self._context.settings.number("fetch.max.bytes")
                await self._mapped.mirror(MappedPartition(route, state, reader, max_bytes))
        except MirrorStopped as stopped:
            self._retry_at_ms[route.key] = self._clock.monotonic_ms() + _RETRY_STOPPED_S * 1000
            before = self._state_of(route)
            text = f"{stopped.message}. {stopped.hint}"
            if (before.stopped, before.reason) != (text, stopped.reason):
                await self.save(route.key, msgspec.structs.replace(before, stopped=text, reason=stopped.reason))
            _log.error("partition stopped: partition=%s reason=%s: %s", route.key, stopped.reason, stopped)

    def _state_of(self, route: Route) -> PartitionState:
        state = partition_state(self.values.get(route.key.key))
        if (state.source_id, state.target_id) != (route.source_id, route.target_id):
            return PartitionState(source_id=route.source_id, target_id=route.target_id)
        return state

    def _identical(self, route: Route, state: PartitionState) -> IdenticalPartition:
        context = self._context
        return IdenticalPartition(
            route.key,
            route.target,
            state,
            reader=context.readers[route.key.alias],
            writer=context.writer,
            admin=context.target,
            producer=self._producer,
            shard=self,
            limits=context.settings.number,
        )

    # --- state

    def _saved(self, saved: Mapping[str, PartitionState]) -> None:
        for key, state in saved.items():
            self.values[key] = as_value(state)

    async def write(self, records: Mapping[str, Mapping[str, Any] | None]) -> None:
        """Write state records in a transaction of their own; raises ShardLost."""
        batch = encode_state(records, self._clock.now_ms())
        await self._transactions.commit([(self._state_partition, batch, len(records))])
        for key, value in records.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = dict(value)

    async def save(self, key: SourcePartition, state: PartitionState) -> None:
        """Record the state of a partition."""
        await self.write({key.key: as_value(state)})

    # --- gaps

    async def fill_gap(self, partition: TopicPartition, key: SourcePartition, state: PartitionState) -> None:
        """Record the gap, then commit one empty transaction per offset of it; others share the transactions."""
        if not self._fills_gaps:
            raise ShardLost(f"shard {self.index} is about to restart")
        request = _GapRequest(partition, key, state)
        self._gaps.append(request)
        self._gap_waits.set()
        try:
            await asyncio.shield(request.done)
        except asyncio.CancelledError:
            # What was begun ends first: another session of the partition must not meet its markers.
            await asyncio.wait([request.done])
            raise

    async def _fill_gaps(self) -> None:
        open_: list[_GapRequest] = []
        self._fills_gaps = True
        try:
            while True:
                await self._gap_waits.wait()
                self._gap_waits.clear()
                open_, self._gaps = self._gaps, []
                await self.write({each.key.key: as_value(each.state) for each in open_})
                while open_:
                    await self._transactions.commit([], also=[each.partition for each in open_])
                    for each in open_:
                        each.count -= 1
                        if not each.count:
                            each.done.set_result(None)
                    open_ = [each for each in open_ if each.count]
        finally:
            self._fills_gaps = False
            for each in [*open_, *self._gaps]:
                each.done.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
