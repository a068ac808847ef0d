"""Columns of Arrow tables as numpy arrays: instants, groups, trailing sums, and statistics of small samples.

There is no loop over rows: this runs over some hundred thousand rows in every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

INSTANT: Final = pa.timestamp("us", "UTC")
_TYPES: Final = {
    "timestamp": INSTANT,
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
}


def schema_of(columns: str) -> pa.Schema:
    """The Arrow schema of a Spark DDL such as "minute timestamp, searches bigint"."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in (column.split() for column in columns.split(","))])


def instants(rows: pa.Table, name: str) -> Integers:
    """A column of timestamps, in microseconds."""
    return integers(rows.column(name).cast(INSTANT).cast(pa.int64()))


def microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def integers(column: pa.ChunkedArray | pa.Array) -> Integers:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(whole.to_numpy(zero_copy_only=False), dtype=np.int64)


def floats(rows: pa.Table, name: str) -> Floats:
    return np.asarray(rows.column(name).to_numpy(), dtype=np.float64)


def codes(rows: pa.Table, name: str) -> Integers:
    """A code for each value of a text column; equal values have equal codes."""
    return integers(rows.column(name).combine_chunks().dictionary_encode().indices)


@dataclass(frozen=True)
class Groups:
    """Groups of rows with equal values, in order of first appearance."""

    of: Integers
    """The group of each row."""
    first: Integers
    """The first row of each group."""

    @property
    def count(self) -> int:
        return len(self.first)

    def sums(self, values: Floats | Integers | Flags) -> Floats:
        return np.bincount(self.of, weights=values, minlength=self.count).astype(np.float64)

    def sizes(self) -> Integers:
        return np.bincount(self.of, minlength=self.count)

    def least(self, values: Integers) -> Integers:
        least = np.full(self.count, np.iinfo(np.int64).max)
        np.minimum.at(least, self.of, values)
        return least

    def greatest(self, values: Integers) -> Integers:
        greatest = np.full(self.count, np.iinfo(np.int64).min)
        np.maximum.at(greatest, self.of, values)
        return greatest


def grouped(*columns: Integers) -> Groups:
    """Groups rows by equal values, by hashing, which is many times faster than sorting."""
    combined = columns[0]
    for column in columns[1:]:
        combined = _combined(combined, column)
    of = _numbered(combined)
    first = np.zeros(int(of.max(initial=-1)) + 1, dtype=np.int64)
    first[of[::-1]] = np.arange(len(of) - 1, -1, -1)
    return Groups(of, first)


def _combined(one: Integers, other: Integers) -> Integers:
    """A code for each pair; equal pairs have equal codes."""
    if not len(one):
        return one
    if _span(one) * _span(other) >= 1 << 62:
        one, other = _numbered(one), _numbered(other)
    return np.asarray((one - one.min()) * _span(other) + (other - other.min()))


def _span(column: Integers) -> int:
    return int(column.max()) - int(column.min()) + 1


def _numbered(column: Integers) -> Integers:
    """Codes from 0 on, in order of first appearance."""
    return integers(pa.array(column).dictionary_encode().indices)


def trailing_sums(series: Integers, minute_us: Integers, values: Floats, length: timedelta) -> Floats:
    """The sum, for each row, of its series over the `length` before its time.

    Series 0 with 5 at minute 1, 7 at minute 2, 9 at minute 4, and a length of two minutes: 0, 5, 7.
    """
    if not len(series):
        return np.zeros(0)
    start = int(minute_us.min())
    span = int(minute_us.max()) - start + microseconds(length) + 1
    key = series * span + (minute_us - start)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    before = np.concatenate(([0.0], np.cumsum(values[order])))
    floor = np.maximum(ordered - microseconds(length), series[order] * span)
    # Looked up in order: random access would miss the CPU cache each time.
    sums = np.empty(len(key))
    sums[order] = before[np.searchsorted(ordered, ordered)] - before[np.searchsorted(ordered, floor)]
    return sums


def within(rows: pa.Table, name: str, horizon: timedelta) -> pa.Table:
    """The rows within the horizon before the newest row."""
    time_us = instants(rows, name)
    if not len(time_us):
        return rows
    keep = time_us > int(time_us.max()) - microseconds(horizon)
    return rows if bool(keep.all()) else rows.filter(pa.array(keep))


def decay(age_us: Integers, half_life: timedelta) -> Floats:
    return np.exp2(-age_us / microseconds(half_life))


def wilson_lower(successes: Floats, trials: Floats, z: float = 1.64) -> Floats:
    """The lower bound of the Wilson interval of a share; 0 without trials."""
    safe = np.maximum(trials, 1e-9)
    share = np.minimum(successes / safe, 1.0)
    middle = share + z * z / (2 * safe)
    spread = z * np.sqrt(share * (1 - share) / safe + z * z / (4 * safe * safe))
    return np.where(trials > 0, np.maximum(middle - spread, 0.0) / (1 + z * z / safe), 0.0)


def instant_column(time_us: Integers) -> pa.Array:
    return pa.array(time_us).cast(INSTANT)


def table_of(schema: pa.Schema, **columns: Any) -> pa.Table:
    """A table with exactly this schema; numpy arrays are cast."""
    arrays = [
        instant_column(columns[field.name])
        if field.type == INSTANT and not isinstance(columns[field.name], (pa.Array, pa.ChunkedArray))
        else _array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> Any:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.cast(kind)
    return pa.array(values, type=kind) if isinstance(values, list) else pa.array(values).cast(kind, safe=False)
