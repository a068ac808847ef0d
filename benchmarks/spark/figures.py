"""The rows of a result: our data source beside the stock connector and, where it was measured, the ceiling.

Every figure has the rounds that it comes from. The ceiling has no goal: it is what remains to be won.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.results import Better, Figure, Row
from benchmarks.spark.topics import Topic
from benchmarks.spark.works import OURS, STOCK, Contender, Outcome

CPU_GOAL: Final = 0.6

Rounds = Mapping[Contender, Sequence[Outcome]]


def rate_rows(
    title: str, what: str, topic: Topic, rounds: Rounds, goal: float | None = None, cpu_goal: float | None = None
) -> list[Row]:
    """Rows and bytes per second, and CPU time per gigabyte."""
    work = f"{what}, {topic.content}"
    return [
        _row(title, work, "M rows/s", Better.HIGHER, rounds, lambda one: topic.rows / 1e6 / one.seconds, goal),
        _row(title, work, "MB/s", Better.HIGHER, rounds, lambda one: topic.megabytes / one.seconds, None),
        _row(title, work, "CPU s/GB", Better.LOWER, rounds, lambda one: one.cpu_s / topic.megabytes * 1000, cpu_goal),
    ]


def batch_rows(title: str, work: str, rounds: Rounds, goal: float) -> list[Row]:
    """Time and CPU of a micro-batch."""
    return [
        _row(title, work, "ms", Better.LOWER, rounds, lambda one: one.seconds * 1000, goal),
        _row(title, work, "CPU ms", Better.LOWER, rounds, lambda one: one.cpu_s * 1000, None),
    ]


def _row(
    title: str,
    work: str,
    unit: str,
    better: Better,
    rounds: Rounds,
    figure: Callable[[Outcome], float],
    goal: float | None,
) -> Row:
    figures = {one.name: Figure.of([figure(outcome) for outcome in some]) for one, some in rounds.items()}
    return Row(work, unit, better, figures, OURS.name, STOCK.name, goal, title)


def commit_row(title: str, work: str, times_ms: Sequence[float]) -> Row:
    """Only ours commits to a table."""
    return Row(work, "ms", Better.LOWER, {OURS.name: Figure.of(times_ms)}, OURS.name, table=title)
