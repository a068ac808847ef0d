"""A report as values: findings, counts, latencies, and the goals they meet. Pure.

Text, HTML and JSON are made from this alone. A goal that cannot be judged (its pipeline did not run, its incident
began too late) is reported as such and is neither met nor missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.activity.report.measurements import Landing, RowsCount, TableCount
from penstock.activity.report.scores import IN_TIME_MS, Detection, Score

LEAST_SHARE: Final = 0.9


@dataclass(frozen=True)
class Goal:
    """Met, missed, or None: not judged."""

    name: str
    is_met: bool | None
    said: str


@dataclass(frozen=True)
class Latency:
    """Of a pipeline over the run: batches, and how old the events were that it had yet to read."""

    pipeline: str
    batch_p50_ms: float | None
    batch_p99_ms: float | None
    delay_p50_ms: float | None
    delay_p99_ms: float | None
    most_lag: int | None


@dataclass(frozen=True)
class Document:
    """A run's report. Times are in milliseconds since the epoch."""

    since_ms: int
    until_ms: int
    made_ms: int
    facts: Mapping[str, str]
    ran: tuple[str, ...]
    """Pipelines that have run in the warehouse."""
    scores: tuple[Score, ...]
    incidents: tuple[Detection, ...]
    false_alarms: tuple[str, ...]
    trends: tuple[Detection, ...]
    tables: tuple[TableCount, ...]
    counts: tuple[RowsCount, ...]
    absent: tuple[str, ...]
    """Tables of pipelines that have run, and that are not there."""
    latencies: tuple[Latency, ...]
    landings: tuple[Landing, ...]
    visits: tuple[Mapping[str, Any], ...]
    """Rows of that report, by hour."""
    funnel: tuple[Mapping[str, Any], ...]
    samples: tuple[Mapping[str, Any], ...] = ()
    windows: tuple[Mapping[str, Any], ...] = ()
    """Rows of server_windows: start_ms, server, p95_ms."""
    trend_line: tuple[tuple[int, float], ...] = ()
    """When the trending item's trend was published, and how high it was."""

    @property
    def complete_until_ms(self) -> int | None:
        """Until when all tables of events are."""
        known = [one.complete_until_ms for one in self.tables]
        return None if not known or None in known else min(one for one in known if one is not None)

    @property
    def goals(self) -> list[Goal]:
        return [*self._of_tables(), *self._of_verdicts(), *self._of_incidents()]

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{goal.name}: {goal.said}" for goal in self.goals if goal.is_met is False)

    def _of_tables(self) -> list[Goal]:
        goals: list[Goal] = []
        if not self.tables:
            goals.append(Goal("every event is in the warehouse", None, "reporting was not run"))
        else:
            problems = [f"{one.table}: {', '.join(one.problems)}" for one in self.tables if one.problems]
            landed, dead = sum(one.landed for one in self.tables), sum(one.dead for one in self.tables)
            fine = (
                f"100 %: {landed:,} in {len(self.tables)} tables, {dead:,} dead letters, of {landed + dead:,} records"
            )
            goals.append(Goal("every event is in the warehouse", not problems, "; ".join(problems) or fine))
        if not self.counts:
            goals.append(Goal("pipelines have counted every event once", None, "no tables to compare"))
        else:
            wrong = [
                f"{one.table}: {one.counted:,} instead of {one.events:,} {one.what}"
                for one in self.counts
                if not one.is_complete
            ]
            fine = f"100 %: {', '.join(one.table for one in self.counts)}"
            goals.append(Goal("pipelines have counted every event once", not wrong, "; ".join(wrong) or fine))
        if self.absent:
            goals.append(Goal("every table is there", False, f"{', '.join(self.absent)} missing"))
        return goals

    def _of_verdicts(self) -> list[Goal]:
        goals = []
        for one in self.scores:
            name = f"{one.verdict}s are found"
            if "security" not in self.ran:
                goals.append(Goal(name, None, "security was not run"))
                continue
            if not one.planted:
                goals.append(Goal(name, None, "none was planted"))
                continue
            said = f"precision {one.precision:.2f}, recall {one.recall:.2f} ({one.right} of {one.planted})"
            said += f"; missed {', '.join(one.missed)}" if one.missed else ""
            said += f"; wrong {', '.join(one.wrong)}" if one.wrong else ""
            goals.append(Goal(name, min(one.precision, one.recall) >= LEAST_SHARE, said))
        return goals

    def _of_incidents(self) -> list[Goal]:
        if "operations" not in self.ran:
            return [Goal("incidents are alerted", None, "operations was not run")]
        goals = []
        for one in self.incidents:
            name = f"the incident on {one.subject} is alerted"
            limit = f"within {IN_TIME_MS // 1000} s"
            if one.after_ms is not None:
                in_time = one.after_ms <= IN_TIME_MS
                said = f"{one.after_ms / 1000:.1f} s after its start ({limit})"
                goals.append(Goal(name, in_time if one.is_judged or in_time else None, said))
            elif one.is_judged:
                goals.append(Goal(name, False, f"no alert ({limit})"))
            else:
                goals.append(Goal(name, None, "it began just before the end"))
        return goals or [Goal("incidents are alerted", None, "none was planted in this time")]

    def to_json(self) -> dict[str, Any]:
        """For programs: everything but what is only drawn."""
        document = asdict(self)
        for name in ("samples", "windows", "trend_line"):
            del document[name]
        for landing in document["landings"]:
            del landing["by_second"]
        for score, one in zip(document["scores"], self.scores, strict=True):
            score |= {"precision": one.precision, "recall": one.recall}
        for place in ("tables", "counts"):
            for row, each in zip(document[place], getattr(self, place), strict=True):
                row["is_complete"] = each.is_complete
        failures = list(self.failures)
        return {
            "goals": [asdict(goal) for goal in self.goals], "failures": failures, "is_good": not failures,
            "complete_until_ms": self.complete_until_ms, **document,
        }  # fmt: skip


def latencies(
    samples: Sequence[Mapping[str, Any]], reads: Mapping[str, Iterable[str]], since_ms: int, until_ms: int
) -> list[Latency]:
    """Of each pipeline that was watched while events came; `reads` are the topics of its streams, if it has any.

    How late it is, is Little's law: records that wait by records that come.
    """
    inside = [one for one in samples if since_ms <= one.get("time_ms", 0) <= until_ms]
    names = dict.fromkeys(name for one in inside for name in one.get("batch_ms", {}))
    found: list[Latency] = []
    for name in names:
        batches = [float(one["batch_ms"][name]) for one in inside if one.get("batch_ms", {}).get(name)]
        topics = list(reads.get(name, ()))
        lags = [int(one["lag"][name]) for one in inside if topics and one.get("lag", {}).get(name, -1) >= 0]
        delays: list[float] = []
        for one in inside:
            rate = sum(one.get("rates", {}).get(topic, 0.0) for topic in topics)
            lag = one.get("lag", {}).get(name, -1)
            if rate > 0 and lag >= 0:
                delays.append(1000 * lag / rate)
        found.append(
            Latency(
                name, quantile(batches, 0.5), quantile(batches, 0.99), quantile(delays, 0.5), quantile(delays, 0.99),
                max(lags, default=None),
            )
        )  # fmt: skip
    return found


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is at least as great as this share of them."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
