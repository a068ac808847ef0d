"""`penstock.decode`: decodes the value of each record into a struct column.

    spark.readStream.format("penstock").option("penstock.decode", "json: id BIGINT, name STRING") ...
    penstock.spark.decode(df, "avro: view.avsc")            # any DataFrame with a column value

One column is added; the others stay. A null value (a tombstone) is a null struct. A record that does not match the
schema fails the query with its topic, partition and offset (mode `failfast`, the default) or is a null struct
(`permissive`).

JSON is strict: types must match, unknown fields are ignored, a missing field is null unless it is NOT NULL, and times
without a zone are UTC. With a registry, `json` takes its columns from a JSON Schema. Columns are built field by field,
so nested values cost as much as flat ones.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from penstock.client.errors import ConfigError, DeserializationError
from penstock.client.serializers.json import Json
from penstock.spark.errors import one_line
from penstock.spark.formats import json_schema
from penstock.spark.formats.registry import HEADER, client_of, framed_reader
from penstock.spark.formats.spec import OPTION, OPTION_NAMES, DecodeSpec, parse_spec, spec_of_options

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


__all__ = [
    "DecodeSpec",
    "Decoded",
    "Decoder",
    "OPTION_NAMES",
    "decode",
    "decode_batch",
    "decoded_field",
    "parse_spec",
    "spec_of_options",
]
# Returns the function that takes the n-th field of a struct from a record.
Access = Callable[[spark.StructType, int], Callable[[Any], Any]]
HEADERS: Final = "headers"
_SCHEMA_ID: Final = "penstock.schema.id"
_WHERE: Final = ("topic", "partition", "offset")
_INTEGERS: Final[dict[type[spark.DataType], int]] = {
    spark.ByteType: 7,
    spark.ShortType: 15,
    spark.IntegerType: 31,
    spark.LongType: 63,
}
_ATOMS: Final[dict[type[spark.DataType], Any]] = {
    spark.BooleanType: bool,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.StringType: str,
    spark.BinaryType: bytes,
    spark.DateType: datetime.date,
    spark.TimestampType: datetime.datetime,
    spark.TimestampNTZType: datetime.datetime,
    spark.DecimalType: decimal.Decimal,
}

# ---------------------------------------------------------------------------------------------- DataFrames and batches


def decode(df: DataFrame, spec: DecodeSpec | str, **parts: str) -> DataFrame:
    """Adds a column with the decoded column value, named `decoded` unless the spec has another name.

    `spec` is a text as in the option, or a DecodeSpec; `parts` are schema, message, framing, mode, column, registry,
    registry_user, registry_password, registry_token, registry_ca and subject.
    """
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.functions import arrow_udf

    if isinstance(spec, str):
        spec = parse_spec(spec, **parts)
    elif parts:
        raise ConfigError(
            "a DecodeSpec takes no further arguments", hint="Pass a DecodeSpec, or text with keyword arguments"
        )
    if "value" not in df.columns:
        raise ConfigError(f"column value is missing; columns are {', '.join(df.columns)}")
    if spec.column in df.columns:
        raise _taken(spec.column)
    with_place = all(name in df.columns for name in _WHERE)
    with_headers = spec.registry is not None and with_place and HEADERS in df.columns
    # The stubs do not know that the function type can come from annotations.
    make: Any = arrow_udf
    chosen = _placed_with_headers(spec) if with_headers else _placed(spec) if with_place else _alone(spec)
    # Spark compares the type with that of the Arrow column, which has no metadata.
    function = make(chosen, nullable(Decoder(spec).struct, with_metadata=False))
    names = ["value", *(_WHERE if with_place else ()), *([HEADERS] if with_headers else ())]
    return df.withColumn(spec.column, function(*map(col, names)))


def decode_batch(batch: pyarrow.RecordBatch, spec: DecodeSpec) -> pyarrow.RecordBatch:
    """The batch with the decoded column added. Raises DeserializationError in mode failfast."""
    headers = batch.column(HEADERS) if HEADERS in batch.schema.names else None
    decoded = Decoder(spec).decode(batch.column("value"), headers)
    if decoded.failures and spec.mode == "failfast":
        row, reason = decoded.failures[0]
        where = [batch.column(name)[row].as_py() if name in batch.schema.names else None for name in _WHERE]
        raise _poisoned(spec, reason, where, batch.column("value")[row].as_py())
    if spec.column in batch.schema.names:
        raise _taken(spec.column)
    return batch.append_column(spec.column, decoded.array)


def decoded_field(spec: DecodeSpec) -> StructField:
    """The column that decoding adds; it says which schema of a registry it has."""
    from pyspark.sql.types import StructField

    metadata = {_SCHEMA_ID: spec.schema_id} if spec.schema_id >= 0 else None
    return StructField(spec.column, Decoder(spec).struct, True, metadata)


def schema_id_of(struct: spark.StructType) -> int:
    """The id that `decoded_field` wrote into the schema of a query; -1 without."""
    found = [field.metadata[_SCHEMA_ID] for field in struct if _SCHEMA_ID in (field.metadata or {})]
    return int(found[-1]) if found else -1


def _alone(spec: DecodeSpec) -> Callable[[pyarrow.Array], pyarrow.Array]:
    def decoded(value: pyarrow.Array) -> pyarrow.Array:
        return _checked(spec, value, None)

    return _annotated(decoded, 1)


def _placed(spec: DecodeSpec) -> Callable[..., pyarrow.Array]:
    def decoded(
        value: pyarrow.Array, topic: pyarrow.Array, partition: pyarrow.Array, offset: pyarrow.Array
    ) -> pyarrow.Array:
        return _checked(spec, value, (topic, partition, offset))

    return _annotated(decoded, 4)


def _placed_with_headers(spec: DecodeSpec) -> Callable[..., pyarrow.Array]:
    def decoded(
        value: pyarrow.Array,
        topic: pyarrow.Array,
        partition: pyarrow.Array,
        offset: pyarrow.Array,
        headers: pyarrow.Array,
    ) -> pyarrow.Array:
        return _checked(spec, value, (topic, partition, offset), headers)

    return _annotated(decoded, 5)


def _annotated(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Replaces annotations that are text by types: Spark reads them to find the function type."""
    import pyarrow

    names = list(function.__annotations__)[:count]
    function.__annotations__ = {**dict.fromkeys(names, pyarrow.Array), "return": pyarrow.Array}
    return function


