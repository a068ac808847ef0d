"""`penstock load`: load a topic into its table.

The same command can be repeated safely. It begins where the table ends; with --since or --offsets it replaces that
range in one commit. However the last load ended, there is no gap and no duplicate.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.output import JSON, CommandError, Output, format_option
from penstock.cli.spark.warehouse import (
    engine_options,
    open_warehouse,
    reader_properties,
    task_runner,
    warehouse_option,
)
from penstock.cli.values import Duration, Timestamp
from penstock.runtime.quantities import counted, duration_text

if TYPE_CHECKING:
    from penstock.client.errors import PenstockError
    from penstock.spark.tables import Loader, LoadReport
    from penstock.spark.tables.delta import CommitNote
    from penstock.spark.tables.load_plan import Span
    from penstock.spark.tables.runner import Runner


@click.command(short_help="Load a topic into its table.")
@click.argument("table", metavar="TABLE")
@click.option("--since", "since_ms", type=Timestamp(), help="Load again from this time of the log.")
@click.option("--offsets", metavar="P:START[-END],...", help="Load these offsets again: 0:100-200,1:50.")
@click.option("--until", "until_ms", type=Timestamp(), help="Stop at this time of the log.")
@click.option("--follow", is_flag=True, help="Keep loading new records until Ctrl-C.")
@click.option(
    "--interval", "interval_ms", type=Duration(), default="10s", show_default=True, help="Interval of --follow."
)
@click.option(
    "--commit-records", type=click.IntRange(min=1), default=10_000_000, show_default=True, metavar="N",
    help="Maximum records per commit.",
)  # fmt: skip
@click.option(
    "--task-records", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="N",
    help="Maximum records per task.",
)  # fmt: skip
@click.option("--no-maintenance", is_flag=True, help="Do not compact small files or remove old days and versions.")
@engine_options
@warehouse_option
@format_option
@cluster_command
def load(
    cluster: Cluster,
    table: str,
    since_ms: int | None,
    offsets: str | None,
    until_ms: int | None,
    follow: bool,
    interval_ms: int,
    commit_records: int,
    task_records: int,
    no_maintenance: bool,
    local: bool,
    spark: bool,
    master: str | None,
    warehouse_uri: str,
    output_format: str,
) -> None:
    """Load new records of a topic into TABLE.

    With --since or --offsets that range is loaded again: its rows are replaced in one atomic commit. The same command
    continues a load that ended early for any reason.

    Up to 4 million records or 512 MB are loaded in this process, more by Spark. If nothing is new, nothing starts.

    \b
    penstock load views
    penstock load views --follow --interval 30s
    penstock load views --since 2026-11-14T00:00Z --until 2026-11-15T00:00Z
    penstock load views --offsets 0:1000-2000

    \b
    Exit code: 2  invalid options
               3  no broker could be reached
               4  rejected, or the table does not exist; the table is as the last reported commit left it
    """
    if since_ms is not None and offsets is not None:
        raise CommandError("--since and --offsets exclude each other.", "Use one of them.")
    if follow and (offsets is not None or until_ms is not None):
        raise CommandError("--follow excludes --offsets and --until.", "Omit them, or --follow.")
    from penstock.spark.tables import Limits, Loader

    opened = open_warehouse(warehouse_uri).open(table)
    began = time.monotonic()
    progress = _LoadProgress()
    with (
        cluster.admin() as admin,
        task_runner(f"penstock load {table}", local=local, spark=spark, master=master) as runner,
    ):
        loader = Loader(
            opened, admin, cluster.servers, runner, limits=Limits(commit_records, task_records),
            options=reader_properties(cluster), progress=progress.commit,
        )  # fmt: skip
        if follow:
            _follow(loader, runner, interval_ms, progress, since_ms, maintained=not no_maintenance)
            return
        report = _once(loader, since_ms, offsets, until_ms)
        if not no_maintenance:
            _maintain(loader, runner)
    _show(Output(), output_format, table, report, time.monotonic() - began)


def _once(loader: Loader, since_ms: int | None, offsets: str | None, until_ms: int | None) -> LoadReport:
    from penstock.spark.tables.load_plan import parse_offsets

    if offsets is not None:
        asked = parse_offsets(offsets, loader.state().bounds)
        ends = [part for part in offsets.split(",") if "-" in part]
        return loader.load_range(asked, bounded=bool(ends) or until_ms is not None)
    if since_ms is not None:
        return loader.load_range(loader.since(since_ms, until_ms), bounded=until_ms is not None)
    if until_ms is not None:
        return loader.load_new(until={span.partition: span.start for span in loader.since(until_ms)})
    return loader.load_new()


def _follow(
    loader: Loader, runner: Runner, interval_ms: int, progress: _LoadProgress, since_ms: int | None, *, maintained: bool
) -> None:
    from penstock.spark.tables.loader import follow

    stop = threading.Event()
    with _stopped_by_signals(stop):
        if since_ms is not None:
            loader.load_range(loader.since(since_ms), bounded=False)
        follow(
            loader, stop, interval_s=interval_ms / 1000, notify=progress.trouble,
            after_round=(lambda _: _maintain(loader, runner)) if maintained else None,
        )  # fmt: skip


def _maintain(loader: Loader, runner: Runner) -> None:
    """Maintenance that is due. Its failure does not fail the load."""
    from penstock.client.errors import PenstockError
    from penstock.spark.tables.maintenance import maintain

    try:
        maintain(loader.opened, runner, time.time_ns() // 1_000_000)
    except PenstockError as error:
        click.echo(f"Maintenance postponed: {error}", err=True)


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM stops after the current commit, the second immediately."""

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        click.echo("Stopping after this commit. Ctrl-C again stops at once.", err=True)
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _LoadProgress:
    """Progress on standard error."""

    def commit(self, note: CommitNote, version: int) -> None:
        click.echo(f"Version {version}: {_sentence(note.counts)} ({spans_text(note.spans)})", err=True)

    def trouble(self, error: PenstockError, wait_s: float) -> None:
        click.echo(f"{error}. Retrying in {duration_text(wait_s)}", err=True)


