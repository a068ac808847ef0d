"""Whether what a writer's Protobuf schema encodes can be read with a reader's. Pure.

Messages are compared by their names without the package, and fields by their numbers: the wire format knows numbers
only, so names may change. Types may change within the groups that the language guide calls compatible. A message must
not disappear, a required field neither appear nor disappear, and fields that were independent must not become members
of one oneof, since only the last of them would survive. Enums and services may change as they like.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from penstock.registry.formats.comparison import Comparison, Pair, Verdict, below
from penstock.registry.formats.proto_syntax import SCALARS, Field, Message
from penstock.registry.formats.protobuf import ProtobufSchema, Symbol, messages_of
from penstock.registry.formats.schema import Incompatibility, pointer, shortened

# Scalars of one group have the same encoding, as far as their values fit.
_VARINT, _TEXT = "variable-length number", "string or bytes"
_GROUPS = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool"), _VARINT),
    **dict.fromkeys(("sint32", "sint64"), "zigzag number"),
    **dict.fromkeys(("string", "bytes"), _TEXT),
    **dict.fromkeys(("fixed32", "sfixed32"), "32-bit number"),
    **dict.fromkeys(("fixed64", "sfixed64"), "64-bit number"),
    "float": "float",
    "double": "double",
}


@dataclass(frozen=True, slots=True)
class _Declared:
    """A message of a schema, or the schema itself, which has all of them."""

    schema: ProtobufSchema
    symbol: Symbol | None = None


Steps = Generator[Pair[_Declared], Verdict, Verdict]


def protobuf_incompatibilities(reader: ProtobufSchema, writer: ProtobufSchema) -> list[Incompatibility]:
    """The differences that keep the reader from reading, each with the message and the number of the field."""
    comparison = Comparison(_rule)
    return list(comparison.verdict(_pair(_Declared(reader), _Declared(writer))))


def _pair(reader: _Declared, writer: _Declared) -> Pair[_Declared]:
    return Pair(reader, writer, tuple(each.symbol.name if each.symbol else "" for each in (reader, writer)))


def _rule(reader: _Declared, writer: _Declared) -> Steps:
    if reader.symbol is None or writer.symbol is None:
        return (yield from _files(reader.schema, writer.schema))
    read, written = reader.symbol.declaration, writer.symbol.declaration
    if not isinstance(read, Message) or not isinstance(written, Message):
        return ()  # well-known types, which are what they are
    return (yield from _messages(reader, read, writer, written))


def _no(kind: str, path: str, message: str) -> Incompatibility:
    return Incompatibility(kind, path, message)


def _files(reader: ProtobufSchema, writer: ProtobufSchema) -> Steps:
    found: list[Incompatibility] = []
    if reader.file.package != writer.file.package:
        packages = [shortened(repr(each.file.package)) for each in (reader, writer)]
        message = f"The reader's package is {packages[0]}, and the writer's {packages[1]}."
        found.append(_no("PACKAGE_CHANGED", "", message))
    own = {reader.symbols[name].local_name: reader.symbols[name] for name, _ in messages_of(reader.file)}
    missing: set[str] = set()
    for name, _ in messages_of(writer.file):
        symbol = writer.symbols[name]
        local = symbol.local_name
        path = pointer(local.split("."))
        if local in own:
            verdict = yield _pair(_Declared(reader, own[local]), _Declared(writer, symbol))
            found.extend(below(path, verdict))
            continue
        missing.add(local)
        if local.rpartition(".")[0] not in missing:
            message = f"The writer has a message {shortened(local)}, and the reader does not."
            found.append(_no("MESSAGE_REMOVED", path, message))
    return tuple(found)


def _messages(reader: _Declared, read: Message, writer: _Declared, written: Message) -> Steps:
    found = list(_oneofs(read, written))
    fields = {each.number: each for each in read.all_fields}
    in_oneof = {each.number: oneof.name for oneof in written.oneofs for each in oneof.fields}
    # A oneof that is gone with all of its members was deleted on purpose.
    deleted = {oneof.name for oneof in written.oneofs if not any(each.number in fields for each in oneof.fields)}
    deleted -= {oneof.name for oneof in read.oneofs}
    for source in written.all_fields:
        path = f"/{source.number}"
        field = fields.pop(source.number, None)
        if field is not None:
            found.extend(below(path, (yield from _fields(reader, field, writer, source))))
        elif source.label == "required":
            message = f"The writer has a required field {source.name} = {source.number}, and the reader does not."
            found.append(_no("REQUIRED_FIELD_REMOVED", path, message))
        elif in_oneof.get(source.number, "") not in {"", *deleted}:
            message = f"The writer's oneof has a field {source.name} = {source.number}, and the reader does not."
            found.append(_no("ONEOF_FIELD_REMOVED", path, message))
    for field in fields.values():
        if field.label == "required":
            message = f"The reader requires a field {field.name} = {field.number}, and the writer does not have it."
            found.append(_no("REQUIRED_FIELD_ADDED", f"/{field.number}", message))
    return tuple(found)


def _oneofs(read: Message, written: Message) -> Verdict:
    """Fields that could be there together with the writer, and exclude one another with the reader."""
    groups: dict[int, str] = {each.number: f"field {each.number}" for each in written.fields}
    groups |= {each.number: f"oneof {oneof.name}" for oneof in written.oneofs for each in oneof.fields}
    found: list[Incompatibility] = []
    for oneof in read.oneofs:
        origins = [groups[each.number] for each in oneof.fields if each.number in groups]
        if len(set(origins)) < 2:
            continue
        moved = sum(each.startswith("field") for each in origins)
        kind = "MULTIPLE_FIELDS_MOVED_TO_ONEOF" if moved > 1 else "FIELD_MOVED_TO_EXISTING_ONEOF"
        message = f"The reader's oneof {oneof.name} has fields that the writer may write together."
        found.append(_no(kind, pointer((oneof.name,)), message))
    return tuple(found)


def _fields(reader: _Declared, field: Field, writer: _Declared, source: Field) -> Steps:
    found: list[Incompatibility] = []
    if field.label == "required" and source.label != "required":
        message = f"The reader's field {field.name} is required, and the writer's is not."
        found.append(_no("REQUIRED_FIELD_ADDED", "", message))
    if field.key or source.key:
        if not field.key or not source.key:
            kinds = ["a map" if each.key else f"of type {each.type}" for each in (field, source)]
            message = f"The reader's field {field.name} is {kinds[0]}, and the writer's {kinds[1]}."
            return (*found, _no("FIELD_KIND_CHANGED", "", message))
        if _GROUPS.get(field.key) != _GROUPS.get(source.key):
            message = f"The keys of the reader's map {field.name} are {field.key}, and the writer's {source.key}."
            found.append(_no("FIELD_SCALAR_KIND_CHANGED", "", message))
    found.extend((yield from _types(reader, field, writer, source)))
    return tuple(found)


def _types(reader: _Declared, field: Field, writer: _Declared, source: Field) -> Steps:
    target, origin = _symbol(reader, field), _symbol(writer, source)
    kinds = [_kind(one, symbol) for one, symbol in ((field, target), (source, origin))]
    named = f"The reader's field {field.name} is of type {field.type}, and the writer's of type {source.type}"
    if kinds[0] != kinds[1]:
        # Scalars of different groups, or not scalars on both sides.
        kind = "FIELD_KIND_CHANGED" if {"message", "group"} & set(kinds) else "FIELD_SCALAR_KIND_CHANGED"
        return (_no(kind, "", f"{named}, which is encoded in another way."),)
    if target is None or origin is None or kinds[0] == _VARINT:
        numeric = kinds[0] != _TEXT
        if numeric and (field.label == "repeated") != (source.label == "repeated"):
            sides = ["repeated" if each.label == "repeated" else "a single value" for each in (field, source)]
            message = f"The reader's field {field.name} of numbers is {sides[0]}, and the writer's {sides[1]}."
            return (_no("FIELD_NUMERIC_LABEL_CHANGED", "", message),)
        return ()
    if target.local_name != origin.local_name:
        return (_no("FIELD_NAMED_TYPE_CHANGED", "", f"{named}, which is another message."),)
    if not target.path and not origin.path:
        return ()  # compared with the messages of the files
    verdict = yield _pair(_Declared(reader.schema, target), _Declared(writer.schema, origin))
    if not verdict:
        return ()
    message = f"{named}, and the imported message has changed so that it cannot be read."
    return (_no("FIELD_NAMED_TYPE_CHANGED", "", message), *verdict)


def _symbol(declared: _Declared, field: Field) -> Symbol | None:
    if field.type in SCALARS:
        return None
    return declared.schema.symbol(field.type, declared.symbol.name if declared.symbol else "")


def _kind(field: Field, symbol: Symbol | None) -> str:
    if field.group is not None:
        return "group"
    if symbol is not None:
        return _VARINT if symbol.kind == "enum" else "message"
    return _GROUPS[field.type]