def _checked(
    spec: DecodeSpec,
    values: pyarrow.Array,
    where: tuple[pyarrow.Array, ...] | None,
    headers: pyarrow.Array | None = None,
) -> pyarrow.Array:
    decoded = Decoder(spec).decode(values, headers)
    if decoded.failures and spec.mode == "failfast":
        row, reason = decoded.failures[0]
        place = [None, None, None] if where is None else [column[row].as_py() for column in where]
        raise _poisoned(spec, reason, place, values[row].as_py())
    return decoded.array


def _poisoned(spec: DecodeSpec, reason: str, where: list[Any], data: Any) -> DeserializationError:
    topic, partition, offset = where
    place = "a record" if topic is None else f"{topic}-{partition} at offset {offset}"
    return DeserializationError(
        f"{place} does not match its {spec.format} schema: {reason}",
        topic=topic, partition=partition, offset=offset, field="value",
        data=data if isinstance(data, bytes) else None,
        hint=f"Set {OPTION}.mode=permissive to decode such records as null",
    )  # fmt: skip


def _taken(column: str) -> ConfigError:
    return ConfigError(f"column {column} already exists", hint=f"Choose another name with {OPTION}.column")


# ---------------------------------------------------------------------------------------------- values


class Undecodable(Exception):
    """A record does not match the schema; the text is the reason, in one line."""


def undecodable(error: DeserializationError) -> Undecodable:
    """The reason of a client's error, without the details of the client."""
    cause = error.__cause__
    return Undecodable(one_line(cause if cause is not None else error.message))


class Decoded(NamedTuple):
    """Decoded values, null for a null or bad value, and the bad ones as (row, reason)."""

    array: pyarrow.StructArray
    failures: list[tuple[int, str]]


class Decoder:
    """Decodes values by a spec. Raises ConfigError if the spec is invalid."""

    def __init__(self, spec: DecodeSpec) -> None:
        self.spec = spec
        self._format: RecordFormat = record_format(spec)
        self.struct = nullable(self._format.struct)

    def decode(self, values: pyarrow.Array, headers: pyarrow.Array | None = None) -> Decoded:
        """Decodes a column of binary or string. Bad records do not raise; a registry that does not answer does."""
        failures: list[tuple[int, str]] = []
        read, read_framed = self._format.read, self._format.read_framed
        frames = _frames(headers) if headers is not None and read_framed is not None else None
        records: list[Any] = []
        for row, value in enumerate(_bytes_of(values)):
            try:
                if value is None:
                    records.append(None)
                elif frames is None or read_framed is None:
                    records.append(read(value))
                else:
                    records.append(read_framed(value, frames[row]))
            except Undecodable as reason:
                records.append(None)
                failures.append((row, str(reason)))
        try:
            return Decoded(self._array(records), failures)
        except (ArithmeticError, TypeError, ValueError):
            # Some value does not fit its column, such as a decimal with too many digits: find the records.
            records, more = self._without_misfits(records)
            return Decoded(self._array(records), sorted([*failures, *more]))

    def _array(self, records: list[Any]) -> pyarrow.StructArray:
        return struct_array(records, self._format.struct, self._format.access)

    def _without_misfits(self, records: list[Any]) -> tuple[list[Any], list[tuple[int, str]]]:
        kept: list[Any] = []
        failures: list[tuple[int, str]] = []
        for row, record in enumerate(records):
            try:
                self._array([record])
            except (ArithmeticError, TypeError, ValueError) as error:
                failures.append((row, one_line(error)))
                kept.append(None)
            else:
                kept.append(record)
        return kept, failures


