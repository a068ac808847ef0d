"""`penstock table`: topics as tables of a warehouse. `penstock load` fills them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Cluster, cluster_command
from penstock.cli.options import confirmation_options, watch_option
from penstock.cli.output import JSON, CommandError, Output, confirm, format_option, printable, show_table
from penstock.cli.spark.warehouse import (
    engine_options,
    open_warehouse,
    reader_properties,
    task_runner,
    warehouse_option,
)
from penstock.cli.values import Assignment, Timestamp
from penstock.runtime.quantities import counted, human_bytes, time_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.spark.tables import OpenTable, Table
    from penstock.spark.tables.audit import Audit
    from penstock.spark.tables.delta import Store
    from penstock.spark.tables.status import TableStatus

_EXIT_UNSOUND = 1
_DAY_MS = 86_400_000
_BATCH = 1_000


@click.group()
def table() -> None:
    """Manage tables loaded from topics. `penstock load` fills them."""


@table.command(short_help="Create a table for a topic.")
@click.argument("declared", metavar="FILE|NAME")
@click.option("-t", "--topic", help="Topic of a table given by NAME.  [default: the name]")
@click.option(
    "-c", "--set", "settings", type=Assignment(), multiple=True, help="A setting; overrides the file. Can be repeated."
)
@click.option("--update", is_flag=True, help="Apply the declaration to an existing table: add or widen columns.")
@click.option("--if-not-exists", is_flag=True, help="Do not fail if the table already exists.")
@warehouse_option
@format_option
@cluster_command
def create(
    cluster: Cluster,
    declared: str,
    topic: str | None,
    settings: tuple[tuple[str, str], ...],
    update: bool,
    if_not_exists: bool,
    warehouse_uri: str,
    output_format: str,
) -> None:
    """Create a table from a declaration in FILE (TOML), or a table NAME with columns inferred from the records.

    \b
    penstock table create views.toml
    penstock table create views --set partition_by=hour --set event_time=at --set "schema=user string, at timestamp_ms"
    """
    from penstock.spark.tables.warehouse import redeclare

    made = _declaration(declared, topic, dict(settings))
    warehouse = open_warehouse(warehouse_uri)
    there = made.name in warehouse.names()
    added: list[str] = []
    if there and update:
        opened = warehouse.open(made.name)
        added = redeclare(opened, made)
    elif there and if_not_exists:
        opened = warehouse.open(made.name)
    else:
        opened = _created(cluster, warehouse_uri, made)
    output = Output()
    if output_format == JSON:
        _describe_json(output, opened)
        return
    word = "updated" if there and update else "exists" if there else "made"
    output.line(f"{made.name}: {word}, {counted(len(opened.table.columns), 'column')}, in {opened.store.storage.uri}")
    if added:
        output.line(f"New or wider columns: {', '.join(added)}")


def _created(cluster: Cluster, warehouse_uri: str, made: Table) -> OpenTable:
    from penstock.spark.tables.load_plan import log_state
    from penstock.spark.tables.loader import reader_options
    from penstock.spark.tables.schema_evolution import sample_columns

    reader = reader_options(cluster.servers, made.topic, {**made.options, **reader_properties(cluster)})
    with cluster.admin() as admin:
        state = log_state(admin, made.topic, made.isolation)
    return open_warehouse(warehouse_uri).create(
        made, state, lambda: sample_columns(made, state, cluster.servers, reader)
    )


def _declaration(declared: str, topic: str | None, settings: dict[str, str]) -> Table:
    from penstock.spark.tables.declaration import from_mapping, read_toml

    is_file = declared.endswith(".toml") or "/" in declared
    document: dict[str, Any] = dict(read_toml(declared)) if is_file else {"name": declared, "topic": topic or declared}
    if topic is not None:
        document["topic"] = topic
    for name, text in settings.items():
        document[name] = int(text) if text.isdigit() and name != "start" else text
    if isinstance(document.get("key"), str):
        document["key"] = [part.strip() for part in document["key"].split(",")]
    return from_mapping(document, folder=Path(declared).parent if is_file else None)


@table.command("list", short_help="List tables.")
@warehouse_option
@watch_option
@format_option
@cluster_command
def list_(cluster: Cluster, warehouse_uri: str, output_format: str) -> None:
    """List the tables of the warehouse."""
    from penstock.spark.tables.warehouse import described

    warehouse = open_warehouse(warehouse_uri)
    found = [described(warehouse.open(name)) for name in warehouse.names()]
    output = Output()
    if output_format == JSON:
        output.json({"tables": found}, indent=2)
        return
    rows = [
        (one["name"], one["topic"], one["format"], one["mode"], one["rows"], one["dead"], one["files"], one["version"])
        for one in found
    ]
    show_table(output, ["TABLE", "TOPIC", "FORMAT", "MODE", "ROWS", "DEAD", "FILES", "VERSION"], rows)
    if not rows:
        output.nothing(f"No tables in {printable(warehouse_uri)}.")


@table.command(short_help="Show a table: columns, settings, progress.")
@click.argument("name", metavar="TABLE")
@watch_option
@warehouse_option
@format_option
@cluster_command
def describe(cluster: Cluster, name: str, warehouse_uri: str, output_format: str) -> None:
    """Show a table: columns, settings, size, and the loaded offset of each partition."""
    opened = open_warehouse(warehouse_uri).open(name)
    output = Output()
    if output_format == JSON:
        _describe_json(output, opened)
        return
    from penstock.spark.tables.warehouse import described

    facts = described(opened)
    for label, value in (
        ("Table", facts["name"]), ("Topic", facts["topic"]), ("Format", facts["format"]), ("Mode", facts["mode"]),
        ("Partitioned by", f"{facts['partitionBy']} of {facts['eventTime']}"), ("Late records", facts["late"]),
        ("Records that do not fit", facts["onError"]), ("Evolution", facts["evolution"]), ("Version", facts["version"]),
        ("Rows", f"{facts['rows']:,}"), ("Dead letters", f"{facts['dead']:,}"),
        ("Files", f"{facts['files']:,}, {human_bytes(opened_bytes(opened))}"), ("Folder", facts["uri"]),
    ):  # fmt: skip
        output.line(f"{label + ':':<26}{value}")
    output.line()
    show_table(output, ["COLUMN", "TYPE"], [str(column).split(" ", 1) for column in opened.table.columns])
    output.line()
    show_table(output, ["PARTITION", "FIRST", "NEXT"], _position_rows(opened))


def opened_bytes(opened: OpenTable) -> int:
    return sum(file.size for file in opened.store.files())


def _position_rows(opened: OpenTable) -> list[tuple[int, int, int]]:
    """The loaded offsets; partitions are numbered without gaps."""
    rows: list[tuple[int, int, int]] = []
    while True:
        coverage = opened.coverage([len(rows)])
        if not coverage.covered:
            return rows
        rows.append((len(rows), *coverage.covered[len(rows)]))


def _describe_json(output: Output, opened: OpenTable) -> None:
    from penstock.spark.tables.warehouse import described

    offsets = {str(partition): {"first": first, "next": after} for partition, first, after in _position_rows(opened)}
    output.json({**described(opened), "offsets": offsets}, indent=2)


@table.command(short_help="Show until when tables are complete, and their dead letters.")
@click.argument("names", metavar="[TABLE]...", nargs=-1)
@click.option("--since", "since_ms", type=Timestamp(), help="Audit from the hour of this time.  [default: a day ago]")
@watch_option
@warehouse_option
@format_option
@cluster_command
def status(
    cluster: Cluster, names: tuple[str, ...], since_ms: int | None, warehouse_uri: str, output_format: str
) -> None:
    """Show tables, by default all: until when they are complete, rows, dead letters with reasons, the last load.

    Each table is audited as by `penstock table audit --local`.

    \b
    Exit code: 1  a table misses records or has duplicates, or cannot be read
    """
    from penstock.spark.tables.runner import LocalRunner
    from penstock.spark.tables.status import audit_with, documents, status_of

    warehouse = open_warehouse(warehouse_uri)
    now_ms = time.time_ns() // 1_000_000
    since_ms = now_ms - _DAY_MS if since_ms is None else since_ms
    with cluster.admin() as admin:
        audit = audit_with(admin, cluster.servers, LocalRunner(), dict(reader_properties(cluster)), since_ms, now_ms)
        found = [status_of(warehouse, name, audit) for name in names or warehouse.names()]
    output = Output()
    if output_format == JSON:
        output.json({"time": now_ms, "tables": documents(found)}, indent=2)
    else:
        _show_status(output, found)
    output.flush()
    if any(one.error or (one.audit is not None and not one.audit.is_sound) for one in found):
        click.get_current_context().exit(_EXIT_UNSOUND)


def _show_status(output: Output, found: Sequence[TableStatus]) -> None:
    rows = [
        (
            one.name, "-" if one.audit is None else time_text(one.audit.complete_until_ms), one.rows, one.dead,
            "-" if one.audit is None else one.audit.total("waiting"),
            "-" if one.audit is None else one.audit.total("missing"),
            "-" if one.audit is None else one.audit.total("surplus"),
            "-" if one.last_load is None else time_text(one.last_load.time_ms),
        )
        for one in found
    ]  # fmt: skip
    titles = ["TABLE", "COMPLETE UNTIL", "ROWS", "DEAD", "WAITING", "MISSING", "SURPLUS", "LAST LOAD"]
    show_table(output, titles, rows)
    if not rows:
        output.nothing("No tables in this warehouse.")
    for one in found:
        if one.error:
            output.line(f"{one.name}: {printable(one.error)}")
        for reason, count in one.reasons:
            output.line(f"{one.name}: {counted(count, 'dead letter')}: {printable(reason)}")


@table.command(short_help="Drop a table and its files.")
@click.argument("name", metavar="TABLE")
@confirmation_options
@warehouse_option
@format_option
@cluster_command
def drop(cluster: Cluster, name: str, dry_run: bool, execute: bool, warehouse_uri: str, output_format: str) -> None:
    """Drop a table, its dead letters and all their files. The topic is not changed."""
    warehouse = open_warehouse(warehouse_uri)
    opened = warehouse.open(name)
    if not dry_run and not execute:
        if not sys.stdin.isatty():
            raise CommandError(
                f"{name} is not dropped without confirmation.", "Add --yes to drop it with all its files."
            )
        rows = sum(file.rows or 0 for file in opened.store.files())
        confirm(f"Drop {name} with {counted(rows, 'row')}?", yes=False)
    if not dry_run:
        warehouse.drop(name)
    output = Output()
    if output_format == JSON:
        output.json({"dropped": name, "dryRun": dry_run})
    else:
        output.line(f"{name} would be dropped (dry run)." if dry_run else f"{name}: dropped")


@table.command(short_help="Show records that did not fit.")
@click.argument("name", metavar="TABLE")
@click.option("--max", "most", type=click.IntRange(min=1), default=20, show_default=True, metavar="N")
@click.option("--reason", metavar="TEXT", help="Only those with this reason.")
@click.option("--value-bytes", type=click.IntRange(min=0), metavar="N", help="Cut values in JSON after N bytes.")
@warehouse_option
@format_option
@cluster_command
def dead(
    cluster: Cluster, name: str, most: int, reason: str | None, value_bytes: int | None, warehouse_uri: str,
    output_format: str,
) -> None:  # fmt: skip
    """Show dead letters, newest first: their offsets, and why they are not in the table."""
    opened = open_warehouse(warehouse_uri).open(name)
    # Values may be large, and there may be millions: they are read only of the rows that are shown.
    rows = opened.dead.read(["_partition", "_offset", "_timestamp", "reason", "dropped"])
    if reason is not None:
        import pyarrow.compute as pc

        rows = rows.filter(pc.equal(rows.column("reason"), reason))
    newest = rows.sort_by([("_timestamp", "descending"), ("_offset", "descending")]).slice(0, most).to_pylist()
    output = Output()
    if output_format == JSON:
        values = _values_of(opened.dead, newest)
        documents = [
            {
                "partition": one["_partition"],
                "offset": one["_offset"],
                "timestamp": round(one["_timestamp"].timestamp() * 1000),
                "reason": one["reason"],
                "dropped": one["dropped"],
                "bytes": None if value is None else len(value),
                "value": None if value is None else _text(value[:value_bytes]),
            }
            for one in newest
            for value in [values.get((one["_partition"], one["_offset"]))]
        ]
        output.json({"table": name, "count": rows.num_rows, "dead": documents}, indent=2)
        return
    show_table(
        output, ["PARTITION", "OFFSET", "TIME", "REASON"],
        [(one["_partition"], one["_offset"], time_text(round(one["_timestamp"].timestamp() * 1000)), one["reason"])
         for one in newest],
    )  # fmt: skip
    if rows.num_rows > most:
        click.echo(f"{rows.num_rows - most:,} more.", err=True)


def _values_of(store: Store, rows: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], bytes | None]:
    """The values of these dead letters, by partition and offset."""
    import pyarrow.compute as pc

    by_partition: dict[int, list[int]] = {}
    for row in rows:
        by_partition.setdefault(row["_partition"], []).append(row["_offset"])
    found: dict[tuple[int, int], bytes | None] = {}
    for partition, offsets in by_partition.items():
        wanted = (pc.field("_partition") == partition) & pc.field("_offset").isin(offsets)
        batches = store.dataset().scanner(columns=["_offset", "value"], filter=wanted, batch_size=_BATCH)
        for batch in batches.to_batches():
            found |= {(partition, one["_offset"]): one["value"] for one in batch.to_pylist()}
    return found


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


@table.command("replay-dead", short_help="Try dead letters again.")
@click.argument("name", metavar="TABLE")
@engine_options
@warehouse_option
@format_option
@cluster_command
def replay_dead(
    cluster: Cluster, name: str, local: bool, spark: bool, master: str | None, warehouse_uri: str, output_format: str
) -> None:
    """Try all dead letters again after a change of the table; those that fit now are moved into it.

    This is one commit: at every moment a record is in the table or a dead letter.
    """
    from penstock.spark.tables import Loader
    from penstock.spark.tables.loader import replay_dead as replayed

    opened = open_warehouse(warehouse_uri).open(name)
    with (
        cluster.admin() as admin,
        task_runner(f"penstock replay {name}", local=local, spark=spark, master=master) as runner,
    ):
        loader = Loader(opened, admin, cluster.servers, runner, options=reader_properties(cluster))
        result = replayed(loader)
    output = Output()
    if output_format == JSON:
        output.json({"table": name, "tried": result.tried, "landed": result.landed})
    else:
        output.line(f"{name}: {counted(result.tried, 'dead letter')} tried, {result.landed:,} landed")


@table.command(short_help="Compact small files, remove old days and versions.")
@click.argument("name", metavar="TABLE")
@click.option("--all", "everything", is_flag=True, help="Compact all small files, however few.")
@engine_options
@warehouse_option
@format_option
@cluster_command
def maintain(
    cluster: Cluster,
    name: str,
    everything: bool,
    local: bool,
    spark: bool,
    master: str | None,
    warehouse_uri: str,
    output_format: str,
) -> None:
    """Compact small files, remove days beyond the retention, and delete files that no recent version needs.

    Loads do this too when enough is due.
    """
    from penstock.spark.tables.maintenance import compact
    from penstock.spark.tables.maintenance import maintain as maintained

    opened = open_warehouse(warehouse_uri).open(name)
    with task_runner(f"penstock maintain {name}", local=local, spark=spark, master=master) as runner:
        joined, into = compact(opened, runner, least=2) if everything else (0, 0)
        done = maintained(opened, runner, time.time_ns() // 1_000_000, vacuum=True)
    facts = {
        "joined": joined + done.joined,
        "into": into + done.into,
        "expired": done.expired,
        "vacuumed": done.vacuumed,
    }
    output = Output()
    if output_format == JSON:
        output.json({"table": name, **facts})
    else:
        output.line(
            f"{name}: {counted(facts['joined'], 'file')} joined into {facts['into']:,}, {facts['expired']:,} of old "
            f"days removed, {facts['vacuumed']:,} of old versions deleted"
        )


@table.command(short_help="Compare produced with landed records, by hour.")
@click.argument("name", metavar="TABLE")
@click.option("--since", "since_ms", type=Timestamp(), help="Start with the hour of this time.  [default: a day ago]")
@click.option("--plot", "plot_path", metavar="FILE.svg", help="Also draw a plot.")
@engine_options
@warehouse_option
@format_option
@cluster_command
def audit(
    cluster: Cluster,
    name: str,
    since_ms: int | None,
    plot_path: str | None,
    local: bool,
    spark: bool,
    master: str | None,
    warehouse_uri: str,
    output_format: str,
) -> None:
    """Compare produced with landed records for each hour of the log, and show until when the table is complete.

    An offset is in the table, a dead letter, dropped by policy, waiting, or without a record (a transaction marker,
    compacted away). The log is read only for hours whose sums differ, by Spark with --spark or --master.

    \b
    Exit code: 1  records are missing or duplicated
    """
    from penstock.spark.tables import Loader
    from penstock.spark.tables.audit import audit_svg, audit_table

    opened = open_warehouse(warehouse_uri).open(name)
    now_ms = time.time_ns() // 1_000_000
    with (
        cluster.admin() as admin,
        task_runner(f"penstock audit {name}", local=local, spark=spark, master=master) as runner,
    ):
        loader = Loader(opened, admin, cluster.servers, runner, options=reader_properties(cluster))
        found = audit_table(loader, admin, runner, now_ms - _DAY_MS if since_ms is None else since_ms, now_ms)
    output = Output()
    if output_format == JSON:
        output.json(found.document(), indent=2)
    else:
        _show_audit(output, found)
    if plot_path is not None:
        Path(plot_path).write_text(audit_svg(found), encoding="utf-8")
    output.flush()
    if not found.is_sound:
        click.echo("Records are missing or duplicated. Load those hours again: penstock load --since", err=True)
        click.get_current_context().exit(_EXIT_UNSOUND)


def _show_audit(output: Output, found: Audit) -> None:
    from penstock.spark.tables.audit import COUNTS

    names = [name for name in COUNTS if name in ("produced", "landed", "waiting") or found.total(name)]
    rows = [
        (
            time_text(hour.start_ms)[:16] + "Z",
            *(getattr(hour, name) for name in names),
            "yes" if hour.is_complete else "no",
        )
        for hour in found.hours
        if hour.produced or hour.landed
    ]
    show_table(output, ["HOUR", *(name.upper() for name in names), "COMPLETE"], rows)
    output.line(f"Complete until {time_text(found.complete_until_ms)}")
