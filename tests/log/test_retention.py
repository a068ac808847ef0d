from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.retention import (
    AnyOf,
    LogView,
    RetentionPolicy,
    SegmentInfo,
    SizeRetention,
    StartOffsetRetention,
    TimeRetention,
    removable_segments,
    retention_policy,
)
from penstock.log.settings import UNLIMITED

NOW_MS = 1_000_000


def segments_of(*ages_ms: int, size_bytes: int = 100, records: int = 10) -> list[SegmentInfo]:
    """Segments of ten records, the newest record of each so old."""
    return [
        SegmentInfo(number * records, (number + 1) * records, size_bytes, NOW_MS - age_ms)
        for number, age_ms in enumerate(ages_ms)
    ]


def removable(
    policy: RetentionPolicy,
    segments: Sequence[SegmentInfo],
    *,
    start_offset: int = 0,
    high_watermark: int | None = None,
) -> int:
    end = segments[-1].next_offset if segments else 0
    log = LogView(
        sum(segment.size_bytes for segment in segments),
        start_offset,
        end if high_watermark is None else high_watermark,
    )
    return removable_segments(policy, segments, log, NOW_MS)


@pytest.mark.parametrize(
    ("ages_ms", "count"),
    [
        ([], 0),
        ([501], 1),
        ([500], 0),
        ([501, 500], 1),
        ([900, 700, 501, 100], 3),
        ([900, 100, 800, 0], 1),
        ([100, 900, 900, 0], 0),
        ([900, 800, 700], 3),
        ([-5000, 900], 0),
    ],
)
def test_time_walks_from_the_oldest_and_stops_at_the_first_that_stays(ages_ms: list[int], count: int) -> None:
    assert removable(TimeRetention(500), segments_of(*ages_ms)) == count


def test_a_segment_of_unknown_age_stays() -> None:
    assert removable(TimeRetention(500), [SegmentInfo(0, 10, 100, -1), *segments_of(0)]) == 0


def test_zero_time_keeps_only_what_was_written_this_very_millisecond() -> None:
    assert removable(TimeRetention(0), segments_of(2, 1, 0)) == 2


def test_when_all_is_expired_the_active_segment_counts_too_unless_it_is_empty() -> None:
    old = segments_of(900, 900)
    assert removable(TimeRetention(500), old) == 2
    empty = SegmentInfo(20, 20, 0, NOW_MS - 900)
    assert removable(TimeRetention(500), [*old, empty]) == 2
    assert removable(TimeRetention(500), [empty]) == 0


@pytest.mark.parametrize(
    ("sizes", "keep_bytes", "count"),
    [
        ([40, 40, 30], 60, 1),
        ([40, 40, 30], 70, 1),
        ([40, 40, 30], 71, 0),
        ([40, 40, 30], 30, 2),
        ([40, 40, 30], 0, 2),
        ([40, 40, 30], 1000, 0),
        ([200], 10, 0),
        ([], 10, 0),
        ([200, 0], 10, 0),
    ],
)
def test_size_leaves_at_least_what_is_to_be_kept(sizes: list[int], keep_bytes: int, count: int) -> None:
    segments = [SegmentInfo(n * 10, n * 10 + 10, size, NOW_MS) for n, size in enumerate(sizes)]
    assert removable(SizeRetention(keep_bytes), segments) == count


@pytest.mark.parametrize(("start_offset", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 2), (99, 2)])
def test_segments_below_the_start_offset_go_but_never_the_active_one(start_offset: int, count: int) -> None:
    segments = segments_of(0, 0, 0)
    assert removable(StartOffsetRetention(), segments, start_offset=start_offset) == count


@pytest.mark.parametrize(("high_watermark", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (29, 2), (30, 3)])
def test_nothing_at_or_above_the_high_watermark_goes(high_watermark: int, count: int) -> None:
    assert removable(TimeRetention(500), segments_of(900, 900, 900), high_watermark=high_watermark) == count


