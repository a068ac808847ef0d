"""The tables that pipelines keep: Delta, one row per key, changed by commits that carry the query and the batch.

A row replaces the row of its key; with a time span, rows of the span that are not given are deleted. A row that is
equal changes nothing, so computing too much writes only differences. Files are small and ordered by time: only the
part of the table that still changes is rewritten.

A change is planned against the version that was read and committed for it, with an application transaction that names
the query and the micro-batch; a batch that is already there is skipped. There is one writer, so rows that may still
change are cached and a commit costs what it changes. Another writer is detected, and the change is planned again.
"""

from __future__ import annotations

import json
import time as clock
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.activity.pipelines.errors import OtherColumns, PipelineError, TableGone
from penstock.spark.errors import ConcurrentLoad, NoSuchTable
from penstock.spark.tables.delta import RUN_AGAIN, CommitNote, DataFile, LiveFile, Storage, Store, one_line_os_errors
from penstock.spark.tables.value_decoder import settled_type

DAY: Final = "event_day"
"""The column by which the tables are partitioned."""
FILE_ROWS: Final = 20_000
"""A larger file is written as two, one of them with the times that no longer change."""
_OLD: Final = "_old"
_NEW: Final = "_new"
_SETTINGS: Final = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}
_KIND: Final = "pipeline"
_MOST_CACHED_ROWS: Final = 1_000_000
_IDLE_COMMITS: Final = 20
"""Cached rows that were not used for this many commits are dropped."""
_TRIES: Final = 5
_RECOMPUTE: Final = "Recompute it with `penstock pipeline run NAME --from-start`"
_SWEEP_AFTER_COMMITS: Final = 200
_JOIN_FROM_FILES: Final = 48
_JOINED_ROWS: Final = 10 * FILE_ROWS
_SPARED_S: Final = 3600.0
"""How long a file that is in no current version is kept for readers of older versions."""

# ---------------------------------------------------------------------------------------------- tables


def open_result_table(
    warehouse_uri: str, name: str, key: Sequence[str], time: str, schema: pa.Schema, *, may_create: bool = True
) -> ResultTable:
    """The table, created if it does not exist. Raises OtherColumns, TableGone."""
    storage = Storage(warehouse_uri).child(name)
    wanted = plain_schema(schema)
    _check(name, key, time, wanted)
    if not Store.exists(storage):
        if not may_create:
            raise TableGone(f"table {name} is missing, but its stream has a checkpoint", hint=_RECOMPUTE)
        stored = pa.schema([*wanted, pa.field(DAY, pa.string())])
        return ResultTable(Store.create(storage, stored, (DAY,), name, _SETTINGS), key, time, wanted)
    store = Store(storage)
    there = {field.name: field.type for field in plain_schema(store.schema()) if field.name != DAY}
    asked = {field.name: field.type for field in wanted}
    if there != asked:
        differing = sorted({*there.items()} ^ {*asked.items()}, key=str)
        names = ", ".join(dict.fromkeys(one for one, _ in differing))
        raise OtherColumns(
            f"the columns of table {name} differ from this version of its pipeline: {names}", hint=_RECOMPUTE
        )
    return ResultTable(store, key, time, wanted)


def _check(name: str, key: Sequence[str], time: str, schema: pa.Schema) -> None:
    """Checks a definition before anything runs. Raises PipelineError."""
    missing = [column for column in (*key, time) if column not in schema.names]
    if missing:
        raise PipelineError(f"{name}: key or time column {missing[0]} is not in its definition")
    if not pa.types.is_timestamp(schema.field(time).type):
        raise PipelineError(f"{name}: the time column {time} is {schema.field(time).type}, not a timestamp")
    if DAY in schema.names:
        raise PipelineError(f"{name}: the column name {DAY} is reserved for partitions; rename yours")


def read_result_table(warehouse_uri: str, name: str) -> pa.Table:
    """The rows of a table. Raises NoSuchTable."""
    storage = Storage(warehouse_uri).child(name)
    if not Store.exists(storage):
        raise NoSuchTable(
            f"table {name} does not exist in {warehouse_uri}", hint="`penstock pipeline list` lists the tables"
        )
    rows = Store(storage).read()
    return rows.select([one for one in rows.column_names if one != DAY])


def plain_schema(schema: Any) -> pa.Schema:
    """A schema with the types of tables: times in microseconds UTC, everything nullable."""
    return pa.schema([pa.field(field.name, settled_type(field.type)) for field in schema])


@dataclass(frozen=True)
class _File:
    """A file of the table, with the times of its rows."""

    path: str
    size: int
    rows: int
    day: str
    low: datetime
    high: datetime

    @property
    def live(self) -> LiveFile:
        return LiveFile(self.path, self.size, self.rows, {DAY: self.day}, None, None)


