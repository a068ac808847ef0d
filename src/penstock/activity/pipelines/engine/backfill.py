"""Computes pipelines again from the log, for a time range, with the same definitions.

A backfill replaces the rows from `since` up to `until` in one commit, and derived rows from `since` on, since later
rows may look back at them. It reads as much of the log around that time as the definition needs. Reports are computed
from the day of `since` on, from the tables of events, after new events were loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from penstock.activity.cluster import Cluster
from penstock.activity.pipelines.definition import Pipeline, Rows
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.loads import LoadsAndReports
from penstock.activity.pipelines.engine.micro_batch import Outputs, open_batch_work, update_follower
from penstock.activity.pipelines.engine.queries import MALFORMED, SEEN, arrow_schema, batch_frames
from penstock.activity.pipelines.engine.results import Change, TimeSpan
from penstock.activity.pipelines.engine.status import PipelineFolder
from penstock.activity.pipelines.errors import PipelineRuns, cause_of
from penstock.client.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass
class Backfilled:
    """Changed and deleted rows by table, and records read by topic."""

    changed: dict[str, int] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    malformed: dict[str, int] = field(default_factory=dict)

    def note(self, table: str, change: Change) -> None:
        self.changed[table] = change.changed.num_rows
        self.deleted[table] = change.deleted.num_rows


def backfill(
    spark: SparkSession,
    pipeline: Pipeline,
    cluster: Cluster,
    warehouse_uri: str,
    since_ms: int | None = None,
    until_ms: int | None = None,
    *,
    beside_stream: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Backfilled:
    """Computes a pipeline again. Raises PipelineRuns if it runs as a stream, unless `beside_stream`."""
    check_span(since_ms, until_ms)
    if not beside_stream:
        check_idle(pipeline, warehouse_uri)
    done = Backfilled()
    outputs = Outputs(cluster)
    try:
        for rows in pipeline.rows:
            notify(f"{rows.name}: computing")
            _backfill_rows(spark, pipeline, rows, cluster, warehouse_uri, outputs, (since_ms, until_ms), done)
        if pipeline.loads:
            notify(f"{pipeline.name}: loading new events and computing reports")
            by_report = LoadsAndReports(spark, pipeline, cluster, warehouse_uri, outputs, notify).once(since_ms)
            done.changed |= {name: changed for name, (changed, _) in by_report.items()}
            done.deleted |= {name: deleted for name, (_, deleted) in by_report.items()}
    finally:
        outputs.close()
    return done


def check_span(since_ms: int | None, until_ms: int | None) -> None:
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ConfigError("the range ends before it starts", hint="--since must be before --until")


def check_idle(pipeline: Pipeline, warehouse_uri: str) -> None:
    running = PipelineFolder(warehouse_uri, pipeline.name).read()
    if running is not None and running.is_alive:
        raise PipelineRuns(
            f"{pipeline.name} is running as a stream (process {running.pid} on {running.host})",
            hint=f"Stop it with `penstock pipeline stop {pipeline.name}`, or use --beside-stream",
        )


def _backfill_rows(
    spark: SparkSession, pipeline: Pipeline, rows: Rows, cluster: Cluster, warehouse_uri: str, outputs: Outputs,
    asked: tuple[int | None, int | None], done: Backfilled,
) -> None:  # fmt: skip
    since_ms, until_ms = asked
    found, records, malformed = computed(spark, rows, cluster, since_ms, until_ms)
    done.records |= records
    done.malformed |= malformed
    work = open_batch_work(pipeline, rows, found.schema, warehouse_uri, outputs, may_create=True)
    span = TimeSpan(_moment(since_ms), _moment(until_ms))
    done.note(rows.name, work.table.replace(found, span, notify=outputs.sender(rows)))
    for follower in work.followers:
        sender = outputs.sender(follower.derived)
        change = update_follower(follower, work.table, TimeSpan(span.start), None, sender)
        done.note(follower.derived.name, change)


def computed(
    spark: SparkSession, rows: Rows, cluster: Cluster, since_ms: int | None = None, until_ms: int | None = None
) -> tuple[pa.Table, Mapping[str, int], Mapping[str, int]]:
    """The rows of a time range, and the counts of read and malformed records by topic."""
    before, after = (None if each is None else each // timedelta(milliseconds=1) for each in (rows.before, rows.after))
    first_ms = None if since_ms is None or before is None else since_ms - before
    last_ms = None if until_ms is None or after is None else until_ms + after
    frames, observed = batch_frames(spark, cluster, rows, first_ms, last_ms)
    frame = rows.define(frames)
    try:
        found = frame.toArrow()
    except Exception as error:
        if isinstance(error, PenstockError):
            raise
        raise cause_of(str(error), rows.name) from error
    found = found.cast(results.plain_schema(arrow_schema(frame)))
    inside = TimeSpan(_moment(since_ms), _moment(until_ms))
    counts = {topic: each.get for topic, each in observed.items()}
    return (
        found.filter(inside.holds(found.column(rows.time).combine_chunks())),
        {topic: int(each[SEEN]) for topic, each in counts.items()},
        {topic: int(each[MALFORMED]) for topic, each in counts.items()},
    )


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(time_ms / 1000, UTC)