def _bytes_of(values: pyarrow.Array) -> list[bytes | None]:
    import pyarrow as pa

    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    found: list[bytes | None] = values.to_pylist()
    return found


def _frames(headers: pyarrow.Array) -> list[bytes | None] | None:
    """The header of each record that names its schema; None if no record has one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (
        pa.types.is_null(headers.type)
        or not pc.any(pc.equal(pc.struct_field(headers.flatten(), "key"), HEADER)).as_py()
    ):
        return None
    return [
        next((each["value"] for each in reversed(row or ()) if each["key"] == HEADER), None)
        for row in headers.to_pylist()
    ]


# ---------------------------------------------------------------------------------------------- formats


class RecordFormat(NamedTuple):
    """A spec that is ready for use. `read` decodes a record's bytes; it raises Undecodable."""

    struct: spark.StructType
    read: Callable[[bytes], Any]
    access: Access
    read_framed: Callable[[bytes, bytes | None], Any] | None = None
    """With a registry: the same for a value whose schema may be in a header."""


def struct_of(spec: DecodeSpec) -> spark.StructType:
    """The struct of the decoded records. Raises ConfigError if the spec is invalid."""
    return record_format(spec).struct


@lru_cache(maxsize=32)
def record_format(spec: DecodeSpec) -> RecordFormat:
    """Prepares a spec. Raises ConfigError."""
    if spec.format == "json":
        return _json_format(spec)
    if spec.format == "avro":
        from penstock.spark.formats.avro import avro_format

        return avro_format(spec)
    from penstock.spark.formats.protobuf import protobuf_format

    return protobuf_format(spec)


def _json_format(spec: DecodeSpec) -> RecordFormat:
    from penstock.spark.formats.ddl import parse_schema

    struct = parse_schema(spec.schema)
    kind = _json_type(struct)
    if spec.registry is not None:
        # The schema is for writers: it keeps msgspec from making one, which needs types of different names.
        framed = framed_reader(Json(kind, registry=client_of(spec.registry), schema={"type": "object"}))
        return RecordFormat(struct, lambda data: framed(data, None), _json_access, framed)
    decode = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise Undecodable(str(error)) from None

    return RecordFormat(struct, read, _json_access)


def _json_access(struct: spark.StructType, number: int) -> Callable[[Any], Any]:
    take = attrgetter(f"f{number}")
    convert = _CONVERSIONS.get(_mark_of(struct.fields[number]))
    return take if convert is None else lambda record: _innermost(take(record), convert)


