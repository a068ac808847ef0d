"""Protobuf schemas: a .proto file with the files that it imports, its names resolved and its rules checked. Pure.

Text is the usual form. Clients of confluent-kafka register a serialized `FileDescriptorProto` in base64 instead;
both become the same declarations, and so the same schema.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.registry.formats.proto_descriptor import decode_file
from penstock.registry.formats.proto_encoder import encode_file
from penstock.registry.formats.proto_known_types import KNOWN_FILES
from penstock.registry.formats.proto_syntax import (
    SCALARS,
    Enum,
    Extend,
    Field,
    File,
    Message,
    Option,
    Range,
    Reserved,
    Scalar,
    parse_proto,
)
from penstock.registry.formats.proto_text import proto_text
from penstock.registry.formats.schema import InvalidSchema, ReferencedSchema, SchemaType, check_sizes, shortened

MAP_KEYS = tuple(each for each in SCALARS if each not in ("double", "float", "bytes"))
# Full names are kept for each type and written for each field.
NAME_CHARACTERS_MAX = 500
NAME_PARTS_MAX = 64
# Numbers that Protobuf keeps for itself.
_IMPLEMENTATION = Range(19_000, 19_999)


@dataclass(frozen=True, slots=True)
class Symbol:
    """A type: `message` or `enum`. `path` is the imported file that has it; a well-known type has no declaration."""

    kind: str
    name: str
    declaration: Message | Enum | None
    path: str
    package: str

    @property
    def local_name(self) -> str:
        """The name without the package."""
        return self.name.removeprefix(f"{self.package}.") if self.package else self.name


class ProtobufSchema:
    """A parsed Protobuf schema."""

    schema_type: SchemaType = "PROTOBUF"

    def __init__(self, text: str, references: Sequence[ReferencedSchema] = ()) -> None:
        check_sizes(text, references)
        self.file = _parse(text)
        self.symbols: dict[str, Symbol] = {}
        imported: dict[str, File] = {}
        for each in dict.fromkeys(references):
            try:
                imported[each.name] = _parse(each.schema)
                self._declare(imported[each.name], each.name)
            except InvalidSchema as error:
                raise InvalidSchema(f"Reference {shortened(each.name)!r}: {error}") from None
        self._declare(self.file, "")
        for name, file in (*imported.items(), ("", self.file)):
            self._import(file, name, imported)
        for scope, type_, kinds in _uses(self.file):
            self._check_use(scope, type_, kinds)
        self.canonical = proto_text(self.file)
        self.normalized = proto_text(self.file, self.full_name)

    @property
    def serialized(self) -> str:
        """A `FileDescriptorProto` in base64, as `format=serialized` gives it."""
        return base64.b64encode(encode_file(self.file, self._kind_and_name)).decode()

    def full_name(self, name: str, scope: str) -> str:
        """The full name, without a leading dot, of a type that is named at a scope."""
        symbol = self.symbol(name, scope)
        if symbol is None:
            raise InvalidSchema(_undefined(name, scope))
        return symbol.name

    def symbol(self, name: str, scope: str) -> Symbol | None:
        """The type that a name means: the one of the innermost scope that has it."""
        if name.startswith("."):
            return self.symbols.get(name[1:])
        while True:
            found = self.symbols.get(f"{scope}.{name}" if scope else name)
            if found is not None or not scope:
                return found
            scope = scope.rpartition(".")[0]

    def check_unfinished(self) -> None:
        """The rules of protoc on numbers, names and syntax."""
        _check_file(self.file)

    def _kind_and_name(self, name: str, scope: str) -> tuple[str, str]:
        symbol = self.symbol(name, scope)
        return (symbol.kind, symbol.name) if symbol else ("message", name)

    def _declare(self, file: File, path: str) -> None:
        for full, declaration in _declarations(file):
            kind = "message" if isinstance(declaration, Message) else "enum"
            known = self.symbols.get(full)
            if known is not None:
                where = f" in {known.path}" if known.path else ""
                raise InvalidSchema(
                    f"Type {shortened(full)!r} is declared twice; the first is{where or ' in the file'}."
                )
            self.symbols[full] = Symbol(kind, full, declaration, path, file.package)

    def _import(self, file: File, name: str, imported: dict[str, File]) -> None:
        for each in file.imports:
            if each.path in imported:
                continue
            types = KNOWN_FILES.get(each.path)
            if types is None:
                where = f"Reference {shortened(name)!r}: " if name else ""
                raise InvalidSchema(
                    f"{where}import {shortened(each.path)!r} is not among the references; add one with that name."
                )
            for full, kind in types.items():
                package = full[: -len(_local(full))].rstrip(".")
                self.symbols.setdefault(full, Symbol(kind, full, None, each.path, package))

    def _check_use(self, scope: str, type_: str, kinds: Sequence[str]) -> None:
        symbol = self.symbol(type_, scope)
        if symbol is None:
            raise InvalidSchema(_undefined(type_, scope))
        if symbol.kind not in kinds:
            raise InvalidSchema(f"In {scope or 'the file'}: {shortened(type_)!r} is an {symbol.kind}, not a message.")


def _local(full: str) -> str:
    """The part of a well-known type's name that starts with a capital letter."""
    parts = full.split(".")
    first = next(index for index, part in enumerate(parts) if part[0].isupper())
    return ".".join(parts[first:])


