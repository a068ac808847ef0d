"""Figures of growth: by what was measured, broker, partitions and connections, one a round; and their tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any, Final, NamedTuple

from benchmarks.peers.figures import shown


class Scale(NamedTuple):
    """How much the broker carries."""

    partitions: int
    connections: int

    def __str__(self) -> str:
        return f"{self.partitions:,} / {self.connections:,}"


WORKS: Final = {
    "produce one record, acks=1": ("p50", "p99", "CPU"),
    "fetch one ready batch": ("p50", "p99", "CPU"),
    "session over all, nothing new": ("p50", "p99", "CPU"),
    "session over all, one record ready": ("p50", "p99", "CPU"),
    "session over all, woken by a record": ("p50", "p99", "CPU"),
}
"""Each with its figures in microseconds; the CPU is the broker's, of whatever is needed to ask once."""

LIFE: Final = (
    "make the topics until all can be read, s",
    "  longest answer to another producer meanwhile, ms",
    "stop after that, s",
    "start with them, s",
    "memory then, MB",
    "memory a partition when made, KB",
    "memory a partition after a start, KB",
    "memory a connection, KB",
    "stop after serving, s",
)


class Figures:
    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str, Scale], list[float]] = defaultdict(list)

    def add(self, what: str, server: str, scale: Scale, figure: float) -> None:
        self._rounds[what, server, scale].append(figure)

    def median(self, what: str, server: str, scale: Scale) -> float | None:
        rounds = self._rounds.get((what, server, scale))
        return statistics.median(rounds) if rounds else None

    @property
    def scales(self) -> list[Scale]:
        return sorted({scale for _, _, scale in self._rounds}, key=lambda scale: (scale.connections, scale.partitions))

    def growth(self, what: str, server: str, scale: Scale) -> float | None:
        """How many times the figure with the least partitions and connections."""
        least, figure = self.median(what, server, self.scales[0]), self.median(what, server, scale)
        return figure / least if figure is not None and least else None

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"what": what.strip(), "server": server, **scale._asdict(), "rounds": rounds}
            for (what, server, scale), rounds in self._rounds.items()
        ]


def requests(figures: Figures, server: str) -> list[dict[str, Any]]:
    """A row a figure, a column a scale, and how many times the first is the last one that there is."""
    lines = []
    for work, parts in WORKS.items():
        for part in parts:
            what = f"{work}, {part}"
            line: dict[str, Any] = {f"{server}, µs; partitions / connections": what}
            known = [scale for scale in figures.scales if figures.median(what, server, scale) is not None]
            for scale in known:
                line[str(scale)] = shown(figures.median(what, server, scale))
            times = figures.growth(what, server, known[-1]) if known else None
            line["last : first"] = None if times is None else f"{times:.2f}"
            lines.append(line)
    return lines


def life(figures: Figures, servers: list[str]) -> list[dict[str, Any]]:
    few = min(scale.connections for scale in figures.scales)
    scales = [scale for scale in figures.scales if scale.connections == few]
    lines = []
    for what in LIFE:
        line: dict[str, Any] = {"partitions": what}
        for server in servers:
            for scale in scales:
                if figures.median(LIFE[0], server, scale) is not None:
                    line[f"{server}, {scale.partitions:,}"] = shown(figures.median(what, server, scale))
        lines.append(line)
    return lines