def _innermost(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Converts a value, or those inside lists and maps."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_innermost(each, convert) for each in value]
    if isinstance(value, dict):
        return {key: _innermost(each, convert) for key, each in value.items()}
    return convert(value)


def _json_text(value: msgspec.Raw) -> str | None:
    """UnicodeDecodeError, since msgspec does not look into it."""
    text = bytes(value)
    return None if text == b"null" else text.decode()


def _whole(value: int | float) -> int:
    """1 for 1.0. Arrow does the same, but makes 1 of 1.5 too."""
    whole = int(value)
    if whole != value:
        raise ValueError(f"expected an integer, got {value}")
    return whole


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {json_schema.TEXT: _json_text, json_schema.INTEGER: _whole}


def _mark_of(field: StructField) -> str:
    return str((field.metadata or {}).get(json_schema.MARK, ""))


def _json_type(kind: spark.DataType, mark: str = "") -> Any:
    """The type that msgspec checks; `mark` is that of the field, as json_schema makes it."""
    if mark == json_schema.TEXT and isinstance(kind, spark.StringType):
        return msgspec.Raw
    if isinstance(kind, spark.StructType):
        # Attributes by number, since column names may be no Python names. Required ones come first.
        names = {f"f{number}": field.name for number, field in enumerate(kind.fields)}
        fields = [(f"f{number}", field) for number, field in enumerate(kind.fields)]
        types = {name: _json_type(field.dataType, _mark_of(field)) for name, field in fields}
        required = [(name, types[name]) for name, field in fields if not field.nullable]
        others = [(name, _or_none(types[name]), None) for name, field in fields if field.nullable]
        return msgspec.defstruct("Record", [*required, *others], rename=names, gc=False)
    if isinstance(kind, spark.ArrayType):
        return list[_or_none(_json_type(kind.elementType, mark))]  # type: ignore[misc]
    if isinstance(kind, spark.MapType):
        return dict[_json_type(kind.keyType), _or_none(_json_type(kind.valueType, mark))]  # type: ignore[misc]
    if type(kind) in _INTEGERS:
        limit = 2 ** _INTEGERS[type(kind)]
        bounded = Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
        return bounded | float if mark == json_schema.INTEGER else bounded
    atom = _ATOMS.get(type(kind))
    if atom is None:
        raise ConfigError(f"JSON cannot represent {kind.simpleString()}", hint="Use STRING and cast it in Spark")
    return atom


def _or_none(kind: Any) -> Any:
    """Raw text includes null: a union with None would be None only."""
    return kind if kind is msgspec.Raw else kind | None


# ---------------------------------------------------------------------------------------------- Arrow columns


def arrow_type(kind: spark.DataType) -> pyarrow.DataType:
    """The Arrow type of a Spark type, with times in UTC."""
    return to_arrow_type(kind, timezone="UTC")


def struct_array(records: Sequence[Any], struct: spark.StructType, access: Access) -> pyarrow.StructArray:
    """The records as one array, null where a record is None. Raises pyarrow's error for a value that does not fit."""
    import pyarrow as pa

    if not struct.fields:
        return pa.array([None if record is None else {} for record in records], pa.struct([]))
    present = [record for record in records if record is not None]
    is_dense = len(present) == len(records)
    columns = []
    for number, field in enumerate(struct.fields):
        take = access(struct, number)
        values = list(map(take, records)) if is_dense else [None if r is None else take(r) for r in records]
        columns.append(_column(values, field.dataType, access))
    # Children of a null struct are null, even if the schema says NOT NULL.
    named = zip(struct.names, columns, strict=True)
    fields = [pa.field(name, column.type, nullable=True) for name, column in named]
    mask = None if is_dense else pa.array([record is None for record in records], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def _column(values: list[Any], kind: spark.DataType, access: Access) -> pyarrow.Array:
    import pyarrow as pa

    if isinstance(kind, spark.StructType):
        return struct_array(values, kind, access)
    if isinstance(kind, spark.ArrayType) and _is_nested(kind.elementType):
        flat = list(chain.from_iterable(value for value in values if value is not None))
        elements = _column(flat, kind.elementType, access)
        kept = pa.list_(pa.field("element", elements.type, nullable=True))
        return pa.ListArray.from_arrays(_offsets(values), elements, type=kept)
    if isinstance(kind, spark.MapType):
        pairs = [None if value is None else list(value.items()) for value in values]
        flat = list(chain.from_iterable(value for value in pairs if value is not None))
        keys = _column([key for key, _ in flat], kind.keyType, access)
        items = _column([item for _, item in flat], kind.valueType, access)
        return pa.MapArray.from_arrays(_offsets(pairs), keys, items)
    return pa.array(values, arrow_type(_nullable(kind)))


def _is_nested(kind: spark.DataType) -> bool:
    return isinstance(kind, (spark.StructType, spark.ArrayType, spark.MapType))


def _offsets(values: list[Any]) -> pyarrow.Array:
    """The start of each list, null for a null list, and the end of the last."""
    import pyarrow as pa

    offsets: list[int | None] = []
    position = 0
    for value in values:
        offsets.append(None if value is None else position)
        position += 0 if value is None else len(value)
    return pa.array([*offsets, position], pa.int32())


def nullable(struct: spark.StructType, *, with_metadata: bool = True) -> spark.StructType:
    """The same struct with every field nullable, as decoded columns are."""
    return spark.StructType(
        [
            spark.StructField(
                field.name, _nullable(field.dataType, with_metadata), True, field.metadata if with_metadata else None
            )
            for field in struct.fields
        ]
    )


def _nullable(kind: spark.DataType, with_metadata: bool = True) -> spark.DataType:
    if isinstance(kind, spark.StructType):
        return nullable(kind, with_metadata=with_metadata)
    if isinstance(kind, spark.ArrayType):
        return spark.ArrayType(_nullable(kind.elementType, with_metadata), True)
    if isinstance(kind, spark.MapType):
        return spark.MapType(_nullable(kind.keyType), _nullable(kind.valueType, with_metadata), True)
    return kind