def _undefined(name: str, scope: str) -> str:
    return (
        f"In {shortened(scope) or 'the file'}: type {shortened(name)!r} is not defined. "
        "Define it, or import the file that does."
    )


def _parse(text: str) -> File:
    try:
        return parse_proto(text)
    except InvalidSchema:
        data = _from_base64(text)
        if data is None:
            raise
    return decode_file(data)


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None


def _declarations(file: File) -> Iterator[tuple[str, Message | Enum]]:
    waiting = [(file.package, each) for each in _types(file)]
    while waiting:
        scope, declaration = waiting.pop()
        full = f"{scope}.{declaration.name}" if scope else declaration.name
        if len(full) > NAME_CHARACTERS_MAX or full.count(".") > NAME_PARTS_MAX:
            raise InvalidSchema(
                f"The name {shortened(full)} is longer than {NAME_CHARACTERS_MAX} characters or {NAME_PARTS_MAX} parts."
            )
        yield full, declaration
        if isinstance(declaration, Message):
            waiting.extend((full, each) for each in _types(declaration))


def _types(parent: File | Message) -> list[Message | Enum]:
    return [*parent.messages, *parent.enums]


def messages_of(file: File) -> Iterator[tuple[str, Message]]:
    """All messages with their full names."""
    return ((full, each) for full, each in _declarations(file) if isinstance(each, Message))