def _sentence(counts: Any) -> str:
    parts = [f"{counted(counts.records, 'record')} read, {counts.landed:,} landed"]
    parts += [f"{getattr(counts, name):,} {name}" for name in ("dead", "dropped", "deleted") if getattr(counts, name)]
    return ", ".join(parts)


def spans_text(spans: Sequence[Span], most: int = 8) -> str:
    """0:100-200, 1:50-80, ..."""
    shown = ", ".join(map(str, spans[:most]))
    return f"{shown}, ... ({len(spans)} partitions)" if len(spans) > most else shown or "nothing"


def _show(output: Output, output_format: str, table: str, report: LoadReport, seconds: float) -> None:
    from penstock.spark.tables.load_plan import spans_to_json

    if output_format == JSON:
        output.json(
            {
                "table": table,
                "version": report.version,
                "commits": report.commits,
                "counts": dict(vars(report.counts)),
                "loaded": spans_to_json(report.spans),
                "replaced": spans_to_json(report.replaced),
                "lost": spans_to_json(report.lost),
                "addedColumns": report.added_columns,
                "seconds": round(seconds, 3),
            },
            indent=2,
        )
        return
    if not report.commits:
        output.line(f"{table}: nothing new")
    else:
        rate = report.counts.records / seconds if seconds else 0.0
        commits = counted(report.commits, "commit")
        output.line(f"{table}: {_sentence(report.counts)}; {commits}, {duration_text(seconds)}, {rate:,.0f} records/s")
    for name, spans in (("Replaced", report.replaced), ("Loaded", report.spans), ("Lost", report.lost)):
        if spans:
            output.line(f"{name}: {spans_text(spans)}")
    if report.added_columns:
        output.line(f"New or wider columns: {', '.join(report.added_columns)}")
    if report.counts.dead:
        click.echo(f"`penstock table dead {table}` shows the records that did not fit.", err=True)
