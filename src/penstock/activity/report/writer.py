"""Collects and writes the report of a run: what was found against what was planted, and whether anything was lost.

It needs only the log and the warehouse, after the pipelines have read to the end. The generator's summary and the
samples of the run are added if given. The exit code is 0 if all goals are met, 1 if one is missed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from penstock.activity.cluster import Cluster, cluster_of
from penstock.activity.events import KINDS, TRUTH_TOPIC
from penstock.activity.pipelines import definition
from penstock.activity.pipelines.engine import status
from penstock.activity.report import measurements, scores
from penstock.activity.report.document import Document, latencies
from penstock.activity.report.measurements import ReportError, Tables, rows_counts
from penstock.activity.report.render import html_of, text_of

_WINDOW_MS: Final = 5_000


@dataclass(frozen=True)
class ReportOutcome:
    """The report in its three forms. The exit code is 0 if all goals are met, else 1."""

    exit_code: int
    html_path: Path
    json_path: Path
    text: str
    failures: tuple[str, ...]
    document: Document


def write_report(
    where: Cluster | str,
    warehouse_uri: str,
    folder: str | Path,
    *,
    summary: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> ReportOutcome:
    """Writes report.html and report.json into a folder, or under another name: `folder` may be `week.html`.

    `summary` is the output of `penstock activity generate --format json`, `samples` has a row per second of the run.
    Raises ReportError, and errors of the cluster.
    """
    document = collect(where, warehouse_uri, summary=summary, samples=samples or (), notify=notify)
    place = Path(folder)
    html_path = place if place.suffix == ".html" else place / "report.html"
    json_path = html_path.with_suffix(".json")
    try:
        html_path.parent.mkdir(parents=True, exist_ok=True)
        html_path.write_text(html_of(document), encoding="utf-8")
        json_path.write_text(json.dumps(document.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write the report: {error}", hint="Choose another folder") from error
    failures = document.failures
    return ReportOutcome(int(bool(failures)), html_path, json_path, text_of(document), failures, document)


def collect(
    where: Cluster | str,
    warehouse_uri: str,
    *,
    summary: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] = (),
    notify: Callable[[str], None] = lambda line: None,
) -> Document:
    """Reads the log and the warehouse, and scores what was found."""
    _check(summary)
    cluster = cluster_of(where)
    tables = Tables(warehouse_uri)
    made_ms = time.time_ns() // 1_000_000
    ran = tuple(one.name for one in status.read_all(warehouse_uri) if one.name in definition.pipeline_names())
    with cluster.admin("penstock-report") as admin:
        records = measurements.published_records(cluster, admin, TRUTH_TOPIC)
        if not records:
            raise ReportError(
                f"no planted events found: topic {TRUTH_TOPIC} is missing or empty",
                hint="Generate them with `penstock activity generate`",
            )
        until_ms = _until(tables, made_ms) if summary is None else int(summary["end_ms"])
        planted = scores.planted_of(records, None if summary is None else int(summary["origin_ms"]), until_ms)
        since_ms = min((one.start_ms for one in planted), default=until_ms)
        notify("Comparing what was found with what was planted ...")
        alerts = measurements.published_records(cluster, admin, "alerts", since_ms)
        ranking = measurements.published_records(cluster, admin, "ranking", since_ms)
        notify("Counting produced and loaded records ...")
        counted = measurements.table_counts(cluster, admin, warehouse_uri, since_ms, made_ms, summary)
    trends = scores.trend_detections(planted, ranking, until_ms)
    topics = [kind.topic for kind in KINDS if tables.has(kind.topic)]
    return Document(
        since_ms=since_ms, until_ms=until_ms, made_ms=made_ms, facts=_facts(summary, since_ms, until_ms), ran=ran,
        scores=tuple(scores.verdict_scores(planted, _suspects(tables))),
        incidents=tuple(scores.incident_detections(planted, alerts, until_ms)),
        false_alarms=tuple(scores.false_alarms(planted, alerts, since_ms)),
        trends=tuple(trends),
        tables=tuple(counted),
        counts=tuple(rows_counts(tables, since_ms)),
        absent=_absent(tables, ran),
        latencies=tuple(latencies(samples, {name: _topics(name) for name in ran}, since_ms, until_ms)),
        landings=tuple(measurements.landing(tables, topic, since_ms) for topic in topics),
        visits=_rows(tables, "visits", "start", since_ms), funnel=_rows(tables, "funnel", "hour", since_ms),
        samples=tuple(samples), windows=_windows(tables, since_ms),
        trend_line=_trend_line(ranking, trends[0].subject) if trends else (),
    )  # fmt: skip


def _check(summary: Mapping[str, Any] | None) -> None:
    wanted = ("start_ms", "end_ms", "origin_ms", "good", "malformed")
    missing = [name for name in wanted if summary is not None and name not in summary]
    if missing:
        raise ReportError(
            f"the generator's summary has no {missing[0]}",
            hint="Create one with `penstock activity generate --format json > FILE`",
        )


def _facts(summary: Mapping[str, Any] | None, since_ms: int, until_ms: int) -> dict[str, str]:
    seconds = max(0, until_ms - since_ms) / 1000
    facts = {"from": time_text(since_ms), "to": time_text(until_ms), "length": f"{seconds / 60:.1f} min"}
    if summary is None:
        return facts
    good, malformed = sum(summary["good"].values()), sum(summary["malformed"].values())
    lost = sum(summary.get("failed", {}).values()) + int(summary.get("unacknowledged", 0))
    facts |= {"events": f"{good:,} good, {malformed:,} malformed"}
    facts |= {name: f"{summary[name]:,}" for name in ("seed", "rate") if name in summary}
    return facts | ({"not acknowledged": f"{lost:,}"} if lost else {})


def _until(tables: Tables, made_ms: int) -> int:
    """The end of the newest server window; servers always report."""
    if not tables.has("server_windows"):
        return made_ms
    starts = tables.read("server_windows", ("start",)).column("start").to_pylist()
    return max((_ms(start) + _WINDOW_MS for start in starts), default=made_ms)


def _suspects(tables: Tables) -> list[tuple[str, str]]:
    if not tables.has("suspects"):
        return []
    rows = tables.read("suspects", ("verdict", "actor"))
    return list(zip(rows.column("verdict").to_pylist(), rows.column("actor").to_pylist(), strict=True))


def _absent(tables: Tables, ran: Sequence[str]) -> tuple[str, ...]:
    names = [
        name
        for one in map(definition.find_pipeline, ran)
        for name in (*(table.name for table in one.tables), *(kind.topic for kind in one.loads))
    ]
    return tuple(name for name in names if not tables.has(name))


def _topics(name: str) -> list[str]:
    """The topics of its streams. Loads are left out: their lag is known only while they run."""
    return [
        kind.topic
        for kind in dict.fromkeys(kind for rows in definition.find_pipeline(name).rows for kind in rows.reads)
    ]


def _rows(tables: Tables, name: str, column: str, since_ms: int) -> tuple[dict[str, Any], ...]:
    """The hourly rows of a report since the run's first hour, with the time in milliseconds."""
    if not tables.has(name):
        return ()
    names = [field.name for field in tables.store(name).schema() if field.name != "event_day"]
    rows = tables.read(name, names, (column, since_ms - since_ms % 3_600_000)).to_pylist()
    rows = [{**row, column: _ms(row[column])} for row in rows if row.get("period", "hour") == "hour"]
    return tuple(sorted(rows, key=lambda row: (row[column], row.get("step", 0))))


def _windows(tables: Tables, since_ms: int) -> tuple[dict[str, Any], ...]:
    if not tables.has("server_windows"):
        return ()
    rows = tables.read("server_windows", ("start", "server", "p95_ms"), ("start", since_ms)).to_pylist()
    return tuple({"start_ms": _ms(row["start"]), "server": row["server"], "p95_ms": row["p95_ms"]} for row in rows)


def _trend_line(ranking: Sequence[scores.PublishedRecord], item: str) -> tuple[tuple[int, float], ...]:
    values = [(one.time_ms, one.value) for one in ranking if one.value and str(one.value.get("item")) == item]
    return tuple(sorted((time_ms, float(value.get("trend") or 0.0)) for time_ms, value in values))


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def time_text(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def read_summary(path: str | Path) -> dict[str, Any]:
    """The generator's summary from a file. Raises ReportError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(
            f"{path} is not a generator summary: {error}",
            hint="Create one with `penstock activity generate --format json > FILE`",
        ) from error
    if not isinstance(document, dict):
        raise ReportError(f"{path} is not a generator summary", hint="It must be a JSON object")
    return document
