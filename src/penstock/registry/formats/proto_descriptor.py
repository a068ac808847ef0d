"""`FileDescriptorProto`, the binary form of a .proto file, read as declarations. Pure.

Clients register it in base64. Numbers of fields are those of google/protobuf/descriptor.proto. Options of extensions
have no names in the binary form, and are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.registry.formats.proto_syntax import (
    NESTING_MAX,
    Enum,
    EnumValue,
    Extend,
    Field,
    File,
    Import,
    Message,
    Method,
    Oneof,
    Option,
    OptionValue,
    Range,
    Reserved,
    Scalar,
    Service,
    parse_proto,
)
from penstock.registry.formats.proto_text import proto_text
from penstock.registry.formats.schema import InvalidSchema

TYPES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    12: "bytes",
    13: "uint32",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
GROUP, MESSAGE, ENUM = 10, 11, 14
LABELS = {1: "optional", 2: "required", 3: "repeated"}
EDITIONS = {1000: "2023", 1001: "2024"}
UNINTERPRETED = 999

# Options by the message that has them: number, name, and bool, string or the names of an enum by number.
_Form = str | dict[int, str]
OPTIONS: dict[str, dict[int, tuple[str, _Form]]] = {
    "file": {
        1: ("java_package", "string"),
        8: ("java_outer_classname", "string"),
        9: ("optimize_for", {1: "SPEED", 2: "CODE_SIZE", 3: "LITE_RUNTIME"}),
        10: ("java_multiple_files", "bool"),
        11: ("go_package", "string"),
        16: ("cc_generic_services", "bool"),
        17: ("java_generic_services", "bool"),
        18: ("py_generic_services", "bool"),
        20: ("java_generate_equals_and_hash", "bool"),
        23: ("deprecated", "bool"),
        27: ("java_string_check_utf8", "bool"),
        31: ("cc_enable_arenas", "bool"),
        36: ("objc_class_prefix", "string"),
        37: ("csharp_namespace", "string"),
        39: ("swift_prefix", "string"),
        40: ("php_class_prefix", "string"),
        41: ("php_namespace", "string"),
        44: ("php_metadata_namespace", "string"),
        45: ("ruby_package", "string"),
    },
    "message": {
        1: ("message_set_wire_format", "bool"),
        2: ("no_standard_descriptor_accessor", "bool"),
        3: ("deprecated", "bool"),
        7: ("map_entry", "bool"),
    },
    "field": {
        1: ("ctype", {0: "STRING", 1: "CORD", 2: "STRING_PIECE"}),
        2: ("packed", "bool"),
        3: ("deprecated", "bool"),
        5: ("lazy", "bool"),
        6: ("jstype", {0: "JS_NORMAL", 1: "JS_STRING", 2: "JS_NUMBER"}),
        10: ("weak", "bool"),
        16: ("debug_redact", "bool"),
    },
    "oneof": {},
    "extensions": {},
    "enum": {2: ("allow_alias", "bool"), 3: ("deprecated", "bool")},
    "value": {1: ("deprecated", "bool"), 3: ("debug_redact", "bool")},
    "service": {33: ("deprecated", "bool")},
    "method": {
        33: ("deprecated", "bool"),
        34: ("idempotency_level", {0: "IDEMPOTENCY_UNKNOWN", 1: "NO_SIDE_EFFECTS", 2: "IDEMPOTENT"}),
    },
}


def decode_file(data: bytes) -> File:
    """The declarations of a serialized `FileDescriptorProto`.

    :raises InvalidSchema: if the bytes are not one
    """
    try:
        file = _file(_Wire(data))
    except (ValueError, IndexError, struct.error) as error:
        raise InvalidSchema(f"The schema is neither a .proto file nor a FileDescriptorProto: {error}.") from None
    if not (file.messages or file.enums or file.services or file.extends or file.imports or file.options):
        raise InvalidSchema("The schema is neither a .proto file nor a FileDescriptorProto: it declares nothing.")
    # Names and values come from a stranger, and may be anything. What they are as text is what they are.
    return parse_proto(proto_text(file))


class _Wire:
    """A message of the wire format, by the numbers of its fields."""

    def __init__(self, data: bytes, depth: int = 0) -> None:
        if depth > 2 * NESTING_MAX:
            raise ValueError("messages are nested too deep")
        self._depth = depth
        self._values: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            value: int | bytes
            if key & 7 == 0:
                value, at = _varint(data, at)
            elif key & 7 == 2:
                size, at = _varint(data, at)
                if size > len(data) - at:
                    raise ValueError("it ends too early")
                value, at = data[at : at + size], at + size
            elif key & 7 in (1, 5):
                size = 8 if key & 7 == 1 else 4
                value, at = data[at : at + size], at + size
                if len(value) < size:
                    raise ValueError("it ends too early")
            else:
                raise ValueError(f"wire type {key & 7} is not used")
            self._values.setdefault(key >> 3, []).append(value)

    def numbers(self, field: int) -> list[int]:
        found: list[int] = []
        for each in self._values.get(field, ()):
            if isinstance(each, int):
                found.append(each)
                continue
            at = 0
            while at < len(each):
                number, at = _varint(each, at)
                found.append(number)
        return found

    def number(self, field: int, default: int = 0) -> int:
        return (self.numbers(field) or [default])[-1]

    def signed(self, field: int) -> int:
        value = self.number(field)
        return value - 2**64 if value >= 2**63 else value

    def all_bytes(self, field: int) -> list[bytes]:
        values = self._values.get(field, ())
        if not all(isinstance(each, bytes) for each in values):
            raise ValueError(f"field {field} is a number")
        return [each for each in values if isinstance(each, bytes)]

    def texts(self, field: int) -> list[str]:
        return [each.decode() for each in self.all_bytes(field)]

    def text(self, field: int) -> str:
        return (self.texts(field) or [""])[-1]

    def has(self, field: int) -> bool:
        return field in self._values

    def messages(self, field: int) -> list[_Wire]:
        return [_Wire(each, self._depth + 1) for each in self.all_bytes(field)]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("it ends too early")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    raise ValueError("a number has more than ten bytes")


def _file(wire: _Wire) -> File:
    syntax = wire.text(12)
    file = File("" if syntax == "editions" else syntax, package=wire.text(2))
    if syntax == "editions":
        file.edition = EDITIONS.get(wire.number(14), "2023")
    public, weak = set(wire.numbers(10)), set(wire.numbers(11))
    for index, path in enumerate(wire.texts(3)):
        file.imports.append(Import(path, "public" if index in public else "weak" if index in weak else ""))
    file.options = _options(wire.messages(8), "file")
    file.messages = [_message(each, file.syntax) for each in wire.messages(4)]
    file.enums = [_enum(each) for each in wire.messages(5)]
    file.extends = _extends(wire.messages(7), file.syntax, file.messages)
    file.services = [
        Service(each.text(1), [_method(one) for one in each.messages(2)], _options(each.messages(3), "service"))
        for each in wire.messages(6)
    ]
    return file


def _message(wire: _Wire, syntax: str) -> Message:
    message = Message(wire.text(1), options=_options(wire.messages(7), "message"))
    nested = [(each, _message(each, syntax)) for each in wire.messages(3)]
    entries = {
        each.name: each
        for own, each in nested
        if any(option.number(7) for option in own.messages(7)) and len(each.fields) == 2
    }
    message.messages = [each for _, each in nested if each.name not in entries]
    message.enums = [_enum(each) for each in wire.messages(4)]
    message.oneofs = [Oneof(each.text(1), options=_options(each.messages(2), "oneof")) for each in wire.messages(8)]
    for each in wire.messages(2):
        field = _field(each, syntax, message.messages)
        entry = entries.get(field.type.rpartition(".")[2])
        if entry is not None and field.label == "repeated":
            by_number = {one.number: one for one in entry.fields}
            field.key, field.type, field.label = by_number[1].type, by_number[2].type, ""
        oneof = each.number(9)
        if each.has(9) and not each.number(17):
            field.label = ""
            message.oneofs[oneof].fields.append(field)
        else:
            message.fields.append(field)
    synthetic = {each.number(9) for each in wire.messages(2) if each.number(17)}
    message.oneofs = [each for index, each in enumerate(message.oneofs) if index not in synthetic]
    for each in wire.messages(5):
        ranges = [Range(each.number(1), each.number(2) - 1)]
        message.extensions.append(Reserved(ranges, options=_options(each.messages(3), "extensions")))
    message.reserved = _reserved(wire, 9, 10, inclusive=False)
    message.extends = _extends(wire.messages(6), syntax, message.messages)
    return message


def _reserved(wire: _Wire, ranges: int, names: int, *, inclusive: bool) -> list[Reserved]:
    found = []
    if wire.has(ranges):
        all_ranges = [
            Range(_int32(each.signed(1)), _int32(each.signed(2)) - (not inclusive)) for each in wire.messages(ranges)
        ]
        found.append(Reserved(all_ranges))
    if wire.has(names):
        found.append(Reserved(names=wire.texts(names)))
    return found


def _int32(value: int) -> int:
    value &= 2**32 - 1
    return value - 2**32 if value >= 2**31 else value


def _field(wire: _Wire, syntax: str, groups: Sequence[Message]) -> Field:
    kind = wire.number(5)
    type_ = TYPES.get(kind) or wire.text(6)
    label = LABELS.get(wire.number(4, 1), "")
    if label == "optional" and syntax not in ("", "proto2") and not wire.number(17):
        label = ""
    options = _options(wire.messages(8), "field")
    if wire.has(7):
        default = wire.text(7)
        value: OptionValue = Scalar("word", default)
        if type_ == "string":
            value = Scalar("string", data=default.encode())
        elif type_ == "bytes":  # as it is written in a .proto file
            value = parse_proto(f'option x = "{default}";').options[0].value
        options.append(Option("default", value))
    name = wire.text(1)
    if wire.has(10) and wire.text(10) != json_name(name):
        options.append(Option("json_name", Scalar("string", data=wire.all_bytes(10)[-1])))
    group = None
    if kind == GROUP:
        group = next((each for each in groups if each.name == type_.rpartition(".")[2]), None)
    return Field(name, _int32(wire.number(3)), type_, label, options, group=group)


def json_name(name: str) -> str:
    """The name that a field has in JSON, unless an option says otherwise."""
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _extends(wires: Sequence[_Wire], syntax: str, groups: Sequence[Message]) -> list[Extend]:
    extends: dict[str, Extend] = {}
    for each in wires:
        extends.setdefault(each.text(2), Extend(each.text(2))).fields.append(_field(each, syntax, groups))
    return list(extends.values())


def _enum(wire: _Wire) -> Enum:
    values = [
        EnumValue(each.text(1), _int32(each.signed(2)), _options(each.messages(3), "value"))
        for each in wire.messages(2)
    ]
    return Enum(wire.text(1), values, _options(wire.messages(3), "enum"), _reserved(wire, 4, 5, inclusive=True))


def _method(wire: _Wire) -> Method:
    return Method(
        wire.text(1),
        wire.text(2),
        wire.text(3),
        bool(wire.number(5)),
        bool(wire.number(6)),
        _options(wire.messages(4), "method"),
    )


def _options(wires: Sequence[_Wire], owner: str) -> list[Option]:
    found: list[Option] = []
    for wire in wires:
        for number, (name, form) in OPTIONS[owner].items():
            if not wire.has(number) or name == "map_entry":
                continue
            if form == "string":
                found.append(Option(name, Scalar("string", data=wire.all_bytes(number)[-1])))
            elif isinstance(form, dict):
                value = wire.number(number)
                found.append(Option(name, Scalar("word", form.get(value, str(value)))))
            else:
                found.append(Option(name, Scalar("word", "true" if wire.number(number) else "false")))
        found += [_uninterpreted(each) for each in wire.messages(UNINTERPRETED)]
    return found


def _uninterpreted(wire: _Wire) -> Option:
    parts = [(each.text(1), each.number(2)) for each in wire.messages(2)]
    name = ".".join(f"({part})" if extension else part for part, extension in parts)
    value: OptionValue
    if wire.has(7):
        value = Scalar("string", data=wire.all_bytes(7)[-1])
    elif wire.has(8):
        value = parse_proto(f"option x = {{ {wire.text(8)} }};").options[0].value
    elif wire.has(3):
        value = Scalar("word", wire.text(3))
    elif wire.has(6):
        value = Scalar("number", repr(struct.unpack("<d", wire.all_bytes(6)[-1])[0]))
    else:
        value = Scalar("number", str(wire.signed(5) if wire.has(5) else wire.number(4)))
    return Option(name, value)
