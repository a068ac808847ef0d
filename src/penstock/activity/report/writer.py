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
from penstock.activity.report import measurements as reading
from penstock.activity.report import scores
from penstock.activity.report.document import Document, latencies
from penstock.activity.report.measurements import ReportError, Tables, rows_counts
from penstock.activity.report.render import text_of

_WINDOW_MS: Final = 5_000


@dataclass(frozen=True)
class ReportOutcome:
    """0 if all goals are met, 1 if not; and the report in three forms."""

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
    told: Callable[[str], None] = lambda line: None,
) -> ReportOutcome:
    """Write report.html and report.json into a folder, or under another name that ends so: `folder` is `week.html`.

    Raises ReportError, and what the cluster answers.
    `summary` is what `penstock activity generate --format json` has printed, `samples` a row a second of the run.
    """
    from penstock.activity.report.render import html_of

    document = collect(where, warehouse_uri, summary=summary, samples=samples or (), told=told)
    place = Path(folder)
    html_path = place if place.suffix == ".html" else place / "report.html"
    json_path = html_path.with_suffix(".json")
    try:
        html_path.parent.mkdir(parents=True, exist_ok=True)
        html_path.write_text(html_of(document), encoding="utf-8")
        json_path.write_text(json.dumps(document.to_json(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ReportError(f"the report cannot be written: {error}", hint="Choose another folder") from error
    failures = document.failures
    return ReportOutcome(int(bool(failures)), html_path, json_path, text_of(document), failures, document)


def collect(
    where: Cluster | str,
    warehouse_uri: str,
    *,
    summary: Mapping[str, Any] | None = None,
    samples: Sequence[Mapping[str, Any]] = (),
    told: Callable[[str], None] = lambda line: None,
) -> Document:
    """All that is in the report."""
    _check(summary)
    cluster = cluster_of(where)
    tables = Tables(warehouse_uri)
    made_ms = time.time_ns() // 1_000_000
    ran = tuple(one.name for one in status.read_all(warehouse_uri) if one.name in definition.pipeline_names())
    with cluster.admin("penstock-report") as admin:
        records = reading.published_records(cluster, admin, TRUTH_TOPIC)
        if not records:
            raise ReportError(
                f"nothing was planted: the topic {TRUTH_TOPIC} is not there or empty",
                hint="`penstock activity generate` plants what a report looks for",
            )
        until_ms = _until(tables, made_ms) if summary is None else int(summary["end_ms"])
        planted = scores.planted_of(records, None if summary is None else int(summary["origin_ms"]), until_ms)
        since_ms = min((one.start_ms for one in planted), default=until_ms)
        told("Comparing what was found with what was planted ...")
        alerts = reading.published_records(cluster, admin, "alerts", since_ms)
        ranking = reading.published_records(cluster, admin, "ranking", since_ms)
        told("Counting what was produced and what has landed ...")
        counted = reading.table_counts(cluster, admin, warehouse_uri, since_ms, made_ms, summary)
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
        landings=tuple(reading.landing(tables, topic, since_ms) for topic in topics),
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
            hint="Give what `penstock activity generate --format json` has printed",
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
    """The end of the newest window of the servers, which are never silent."""
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
    """What its streams read. Loads know what waits for them only when they look, so that says nothing of time."""
    return [
        kind.topic
        for kind in dict.fromkeys(kind for rows in definition.find_pipeline(name).rows for kind in rows.reads)
    ]


def _rows(tables: Tables, name: str, column: str, since_ms: int) -> tuple[dict[str, Any], ...]:
    """Of a report by the hour, from the run's first hour on; its time as milliseconds."""
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
    """What the generator has printed, from a file. Raises ReportError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(
            f"{path} is no summary of the generator: {error}",
            hint="`penstock activity generate --format json > FILE` makes one",
        ) from error
    if not isinstance(document, dict):
        raise ReportError(f"{path} is no summary of the generator", hint="It has to be a JSON object")
    return document
