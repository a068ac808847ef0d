"""A report as values: findings, counts, latencies, and the goals they meet. Pure.

Text, HTML and JSON are made from this alone; `sections()` is what is shown. A goal that cannot be judged (its pipeline
did not run, its incident started too late) is reported as such and is neither met nor missed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any, Final

from penstock.activity.report.measurements import Landing, RowsCount, TableCount
from penstock.activity.report.scores import IN_TIME_MS, Detection, Score
from penstock.activity.report.sections import (
    BATCH_DURATION,
    EVENT_RATES,
    LAG,
    MEMORY,
    Bar,
    Chart,
    Column,
    Line,
    Mark,
    Part,
    Section,
    Table,
    utc_clock,
)

LEAST_SHARE: Final = 0.9
_DETAIL: Final = attrgetter("detail")


@dataclass(frozen=True)
class Goal:
    """Met, missed, or None: not judged."""

    name: str
    is_met: bool | None
    detail: str


@dataclass(frozen=True)
class Latency:
    """The batch durations and queueing delays of a pipeline over the run."""

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
    """Missing tables of pipelines that have run."""
    latencies: tuple[Latency, ...]
    landings: tuple[Landing, ...]
    visits: tuple[Mapping[str, Any], ...]
    """Rows of the table `visits`, by hour."""
    funnel: tuple[Mapping[str, Any], ...]
    samples: tuple[Mapping[str, Any], ...] = ()
    windows: tuple[Mapping[str, Any], ...] = ()
    """Rows of server_windows: start_ms, server, p95_ms."""
    trend_line: tuple[tuple[int, float], ...] = ()
    """The trend of the first trending item, by time of publication."""

    @property
    def complete_until_ms(self) -> int | None:
        """The time until which all tables of events are complete."""
        known = [one.complete_until_ms for one in self.tables]
        return None if not known or None in known else min(one for one in known if one is not None)

    @property
    def goals(self) -> list[Goal]:
        return [*self._of_tables(), *self._of_verdicts(), *self._of_incidents()]

    @property
    def failures(self) -> tuple[str, ...]:
        return tuple(f"{goal.name}: {goal.detail}" for goal in self.goals if goal.is_met is False)

    def sections(self) -> list[Section]:
        """What the report shows, in order. Sections without rows and points are left out."""
        every = [
            _goals(self), _verdicts(self), _incidents(self), _trends(self), _events(self), _counts(self),
            _pipelines(self), _landings(self), _visits(self), _funnel(self),
        ]  # fmt: skip
        return [
            section for section in every if section.charts or section.lines or (section.table and section.table.rows)
        ]

    def _of_tables(self) -> list[Goal]:
        goals: list[Goal] = []
        if not self.tables:
            goals.append(Goal("every event is in the warehouse", None, "the reporting pipeline did not run"))
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
                goals.append(Goal(name, None, "the security pipeline did not run"))
                continue
            if not one.planted:
                goals.append(Goal(name, None, "none planted"))
                continue
            detail = f"precision {one.precision:.2f}, recall {one.recall:.2f} ({one.right} of {one.planted})"
            detail += f"; missed {', '.join(one.missed)}" if one.missed else ""
            detail += f"; wrong {', '.join(one.wrong)}" if one.wrong else ""
            goals.append(Goal(name, min(one.precision, one.recall) >= LEAST_SHARE, detail))
        return goals

    def _of_incidents(self) -> list[Goal]:
        if "operations" not in self.ran:
            return [Goal("incidents are alerted", None, "the operations pipeline did not run")]
        goals = []
        for one in self.incidents:
            name = f"the incident on {one.subject} is alerted"
            limit = f"within {IN_TIME_MS // 1000} s"
            if one.after_ms is not None:
                in_time = one.after_ms <= IN_TIME_MS
                detail = f"{one.after_ms / 1000:.1f} s after its start ({limit})"
                goals.append(Goal(name, in_time if one.is_judged or in_time else None, detail))
            elif one.is_judged:
                goals.append(Goal(name, False, f"no alert ({limit})"))
            else:
                goals.append(Goal(name, None, "started too close to the end"))
        return goals or [Goal("incidents are alerted", None, "none planted in this time")]

    def to_json(self) -> dict[str, Any]:
        """Everything except the points of charts."""
        document = asdict(self)
        for name in ("samples", "windows", "trend_line"):
            del document[name]
        for landing in document["landings"]:
            del landing["by_second"]
        for place in ("incidents", "trends"):
            document[place] = [_with_json_name(row) for row in document[place]]
        for score, one in zip(document["scores"], self.scores, strict=True):
            score |= {"precision": one.precision, "recall": one.recall}
        for place in ("tables", "counts"):
            for row, each in zip(document[place], getattr(self, place), strict=True):
                row["is_complete"] = each.is_complete
        failures = list(self.failures)
        return {
            "goals": [_with_json_name(asdict(goal)) for goal in self.goals],
            "failures": failures, "is_good": not failures,
            "complete_until_ms": self.complete_until_ms, **document,
        }  # fmt: skip


def _with_json_name(row: dict[str, Any]) -> dict[str, Any]:
    """The row as JSON has it, where `detail` is called "said"."""
    return {"said" if name == "detail" else name: value for name, value in row.items()}


# ---------------------------------------------------------------------------------------------- sections


def _goals(document: Document) -> Section:
    columns = Column("name", "goal", "strong"), Column("is_met", "", "mark"), Column("said", "found", value=_DETAIL)
    return Section("goals", "Goals", table=Table("goals", columns, document.goals))


def _verdicts(document: Document) -> Section:
    bars = [
        Bar(
            f"{one.verdict}s",
            (
                Part(one.right, "good", "found"),
                Part(one.planted - one.right, "none", "missed"),
                Part(one.found - one.right, "bad", "wrong"),
            ),
            f"P {one.precision:.2f}, R {one.recall:.2f}",
        )
        for one in document.scores
    ]
    columns = (
        Column("verdict", "verdict"), Column("planted", "planted", "number"), Column("found", "found", "number"),
        Column("right", "right", "number"), Column("precision", "precision", "number", 2),
        Column("recall", "recall", "number", 2),
    )  # fmt: skip
    title = "Found against planted"
    return Section("scores", title, charts=_drawn(Chart("scores", title, bars=bars, is_scaled=True)),
                   table=Table("scores", columns, document.scores))  # fmt: skip


def _incidents(document: Document) -> Section:
    by_server: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(document.windows, key=lambda one: (one["server"], one["start_ms"])):
        if row["p95_ms"] is not None:
            by_server.setdefault(row["server"], []).append((row["start_ms"], row["p95_ms"]))
    lines = [Line(server, points) for server, points in by_server.items()]
    # The start has no name: it would overlap the alert's.
    marks = [mark for one in document.incidents for mark in (Mark(one.start_ms, ""), *_found(one, "alert"))]
    chart = Chart("windows", "Incident: p95 latency by server", unit="ms", lines=lines, marks=marks)
    alarms = ", ".join(document.false_alarms[:5])
    columns = (
        Column("subject", "server"), Column("start_ms", "start", "clock"),
        Column("after_ms", "alert after ms", "number"), Column("said", "alert", value=_DETAIL),
    )  # fmt: skip
    return Section(
        "incidents", "Incidents", charts=_drawn(chart), table=Table("incidents", columns, document.incidents),
        lines=(f"False alerts: {f'{len(document.false_alarms)} ({alarms})' if alarms else 'none'}",),
    )  # fmt: skip


def _trends(document: Document) -> Section:
    columns = (
        Column("subject", "item"), Column("said", "keyword", value=_DETAIL), Column("start_ms", "start", "clock"),
        Column("after_ms", "detected", value=_trend_text),
    )  # fmt: skip
    table = Table("trends", columns, document.trends)
    if not document.trends:
        return Section("trends", "Trending items", table=table)
    one = document.trends[0]
    chart = Chart(
        "trend_line", "Trending item: share of views relative to before", unit="times", note=_trend_text(one),
        lines=[Line(f"item {one.subject}", document.trend_line)],
        marks=[*_found(one, "rising", digits=0), Mark(one.start_ms, "start")],
    )  # fmt: skip
    return Section("trends", "Trending items", charts=_drawn(chart), table=table)


def _found(one: Detection, name: str, digits: int = 1) -> list[Mark]:
    if one.after_ms is None:
        return []
    return [Mark(one.start_ms + one.after_ms, f"{name} +{one.after_ms / 1000:.{digits}f} s")]


def _trend_text(one: Detection) -> str:
    if one.after_ms is None:
        return "not detected as rising" if one.is_judged else "started too late to be detected"
    return f"rising {one.after_ms / 1000:.0f} s after its start, best rank {one.rank}"


def _events(document: Document) -> Section:
    rates = []
    for landing in document.landings:
        seconds = sorted(landing.by_second)[1:-1]  # The first and the last are not whole.
        rates.append(Line(landing.table, [(second, landing.by_second[second]) for second in seconds]))
    marks = [Mark(one.start_ms, "incident") for one in document.incidents]
    bars = [
        Bar(
            one.table,
            (
                Part(one.landed, "good", "landed"),
                Part(one.dead, "warn", "dead letters"),
                Part(one.waiting, "none", "waiting"),
                Part(one.missing + one.surplus, "bad", "missing or duplicate"),
            ),
            f"{one.landed + one.dead:,} of {one.logged:,}",
        )
        for one in document.tables
    ]
    counts = {
        "logged": "log", "landed": "landed", "dead": "dead", "waiting": "waiting", "missing": "missing",
        "surplus": "duplicate",
    }  # fmt: skip
    columns = (
        Column("table", "table"), *(Column(name, title, "number") for name, title in counts.items()),
        Column("complete_until_ms", "complete until", "clock"),
    )  # fmt: skip
    return Section(
        "events", "Events: log and tables",
        charts=_drawn(
            replace(EVENT_RATES, lines=rates, marks=marks, note="By event time."),
            Chart("tables", "Completeness: landed and dead letters", bars=bars),
        ),
        table=Table("tables", columns, document.tables),
    )  # fmt: skip


def _counts(document: Document) -> Section:
    columns = (
        Column("table", "table"), Column("counted", "counted", "number"), Column("events", "expected", "number"),
        Column("what", "of"),
    )  # fmt: skip
    return Section("counts", "Pipeline tables: counted and expected", table=Table("counts", columns, document.counts))


def _pipelines(document: Document) -> Section:
    columns = (
        Column("pipeline", "pipeline"), Column("batch_p50_ms", "batch p50 ms", "number"),
        Column("batch_p99_ms", "p99", "number"), Column("delay_p50_ms", "delay p50 ms", "number"),
        Column("delay_p99_ms", "p99", "number"), Column("most_lag", "max lag", "number"),
    )  # fmt: skip
    return Section(
        "pipelines", "Pipelines: batch duration and queueing delay (backlog / arrival rate)",
        charts=_drawn(*(chart.of_samples(document.samples) for chart in (LAG, BATCH_DURATION, MEMORY))),
        table=Table("latencies", columns, document.latencies),
    )  # fmt: skip


def _landings(document: Document) -> Section:
    columns = (
        Column("table", "table"), Column("delay_p50_ms", "p50 ms", "number"), Column("delay_p99_ms", "p99", "number"),
        Column("delay_most_ms", "max", "number"),
    )  # fmt: skip
    return Section("landings", "Delay from event to table commit", table=Table("landings", columns, document.landings))


def _visits(document: Document) -> Section:
    names = ("visits", "members", "views", "clicks", "bounced")
    columns = Column("start", "hour", "clock"), *(Column(name, name, "number") for name in names)
    title = f"Visits by hour (complete until {utc_clock(document.complete_until_ms)})"
    return Section("visits", title, table=Table("visits", columns, document.visits))


def _funnel(document: Document) -> Section:
    columns = (
        Column("hour", "hour", "clock"), Column("name", "step"), Column("members", "members", "number"),
        Column("share", "share", "share", 1),
    )  # fmt: skip
    title = f"Funnel by hour (complete until {utc_clock(document.complete_until_ms)})"
    return Section("funnel", title, table=Table("funnel", columns, document.funnel))


def _drawn(*charts: Chart) -> tuple[Chart, ...]:
    """Charts with at least one point or bar."""
    return tuple(chart for chart in charts if chart.bars or any(line.points for line in chart.lines))


# ---------------------------------------------------------------------------------------------- latencies


def latencies(
    samples: Sequence[Mapping[str, Any]], reads: Mapping[str, Iterable[str]], since_ms: int, until_ms: int
) -> list[Latency]:
    """The latencies of each pipeline in the samples; `reads` are the topics of its streams, if it has any.

    The queueing delay follows from Little's law: backlog divided by arrival rate.
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
    """The smallest value that is >= this share of the values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
