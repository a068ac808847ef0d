"""The formats of records: for each, the Spark schema of what it holds, and how bytes become fields.

Rule: JSON is strict: a value has the type that the schema says or the record is refused, unknown fields are skipped, a
field that is missing is null unless it is NOT NULL. Times without a zone are UTC. Avro and Protobuf map to the types of
Spark's own functions for them; a union that is more than "or null" and a type that holds itself are refused when the
spec is made.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from pyspark.sql import types as spark

from penstock.client.errors import ConfigError, DeserializationError
from penstock.spark.decode_columns import Access
from penstock.spark.decode_spec import DecodeSpec

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


class Undecodable(Exception):
    """A record that is not what the schema says; the text is the reason, in one line."""


class RecordFormat(NamedTuple):
    """A spec made ready: `read` turns a record's bytes into an object, raising Undecodable."""

    struct: spark.StructType
    read: Callable[[bytes], Any]
    access: Access


def struct_of(spec: DecodeSpec) -> spark.StructType:
    """What the spec's records hold; raises ConfigError if it cannot be."""
    return record_format(spec).struct


@lru_cache(maxsize=32)
def record_format(spec: DecodeSpec) -> RecordFormat:
    """The spec made ready; raises ConfigError."""
    if spec.format == "json":
        return _json_format(spec)
    if spec.format == "avro":
        from penstock.spark.decode_avro import avro_format

        return avro_format(spec)
    from penstock.spark.decode_protobuf import protobuf_format

    return protobuf_format(spec)


# ------------------------------------------------------------------------------------------------------------- JSON


def _json_format(spec: DecodeSpec) -> RecordFormat:
    from penstock.spark.ddl import parse_schema

    struct = parse_schema(spec.schema)
    decode = msgspec.json.Decoder(_json_type(struct)).decode

    def read(data: bytes) -> Any:
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:
            raise Undecodable(str(error)) from None

    return RecordFormat(struct, read, lambda _, number: attrgetter(f"f{number}"))


def _json_type(kind: spark.DataType) -> Any:
    if isinstance(kind, spark.StructType):
        # Attributes by number: a column's name need not be a name in Python. What must be there comes first.
        names = {f"f{number}": field.name for number, field in enumerate(kind.fields)}
        fields = [(f"f{number}", field) for number, field in enumerate(kind.fields)]
        required = [(name, _json_type(field.dataType)) for name, field in fields if not field.nullable]
        others = [(name, _json_type(field.dataType) | None, None) for name, field in fields if field.nullable]
        return msgspec.defstruct("Record", [*required, *others], rename=names, gc=False)
    if isinstance(kind, spark.ArrayType):
        return list[_json_type(kind.elementType) | None]  # type: ignore[misc]
    if isinstance(kind, spark.MapType):
        return dict[_json_type(kind.keyType), _json_type(kind.valueType) | None]  # type: ignore[misc]
    if type(kind) in _INTEGERS:
        limit = 2 ** _INTEGERS[type(kind)]
        return Annotated[int, msgspec.Meta(ge=-limit, le=limit - 1)]
    atom = _ATOMS.get(type(kind))
    if atom is None:
        raise ConfigError(f"JSON has nothing for {kind.simpleString()}", hint="Use STRING and cast it in Spark")
    return atom


def undecodable(error: DeserializationError) -> Undecodable:
    """The reason of a client's error, without what only a client knows."""
    cause = error.__cause__
    return Undecodable(" ".join((str(cause) if cause is not None else error.message).split()))
