"""The part of a pipeline that is not a stream: loads events into tables, then computes reports of the changed days.

A load is a load of `penstock load`, exactly once, with dead letters. A report is computed from the first changed day
on, with its `lookback`, and replaces what it had from that day on. Which days are due follows from the versions that
the report's own table has recorded, so a crash only delays a report. Reports of a day take longer as the day grows:
while events wait to be loaded, they rest for three times as long as they took.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.cluster import Cluster
from penstock.activity.events import Kind
from penstock.activity.pipelines.definition import Pipeline, Report
from penstock.activity.pipelines.engine import results, status
from penstock.activity.pipelines.engine.micro_batch import Outputs
from penstock.activity.pipelines.engine.queries import LagWatch, Member, arrow_schema
from penstock.activity.pipelines.engine.results import Change, ResultTable, TimeSpan
from penstock.activity.pipelines.engine.session import POOL_PROPERTY, USUAL_POOL
from penstock.activity.pipelines.engine.status import QueryStatus
from penstock.activity.pipelines.errors import in_one_line
from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.spark.tables import Loader, OpenTable, Warehouse, from_mapping
from penstock.spark.tables.declaration import DAY
from penstock.spark.tables.load_plan import log_state
from penstock.spark.tables.maintenance import maintain
from penstock.spark.tables.runner import LocalRunner, Runner, SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAINTAIN_EVERY: Final = 60
_REST: Final = 3.0
"""The pause after computing reports, in multiples of its duration."""
_SEEN: Final = "penstock:seen:"
"""Transactions of a report's table: the version of a loaded table up to which it was computed."""


