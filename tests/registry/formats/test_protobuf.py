"""Names, imports and rules of Protobuf schemas."""

from __future__ import annotations

import re

import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    api_pb2,
    descriptor_pb2,
    struct_pb2,
    type_pb2,
    wrappers_pb2,
)
from tests.registry.formats.protobuf_pairs import message, proto2, proto3

from penstock.registry.formats import InvalidSchema, ReferencedSchema
from penstock.registry.formats.proto_known_types import KNOWN_FILES
from penstock.registry.formats.protobuf import ProtobufSchema

BASE = ReferencedSchema("base.proto", proto3("message Base { message Inner {} enum Kind { A = 0; } }", "package base;"))


def test_names_mean_the_type_of_the_innermost_scope() -> None:
    schema = ProtobufSchema(
        proto3(
            "message A { message B { A a = 1; } B b = 1; .p.B c = 2; base.Base.Inner d = 3; message A {} }"
            " message B {}",
            'package p; import "base.proto";',
        ),
        [BASE],
    )
    assert schema.full_name("B", "p.A") == "p.A.B"
    assert schema.full_name("A", "p.A.B") == "p.A.A"
    assert schema.full_name(".p.B", "p.A") == "p.B"
    assert schema.full_name("base.Base.Inner", "p.A") == "base.Base.Inner"
    assert "  .p.A.A a = 1;" in schema.normalized
    assert "  .base.Base.Inner d = 3;" in schema.normalized


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (message("N n = 1;"), "In M: type 'N' is not defined. Define it, or import the file that does"),
        (message("map<string, N> n = 1;"), "type 'N' is not defined"),
        (proto3("service S { rpc R (M) returns (M); }"), "In the file: type 'M' is not defined"),
        (proto3("enum E { A = 0; } service S { rpc R (E) returns (E); }"), "'E' is an enum, not a message"),
        (proto2("extend N { optional int32 a = 1; }"), "In M: type 'N' is not defined"),
        (proto3("", 'import "nothing.proto";'), "import 'nothing.proto' is not among the references; add one"),
        (proto3("message M {} message M {}"), "Type 'M' is declared twice"),
        (proto3("message M {} enum M { A = 0; }"), "Type 'M' is declared twice"),
        (
            proto3("message Base {}", 'package base; import "base.proto";'),
            "'base.Base' is declared twice; the first is in base.proto",
        ),
        (proto3("message M {}", f"package {'a' * 600};"), "is longer than 500 characters"),
        (proto3("message M {}", f"package {'.'.join('a' * 70)};"), "or 64 parts"),
    ],
)
def test_names_have_to_be_defined_once(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=re.escape(problem)):
        ProtobufSchema(text, [BASE])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (message("int32 a = 1;", "int32 b = 1;"), "In M: the field number 1 is there twice"),
        (message("int32 a = 1;", "oneof o { int32 b = 1; }"), "the field number 1 is there twice"),
        (message("int32 a = 1;", "int32 a = 2;"), "In M: the name a is there twice"),
        (message("int32 a = 1;", "oneof a { int32 b = 2; }"), "the name a is there twice"),
        (message("int32 a = 19000;"), "the number 19000 of field a is reserved"),
        (message("int32 a = 5;", "reserved 4 to 6;"), "the number 5 of field a is reserved"),
        (message("int32 a = 5;", 'reserved "a";'), "the name of field a is reserved"),
        (proto2("optional int32 a = 5;", "extensions 5;"), "the number 5 of field a is reserved"),
        (message("reserved 4 to 6, 6;"), "the ranges 4 to 6 and 6 ... overlap"),
        (message("oneof o {}"), "oneof o has no fields"),
        (message("required int32 a = 1;"), "field a is a required field, which proto3 has not"),
        (message("int32 a = 1 [default = 1];"), "field a has a default, which proto3 has not"),
        (message("extensions 5;"), "proto3 has no extensions"),
        (message("repeated group G = 1 {}"), "field g is a repeated field, which proto3 has not"),
        (proto2("int32 a = 1;"), "field a has no label; proto2 needs optional, required or repeated"),
        (message("map<double, int32> a = 1;"), "the keys of map a are double"),
        (proto3("enum E { A = 1; }"), "the first value of an enum of proto3 has to be 0, not 1"),
        (proto3("enum E {}"), "the enum has no values"),
        (proto3("enum E { A = 0; A = 1; }"), "In E: the name A is there twice"),
        (proto3("enum E { A = 0; B = 0; }"), "without option allow_alias, the number 0 is there twice"),
        (proto3("enum E { A = 0; B = 5; reserved 4 to 6; }"), "value B = 5 is reserved"),
        (proto3('enum E { A = 0; reserved "A"; }'), "value A = 0 is reserved"),
        (proto3("message M {} service M {}"), "declaration M is there twice"),
    ],
)
def test_rules_of_protoc_are_for_new_schemas(text: str, problem: str) -> None:
    schema = ProtobufSchema(text)
    with pytest.raises(InvalidSchema, match=re.escape(problem)):
        schema.check_unfinished()


@pytest.mark.parametrize(
    "text",
    [
        proto2("oneof o { int32 a = 1; }", "map<string, int32> m = 2;", "repeated group G = 3 {}"),
        proto3("enum E { option allow_alias = true; A = 0; B = 0; }"),
        proto2("extensions 5 to 9;", "extensions 10 to max;", "reserved 4;"),
        'edition = "2023"; message M { int32 a = 1 [default = 5]; }',
        proto3(
            "message M {} extend google.protobuf.FieldOptions { M m = 50000; }",
            'import "google/protobuf/descriptor.proto";',
        ),
    ],
)
def test_what_protoc_allows_is_allowed(text: str) -> None:
    ProtobufSchema(text).check_unfinished()


def test_references_import_one_another_in_their_order() -> None:
    middle = ReferencedSchema("middle.proto", proto3("message Middle { base.Base b = 1; }", 'import "base.proto";'))
    root = proto3("message M { Middle m = 1; }", 'import "middle.proto";')
    ProtobufSchema(root, [BASE, middle, BASE])
    with pytest.raises(InvalidSchema, match=re.escape("Reference 'middle.proto': import 'base.proto' is not among")):
        ProtobufSchema(root, [middle])
    broken = ReferencedSchema("middle.proto", "message {")
    with pytest.raises(InvalidSchema, match=r"Reference 'middle\.proto': At line 1"):
        ProtobufSchema(root, [broken])


@pytest.mark.parametrize("module", [api_pb2, descriptor_pb2, struct_pb2, type_pb2, wrappers_pb2])
def test_the_types_of_google_are_those_of_its_own_package(module: object) -> None:
    file = module.DESCRIPTOR  # type: ignore[attr-defined]
    expected: dict[str, str] = {each.full_name: "enum" for each in file.enum_types_by_name.values()}
    waiting = list(file.message_types_by_name.values())
    while waiting:
        each = waiting.pop()
        expected[each.full_name] = "message"
        expected |= {enum.full_name: "enum" for enum in each.enum_types}
        waiting.extend(each.nested_types)
    known = KNOWN_FILES[file.name]
    assert {name: kind for name, kind in known.items() if name in expected} == known
    # Newer releases may add types; the messages that fields can name were there all along.
    assert {name for name in expected if name.count(".") == 2} <= known.keys()
