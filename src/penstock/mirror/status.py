"""The progress of a mirror, read from the clusters: position and lag of every source partition, and what has stopped.

The mirror need not run. In a topic with the same offsets the position is the target's end; elsewhere it is in the
state topic. Lag in seconds is the age of the first record that is not mirrored yet. Records of open transactions count:
they are not mirrored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec

from penstock.client.admin import AsyncAdmin
from penstock.client.admin.groups import record_times
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import PenstockError
from penstock.client.leader_requests import ask_leaders
from penstock.mirror.mirror import admin_of
from penstock.mirror.settings import SAME, MirrorSettings
from penstock.mirror.source import LATEST, offsets_of
from penstock.mirror.state import SourcePartition, TopicState, Values, partition_state, read_state, topics_in

RUNNING: Final = "mirrored"
STOPPED: Final = "stopped"


class PartitionStatus(msgspec.Struct, frozen=True):
    """One source partition. None: not known."""

    source: str
    topic: str
    partition: int
    target: str
    target_partition: int | None
    mode: str
    state: str
    position: int | None
    end: int | None
    lag_records: int | None
    lag_seconds: float | None
    reason: str = ""
    detail: str = ""


class MirrorStatus(msgspec.Struct, frozen=True):
    """All partitions of a mirror, by source, topic and number."""

    name: str
    processes: int
    partitions: tuple[PartitionStatus, ...]

    @property
    def lag_records(self) -> int:
        return sum(each.lag_records or 0 for each in self.partitions)

    @property
    def lag_seconds(self) -> float:
        return max((each.lag_seconds or 0.0 for each in self.partitions), default=0.0)

    @property
    def stopped(self) -> tuple[PartitionStatus, ...]:
        return tuple(each for each in self.partitions if each.state == STOPPED)


async def mirror_status(settings: MirrorSettings) -> MirrorStatus:
    """Ask all clusters of a mirror. Raises PenstockError if one cannot be reached, or if there is no such mirror."""
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(admin_of(settings.target))
        sources = {each.alias: await stack.enter_async_context(admin_of(each.cluster)) for each in settings.sources}
        for admin in (target, *sources.values()):
            admin.cluster.follow_all()
            await admin.cluster.refresh()
        state_topic = target.cluster.view.topic(settings.state_topic)
        if state_topic is None:
            raise PenstockError(
                f"the target has no mirror {settings.name!r}", hint="Start it with `penstock mirror run`, or check name"
            )
        values = await read_state(target.cluster, settings.state_topic, range(len(state_topic.partitions)))
        described = await target.describe_groups([settings.state_topic])
        group = described[settings.state_topic]
        found: list[PartitionStatus] = []
        for alias, source in sources.items():
            states = [state for (each, _), state in sorted(topics_in(values).items()) if each == alias]
            found += await _of_source(source, target, states, values)
        processes = 0 if isinstance(group, PenstockError) else len(group.members)
        return MirrorStatus(settings.name, processes, tuple(found))


async def _of_source(
    source: AsyncAdmin, target: AsyncAdmin, states: Iterable[TopicState], values: Values
) -> list[PartitionStatus]:
    rows: list[tuple[TopicState, SourcePartition, TopicPartition | None]] = []
    for state in states:
        view, ours = source.cluster.view.topic(state.topic), target.cluster.view.topic(state.target)
        for index in range(len(view.partitions) if view is not None else 1):
            key = SourcePartition(state.alias, state.topic, index)
            number = state.target_partition(index)
            is_there = ours is not None and number < len(ours.partitions)
            rows.append((state, key, TopicPartition(state.target, number) if is_there else None))
    existing = {
        TopicPartition(key.topic, key.partition)
        for _, key, _ in rows
        if source.cluster.view.topic(key.topic) is not None
    }
    same = {to for state, _, to in rows if to is not None and state.mode == SAME}
    ends, positions = await asyncio.gather(
        offsets_of(source.cluster, dict.fromkeys(existing, LATEST)),
        offsets_of(target.cluster, dict.fromkeys(same, LATEST)),
    )
    known: dict[SourcePartition, int] = {}
    for state, key, to in rows:
        if state.mode == SAME and to is not None:
            known[key] = positions[to]
        elif state.mode != SAME:
            position = partition_state(values.get(key.key)).position
            if position >= 0:
                known[key] = position
    times = await _times(source, {
        TopicPartition(key.topic, key.partition): position
        for key, position in known.items()
        if ends.get(TopicPartition(key.topic, key.partition), 0) > position
    })  # fmt: skip
    now_ms = source.cluster.clock.now_ms()
    return [_row(state, key, to, known.get(key), ends, times, values, now_ms) for state, key, to in rows]


async def _times(source: AsyncAdmin, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The timestamps of the first records that are not mirrored."""

    async def ask(connection: Connection, led: list[TopicPartition], left_ms: int) -> Any:
        return await record_times(connection, {each: offsets[each] for each in led}, left_ms)

    timeout_ms = source.cluster.request_timeout_ms
    found = await ask_leaders(source.cluster, "looking up times", offsets, ask, timeout_ms=timeout_ms)
    return {partition: time for partition, time in found.items() if isinstance(time, int) and time >= 0}


def _row(
    state: TopicState,
    key: SourcePartition,
    to: TopicPartition | None,
    position: int | None,
    ends: Mapping[TopicPartition, int],
    times: Mapping[TopicPartition, int],
    values: Values,
    now_ms: int,
) -> PartitionStatus:
    partition = TopicPartition(key.topic, key.partition)
    own = partition_state(values.get(key.key))
    is_current = (own.source_id, own.target_id) == (state.source_id, state.target_id)
    reason, detail = state.reason, state.stopped
    if not detail and is_current:
        reason, detail = own.reason, own.stopped
    end = ends.get(partition)
    lag = None if end is None or position is None else max(0, end - position)
    time_ms = times.get(partition)
    seconds = 0.0 if lag == 0 else None if time_ms is None else max(0, now_ms - time_ms) / 1000
    return PartitionStatus(
        source=key.alias,
        topic=key.topic,
        partition=key.partition,
        target=state.target,
        target_partition=None if to is None else to.partition,
        mode=state.mode,
        state=STOPPED if detail else RUNNING,
        position=position,
        end=end,
        lag_records=lag,
        lag_seconds=None if lag is None else seconds,
        reason=reason,
        detail=detail,
    )