class LoadsAndReports(Member):
    """The loads and reports of one pipeline."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, cluster: Cluster, warehouse_uri: str, outputs: Outputs,
        notify: Callable[[str], None], lag: LagWatch | None = None,
    ) -> None:  # fmt: skip
        super().__init__(f"{pipeline.name}/loads")
        self._spark = spark
        self._pipeline = pipeline
        self._cluster = cluster
        self._warehouse = Warehouse(warehouse_uri)
        self._outputs = outputs
        self._notify = notify
        self._lag = lag
        self._positions: dict[TopicPartition, int] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._status = QueryStatus(name="loads")
        self._opened: dict[str, OpenTable] = {}
        self._reports: dict[str, ResultTable] = {}
        self._rest_until_s = 0.0

    # ------------------------------------------------------------------------------------------ in a run

    def start(self) -> None:
        self._error = None
        self._stop.clear()
        self._open()
        self._started_s = time.monotonic()
        self._status.restarts += 1 if self.failures else 0
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        self.has_started = True

    def stop(self, deadline_s: float) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(max(0.1, deadline_s - time.monotonic()))
        self._status.state = status.STOPPED

    def positions(self) -> Mapping[TopicPartition, int]:
        return dict(self._positions)

    def status(self) -> QueryStatus:
        one = self._status
        if one.state != status.STOPPED:
            if self._lag is not None:
                one.lag = self._lag.behind(self.positions())
            self._set_state(one)
        return one

    # ------------------------------------------------------------------------------------------ at once

    def once(self, since_ms: int | None = None) -> Mapping[str, tuple[int, int]]:
        """Loads new events and computes the reports once, from the day of `since_ms` on even if nothing changed.

        Returns (changed, deleted) rows by report.
        """
        self._open()
        with self._cluster.admin("penstock-pipelines") as admin:
            self._load(admin)
        day = None if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC).date().isoformat()
        changes = {each.name: self._report(each, day) for each in self._pipeline.reports}
        return {
            name: (each.changed.num_rows, each.deleted.num_rows) if each else (0, 0) for name, each in changes.items()
        }

    def _open(self) -> None:
        for kind in self._pipeline.loads:
            self._opened[kind.topic] = ensure_table(self._warehouse, kind, self._cluster)

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        every_s = self._pipeline.trigger.total_seconds()
        try:
            self._spark.sparkContext.setLocalProperty(POOL_PROPERTY, USUAL_POOL)
            with self._cluster.admin("penstock-pipelines") as admin:
                while not self._stop.is_set():
                    began_s = time.monotonic()
                    self.round(admin)
                    self._stop.wait(max(0.0, every_s - (time.monotonic() - began_s)))
        except Exception as error:  # noqa: BLE001 - the run reports it
            self._error = in_one_line(error, self.name)

    def round(self, admin: Admin) -> None:
        """Loads new events into every table, then computes the reports."""
        one, began_s = self._status, time.monotonic()
        landed, lag = self._load(admin)
        if self._stop.is_set():
            return
        if not lag or time.monotonic() >= self._rest_until_s:
            self._compute()
        if one.batch_id % _MAINTAIN_EVERY == _MAINTAIN_EVERY - 1:
            self._maintain()
        if self._stop.is_set():
            return
        seconds = time.monotonic() - began_s
        one.batch_id += 1
        one.batch_ms = int(seconds * 1000)
        one.rows_per_s = round(landed / seconds, 1)
        one.lag = lag

    def _load(self, admin: Admin) -> tuple[int, int]:
        """Returns how many records were loaded, and how many are left."""
        one = self._status
        landed = lag = 0
        for kind in self._pipeline.loads:
            if self._stop.is_set():
                break
            opened = self._opened[kind.topic]
            loader = Loader(
                opened, admin, self._cluster.bootstrap, self._runner(), options=dict(self._cluster.options)
            )  # fmt: skip
            report = loader.load_new(stop=self._stop)
            landed += report.counts.records
            one.input_rows_total += report.counts.records
            one.malformed_total += report.counts.dead
            state = loader.state()
            coverage = opened.coverage(state.bounds).covered
            for index, (begin, _) in state.bounds.items():
                self._positions[TopicPartition(kind.topic, index)] = coverage.get(index, (0, begin))[1]
            lag += sum(end - coverage.get(index, (0, begin))[1] for index, (begin, end) in state.bounds.items())
            if report.commits:
                one.last_commit_ms = time.time_ns() // 1_000_000
        return landed, lag

    def _compute(self) -> None:
        began_s = time.monotonic()
        for each in self._pipeline.reports:
            if self._stop.is_set():
                return
            self._report(each)
        ended_s = time.monotonic()
        self._rest_until_s = ended_s + _REST * (ended_s - began_s)

    def _runner(self) -> Runner:
        """In this process for a local master: a Spark task costs more than most loads here."""
        is_local = (self._spark.sparkContext.master or "").startswith("local")
        return LocalRunner(1) if is_local else SparkRunner(self._spark)

    def _maintain(self) -> None:
        for opened in self._opened.values():
            try:
                maintain(opened, self._runner(), time.time_ns() // 1_000_000)
            except PenstockError as error:
                self._notify(f"{opened.name}: maintenance failed and will be retried: {error.message}")

    # ------------------------------------------------------------------------------------------ reports

    def _report(self, report: Report, since_day: str | None = None) -> Change | None:
        """Computes a report for the changed days, and from `since_day` on; None if there are none."""
        tables = {kind.topic: self._opened[kind.topic] for kind in report.reads}
        kept = self._reports.get(report.name)
        if kept is None:
            empty = {topic: self._frame(opened, []) for topic, opened in tables.items()}
            shape = arrow_schema(report.define(empty))
            uri = self._warehouse.storage.uri
            kept = self._reports[report.name] = results.open_result_table(
                uri, report.name, report.key, report.time, shape
            )
        changed = [since_day, *(_first_changed(each, kept) for each in tables.values())]
        first = min((day for day in changed if day is not None), default=None)
        if first is None:
            return None
        versions = {f"{_SEEN}{topic}": opened.store.version for topic, opened in tables.items()}
        start = datetime.fromisoformat(first).replace(tzinfo=UTC)
        oldest = (start - report.lookback).date().isoformat()
        frames = {
            topic: self._frame(opened, [path for path, day in _paths(opened) if day is None or day >= oldest])
            for topic, opened in tables.items()
        }
        found = report.define(frames).toArrow()
        span = TimeSpan(start)
        found = found.cast(results.plain_schema(found.schema))
        found = found.filter(span.holds(found.column(report.time).combine_chunks()))
        change = kept.replace(found, span, notify=self._outputs.sender(report))
        kept.remember(versions)
        self._status.table_rows_changed += change.changed.num_rows + change.deleted.num_rows
        return change

    def _frame(self, opened: OpenTable, paths: list[str]) -> DataFrame:
        """The events of some files, with the columns of their kind."""
        names = [column.name for column in opened.table.columns]
        if paths:
            return self._spark.read.parquet(*paths).select(*names)
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(opened.store.schema(), prefer_timestamp_ntz=False)
        return self._spark.createDataFrame([], schema).select(*names)


def _paths(opened: OpenTable) -> list[tuple[str, str | None]]:
    """Files with their days."""
    root = opened.store.storage.absolute().uri.rstrip("/")
    return [(f"{root}/{file.path}", file.partition_values.get(DAY)) for file in opened.store.files()]


def _first_changed(opened: OpenTable, kept: ResultTable) -> str | None:
    """The first day of a loaded table that changed since the report was computed; None if none changed."""
    seen = kept.transaction(f"{_SEEN}{opened.table.topic}")
    version = opened.store.version
    if seen >= version:
        return None
    days = [day for number in range(seen + 1, version + 1) for day in _days_of(opened, number, seen)]
    return min(days, default=None)


def _days_of(opened: OpenTable, version: int, seen: int) -> list[str]:
    """The days of the files that a version changed; of all files if the log no longer has the version."""
    actions = None if seen < 0 else opened.store.actions(version)
    if actions is None:
        return [file.partition_values.get(DAY) or "0001-01-01" for file in opened.store.files()]
    files = [action[name] for action in actions for name in ("add", "remove") if name in action]
    changed = [one for one in files if one.get("dataChange", True)]
    return [(one.get("partitionValues") or {}).get(DAY) or "0001-01-01" for one in changed]


def ensure_table(warehouse: Warehouse, kind: Kind, cluster: Cluster) -> OpenTable:
    """The table of a kind of events, created if it does not exist."""
    if kind.topic in warehouse.names():
        return warehouse.open(kind.topic)
    declared: Mapping[str, Any] = {
        "name": kind.topic, "topic": kind.topic, "format": cluster.value_format, "event_time": "time",
        "partition_by": "day", "evolution": "none",
        **({"avro_schema": kind.table_avro} if cluster.value_format == "avro" else {"schema": kind.table_schema}),
    }  # fmt: skip
    table = from_mapping(declared)
    with cluster.admin("penstock-pipelines") as admin:
        state = log_state(admin, table.topic, table.isolation)
    return warehouse.create(table, state)
