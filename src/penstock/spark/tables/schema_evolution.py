"""How the columns of a table follow its records: added, widened, or inferred from a sample.

Data in the table never changes its meaning. Columns may be added (null in older rows), and a type may be replaced only
by one that holds all its values: int to long, int to double, float to double, more digits of a decimal, more fields of
a struct. Any other difference makes the record a dead letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.spark.options import ReaderOptions
from penstock.spark.tables.declaration import RESERVED, Column, Table, type_text
from penstock.spark.tables.load_plan import LogState

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_EXACT_IN_DOUBLE: Final = (pa.int8(), pa.int16(), pa.int32(), pa.float32())
_MOST_DIGITS: Final = 38
_LONGEST_NAME: Final = 255
# Not allowed in column names of Spark's and Delta's Parquet files.
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
_INT64: Final = 2**63
_SAMPLE: Final = 1000

# ---------------------------------------------------------------------------------------------- decisions


@dataclass(frozen=True)
class Evolution:
    """The columns that a table should have; `rejected` has a line for each field that does not fit."""

    columns: tuple[Column, ...]
    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.added or self.widened)


def decide(columns: Sequence[Column], found: Iterable[pa.Field], *, max_columns: int = 1000) -> Evolution:
    """How columns change for the fields that were found in records."""
    by_name = {column.name: column for column in columns}
    lowered = {column.name.lower(): column.name for column in columns}
    added: list[str] = []
    widened: list[str] = []
    rejected: list[str] = []
    for field in found:
        kind = known_part(field.type)
        if kind is None:
            continue
        column = by_name.get(field.name)
        if column is None:
            problem = _cannot_add(field.name, lowered, len(by_name), max_columns)
            if problem:
                rejected.append(f"the field {field.name!r} cannot become a column: {problem}")
                continue
            by_name[field.name] = Column(field.name, kind)
            lowered[field.name.lower()] = field.name
            added.append(field.name)
            continue
        if column.epoch or kind.equals(column.type):
            continue
        merged = wider(column.type, kind)
        if merged is None:
            rejected.append(f"{field.name} is {type_text(column.type)}, but the record has {type_text(kind)}")
        elif not merged.equals(column.type):
            by_name[field.name] = column._replace(type=merged)
            widened.append(field.name)
    return Evolution(tuple(by_name.values()), tuple(added), tuple(widened), tuple(rejected))


def _cannot_add(name: str, lowered: dict[str, str], count: int, max_columns: int) -> str:
    if name.lower() in RESERVED:
        return "the name is reserved"
    if name.lower() in lowered:
        return f"{lowered[name.lower()]!r} exists, and column names are case-insensitive"
    if count >= max_columns:
        return f"the table already has {count} columns (max_columns)"
    return name_problem(name)


def name_problem(name: str) -> str:
    """Why a field cannot become a column; "" if it can."""
    if not name or len(name) > _LONGEST_NAME:
        return "its name is empty" if not name else f"its name has more than {_LONGEST_NAME} characters"
    if _NOT_IN_NAMES.search(name):
        return "its name contains a space or one of ,;{}()="
    return ""


# ---------------------------------------------------------------------------------------------- wider types


def wider(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both; None if there is none."""
    if old.equals(new) or pa.types.is_null(new):
        return old
    if pa.types.is_null(old):
        return new
    if old in _INTEGERS and new in _INTEGERS:
        return max(old, new, key=_INTEGERS.index)
    if pa.types.is_floating(old) and new in (*_INTEGERS, pa.float32(), pa.float64()):
        # JSON does not distinguish 1 and 1.0.
        return pa.float64() if new.equals(pa.float64()) else old
    if old in _EXACT_IN_DOUBLE and new.equals(pa.float64()):
        return new
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return _wider_decimal(old, new)
    if pa.types.is_list(old) and pa.types.is_list(new):
        item = wider(old.value_type, new.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _wider_struct(old, new)
    return None


def _wider_decimal(old: Any, new: Any) -> pa.DataType | None:
    scale = max(old.scale, new.scale)
    digits = max(old.precision - old.scale, new.precision - new.scale) + scale
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def _wider_struct(old: Any, new: Any) -> pa.DataType | None:
    fields = {field.name: field.type for field in old}
    for field in new:
        before = fields.get(field.name)
        merged = field.type if before is None else wider(before, field.type)
        if merged is None or (before is None and name_problem(field.name)):
            return None
        fields[field.name] = merged
    return pa.struct(list(fields.items()))


def known_part(kind: pa.DataType) -> pa.DataType | None:
    """The known part of a type, without nulls; None if nothing is known."""
    if pa.types.is_list(kind):
        item = known_part(kind.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_struct(kind):
        fields = [(field.name, part) for field in kind if (part := known_part(field.type)) is not None]
        return pa.struct(fields) if fields else None
    return None if pa.types.is_null(kind) else kind


# ---------------------------------------------------------------------------------------------- inference


def sample_columns(table: Table, state: LogState, bootstrap: str, reader: ReaderOptions) -> tuple[Column, ...]:
    """The columns of the first records of each partition; none if there are no records."""
    return infer_columns(_documents(table, state, bootstrap, reader))


def _documents(table: Table, state: LogState, bootstrap: str, reader: ReaderOptions) -> Iterator[Any]:
    from penstock.spark.fetch import read_range

    decode = msgspec.json.Decoder().decode
    for partition, (begin, end) in state.bounds.items():
        last = min(end, begin + _SAMPLE)
        batches = read_range(
            bootstrap, reader, table.topic, partition, begin, last, isolation=table.isolation,  # type: ignore[arg-type]
        )  # fmt: skip
        for batch in batches:
            for value in batch.column("value").to_pylist():
                try:
                    yield None if value is None else decode(value)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue  # It will be a dead letter.


def infer_columns(rows: Iterable[Any]) -> tuple[Column, ...]:
    """The columns of a sample: the fields that can be columns, with types that hold their values.

    A value that contradicts earlier ones is ignored: its record will be a dead letter.
    """
    fields: dict[str, pa.DataType] = {}
    for row in rows:
        if not isinstance(row, dict):
            continue
        for name, value in row.items():
            kind = inferred(value)
            merged = None if kind is None else _either(fields.get(name, pa.null()), kind)
            if merged is not None:
                fields[name] = merged
    found = [pa.field(name, kind) for name, kind in fields.items()]
    return decide((), found).columns


def inferred(value: Any) -> pa.DataType | None:
    """The type of a JSON value; None if there is none, as for mixed arrays and huge numbers."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_INT64 <= value < _INT64 else None
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, list):
        item: pa.DataType | None = pa.null()
        for each in value:
            one = inferred(each)
            item = None if item is None or one is None else _either(item, one)
        return None if item is None else pa.list_(pa.field("element", item))
    if isinstance(value, dict):
        fields = {name: inferred(each) for name, each in value.items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return None


def _either(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of two values of one sample; integers among floats are floats."""
    numbers = (pa.int64(), pa.float64())
    if one in numbers and other in numbers and not one.equals(other):
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            merged = _either(fields.get(field.name, pa.null()), field.type)
            if merged is None:
                return None
            fields[field.name] = merged
        return pa.struct(list(fields.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        item = _either(one.value_type, other.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    return wider(one, other)
