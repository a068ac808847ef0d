"""Offsets of a stream, and how far a micro-batch goes. Pure.

`StreamOffset` is what Spark keeps in a checkpoint:

    {"views": {"0": 120, "1": 80}, "views@id=5f0c...": {}, "views@start=0:100,1:80": {}}

The first entry is the stock connector's format, which both can read. The others are keys that no topic can have, with
empty values, so that the stock connector takes them for topics without partitions: the topic id, the start of the
batch that ends here if it is not the end of the previous one, and where to publish lag (`@lag=`).

A batch starts where the previous one ended. Partitions of the first batch, new partitions, and partitions that lost
records (with failOnDataLoss=false) have no such place. Their start is written into the batch's end offset before
anything is read: after a crash Spark asks for the initial offset again, and "latest" has moved by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import ConfigError
from penstock.spark.errors import CheckpointMismatch, DataLost, TopicRecreated
from penstock.spark.options import Bounds, TaskSplit, Topics, offsets_from_json

Offsets = Mapping[TopicPartition, int]

_INITIAL: Final = "@initial"
_ID: Final = "@id="
_START: Final = "@start="
_LAG: Final = "@lag="


class LagTarget(NamedTuple):
    """The group and cluster to which progress is published."""

    group_prefix: str
    bootstrap: str


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The offset of a stream, as it is stored in a checkpoint."""

    offsets: Offsets = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    """Topic ids by topic, hexadecimal; none if the brokers are too old."""
    starts: Offsets = field(default_factory=dict)
    is_initial: bool = False
    lag: LagTarget | None = None

    def to_json(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            found.setdefault(topic, {})[str(partition)] = offset
        for topic, topic_id in sorted(self.ids.items()):
            found[f"{topic}{_ID}{topic_id}"] = {}
        starts: dict[str, list[str]] = {}
        for (topic, partition), offset in sorted(self.starts.items()):
            starts.setdefault(topic, []).append(f"{partition}:{offset}")
        for topic, parts in starts.items():
            found[f"{topic}{_START}{','.join(parts)}"] = {}
        if self.is_initial:
            found[_INITIAL] = {}
        if self.lag is not None:
            found[f"{_LAG}{self.lag.group_prefix}@{self.lag.bootstrap}"] = {}
        return found

    @staticmethod
    def from_json(value: Any) -> StreamOffset:
        """Reads our format or that of the stock connector. Raises CheckpointMismatch."""
        try:
            if not isinstance(value, dict):
                raise ValueError("it is not a JSON object")
            plain = {name: inner for name, inner in value.items() if "@" not in name}
            ids = dict(name.split(_ID, 1) for name in value if _ID in name and not name.startswith(_LAG))
            starts: dict[TopicPartition, int] = {}
            for name in value:
                if _START in name and not name.startswith(_LAG):
                    topic, parts = name.split(_START, 1)
                    pairs = (part.split(":", 1) for part in parts.split(","))
                    starts.update({TopicPartition(topic, int(number)): int(offset) for number, offset in pairs})
            targets = [name.removeprefix(_LAG).rpartition("@") for name in value if name.startswith(_LAG)]
            lag = LagTarget(targets[0][0], targets[0][2]) if targets else None
            return StreamOffset(offsets_from_json(plain), ids, starts, _INITIAL in value, lag)
        except ValueError as error:
            reason = error.message if isinstance(error, ConfigError) else str(error)
            raise CheckpointMismatch(
                f"the checkpoint contains an offset that is not ours: {reason}",
                hint="It belongs to another source. Use a separate checkpointLocation",
            ) from None

    @property
    def topics(self) -> set[str]:
        return {one.topic for one in self.offsets}


class AvailableOffsets(NamedTuple):
    """The offsets that brokers have."""

    bounds: Mapping[TopicPartition, Bounds]
    ids: Mapping[str, str]
    missing: frozenset[str] = frozenset()
    """Topics that are named in the options and do not exist."""


class BatchStart(NamedTuple):
    """Where the next batch starts. Offsets in `moved` differ from the end of the last batch; `losses` are accepted."""

    offsets: dict[TopicPartition, int]
    moved: dict[TopicPartition, int]
    losses: list[str]


def batch_start(
    start: StreamOffset, available: AvailableOffsets, topics: Topics, *, fail_on_data_loss: bool
) -> BatchStart:
    """The start of the next batch. Raises CheckpointMismatch, TopicRecreated, DataLost.

    start 0: 100; the partition has 120..200: records 100..119 are lost. An error, or offset 120, which has moved.
    """
    _check_same_query(start, topics)
    offsets: dict[TopicPartition, int] = {}
    moved: dict[TopicPartition, int] = {}
    losses: list[DataLost] = []
    gone = sorted(start.offsets.keys() - available.bounds.keys())
    if gone:
        losses.append(_gone(gone, available, topics))
    recreated = {topic for topic, known in start.ids.items() if available.ids.get(topic, known) != known}
    losses += [_recreated(topic) for topic in sorted(recreated)]
    for partition, bounds in available.bounds.items():
        at = start.offsets.get(partition)
        if at is None or partition.topic in recreated:
            offsets[partition] = moved[partition] = bounds.earliest
            continue
        offsets[partition] = min(max(at, bounds.earliest), bounds.latest)
        if offsets[partition] != at:
            losses.append(_out_of_range(partition, at, bounds))
            moved[partition] = offsets[partition]
        elif start.is_initial:
            moved[partition] = at
    if losses and fail_on_data_loss:
        raise losses[0]
    return BatchStart(offsets, moved, [one.message for one in losses])


def _check_same_query(start: StreamOffset, topics: Topics) -> None:
    if start.offsets and not any(topics.takes(topic) for topic in start.topics):
        raise CheckpointMismatch(
            f"the checkpoint belongs to a query over {', '.join(sorted(start.topics))}, but this query reads {topics}",
            hint="Use a separate checkpointLocation",
        )


def _gone(partitions: list[TopicPartition], available: AvailableOffsets, topics: Topics) -> DataLost:
    names = ", ".join(map(str, partitions))
    if all(not topics.takes(one.topic) for one in partitions):
        return DataLost(
            f"the checkpoint has offsets of {names}, which this query no longer reads",
            hint="Subscribe to the topic again, or set failOnDataLoss=false to drop it",
        )
    return DataLost(
        f"cannot find {names}, which the checkpoint has: deleted, or not visible to this user",
        hint="Set failOnDataLoss=false to continue without it",
    )


def _recreated(topic: str) -> TopicRecreated:
    return TopicRecreated(
        f"topic {topic} was deleted and recreated since the checkpoint; its offsets refer to other records",
        hint="Use a new checkpointLocation, or set failOnDataLoss=false to read the new topic from its beginning",
    )


def _out_of_range(partition: TopicPartition, at: int, bounds: Bounds) -> DataLost:
    if at < bounds.earliest:
        return DataLost(
            f"{partition}: offsets {at} to {bounds.earliest - 1} were removed before they were read",
            hint="Set failOnDataLoss=false to continue after the gap; raise the topic's retention to avoid it",
        )
    return DataLost(
        f"{partition} was read up to offset {at}, but its log ends at {bounds.latest}",
        hint="The log was truncated or recreated. Set failOnDataLoss=false to continue from its end",
    )


def pro_rata(begin: Offsets, latest: Offsets, most: int) -> dict[TopicPartition, int]:
    """End offsets that take `most` offsets in total: each partition in proportion to its backlog, at least one.

    backlogs 900, 90 and 10 with 100 to take: 90, 9 and 1.
    """
    backlogs = {partition: latest[partition] - begin.get(partition, 0) for partition in latest}
    total = sum(size for size in backlogs.values() if size > 0)
    if total <= most:
        return dict(latest)
    ends = {}
    for partition, size in backlogs.items():
        share = max(1, most * size // total) if size > 0 else 0
        ends[partition] = min(latest[partition], begin.get(partition, 0) + share)
    return ends


class Gate:
    """Holds a batch back until it has `min_offsets`, or `max_delay_ms` have passed since the last one."""

    def __init__(self, min_offsets: int, max_delay_ms: int) -> None:
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._last_ms: float | None = None

    def opens(self, waiting: int, now_ms: float) -> bool:
        """Whether a batch with this backlog may start now. The first one always may."""
        late = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if waiting >= self._min_offsets or late:
            self._last_ms = now_ms
            return True
        return False


# ---------------------------------------------------------------------------------------------- ranges


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets that one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


def plan_ranges(begin: Offsets, end: Offsets, ids: Mapping[str, str], splitting: TaskSplit) -> list[OffsetRange]:
    """One task per non-empty partition, or more as `splitting` requires."""
    ranges = [
        OffsetRange(partition.topic, partition.partition, begin[partition], until, ids.get(partition.topic))
        for partition, until in sorted(end.items())
        if until > begin.get(partition, until)
    ]
    parts = [1 if splitting.max_records is None else -(-one.size // splitting.max_records) for one in ranges]
    if splitting.min_partitions is not None:
        _raise_to(parts, [one.size for one in ranges], splitting.min_partitions)
    return [piece for one, count in zip(ranges, parts, strict=True) for piece in _cut(one, count)]


def _raise_to(parts: list[int], sizes: list[int], least: int) -> None:
    """Splits the ranges with the largest parts further until there are `least` parts; no part is empty."""
    heap = [(-size / count, index) for index, (size, count) in enumerate(zip(sizes, parts, strict=True))]
    heapq.heapify(heap)
    missing = least - sum(parts)
    while missing > 0 and heap:
        _, index = heapq.heappop(heap)
        if parts[index] < sizes[index]:
            parts[index] += 1
            missing -= 1
            heapq.heappush(heap, (-sizes[index] / parts[index], index))


def _cut(one: OffsetRange, count: int) -> Iterable[OffsetRange]:
    for number in range(count):
        start = one.start + one.size * number // count
        end = one.start + one.size * (number + 1) // count
        yield OffsetRange(one.topic, one.partition, start, end, one.topic_id)
