"""What an executor does for a load: read a range, decode, write Parquet files; and report.

Noun: `LoadTask`, one span of one partition; `TaskResult`, what became of it.

Rule: a task changes nothing that anybody sees. It may run twice, or die half way: only the files that the driver
commits count, and it commits those of one report. Errors come back as a report too, in one line.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.errors import PenstockError
from penstock.spark.options import ReaderOptions
from penstock.spark.tables import event_time
from penstock.spark.tables.commits import Counts, DataFile
from penstock.spark.tables.dead_schema import dead_rows, dead_schema
from penstock.spark.tables.declaration import METADATA, Table
from penstock.spark.tables.decoding import Decoder, decoder_for
from penstock.spark.tables.errors import TableError, UnfitRecord
from penstock.spark.tables.event_time import metadata_fields, partition_arrays, partition_fields
from penstock.spark.tables.ranges import Span
from penstock.spark.tables.storage import STAGING, PartWriter, Storage
from penstock.spark.tables.types import Column, arrow_schema

DELETED: Final = "_deleted"
_MOST_OPEN: Final = 32
_MIB: Final = 1024 * 1024
_READ_AS: Final = {
    "_topic": "topic", "_partition": "partition", "_offset": "offset", "_timestamp": "timestamp", "_key": "key",
    "_headers": "headers",
}  # fmt: skip


@dataclass(frozen=True)
class LoadTask:
    """It travels to an executor. `rows` are given where they do not come from the log (dead letters, tried again)."""

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
    """`columns` is set, and nothing else, where the table has to grow first."""

    span: Span
    counts: Counts = field(default_factory=Counts)
    files: tuple[DataFile, ...] = ()
    dead_files: tuple[DataFile, ...] = ()
    columns: tuple[Column, ...] = ()
    error: PenstockError | None = None


def run_task(task: LoadTask) -> TaskResult:
    """Carry it out; errors are part of the result."""
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


def run_pickled(task: bytes) -> bytes:
    return pickle.dumps(run_task(pickle.loads(task)))


def _batches(task: LoadTask) -> Iterator[Any]:
    if task.rows:
        with pa.ipc.open_stream(task.rows) as stream:
            yield from stream
        return
    from penstock.spark.fetching import read_range

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
    """What is in a file: Delta has the partition columns in the path. What waits for a merge has all, and a mark."""
    fields = [*metadata_fields(), *arrow_schema(table.columns)]
    if staged:
        fields += [*partition_fields(table), pa.field(DELETED, pa.bool_())]
    return pa.schema(fields)


class _Run:
    """One task at work."""

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

    # ------------------------------------------------------------------------------------------ rows in

    def take(self, batch: Any) -> None:
        values = batch.column("value")
        origin = pa.table({name: batch.column(source) for name, source in _READ_AS.items()})
        self.counts += Counts(records=batch.num_rows)
        if values.null_count:
            empty = values.is_null()
            self._without_value(origin.filter(empty))
            full = pc.invert(empty)
            origin, values = origin.filter(full), values.filter(full)
        decoded = self._decoder.decode(values)
        if self._decoder.grew:
            return
        if decoded.failures:
            chosen = pa.array([row for row, _ in decoded.failures], pa.int64())
            self._bury(origin.take(chosen), values.take(chosen), [reason for _, reason in decoded.failures])
            origin, values = origin.take(decoded.index), values.take(decoded.index)
        self._place(origin, values, decoded.rows)

    def _without_value(self, origin: pa.Table) -> None:
        """Records whose value is null: rows of nulls; in an upsert table, the end of their key's row."""
        nothing = pa.nulls(origin.num_rows, pa.binary())
        if self._staged:
            if self.table.key:
                why = "has no value, and the table's key is a part of the value"
                self._bury(origin, nothing, [why] * origin.num_rows)
                return
            rows = pa.table([pa.nulls(origin.num_rows, one.type) for one in self.table.columns],
                            schema=arrow_schema(self.table.columns))  # fmt: skip
            self._place(origin, nothing, rows, deleted=True)
            return
        required = [column.name for column in self.table.columns if column.required]
        if required:
            self._bury(origin, nothing, [f"{required[0]} is null or missing"] * origin.num_rows)
            return
        arrays = [pa.nulls(origin.num_rows, column.type) for column in self.table.columns]
        self._place(origin, nothing, pa.table(arrays, schema=arrow_schema(self.table.columns)))

    def _place(self, origin: pa.Table, values: Any, decoded: pa.Table, *, deleted: bool = False) -> None:
        """Rows that could be read, to the files of their days; those that may not be there, to the dead."""
        rows = pa.table([*origin.columns, *decoded.columns], names=[*origin.column_names, *decoded.column_names])
        for check in (self._keyless, self._timeless, self._late):
            bad, why, is_dropped = check(rows)
            if bad is not None and pc.any(bad).as_py():
                chosen = pc.indices_nonzero(bad)
                reasons = [why] * len(chosen)
                self._bury(rows.select(METADATA).take(chosen), values.take(chosen), reasons, dropped=is_dropped)
                keep = pc.invert(bad)
                rows, values = rows.filter(keep), values.filter(keep)
        if not rows.num_rows:
            return
        times_us = event_time.event_times(self.table, rows)
        if self._staged:
            for name, array in partition_arrays(self.table, times_us).items():
                rows = rows.append_column(name, array)
            rows = rows.append_column(DELETED, pa.repeat(pa.scalar(deleted), rows.num_rows))
            self._write({}, rows)
        else:
            for partition_values, part in event_time.by_partition(self.table, rows, times_us):
                self._write(partition_values, part)
        kept = Counts(deleted=rows.num_rows) if deleted else Counts(landed=rows.num_rows)
        self.counts += kept

    # ------------------------------------------------------------------------------------------ what may not be there

    def _keyless(self, rows: pa.Table) -> tuple[Any, str, bool]:
        if not self._staged:
            return None, "", False
        bad: Any = None
        for name in self.table.key or ("_key",):
            missing = rows.column(name).is_null()
            bad = missing if bad is None else pc.or_(bad, missing)
        return bad, f"its key ({', '.join(self.table.key) or 'of the record'}) is null", False

    def _timeless(self, rows: pa.Table) -> tuple[Any, str, bool]:
        bad = event_time.impossible(event_time.event_times(self.table, rows))
        return bad, "its event time is before year 1 or after 9999", False

    def _late(self, rows: pa.Table) -> tuple[Any, str, bool]:
        if self.table.late == "accept":
            return None, "", False
        bad = event_time.late(self.table, rows, event_time.event_times(self.table, rows))
        self.counts += Counts(late=pc.sum(bad).as_py() or 0)
        return bad, "late: it reached the log after allowed_lateness", self.table.late == "drop"

    def _bury(self, origin: pa.Table, values: Any, reasons: list[str], *, dropped: bool | None = None) -> None:
        if not origin.num_rows:
            return
        if dropped is None:
            dropped = self.table.on_error == "drop"
        if self.table.on_error == "fail" and not reasons[0].startswith("late:"):
            first = origin.slice(0, 1).to_pylist()[0]
            raise UnfitRecord(
                f"{first['_topic']}-{first['_partition']} at offset {first['_offset']} does not fit the table "
                f"{self.table.name}: {reasons[0]}",
                hint='The table has on_error = "fail"; "dead" would put it aside and go on',
            )
        if self._dead is None:
            self._dead = PartWriter(self.task.dead_storage, "", {}, dead_schema())
        self._dead.write(dead_rows(origin, values, reasons, dropped, time.time_ns() // 1000))
        kept = Counts(dropped=origin.num_rows) if dropped else Counts(dead=origin.num_rows)
        self.counts += kept

    # ------------------------------------------------------------------------------------------ files out

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
        if not self.counts.adds_up:
            raise TableError(
                f"{self.task.span}: the records that were read and those that were kept differ: {self.counts}"
            )
        return TaskResult(self.task.span, self.counts, tuple(self._files), dead)

    def abandon(self) -> None:
        """Nothing of it shall stay."""
        for writer in [*self._writers.values(), *([self._dead] if self._dead else [])]:
            writer.abandon()
        self.task.storage.remove_files([one.path for one in self._files])
        self._writers, self._dead, self._files = {}, None, []


@dataclass
class Written:
    """What tasks left."""

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


Work = Callable[[bytes], bytes]
