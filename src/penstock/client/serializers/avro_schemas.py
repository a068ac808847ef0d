"""Avro schemas from where users keep them: a parsed one, its text, a file, or a class with named fields.

A class becomes a record by this table; a field with a default that JSON can say has it in the schema too, so that
records written before the field was added can still be read.

    bool boolean · int long · float double · str string · bytes bytes · None null
    X | None              ["null", X]            list[X]     array        dict[str, X]   map
    Enum of str values    enum                   Literal     enum         a nested class record
    datetime              long timestamp-micros  date        int date     UUID           string uuid
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import re
import types
import typing
import uuid
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from penstock.client.errors import ConfigError
from penstock.client.serializers.json import is_record_type

Schema: TypeAlias = str | dict[str, Any] | list[Any]

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


def read_schema(source: Any) -> Schema:
    """The schema that a source holds; raises ConfigError."""
    if is_record_type(source):
        return schema_of(source)
    if isinstance(source, Path):
        return _from_file(source)
    if isinstance(source, (dict, list)):
        return source
    if not isinstance(source, str):
        raise ConfigError(f"Avro: a {type(source).__name__} is no schema", hint=_HINT)
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
    """The schema of a dataclass or msgspec.Struct, and of what it refers to."""
    return _Derivation().of(kind, kind.__name__)


class _Derivation:
    """One walk over a class: a name is defined where it is met first, and referred to afterwards."""

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
            # null first, because a default must fit the first branch, and that default is nearly always None.
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
        """Whether the name has been met before; if not, it is from now on."""
        known = self._defined.get(name)
        if known is None:
            self._defined[name] = kind
            return False
        if known != kind:
            raise ConfigError(f"Avro: two types are both called {name}: {known} and {kind}", hint=_HINT)
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
            raise ConfigError(f"Avro: {where}: {symbols} are not all names, as the symbols of an enum are", hint=_HINT)
        if self._is_defined(name, kind):
            return name
        return {"type": "enum", "name": name, "symbols": symbols}


_NO_DEFAULT: Final = object()


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
    """Whether a default can stand in the schema: JSON can say it, and it is of the (first) type."""
    first = schema[0] if isinstance(schema, list) else schema
    wanted = {"null": type(None), "boolean": bool, "long": int, "double": float, "string": str}
    return isinstance(first, str) and type(default) is wanted.get(first)
