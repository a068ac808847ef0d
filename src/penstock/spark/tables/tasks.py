"""What executors do for a table: load a range into Parquet files, rewrite files, and stage rows for upserts.

A task has no visible effect: it may run twice or die halfway, and only files that the driver commits count. Errors are
part of its result, in one line.

A backfill replaces exactly its offsets: a file inside them goes, a file that reaches beyond is rewritten without them,
in the commit that adds the new rows. In an upsert, of two records of a key the one with the greater offset is newer,
across partitions the one with the later timestamp. A record replaces only older rows, so merging again changes
nothing, and a record without a value deletes its key's row.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.client.errors import PenstockError
from penstock.spark.errors import TableError, UnfitRecord
from penstock.spark.options import ReaderOptions
from penstock.spark.tables import system_columns
from penstock.spark.tables.declaration import METADATA, Column, Table, arrow_schema
from penstock.spark.tables.delta import STAGING, Counts, DataFile, LiveFile, PartWriter, Storage
from penstock.spark.tables.load_plan import Span, union
from penstock.spark.tables.system_columns import (
    dead_rows,
    dead_schema,
    metadata_fields,
    partition_arrays,
    partition_fields,
)
from penstock.spark.tables.value_decoder import Decoder, decoder_for

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable


Work = Callable[[bytes], bytes]
DELETED: Final = "_deleted"
_MOST_OPEN: Final = 32
_MIB: Final = 1024 * 1024
_READ_AS: Final = {
    "_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_key": "key",
    "_headers": "headers",
}  # fmt: skip
_ROW: Final = "_row"

# ---------------------------------------------------------------------------------------------- loading a range


@dataclass(frozen=True)
class LoadTask:
    """A range to load, sent to an executor. `rows` are given if they do not come from the log (dead letters)."""

    table: Table
    storage: Storage
    dead_storage: Storage
    bootstrap: str
    reader: ReaderOptions
    topic_id: str
    span: Span
    rows: bytes = b""


@dataclass(frozen=True)
class TaskResult:
    """The outcome of a task. If the table has to grow first, only `columns` is set."""

    span: Span
    counts: Counts = field(default_factory=Counts)
    files: tuple[DataFile, ...] = ()
    dead_files: tuple[DataFile, ...] = ()
    columns: tuple[Column, ...] = ()
    error: PenstockError | None = None


@dataclass
class Written:
    """The files and counts of several tasks."""

    files: list[DataFile]
    dead_files: list[DataFile]
    counts: Counts

    @classmethod
    def of(cls, results: Sequence[TaskResult]) -> Written:
        counts = Counts()
        for one in results:
            counts += one.counts
        return cls(
            [file for one in results for file in one.files],
            [file for one in results for file in one.dead_files],
            counts,
        )


def run_task(task: LoadTask) -> TaskResult:
    """Runs a task. Errors are part of the result."""
    run = _Run(task)
    try:
        for batch in _batches(task):
            run.take(batch)
        return run.finish()
    except PenstockError as error:
        run.abandon()
        return TaskResult(task.span, error=error)
    except BaseException:
        run.abandon()
        raise


def run_load_pickled(task: bytes) -> bytes:
    return pickle.dumps(run_task(pickle.loads(task)))


def _batches(task: LoadTask) -> Iterator[Any]:
    if task.rows:
        with pa.ipc.open_stream(task.rows) as stream:
            yield from stream
        return
    from penstock.spark.fetch import read_range

    yield from read_range(
        task.bootstrap,
        replace(task.reader, include_headers=True),
        task.table.topic,
        task.span.partition,
        task.span.start,
        task.span.end,
        isolation=task.table.isolation,  # type: ignore[arg-type]
        topic_id=task.topic_id or None,
    )


def file_schema(table: Table, *, staged: bool = False) -> pa.Schema:
    """The columns of a file. Partition columns are in its path; a staged file has them, and `DELETED`."""
    fields = [*metadata_fields(), *arrow_schema(table.columns)]
    if staged:
        fields += [*partition_fields(table), pa.field(DELETED, pa.bool_())]
    return pa.schema(fields)


class _Run:
    """One running task."""

    def __init__(self, task: LoadTask) -> None:
        self.task = task
        self.table = task.table
        self.counts = Counts()
        self._staged = task.table.mode == "upsert"
        self._schema = file_schema(task.table, staged=self._staged)
        self._decoder: Decoder = decoder_for(task.table)
        self._writers: dict[tuple[str | None, ...], PartWriter] = {}
        self._dead: PartWriter | None = None
        self._files: list[DataFile] = []
        self._target = task.table.target_file_mb * _MIB

    # ------------------------------------------------------------------------------------------ rows

    def take(self, batch: Any) -> None:
        values = batch.column("value")
        origin = pa.table({name: batch.column(source) for name, source in _READ_AS.items()})
        self.counts += Counts(records=batch.num_rows)
        if values.null_count:
            empty = values.is_null()
            self._without_value(origin.filter(empty))
            full = pc.invert(empty)
            origin, values = origin.filter(full), values.filter(full)
        decoded = self._decoder.decode(values, origin.column("_headers").combine_chunks())
        if self._decoder.grew:
            return
        if decoded.failures:
            chosen = pa.array([row for row, _ in decoded.failures], pa.int64())
            self._set_aside(origin.take(chosen), values.take(chosen), [reason for _, reason in decoded.failures])
            origin, values = origin.take(decoded.index), values.take(decoded.index)
        self._place(origin, values, decoded.rows)

    def _without_value(self, origin: pa.Table) -> None:
        """Records whose value is null: rows of nulls, or in an upsert table the deletion of the key's row."""
        nothing = pa.nulls(origin.num_rows, pa.binary())
        if self._staged:
            if self.table.key:
                why = "has no value, which contains the table's key"
                self._set_aside(origin, nothing, [why] * origin.num_rows)
                return
            rows = pa.table([pa.nulls(origin.num_rows, one.type) for one in self.table.columns],
                            schema=arrow_schema(self.table.columns))  # fmt: skip
            self._place(origin, nothing, rows, deleted=True)
            return
        required = [column.name for column in self.table.columns if column.required]
        if required:
            self._set_aside(origin, nothing, [f"{required[0]} is null or missing"] * origin.num_rows)
            return
        arrays = [pa.nulls(origin.num_rows, column.type) for column in self.table.columns]
        self._place(origin, nothing, pa.table(arrays, schema=arrow_schema(self.table.columns)))

    def _place(self, origin: pa.Table, values: Any, decoded: pa.Table, *, deleted: bool = False) -> None:
        """Writes decoded rows to the files of their days, and rejected ones to the dead letters."""
        rows = pa.table([*origin.columns, *decoded.columns], names=[*origin.column_names, *decoded.column_names])
        for check in (self._without_key, self._impossible_time, self._late):
            bad, why, is_dropped = check(rows)
            if bad is not None and pc.any(bad).as_py():
                chosen = pc.indices_nonzero(bad)
                reasons = [why] * len(chosen)
                self._set_aside(rows.select(METADATA).take(chosen), values.take(chosen), reasons, dropped=is_dropped)
                keep = pc.invert(bad)
                rows, values = rows.filter(keep), values.filter(keep)
        if not rows.num_rows:
            return
        times_us = system_columns.event_times(self.table, rows)
        if self._staged:
            for name, array in partition_arrays(self.table, times_us).items():
                rows = rows.append_column(name, array)
            rows = rows.append_column(DELETED, pa.repeat(pa.scalar(deleted), rows.num_rows))
            self._write({}, rows)
        else:
            for partition_values, part in system_columns.by_partition(self.table, rows, times_us):
                self._write(partition_values, part)
        kept = Counts(deleted=rows.num_rows) if deleted else Counts(landed=rows.num_rows)
        self.counts += kept

    # ------------------------------------------------------------------------------------------ rejected rows

    def _without_key(self, rows: pa.Table) -> tuple[Any, str, bool]:
        if not self._staged:
            return None, "", False
        bad: Any = None
        for name in self.table.key or ("_key",):
            missing = rows.column(name).is_null()
            bad = missing if bad is None else pc.or_(bad, missing)
        return bad, f"the key ({', '.join(self.table.key) or 'of the record'}) is null", False

    def _impossible_time(self, rows: pa.Table) -> tuple[Any, str, bool]:
        bad = system_columns.impossible(system_columns.event_times(self.table, rows))
        return bad, "the event time is before year 1 or after year 9999", False

    def _late(self, rows: pa.Table) -> tuple[Any, str, bool]:
        if self.table.late == "accept":
            return None, "", False
        bad = system_columns.late(self.table, rows, system_columns.event_times(self.table, rows))
        self.counts += Counts(late=pc.sum(bad).as_py() or 0)
        return bad, "late: it reached the log after allowed_lateness", self.table.late == "drop"

    def _set_aside(self, origin: pa.Table, values: Any, reasons: list[str], *, dropped: bool | None = None) -> None:
        if not origin.num_rows:
            return
        if dropped is None:
            dropped = self.table.on_error == "drop"
        if self.table.on_error == "fail" and not reasons[0].startswith("late:"):
            first = origin.slice(0, 1).to_pylist()[0]
            raise UnfitRecord(
                f"{first['_topic']}-{first['_partition']} at offset {first['_offset']} does not match table "
                f"{self.table.name}: {reasons[0]}",
                hint='The table has on_error = "fail". With "dead" such records go to the dead letters',
            )
        if self._dead is None:
            self._dead = PartWriter(self.task.dead_storage, "", {}, dead_schema())
        self._dead.write(dead_rows(origin, values, reasons, dropped, time.time_ns() // 1000))
        kept = Counts(dropped=origin.num_rows) if dropped else Counts(dead=origin.num_rows)
        self.counts += kept

    # ------------------------------------------------------------------------------------------ files

    def _write(self, values: dict[str, str | None], rows: pa.Table) -> None:
        key = tuple(values.values())
        writer = self._writers.pop(key, None)
        if writer is None:
            if len(self._writers) >= _MOST_OPEN:
                self._files.append(self._writers.pop(next(iter(self._writers))).close())
            writer = PartWriter(self.task.storage, STAGING if self._staged else "", values, self._schema)
        self._writers[key] = writer
        writer.write(rows)
        if writer.size >= self._target:
            self._files.append(self._writers.pop(key).close())

    def finish(self) -> TaskResult:
        if self._decoder.grew:
            self.abandon()
            return TaskResult(self.task.span, columns=self._decoder.columns)
        self._files += [writer.close() for writer in self._writers.values()]
        dead = () if self._dead is None else (self._dead.close(),)
        self._writers, self._dead = {}, None
        if not self.counts.is_balanced:
            raise TableError(f"{self.task.span}: records read and records stored do not match: {self.counts}")
        return TaskResult(self.task.span, self.counts, tuple(self._files), dead)

    def abandon(self) -> None:
        """Removes everything the task wrote."""
        for writer in [*self._writers.values(), *([self._dead] if self._dead else [])]:
            writer.abandon()
        self.task.storage.remove_files([one.path for one in self._files])
        self._writers, self._dead, self._files = {}, None, []


# ---------------------------------------------------------------------------------------------- rewriting files


@dataclass(frozen=True)
class RewriteTask:
    """Files of one folder to be joined into one, without some offsets. It is sent to an executor."""

    storage: Storage
    files: tuple[LiveFile, ...]
    without: tuple[Span, ...] = ()
    schema: pa.Schema | None = None
    """The schema of the new file; None for that of the (single) old one."""


def plan_removal(files: Iterable[LiveFile], spans: Sequence[Span]) -> tuple[list[LiveFile], list[LiveFile]]:
    """Files inside the spans, and files that may reach beyond them."""
    wanted = union(spans)
    inside: list[LiveFile] = []
    across: list[LiveFile] = []
    for file in files:
        if not any(file.may_overlap(span) for span in wanted):
            continue
        whole = file.span
        if whole is not None and any(span.holds(whole) for span in wanted):
            inside.append(file)
        else:
            across.append(file)
    return inside, across


def run_rewrite(task: RewriteTask) -> DataFile | None:
    """The new file; None if no rows are left."""
    values: Mapping[str, str | None] = task.files[0].partition_values
    writer: PartWriter | None = None
    try:
        for rows in _tables(task):
            if not rows.num_rows:
                continue
            if writer is None:
                writer = PartWriter(task.storage, "", values, rows.schema.remove_metadata())
            writer.write(rows)
        return None if writer is None else writer.close()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise


def run_rewrite_pickled(task: bytes) -> bytes:
    return pickle.dumps(run_rewrite(pickle.loads(task)))


def _tables(task: RewriteTask) -> Iterable[pa.Table]:
    filesystem, root = task.storage.filesystem()
    for file in task.files:
        with pq.ParquetFile(filesystem.open_input_file(f"{root}/{file.path}")) as parquet:
            for group in range(parquet.num_row_groups):
                rows = parquet.read_row_group(group)
                if task.without:
                    rows = rows.filter(pc.invert(_in_spans(rows, task.without)))
                yield rows if task.schema is None else conformed(rows, task.schema)


def _in_spans(rows: pa.Table, spans: Iterable[Span]) -> Any:
    partitions, offsets = rows.column("_partition"), rows.column("_offset")
    found: Any = pa.repeat(pa.scalar(False), rows.num_rows)
    for span in spans:
        within = pc.and_(pc.greater_equal(offsets, span.start), pc.less(offsets, span.end))
        found = pc.or_(found, pc.and_(pc.equal(partitions, span.partition), within))
    return found


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of a later schema; new columns are null."""
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


# ---------------------------------------------------------------------------------------------- upserts


def key_columns(table: Table) -> tuple[str, ...]:
    return table.key or ("_key",)


def staged_rows(table: Table, storage: Storage, files: Sequence[DataFile]) -> pa.Table:
    """The staged rows of tasks, one per key."""
    filesystem, root = storage.filesystem()
    schema = file_schema(table, staged=True)
    tables = [pq.read_table(f"{root}/{one.path}", filesystem=filesystem, partitioning=None) for one in files]
    rows = pa.concat_tables([conformed(one, schema) for one in tables]) if tables else schema.empty_table()
    return newest_rows(rows, key_columns(table))


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key."""
    of_partition = _last(rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")]), [*keys, "_partition"])
    if pc.count_distinct(of_partition.column("_partition")).as_py() <= 1:
        return of_partition
    by_time = [("_timestamp", "ascending"), ("_partition", "ascending")]
    return _last(of_partition.sort_by(by_time), keys)


def _last(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    numbered = rows.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(keys)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return rows.take(last)


def merge_rows(table: Table, rows: pa.Table, delta: DeltaTable, properties: CommitProperties) -> None:
    """Merges rows into the table in one commit; they replace older rows of their keys."""
    same = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in key_columns(table))
    newer = (
        "((s._partition = t._partition AND s._offset >= t._offset) OR "
        "(s._partition <> t._partition AND s._timestamp >= t._timestamp))"
    )
    values: dict[str, Any] = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names if name != DELETED}
    (
        delta.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
        .when_matched_delete(f"s.{DELETED} AND {newer}")
        .when_matched_update(values, predicate=f"NOT s.{DELETED} AND {newer}")
        .when_not_matched_insert(values, predicate=f"NOT s.{DELETED}")
        .execute()
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
