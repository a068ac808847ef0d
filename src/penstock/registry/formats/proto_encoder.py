"""Declarations of a .proto file written as a `FileDescriptorProto`. Pure.

Clients ask for it with `format=serialized`. Options of extensions are written as options that are not interpreted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from penstock.registry.formats.proto_descriptor import (
    EDITIONS,
    ENUM,
    GROUP,
    LABELS,
    MESSAGE,
    OPTIONS,
    TYPES,
    UNINTERPRETED,
    json_name,
)
from penstock.registry.formats.proto_syntax import (
    Aggregate,
    Enum,
    Extend,
    Field,
    File,
    Message,
    Option,
    Scalar,
    Service,
)
from penstock.registry.formats.proto_text import option_text, quoted

_TYPE_NUMBERS = {name: number for number, name in TYPES.items()}
_LABEL_NUMBERS = {name: number for number, name in LABELS.items()}
# The kind, message or enum, and the full name of a type that is named at a scope.
KindAndName = Callable[[str, str], tuple[str, str]]


def encode_file(file: File, kind_and_name: KindAndName) -> bytes:
    """A serialized `FileDescriptorProto` by the name `default`, as in Confluent's registry; clients change it."""
    encoder = _Encoder(file, kind_and_name)
    return b"".join(encoder.file())


