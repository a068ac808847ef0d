"""Values of records as columns of a table: JSON, Avro, Protobuf, text and binary.

Batches are decoded in Arrow at once; values are decoded one by one only where a batch fails. If records need a larger
schema and the table may grow, the decoder keeps collecting (`grew`) and the range is read again with that schema.

JSON values are joined as lines for Arrow's JSON reader. That is safe because each value begins with { and ends with }:
a truncated value cannot swallow the next one, so the reader fails or returns as many objects as there are values. The
slow path accepts exactly what the fast path accepts, so the fate of a record does not depend on its neighbours.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.client.errors import ConfigError
from penstock.spark.errors import DeclarationError
from penstock.spark.tables.declaration import TIMESTAMP, Column, Table, arrow_schema, type_text
from penstock.spark.tables.schema_evolution import decide, inferred

if TYPE_CHECKING:
    from penstock.spark.formats.registry import RegistryAccess
    from penstock.spark.formats.spec import DecodeSpec


VALUE: Final = "value"
_BITS: Final = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
_EPOCH_US: Final = {"ms": 1_000, "s": 1_000_000}
_INT64: Final = 2**63
_SHOWN: Final = 60
_PIECE: Final = 1000
_SAFE_US: Final = 2**63 - 1

# ---------------------------------------------------------------------------------------------- decoders


@dataclass
class Decoded:
    """`rows` are the decoded values, `index` their positions; `failures` are the others as (position, reason)."""

    rows: pa.Table
    index: Any
    failures: list[tuple[int, str]] = field(default_factory=list)


class Decoder(Protocol):
    """Decodes values for one task. `grew` is set, and `columns` has more, if the table must grow first."""

    columns: tuple[Column, ...]
    grew: bool

    def decode(self, values: Any, headers: Any = None) -> Decoded: ...


def decoder_for(table: Table) -> Decoder:
    """The decoder for a table whose columns are known."""
    if table.format == "json" and not table.registry:
        return JsonDecoder(table)
    if table.format in ("text", "binary"):
        return PlainDecoder(table)
    return SchemaDecoder(table)


def known_columns(table: Table) -> tuple[Column, ...]:
    """The columns that follow from the format; none for JSON without a registry, where records decide.

    Raises DeclarationError.
    """
    if table.columns:
        return table.columns
    if table.format == "text":
        return (Column(VALUE, pa.string()),)
    if table.format == "binary":
        return (Column(VALUE, pa.binary()),)
    if table.format == "json" and not table.registry:
        return ()
    try:
        return tuple(Column(one.name, settled_type(one.type)) for one in _schema_decoder(_spec(table)).decoded_type)
    except ConfigError as error:
        if isinstance(error, DeclarationError):
            raise
        raise DeclarationError(error.message, hint=error.hint) from None


def without_failures(count: int, failures: Sequence[tuple[int, str]]) -> Any:
    """The positions of the values without failures."""
    bad = {row for row, _ in failures}
    return pa.array([row for row in range(count) if row not in bad], pa.int64())


# ---------------------------------------------------------------------------------------------- text and binary


class PlainDecoder:
    """Values without decoding: text or bytes."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._is_text = table.format == "text"

    def decode(self, values: Any, headers: Any = None) -> Decoded:
        failures: list[tuple[int, str]] = []
        kept = values
        if self._is_text:
            try:
                kept = values.cast(pa.string())
            except pa.ArrowInvalid:
                failures = [(row, "is not UTF-8") for row, value in enumerate(values) if not _is_text(value.as_py())]
                kept = values.take(without_failures(len(values), failures)).cast(pa.string())
        index = without_failures(len(values), failures)
        return Decoded(pa.table([kept], schema=arrow_schema(self.columns)), index, failures)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode()) or True
    except UnicodeDecodeError:
        return False


# ---------------------------------------------------------------------------------------------- schemas


class _SourceDecoder(Protocol):
    """The decoder of the data source."""

    decoded_type: Any

    def decode(self, values: Any, headers: Any) -> Any: ...


class _SparkDecoder:
    def __init__(self, spec: DecodeSpec) -> None:
        from penstock.spark.formats.decoder import Decoder as SourceDecoder

        self._decoder = SourceDecoder(spec)
        self.decoded_type = self._decoder.decode(pa.array([], pa.binary())).array.type

    def decode(self, values: Any, headers: Any) -> Any:
        return self._decoder.decode(values, headers)


@lru_cache(maxsize=16)
def _schema_decoder(spec: DecodeSpec) -> _SourceDecoder:
    return _SparkDecoder(spec)


