"""Figures of growth: by what was measured, broker, partitions and connections, one per round; and their rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from benchmarks.results import Better, Figure, Row


class Scale(NamedTuple):
    """How much the broker carries."""

    partitions: int
    connections: int

    def __str__(self) -> str:
        return f"{self.partitions:,} / {self.connections:,}"


class Work(NamedTuple):
    name: str
    unit: str


REQUESTS: Final = (
    "produce one record, acks=1",
    "fetch one ready batch",
    "session over all, nothing new",
    "session over all, one record ready",
    "session over all, woken by a record",
)
PARTS: Final = ("p50", "p99", "CPU")
"""Each request has them, in microseconds; the CPU is the broker's, of whatever is needed to ask once."""

MADE: Final = Work("create the topics until all can be read", "s")
WAITED: Final = Work("longest answer to another producer meanwhile", "ms")
STOPPED_NEW: Final = Work("stop after that", "s")
STARTED: Final = Work("start with them", "s")
MEMORY: Final = Work("memory then", "MB")
PARTITION_NEW: Final = Work("memory per partition when created", "KB")
PARTITION: Final = Work("memory per partition after a start", "KB")
CONNECTION: Final = Work("memory per connection", "KB")
STOPPED: Final = Work("stop after serving", "s")
LIFE: Final = (MADE, WAITED, STOPPED_NEW, STARTED, MEMORY, PARTITION_NEW, PARTITION, CONNECTION, STOPPED)


def request(name: str, part: str) -> Work:
    return Work(f"{name}, {part}", "µs")


class Figures:
    def __init__(self) -> None:
        self._rounds: dict[tuple[Work, str, Scale], list[float]] = defaultdict(list)

    def add(self, work: Work, server: str, scale: Scale, figure: float) -> None:
        self._rounds[work, server, scale].append(figure)

    @property
    def scales(self) -> list[Scale]:
        return sorted({scale for _, _, scale in self._rounds}, key=lambda scale: (scale.connections, scale.partitions))

    def figure(self, work: Work, server: str, scale: Scale) -> Figure | None:
        rounds = self._rounds.get((work, server, scale))
        return Figure.of(rounds) if rounds else None


WORKS: Final = (*(request(name, part) for name in REQUESTS for part in PARTS), *LIFE)


def table_of(server: str) -> str:
    return f"{server}, by partitions / connections"


def by_scale(figures: Figures, server: str) -> list[Row]:
    """A row for each work, a column for each scale: what grows, and what does not."""
    rows = []
    for work in WORKS:
        found = {str(scale): figures.figure(work, server, scale) for scale in figures.scales}
        known = {name: figure for name, figure in found.items() if figure is not None}
        if known:
            rows.append(Row(work.name, work.unit, Better.LOWER, known, list(known)[-1], table=table_of(server)))
    return rows


def beside(figures: Figures, ours: str, theirs: str) -> list[Row]:
    """A row for each work and scale that both have: ours beside theirs."""
    rows = []
    for work in WORKS:
        for scale in figures.scales:
            mine, other = (figures.figure(work, server, scale) for server in (ours, theirs))
            if mine is not None and other is not None:
                rows.append(
                    Row(
                        f"{work.name}, {scale}",
                        work.unit,
                        Better.LOWER,
                        {ours: mine, theirs: other},
                        ours,
                        theirs,
                        table=f"{ours} beside {theirs}, by partitions / connections",
                    )
                )
    return rows


def rows(figures: Figures, servers: Sequence[str]) -> list[Row]:
    ours, *others = servers
    return [
        *(row for server in servers for row in by_scale(figures, server)),
        *(row for theirs in others for row in beside(figures, ours, theirs)),
    ]
