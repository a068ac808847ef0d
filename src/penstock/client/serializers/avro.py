"""Avro, by fastavro: bare, or in the frame of a schema registry.

    Avro(View)                                    # a dataclass: its schema is derived, instances come back
    Avro("view.avsc")                             # a file; dicts come back
    Avro(schema, reader_schema=newer)             # written by one schema, seen through another
    Avro(resolver=registry.get, framing="confluent")
                                                  # the frame says by which schema; read only

The frame (framing="confluent") is five bytes before the value: a zero, then the number of the writer's schema, big
endian. `resolver` turns that number into a schema; it is called once for each number. To write in the frame, say which
number the schema has in the registry: `schema_id`.

Rule: a value must use up its bytes exactly. Bytes left over mean that the schema was the wrong one, which Avro itself
would not notice.
"""

from __future__ import annotations

import datetime
import io
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, overload

import msgspec

from penstock.client.errors import ConfigError
from penstock.client.serializers.avro_schemas import Schema, read_schema
from penstock.client.serializers.base import load_optional, not_decodable, not_encodable
from penstock.client.serializers.json import is_record_type

T = TypeVar("T")
Framing = Literal["none", "confluent"]
Resolver = Callable[[int], Any]

_FRAME: Final = struct.Struct(">bI")
_MAGIC: Final = 0
_MAX_SCHEMAS: Final = 1024


class Avro(Generic[T]):
    """Avro values of a schema; of a class if the schema is one."""

    @overload
    def __init__(
        self,
        schema: type[T],
        *,
        reader_schema: Any = None,
        framing: Framing = "none",
        resolver: Resolver | None = None,
        schema_id: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Avro[Any],
        schema: str | Path | dict[str, Any] | list[Any] | None = None,
        *,
        reader_schema: Any = None,
        framing: Framing = "none",
        resolver: Resolver | None = None,
        schema_id: int | None = None,
    ) -> None: ...

    def __init__(
        self,
        schema: Any = None,
        *,
        reader_schema: Any = None,
        framing: Framing = "none",
        resolver: Resolver | None = None,
        schema_id: int | None = None,
    ) -> None:
        self._avro: Any = load_optional("fastavro", "fastavro", "avro", "the Avro serializer")
        _check(schema, framing, resolver, schema_id)
        self._schema = None if schema is None else self._parsed(schema)
        wanted = schema if reader_schema is None else reader_schema
        self._reader_schema = self._schema if reader_schema is None else self._parsed(reader_schema)
        self._class = wanted if is_record_type(wanted) else None
        self._written_class = schema if is_record_type(schema) else None
        self._is_framed = framing == "confluent"
        self._schema_id = schema_id
        self._resolver = resolver
        self._resolved: dict[int, Any] = {}

    def _parsed(self, source: Any) -> Any:
        schema: Schema = read_schema(source)
        try:
            return self._avro.parse_schema(schema)
        except Exception as error:
            raise ConfigError(f"Avro: not a schema: {error}", hint="See the Avro specification for its form") from error

    def encode(self, topic: str, value: T | None) -> bytes | None:
        """A value as Avro; raises SerializationError."""
        if value is None:
            return None
        if self._schema is None:
            raise not_encodable("Avro", topic, value, "it was given no schema to write by")
        if self._written_class is not None and not isinstance(value, self._written_class):
            raise not_encodable("Avro", topic, value, f"it is not a {self._written_class.__name__}")
        output = io.BytesIO()
        if self._is_framed:
            if self._schema_id is None:
                why = "framing='confluent' writes the number of the schema, and it was given none"
                raise not_encodable("Avro", topic, value, why, "Pass schema_id=, as the registry numbers the schema")
            output.write(_FRAME.pack(_MAGIC, self._schema_id))
        try:
            plain = value if self._written_class is None else _as_plain(value)
            self._avro.schemaless_writer(output, self._schema, plain)
        except Exception as error:  # fastavro raises whatever the mismatch leads to
            raise not_encodable("Avro", topic, value, f"{type(error).__name__}: {error}") from error
        return output.getvalue()

    def decode(self, topic: str, data: bytes) -> T:
        """The value; raises DeserializationError."""
        source = io.BytesIO(data)
        writer_schema = self._schema if not self._is_framed else self._writer_schema(topic, data, source)
        reader_schema = None if self._reader_schema is writer_schema else self._reader_schema
        try:
            decoded: Any = self._avro.schemaless_reader(source, writer_schema, reader_schema)
        except Exception as error:  # damaged bytes lead fastavro to errors of every kind
            raise not_decodable("Avro", topic, data, f"{type(error).__name__}: {error}") from error
        if source.tell() != len(data):
            raise not_decodable("Avro", topic, data, f"{len(data) - source.tell()} bytes are left over")
        if self._class is None:
            plain: T = decoded
            return plain
        try:
            instance: T = msgspec.convert(decoded, self._class)
        except msgspec.ValidationError as error:
            raise not_decodable("Avro", topic, data, error) from error
        return instance

    def _writer_schema(self, topic: str, data: bytes, source: io.BytesIO) -> Any:
        head = source.read(_FRAME.size)
        if len(head) < _FRAME.size or head[0] != _MAGIC:
            hint = "It may have been written without a frame: framing='none'"
            raise not_decodable("Avro", topic, data, "it does not begin with the frame of a schema registry", hint)
        number: int = _FRAME.unpack(head)[1]
        if number == self._schema_id:
            return self._schema
        schema = self._resolved.get(number)
        if schema is not None:
            return schema
        if self._resolver is None:
            hint = "Pass resolver=, a function from the number to the schema"
            raise not_decodable("Avro", topic, data, f"it was written by schema {number}, which is not known", hint)
        try:
            schema = self._parsed(self._resolver(number))
        except Exception as error:
            why = f"schema {number} could not be had: {type(error).__name__}: {error}"
            raise not_decodable("Avro", topic, data, why, "See whether the registry is up and knows it") from error
        if len(self._resolved) >= _MAX_SCHEMAS:
            self._resolved.pop(next(iter(self._resolved)))
        self._resolved[number] = schema
        return schema

    def __repr__(self) -> str:
        name = "" if self._class is None else self._class.__name__
        return f"Avro({name})"


def _check(schema: Any, framing: str, resolver: Resolver | None, schema_id: int | None) -> None:
    if framing not in ("none", "confluent"):
        raise ConfigError(f"Avro: framing {framing!r} is not known", hint="Use 'none' or 'confluent'")
    if framing == "none" and (resolver is not None or schema_id is not None):
        raise ConfigError("Avro: resolver and schema_id need a frame", hint="Add framing='confluent'")
    if framing == "none" and schema is None:
        raise ConfigError("Avro: without a frame a schema is needed", hint="Give a schema, a file, or a dataclass")
    if framing == "confluent" and resolver is None and schema_id is None:
        raise ConfigError(
            "Avro: framing='confluent' needs a resolver to read, or a schema_id to write",
            hint="Pass resolver=, a function from the number to the schema, or schema_id=, the number of the one given",
        )
    if schema_id is not None and (schema is None or not 0 <= schema_id < 2**31):
        raise ConfigError(f"Avro: schema_id {schema_id} needs a schema, and to be a positive int32")


_KEPT: Final = (bytes, bytearray, memoryview, datetime.datetime, datetime.date, uuid.UUID)


def _as_plain(value: Any) -> Any:
    """An instance as fastavro takes it: dicts and lists, with bytes, dates and the like as they are."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)
