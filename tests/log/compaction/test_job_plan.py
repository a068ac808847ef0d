"""When a log is due for compaction, how far it goes, and which segments are merged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.log.compaction.job import LogFacts, Plan, group_segments, plan
from penstock.log.segment import Row, SegmentTable
from penstock.log.settings import COMPACT, DELETE, LogSettings

SETTINGS = LogSettings(cleanup_policy=frozenset({COMPACT}), min_cleanable_dirty_ratio=0.5)
NOW = 1_000_000


class Times:
    def __init__(self, newest: list[int], first: list[int]) -> None:
        self._newest = newest
        self._first = first

    def newest_ms(self, index: int) -> int:
        return self._newest[index]

    def first_ms(self, index: int) -> int:
        return self._first[index]


def facts(
    *sizes: int,
    start: int = 0,
    stable: int = 10_000,
    checkpointed: int = 10_000,
    newest: list[int] | None = None,
    first: list[int] | None = None,
) -> LogFacts:
    """Segments at 0, 100, 200..., and behind them the active one with 50 records."""
    rows = [Row(number * 100, size, 0) for number, size in enumerate(sizes)]
    active = 100 * len(sizes)
    times = Times(newest or [0] * len(sizes), first or [0] * len(sizes))
    return LogFacts(SegmentTable.of(rows), times, active, start, active + 50, stable, checkpointed)


def test_a_log_that_was_never_cleaned_is_dirty_from_its_start_to_its_active_segment() -> None:
    decision = plan(facts(10, 20, 30), SETTINGS, None, NOW)
    assert decision == Plan(0, 300, 0, 3, 0, 60, 0, is_due=True)
    assert decision.dirty_ratio == 1.0


def test_a_log_without_sealed_segments_has_nothing_to_compact() -> None:
    decision = plan(facts(), SETTINGS, None, NOW)
    assert (decision.segment_count, decision.dirty_bytes, decision.is_due) == (0, 0, False)
    assert decision.dirty_ratio == 0.0


@pytest.mark.parametrize(
    ("stable", "checkpointed", "count"),
    [
        pytest.param(250, 300, 2, id="an open transaction or the high watermark in the third segment"),
        pytest.param(300, 299, 2, id="the third segment not wholly in the checkpoint"),
        pytest.param(300, 300, 3, id="all of it decided and durable"),
        pytest.param(99, 300, 0, id="not even the first segment decided"),
        pytest.param(300, 0, 0, id="no checkpoint yet"),
    ],
)
def test_only_segments_wholly_below_what_is_decided_and_durable_are_rewritten(
    stable: int, checkpointed: int, count: int
) -> None:
    decision = plan(facts(10, 10, 10, stable=stable, checkpointed=checkpointed), SETTINGS, None, NOW)
    assert decision.segment_count == count
    assert decision.end_offset == count * 100
    assert decision.is_due == (count > 0)


@pytest.mark.parametrize(
    ("first_dirty", "expected"),
    [(200, 200), (None, 50), (20, 50), (350, 350), (351, 50)],
)
def test_a_first_dirty_offset_outside_of_the_log_begins_again_at_its_start(
    first_dirty: int | None, expected: int
) -> None:
    assert plan(facts(10, 10, 10, start=50), SETTINGS, first_dirty, NOW).first_dirty_offset == expected


def test_the_dirty_share_decides() -> None:
    assert plan(facts(50, 40, 10), SETTINGS, 100, NOW).is_due
    almost = plan(facts(51, 39, 10), SETTINGS, 100, NOW)
    assert (almost.clean_bytes, almost.dirty_bytes, almost.is_due) == (51, 49, False)
    assert plan(facts(51, 39, 10), replace(SETTINGS, min_cleanable_dirty_ratio=0.4), 100, NOW).is_due


def test_a_segment_that_was_cleaned_in_part_counts_as_dirty() -> None:
    decision = plan(facts(50, 50), SETTINGS, 130, NOW)
    assert (decision.first_dirty_segment, decision.clean_bytes, decision.dirty_bytes) == (1, 50, 50)


def test_a_clean_log_is_not_due_even_if_no_dirty_share_is_asked_for() -> None:
    eager = replace(SETTINGS, min_cleanable_dirty_ratio=0.0)
    assert not plan(facts(50, 50), eager, 200, NOW).is_due
    assert plan(facts(50, 50), eager, 100, NOW).is_due


def test_a_log_that_is_only_trimmed_is_never_due() -> None:
    assert not plan(facts(50), replace(SETTINGS, cleanup_policy=frozenset({DELETE})), None, NOW).is_due
    assert plan(facts(50), replace(SETTINGS, cleanup_policy=frozenset({DELETE, COMPACT})), None, NOW).is_due


def test_young_records_are_spared_and_all_that_follow_them() -> None:
    lagging = replace(SETTINGS, min_compaction_lag_ms=1000)
    decision = plan(facts(10, 10, 10, newest=[NOW - 1000, NOW - 999, 0]), lagging, None, NOW)
    assert (decision.segment_count, decision.end_offset, decision.dirty_bytes) == (1, 100, 10)
    assert not plan(facts(10, newest=[NOW]), lagging, None, NOW).is_due


def test_the_age_of_clean_segments_does_not_matter() -> None:
    lagging = replace(SETTINGS, min_compaction_lag_ms=1000)
    decision = plan(facts(10, 10, newest=[NOW, 0]), lagging, 100, NOW)
    assert (decision.segment_count, decision.is_due) == (2, True)


def test_records_that_waited_too_long_are_due_whatever_their_share() -> None:
    impatient = replace(SETTINGS, max_compaction_lag_ms=1000)
    waiting = facts(500, 10, 10, first=[1, NOW - 1000, NOW - 1001])
    decision = plan(waiting, impatient, 100, NOW)
    assert (decision.overdue_ms, decision.is_due) == (1, True)
    patient = replace(SETTINGS, max_compaction_lag_ms=1001)
    assert not plan(waiting, patient, 100, NOW).is_due


def test_records_without_timestamps_are_never_overdue() -> None:
    impatient = replace(SETTINGS, max_compaction_lag_ms=1)
    assert not plan(facts(500, 10, first=[0, -1]), impatient, 100, NOW).is_due


def test_an_overdue_log_is_not_due_while_nothing_may_be_rewritten() -> None:
    impatient = replace(SETTINGS, max_compaction_lag_ms=1)
    assert not plan(facts(10, 10, stable=50, first=[1, 1]), impatient, None, NOW).is_due


def sizes_of(groups: list[list[Row]]) -> list[list[int]]:
    return [[row.size for row in group] for group in groups]


def rows_of(*sizes: int, step: int = 100) -> list[Row]:
    return [Row(number * step, size, 0) for number, size in enumerate(sizes)]


def test_small_neighbours_become_one_segment() -> None:
    settings = replace(SETTINGS, segment_bytes=80)
    assert sizes_of(group_segments(rows_of(40, 30, 50, 20, 11), 500, settings)) == [[40, 30], [50, 20], [11]]
    assert sizes_of(group_segments(rows_of(0, 80, 0, 0), 400, settings)) == [[0, 80, 0, 0]]
    assert group_segments([], 0, settings) == []


def test_a_segment_that_is_larger_than_allowed_today_stays_alone() -> None:
    settings = replace(SETTINGS, segment_bytes=80)
    assert sizes_of(group_segments(rows_of(10, 200, 10), 300, settings)) == [[10], [200], [10]]


def test_a_group_spans_no_more_offsets_than_an_index_can_name() -> None:
    far = rows_of(1, 1, 1, step=2**30)
    assert sizes_of(group_segments(far, 3 * 2**30, SETTINGS)) == [[1, 1], [1]]
    assert sizes_of(group_segments(far[:2], 2**31, SETTINGS)) == [[1, 1]]
    assert sizes_of(group_segments(far[:2], 2**31 + 1, SETTINGS)) == [[1], [1]]


def test_a_group_needs_no_more_index_than_allowed() -> None:
    settings = replace(SETTINGS, segment_bytes=10_000, index_interval_bytes=10, segment_index_bytes=88)
    assert sizes_of(group_segments(rows_of(50, 50, 50), 300, settings)) == [[50, 50], [50]]
