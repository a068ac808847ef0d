"""The grammar of .proto files."""

from __future__ import annotations

import pytest

from penstock.registry.formats import InvalidSchema
from penstock.registry.formats.proto_syntax import Aggregate, Range, Scalar, parse_proto

EVERYTHING = """
/* A file with
   everything. */
syntax = "proto2";  // the old one
package a.b;
import "google/protobuf/descriptor.proto";
import public 'other' ".proto";
import weak "weak.proto";
option java_package = "x.\\x41\\101\\n\\u00e9";
option (my.option).part = { name: "x" list: [1, 2.5, -3] inner { flag: true; } [ext.name]: <a: b>, };
message message {
  optional int32 optional = 1 [default = 0x1F, deprecated = true, (my.option) = -inf];
  required .a.b.message message = 017;
  repeated group Group = 3 { optional string s = 1; };
  map<string, .a.b.E> map = 4;
  oneof choice { option (x) = 1; string a = 5; group Other = 6 {} }
  extensions 100 to 199, 500 [declaration = {}];
  extensions 1000 to max;
  reserved 20, 21 to 25;
  reserved "foo", 'bar';
  enum E { option allow_alias = true; A = 0; B = -1 [deprecated = true]; reserved -10 to -5, 40 to max; }
  message Inner { };
  extend message { optional bytes more = 101 [default = "\\000\\377"]; }
  optional string after = 8;
  ;
}
extend a.b.message { repeated double d = 102 [packed = true]; }
service S {
  option deprecated = true;
  rpc One (message) returns (stream .a.b.message);
  rpc Two (stream message) returns (a.b.message) { option idempotency_level = NO_SIDE_EFFECTS; };
}
"""


def test_every_construct_of_the_language_is_parsed() -> None:
    file = parse_proto(EVERYTHING)
    assert (file.syntax, file.package) == ("proto2", "a.b")
    imports = [(each.path, each.kind) for each in file.imports]
    assert imports == [("google/protobuf/descriptor.proto", ""), ("other.proto", "public"), ("weak.proto", "weak")]
    assert file.options[0].value == Scalar("string", data="x.AA\né".encode())
    assert file.options[1].name == "(my.option).part"
    value = file.options[1].value
    assert isinstance(value, Aggregate)
    assert [name for name, _ in value.entries] == ["name", "list", "inner", "[ext.name]"]
    assert value.entries[1][1] == (Scalar("number", "1"), Scalar("number", "2.5"), Scalar("number", "-3"))
    [message] = file.messages
    fields = [(each.label, each.type, each.name, each.number, each.key) for each in message.fields]
    assert fields == [
        ("optional", "int32", "optional", 1, ""),
        ("required", ".a.b.message", "message", 15, ""),
        ("repeated", "Group", "group", 3, ""),
        ("", ".a.b.E", "map", 4, "string"),
        ("optional", "string", "after", 8, ""),
    ]
    assert [each.name for each in message.messages] == ["Group", "Other", "Inner"]
    assert [(each.name, each.number) for each in message.oneofs[0].fields] == [("a", 5), ("other", 6)]
    assert [each.ranges for each in message.extensions] == [
        [Range(100, 199), Range(500, 500)],
        [Range(1000, 2**29 - 1)],
    ]
    assert [(each.ranges, each.names) for each in message.reserved] == [
        ([Range(20, 20), Range(21, 25)], []),
        ([], ["foo", "bar"]),
    ]
    assert message.enums[0].reserved[0].ranges == [Range(-10, -5), Range(40, 2**31 - 1)]
    assert message.extends[0].fields[0].options[0].value == Scalar("string", data=b"\x00\xff")
    methods = [(each.name, each.input_stream, each.output_stream) for each in file.services[0].methods]
    assert methods == [("One", False, True), ("Two", True, False)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("message {}", "At line 1, column 9: expected a name, found '{'"),
        ("\n\nmessage M {", "At line 3, column 12: expected '}', found the end"),
        ("message M { int32 a; }", "expected '=', found ';'"),
        ("message M { int32 a = 0; }", "the number of field 'a' is 0; it has to be between 1 and 536870911"),
        ("message M { int32 a = 536870912; }", "between 1 and 536870911"),
        ("message M { int32 a = -1; }", "expected the number of field 'a'"),
        ("message M { int32 a = 1.5; }", "expected the number of field 'a'"),
        ("message M { int32 a = 1 }", "expected ';', found '}'"),
        ("message M { = 1; }", "expected a field"),
        ("message M { repeated map<string, int32> a = 1; }", "a map has no label"),
        ("message M { map<M, int32> a = 1; }", "expected a scalar type of the keys, found 'M'"),
        ("message M { oneof o { repeated int32 a = 1; } }", "a field of a oneof has no label"),
        ("message M { reserved 5 to 3; }", "the range 5 to 3 is empty"),
        ("enum E { A = 2147483648; }", "between -2147483648 and 2147483647"),
        ('syntax = "proto4";', "syntax is 'proto4'"),
        ("package a; package b;", "more than one package"),
        ("option x = ;", "expected a value"),
        ('import "a', "unexpected"),
        ("message M { /* }", "At line 1, column 13: a comment is not closed"),
        ("message M {} #", "unexpected"),
        ('option x = "\\ud800";', "is not a character"),
        ('import "\\xff";', "not UTF-8"),
        ("service S { rpc R (M) (M); }", "expected 'returns'"),
        ("foo", "expected message, enum, extend, service, import, option or package, found 'foo'"),
        ("message M { option a = { b 1 }; }", "expected ':'"),
    ],
)
def test_errors_say_where_and_what_was_expected(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem.replace("(", "\\(").replace(")", "\\)")):
        parse_proto(text)


@pytest.mark.parametrize(
    "text",
    [
        "message A {" * 1_000,
        "option a = " + "{ a: " * 1_000,
        "option a = { a " + "< a " * 1_000,
        "message M { oneof a { group B = 1 {" * 500,
    ],
)
def test_nesting_ends_before_the_stack_does(text: str) -> None:
    with pytest.raises(InvalidSchema, match="nested more than 32 deep"):
        parse_proto(text)


def test_editions_and_files_without_syntax() -> None:
    assert parse_proto('edition = "2023"; message M { int32 a = 1; reserved foo; }').edition == "2023"
    assert parse_proto("message M {}").syntax == ""
    assert parse_proto("").messages == []
