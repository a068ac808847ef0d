"""What was measured, round by round, and the rows of the result that it becomes.

A row compares our median with Kafka's by a ratio, ours to Kafka's; a goal bounds that ratio. Our broker on asyncio's
loop and an older Kafka stand beside them, each with its own ratio to the same Kafka.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.results import Better, Figure, Row

AT_LEAST, AT_MOST = "≥", "≤"
_BULK: Final = "Big batches with confluent-kafka"
_REQUESTS: Final = "Requests with one record"
_PROCESS: Final = "Memory and start"


@dataclass(frozen=True)
class Work:
    """A row: what is done, its unit, its direction (None: it only describes the run), the goal for the ratio if any."""

    name: str
    unit: str
    bound: str | None = AT_LEAST
    goal: float | None = None
    table: str = ""

    @property
    def better(self) -> Better | None:
        return None if self.bound is None else Better.HIGHER if self.bound == AT_LEAST else Better.LOWER


SIZES: Final = {"100 B": 100, "1 KB": 1000, "10 KB": 10_000}

PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0, _BULK) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"broker CPU per GB produced, {size}", "s", AT_MOST, 0.5, _BULK) for size in SIZES}
CONSUME: Final = {size: Work(f"consume {size}", "MB/s", AT_LEAST, None, _BULK) for size in SIZES}
CONSUME_CPU: Final = {size: Work(f"broker CPU per GB consumed, {size}", "s", AT_MOST, 0.8, _BULK) for size in SIZES}
TRIP_P50: Final = Work("acks=1, round trip p50", "µs", AT_MOST, 0.6, _REQUESTS)
TRIP_P99: Final = Work("acks=1, round trip p99", "µs", AT_MOST, 0.6, _REQUESTS)
TRIP_CPU: Final = Work("acks=1, broker CPU per request", "µs", AT_MOST, None, _REQUESTS)
PIPELINED: Final = Work("acks=1, 64 in flight", "1/s", AT_LEAST, 2.0, _REQUESTS)
PIPELINED_CPU: Final = Work("acks=1, broker CPU per request, 64 in flight", "µs", AT_MOST, None, _REQUESTS)
SYNCED_P50: Final = Work("acks=all, both synced before the answer: p50", "µs", AT_MOST, 0.7, _REQUESTS)
SYNCED_P99: Final = Work("acks=all, both synced before the answer: p99", "µs", AT_MOST, None, _REQUESTS)
SYNCED_PIPELINED: Final = Work("acks=all, both synced before the answer: 64 in flight", "1/s", AT_LEAST, 4.0, _REQUESTS)
DISK: Final = Work("the disk just before that: a bare write and sync, p50", "µs", None, None, _REQUESTS)
SHIPPED_P50: Final = Work("acks=all as shipped (ours synced, Kafka not): p50", "µs", AT_MOST, None, _REQUESTS)
SHIPPED_P99: Final = Work("acks=all as shipped (ours synced, Kafka not): p99", "µs", AT_MOST, None, _REQUESTS)
SHIPPED_PIPELINED: Final = Work(
    "acks=all as shipped (ours synced, Kafka not): 64 in flight", "1/s", AT_LEAST, None, _REQUESTS
)
UNSYNCED_P50: Final = Work("acks=all, neither synced: p50", "µs", AT_MOST, None, _REQUESTS)
UNSYNCED_P99: Final = Work("acks=all, neither synced: p99", "µs", AT_MOST, None, _REQUESTS)
UNSYNCED_PIPELINED: Final = Work("acks=all, neither synced: 64 in flight", "1/s", AT_LEAST, None, _REQUESTS)
RSS_IDLE: Final = Work("memory, idle", "MB", AT_MOST, 0.25, _PROCESS)
RSS_LOADED: Final = Work("memory, highest under load", "MB", AT_MOST, 0.2, _PROCESS)
START: Final = Work("start to first answer", "s", AT_MOST, 0.25, _PROCESS)

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
    """All that was measured: by row, by broker, one figure per round."""

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

    def rows(self, works: Sequence[Work], contenders: Sequence[str], subject: str, peer: str) -> list[Row]:
        """A row of the result for each work that anybody has a figure for."""
        found = [(work, self._figures(work, contenders)) for work in works]
        return [
            Row(work.name.strip(), work.unit, work.better, figures, subject, peer, work.goal, work.table)
            for work, figures in found
            if figures
        ]

    def _figures(self, work: Work, contenders: Sequence[str]) -> dict[str, Figure]:
        return {name: Figure.of(rounds) for name in contenders if (rounds := self._rounds.get((work, name)))}