def _spec(table: Table) -> DecodeSpec:
    from penstock.spark.formats.spec import DecodeSpec

    return DecodeSpec(
        format=table.format,  # type: ignore[arg-type]
        schema=table.value_schema,
        descriptors=base64.b64decode(table.descriptors),
        framing=table.framing,  # type: ignore[arg-type]
        registry=_registry(table),
        mode="permissive",
    )


def _registry(table: Table) -> RegistryAccess | None:
    from penstock.spark.formats.registry import RegistryAccess

    if not table.registry:
        return None
    return RegistryAccess(
        table.registry, table.subject, table.registry_user, table.registry_password, table.registry_token,
        table.registry_authorities,
    )  # fmt: skip


def with_latest_schema(table: Table) -> Table:
    """The table with the latest version of its subject, if it has one, and no columns of its own.

    Raises DeclarationError, RegistryError.
    """
    from penstock.spark.formats.registry import reader_schema

    access = _registry(table)
    if access is None or not table.subject:
        return table
    message = table.value_schema if table.format == "protobuf" else ""
    try:
        found = reader_schema(table.format, access, message)
    except ConfigError as error:
        raise DeclarationError(error.message, hint=error.hint) from None
    descriptors = base64.b64encode(found.descriptors).decode()
    return replace(table, value_schema=found.text, descriptors=descriptors, columns=())


class SchemaDecoder:
    """Decodes Avro, Protobuf and, with a registry, JSON, with the decoder of the data source."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._source = _schema_decoder(_spec(table))

    def decode(self, values: Any, headers: Any = None) -> Decoded:
        found = self._source.decode(values, headers)
        failures = list(found.failures)
        index = without_failures(len(values), failures)
        structs = found.array if not failures else found.array.take(index)
        arrays = [self._array(structs, column) for column in self.columns]
        return Decoded(pa.table(arrays, schema=arrow_schema(self.columns)), index, failures)

    def _array(self, structs: Any, column: Column) -> Any:
        if structs.type.get_field_index(column.name) < 0:
            return pa.nulls(len(structs), column.type)
        # Fields of a null struct may have values: `struct_field` considers both.
        return pc.struct_field(structs, column.name).cast(column.type)


def settled_type(kind: pa.DataType) -> pa.DataType:
    """A type as tables have it: times in microseconds UTC, list elements named as in Parquet."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", settled_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, settled_type(one.type)) for one in kind])
    if pa.types.is_map(kind):
        pair = [("key", settled_type(kind.key_type)), ("value", settled_type(kind.item_type))]
        return pa.list_(pa.field("element", pa.struct(pair)))
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


# ---------------------------------------------------------------------------------------------- JSON


