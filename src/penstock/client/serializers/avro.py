"""Avro, by fastavro: plain, or with the Confluent schema-registry header.

    Avro(View)                                    # a dataclass: its schema is derived, instances are returned
    Avro("view.avsc")                             # a file; dicts are returned
    Avro(schema, reader_schema=newer)             # written with one schema, read with another
    Avro(resolver=registry.get, framing="confluent")
                                                  # the header names the schema; read only
    Avro(View, registry="http://localhost:8081")  # registered under topic-value, and found there by readers

The header is a zero byte and the writer's schema id, big endian. `resolver` maps an id to a schema and is called once
per id. To write it, pass `schema_id`. A value must use up its bytes exactly: bytes left over mean a wrong schema.

A class becomes a record schema by this table; a default that JSON can express becomes the schema's default.

    bool boolean - int long - float double - str string - bytes bytes - None null
    X | None              ["null", X]            list[X]     array        dict[str, X]   map
    Enum of str values    enum                   Literal     enum         a nested class record
    datetime              long timestamp-micros  date        int date     UUID           string uuid
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import json
import re
import struct
import types
import typing
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar, overload

import msgspec

from penstock.client.errors import ConfigError, PenstockError
from penstock.client.serializers.base import load_optional, not_decodable, not_encodable
from penstock.client.serializers.framed import Field, Framed, RegistryOptions, Strategy, SubjectName
from penstock.client.serializers.json import is_record_type
from penstock.client.serializers.registry_client import RegisteredSchema, Registry, RegistrySchema

T = TypeVar("T")
Schema: TypeAlias = str | dict[str, Any] | list[Any]
Framing = Literal["none", "confluent", "prefix", "header"]
Resolver = Callable[[int], Any]

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE: Final[dict[Any, Schema]] = {
    type(None): "null",
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    datetime.datetime: {"type": "long", "logicalType": "timestamp-micros"},
    datetime.date: {"type": "int", "logicalType": "date"},
    uuid.UUID: {"type": "string", "logicalType": "uuid"},
}
_HINT: Final = "Give the schema itself, or a file that holds it"
_NO_DEFAULT: Final = object()
_FRAME: Final = struct.Struct(">bI")
_MAGIC: Final = 0
_MAX_SCHEMAS: Final = 1024
_KEPT: Final = (bytes, bytearray, memoryview, datetime.datetime, datetime.date, uuid.UUID)


class Avro(Generic[T]):
    """Values of an Avro schema, or of a class from which the schema is derived."""

    @overload
    def __init__(
        self,
        schema: type[T],
        *,
        reader_schema: Any = None,
        framing: Framing = "none",
        resolver: Resolver | None = None,
        schema_id: int | None = None,
        registry: Registry | None = None,
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
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
        registry: Registry | None = None,
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
    ) -> None: ...

    def __init__(
        self,
        schema: Any = None,
        *,
        reader_schema: Any = None,
        framing: Framing = "none",
        resolver: Resolver | None = None,
        schema_id: int | None = None,
        registry: Registry | None = None,
        auto_register: bool = True,
        use_latest: bool = False,
        normalize: bool = False,
        subject: Strategy | SubjectName = "topic",
    ) -> None:
        """With `registry`, an address or a `RegistryClient`, schemas are registered and found there; see
        `RegistryOptions` for the options behind it. Then a schema is not needed to read, nor to write with
        use_latest."""
        self._avro: Any = load_optional("fastavro", "fastavro", "avro", "the Avro serializer")
        self._options = RegistryOptions.of(
            "Avro",
            registry,
            auto_register=auto_register,
            use_latest=use_latest,
            normalize=normalize,
            framing="prefix" if framing in ("none", "confluent") else framing,
            subject=subject,
        )
        if self._options is None:
            _check(schema, framing, resolver, schema_id)
        elif resolver is not None or schema_id is not None:
            raise ConfigError("Avro: resolver and schema_id contradict registry", hint="Leave them out")
        self._text = None if schema is None or self._options is None else json.dumps(read_schema(schema))
        self._schema = None if schema is None else self._parsed(schema)
        wanted = schema if reader_schema is None else reader_schema
        self._reader_schema = self._schema if reader_schema is None else self._parsed(reader_schema)
        self._class = wanted if is_record_type(wanted) else None
        self._written_class = schema if is_record_type(schema) else None
        self._is_framed = framing == "confluent"
        self._schema_id = schema_id
        self._resolver = resolver
        self._resolved: dict[int | RegistrySchema, Any] = {}
        self._with_registry: Framed[T] | None = None if self._options is None else self.for_field("value")

    def for_field(self, field: Field) -> Any:
        """The serializer for keys or values; clients call this."""
        return self if self._options is None else Framed(_AvroCodec(self), self._options, field)

    def prepare(self, topic: str) -> None:
        """Ask the registry now for what the first value for a topic would ask."""
        if self._with_registry is not None:
            self._with_registry.prepare(topic)

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
        if self._with_registry is not None:
            return self._with_registry.encode(topic, value)
        output = io.BytesIO()
        if self._is_framed and self._schema is not None:
            if self._schema_id is None:
                why = "framing='confluent' writes the number of the schema, and it was given none"
                raise not_encodable("Avro", topic, value, why, "Pass schema_id=, the id of the schema in the registry")
            output.write(_FRAME.pack(_MAGIC, self._schema_id))
        return self._written(topic, value, self._schema, output)

    def _written(self, topic: str, value: T, schema: Any, output: io.BytesIO) -> bytes:
        if schema is None:
            raise not_encodable("Avro", topic, value, "there is no schema to write with")
        if self._written_class is not None and not isinstance(value, self._written_class):
            raise not_encodable("Avro", topic, value, f"it is not a {self._written_class.__name__}")
        try:
            plain = value if self._written_class is None else _as_plain(value)
            self._avro.schemaless_writer(output, schema, plain)
        except Exception as error:  # fastavro raises errors of many kinds
            raise not_encodable("Avro", topic, value, f"{type(error).__name__}: {error}") from error
        return output.getvalue()

    def decode(self, topic: str, data: bytes) -> T:
        """The value; raises DeserializationError."""
        if self._with_registry is not None:
            return self._with_registry.decode(topic, data)
        source = io.BytesIO(data)
        writer_schema = self._schema if not self._is_framed else self._writer_schema(topic, data, source)
        return self._read(topic, data, source, writer_schema)

    def _read(self, topic: str, data: bytes, source: io.BytesIO, writer_schema: Any) -> T:
        reader_schema = None if self._reader_schema is writer_schema else self._reader_schema
        try:
            decoded: Any = self._avro.schemaless_reader(source, writer_schema, reader_schema)
        except Exception as error:  # fastavro raises errors of many kinds
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
            raise not_decodable("Avro", topic, data, "it does not start with a schema-registry header", hint)
        number: int = _FRAME.unpack(head)[1]
        if number == self._schema_id:
            return self._schema
        schema = self._resolved.get(number)
        if schema is not None:
            return schema
        if self._resolver is None:
            hint = "Pass resolver=, a function from the number to the schema"
            raise not_decodable("Avro", topic, data, f"it was written with schema {number}, which is not known", hint)
        try:
            schema = self._parsed(self._resolver(number))
        except Exception as error:
            why = f"schema {number} could not be loaded: {type(error).__name__}: {error}"
            raise not_decodable("Avro", topic, data, why, "Check that the registry is up and has the schema") from error
        self._remember(number, schema)
        return schema

    def _schema_from(self, registered: RegisteredSchema) -> Any:
        """The schema of the registry with those that it refers to, parsed once."""
        found = self._resolved.get(registered.schema)
        if found is not None:
            return found
        names: dict[str, Any] = {}
        if self._options is not None:
            for each in self._options.client.referenced(registered.schema).values():
                self._avro.parse_schema(json.loads(each.schema.text), named_schemas=names)
        found = self._avro.parse_schema(json.loads(registered.schema.text), named_schemas=names)
        self._remember(registered.schema, found)
        return found

    def _remember(self, key: int | RegistrySchema, schema: Any) -> None:
        if len(self._resolved) >= _MAX_SCHEMAS:
            self._resolved.pop(next(iter(self._resolved)))
        self._resolved[key] = schema

    def __repr__(self) -> str:
        name = "" if self._class is None else self._class.__name__
        return f"Avro({name})"


class _AvroCodec(Generic[T]):
    """Avro as `Framed` uses it."""

    name = "Avro"
    kind = "AVRO"
    indexes = b""

    def __init__(self, avro: Avro[T]) -> None:
        self._avro = avro
        self._writer = None if avro._text is None else (RegistrySchema(avro._text), _full_name(avro._text))

    def writer(self, register: object) -> tuple[RegistrySchema, str] | None:
        return self._writer

    def encode_payload(self, topic: str, value: T, written: RegisteredSchema | None) -> bytes:
        try:
            schema = self._avro._schema if written is None else self._avro._schema_from(written)
        except PenstockError as error:
            raise not_encodable(self.name, topic, value, error.message, error.hint) from error
        except Exception as error:  # fastavro raises errors of many kinds
            raise not_encodable(self.name, topic, value, f"its schema: {type(error).__name__}: {error}") from error
        return self._avro._written(topic, value, schema, io.BytesIO())

    def decode_payload(self, topic: str, data: bytes, written: RegisteredSchema) -> T:
        if written.schema.kind != self.kind:
            raise not_decodable(self.name, topic, data, f"schema {written.id} is of type {written.schema.kind}")
        try:
            schema = self._avro._schema_from(written)
        except PenstockError as error:
            raise not_decodable(self.name, topic, data, error.message, error.hint) from error
        except Exception as error:  # fastavro raises errors of many kinds
            raise not_decodable(self.name, topic, data, f"its schema: {type(error).__name__}: {error}") from error
        return self._avro._read(topic, data, io.BytesIO(data), schema)

    def skip_indexes(self, data: bytes, position: int) -> int:
        return position


def _full_name(text: str) -> str:
    schema = json.loads(text)
    if not isinstance(schema, dict):
        return schema if isinstance(schema, str) else ""
    name, namespace = str(schema.get("name") or schema.get("type") or ""), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _check(schema: Any, framing: str, resolver: Resolver | None, schema_id: int | None) -> None:
    if framing in ("prefix", "header"):
        raise ConfigError(f"Avro: framing {framing!r} needs a registry", hint="Pass registry=")
    if framing not in ("none", "confluent"):
        raise ConfigError(f"Avro: framing {framing!r} is not known", hint="Use 'none' or 'confluent'")
    if framing == "none" and (resolver is not None or schema_id is not None):
        raise ConfigError("Avro: resolver and schema_id need framing", hint="Add framing='confluent'")
    if framing == "none" and schema is None:
        raise ConfigError("Avro: a schema is needed without framing", hint="Give a schema, a file, or a dataclass")
    if framing == "confluent" and resolver is None and schema_id is None:
        raise ConfigError(
            "Avro: framing='confluent' needs a resolver to read, or a schema_id to write",
            hint="Pass resolver=, a function from schema id to schema, or schema_id=, the id of the given schema",
        )
    if schema_id is not None and (schema is None or not 0 <= schema_id < 2**31):
        raise ConfigError(f"Avro: schema_id {schema_id} needs a schema, and must be a positive int32")


def _as_plain(value: Any) -> Any:
    """An instance as fastavro accepts it: dicts and lists, with bytes, dates and so on unchanged."""
    return msgspec.to_builtins(value, builtin_types=_KEPT)


# --------------------------------------------------------------------------------------------------- schemas


def read_schema(source: Any) -> Schema:
    """The schema of a source; raises ConfigError."""
    if is_record_type(source):
        return schema_of(source)
    if isinstance(source, Path):
        return _from_file(source)
    if isinstance(source, (dict, list)):
        return source
    if not isinstance(source, str):
        raise ConfigError(f"Avro: a {type(source).__name__} is not a schema", hint=_HINT)
    if source in _PRIMITIVES:
        return source
    if source.lstrip()[:1] in ("{", "[", '"'):
        return _from_text(source, "its text")
    return _from_file(Path(source))


def _from_file(path: Path) -> Schema:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"Avro: the schema in {path} cannot be read: {error}", hint=_HINT) from error
    return _from_text(text, str(path))


def _from_text(text: str, where: str) -> Schema:
    try:
        schema: Schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Avro: the schema in {where} is not JSON: {error}", hint=_HINT) from error
    return schema


def schema_of(kind: type) -> Schema:
    """The schema of a dataclass or msgspec.Struct, including the types that it refers to."""
    return _Derivation().of(kind, kind.__name__)


class _Derivation:
    """One walk over a class: a named type is defined where it appears first, and referred to afterwards."""

    def __init__(self) -> None:
        self._defined: dict[str, Any] = {}

    def of(self, kind: Any, where: str) -> Schema:
        if kind in _SIMPLE:
            return _SIMPLE[kind]
        if is_record_type(kind):
            return self._record(kind)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self._enum(kind.__name__, kind, [member.value for member in kind], where)
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.of(arguments[0], where)
        if origin in (typing.Union, types.UnionType):
            # null first, because a default must fit the first branch, and it is nearly always None.
            branches = sorted(arguments, key=lambda each: each is not type(None))
            return [self.of(each, where) for each in branches]
        if origin is typing.Literal:
            return self._enum(where.replace(".", "_"), kind, list(arguments), where)
        if origin is list or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": self.of(arguments[0], where)}
        if origin is dict and arguments[0] is str:
            return {"type": "map", "values": self.of(arguments[1], where)}
        raise ConfigError(f"Avro: no schema can be derived for {where}: {kind}", hint=_HINT)

    def _is_defined(self, name: str, kind: Any) -> bool:
        """Whether the name was defined before; if not, it is from now on."""
        known = self._defined.get(name)
        if known is None:
            self._defined[name] = kind
            return False
        if known != kind:
            raise ConfigError(f"Avro: two types have the name {name}: {known} and {kind}", hint=_HINT)
        return True

    def _record(self, kind: type) -> Schema:
        name = kind.__name__
        if self._is_defined(name, kind):
            return name
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = []
        for field, default in _fields(kind):
            described: dict[str, Any] = {"name": field, "type": self.of(hints[field], f"{name}.{field}")}
            if default is not _NO_DEFAULT and _fits_first(default, described["type"]):
                described["default"] = default
            fields.append(described)
        return {"type": "record", "name": name, "fields": fields}

    def _enum(self, name: str, kind: Any, symbols: list[Any], where: str) -> Schema:
        if not all(isinstance(symbol, str) and _SYMBOL.fullmatch(symbol) for symbol in symbols):
            raise ConfigError(f"Avro: {where}: {symbols} are not all valid enum symbols", hint=_HINT)
        if self._is_defined(name, kind):
            return name
        return {"type": "enum", "name": name, "symbols": symbols}


def _fields(kind: type) -> list[tuple[str, Any]]:
    if issubclass(kind, msgspec.Struct):
        return [
            (each.name, _NO_DEFAULT if each.default is msgspec.NODEFAULT else each.default)
            for each in msgspec.structs.fields(kind)
        ]
    return [
        (each.name, _NO_DEFAULT if each.default is dataclasses.MISSING else each.default)
        for each in dataclasses.fields(kind)  # type: ignore[arg-type] # checked by is_record_type
    ]


def _fits_first(default: Any, schema: Schema) -> bool:
    """Whether a default can be in the schema: JSON can express it, and it is of the (first) type."""
    first = schema[0] if isinstance(schema, list) else schema
    wanted = {"null": type(None), "boolean": bool, "long": int, "double": float, "string": str}
    return isinstance(first, str) and type(default) is wanted.get(first)
