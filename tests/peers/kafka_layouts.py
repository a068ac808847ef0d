"""Our layouts and messages in the words of Kafka's: what the two oracles of the wire are compared by."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from penstock.wire.layout import ArrayOf, Field, Kind, Struct
from penstock.wire.types import BOOL, BUFFERS, Primitive

_SIZED = {"string", "bytes", "records"}


def kafka_layout(struct: Struct) -> list[dict[str, Any]]:
    """A struct as java/Layouts.java describes it."""
    plain = [_field(field, -1, struct.flexible) for field in struct.fields]
    return plain + [_field(field, field.tag, struct.flexible) for field in struct.tagged]


def _field(field: Field, tag: int, flexible: bool) -> dict[str, Any]:
    kind, array = field.kind, isinstance(field.kind, ArrayOf)
    described: dict[str, Any] = {"name": field.name, "tag": tag, "nullable": field.nullable, "array": array}
    element = kind.element if isinstance(kind, ArrayOf) else kind
    if isinstance(element, Struct):
        described["struct"] = kafka_layout(element)
    else:
        described["type"] = _type_name(element, flexible)
    if array:
        described["wrapping"] = "CompactArrayOf" if flexible else "ArrayOf"
    described["default"] = _default(field.default, element)
    return described


def _type_name(primitive: Primitive, flexible: bool) -> str:
    if primitive is BOOL:
        return "BOOLEAN"
    compact = "COMPACT_" if flexible and primitive.name in _SIZED else ""
    return compact + primitive.name.upper()


def _default(value: Any, kind: Kind) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    return {} if isinstance(value, msgspec.Struct) else value


def without_null_in_names(described: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kafka's description, with the types that say NULLABLE in their name as plain ones: `nullable` says it too."""
    for field in described:
        if "struct" in field:
            without_null_in_names(field["struct"])
        else:
            field["type"] = field["type"].replace("NULLABLE_", "")
    return described


def kafka_json(message: msgspec.Struct, struct: Struct) -> dict[str, Any]:
    """A message as Kafka's JSON converters write it, names aside (`without_case`): tagged defaults are left out."""
    values: dict[str, Any] = {}
    for field in struct.fields:
        name, value = _json_field(field, getattr(message, field.name))
        values[name] = value
    for field in struct.tagged:
        current = getattr(message, field.name)
        if current != field.default:
            name, value = _json_field(field, current)
            values[name] = value
    return values


def _json_field(field: Field, value: Any) -> tuple[str, Any]:
    name = field.name.replace("_", "")
    if isinstance(field.kind, Primitive) and field.kind.name == "records" and value is not None:
        return name + "sizeinbytes", len(value)
    return name, _json_value(value, field.kind)


def _json_value(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayOf):
        return [_json_value(item, kind.element) for item in value]
    if isinstance(kind, Struct):
        return kafka_json(value, kind)
    if kind.name == "uuid":
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    if isinstance(value, BUFFERS):
        return base64.b64encode(value).decode()
    return value


def without_case(json: Any) -> Any:
    """Kafka's JSON with names in lower case."""
    if isinstance(json, dict):
        return {name.lower(): without_case(value) for name, value in json.items()}
    return [without_case(item) for item in json] if isinstance(json, list) else json
