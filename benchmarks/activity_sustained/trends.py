"""What grew over a run, and what did not. Pure.

A slope is the median of the slopes between all pairs of samples (Theil-Sen), which is robust against a sawtooth and
outliers. A series is flat if that slope, over the judged time, amounts to less than `LAG_S` seconds of events or a
fifth of the lag, `MEMORY_MB` or a twentieth of the memory. Lag is in seconds: waiting records divided by arriving
records.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from benchmarks.activity_sustained.sampler import Sample
from benchmarks.results import Better, Figure, Row

LAG_S: Final = 2.0
LAG_SHARE: Final = 0.2
MEMORY_MB: Final = 16.0
MEMORY_SHARE: Final = 0.05
RATE_SHARE: Final = 0.99
_WARM_UP_S: Final = 2_100.0
"""Three pipelines keep half an hour of rows: until then memory grows by design."""
_WARM_UP_SHARE: Final = 0.7
_HEAP_WARM_UP_S: Final = 600.0
"""Those rows are not in the heap; and full collections are rare, one every two minutes."""
_IN_A_ROW: Final = 3
_MOST_PAIRED: Final = 200

P50, P95, HIGHEST, PER_MINUTE, GROWTH = "p50", "p95", "highest", "per minute", "growth"
"""The columns of the tables. The growth over the judged time is what is judged."""
REACHED: Final = "penstock"

HEAP: Final = "Spark's Java after collections, without state"
STATE: Final = "state in Spark's Java"

Points = Sequence[tuple[float, float]]


class Course(NamedTuple):
    """A series over the judged time."""

    p50: float
    p95: float
    most: float
    slope_per_min: float
    growth: float
    """The slope times the judged time."""
    may_grow: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.may_grow


class Verdict(NamedTuple):
    is_good: bool
    said: str


def warm_up_s(length_s: float) -> float:
    return min(_WARM_UP_S, _WARM_UP_SHARE * length_s)


def judged(samples: Sequence[Sample]) -> list[Sample]:
    """The samples after the warm-up."""
    if not samples:
        return []
    since_s = warm_up_s(samples[-1].at_s)
    return [sample for sample in samples if sample.at_s >= since_s]


def course(points: Points, least: float, share: float) -> Course | None:
    """The course of a series; None for fewer than three points, which have no meaningful slope."""
    if len(points) < 3:
        return None
    values = sorted(value for _, value in points)
    minutes = (points[-1][0] - points[0][0]) / 60
    slope = slope_per_min(points)
    middle = statistics.median(values)
    return Course(middle, _quantile(values, 0.95), values[-1], slope, slope * minutes, max(least, share * abs(middle)))


def slope_per_min(points: Points) -> float:
    """The median slope between all pairs, of every n-th point if there are many."""
    step = math.ceil(len(points) / _MOST_PAIRED)
    kept = points[::step]
    slopes = [
        (after - before) / (late_s - early_s) * 60
        for number, (early_s, before) in enumerate(kept)
        for late_s, after in kept[number + 1 :]
        if late_s > early_s
    ]
    return statistics.median(slopes) if slopes else 0.0


def lag_seconds(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """The lag of a query in seconds over time, without unknown values."""
    known = [(one.at_s, one.queries[name]) for one in samples if name in one.queries and one.queries[name].lag >= 0]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return []
    (first_s, first), (last_s, last) = known[0], known[-1]
    came_per_s = (last.rows + last.lag - first.rows - first.lag) / (last_s - first_s)
    return [(at_s, query.lag / came_per_s) for at_s, query in known] if came_per_s > 0 else []


def lags(samples: Sequence[Sample]) -> dict[str, Course]:
    return _courses(
        (name, lag_seconds(judged(samples), name), LAG_S, LAG_SHARE) for name in _names(one.queries for one in samples)
    )


def memories(samples: Sequence[Sample]) -> dict[str, Course]:
    return _courses(
        (kind, memory_mb(judged(samples), kind), MEMORY_MB, MEMORY_SHARE)
        for kind in _names(one.usages for one in samples)
    )


def heap(samples: Sequence[Sample], held: Points) -> dict[str, Course]:
    """What full collections left, after the first minutes.

    A collection during a batch leaves the data of the batch, so the least of some in a row counts. Streaming state
    depends on the site's members; it is left out and reported separately.
    """
    if not samples:
        return {}
    since_s = min(_HEAP_WARM_UP_S, warm_up_s(samples[-1].at_s))
    states = state_mb(samples)
    times = [at_s for at_s, _ in states]
    without = [
        (at_s, left - states[max(0, bisect_right(times, at_s) - 1)][1]) for at_s, left in held if at_s >= since_s
    ]
    least = [
        min(without[first : first + _IN_A_ROW], key=lambda one: one[1])
        for first in range(0, len(without) - _IN_A_ROW + 1, _IN_A_ROW)
    ]
    return _courses([(HEAP, least, MEMORY_MB, MEMORY_SHARE)])


def state(samples: Sequence[Sample]) -> dict[str, Course]:
    """The streaming state of all queries; shown, not judged."""
    return _courses([(STATE, state_mb(judged(samples)), math.inf, 0.0)])


def state_mb(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return [(one.at_s, sum(query.state_mb for query in one.queries.values())) for one in samples]


def batches(samples: Sequence[Sample]) -> dict[str, Course]:
    """Batch durations, each batch once; shown, not judged."""
    return _courses(
        (name, batch_ms(judged(samples), name), math.inf, 0.0) for name in _names(one.queries for one in samples)
    )


def memory_mb(samples: Sequence[Sample], kind: str) -> list[tuple[float, float]]:
    return [(one.at_s, one.usages[kind].memory_mb) for one in samples if kind in one.usages]


def batch_ms(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    found: dict[int, tuple[float, float]] = {}
    for one in samples:
        query = one.queries.get(name)
        if query is not None and query.batch_id >= 0:
            found.setdefault(query.batch_id, (one.at_s, float(query.batch_ms)))
    return list(found.values())


def cores(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean cores of each kind of process over the judged time."""
    rest = judged(samples)
    kinds = _names(one.usages for one in rest)
    return {kind: _mean(one.usages[kind].cores for one in rest if kind in one.usages) for kind in kinds}


