"""Differences between Protobuf schemas: their kinds and places, and imported files."""

from __future__ import annotations

import pytest
from tests.registry.formats.protobuf_pairs import message, proto2, proto3

from penstock.registry.formats import ReferencedSchema, parse_schema, reader_incompatibilities


def differences(reader: str, writer: str, *imports: str) -> list[tuple[str, str]]:
    """With two imports, the first one is the reader's and the second one the writer's `x.proto`."""
    references = [[ReferencedSchema("x.proto", each)] for each in imports] or [[], []]
    schemas = [parse_schema("PROTOBUF", each, own) for each, own in zip((reader, writer), references, strict=True)]
    return [(each.kind, each.path) for each in reader_incompatibilities(*schemas)]


ONEOF = "oneof o { int32 a = 1; int32 b = 2; }"


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (proto3("", "package a;"), proto3("", "package b;"), [("PACKAGE_CHANGED", "")]),
        (proto3(""), message(), [("MESSAGE_REMOVED", "/M")]),
        (proto3(""), message("message N { message O {} }"), [("MESSAGE_REMOVED", "/M")]),
        (message(), message("message N {}"), [("MESSAGE_REMOVED", "/M/N")]),
        (message("string a = 1;"), message("int32 a = 1;"), [("FIELD_SCALAR_KIND_CHANGED", "/M/1")]),
        (message("M a = 1;"), message("int32 a = 1;"), [("FIELD_KIND_CHANGED", "/M/1")]),
        (message("map<string, string> a = 1;"), message("string a = 1;"), [("FIELD_KIND_CHANGED", "/M/1")]),
        (
            message("map<int32, string> a = 1;"),
            message("map<string, string> a = 1;"),
            [("FIELD_SCALAR_KIND_CHANGED", "/M/1")],
        ),
        (message("repeated int32 a = 1;"), message("int32 a = 1;"), [("FIELD_NUMERIC_LABEL_CHANGED", "/M/1")]),
        (
            message("message A {} message B {} A a = 1;"),
            message("message A {} message B {} B a = 1;"),
            [("FIELD_NAMED_TYPE_CHANGED", "/M/1")],
        ),
        (proto2("required int32 a = 1;"), proto2(), [("REQUIRED_FIELD_ADDED", "/M/1")]),
        (proto2(), proto2("required int32 a = 1;"), [("REQUIRED_FIELD_REMOVED", "/M/1")]),
        (proto2("required int32 a = 1;"), proto2("optional int32 a = 1;"), [("REQUIRED_FIELD_ADDED", "/M/1")]),
        (message("oneof o { int32 a = 1; }"), message(ONEOF), [("ONEOF_FIELD_REMOVED", "/M/2")]),
        (message(ONEOF), message("int32 a = 1;", "int32 b = 2;"), [("MULTIPLE_FIELDS_MOVED_TO_ONEOF", "/M/o")]),
        (
            message(ONEOF),
            message("oneof o { int32 a = 1; }", "int32 b = 2;"),
            [("FIELD_MOVED_TO_EXISTING_ONEOF", "/M/o")],
        ),
    ],
)
def test_differences_have_a_kind_and_the_number_of_the_field(
    reader: str, writer: str, expected: list[tuple[str, str]]
) -> None:
    assert differences(reader, writer) == expected


def test_messages_name_both_sides() -> None:
    schemas = [parse_schema("PROTOBUF", message(f"{each} a = 1;")) for each in ("string", "int32")]
    [difference] = reader_incompatibilities(*schemas)
    assert difference.message == (
        "The reader's field a is of type string, and the writer's of type int32, which is encoded in another way."
    )


ROOT = proto3("message M { X x = 1; X y = 2; repeated X.E e = 3; }", 'import "x.proto";')


def test_imported_messages_are_compared_where_they_are_used() -> None:
    def imported(body: str) -> str:
        return proto3(f"message X {{ {body} enum E {{ A = 0; }} }} message Unused {{ {body} }}")

    same, string, renamed = imported("int32 a = 1;"), imported("string a = 1;"), imported("int64 b = 1;")
    assert differences(ROOT, ROOT, same, same) == []
    assert differences(ROOT, ROOT, renamed, same) == []
    assert differences(ROOT, ROOT, string, same)[:2] == [
        ("FIELD_NAMED_TYPE_CHANGED", "/M/1"),
        ("FIELD_SCALAR_KIND_CHANGED", "/M/1/1"),
    ]


def test_imported_messages_that_contain_themselves_are_compared_once() -> None:
    recursive = proto3("message X { X x = 1; repeated X xs = 2; enum E { A = 0; } int32 n = 3; }")
    assert differences(ROOT, ROOT, recursive, recursive) == []
    assert differences(ROOT, ROOT, recursive.replace("int32", "double"), recursive) != []


def test_a_message_may_move_into_an_imported_file_of_any_package() -> None:
    here = proto3("message M { X x = 1; } message X { int32 a = 1; }")
    there = proto3("message M { q.X x = 1; } message X { int32 a = 1; }", 'import "x.proto";')
    assert differences(there, here, proto3("message X { int32 a = 1; }", "package q;"), "") == []
    assert differences(there, here, proto3("message X { string a = 1; }", "package q;"), "") != []


def test_a_long_chain_of_messages_is_compared() -> None:
    def chain(last: str) -> str:
        links = "".join(f"message M{each} {{ M{each + 1} a = 1; }} " for each in range(2_000))
        return proto3(links + f"message M2000 {{ {last} a = 1; }}")

    assert differences(chain("int64"), chain("int32")) == []
    imported = proto3("message X { M0 m = 1; enum E { A = 0; } } ")
    assert differences(
        ROOT,
        ROOT,
        imported + chain("string").removeprefix('syntax = "proto3";'),
        imported + chain("int32").removeprefix('syntax = "proto3";'),
    )[0] == ("FIELD_NAMED_TYPE_CHANGED", "/M/1")
