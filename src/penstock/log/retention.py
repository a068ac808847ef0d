"""Retention: which of the oldest segments may be deleted, and taking them out of the log.

A policy looks at the segments, oldest first, and returns how many have expired. `removable_segments` enforces what no
policy may break: only whole segments, only from the old end, only below the high watermark. The active segment stays,
unless time has expired for the whole log: then the count includes it, and the log first rolls to an empty one, so that
it continues at the same offset. A policy stops at the first segment that stays, so a tick that deletes nothing looks at
one segment.

An operator's own policy (`log.retention.policy.class`) takes the place of those by time and size. A `PolicyFactory`
makes one for a partition from its retention settings. The limits above hold for it too, and what was deleted by request
goes in any case.

`enforce_retention` only renames the files of deleted segments, oldest first, so that the log has no gap whenever power
fails. The caller removes them later, off the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, overload

from penstock.log.errors import DiskFull
from penstock.log.partition_folder import DELETED
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_name
from penstock.log.segment import UNKNOWN_TIMESTAMP, Segment
from penstock.records import NO_TIMESTAMP


class SegmentInfo(NamedTuple):
    """What a policy knows about a segment."""

    base_offset: int
    next_offset: int
    """The offset after its last record; equal to the base offset when it is empty."""
    size_bytes: int
    largest_timestamp_ms: int
    """Of its records; if they carry none, of the file's last change. Negative: unknown."""


class LogView(NamedTuple):
    """What a policy knows about the log. `size_bytes` is the size of all segments."""

    size_bytes: int
    start_offset: int
    high_watermark: int


# ------------------------------------------------------------------------------------------------------------ policies


class RetentionPolicy(Protocol):
    """Decides how many segments have expired. `removable_segments` limits its answer."""

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        """How many of the oldest segments have expired. `segments[-1]` is the active one."""


class PartitionRetention(NamedTuple):
    """What a policy is made from: the partition, and its topic's settings in force; -1 is no limit."""

    topic: str
    partition: int
    retention_ms: int
    retention_bytes: int


PolicyFactory = Callable[[PartitionRetention], RetentionPolicy]


class TimeRetention:
    """Segments whose newest record is older than `retention_ms`; negative keeps all.

    Timestamps need not rise from segment to segment. One recent record keeps its segment and all segments after it, so
    the walk stops there.
    """

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        if self._retention_ms < 0:
            return 0
        count = 0
        for segment in segments:
            newest_ms = segment.largest_timestamp_ms
            if newest_ms < 0 or now_ms - newest_ms <= self._retention_ms:
                break
            count += 1
        return count


class SizeRetention:
    """Deletes segments as long as at least `retention_bytes` are left; a negative number keeps all.

    Segments of 40, 40 and 30 bytes, 60 to keep: the first is deleted (70 are left), the second stays (30 would be too
    few).
    """

    def __init__(self, retention_bytes: int) -> None:
        self._retention_bytes = retention_bytes

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        if self._retention_bytes < 0:
            return 0
        excess_bytes = log.size_bytes - self._retention_bytes
        count = 0
        for segment in _closed(segments):
            excess_bytes -= segment.size_bytes
            if excess_bytes < 0:
                break
            count += 1
        return count


class StartOffsetRetention:
    """Segments entirely below the log start offset: their records were deleted by request."""

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        count = 0
        for segment in _closed(segments):
            if segment.next_offset > log.start_offset:
                break
            count += 1
        return count


class AnyOf:
    """Deletes what any of the policies would delete."""

    def __init__(self, *policies: RetentionPolicy) -> None:
        self._policies = policies

    def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
        return max((policy.expired(segments, log, now_ms) for policy in self._policies), default=0)


def _closed(segments: Sequence[SegmentInfo]) -> Iterator[SegmentInfo]:
    # Not a slice, which would copy every segment on every tick.
    return islice(segments, max(0, len(segments) - 1))


def retention_policy(*, retention_ms: int, retention_bytes: int, delete_expired: bool = True) -> RetentionPolicy:
    """Kafka's policy. Without `delete_expired` (a topic that is only compacted) records do not expire."""
    if not delete_expired:
        return StartOffsetRetention()
    return AnyOf(StartOffsetRetention(), TimeRetention(retention_ms), SizeRetention(retention_bytes))


def own_policy(make: PolicyFactory, topic: str, partition: int, log: PartitionLog) -> RetentionPolicy | None:
    """The operator's policy for a partition; None for a topic whose records do not expire (compacted only)."""
    settings = log.settings
    if not settings.deletes:
        return None
    made = make(PartitionRetention(topic, partition, settings.retention_ms, settings.retention_bytes))
    return AnyOf(StartOffsetRetention(), made)