def verdicts(
    samples: Sequence[Sample], rate: float, summary: Mapping[str, Any], failures: Sequence[str] | None,
    held: Points = (),
) -> list[Verdict]:  # fmt: skip
    """The conditions, and whether they are met. `failures` are those of the report, None without a report."""
    reached = float(summary.get("events_per_second", 0.0))
    found = [Verdict(reached >= RATE_SHARE * rate, f"the generator kept to {rate:,.0f} events/s: {reached:,.0f}")]
    memory = {**memories(samples), **heap(samples, held)}
    by_name = (("lag of", lags(samples), "s"), ("memory of", memory, "MB"))
    for what, courses, unit in by_name:
        if not courses:
            found.append(Verdict(False, f"no {what.partition(' ')[0]} was seen"))
        for name, one in courses.items():
            said = f"{what} {name} is flat: {one.growth:+.1f} {unit} since the warm-up, {one.may_grow:.1f} may be"
            found.append(Verdict(one.is_flat, said))
    again = sorted({name for one in samples for name, query in one.queries.items() if query.restarts})
    found.append(Verdict(not again, f"nothing was started again{': ' + ', '.join(again) if again else ''}"))
    if failures is not None:
        found.append(Verdict(not failures, f"the run's report meets all goals{_list(failures)}"))
    return found


def rows(
    samples: Sequence[Sample], rate: float, summary: Mapping[str, Any], failures: Sequence[str] | None,
    held: Points = (),
) -> list[Row]:  # fmt: skip
    """All measurements, with their goals."""
    reached = float(summary.get("events_per_second", 0.0))
    used = cores(samples)
    again = sum(max((one.queries[name].restarts for one in samples if name in one.queries), default=0)
                for name in _names(one.queries for one in samples))  # fmt: skip

    def single(work: str, unit: str, better: Better, figure: float, goal: float | None, table: str) -> Row:
        return Row(work, unit, better, {REACHED: Figure(figure)}, REACHED, goal=goal, table=table)

    whole = "The run"
    memory = {**memories(samples), **heap(samples, held), **state(samples)}
    return [
        single("events that the generator sent", "1/s", Better.HIGHER, reached, RATE_SHARE * rate, whole),
        single("restarts of queries", "", Better.LOWER, again, 0, whole),
        *([] if failures is None else [single("failures in its report", "", Better.LOWER, len(failures), 0, whole)]),
        single("cores in all, in the mean", "", Better.LOWER, sum(used.values()), None, whole),
        *_rows("Lag after the warm-up", "s", lags(samples)),
        *_rows("Memory after the warm-up", "MB", memory),
        *_rows("Time of a batch after the warm-up", "ms", batches(samples)),
        *(single(name, "", Better.LOWER, each, None, "Cores in the mean") for name, each in used.items()),
    ]


def _rows(table: str, unit: str, courses: Mapping[str, Course]) -> list[Row]:
    return [
        Row(
            name,
            unit,
            Better.LOWER,
            {
                P50: Figure(one.p50),
                P95: Figure(one.p95),
                HIGHEST: Figure(one.most),
                PER_MINUTE: Figure(one.slope_per_min),
                GROWTH: Figure(one.growth),
            },
            GROWTH,
            goal=one.may_grow if math.isfinite(one.may_grow) else None,
            table=table,
        )
        for name, one in courses.items()
    ]


def _list(texts: Sequence[str]) -> str:
    return f": {'; '.join(texts)}" if texts else ""


def _courses(each: Iterable[tuple[str, Points, float, float]]) -> dict[str, Course]:
    made = ((name, course(points, least, share)) for name, points, least, share in each)
    return {name: one for name, one in made if one is not None}


def _names(each: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({name for one in each for name in one})


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Iterable[float]) -> float:
    every = list(values)
    return statistics.fmean(every) if every else 0.0