def _uses(file: File) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Where which types are named, and of which kind they have to be."""
    extends: list[tuple[str, Extend]] = [(file.package, each) for each in file.extends]
    for scope, message in messages_of(file):
        extends.extend((scope, each) for each in message.extends)
        for field in message.all_fields:
            if field.type not in SCALARS:
                yield scope, field.type, ("message", "enum")
    for scope, extend in extends:
        yield scope, extend.type, ("message",)
        for field in extend.fields:
            if field.type not in SCALARS:
                yield scope, field.type, ("message", "enum")
    for service in file.services:
        for method in service.methods:
            yield file.package, method.input, ("message",)
            yield file.package, method.output, ("message",)


def _check_file(file: File) -> None:
    proto3 = file.syntax == "proto3"
    for full, declaration in _declarations(file):
        if isinstance(declaration, Enum):
            _check_enum(full, declaration, proto3=proto3)
        else:
            _check_message(full, declaration, proto3=proto3, edition=bool(file.edition))
    names = [*(each.name for each in _types(file)), *(each.name for each in file.services)]
    _check_unique(file.package or "the file", names, "declaration")


def _check_unique(where: str, names: Iterable[str | int], what: str) -> None:
    seen: set[str | int] = set()
    for each in names:
        if each in seen:
            raise InvalidSchema(f"In {shortened(where)}: {what} {each} is there twice.")
        seen.add(each)


def _check_message(full: str, message: Message, *, proto3: bool, edition: bool) -> None:
    fields = message.all_fields
    _check_unique(full, [*(each.name for each in fields), *(each.name for each in message.oneofs)], "the name")
    _check_unique(full, (each.number for each in fields), "the field number")
    _check_unique(full, (each.name for each in _types(message)), "declaration")
    if proto3 and message.extensions:
        raise InvalidSchema(f"In {full}: proto3 has no extensions.")
    for each in message.oneofs:
        if not each.fields:
            raise InvalidSchema(f"In {full}: oneof {each.name} has no fields.")
    ranges = [each for statement in (*message.reserved, *message.extensions) for each in statement.ranges]
    _check_ranges(full, ranges)
    inside = _Ranges([*ranges, _IMPLEMENTATION])
    names = {name for statement in message.reserved for name in statement.names}
    in_oneof = {id(each) for oneof in message.oneofs for each in oneof.fields}
    for field in fields:
        _check_field(full, field, proto3=proto3, labelled=edition or proto3 or id(field) in in_oneof)
        if inside.have(field.number):
            raise InvalidSchema(f"In {full}: the number {field.number} of field {field.name} is reserved.")
        if field.name in names:
            raise InvalidSchema(f"In {full}: the name of field {field.name} is reserved.")


def _check_field(full: str, field: Field, *, proto3: bool, labelled: bool) -> None:
    if field.key and field.key not in MAP_KEYS:
        raise InvalidSchema(f"In {full}: the keys of map {field.name} are {field.key}; use an integer, bool or string.")
    if not field.label and not field.key and not labelled:
        raise InvalidSchema(f"In {full}: field {field.name} has no label; proto2 needs optional, required or repeated.")
    if not proto3:
        return
    if field.label == "required" or field.group is not None:
        raise InvalidSchema(f"In {full}: field {field.name} is a {field.label or 'group'} field, which proto3 has not.")
    if any(each.name == "default" for each in field.options):
        raise InvalidSchema(f"In {full}: field {field.name} has a default, which proto3 has not.")


def _check_ranges(full: str, ranges: Sequence[Range]) -> None:
    ordered = sorted(ranges, key=lambda each: each.first)
    for one, other in pairwise(ordered):
        if other.first <= one.last:
            raise InvalidSchema(f"In {full}: the ranges {one.first} to {one.last} and {other.first} ... overlap.")


class _Ranges:
    """Which numbers are in ranges."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.first)

    def have(self, number: int) -> bool:
        low, high = 0, len(self._ranges)
        while low < high:
            middle = (low + high) // 2
            if self._ranges[middle].last < number:
                low = middle + 1
            else:
                high = middle
        return low < len(self._ranges) and self._ranges[low].first <= number


def _check_enum(full: str, enum: Enum, *, proto3: bool) -> None:
    if not enum.values:
        raise InvalidSchema(f"In {full}: the enum has no values.")
    if proto3 and enum.values[0].number != 0:
        raise InvalidSchema(
            f"In {full}: the first value of an enum of proto3 has to be 0, not {enum.values[0].number}."
        )
    _check_unique(full, (each.name for each in enum.values), "the name")
    if not _is_true(enum.options, "allow_alias"):
        _check_unique(full, (each.number for each in enum.values), "without option allow_alias, the number")
    statements: list[Reserved] = enum.reserved
    ranges = [each for statement in statements for each in statement.ranges]
    _check_ranges(full, ranges)
    inside = _Ranges(ranges)
    names = {name for statement in statements for name in statement.names}
    for value in enum.values:
        if inside.have(value.number) or value.name in names:
            raise InvalidSchema(f"In {full}: value {value.name} = {value.number} is reserved.")


def _is_true(options: Sequence[Option], name: str) -> bool:
    return any(each.name == name and each.value == Scalar("word", "true") for each in options)
