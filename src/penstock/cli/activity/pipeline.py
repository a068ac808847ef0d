"""`penstock pipeline`: run pipelines over the site's activity, as streams or once over a part of the log.

The same command continues where the last one ended, however it ended. Two options move it to a cluster:
--bootstrap-server names any Kafka cluster, --master any Spark master.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.connection import Cluster, Rejected, client_errors_reported, cluster_command, command_error_for
from penstock.cli.options import watch_option
from penstock.cli.output import JSON, CommandError, Output, format_option, show_table
from penstock.cli.spark.warehouse import warehouse_option
from penstock.cli.values import Timestamp
from penstock.runtime.quantities import counted, duration_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.activity.cluster import Cluster as EventCluster
    from penstock.activity.pipelines.definition import Pipeline
    from penstock.activity.pipelines.engine.backfill import Backfilled
    from penstock.activity.pipelines.engine.runner import PipelinesRun
    from penstock.activity.pipelines.engine.session import FastSession
    from penstock.activity.pipelines.engine.status import PipelineStatus

_STOP_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.2
_STATUS_EVERY_S: Final = 30.0


@click.group(short_help="Run the Spark pipelines of the live example.")
def pipeline() -> None:
    """Run the Spark pipelines of the live example."""


@pipeline.command("list")
@format_option
def list_(output_format: str) -> None:
    """List the pipelines, the topics they read, and the tables and topics they write."""
    from penstock.activity.pipelines import definition

    with client_errors_reported():
        found = definition.selected_pipelines(())
    rows = [
        {
            "name": one.name,
            "summary": one.summary,
            "reads": [kind.topic for kind in one.reads],
            "tables": [*(table.name for table in one.tables), *(kind.topic for kind in one.loads)],
            "topics": list(one.output_topics),
        }
        for one in found
    ]
    output = Output()
    if output_format == JSON:
        output.json(rows, indent=2)
        return
    titles = ("PIPELINE", "READS", "TABLES", "TOPICS", "SUMMARY")
    names = ("name", "reads", "tables", "topics", "summary")
    show_table(output, titles, [[row[name] for name in names] for row in rows])


@pipeline.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--since", "since_ms", type=Timestamp(), help="Run once over the log, from this event time.")
@click.option("--until", "until_ms", type=Timestamp(), help="Run once over the log, up to this event time.")
@click.option("--beside-stream", is_flag=True, help="Allow --since and --until while the pipeline runs as a stream.")
@click.option(
    "--from-start", is_flag=True, help="Remove the tables of the pipelines and start at the beginning of the log."
)
@click.option("--master", metavar="URL", help="Spark master.  [default: Spark's own, else local[*]]")
@click.option(
    "--value-format", type=click.Choice(["json", "avro"]), default="json", show_default=True,
    help="Encoding of the events' values.",
)  # fmt: skip
@warehouse_option
@format_option
@cluster_command
def run(
    cluster: Cluster,
    names: tuple[str, ...],
    since_ms: int | None,
    until_ms: int | None,
    beside_stream: bool,
    from_start: bool,
    master: str | None,
    value_format: Any,
    warehouse_uri: str,
    output_format: str,
) -> None:
    """Run pipelines, by default all: as streams until Ctrl-C, or with --since or --until once over the log.

    Streams continue where they stopped, and no event is counted twice. Over the log, exactly the windows of that time
    are recomputed and replaced, each table in one commit.

    \b
    penstock pipeline run
    penstock pipeline run operations security
    penstock pipeline run search --since 2026-11-14T00:00Z --until 2026-11-15T00:00Z
    penstock pipeline run --master spark://host:7077 -b kafka-1:9092 -w s3://bucket/warehouse
    penstock pipeline run -b kafka-1:9093 --command-config tls.properties

    \b
    Exit code: 2  invalid options
               3  no broker could be reached
               4  rejected, or a pipeline has failed; its tables are consistent
    """
    from penstock.activity.pipelines.engine import memory

    is_batch = since_ms is not None or until_ms is not None
    if from_start and is_batch:
        raise CommandError("--from-start excludes --since and --until.", "Use one of them.")
    if beside_stream and not is_batch:
        raise CommandError("--beside-stream needs --since or --until.", "Add one of them, or omit it.")
    with _session(master) as session:
        memory.limit_allocators()  # before anything below loads Arrow
        _check_packages(value_format)
        from penstock.activity.pipelines import definition
        from penstock.activity.pipelines.engine.backfill import check_idle, check_span
        from penstock.cli.spark.warehouse import event_cluster

        chosen = definition.selected_pipelines(names)
        if not beside_stream:
            for one in chosen:
                check_idle(one, warehouse_uri)
        source = event_cluster(cluster, value_format)
        if is_batch:
            check_span(since_ms, until_ms)
            asked = since_ms, until_ms
            _batch(session.session(), chosen, source, warehouse_uri, asked, beside_stream, output_format)
            return
        if from_start:
            _forget(chosen, warehouse_uri)
        _stream(session, chosen, source, warehouse_uri)


def _check_packages(value_format: str) -> None:
    """Raise MissingDependency before anything starts."""
    from penstock.client.serializers.base import load_optional

    for package in ("pyarrow", "deltalake", "pyspark"):
        load_optional(package, package, "spark", "a pipeline")
    if value_format == "avro":
        load_optional("fastavro", "fastavro", "avro", "--value-format avro")


@contextmanager
def _session(master: str | None) -> Iterator[FastSession]:
    """A session that starts while this process imports what the pipelines need."""
    from penstock.activity.pipelines.engine.session import FastSession

    session = FastSession(master)
    session.start()
    try:
        yield session
    finally:
        session.close()


def _forget(chosen: Sequence[Pipeline], warehouse_uri: str) -> None:
    """Remove checkpoints first, then tables: after a crash in between, the tables are recomputed."""
    from penstock.activity.pipelines.engine.status import PipelineFolder
    from penstock.spark.tables.delta import Storage

    for one in chosen:
        PipelineFolder(warehouse_uri, one.name).forget()
        for table in one.tables:
            Storage(warehouse_uri).child(table.name).remove()


def _batch(
    spark: SparkSession, chosen: Sequence[Pipeline], source: EventCluster, warehouse_uri: str,
    asked: tuple[int | None, int | None], beside_stream: bool, output_format: str,
) -> None:  # fmt: skip
    from penstock.activity.pipelines.engine.backfill import backfill

    reports: dict[str, Backfilled] = {}
    began_s = time.monotonic()
    for one in chosen:
        reports[one.name] = backfill(
            spark, one, source, warehouse_uri, *asked, beside_stream=beside_stream, notify=_say
        )
    seconds = round(time.monotonic() - began_s, 3)
    output = Output()
    if output_format == JSON:
        output.json({"pipelines": {name: vars(done) for name, done in reports.items()}, "seconds": seconds}, indent=2)
        return
    for name, done in reports.items():
        records = counted(sum(done.records.values()), "record")
        malformed = sum(done.malformed.values())
        output.line(f"{name}: {records} read{f', {malformed:,} malformed' if malformed else ''}")
        for table, changed in done.changed.items():
            output.line(f"  {table}: {counted(changed, 'row')} new or changed, {done.deleted[table]:,} removed")
    output.line(f"Done in {duration_text(seconds)}")


# ---------------------------------------------------------------------------------------------- streams


def _stream(session: FastSession, chosen: Sequence[Pipeline], source: EventCluster, warehouse_uri: str) -> None:
    from penstock.activity.pipelines.engine.runner import PipelinesRun

    began_s = time.monotonic()
    running = PipelinesRun(
        session.session(), chosen, source, warehouse_uri, notify=_say, in_turn=session.has_forked_workers
    )  # fmt: skip
    try:
        with _stopped_by_signals(running):
            running.start()
            _say(f"{counted(len(chosen), 'pipeline')} started in {duration_text(time.monotonic() - began_s)}")
            _wait(running, session)
    finally:
        running.stop()
    if running.failure is not None:
        raise command_error_for(running.failure)


def _wait(running: PipelinesRun, session: FastSession) -> None:
    began_s = told_s = time.monotonic()
    while not running.wait(_LOOK_S):
        now_s = time.monotonic()
        session.keep_archive(now_s - began_s)
        if now_s - told_s >= _STATUS_EVERY_S:
            told_s = now_s
            _say("; ".join(_line(one) for one in running.status()))


def _line(one: PipelineStatus) -> str:
    rows = sum(query.input_rows_total for query in one.queries)
    behind = "lag unknown" if one.lag < 0 else f"{one.lag:,} behind"
    return f"{one.name}: {one.state}, {rows:,} read, {behind}"


@contextmanager
def _stopped_by_signals(running: PipelinesRun) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops the pipelines, the second ends the process."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        _say("Stopping. Ctrl-C again stops at once.")
        running.request_stop()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    click.echo(line, err=True)


# ---------------------------------------------------------------------------------------------- status and stop


@pipeline.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@warehouse_option
@watch_option
@format_option
def status(names: tuple[str, ...], warehouse_uri: str, output_format: str) -> None:
    """Show the pipelines of a warehouse: state, rate, lag.

    \b
    Exit code: 1  a pipeline has failed, or its process is gone
    """
    from penstock.activity.pipelines.engine import status as statuses

    _check_names(names)
    found = statuses.read_all(warehouse_uri, names or None)
    output = Output()
    if output_format == JSON:
        output.json([one.to_json() for one in found], indent=2)
    elif not found:
        output.line("No pipeline has run in this warehouse.")
    else:
        _show(output, found)
    if any(_state(one) in ("failed", "gone") for one in found):
        click.get_current_context().exit(1)


def _show(output: Output, found: Sequence[PipelineStatus]) -> None:
    titles = (
        "PIPELINE",
        "QUERY",
        "STATE",
        "BATCH",
        "MS",
        "ROWS/S",
        "ROWS",
        "MALFORMED",
        "LAG",
        "LAST COMMIT",
        "RESTARTS",
    )
    rows: list[tuple[object, ...]] = []
    for one in found:
        for query in one.queries:
            state = query.state if one.is_alive else _state(one)
            commit = (
                time.strftime("%H:%M:%S", time.localtime(query.last_commit_ms / 1000)) if query.last_commit_ms else ""
            )
            rows.append(
                (
                    one.name, query.name, state, query.batch_id if query.batch_id >= 0 else "", query.batch_ms,
                    query.rows_per_s, f"{query.input_rows_total:,}", query.malformed_total,
                    query.lag if query.lag >= 0 else "", commit, query.restarts,
                )
            )  # fmt: skip
        if not one.queries:
            rows.append((one.name, "", _state(one), *[""] * 8))
    show_table(output, titles, rows)
    for one in found:
        for message in dict.fromkeys([one.message, *(query.message for query in one.queries)]):
            if message:
                output.line(f"{one.name}: {message}")


def _state(one: PipelineStatus) -> str:
    return "gone" if not one.has_ended and not one.is_alive else one.state


@pipeline.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@warehouse_option
def stop(names: tuple[str, ...], warehouse_uri: str) -> None:
    """Stop running pipelines, by default all, and wait until they have stopped."""
    from penstock.activity.pipelines.engine import status as statuses
    from penstock.activity.pipelines.engine.status import PipelineFolder

    _check_names(names)
    running = [one.name for one in statuses.read_all(warehouse_uri, names or None) if one.is_alive]
    output = Output()
    for name in names:
        if name not in running:
            output.line(f"{name} is not running")
    with client_errors_reported():
        for name in running:
            PipelineFolder(warehouse_uri, name).request_stop()
    left = set(running)
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while left and time.monotonic() < deadline_s:
        for one in statuses.read_all(warehouse_uri, sorted(left)):
            if not one.is_alive:
                left.discard(one.name)
                output.line(f"{one.name} stopped")
        time.sleep(_LOOK_S)
    if left:
        raise Rejected(
            f"{', '.join(sorted(left))} did not stop within {_STOP_TIMEOUT_S:.0f} s.",
            "`penstock pipeline status --format json` shows the process.",
        )
    if not running and not names:
        output.line("No pipeline is running.")


def _check_names(names: tuple[str, ...]) -> None:
    from penstock.activity.pipelines import definition

    with client_errors_reported():
        for name in names:
            definition.find_pipeline(name)