class JsonDecoder:
    """Decodes JSON objects."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._may_grow = table.evolution == "add"
        self._max_columns = table.max_columns
        self._read = msgspec.json.Decoder().decode

    def decode(self, values: Any, headers: Any = None) -> Decoded:
        """Decodes values; a null value is a row of nulls."""
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

    # ------------------------------------------------------------------------------------------ a batch at once

    def _fast(self, values: Any) -> Decoded | None:
        """Decodes a batch; None if values must be decoded one by one."""
        if not len(values):
            return Decoded(self._nothing(), pa.array([], pa.int64()))
        if values.null_count or not _are_objects(values):
            return None
        rows = self._parsed(values)
        if rows is None or rows.num_rows != len(values):
            return None
        if self._may_grow:
            fields = _found(rows.schema, self.columns)
            if decide(self.columns, fields, max_columns=self._max_columns).rejected:
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
            # The reader does not check that text is UTF-8.
            rows.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return rows

    def _converted(self, rows: pa.Table) -> pa.Table | None:
        """The columns of the table, with times converted from numbers or text."""
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
        """The columns of one record, None if the table has to grow for it. Raises Unfit."""
        if value is None:
            return [fit_column(None, column) for column in self.columns]
        try:
            document = self._read(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unfit(f"is not valid JSON: {error}") from None
        if not isinstance(document, dict):
            raise Unfit("is not a JSON object")
        if self._may_grow:
            known = {column.name for column in self.columns}
            fields = [_field(name, item) for name, item in document.items() if name not in known]
            self._reject(fields)
            if self._grow(fields):
                return None
        ignore_unknown = not self._may_grow
        try:
            return [fit_column(document.get(one.name), one, ignore_unknown=ignore_unknown) for one in self.columns]
        except Unfit:
            if not self._may_grow or not self._grow_for(document):
                raise
            return None

    def _reject(self, fields: Iterable[pa.Field]) -> None:
        rejected = decide(self.columns, fields, max_columns=self._max_columns).rejected
        if rejected:
            raise Unfit(rejected[0])

    def _grow(self, fields: Iterable[pa.Field]) -> bool:
        evolution = decide(self.columns, fields, max_columns=self._max_columns)
        if evolution.rejected or not evolution.changes:
            return False
        self.columns = evolution.columns
        self.grew = True
        return True

    def _grow_for(self, document: dict[str, Any]) -> bool:
        """Widens the columns that this record does not match, if that is its only problem."""
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
        raise Unfit(f"{name} has no column type")
    return pa.field(name, kind)


def _are_objects(values: Any) -> bool:
    begins = pc.all(pc.starts_with(values, b"{")).as_py()
    return bool(begins and pc.all(pc.ends_with(values, b"}")).as_py())


def _read_as(column: Column) -> pa.DataType:
    if column.epoch:
        return pa.int64()
    return pa.string() if pa.types.is_date(column.type) else column.type


def _found(schema: pa.Schema, columns: Sequence[Column]) -> list[pa.Field]:
    """The fields that the reader found. Its timestamps become text: only declared columns are times."""
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


def missing_required(columns: Sequence[Column], rows: pa.Table) -> Iterator[tuple[int, str]]:
    """Rows with null in a required column."""
    for column in columns:
        if column.required and rows.column(column.name).null_count:
            for row in pc.indices_nonzero(rows.column(column.name).is_null()).to_pylist():
                yield row, f"{column.name} is null or missing"


# ---------------------------------------------------------------------------------------------- values of JSON


class Unfit(Exception):
    """A value does not match its column; the text says why."""


def fit_column(value: Any, column: Column, *, ignore_unknown: bool = False) -> Any:
    """Converts a value for a column. Raises Unfit. `ignore_unknown` is about fields of structs."""
    if value is None:
        if column.required:
            raise Unfit(f"{column.name} is null or missing")
        return None
    if column.epoch:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _unfit(column.name, value, f"timestamp in {column.epoch} since 1970")
        time_us = value * _EPOCH_US[column.epoch]
        if not -_INT64 <= time_us < _INT64:
            raise Unfit(f"{column.name} is {value}, which is not a valid timestamp")
        return time_us
    return fit(value, column.type, column.name, ignore_unknown=ignore_unknown)


def fit(value: Any, kind: pa.DataType, where: str, *, ignore_unknown: bool = False) -> Any:
    """Converts a value for a type. Raises Unfit."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _struct(value, kind, where, ignore_unknown)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise _unfit(where, value, type_text(kind))
        return [fit(item, kind.value_type, f"{where}[]", ignore_unknown=ignore_unknown) for item in value]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _time(value, kind, where)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, where)
    return _plain(value, kind, where)


def _plain(value: Any, kind: pa.DataType, where: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if pa.types.is_boolean(kind) and isinstance(value, bool):
        return value
    if pa.types.is_string(kind) and isinstance(value, str):
        return value
    if pa.types.is_binary(kind) and isinstance(value, str):
        return value.encode()
    if pa.types.is_floating(kind) and is_number:
        return float(value)
    if kind in _BITS and is_number and isinstance(value, int):
        if -(2 ** _BITS[kind]) <= value < 2 ** _BITS[kind]:
            return value
        raise Unfit(f"{where} is {_shown(value)}, which is too large for {type_text(kind)}")
    raise _unfit(where, value, type_text(kind))


def _struct(value: Any, kind: Any, where: str, ignore_unknown: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unfit(where, value, "struct")
    known = {field.name: field.type for field in kind}
    for name in value:
        if name not in known and value[name] is not None and not ignore_unknown:
            raise Unfit(f"{where}.{name} is not in the schema")
    return {name: fit(value.get(name), known[name], f"{where}.{name}", ignore_unknown=ignore_unknown) for name in known}


def _time(value: Any, kind: pa.DataType, where: str) -> Any:
    word = "date" if pa.types.is_date(kind) else "timestamp"
    if not isinstance(value, str):
        raise _unfit(where, value, word)
    try:
        if word == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _unfit(where, value, word) from None


def _decimal(value: Any, kind: Any, where: str) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unfit(where, value, type_text(kind))
    if isinstance(value, float) and not math.isfinite(value):
        raise _unfit(where, value, type_text(kind))
    try:
        number = Decimal(str(value))
        quantized = number.quantize(Decimal(1).scaleb(-kind.scale))
    except (InvalidOperation, ValueError):
        raise _unfit(where, value, type_text(kind)) from None
    if quantized != number or len(quantized.as_tuple().digits) > kind.precision:
        raise Unfit(f"{where} is {_shown(value)}, which has too many digits for {type_text(kind)}")
    return quantized


def _unfit(where: str, value: Any, wanted: str) -> Unfit:
    return Unfit(f"{where} is {_shown(value)}, expected {wanted}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
