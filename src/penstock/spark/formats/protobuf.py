"""Protobuf messages as Spark structs, by the descriptors that protoc wrote; no generated code is needed.

A field with presence is null when it is not set; others have their proto3 default. Enums are their names,
google.protobuf.Timestamp is a timestamp, uint64 is DECIMAL(20). In the frame of a schema registry the message indexes
are skipped: the message is the one that the spec names.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import types as spark

from penstock.client.errors import ConfigError
from penstock.client.serializers.base import load_optional
from penstock.client.serializers.protobuf import Protobuf
from penstock.spark.errors import one_line
from penstock.spark.formats.decoder import RecordFormat, Undecodable
from penstock.spark.formats.registry import client_of, framed_reader
from penstock.spark.formats.spec import DecodeSpec

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_FRAME_BYTES: Final = 5
_MAX_INDEXES: Final = 64
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def protobuf_format(spec: DecodeSpec) -> RecordFormat:
    """Prepares a Protobuf spec. Raises ConfigError, MissingDependency."""
    message_class = _message_class(spec)
    descriptor = message_class.DESCRIPTOR
    error = load_optional("google.protobuf.message", "protobuf", "protobuf", "decoding Protobuf").DecodeError
    is_framed = spec.framing == "confluent"

    def read(data: bytes) -> Any:
        try:
            return message_class.FromString(_unframed(data) if is_framed else data)
        except error as reason:
            raise Undecodable(str(reason)) from None

    struct = _struct(descriptor, ())
    getters: dict[int, list[Callable[[Any], Any]]] = {}

    def remember(kind: spark.DataType, described: Any) -> None:
        if isinstance(kind, spark.StructType):
            getters[id(kind)] = [_getter(field) for field in described.fields]
            for column, field in zip(kind.fields, described.fields, strict=True):
                remember(*_inside(column.dataType, field))

    remember(struct, descriptor)
    # Structs are identified by id(), so they must stay alive: `struct` holds all of them.
    if spec.registry is None:
        return RecordFormat(struct, read, lambda part, number: getters[id(part)][number])
    framed = framed_reader(Protobuf(message_class, registry=client_of(spec.registry)))
    return RecordFormat(struct, lambda data: framed(data, None), lambda part, number: getters[id(part)][number], framed)


def _inside(kind: spark.DataType, field: Any) -> tuple[spark.DataType, Any]:
    """The type inside a column, and its message type."""
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return (kind.valueType if isinstance(kind, spark.MapType) else kind), value.message_type
    if isinstance(kind, spark.ArrayType):
        return kind.elementType, field.message_type
    return kind, field.message_type


def _message_class(spec: DecodeSpec) -> Any:
    pb2: Any = load_optional("google.protobuf.descriptor_pb2", "protobuf", "protobuf", "decoding Protobuf")
    pools: Any = load_optional("google.protobuf.descriptor_pool", "protobuf", "protobuf", "decoding Protobuf")
    factory: Any = load_optional("google.protobuf.message_factory", "protobuf", "protobuf", "decoding Protobuf")
    # A set written without --include_imports lacks the well-known types.
    load_optional("google.protobuf.timestamp_pb2", "protobuf", "protobuf", "decoding Protobuf")
    try:
        files = pb2.FileDescriptorSet.FromString(spec.descriptors).file
        pool = pools.DescriptorPool()
        present = {file.name for file in files}
        for common in sorted({name for file in files for name in file.dependency} - present):
            pool.AddSerializedFile(pools.Default().FindFileByName(common).serialized_pb)
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except Exception as error:  # noqa: BLE001 - the pool raises errors of every kind
        hint = "Write them with protoc --include_imports --descriptor_set_out=FILE"
        raise ConfigError(f"cannot load the Protobuf descriptors: {one_line(error)}", hint=hint) from None
    try:
        return factory.GetMessageClass(pool.FindMessageTypeByName(spec.schema))
    except KeyError:
        names = sorted(_full_names(files))
        known = ", ".join(names[:8]) or "none"
        raise ConfigError(f"unknown Protobuf message {spec.schema}", hint=f"Available: {known}") from None


def _full_names(files: Any) -> list[str]:
    return [f"{file.package}.{each.name}".lstrip(".") for file in files for each in file.message_type]


def _unframed(data: bytes) -> bytes:
    """Removes the frame: a zero byte, the schema id, and the message indexes as zigzag varints."""
    if len(data) <= _FRAME_BYTES or data[0] != 0:
        raise Undecodable("it has no schema registry frame")
    count, position = _varint(data, _FRAME_BYTES)
    if count > _MAX_INDEXES:
        raise Undecodable(f"the frame has {count} message indexes")
    for _ in range(count):
        _, position = _varint(data, position)
    return data[position:]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data) and shift < 35:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1, position
        shift += 7
    raise Undecodable("the frame is truncated")


# ------------------------------------------------------------------------------------------- types and their values


def _struct(descriptor: Any, path: tuple[str, ...]) -> spark.StructType:
    if descriptor.full_name in path:
        raise ConfigError(
            f"the Protobuf message {descriptor.full_name} is recursive", hint="Spark has no recursive types"
        )
    inner = (*path, descriptor.full_name)
    return spark.StructType(
        [spark.StructField(field.name, _column(field, inner), _has_presence(field)) for field in descriptor.fields]
    )


def _has_presence(field: Any) -> bool:
    return bool(field.has_presence)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _column(field: Any, path: tuple[str, ...]) -> spark.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return spark.MapType(_single(entry["key"], path), _single(entry["value"], path), False)
    single = _single(field, path)
    return spark.ArrayType(single, False) if field.is_repeated else single


def _single(field: Any, path: tuple[str, ...]) -> spark.DataType:
    if field.message_type is not None:
        return spark.TimestampType() if _is_time(field) else _struct(field.message_type, path)
    kinds: dict[int, spark.DataType] = {
        field.CPPTYPE_INT32: spark.IntegerType(),
        field.CPPTYPE_INT64: spark.LongType(),
        field.CPPTYPE_UINT32: spark.LongType(),
        field.CPPTYPE_UINT64: spark.DecimalType(20, 0),
        field.CPPTYPE_DOUBLE: spark.DoubleType(),
        field.CPPTYPE_FLOAT: spark.FloatType(),
        field.CPPTYPE_BOOL: spark.BooleanType(),
        field.CPPTYPE_ENUM: spark.StringType(),
    }
    if field.cpp_type == field.CPPTYPE_STRING:
        return spark.BinaryType() if field.type == field.TYPE_BYTES else spark.StringType()
    return kinds[field.cpp_type]


def _is_time(field: Any) -> bool:
    return bool(field.message_type.full_name == _TIMESTAMP)


def _getter(field: Any) -> Callable[[Any], Any]:
    name = field.name
    if _is_map(field):
        convert = _converter(field.message_type.fields_by_name["value"])
        return lambda message: {key: convert(value) for key, value in getattr(message, name).items()}
    convert = _converter(field)
    if field.is_repeated:
        return lambda message: [convert(value) for value in getattr(message, name)]
    if _has_presence(field):
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None and _is_time(field):
        return _moment
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        # proto3 keeps unknown numbers.
        return lambda number: names.get(number, str(number))
    return lambda value: value


def _moment(value: Any) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
