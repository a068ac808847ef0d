"""Produced against landed, hour by hour. The sums, without anything that asks for them.

Noun: `Hour`, what the log has of an hour and what became of it; `Audit`, a row of them and a watermark.

Rule: an hour is a range of offsets: the log's time index says where it begins and ends in each partition. So produced
and landed are counts of the same offsets, whatever times the records' events have. Every offset of the hour is in the
table, a dead letter, dropped by policy, still waiting, or without a record (a transaction's marker, compacted away).
What is none of these is missing, and what is there twice is surplus; both mean that something is broken.

    complete until: the end of the last hour before which nothing waits, is missing or surplus
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.spark.tables.planning import LogState, Standing
from penstock.spark.tables.ranges import Span, overlap, total

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True)
class Hour:
    """Counts of offsets of the log from `start_ms` on, for an hour."""

    start_ms: int
    produced: int = 0
    landed: int = 0
    dead: int = 0
    dropped: int = 0
    waiting: int = 0
    empty: int = 0
    """Offsets without a record."""
    removed: int = 0
    """Of those, records that the table has: they were compacted away after they had been loaded."""

    @property
    def difference(self) -> int:
        """Above 0: missing. Below: surplus."""
        return self.produced - self.landed - self.dead - self.dropped - self.waiting - self.empty + self.removed

    @property
    def missing(self) -> int:
        return max(0, self.difference)

    @property
    def surplus(self) -> int:
        return max(0, -self.difference)

    @property
    def is_complete(self) -> bool:
        return not self.waiting and not self.difference


@dataclass(frozen=True)
class Audit:
    """All hours of a stretch of time; `complete_until_ms` is None if not even the first is complete."""

    table: str
    topic: str
    hours: tuple[Hour, ...]
    now_ms: int

    @property
    def complete_until_ms(self) -> int | None:
        until: int | None = None
        for hour in self.hours:
            if not hour.is_complete:
                return until
            until = min(hour.start_ms + HOUR_MS, self.now_ms)
        return until

    @property
    def is_sound(self) -> bool:
        """Nothing is missing and nothing is there twice; something may wait."""
        return all(not hour.difference for hour in self.hours)

    def total(self, name: str) -> int:
        return sum(getattr(hour, name) for hour in self.hours)


def hour_starts(since_ms: int, now_ms: int) -> list[int]:
    """The beginnings of the hours from one that holds `since_ms` to the one of now."""
    return list(range(since_ms - since_ms % HOUR_MS, now_ms + 1, HOUR_MS))


def hour_spans(
    starts: Mapping[int, Sequence[int]], state: LogState, standing: Standing, count: int
) -> list[list[Span]]:
    """The offsets of each hour; those before the table's first are none of its business.

    `starts` is the first offset of each hour by partition. What comes after the last of them belongs to it.
    """
    hours: list[list[Span]] = [[] for _ in range(count)]
    for partition, offsets in starts.items():
        begin, end = state.bounds[partition]
        first = standing.covered.get(partition, (begin, begin))[0]
        bounds = [*offsets, end]
        for number in range(count):
            low, high = max(bounds[number], first), max(bounds[number + 1], first)
            hours[number].append(Span(partition, low, high))
    return hours


def waiting(spans: Sequence[Span], standing: Standing) -> int:
    """How many of these offsets the table has not come to."""
    return total(spans) - total(overlap(spans, standing.spans))


def covered(spans: Sequence[Span], standing: Standing) -> list[Span]:
    return overlap(spans, standing.spans)
