"""Retention policies: which of the oldest segments may be deleted.

A policy looks at the segments, oldest first, and returns how many have expired. `removable_segments` enforces what no
policy may break: only whole segments, only from the old end, only below the high watermark. The active segment stays,
unless time has expired for the whole log: then the count includes it, and the caller first rolls to an empty one, so
that the log goes on from the same offset. A policy stops at the first segment that stays, so a tick that deletes
nothing looks at one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol


class SegmentView(Protocol):
    """What a policy may know of a segment."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int:
        """The offset after its last record; equal to the base offset when it is empty."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def largest_timestamp_ms(self) -> int:
        """Of its records; where they carry none, of the file's last change. Negative: not known."""


class SegmentInfo(NamedTuple):
    """A segment's values at one moment."""

    base_offset: int
    next_offset: int
    size_bytes: int
    largest_timestamp_ms: int


class LogView(NamedTuple):
    """What a policy may know of the whole log. `size_bytes` is that of all segments together."""

    size_bytes: int
    start_offset: int
    high_watermark: int


class RetentionPolicy(Protocol):
    """Decides what is too old; see the module's rule for what it need not care about."""

    def expired(self, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
        """How many of the oldest segments have had their time. `segments[-1]` is the active one."""


class TimeRetention:
    """Segments whose newest record is older than `retention_ms`; negative keeps all.

    Timestamps of segments need not rise. One young record in an old segment keeps it, and all after it, which
    is why the walk may stop there.
    """

    def __init__(self, retention_ms: int) -> None:
        self._retention_ms = retention_ms

    def expired(self, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
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
    """As many segments as can go with at least `retention_bytes` left; negative keeps all.

    Segments of 40, 40 and 30 bytes, 60 to keep: the first goes (70 are left), the second stays (30 would be
    too few).
    """

    def __init__(self, retention_bytes: int) -> None:
        self._retention_bytes = retention_bytes

    def expired(self, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
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
    """Segments wholly below the log's start offset: their records were deleted by request."""

    def expired(self, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
        count = 0
        for segment in _closed(segments):
            if segment.next_offset > log.start_offset:
                break
            count += 1
        return count


class AnyOf:
    """What any of the policies would let go."""

    def __init__(self, *policies: RetentionPolicy) -> None:
        self._policies = policies

    def expired(self, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
        return max((policy.expired(segments, log, now_ms) for policy in self._policies), default=0)


def retention_policy(*, retention_ms: int, retention_bytes: int, delete_expired: bool = True) -> RetentionPolicy:
    """The policy of the standard settings. A topic that is only compacted (not `delete_expired`) ages no
    records.
    """
    if not delete_expired:
        return StartOffsetRetention()
    return AnyOf(StartOffsetRetention(), TimeRetention(retention_ms), SizeRetention(retention_bytes))


def removable_segments(policy: RetentionPolicy, segments: Sequence[SegmentView], log: LogView, now_ms: int) -> int:
    """How many of the oldest segments to remove now; all of them means: roll first.

    High watermark 25, segments 0-9, 10-19, 20-29, all expired: 2, since 25-29 may exist here only.
    """
    count = max(0, min(policy.expired(segments, log, now_ms), len(segments)))
    if count and count == len(segments) and segments[-1].next_offset == segments[-1].base_offset:
        count -= 1
    while count and segments[count - 1].next_offset > log.high_watermark:
        count -= 1
    return count


def _closed(segments: Sequence[SegmentView]) -> Iterator[SegmentView]:
    # Not a slice, which would copy every segment on every tick.
    return islice(segments, max(0, len(segments) - 1))
