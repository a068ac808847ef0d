"""Whether a log is due for compaction, how far, and which segments become one. No I/O.

Noun: a plan, made from what is known of a log at one moment.

    segments   | clean ........ | dirty .............. | not yet ....... active |
               start        first dirty            end offset

Theory: below the first dirty offset every key is there once, since an earlier round saw to it. The dirty part may hold
repetitions, of its own and of the clean part. A round is worth its cost when the dirty part is large beside the clean
one, or when its records waited long enough.

Rule: only whole sealed segments are compacted, and only those whose every record is decided (below the last stable
offset, hence replicated) and known to be durable by the checkpoint that recovery reads: above it, a hole between
segments means that something was lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.log.segment_table import Row, SegmentTable
from penstock.log.settings import NEVER, LogSettings

_INDEX_ENTRY_BYTES = 8


class SegmentTimes(Protocol):
    """When the records of a sealed segment, by its number in the table, were written."""

    def newest_ms(self, index: int) -> int:
        """The largest timestamp; where records carry none, the time of the file's last change."""

    def first_ms(self, index: int) -> int:
        """The timestamp of the first batch; zero or less: not known."""


class LogFacts(NamedTuple):
    """What a plan needs to know of a log."""

    table: SegmentTable
    times: SegmentTimes
    active_base_offset: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    checkpointed_offset: int

    def next_base(self, index: int) -> int:
        """Where the segment after number `index` begins."""
        return self.table.bases[index + 1] if index + 1 < len(self.table) else self.active_base_offset

    def segments_below(self, offset: int) -> int:
        """How many sealed segments lie wholly below `offset`."""
        if self.active_base_offset <= offset:
            return len(self.table)
        return max(0, bisect_right(self.table.bases, offset) - 1)


class Plan(NamedTuple):
    """What a round of compaction would do now."""

    first_dirty_offset: int
    end_offset: int
    first_dirty_segment: int
    segment_count: int  # how many of the oldest segments are rewritten
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int  # for how long the oldest dirty record has been waiting beyond max.compaction.lag.ms
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """Of several logs that are due, the one with the most to gain comes first."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


def plan(facts: LogFacts, settings: LogSettings, first_dirty_offset: int | None, now_ms: int) -> Plan:
    """What to do with a log that was cleaned up to `first_dirty_offset` (None: never).

    Segments 0, 100, 200 and an active one at 300, cleaned up to 100, last stable offset 250, checkpoint 300: the dirty
    part is the segment 100 alone, and a round rewrites the segments 0 and 100.
    """
    first_dirty = _inside(facts, first_dirty_offset)
    dirty_from = facts.segments_below(first_dirty)
    count = facts.segments_below(min(facts.last_stable_offset, facts.checkpointed_offset))
    count = _old_enough(facts, settings, dirty_from, count, now_ms)
    sizes = facts.table.sizes
    dirty_bytes = sum(sizes[dirty_from:count])
    clean_bytes = sum(sizes[: min(dirty_from, count)])
    overdue_ms = _overdue_ms(facts, settings, dirty_from, count, now_ms)
    decision = Plan(
        first_dirty,
        facts.next_base(count - 1) if count else first_dirty,
        min(dirty_from, count),
        count,
        clean_bytes,
        dirty_bytes,
        overdue_ms,
        is_due=False,
    )
    worth_it = overdue_ms > 0 or decision.dirty_ratio >= settings.min_cleanable_dirty_ratio
    return decision._replace(is_due=settings.compacts and dirty_bytes > 0 and worth_it)


def _inside(facts: LogFacts, first_dirty_offset: int | None) -> int:
    # Beyond the end: the log was cut since, and what was written after that was never cleaned.
    if first_dirty_offset is None or not facts.start_offset <= first_dirty_offset <= facts.end_offset:
        return facts.start_offset
    return first_dirty_offset


def _old_enough(facts: LogFacts, settings: LogSettings, dirty_from: int, count: int, now_ms: int) -> int:
    if settings.min_compaction_lag_ms > 0:
        for index in range(dirty_from, count):
            if facts.times.newest_ms(index) > now_ms - settings.min_compaction_lag_ms:
                return index
    return count


def _overdue_ms(facts: LogFacts, settings: LogSettings, dirty_from: int, count: int, now_ms: int) -> int:
    if settings.max_compaction_lag_ms >= NEVER:
        return 0
    known = [stamp for stamp in map(facts.times.first_ms, range(dirty_from, count)) if stamp > 0]
    return max(0, now_ms - settings.max_compaction_lag_ms - min(known)) if known else 0


def group_segments(rows: Sequence[Row], end_offset: int, settings: LogSettings) -> list[list[Row]]:
    """Adjacent segments in groups, each of which fits one segment even if nothing in it can go.

    The segment after the last one begins at `end_offset`. Of 40, 30, 50 and 20 bytes with segment.bytes=80: the first
    two, and the other two.
    """
    groups: list[list[Row]] = []
    group: list[Row] = []
    size_bytes = 0
    for index, row in enumerate(rows):
        size_bytes += row.size
        next_base = rows[index + 1].base_offset if index + 1 < len(rows) else end_offset
        if group and not _fits(size_bytes, next_base - 1 - group[0].base_offset, settings):
            groups.append(group)
            group, size_bytes = [], row.size
        group.append(row)
    return [*groups, group] if group else groups


def _fits(size_bytes: int, relative_offset: int, settings: LogSettings) -> bool:
    # An index entry is written only after more than an interval's bytes, so there cannot be more of them.
    index_entries = size_bytes // max(1, settings.index_interval_bytes) + 1
    return (
        size_bytes <= settings.segment_bytes
        and index_entries * _INDEX_ENTRY_BYTES <= settings.segment_index_bytes
        and relative_offset <= MAX_RELATIVE_OFFSET
    )
