"""Canonical and normalized text of .proto declarations. Pure.

The canonical text has the declarations in their own order, messages before enums, without comments. The normalized
text sorts what has no meaning in its order: imports, options, fields by their numbers, ranges. It names types in full.
The order of messages stays, since the wire format of the serializers counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.registry.formats.proto_syntax import (
    ENUM_MAX,
    NUMBER_MAX,
    SCALARS,
    Aggregate,
    Enum,
    Extend,
    Field,
    File,
    Message,
    Method,
    Oneof,
    Option,
    OptionValue,
    Range,
    Reserved,
    Scalar,
    Service,
)

# Declarations, and how to write one of them.
Part = tuple[Sequence[Any], Callable[[Any], None]]
# Ranges and names of a statement, and its options as text.
Split = tuple[list[Range], list[str], str]
# The full name of a type as it is written at a scope.
Resolve = Callable[[str, str], str]
_ESCAPED = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 39: "\\'", 92: "\\\\"}


def proto_text(file: File, resolve: Resolve | None = None) -> str:
    """The canonical text, or the normalized one if a function to resolve the names of types is given."""
    writer = _Writer(resolve)
    writer.file(file)
    return "\n".join(writer.lines) + "\n" if writer.lines else ""


class _Writer:
    def __init__(self, resolve: Resolve | None) -> None:
        self.lines: list[str] = []
        self._resolve = resolve
        self._normal = resolve is not None
        self._indent = ""

    def _line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    def _parts(self, parts: Iterable[Part]) -> None:
        """Parts with a blank line between them. A part is declarations, and how to write one."""
        first = True
        for declarations, write in parts:
            if declarations and not first:
                self.lines.append("")
            for each in declarations:
                write(each)
            first = first and not declarations

    def _block(self, head: str, parts: Sequence[Part]) -> None:
        if not any(declarations for declarations, _ in parts):
            self._line(head + " {}")
            return
        self._line(head + " {")
        self._indent += "  "
        self._parts(parts)
        self._indent = self._indent[2:]
        self._line("}")

    def _type(self, name: str, scope: str) -> str:
        return name if self._resolve is None or name in SCALARS else "." + self._resolve(name, scope)

    def file(self, file: File) -> None:
        head = []
        if file.edition:
            head.append(f'edition = "{file.edition}";')
        elif file.syntax and (not self._normal or file.syntax == "proto3"):
            head.append(f'syntax = "{file.syntax}";')
        if file.package:
            head.append(f"package {file.package};")
        scope = file.package
        self._parts(
            [
                (head, self._line),
                (self._imports(file), self._line),
                self._options_part(file.options),
                (_own_types(file, file.extends, ()), lambda each: self._declaration(each, scope)),
                (self._extends(file.extends, scope), lambda each: self._extend(each, scope)),
                (file.services, lambda each: self._service(each, scope)),
            ]
        )

    def _imports(self, file: File) -> list[str]:
        imports = [(each.kind == "public", each.kind, each.path) for each in file.imports]
        if self._normal:
            imports = sorted(set(imports))
        else:
            imports.sort(key=lambda each: each[0])
        return [f"import {kind + ' ' if kind else ''}{quoted(path.encode())};" for _, kind, path in imports]

    def _declaration(self, each: Message | Enum, scope: str) -> None:
        if isinstance(each, Message):
            self._message(f"message {each.name}", each, scope)
        else:
            self._enum(each)

    def _message(self, head: str, message: Message, outer: str) -> None:
        scope = f"{outer}.{message.name}" if outer else message.name
        oneofs = message.oneofs
        if self._normal:
            with_fields = [each for each in oneofs if each.fields]
            oneofs = sorted(with_fields, key=lambda each: min(one.number for one in each.fields))
        types = _own_types(message, message.extends, message.all_fields)
        self._block(
            head,
            [
                (self._reserved("reserved", message.reserved, NUMBER_MAX), self._line),
                self._options_part(message.options),
                (self._by_number(message.fields), lambda each: self._field(each, scope)),
                (oneofs, lambda each: self._oneof(each, scope)),
                (self._reserved("extensions", message.extensions, NUMBER_MAX), self._line),
                (self._extends(message.extends, scope), lambda each: self._extend(each, scope)),
                (types, lambda each: self._declaration(each, scope)),
            ],
        )

    def _by_number(self, fields: Sequence[Field]) -> Sequence[Field]:
        return sorted(fields, key=lambda each: each.number) if self._normal else fields

    def _field(self, field: Field, scope: str) -> None:
        label = f"{field.label} " if field.label else ""
        if field.group is not None:
            head = f"{label}group {field.group.name} = {field.number}{self._options(field.options)}"
            self._message(head, field.group, scope)
            return
        type_ = self._type(field.type, scope)
        if field.key:
            type_ = f"map<{field.key}, {type_}>"
        self._line(f"{label}{type_} {field.name} = {field.number}{self._options(field.options)};")

    def _oneof(self, oneof: Oneof, scope: str) -> None:
        fields = self._by_number(oneof.fields)
        parts: list[Part] = [self._options_part(oneof.options), (fields, lambda each: self._field(each, scope))]
        self._block(f"oneof {oneof.name}", parts)

    def _enum(self, enum: Enum) -> None:
        values = sorted(enum.values, key=lambda each: (each.number, each.name)) if self._normal else enum.values
        self._block(
            f"enum {enum.name}",
            [
                (self._reserved("reserved", enum.reserved, ENUM_MAX), self._line),
                self._options_part(enum.options),
                (values, lambda each: self._line(f"{each.name} = {each.number}{self._options(each.options)};")),
            ],
        )

    def _reserved(self, keyword: str, statements: Sequence[Reserved], highest: int) -> list[str]:
        """Statements of ranges and names; one for each of them, in their order, in the normalized text."""
        split: list[Split] = [(each.ranges, each.names, self._options(each.options)) for each in statements]
        if self._normal:
            ranges: dict[tuple[int, int], Split] = {
                (one.first, one.last): ([one], [], options) for own, _, options in split for one in own
            }
            names: dict[str, Split] = {name: ([], [name], options) for _, own, options in split for name in own}
            split = [*(ranges[key] for key in sorted(ranges)), *(names[key] for key in sorted(names))]
        lines = []
        for own, words, options in split:
            values = [_range(each, highest) for each in own] + [quoted(each.encode()) for each in words]
            lines.append(f"{keyword} {', '.join(values)}{options};")
        return lines

    def _extends(self, extends: Sequence[Extend], scope: str) -> Sequence[Extend]:
        if not self._normal:
            return extends
        merged: dict[str, Extend] = {}
        for each in extends:
            name = self._type(each.type, scope)
            merged.setdefault(name, Extend(name)).fields.extend(each.fields)
        return list(merged.values())

    def _extend(self, extend: Extend, scope: str) -> None:
        part: Part = (self._by_number(extend.fields), lambda each: self._field(each, scope))
        self._block(f"extend {extend.type}", [part])

    def _service(self, service: Service, scope: str) -> None:
        parts: list[Part] = [
            self._options_part(service.options),
            (service.methods, lambda each: self._method(each, scope)),
        ]
        self._block(f"service {service.name}", parts)

    def _method(self, method: Method, scope: str) -> None:
        taken = ("stream " if method.input_stream else "") + self._type(method.input, scope)
        given = ("stream " if method.output_stream else "") + self._type(method.output, scope)
        head = f"rpc {method.name} ({taken}) returns ({given})"
        if method.options:
            self._block(head, [self._options_part(method.options)])
        else:
            self._line(head + ";")

    def _sorted(self, options: Sequence[Option]) -> Sequence[Option]:
        return sorted(options, key=lambda each: each.name) if self._normal else options

    def _options_part(self, options: Sequence[Option]) -> Part:
        return self._sorted(options), lambda each: self._line(f"option {self._option(each)};")

    def _options(self, options: Sequence[Option]) -> str:
        return f" [{', '.join(map(self._option, self._sorted(options)))}]" if options else ""

    def _option(self, option: Option) -> str:
        return f"{option.name} = {_value(option.value, normal=self._normal)}"


def _own_types(parent: File | Message, extends: Sequence[Extend], fields: Sequence[Field]) -> list[Message | Enum]:
    """The types declared in a file or a message, without those that are declared by groups."""
    declaring = [*fields, *(field for extend in extends for field in extend.fields)]
    groups = {id(each.group) for each in declaring if each.group is not None}
    return [*(each for each in parent.messages if id(each) not in groups), *parent.enums]


def option_text(value: OptionValue) -> str:
    """The value of an option as it is written."""
    return _value(value, normal=False)


def _range(each: Range, highest: int) -> str:
    if each.first == each.last:
        return str(each.first)
    return f"{each.first} to {'max' if each.last == highest else each.last}"


def _value(value: OptionValue, *, normal: bool) -> str:
    if isinstance(value, Scalar):
        return quoted(value.data) if value.kind == "string" else value.text
    if isinstance(value, Aggregate):
        entries = sorted(value.entries, key=lambda each: each[0]) if normal else value.entries
        return (
            "{ " + ", ".join(f"{name}: {_value(each, normal=normal)}" for name, each in entries) + " }"
            if entries
            else "{}"
        )
    return "[" + ", ".join(_value(each, normal=normal) for each in value) + "]"


def quoted(data: bytes) -> str:
    """A string literal. Bytes that are not UTF-8 are written as octal numbers."""
    text = data.decode("utf-8", "surrogateescape")
    return '"' + "".join(_escaped(ord(each)) for each in text) + '"'


def _escaped(code: int) -> str:
    if code in _ESCAPED:
        return _ESCAPED[code]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\{code - 0xDC00:03o}"
    return f"\\{code:03o}" if code < 32 or code == 127 else chr(code)