class ResultTable:
    """A table of results, opened by `open_result_table`."""

    def __init__(self, store: Store, key: Sequence[str], time: str, schema: pa.Schema) -> None:
        self.store = store
        self.key = tuple(key)
        self.time = time
        self.schema = schema
        self._files: dict[str, _File] = {}
        self._version = -1
        self._cache: OrderedDict[str, pa.Table] = OrderedDict()
        self._used: dict[str, int] = {}
        self._commits = 0
        self._refresh()

    @property
    def name(self) -> str:
        return self.store.storage.uri.rstrip("/").rpartition("/")[2]

    # ------------------------------------------------------------------------------------------ looking

    @property
    def newest(self) -> datetime | None:
        """The time of the newest row."""
        return max((file.high for file in self._files.values()), default=None)

    def transaction(self, app_id: str) -> int:
        """The last batch of a query in this table; -1 if none."""
        found = self.store.transaction(app_id)
        return -1 if found is None else found

    def rows(self, span: TimeSpan | None = None) -> pa.Table:
        """The rows of a time span, or all, in no order."""
        self._refresh()
        wanted = span or TimeSpan()
        found = [self._read(file) for file in self._files.values() if wanted.meets(file.low, file.high)]
        if not found:
            return self.schema.empty_table()
        rows = pa.concat_tables(found)
        return rows.filter(wanted.holds(rows.column(self.time).combine_chunks()))

    def _refresh(self) -> None:
        """Reads the list of files of the newest version."""
        if not Store.exists(self.store.storage):
            raise TableGone(f"table {self.name} is missing", hint=_RECOMPUTE)
        self.store.refresh()
        if self.store.version == self._version:
            return
        found = pa.table(self.store.delta.get_add_actions(flatten=True)).to_pydict()
        self._files = {}
        for number, path in enumerate(found.get("path", ())):
            low, high = found[f"min.{self.time}"][number], found[f"max.{self.time}"][number]
            self._files[path] = _File(
                path, found["size_bytes"][number], found["num_records"][number],
                str(found[f"partition.{DAY}"][number]), low, high,
            )  # fmt: skip
        self._cache = OrderedDict((path, rows) for path, rows in self._cache.items() if path in self._files)
        self._version = self.store.version

    def _read(self, file: _File) -> pa.Table:
        rows = self._cache.get(file.path)
        if rows is None:
            rows = self._stored(file)
        self._keep(file.path, rows)
        return rows

    def _stored(self, file: _File) -> pa.Table:
        filesystem, root = self.store.storage.filesystem()
        with one_line_os_errors(f"cannot read {self.name}"):
            rows = pq.read_table(f"{root}/{file.path}", filesystem=filesystem, partitioning=None)
        return rows.select(self.schema.names).cast(self.schema)

    def _keep(self, path: str, rows: pa.Table) -> None:
        self._cache[path] = rows
        self._cache.move_to_end(path)
        self._used[path] = self._commits
        while len(self._cache) > 1 and sum(one.num_rows for one in self._cache.values()) > _MOST_CACHED_ROWS:
            self._cache.popitem(last=False)

    def _forget_idle(self) -> None:
        """A stream runs for weeks and uses only the last minutes."""
        self._used = {
            path: used
            for path, used in self._used.items()
            if path in self._cache and used > self._commits - _IDLE_COMMITS
        }
        self._cache = OrderedDict((path, rows) for path, rows in self._cache.items() if path in self._used)

    # ------------------------------------------------------------------------------------------ changing

    def merge(
        self, rows: pa.Table, *, transaction: Transaction | None = None, notify: ChangeCallback | None = None
    ) -> Change:
        """Each row replaces the row of its key."""
        return self._change(rows, None, transaction, notify)

    def replace(
        self,
        rows: pa.Table,
        span: TimeSpan,
        *,
        transaction: Transaction | None = None,
        notify: ChangeCallback | None = None,
    ) -> Change:
        """Replaces all rows of a time span by these rows, in one commit."""
        return self._change(rows, span, transaction, notify)

    def _change(
        self, rows: pa.Table, span: TimeSpan | None, transaction: Transaction | None, notify: ChangeCallback | None
    ) -> Change:
        """`notify` gets the change before the commit, and may get it again."""
        rows = last_of_each(self._fitting(rows), self.key)
        for _ in range(_TRIES):
            self._refresh()
            change = plan_change(rows, self._overlapping(rows, span), self.key, self.time, span)
            if change.is_empty:
                return change
            if notify is not None:
                notify(change)
            try:
                self._commit(change, transaction)
            except ConcurrentLoad:
                continue
            return change
        raise ConcurrentLoad(f"{self.name}: too many concurrent changes", hint="Stop one of the writers")

    def _overlapping(self, rows: pa.Table, span: TimeSpan | None) -> dict[str, pa.Table]:
        """The rows of the files that may have a row of these keys or of the span."""
        if self.time not in self.key:
            return {path: self._read(file) for path, file in self._files.items()}
        spans = [span] if span is not None else []
        if rows.num_rows:
            low, high = time_bounds(rows, self.time)
            met = [file for file in self._files.values() if file.high >= low and file.low <= high]
        else:
            met = []
        met += [file for file in self._files.values() if any(one.meets(file.low, file.high) for one in spans)]
        return {file.path: self._read(file) for file in dict.fromkeys(met)}

    def _fitting(self, rows: pa.Table) -> pa.Table:
        try:
            fitting = rows.select(self.schema.names).cast(self.schema)
        except (KeyError, pa.ArrowException, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise PipelineError(f"{self.name}: the computed rows do not match its columns: {reason}") from None
        missing = next((name for name in (*self.key, self.time) if fitting.column(name).null_count), None)
        if missing is not None:
            raise PipelineError(f"{self.name}: key or time column {missing} is null in a row")
        return fitting

    def remember(self, transactions: Mapping[str, int]) -> None:
        """Stores numbers with the table, if they differ from the stored ones."""
        other = {name: number for name, number in transactions.items() if self.transaction(name) != number}
        if other:
            self.store.commit(CommitNote(_KIND), transactions=other)
            self._version = self.store.version

    # ------------------------------------------------------------------------------------------ committing

    def _commit(self, change: Change, transaction: Transaction | None) -> None:
        rest = [*change.kept, *([change.changed] if change.changed.num_rows else [])]
        # A day whose files are not touched gets a file with only the new rows.
        gone = [self._files[path] for path in change.touched]
        if rest:
            small = self._small_neighbours(change, pa.concat_tables(rest))
            rest += [self._read(file) for file in small]
            gone += small
        self._write(gone, pa.concat_tables(rest) if rest else None, transaction)
        self._commits += 1
        self._forget_idle()
        if self._commits % _SWEEP_AFTER_COMMITS == 0:
            self.maintain()

    def _small_neighbours(self, change: Change, rows: pa.Table) -> list[_File]:
        """A small file at the end of the same day, rewritten with the new rows; else every commit leaves one."""
        _, high = time_bounds(rows, self.time)
        found: list[_File] = []
        for file in self._files.values():
            near = file.day == day_of(high) and file.path not in change.touched
            if near and file.rows + rows.num_rows < FILE_ROWS // 2:
                found.append(file)
        return sorted(found, key=lambda one: one.high)[-1:]

    def _write(
        self, gone: Sequence[_File], rows: pa.Table | None, transaction: Transaction | None, *,
        is_joining: bool = False,
    ) -> None:  # fmt: skip
        """Replaces files in one commit. `is_joining`: the rows are the same and are not cached."""
        looked_at = self._version

        def check() -> None:
            if self.store.version != looked_at:
                raise ConcurrentLoad(f"{self.name} was changed by another writer", hint=RUN_AGAIN)

        most = _JOINED_ROWS * 2 if is_joining else FILE_ROWS
        parts = [] if rows is None else list(split_by_day(rows, self.time, most))
        made = [(self._written(day, part), part) for day, part in parts]
        try:
            self.store.commit(
                CommitNote(_KIND), add=[self._data_file(file) for file, _ in made],
                remove=[file.live for file in gone], transactions=dict([transaction] if transaction else []),
                data_change=not is_joining, check=check,
            )  # fmt: skip
        except BaseException:
            self.store.storage.remove_files([file.path for file, _ in made])
            raise
        for file in gone:
            del self._files[file.path]
            self._cache.pop(file.path, None)
        for file, part in made:
            self._files[file.path] = file
            if not is_joining:
                self._keep(file.path, part)
        self._version = self.store.version

    def _written(self, day: str, rows: pa.Table) -> _File:
        path = f"{DAY}={day}/part-{uuid.uuid4().hex}.parquet"
        low, high = time_bounds(rows, self.time)
        with one_line_os_errors(f"cannot write {self.name}"):
            filesystem, root = self.store.storage.filesystem()
            filesystem.create_dir(f"{root}/{DAY}={day}", recursive=True)
            pq.write_table(rows, f"{root}/{path}", filesystem=filesystem, compression="zstd")
            size = filesystem.get_file_info(f"{root}/{path}").size
            self.store.storage.sync(path)
        return _File(path, int(size), rows.num_rows, day, low, high)

    def _data_file(self, file: _File) -> DataFile:
        stats = {
            "numRecords": file.rows,
            "minValues": {self.time: file.low.isoformat(timespec="microseconds")},
            "maxValues": {self.time: file.high.isoformat(timespec="microseconds")},
            "nullCount": {self.time: 0},
        }
        return DataFile(file.path, file.size, file.rows, {DAY: file.day}, json.dumps(stats))

    # ------------------------------------------------------------------------------------------ maintenance

    def maintain(self) -> None:
        """Joins files that no longer change, and removes files that are in no version of the last hour.

        Files with cached rows are in use and are not joined: a larger one would stay in memory until its last row is
        old enough.
        """
        idle = [file for file in self._files.values() if file.path not in self._cache]
        for group in _groups(idle):
            try:
                self._write(group, pa.concat_tables(map(self._stored, group)), None, is_joining=True)
            except ConcurrentLoad:
                self._refresh()
                return
        filesystem, root = self.store.storage.filesystem()
        limit_ns = clock.time_ns() - int(_SPARED_S * 1e9)
        found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True))
        old = [
            info.path.removeprefix(root).lstrip("/")
            for info in found
            if info.path.endswith(".parquet") and "/_delta_log/" not in info.path and (info.mtime_ns or 0) < limit_ns
        ]
        self.store.storage.remove_files([path for path in old if path not in self._files])


