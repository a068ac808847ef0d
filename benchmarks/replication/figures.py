"""The rows of the table: what is compared, in which unit, and the goal for the ratio of ours to Kafka's.

Rule: rows of one measurement stand together. `UNSYNCED_*` are ours with flush settings by which it does not sync
either, beside Kafka as shipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.peers.figures import AT_LEAST, AT_MOST, Figures, Work, shown

SIZES: Final = {"100 B": 100, "1 KB": 1000}
DEPTHS: Final = (1, 2, 4, 8, 16, 32, 64)
DEEPEST: Final = DEPTHS[-1]

PRODUCE: Final = {size: Work(f"produce {size}", "MB/s", AT_LEAST, 1.0) for size in SIZES}
PRODUCE_CPU: Final = {size: Work(f"  CPU of the cluster a GB, {size}", "s", AT_MOST) for size in SIZES}
TRIP_P50: Final = Work("one record, round trip p50", "µs", AT_MOST, 1.0)
TRIP_P99: Final = Work("one record, round trip p99", "µs", AT_MOST, 1.0)
TRIP_CPU: Final = Work("  CPU of the cluster a request, one at a time", "µs", AT_MOST, 0.5)
DEPTH: Final = {
    depth: Work(f"requests/s, {depth} in flight on one connection", "1/s", AT_LEAST, 3.0 if depth == DEEPEST else None)
    for depth in DEPTHS
}
DEPTH_CPU: Final = Work(f"  CPU of the cluster a request, {DEEPEST} in flight", "µs", AT_MOST, 0.5)
UNSYNCED_P50: Final = Work("nobody syncs: one record, round trip p50", "µs", AT_MOST, 0.6)
UNSYNCED_P99: Final = Work("nobody syncs: one record, round trip p99", "µs", AT_MOST, 0.6)
UNSYNCED_DEEP: Final = Work(f"nobody syncs: requests/s, {DEEPEST} in flight", "1/s", AT_LEAST)
UNSYNCED_PRODUCE: Final = {size: Work(f"nobody syncs: produce {size}", "MB/s", AT_LEAST) for size in SIZES}
GAP: Final = Work("leader killed: longest gap in acknowledgements", "s", AT_MOST, 0.2)
IDLE: Final = Work("  CPU of the cluster, idle, of one core", "%", AT_MOST)

ROWS: Final = (
    *(row for size in SIZES for row in (PRODUCE[size], PRODUCE_CPU[size])),
    TRIP_P50,
    TRIP_P99,
    TRIP_CPU,
    *DEPTH.values(),
    DEPTH_CPU,
    UNSYNCED_P50,
    UNSYNCED_P99,
    UNSYNCED_DEEP,
    *UNSYNCED_PRODUCE.values(),
    GAP,
    IDLE,
)


def rows(figures: Figures, ours: str, theirs: str) -> list[dict[str, Any]]:
    """One line a row that somebody has a figure for."""
    return [_line(figures, work, ours, theirs) for work in _measured(figures, (ours, theirs))]


def _measured(figures: Figures, names: Sequence[str]) -> list[Work]:
    return [work for work in ROWS if any(figures.median(work, name) is not None for name in names)]


def _line(figures: Figures, work: Work, ours: str, theirs: str) -> dict[str, Any]:
    ratio = figures.ratio(work, ours, theirs)
    return {
        "acks=all, three replicas": f"{work.name}, {work.unit}",
        ours: shown(figures.median(work, ours)),
        theirs: shown(figures.median(work, theirs)),
        "ratio": None if ratio is None else f"{ratio:.2f}",
        "goal": None if work.goal is None else f"{work.bound} {work.goal:g}",
        "met": None if ratio is None else work.is_met(ratio),
    }
