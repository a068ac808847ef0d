"""Values of records as columns of the table.

Noun: `Decoder`, for one task; it is given values batch by batch and answers with rows, and with what did not fit.

Rule: whole batches at once, in Arrow; one at a time only those of which some would not go. A decoder that finds records
which fit a larger schema, where the table may grow, does not guess what becomes of the rest: it goes on looking, so
that all that is new is known at the end (`grew`), and the range is read again with the larger schema.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.errors import ConfigError
from penstock.spark.tables.declaration import Table
from penstock.spark.tables.errors import DeclarationError
from penstock.spark.tables.types import TIMESTAMP, Column, arrow_schema

if TYPE_CHECKING:
    from penstock.spark.decode_spec import DecodeSpec

VALUE: Final = "value"


@dataclass
class Decoded:
    """`rows` are those that fit, `index` says which of the values they are; `failures` are the others."""

    rows: pa.Table
    index: Any
    failures: list[tuple[int, str]] = field(default_factory=list)


class Decoder(Protocol):
    """Reads values for one task."""

    columns: tuple[Column, ...]
    grew: bool

    def decode(self, values: Any) -> Decoded: ...


def decoder_for(table: Table) -> Decoder:
    """The decoder of a table whose columns are known."""
    if table.format == "json":
        from penstock.spark.tables.json_values import JsonDecoder

        return JsonDecoder(table)
    if table.format in ("text", "binary"):
        return PlainDecoder(table)
    return SchemaDecoder(table)


def known_columns(table: Table) -> tuple[Column, ...]:
    """The columns that the format itself brings; none where only records can tell (JSON). Raises DeclarationError."""
    if table.columns:
        return table.columns
    if table.format == "text":
        return (Column(VALUE, pa.string()),)
    if table.format == "binary":
        return (Column(VALUE, pa.binary()),)
    if table.format == "json":
        return ()
    try:
        return tuple(Column(one.name, settled_type(one.type)) for one in _schema_decoder(_spec(table)).decoded_type)
    except ConfigError as error:
        if isinstance(error, DeclarationError):
            raise
        raise DeclarationError(error.message, hint=error.hint) from None


def without_failures(count: int, failures: Sequence[tuple[int, str]]) -> Any:
    """Which of `count` values are left."""
    bad = {row for row, _ in failures}
    return pa.array([row for row in range(count) if row not in bad], pa.int64())


class PlainDecoder:
    """Values as they are: text, or bytes."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._is_text = table.format == "text"

    def decode(self, values: Any) -> Decoded:
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


class _Reads(Protocol):
    """What reads Avro and Protobuf for data sources too."""

    decoded_type: Any

    def decode(self, values: Any) -> Any: ...


class _SparkReads:
    def __init__(self, spec: DecodeSpec) -> None:
        from penstock.spark.decoding import Decoder as SourceDecoder

        self._decoder = SourceDecoder(spec)
        self.decoded_type = self._decoder.decode(pa.array([], pa.binary())).array.type

    def decode(self, values: Any) -> Any:
        return self._decoder.decode(values)


@lru_cache(maxsize=16)
def _schema_decoder(spec: DecodeSpec) -> _Reads:
    return _SparkReads(spec)


def _spec(table: Table) -> DecodeSpec:
    from penstock.spark.decode_spec import DecodeSpec

    return DecodeSpec(
        format=table.format,  # type: ignore[arg-type]
        schema=table.value_schema,
        descriptors=base64.b64decode(table.descriptors),
        framing=table.framing,  # type: ignore[arg-type]
        registry=table.registry or None,
        mode="permissive",
    )


class SchemaDecoder:
    """Avro and Protobuf, by their schema."""

    def __init__(self, table: Table) -> None:
        self.columns = table.columns
        self.grew = False
        self._reads = _schema_decoder(_spec(table))

    def decode(self, values: Any) -> Decoded:
        found = self._reads.decode(values)
        failures = list(found.failures)
        index = without_failures(len(values), failures)
        structs = found.array if not failures else found.array.take(index)
        arrays = [self._array(structs, column) for column in self.columns]
        return Decoded(pa.table(arrays, schema=arrow_schema(self.columns)), index, failures)

    def _array(self, structs: Any, column: Column) -> Any:
        if structs.type.get_field_index(column.name) < 0:
            return pa.nulls(len(structs), column.type)
        # A struct that is null has fields that are not: `struct_field` looks at both.
        return pc.struct_field(structs, column.name).cast(column.type)


def settled_type(kind: pa.DataType) -> pa.DataType:
    """A type as the table has it: times in microseconds of UTC, elements by Parquet's name."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", settled_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, settled_type(one.type)) for one in kind])
    if pa.types.is_map(kind):
        pair = [("key", settled_type(kind.key_type)), ("value", settled_type(kind.item_type))]
        return pa.list_(pa.field("element", pa.struct(pair)))
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def missing_required(columns: Sequence[Column], rows: pa.Table) -> Iterator[tuple[int, str]]:
    """Rows that have null where there must be a value."""
    for column in columns:
        if column.required and rows.column(column.name).null_count:
            for row in pc.indices_nonzero(rows.column(column.name).is_null()).to_pylist():
                yield row, f"{column.name} is null or missing"