def _put_number(field: int, value: int) -> bytes:
    return _encoded(field << 3) + _encoded(value & (2**64 - 1))


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _put(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _encoded(field << 3 | 2) + _encoded(len(data)) + data


def _put_options(field: int, options: Sequence[Option], owner: str) -> bytes:
    numbers = {name: (number, form) for number, (name, form) in OPTIONS[owner].items()}
    parts = []
    for each in options:
        number, form = numbers.get(each.name, (0, ""))
        value = each.value
        if not number or not isinstance(value, Scalar):
            if each.name not in ("default", "json_name"):
                parts.append(_put(UNINTERPRETED, _uninterpreted_bytes(each)))
        elif form == "string":
            parts.append(_put(number, value.data))
        elif isinstance(form, dict):
            parts.append(_put_number(number, next((key for key, name in form.items() if name == value.text), 0)))
        else:
            parts.append(_put_number(number, value.text == "true"))
    return _put(field, b"".join(parts)) if parts else b""


def _uninterpreted_bytes(option: Option) -> bytes:
    parts = []
    for part in _name_parts(option.name):
        extension = part.startswith("(")
        parts.append(_put(2, _put(1, part.strip("()")) + _put_number(2, extension)))
    value = option.value
    if isinstance(value, Aggregate):
        parts.append(_put(8, option_text(value)[1:-1].strip()))
    elif not isinstance(value, Scalar):
        parts.append(_put(8, option_text(value)))
    elif value.kind == "string":
        parts.append(_put(7, value.data))
    elif value.kind == "word":
        parts.append(_put(3, value.text))
    else:
        parts.append(_number_bytes(value.text))
    return b"".join(parts)


def _name_parts(name: str) -> Iterator[str]:
    """The parts of an option's name; dots inside parentheses belong to the part."""
    part = ""
    depth = 0
    for each in name:
        depth += (each == "(") - (each == ")")
        if each == "." and not depth:
            yield part
            part = ""
        else:
            part += each
    yield part


def _number_bytes(text: str) -> bytes:
    try:
        number = int(text, 0)
    except ValueError:
        return _encoded(6 << 3 | 1) + struct.pack("<d", float(text))
    return _put_number(4 if number >= 0 else 5, number)


class _Encoder:
    def __init__(self, file: File, kind_and_name: KindAndName) -> None:
        self._file = file
        self._kind_and_name = kind_and_name

    def file(self) -> Iterator[bytes]:
        file = self._file
        yield _put(1, "default")
        if file.package:
            yield _put(2, file.package)
        for each in file.imports:
            yield _put(3, each.path)
        for message in file.messages:
            yield _put(4, b"".join(self._message(message, file.package)))
        for enum in file.enums:
            yield _put(5, self._enum(enum))
        for service in file.services:
            yield _put(6, b"".join(self._service(service)))
        yield from self._extends(7, file.extends, file.package)
        yield _put_options(8, file.options, "file")
        for index, each in enumerate(file.imports):
            if each.kind:
                yield _put_number(10 if each.kind == "public" else 11, index)
        if file.syntax == "proto3":
            yield _put(12, "proto3")
        elif file.edition:
            yield _put(12, "editions")
            number = next((key for key, name in EDITIONS.items() if name == file.edition), 1000)
            yield _put_number(14, number)

    def _message(self, message: Message, outer: str) -> Iterator[bytes]:
        scope = f"{outer}.{message.name}" if outer else message.name
        yield _put(1, message.name)
        oneofs = [(each.name, each.options) for each in message.oneofs]
        for field in message.fields:
            # A field of proto3 that is marked as optional is alone in a oneof that nobody wrote.
            synthetic = field.label == "optional" and self._file.syntax == "proto3"
            if synthetic:
                oneofs.append((f"_{field.name}", []))
            yield _put(
                2, b"".join(self._field(field, scope, len(oneofs) - 1 if synthetic else -1, synthetic=synthetic))
            )
        for index, oneof in enumerate(message.oneofs):
            for field in oneof.fields:
                yield _put(2, b"".join(self._field(field, scope, index)))
        for inner in message.messages:
            yield _put(3, b"".join(self._message(inner, scope)))
        for field in message.all_fields:
            if field.key:
                yield _put(3, self._map_entry(field, scope))
        for enum in message.enums:
            yield _put(4, self._enum(enum))
        yield from self._numbers_for_others(message)
        yield from self._extends(6, message.extends, scope)
        yield _put_options(7, message.options, "message")
        for name, options in oneofs:
            yield _put(8, _put(1, name) + _put_options(2, options, "oneof"))

    @staticmethod
    def _numbers_for_others(message: Message) -> Iterator[bytes]:
        for statement in message.extensions:
            options = _put_options(3, statement.options, "extensions")
            for each in statement.ranges:
                yield _put(5, _put_number(1, each.first) + _put_number(2, each.last + 1) + options)
        for statement in message.reserved:
            for each in statement.ranges:
                yield _put(9, _put_number(1, each.first) + _put_number(2, each.last + 1))
            for name in statement.names:
                yield _put(10, name)

    def _extends(self, number: int, extends: Sequence[Extend], scope: str) -> Iterator[bytes]:
        for extend in extends:
            for field in extend.fields:
                yield _put(number, b"".join(self._field(field, scope, extend=extend.type)))

    def _field(
        self, field: Field, scope: str, oneof: int = -1, *, extend: str = "", synthetic: bool = False
    ) -> Iterator[bytes]:
        yield _put(1, field.name)
        if extend:
            yield _put(2, "." + self._kind_and_name(extend, scope)[1])
        yield _put_number(3, field.number)
        yield _put_number(4, 3 if field.key else _LABEL_NUMBERS.get(field.label, 1))
        yield from self._type(field, scope)
        for each in field.options:
            if each.name == "default" and isinstance(each.value, Scalar):
                value = each.value
                data = value.data if field.type == "string" else quoted(value.data)[1:-1].encode()
                yield _put(7, data if value.kind == "string" else value.text)
        yield _put_options(8, field.options, "field")
        if oneof >= 0:
            yield _put_number(9, oneof)
        for each in field.options:
            if each.name == "json_name" and isinstance(each.value, Scalar):
                yield _put(10, each.value.data)
        if synthetic:
            yield _put_number(17, 1)

    def _type(self, field: Field, scope: str) -> Iterator[bytes]:
        if field.key:
            yield _put_number(5, MESSAGE) + _put(6, f".{scope}.{_entry_name(field)}")
        elif field.group is not None:
            yield _put_number(5, GROUP) + _put(6, f".{scope}.{field.group.name}" if scope else f".{field.group.name}")
        elif field.type in _TYPE_NUMBERS:
            yield _put_number(5, _TYPE_NUMBERS[field.type])
        else:
            kind, name = self._kind_and_name(field.type, scope)
            yield _put_number(5, ENUM if kind == "enum" else MESSAGE) + _put(6, f".{name}")

    def _map_entry(self, field: Field, scope: str) -> bytes:
        key = Field("key", 1, field.key)
        value = Field("value", 2, field.type)
        fields = b"".join(_put(2, b"".join(self._field(each, scope))) for each in (key, value))
        return _put(1, _entry_name(field)) + fields + _put(7, _put_number(7, 1))

    def _enum(self, enum: Enum) -> bytes:
        parts = [_put(1, enum.name)]
        for each in enum.values:
            value = _put(1, each.name) + _put_number(2, each.number) + _put_options(3, each.options, "value")
            parts.append(_put(2, value))
        parts.append(_put_options(3, enum.options, "enum"))
        for statement in enum.reserved:
            parts += [_put(4, _put_number(1, one.first) + _put_number(2, one.last)) for one in statement.ranges]
        for statement in enum.reserved:
            parts += [_put(5, name) for name in statement.names]
        return b"".join(parts)

    def _service(self, service: Service) -> Iterator[bytes]:
        yield _put(1, service.name)
        for each in service.methods:
            types = [self._kind_and_name(name, self._file.package)[1] for name in (each.input, each.output)]
            streams = (_put_number(5, 1) if each.input_stream else b"") + (
                _put_number(6, 1) if each.output_stream else b""
            )
            options = _put_options(4, each.options, "method")
            yield _put(2, _put(1, each.name) + _put(2, f".{types[0]}") + _put(3, f".{types[1]}") + options + streams)
        yield _put_options(3, service.options, "service")


def _entry_name(field: Field) -> str:
    name = json_name(field.name)
    return f"{name[:1].upper()}{name[1:]}Entry"
