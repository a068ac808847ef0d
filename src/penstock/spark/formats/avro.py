"""Avro records, plain or in the frame of a schema registry, as Spark structs.

The schema of the spec is the reader schema: it alone decides the columns. In a frame (`confluent`) the schema id names
the writer schema, which a registry gives once per id; without a registry the reader schema is used for all.
Unions other than "or null" and recursive types are rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from pyspark.sql import types as spark

from penstock.client.errors import ConfigError, DeserializationError
from penstock.spark.errors import one_line
from penstock.spark.formats.decoder import RecordFormat, undecodable
from penstock.spark.formats.registry import client_of, framed_reader
from penstock.spark.formats.spec import DecodeSpec

_PRIMITIVES: Final[dict[str, type[spark.DataType]]] = {
    "boolean": spark.BooleanType,
    "int": spark.IntegerType,
    "long": spark.LongType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "bytes": spark.BinaryType,
    "string": spark.StringType,
    "fixed": spark.BinaryType,
    "enum": spark.StringType,
}
_LOGICAL: Final[dict[str, type[spark.DataType]]] = {
    "date": spark.DateType,
    "timestamp-millis": spark.TimestampType,
    "timestamp-micros": spark.TimestampType,
    "local-timestamp-millis": spark.TimestampNTZType,
    "local-timestamp-micros": spark.TimestampNTZType,
}
_TIMES: Final = frozenset({"time-millis", "time-micros"})


def avro_format(spec: DecodeSpec) -> RecordFormat:
    """Prepares an Avro spec. Raises ConfigError, MissingDependency."""
    from penstock.client.serializers import Avro

    schema = json.loads(spec.schema)
    if spec.registry is not None:
        registered: Avro[Any] = Avro(None, reader_schema=schema, registry=client_of(spec.registry))
        framed = framed_reader(registered)
        return RecordFormat(struct_of_avro(schema), lambda data: framed(data, None), _access, framed)
    serializer: Avro[Any] = (
        Avro(schema)
        if spec.framing == "none"
        else Avro(None, reader_schema=schema, framing="confluent", resolver=lambda _: schema)
    )
    struct = struct_of_avro(schema)

    def read(data: bytes) -> Any:
        try:
            return serializer.decode("", data)
        except DeserializationError as error:
            raise undecodable(error) from None

    return RecordFormat(struct, read, _access)


def _access(struct: spark.StructType, number: int) -> Callable[[Any], Any]:
    field = struct.fields[number]
    if field.metadata.get("avro") == "uuid":
        return lambda record: None if record[field.name] is None else str(record[field.name])
    return itemgetter(field.name)


def struct_of_avro(schema: Any) -> spark.StructType:
    """The columns of a record schema; raises ConfigError."""
    from penstock.client.serializers.base import load_optional

    library: Any = load_optional("fastavro.schema", "fastavro", "avro", "decoding Avro")
    try:
        whole = library.expand_schema(schema)
    except Exception as error:  # noqa: BLE001 - fastavro raises whatever the mismatch leads to
        raise ConfigError(f"not an Avro schema: {one_line(error)}", hint="See the Avro specification") from None
    if not isinstance(whole, dict) or whole.get("type") != "record":
        raise ConfigError("the Avro schema is not a record", hint="Wrap it in a record with one field")
    return _struct(whole, "")


def _struct(schema: dict[str, Any], path: str) -> spark.StructType:
    fields = []
    for field in schema["fields"]:
        kind, is_nullable = _field(field["type"], f"{path}{field['name']}")
        uuid = {"avro": "uuid"} if _logical(field["type"]) == "uuid" else None
        fields.append(spark.StructField(field["name"], kind, is_nullable, uuid))
    return spark.StructType(fields)


def _logical(schema: Any) -> str | None:
    if isinstance(schema, list):
        return next((found for part in schema if (found := _logical(part)) is not None), None)
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _field(schema: Any, path: str) -> tuple[spark.DataType, bool]:
    if not isinstance(schema, list):
        return _type(schema, path), False
    parts = [part for part in schema if part != "null"]
    is_nullable = len(parts) < len(schema)
    if len(parts) == 1:
        return _type(parts[0], path), is_nullable
    if sorted(map(str, parts)) == ["int", "long"]:
        return spark.LongType(), is_nullable
    if sorted(map(str, parts)) == ["double", "float"]:
        return spark.DoubleType(), is_nullable
    raise ConfigError(f"the Avro field {path} is a union of several types", hint="Only a union with null is supported")


def _type(schema: Any, path: str) -> spark.DataType:
    if isinstance(schema, str):
        if schema not in _PRIMITIVES:
            raise ConfigError(f"the Avro field {path} is recursive ({schema})", hint="Spark has no recursive types")
        return _PRIMITIVES[schema]()
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _field(kind, path)[0]
    if logical in _TIMES:
        raise ConfigError(f"the Avro field {path} is a {logical}", hint="Spark has no type for a time of day")
    if logical == "uuid":
        return spark.StringType()
    if logical == "decimal":
        return spark.DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]()
    if kind == "record":
        return _struct(schema, f"{path}.")
    if kind == "array":
        element, is_nullable = _field(schema["items"], path)
        return spark.ArrayType(element, is_nullable)
    if kind == "map":
        value, is_nullable = _field(schema["values"], path)
        return spark.MapType(spark.StringType(), value, is_nullable)
    return _type(kind, path)
