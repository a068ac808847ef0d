"""What new rows do to a table that has a row for each key. Pure, over Arrow tables.

Noun: `Change`, which rows are new or different, which go, and what is left of the files that had an older row.

Rule: a row replaces the row of its key; with a span of time, the rows of that span that are not given any more go. A
row that is given again as it is changes nothing, so whoever computes too much writes only what is different. Files stay
small and in the order of time: the part of a table that still changes is rewritten, the rest is not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

FILE_ROWS: Final = 20_000
"""A file with more rows is written as two, one of them with the times that are done with."""
_OLD: Final = "_old"
_NEW: Final = "_new"


@dataclass(frozen=True)
class Span:
    """Times from `start` (None: from the first) up to before `end` (None: to the last)."""

    start: datetime | None = None
    end: datetime | None = None

    def holds(self, times: Any) -> Any:
        """Which of the times are in it."""
        found: Any = pa.repeat(pa.scalar(True), len(times))
        if self.start is not None:
            found = pc.and_(found, pc.greater_equal(times, pa.scalar(self.start, times.type)))
        if self.end is not None:
            found = pc.and_(found, pc.less(times, pa.scalar(self.end, times.type)))
        return found

    def meets(self, low: datetime, high: datetime) -> bool:
        """Whether one of the times from `low` to `high` may be in it."""
        return (self.start is None or high >= self.start) and (self.end is None or low < self.end)


@dataclass(frozen=True)
class Change:
    """`touched` are the files (by path) that had a row which is different now or goes."""

    changed: pa.Table
    deleted: pa.Table
    touched: tuple[str, ...] = ()
    kept: Sequence[pa.Table] = field(default_factory=tuple)
    """What is left of the touched files."""

    @property
    def is_empty(self) -> bool:
        return not self.changed.num_rows and not self.deleted.num_rows


def plan(
    rows: pa.Table, files: Mapping[str, pa.Table], key: Sequence[str], time: str, replaced: Span | None = None
) -> Change:
    """What `rows` (one of each key) do to the files that may have rows of the same keys, or of the span."""
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


def split(rows: pa.Table, time: str, most: int = FILE_ROWS) -> Iterator[tuple[str, pa.Table]]:
    """The rows as files of one day each, in the order of time, none much larger than `most`: with its day."""
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
    """Where a file that begins with row `first` ends: rows of one time are in one file as far as that is possible."""
    if len(times) - first <= most:
        return len(times)
    end = first + most // 2
    last = times[end - 1]
    while end < len(times) and end < first + most and times[end] == last:
        end += 1
    return end


def bounds(rows: pa.Table, time: str) -> tuple[datetime, datetime]:
    found = pc.min_max(rows.column(time)).as_py()
    return found["min"], found["max"]


def day_of(moment: datetime) -> str:
    return moment.astimezone(UTC).date().isoformat()


def last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """One row a key: the last."""
    numbered = rows.append_column(_NEW, _numbers(rows.num_rows))
    last = numbered.group_by(list(key)).aggregate([(_NEW, "max")]).column(f"{_NEW}_max")
    return rows if len(last) == rows.num_rows else rows.take(last)


def _pairs(before: pa.Table, rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Numbers of rows that have the same key."""
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
    """Which values differ; Arrow itself does not compare lists and structs."""
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
    # From numbers among lists of one length to numbers among all of them.
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