def _groups(files: Iterable[_File]) -> list[list[_File]]:
    """Groups of files to be joined: neighbours in time of a day that has many."""
    by_day: dict[str, list[_File]] = {}
    for file in files:
        if file.rows < _JOINED_ROWS // 2:
            by_day.setdefault(file.day, []).append(file)
    groups: list[list[_File]] = []
    for small in by_day.values():
        if len(small) < _JOIN_FROM_FILES:
            continue
        group: list[_File] = []
        for file in sorted(small, key=lambda one: one.high):
            group.append(file)
            if sum(one.rows for one in group) >= _JOINED_ROWS:
                groups.append(group)
                group = []
        groups += [group] if len(group) > 1 else []
    return groups


# ---------------------------------------------------------------------------------------------- changes


@dataclass(frozen=True)
class TimeSpan:
    """Times in [start, end); None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None

    def holds(self, times: Any) -> Any:
        """Which of the times are in the span."""
        found: Any = pa.repeat(pa.scalar(True), len(times))
        if self.start is not None:
            found = pc.and_(found, pc.greater_equal(times, pa.scalar(self.start, times.type)))
        if self.end is not None:
            found = pc.and_(found, pc.less(times, pa.scalar(self.end, times.type)))
        return found

    def meets(self, low: datetime, high: datetime) -> bool:
        """Whether the span overlaps [low, high]."""
        return (self.start is None or high >= self.start) and (self.end is None or low < self.end)


@dataclass(frozen=True)
class Change:
    """The rows to write and to delete. `touched` are the paths of files with a row that changes or is deleted."""

    changed: pa.Table
    deleted: pa.Table
    touched: tuple[str, ...] = ()
    kept: Sequence[pa.Table] = field(default_factory=tuple)
    """The remaining rows of the touched files."""

    @property
    def is_empty(self) -> bool:
        return not self.changed.num_rows and not self.deleted.num_rows


Transaction = tuple[str, int]
ChangeCallback = Callable[[Change], None]


def plan_change(
    rows: pa.Table, files: Mapping[str, pa.Table], key: Sequence[str], time: str, replaced: TimeSpan | None = None
) -> Change:
    """The effect of `rows` (one per key) on the files that may have rows of the same keys or of the span."""
    before = pa.concat_tables(list(files.values())) if files else rows.schema.empty_table()
    pairs = _pairs(before, rows, key)
    old, new = pairs.column(_OLD), pairs.column(_NEW)
    is_other = _differs(before.take(old), rows.take(new), [name for name in rows.column_names if name not in key])
    same = new.filter(pc.invert(is_other)) if len(new) else new
    changed = rows.take(_others(rows.num_rows, same)) if len(same) else rows
    goes = _mask(before.num_rows, old.filter(is_other))
    deleted = rows.schema.empty_table()
    if replaced is not None and before.num_rows:
        unnamed = pc.invert(_mask(before.num_rows, old))
        removed = pc.and_(replaced.holds(before.column(time).combine_chunks()), unnamed)
        deleted = before.filter(removed)
        goes = pc.or_(goes, removed)
    touched, kept = _left(files, goes, before)
    return Change(changed, deleted, touched, kept)


def _left(files: Mapping[str, pa.Table], goes: Any, before: pa.Table) -> tuple[tuple[str, ...], list[pa.Table]]:
    touched: list[str] = []
    kept: list[pa.Table] = []
    first = 0
    for path, one in files.items():
        here = goes.slice(first, one.num_rows)
        if pc.any(here).as_py():
            touched.append(path)
            left = before.slice(first, one.num_rows).filter(pc.invert(here))
            if left.num_rows:
                kept.append(left)
        first += one.num_rows
    return tuple(touched), kept


def split_by_day(rows: pa.Table, time: str, most: int = FILE_ROWS) -> Iterator[tuple[str, pa.Table]]:
    """The rows split into (day, rows) of at most about `most` rows, ordered by time."""
    ordered = rows.sort_by(time)
    days = pc.strftime(ordered.column(time), "%Y-%m-%d").combine_chunks()
    for day in pc.unique(days).to_pylist():
        of_day = ordered.filter(pc.equal(days, day))
        first = 0
        while first < of_day.num_rows:
            end = _end(of_day.column(time), first, most)
            yield day, of_day.slice(first, end - first)
            first = end


def _end(times: Any, first: int, most: int) -> int:
    """The end of a file that starts at row `first`; rows of one time stay in one file if possible."""
    if len(times) - first <= most:
        return len(times)
    end = first + most // 2
    last = times[end - 1]
    while end < len(times) and end < first + most and times[end] == last:
        end += 1
    return end


def time_bounds(rows: pa.Table, time: str) -> tuple[datetime, datetime]:
    found = pc.min_max(rows.column(time)).as_py()
    return found["min"], found["max"]


def day_of(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key."""
    numbered = rows.append_column(_NEW, _numbers(rows.num_rows))
    last = numbered.group_by(list(key)).aggregate([(_NEW, "max")]).column(f"{_NEW}_max")
    return rows if len(last) == rows.num_rows else rows.take(last)