def removable_segments(policy: RetentionPolicy, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
    """How many of the oldest segments to delete now. If all of them, the log must roll first.

    High watermark 25, segments 0-9, 10-19, 20-29, all expired: 2, since 25-29 may exist only here.
    """
    count = max(0, min(policy.expired(segments, log, now_ms), len(segments)))
    if count and count == len(segments) and segments[-1].next_offset == segments[-1].base_offset:
        count -= 1
    while count and segments[count - 1].next_offset > log.high_watermark:
        count -= 1
    return count


# ---------------------------------------------------------------------------------------------------- a log's segments


class _Segments(Sequence[SegmentInfo]):
    """The log's segments, each created when the policy reaches it."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._table = log.table

    def __len__(self) -> int:
        return len(self._table) + 1

    @overload
    def __getitem__(self, index: int) -> SegmentInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SegmentInfo]: ...
    def __getitem__(self, index: int | slice) -> SegmentInfo | Sequence[SegmentInfo]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        active = self._log.active
        if index == len(self._table):
            return SegmentInfo(active.base_offset, active.next_offset, active.size, self._age_of(active))
        row = self._table[index]
        following = active.base_offset if index + 1 == len(self._table) else self._table.bases[index + 1]
        stamp = row.max_timestamp if row.max_timestamp >= 0 else self._age_of(self._log.segment_at(index))
        return SegmentInfo(row.base_offset, following, row.size, stamp)

    def _age_of(self, segment: Segment) -> int:
        if segment.max_timestamp >= 0:
            return segment.max_timestamp
        return self._log.files.modified_ns(segment.path) // 1_000_000


def may_expire(log: PartitionLog, now_ms: int, *, by_own_policy: bool = False) -> bool:
    """A cheap check: False is certain, True means that `enforce_retention` must look.

    `by_own_policy`: the operator's policy decides, of which nothing is known.
    """
    settings, table, active = log.settings, log.table, log.active
    sealed = len(table)
    if sealed and log.log_start_offset >= (table.bases[1] if sealed > 1 else active.base_offset):
        return True
    if not settings.deletes or not (sealed or active.size):
        return False
    if by_own_policy:
        return True
    if sealed and 0 <= settings.retention_bytes <= log.size - table.sizes[0]:
        return True
    if settings.retention_ms < 0:
        return False
    newest_ms = table.stamps[0] if sealed else active.max_timestamp
    if newest_ms in (UNKNOWN_TIMESTAMP, NO_TIMESTAMP):
        return True
    return now_ms - newest_ms > settings.retention_ms


def enforce_retention(log: PartitionLog, now_ms: int, policy: RetentionPolicy | None = None) -> list[str]:
    """Take expired segments out of the log. Returns their files, already renamed, for removal.

    Segments 0, 100, 200 (active), the first expired: the log starts at 100 afterwards.
    """
    if log.failure is not None or log.is_cut_short:
        return []
    settings = log.settings
    if policy is None:
        policy = retention_policy(
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            delete_expired=settings.deletes,
        )
    segments = _Segments(log)
    view = LogView(log.size, log.log_start_offset, log.high_watermark)
    count = removable_segments(policy, segments, view, now_ms)
    if count == 0:
        return []
    try:
        if count == len(segments):
            try:
                log.roll(log.log_end_offset, now_ms)
            except DiskFull:
                count -= 1  # deleting the others frees space first
        return _drop_oldest(log, count)
    except OSError as error:
        raise log.fail(error) from error


def _drop_oldest(log: PartitionLog, count: int) -> list[str]:
    deleted: list[str] = []
    bases = list(log.table.bases[:count])
    log.replace_segments(log.table.spliced(0, count, []), log.active)
    log.deletions_pending = True
    for base in bases:
        log.forget_segment(base)
        for path in Segment(log.files, log.folder, base).paths:
            with contextlib.suppress(FileNotFoundError):
                log.files.rename(path, path + DELETED)
                deleted.append(path + DELETED)
        snapshot = f"{log.folder}/{snapshot_name(base)}"
        if log.files.exists(snapshot):
            log.files.remove(snapshot)
    first = log.table.bases[0] if len(log.table) else log.active.base_offset
    if first > log.log_start_offset:
        log.log_start_offset = first
        log.epochs.truncate_from_start(first)
    return deleted
