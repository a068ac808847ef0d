"""Figures: what was measured, round by round, and the rows of the table that they become.

Rule: a row compares our median with Kafka's by a ratio, ours to Kafka's; a goal is a bound of that ratio. An older
Kafka stands beside them without one.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

AT_LEAST, AT_MOST = "≥", "≤"
NOT_TO_BE_HAD = "n/a"


@dataclass(frozen=True)
class Work:
    """A row: what is done, in which unit it is told, and the goal for the ratio if there is one."""

    name: str
    unit: str
    bound: str = AT_LEAST
    goal: float | None = None

    def is_met(self, ratio: float) -> bool | None:
        if self.goal is None:
            return None
        return ratio >= self.goal if self.bound == AT_LEAST else ratio <= self.goal


SIZES: Final = {"100 B": 100, "1 KB": 1000, "10 KB": 10_000}

PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"broker CPU a GB produced, {size}", "s", AT_MOST, 0.5) for size in SIZES}
CONSUME: Final = {size: Work(f"consume {size}", "MB/s") for size in SIZES}
CONSUME_CPU: Final = {size: Work(f"broker CPU a GB consumed, {size}", "s", AT_MOST, 0.8) for size in SIZES}
TRIP_P50: Final = Work("one record, acks=1, round trip p50", "µs", AT_MOST, 0.6)
TRIP_P99: Final = Work("one record, acks=1, round trip p99", "µs", AT_MOST, 0.6)
TRIP_CPU: Final = Work("  broker CPU a request", "µs", AT_MOST)
PIPELINED: Final = Work("one record, acks=1, 64 in flight", "1/s", AT_LEAST, 2.0)
PIPELINED_CPU: Final = Work("  broker CPU a request, 64 in flight", "µs", AT_MOST)
SYNCED_P50: Final = Work("synced before the answer, round trip p50", "µs", AT_MOST, 0.7)
SYNCED_P99: Final = Work("synced before the answer, round trip p99", "µs", AT_MOST)
SYNCED_PIPELINED: Final = Work("synced before the answer, 64 in flight", "1/s", AT_LEAST, 4.0)
SHIPPED_P50: Final = Work("as shipped, acks=all (ours durable, Kafka not synced): p50", "µs", AT_MOST)
SHIPPED_P99: Final = Work("as shipped, acks=all (ours durable, Kafka not synced): p99", "µs", AT_MOST)
SHIPPED_PIPELINED: Final = Work("as shipped, acks=all (ours durable, Kafka not synced): 64 in flight", "1/s")
UNSYNCED_P50: Final = Work("same flush settings (Kafka's as shipped), acks=all: p50", "µs", AT_MOST)
UNSYNCED_P99: Final = Work("same flush settings (Kafka's as shipped), acks=all: p99", "µs", AT_MOST)
UNSYNCED_PIPELINED: Final = Work("same flush settings (Kafka's as shipped), acks=all: 64 in flight", "1/s")
DISK: Final = Work("  the disk just before that: a bare write and sync, p50", "µs", AT_MOST)
RSS_IDLE: Final = Work("memory, idle", "MB", AT_MOST, 0.25)
RSS_LOADED: Final = Work("memory, highest under load", "MB", AT_MOST, 0.2)
START: Final = Work("start to first answer", "s", AT_MOST, 0.25)

ROWS: Final = (
    *PRODUCE.values(),
    *PRODUCE_CPU.values(),
    *CONSUME.values(),
    *CONSUME_CPU.values(),
    TRIP_P50,
    TRIP_P99,
    TRIP_CPU,
    PIPELINED,
    PIPELINED_CPU,
    SYNCED_P50,
    SYNCED_P99,
    SYNCED_PIPELINED,
    DISK,
    SHIPPED_P50,
    SHIPPED_P99,
    SHIPPED_PIPELINED,
    UNSYNCED_P50,
    UNSYNCED_P99,
    UNSYNCED_PIPELINED,
    RSS_IDLE,
    RSS_LOADED,
    START,
)


class Figures:
    """All that was measured: by row, by broker, one figure a round."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[Work, str], list[float]] = defaultdict(list)

    def add(self, work: Work, server: str, figure: float) -> None:
        self._rounds[work, server].append(figure)

    def median(self, work: Work, server: str) -> float | None:
        rounds = self._rounds.get((work, server))
        return statistics.median(rounds) if rounds else None

    def ratio(self, work: Work, ours: str, theirs: str) -> float | None:
        mine, other = self.median(work, ours), self.median(work, theirs)
        return mine / other if mine is not None and other else None

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"work": work.name.strip(), "unit": work.unit, "server": server, "rounds": rounds}
            for (work, server), rounds in self._rounds.items()
        ]


def rows(
    figures: Figures, ours: str, also: Iterable[str], theirs: str, older: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """The table: ours, ours in its other forms, theirs and its forebears, the ratio to theirs, the goal, if met."""
    forebears = tuple(older)
    lines = []
    for work in ROWS:
        line: dict[str, Any] = {"work": f"{work.name}, {work.unit}"}
        for server in (ours, *also, theirs):
            line[server] = shown(figures.median(work, server))
        for server in forebears:
            line[server] = shown(figures.median(work, server)) or NOT_TO_BE_HAD
        ratio = figures.ratio(work, ours, theirs)
        line["ratio"] = None if ratio is None else f"{ratio:.2f}"
        line["goal"] = None if work.goal is None else f"{work.bound} {work.goal:g}"
        line["met"] = None if ratio is None else work.is_met(ratio)
        lines.append(line)
    return lines


def shown(figure: float | None) -> str | None:
    """Three digits that count."""
    if figure is None:
        return None
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
