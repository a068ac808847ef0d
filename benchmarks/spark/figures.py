"""The figures of a run: rows of the table, and bars of the chart.

Rule: `better` is one direction for every row: how many times faster, or cheaper, or sooner ours is than the stock
connector. The ceiling has no ratio: it is what remains to be won.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.ratio_chart import Bar, picture
from benchmarks.report import machine, table
from benchmarks.spark.topics import Topic
from benchmarks.spark.works import CEILING, OURS, STOCK, Contender, Outcome

CPU_GOAL: Final = 1 / 0.6
_LEAST_S: Final = 1e-3
_QUIET_LOAD: Final = 0.5


class Row(NamedTuple):
    """A figure of ours, the stock connector's and the ceiling's."""

    broker: str
    work: str
    unit: str
    ours: float
    stock: float | None = None
    ceiling: float | None = None
    better: float | None = None
    goal: float | None = None

    def shown(self) -> dict[str, object]:
        return {
            "broker": self.broker,
            "work": f"{self.work}, {self.unit}",
            "ours": f"{self.ours:,.2f}",
            "stock": None if self.stock is None else f"{self.stock:,.2f}",
            "ceiling": None if self.ceiling is None else f"{self.ceiling:,.2f}",
            "times better": None if self.better is None else f"{self.better:.2f}",
            "goal": "" if self.goal is None else f"{self.goal:.2f}",
            "met": None if self.goal is None or self.better is None else self.better >= self.goal,
        }


def rate_rows(
    broker: str,
    what: str,
    topic: Topic,
    outcomes: Mapping[Contender, Outcome],
    goal: float | None = None,
    cpu_goal: float | None = None,
) -> list[Row]:
    """Rows and bytes a second, and CPU time a gigabyte."""
    work = f"{what}, {topic.content}"
    mine, other, most = outcomes[OURS], outcomes.get(STOCK), outcomes.get(CEILING)
    faster = None if other is None else other.seconds / mine.seconds
    cheaper = None if other is None else other.cpu_s / max(mine.cpu_s, _LEAST_S)
    gigabytes = topic.megabytes / 1000

    def rate(unit: str, amount: float, aim: float | None) -> Row:
        theirs, highest = (None if one is None else amount / one.seconds for one in (other, most))
        return Row(broker, work, unit, amount / mine.seconds, theirs, highest, faster, aim)

    theirs, least = (None if one is None else one.cpu_s / gigabytes for one in (other, most))
    return [
        rate("M rows/s", topic.rows / 1e6, goal),
        rate("MB/s", topic.megabytes, None),
        Row(broker, work, "CPU s a GB", mine.cpu_s / gigabytes, theirs, least, cheaper, cpu_goal),
    ]


def time_row(broker: str, work: str, times_ms: Mapping[Contender, float], goal: float | None) -> Row:
    """Something that takes a while: less is better."""
    mine, other = times_ms[OURS], times_ms.get(STOCK)
    return Row(broker, work, "ms", mine, other, None, None if other is None else other / mine, goal)


def report(rows: Sequence[Row], busy: float, folder: Path) -> None:
    """Print them, and keep them as JSON and as a chart."""
    table("Our data source beside Spark's stock connector; medians", [row.shown() for row in rows])
    folder.mkdir(exist_ok=True)
    kept = {"machine": machine(), "load_before": busy, "rows": [row._asdict() for row in rows]}
    (folder / "spark.json").write_text(json.dumps(kept, indent=1))
    bars = [
        Bar(f"{row.broker}: {row.work}{', CPU' if row.unit.startswith('CPU') else ''}", row.better, row.goal)
        for row in rows
        if row.better is not None and row.unit != "MB/s"
    ]
    (folder / "spark.svg").write_text(picture("penstock's data source beside Spark's own: how many times better", bars))
    if busy > _QUIET_LOAD:
        print(f"CAUTION: the machine was busy before the run began (load {busy:.1f})")
