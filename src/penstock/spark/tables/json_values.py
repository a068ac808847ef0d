"""JSON values as columns.

Rule: a batch goes to Arrow's JSON reader as lines, in one call. That is sound only if no value can leak into the next:
each begins with { and ends with }, so after one that is cut off the next cannot be its continuation, and the reader
finds an error or as many objects as there are values. Where it does not, pieces are tried, and of the pieces that fail
each value by itself: what it says then is the reason in the dead letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.spark.tables.declaration import Table
from penstock.spark.tables.decoding import Decoded, missing_required
from penstock.spark.tables.evolution import decide, inferred
from penstock.spark.tables.fitting import Unfit, fit_column
from penstock.spark.tables.types import Column, arrow_schema

_PIECE: Final = 1000
_EPOCH_US: Final = {"ms": 1_000, "s": 1_000_000}
_SAFE_US: Final = 2**63 - 1


class JsonDecoder:
    """Reads JSON objects; may grow."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._may_grow = table.evolution == "add"
        self._max_columns = table.max_columns
        self._read = msgspec.json.Decoder().decode

    def decode(self, values: Any) -> Decoded:
        """Values that are null are rows of nulls."""
        whole = self._fast(values)
        if whole is not None:
            return whole
        parts: list[pa.Table] = []
        indexes: list[Any] = []
        failures: list[tuple[int, str]] = []
        for start in range(0, len(values), _PIECE):
            piece = values.slice(start, _PIECE)
            found = self._fast(piece) or self._slow(piece)
            if not self.grew:
                parts.append(found.rows)
            indexes.append(pc.add(found.index, start))
            failures += [(row + start, reason) for row, reason in found.failures]
        if self.grew:
            return Decoded(self._nothing(), pa.array([], pa.int64()), failures)
        rows = pa.concat_tables(parts) if parts else self._nothing()
        return Decoded(rows, pa.chunked_array(indexes, pa.int64()).combine_chunks(), failures)

    def _nothing(self) -> pa.Table:
        return arrow_schema(self.columns).empty_table()

    # ------------------------------------------------------------------------------------------ many at once

    def _fast(self, values: Any) -> Decoded | None:
        """None if some of them must be looked at one by one."""
        if not len(values):
            return Decoded(self._nothing(), pa.array([], pa.int64()))
        if values.null_count or not _are_objects(values):
            return None
        rows = self._parsed(values)
        if rows is None or rows.num_rows != len(values):
            return None
        if self._may_grow:
            fields = _found(rows.schema, self.columns)
            if decide(self.columns, fields, max_columns=self._max_columns).refused:
                return None
            if self._grow(fields):
                return Decoded(self._nothing(), pa.array([], pa.int64()))
        rows = self._converted(rows)
        if rows is None or any(True for _ in missing_required(self.columns, rows)):
            return None
        return Decoded(rows, pa.array(range(len(values)), pa.int64()))

    def _parsed(self, values: Any) -> pa.Table | None:
        lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values), b"\n")
        buffer = lines[0].as_buffer()
        try:
            rows = pj.read_json(
                pa.BufferReader(buffer),
                read_options=pj.ReadOptions(use_threads=False, block_size=buffer.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=pa.schema([(column.name, _read_as(column)) for column in self.columns]),
                    unexpected_field_behavior="infer" if self._may_grow else "ignore",
                ),
            )
            # It does not look whether text is UTF-8.
            rows.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return rows

    def _converted(self, rows: pa.Table) -> pa.Table | None:
        """The columns of the table, with times that were numbers or text turned into times."""
        arrays: list[Any] = []
        for column in self.columns:
            array = rows.column(column.name)
            if column.epoch:
                scale = _EPOCH_US[column.epoch]
                if pc.any(pc.greater(pc.abs_checked(array), _SAFE_US // scale)).as_py():
                    return None
                array = pc.multiply(array, scale)
            try:
                arrays.append(array.cast(column.type))
            except pa.ArrowInvalid:
                return None
        return pa.table(arrays, schema=arrow_schema(self.columns))

    # ------------------------------------------------------------------------------------------ one by one

    def _slow(self, values: Any) -> Decoded:
        kept: list[list[Any]] = []
        index: list[int] = []
        failures: list[tuple[int, str]] = []
        for number, value in enumerate(values.to_pylist()):
            try:
                row = self._row(value)
            except Unfit as reason:
                failures.append((number, str(reason)))
                continue
            if row is not None:
                kept.append(row)
                index.append(number)
        if self.grew:
            return Decoded(self._nothing(), pa.array([], pa.int64()), failures)
        arrays = [_array([row[position] for row in kept], column) for position, column in enumerate(self.columns)]
        return Decoded(pa.table(arrays, schema=arrow_schema(self.columns)), pa.array(index, pa.int64()), failures)

    def _row(self, value: bytes | None) -> list[Any] | None:
        """The columns of one record, None if the table has to grow for it; raises Unfit."""
        if value is None:
            return [fit_column(None, column) for column in self.columns]
        try:
            document = self._read(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unfit(f"is no JSON: {error}") from None
        if not isinstance(document, dict):
            raise Unfit("is JSON, but no object")
        if self._may_grow:
            known = {column.name for column in self.columns}
            fields = [_field(name, item) for name, item in document.items() if name not in known]
            self._refuse(fields)
            if self._grow(fields):
                return None
        passes_over = not self._may_grow
        try:
            return [fit_column(document.get(one.name), one, passes_over=passes_over) for one in self.columns]
        except Unfit:
            if not self._may_grow or not self._grow_for(document):
                raise
            return None

    def _refuse(self, fields: Iterable[pa.Field]) -> None:
        refused = decide(self.columns, fields, max_columns=self._max_columns).refused
        if refused:
            raise Unfit(refused[0])

    def _grow(self, fields: Iterable[pa.Field]) -> bool:
        evolution = decide(self.columns, fields, max_columns=self._max_columns)
        if evolution.refused or not evolution.changes:
            return False
        self.columns = evolution.columns
        self.grew = True
        return True

    def _grow_for(self, document: dict[str, Any]) -> bool:
        """Widen those columns that this record does not fit, if that is all that is wrong with it."""
        fields: list[pa.Field] = []
        for column in self.columns:
            try:
                fit_column(document.get(column.name), column)
            except Unfit:
                kind = inferred(document.get(column.name))
                if kind is None or pa.types.is_null(kind) or column.epoch:
                    return False
                fields.append(pa.field(column.name, kind))
        return self._grow(fields)


def _field(name: str, value: Any) -> pa.Field:
    kind = inferred(value)
    if kind is None:
        raise Unfit(f"{name} is of no type that a column can have")
    return pa.field(name, kind)


def _are_objects(values: Any) -> bool:
    begins = pc.all(pc.starts_with(values, b"{")).as_py()
    return bool(begins and pc.all(pc.ends_with(values, b"}")).as_py())


def _read_as(column: Column) -> pa.DataType:
    if column.epoch:
        return pa.int64()
    return pa.string() if pa.types.is_date(column.type) else column.type


def _found(schema: pa.Schema, columns: Sequence[Column]) -> list[pa.Field]:
    """What the reader saw, without what it takes for times: text is text until somebody declares it."""
    read_as = {column.name: _read_as(column) for column in columns}
    return [
        pa.field(one.name, _as_text(one.type))
        for one in schema
        if one.name not in read_as or (pa.types.is_nested(one.type) and not one.type.equals(read_as[one.name]))
    ]


def _as_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _as_text(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _as_text(one.type)) for one in kind])
    return kind


def _array(values: list[Any], column: Column) -> Any:
    if column.epoch:
        return pa.array(values, pa.int64()).cast(column.type)
    return pa.array(values, column.type)
