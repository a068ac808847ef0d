from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import overload

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    TINY,
    base_offsets,
    bases,
    batch_of,
    open_new,
    path_of,
    put,
    reopen,
    seven,
)

from penstock.log.errors import LogFailed
from penstock.log.partition_folder import DELETED
from penstock.log.retention import (
    AnyOf,
    LogView,
    RetentionPolicy,
    SegmentInfo,
    SizeRetention,
    StartOffsetRetention,
    TimeRetention,
    enforce_retention,
    removable_segments,
    retention_policy,
)
from penstock.log.segment import UNKNOWN_TIMESTAMP
from penstock.log.settings import COMPACT, DELETE, UNLIMITED
from penstock.testing.simulated_files import SimulatedFiles


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


# ---------------------------------------------------------------------------------------------------- a log's segments


def test_segments_whose_time_is_over_are_renamed_and_the_log_starts_behind_them() -> None:
    files = SimulatedFiles()
    log = seven(files, replace(TINY, retention_ms=100))
    log.advance_high_watermark(14)
    assert enforce_retention(log, NOW_MS + 101) == []
    deleted = enforce_retention(log, NOW_MS + 104)
    assert sorted(deleted) == [
        path_of(base, suffix) + DELETED for base in (0, 4) for suffix in (".index", ".log", ".timeindex")
    ]
    assert all(files.exists(path) for path in deleted)
    assert (log.log_start_offset, bases(log), base_offsets(log)) == (8, [8, 12], [8, 10, 12])
    assert log.epochs.entries[0].start_offset == 8
    assert enforce_retention(log, NOW_MS + 104) == []
    log.flush()
    files.kill()
    again = reopen(files, clean=False, recovery_point=14).log
    assert (again.log_start_offset, base_offsets(again)) == (8, [8, 10, 12])
    assert not any(name.endswith(DELETED) for name in files.list_folder(FOLDER))


def test_a_log_whose_records_all_expired_continues_empty_at_the_same_offset() -> None:
    files = SimulatedFiles()
    log = seven(files, replace(TINY, retention_ms=100))
    log.advance_high_watermark(14)
    assert enforce_retention(log, NOW_MS + 10**6)
    assert (log.log_start_offset, log.log_end_offset, bases(log), log.size) == (14, 14, [14], 0)
    assert enforce_retention(log, NOW_MS + 10**7) == []
    put(log, 7)
    assert base_offsets(log) == [14]


def test_a_full_disk_does_not_keep_retention_from_making_room() -> None:
    files = SimulatedFiles()
    log = seven(files, replace(TINY, retention_ms=100))
    log.advance_high_watermark(14)
    files.operations.fail("write", errno.ENOSPC, path_ending=".snapshot.tmp")
    deleted = enforce_retention(log, NOW_MS + 10**6)
    assert {path.rpartition("/")[2][:20] for path in deleted} == {f"{base:020d}" for base in (0, 4, 8)}
    assert (log.log_start_offset, bases(log)) == (12, [12])
    assert enforce_retention(log, NOW_MS + 10**6)
    assert bases(log) == [14]


def test_what_is_not_replicated_is_not_deleted() -> None:
    log = seven(SimulatedFiles(), replace(TINY, retention_ms=100))
    assert enforce_retention(log, NOW_MS + 10**6) == []
    log.advance_high_watermark(7)
    enforce_retention(log, NOW_MS + 10**6)
    assert bases(log) == [4, 8, 12]
    log.advance_high_watermark(8)
    enforce_retention(log, NOW_MS + 10**6)
    assert bases(log) == [8, 12]


def test_segments_go_when_the_rest_is_large_enough() -> None:
    log = seven(SimulatedFiles())
    log.advance_high_watermark(14)
    batch = len(batch_of())
    for keep, left in ((7, [0, 4, 8, 12]), (6, [0, 4, 8, 12]), (5, [4, 8, 12]), (1, [12]), (0, [12])):
        log.settings = replace(TINY, retention_bytes=keep * batch)
        enforce_retention(log, NOW_MS)
        assert bases(log) == left


def test_segments_below_the_logs_start_go_even_if_nothing_else_expires() -> None:
    log = seven(SimulatedFiles(), replace(TINY, retention_ms=-1, cleanup_policy=frozenset({COMPACT})))
    log.advance_high_watermark(14)
    log.advance_start(9)
    assert len(enforce_retention(log, NOW_MS)) == 6
    assert (log.log_start_offset, bases(log)) == (9, [8, 12])


def test_a_compacted_log_is_not_shortened_unless_it_is_deleted_from_too() -> None:
    settings = replace(TINY, retention_ms=1, retention_bytes=1, cleanup_policy=frozenset({COMPACT}))
    log = seven(SimulatedFiles(), settings)
    log.advance_high_watermark(14)
    assert enforce_retention(log, NOW_MS + 10**6) == []
    log.settings = replace(settings, cleanup_policy=frozenset({COMPACT, DELETE}))
    assert enforce_retention(log, NOW_MS + 10**6)


def test_segments_without_timestamps_age_by_their_files() -> None:
    files = SimulatedFiles()
    log = open_new(files, replace(TINY, retention_ms=100))
    for number in range(5):
        log.append(batch_of(number, stamps=[-1, -1]), leader_epoch=0, now_ms=NOW_MS)
    log.advance_high_watermark(10)
    written_ms = files.modified_ns(path_of(0)) // 1_000_000
    assert enforce_retention(log, written_ms + 100) == []
    assert enforce_retention(log, written_ms + 101)
    assert log.log_start_offset >= 4


def test_a_policy_may_be_plugged_in() -> None:
    class OnlyTwo:
        def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
            return 2

    log = seven(SimulatedFiles())
    log.advance_high_watermark(14)
    enforce_retention(log, NOW_MS, policy=OnlyTwo())
    assert bases(log) == [8, 12]


def test_a_policy_sees_the_segments_as_a_sequence() -> None:
    seen: list[SegmentInfo] = []

    class Curious:
        def expired(self, segments: Sequence[SegmentInfo], log: LogView, now_ms: int) -> int:
            seen.extend(segments[1:])
            seen.append(segments[-1])
            with pytest.raises(IndexError):
                segments[4]
            return 0

    log = seven(SimulatedFiles())
    assert enforce_retention(log, NOW_MS, policy=Curious()) == []
    assert [(each.base_offset, each.next_offset) for each in seen] == [(4, 8), (8, 12), (12, 14), (12, 14)]


def test_a_retention_run_after_a_crash_looks_only_at_the_oldest_segments() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, *range(60))
    log.flush()
    files.kill()
    again = reopen(files, clean=False, recovery_point=120).log
    assert enforce_retention(again, NOW_MS) == []
    assert len(again._open) <= 2
    assert UNKNOWN_TIMESTAMP in again.table.stamps


def test_a_failed_log_is_left_alone_by_retention() -> None:
    files = SimulatedFiles()
    log = seven(files, replace(TINY, retention_ms=1))
    log.advance_high_watermark(14)
    log.fail(OSError("gone"))
    before = files.operations.count
    assert enforce_retention(log, NOW_MS + 10**6) == []
    assert files.operations.count == before


def test_a_disk_error_in_a_retention_run_takes_the_log_offline() -> None:
    files = SimulatedFiles()
    log = seven(files, replace(TINY, retention_ms=1))
    log.advance_high_watermark(14)
    files.operations.fail("rename", errno.EIO, path_ending=".log")
    with pytest.raises(LogFailed):
        enforce_retention(log, NOW_MS + 5)
