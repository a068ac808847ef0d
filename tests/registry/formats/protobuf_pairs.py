"""Pairs of Protobuf schemas, judged by "Updating A Message Type" of the language guides and Confluent's rules."""

from __future__ import annotations

from itertools import combinations_with_replacement

from tests.registry.formats.pairs import Pair

SCALARS = (
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
)
# "int32, uint32, int64, uint64, and bool are all compatible", and so on.
COMPATIBLE = (
    {"int32", "uint32", "int64", "uint64", "bool"},
    {"sint32", "sint64"},
    {"string", "bytes"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
    {"float"},
    {"double"},
)


def proto3(body: str, head: str = "") -> str:
    return f'syntax = "proto3";\n{head}\n{body}\n'


def message(*fields: str, name: str = "M") -> str:
    return proto3(f"message {name} {{ {' '.join(fields)} }}")


def proto2(*fields: str) -> str:
    return f'syntax = "proto2"; message M {{ {" ".join(fields)} }}'


def _same_encoding(one: str, other: str) -> bool:
    return any({one, other} <= group for group in COMPATIBLE)


SCALAR_PAIRS = [
    Pair(
        f"scalars {old} and {new}",
        message(f"{old} a = 1;"),
        message(f"{new} a = 1;"),
        _same_encoding(old, new),
        _same_encoding(old, new),
    )
    for old, new in combinations_with_replacement(SCALARS, 2)
]
_CONTEXTS = {
    "a oneof": "oneof o {{ {0} a = 1; }}",
    "a repeated field": "repeated {0} a = 1;",
    "values of a map": "map<string, {0}> a = 1;",
    "a nested message": "message N {{ {0} a = 1; }} N n = 1;",
}
CONTEXT_PAIRS = [
    Pair(f"{old} to {new} in {name}", message(make.format(old)), message(make.format(new)), same, same)
    for name, make in _CONTEXTS.items()
    for old, new, same in (("int32", "int64", True), ("string", "bytes", True), ("int32", "string", False))
]
_ENUM = "enum E { A = 0; B = 1; }"
_ONEOF = "oneof o { int32 a = 1; int32 b = 2; }"
# Rule, old, new, backward, forward.
_SINGLE: list[tuple[str, str, str, bool, bool]] = [
    ("field added", message("int32 a = 1;"), message("int32 a = 1;", "int32 b = 2;"), True, True),
    ("field removed", message("int32 a = 1;", "int32 b = 2;"), message("int32 a = 1;"), True, True),
    ("field removed and reserved", message("int32 a = 1;"), message('reserved 1; reserved "a";'), True, True),
    ("field renamed", message("int32 a = 1;"), message("int32 b = 1;"), True, True),
    ("field's number changed", message("int32 a = 1;"), message("int32 a = 2;"), True, True),
    (
        "fields swap their types",
        message("int32 a = 1;", "string b = 2;"),
        message("string b = 1;", "int32 a = 2;"),
        False,
        False,
    ),
    (
        "fields reordered",
        message("int32 a = 1;", "string b = 2;"),
        message("string b = 2;", "int32 a = 1;"),
        True,
        True,
    ),
    ("deprecated", message("int32 a = 1;"), message("int32 a = 1 [deprecated = true];"), True, True),
    ("json_name", message("int32 a = 1;"), message('int32 a = 1 [json_name = "x"];'), True, True),
    ("comments", message("int32 a = 1;"), message("// why", "\nint32 a = 1; /* what */"), True, True),
    # Labels.
    ("optional added", message("int32 a = 1;"), message("optional int32 a = 1;"), True, True),
    ("numbers repeated", message("int32 a = 1;"), message("repeated int32 a = 1;"), False, False),
    ("doubles repeated", message("optional double a = 1;"), message("repeated double a = 1;"), False, False),
    (
        "enum repeated",
        proto3(_ENUM + "message M { E a = 1; }"),
        proto3(_ENUM + "message M { repeated E a = 1; }"),
        False,
        False,
    ),
    ("strings repeated", message("string a = 1;"), message("repeated string a = 1;"), True, True),
    ("bytes repeated", message("bytes a = 1;"), message("repeated bytes a = 1;"), True, True),
    (
        "messages repeated",
        message("message N {} N a = 1;"),
        message("message N {} repeated N a = 1;"),
        True,
        True,
    ),
    ("packed", message("repeated int32 a = 1;"), message("repeated int32 a = 1 [packed = false];"), True, True),
    ("required field added", proto2(), proto2("required int32 a = 1;"), False, False),
    ("optional field added", proto2(), proto2("optional int32 a = 1;"), True, True),
    ("optional becomes required", proto2("optional int32 a = 1;"), proto2("required int32 a = 1;"), False, True),
    ("string becomes required", proto2("optional string a = 1;"), proto2("required string a = 1;"), False, True),
    ("repeated becomes required", proto2("repeated string a = 1;"), proto2("required string a = 1;"), False, True),
    (
        "default changed",
        proto2("optional int32 a = 1 [default = 1];"),
        proto2("optional int32 a = 1 [default = 2];"),
        True,
        True,
    ),
    ("proto2 becomes proto3", proto2("optional int32 a = 1;"), message("int32 a = 1;"), True, True),
    # Oneofs.
    ("oneof added with new fields", message("int32 x = 3;"), message("int32 x = 3;", _ONEOF), True, True),
    ("field of a oneof added", message("oneof o { int32 a = 1; }"), message(_ONEOF), True, False),
    ("field of a oneof removed", message(_ONEOF), message("oneof o { int32 a = 1; }"), False, True),
    ("whole oneof removed", message("int32 x = 3;", _ONEOF), message("int32 x = 3;"), True, True),
    ("one field moved into a new oneof", message("int32 a = 1;"), message("oneof o { int32 a = 1; }"), True, True),
    (
        "one field moved into a new oneof with another",
        message("int32 a = 1;"),
        message(_ONEOF),
        True,
        False,
    ),
    ("two fields moved into a oneof", message("int32 a = 1;", "int32 b = 2;"), message(_ONEOF), False, True),
    (
        "field moved into an existing oneof",
        message("oneof o { int32 a = 1; }", "int32 b = 2;"),
        message(_ONEOF),
        False,
        True,
    ),
    ("oneof renamed", message(_ONEOF), message(_ONEOF.replace("oneof o", "oneof p")), True, True),
    (
        "two oneofs merged",
        message("oneof o { int32 a = 1; }", "oneof p { int32 b = 2; }"),
        message(_ONEOF),
        False,
        True,
    ),
    ("fields of a oneof renamed", message(_ONEOF), message("oneof o { int32 x = 1; int32 y = 2; }"), True, True),
    ("type in a oneof changed", message(_ONEOF), message("oneof o { string a = 1; int32 b = 2; }"), False, False),
    # Enums.
    ("value added", proto3(_ENUM), proto3("enum E { A = 0; B = 1; C = 2; }"), True, True),
    ("value removed", proto3(_ENUM), proto3("enum E { A = 0; }"), True, True),
    ("value renamed", proto3(_ENUM), proto3("enum E { A = 0; C = 1; }"), True, True),
    ("enum removed", proto3(_ENUM + "message M {}"), proto3("message M {}"), True, True),
    (
        "enum becomes a number",
        proto3(_ENUM + "message M { E a = 1; }"),
        message("int32 a = 1;"),
        True,
        True,
    ),
    ("enum becomes a string", proto3(_ENUM + "message M { E a = 1; }"), message("string a = 1;"), False, False),
    ("enum becomes a zigzag number", proto3(_ENUM + "message M { E a = 1; }"), message("sint32 a = 1;"), False, False),
    (
        "enum becomes another enum",
        proto3(_ENUM + "enum F { X = 0; } message M { E a = 1; }"),
        proto3(_ENUM + "enum F { X = 0; } message M { F a = 1; }"),
        True,
        True,
    ),
    # Messages.
    ("message added", message(), proto3("message M {} message N {}"), True, False),
    ("messages reordered", proto3("message M {} message N {}"), proto3("message N {} message M {}"), True, True),
    ("message renamed", message(), message(name="N"), False, False),
    ("nested message added", message(), message("message N {}"), True, False),
    (
        "message moved into another",
        proto3("message M {} message N {}"),
        message("message N {}"),
        False,
        False,
    ),
    (
        "type of a field becomes another message",
        message("message N {} message O {} N a = 1;"),
        message("message N {} message O {} O a = 1;"),
        False,
        False,
    ),
    ("message becomes bytes", message("message N {} N a = 1;"), message("message N {} bytes a = 1;"), False, False),
    ("message becomes a number", message("message N {} N a = 1;"), message("message N {} int32 a = 1;"), False, False),
    (
        "nested message changes",
        message("message N { int32 x = 1; } N a = 1;"),
        message("message N { string x = 1; } N a = 1;"),
        False,
        False,
    ),
    (
        "name is written in full",
        proto3("message M { message N {} N a = 1; }", "package p;"),
        proto3("message M { message N {} .p.M.N a = 1; }", "package p;"),
        True,
        True,
    ),
    ("recursive message", message("M m = 1;"), message("M m = 1;", "int32 a = 2;"), True, True),
    (
        "recursive message changes",
        message("M m = 1;", "int32 a = 2;"),
        message("M m = 1;", "string a = 2;"),
        False,
        False,
    ),
    ("package changed", proto3("message M {}", "package a;"), proto3("message M {}", "package b;"), False, False),
    ("package added", message(), proto3("message M {}", "package b;"), False, False),
    # Maps, groups, well-known types and the rest.
    ("map becomes a number", message("map<string, int32> a = 1;"), message("int32 a = 1;"), False, False),
    ("keys of a map change", message("map<string, int32> a = 1;"), message("map<int32, int32> a = 1;"), False, False),
    ("keys of a map widen", message("map<int32, int32> a = 1;"), message("map<int64, int32> a = 1;"), True, True),
    ("map becomes repeated", message("map<string, int32> a = 1;"), message("repeated string a = 1;"), False, False),
    (
        "group becomes a message",
        proto2("optional group G = 1 { optional int32 x = 1; }"),
        proto2("message G { optional int32 x = 1; } optional G g = 1;"),
        False,
        False,
    ),
    (
        "group changes",
        proto2("optional group G = 1 { optional int32 x = 1; }"),
        proto2("optional group G = 1 { optional string x = 1; }"),
        False,
        False,
    ),
    (
        "well-known type",
        proto3("message M { google.protobuf.Timestamp t = 1; }", 'import "google/protobuf/timestamp.proto";'),
        proto3("message M { .google.protobuf.Timestamp u = 1; }", 'import "google/protobuf/timestamp.proto";'),
        True,
        True,
    ),
    (
        "well-known type changes",
        proto3("message M { google.protobuf.Timestamp t = 1; }", 'import "google/protobuf/timestamp.proto";'),
        proto3("message M { google.protobuf.Duration t = 1; }", 'import "google/protobuf/duration.proto";'),
        False,
        False,
    ),
    (
        "service removed",
        proto3("message M {} service S { rpc R (M) returns (M); }"),
        message(),
        True,
        True,
    ),
    ("file option", message(), proto3("message M {}", 'option java_package = "x.y";'), True, True),
    ("extensions", proto2(), proto2("extensions 100 to max;"), True, True),
]
PAIRS = [*SCALAR_PAIRS, *CONTEXT_PAIRS, *(Pair(*each) for each in _SINGLE)]