# ---------------------------------------------------------------------------------------------- comparing rows


def _pairs(before: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The row numbers of pairs with the same key."""
    numbers = pa.schema([pa.field(_OLD, pa.int64()), pa.field(_NEW, pa.int64())])
    if not before.num_rows or not rows.num_rows:
        return numbers.empty_table().combine_chunks()
    left = before.select(list(key)).append_column(_OLD, _numbers(before.num_rows))
    right = rows.select(list(key)).append_column(_NEW, _numbers(rows.num_rows))
    return left.join(right, list(key), join_type="inner", use_threads=False).select([_OLD, _NEW]).combine_chunks()


def _differs(old: pa.Table, new: pa.Table, names: Iterable[str]) -> Any:
    found: Any = pa.repeat(pa.scalar(False), old.num_rows)
    for name in names:
        found = pc.or_(found, _unequal(_flat(old.column(name)), _flat(new.column(name))))
    return _flat(found)


def _unequal(one: Any, other: Any) -> Any:
    """Which values differ; Arrow does not compare lists and structs."""
    either_null = pc.xor(pc.is_null(one), pc.is_null(other))
    if pa.types.is_list(one.type):
        return pc.or_(either_null, _unequal_lists(one, other))
    if pa.types.is_struct(one.type):
        found: Any = either_null
        for number in range(one.type.num_fields):
            found = pc.or_(found, _unequal(pc.struct_field(one, [number]), pc.struct_field(other, [number])))
        return found
    return pc.or_(pc.fill_null(pc.not_equal(one, other), False), either_null)


def _unequal_lists(one: Any, other: Any) -> Any:
    lengths = [pc.fill_null(pc.list_value_length(each), 0) for each in (one, other)]
    differs = pc.not_equal(*lengths)
    same = pc.invert(differs)
    parts = [pc.list_flatten(each.filter(same)) for each in (one, other)]
    parents = pc.list_parent_indices(one.filter(same)).filter(_unequal(*parts))
    # From numbers among lists of equal length to numbers among all lists.
    numbers = _numbers(len(one)).filter(same).take(pc.unique(parents))
    return pc.or_(differs, _mask(len(one), numbers))


def _mask(count: int, numbers: Any) -> Any:
    return _flat(pc.is_in(_numbers(count), value_set=_flat(numbers).cast(pa.int64())))


def _others(count: int, numbers: Any) -> Any:
    every = _numbers(count)
    return every.filter(pc.invert(pc.is_in(every, value_set=_flat(numbers))))


def _flat(values: Any) -> Any:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _numbers(count: int) -> Any:
    return pa.array(np.arange(count, dtype=np.int64))