def test_a_negative_limit_keeps_all() -> None:
    forever = retention_policy(retention_ms=UNLIMITED, retention_bytes=UNLIMITED)
    assert removable(forever, segments_of(10**9, 10**9)) == 0


def test_any_of_the_settings_suffices() -> None:
    segments = segments_of(900, 400, 300, 0)
    assert removable(retention_policy(retention_ms=500, retention_bytes=UNLIMITED), segments) == 1
    assert removable(retention_policy(retention_ms=500, retention_bytes=200), segments) == 2
    assert removable(retention_policy(retention_ms=500, retention_bytes=200), segments, start_offset=30) == 3
    assert removable(AnyOf(), segments) == 0


def test_a_compacted_topic_loses_only_what_was_deleted_by_request() -> None:
    compacted = retention_policy(retention_ms=0, retention_bytes=0, delete_expired=False)
    assert removable(compacted, segments_of(900, 900, 900), start_offset=10) == 1


@pytest.mark.parametrize(("answer", "count"), [(-3, 0), (2, 2), (1000, 2)])
def test_a_policy_of_the_users_cannot_break_the_rules(answer: int, count: int) -> None:
    class Stubborn:
        def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
            return answer

    assert removable(Stubborn(), segments_of(0, 0, 0), high_watermark=29) == count


class Counted(Sequence[SegmentInfo]):
    """Segments that count how many of them were looked at."""

    def __init__(self, segments: list[SegmentInfo]) -> None:
        self._segments = segments
        self.looked_at = 0

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> SegmentInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SegmentInfo]: ...
    def __getitem__(self, index: int | slice) -> SegmentInfo | Sequence[SegmentInfo]:
        self.looked_at += len(self._segments) if isinstance(index, slice) else 1
        return self._segments[index]

    def __iter__(self) -> Iterator[SegmentInfo]:
        for segment in self._segments:
            self.looked_at += 1
            yield segment


def test_a_tick_where_nothing_expires_looks_at_few_of_many_segments() -> None:
    segments = Counted(segments_of(*[100] * 10_000))
    log = LogView(1_000_000, 0, 100_000)
    policy = retention_policy(retention_ms=500, retention_bytes=1_000_000)
    assert removable_segments(policy, segments, log, NOW_MS) == 0
    assert segments.looked_at <= 3


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100), st.integers(0, 20)), max_size=12),
    st.integers(-1, 1000),
    st.integers(-1, 600),
    st.integers(0, 100),
    st.integers(0, 150),
)
@settings(max_examples=200, deadline=None)
def test_whatever_is_asked_what_goes_is_a_prefix_that_may_go(
    shapes: list[tuple[int, int, int]],
    retention_ms: int,
    retention_bytes: int,
    start: int,
    high_watermark: int,
) -> None:
    ends = list(accumulate(records for _, _, records in shapes))
    segments = [
        SegmentInfo(end - records, end, size_bytes, NOW_MS - age_ms)
        for end, (age_ms, size_bytes, records) in zip(ends, shapes, strict=True)
    ]
    policy = retention_policy(retention_ms=retention_ms, retention_bytes=retention_bytes)
    count = removable(policy, segments, start_offset=start, high_watermark=high_watermark)
    gone, left = segments[:count], segments[count:]
    assert all(segment.next_offset <= high_watermark for segment in gone)
    if gone and not left:
        assert gone[-1].next_offset > gone[-1].base_offset
        assert retention_ms >= 0
        assert all(NOW_MS - segment.largest_timestamp_ms > retention_ms for segment in gone)
    by_time = retention_ms >= 0 and all(NOW_MS - s.largest_timestamp_ms > retention_ms for s in gone)
    by_size = 0 <= retention_bytes <= sum(segment.size_bytes for segment in left)
    by_start = all(segment.next_offset <= start for segment in gone)
    assert not gone or by_time or by_size or by_start
