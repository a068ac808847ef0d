"""Canonical and normalized text of .proto files."""

from __future__ import annotations

from tests.registry.formats.protobuf_pairs import PAIRS
from tests.registry.formats.test_proto_syntax import EVERYTHING

from penstock.registry.formats.proto_syntax import parse_proto
from penstock.registry.formats.proto_text import proto_text
from penstock.registry.formats.protobuf import ProtobufSchema

WRITTEN = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto"; import "google/protobuf/any.proto"; import "google/protobuf/any.proto";
option java_package = "x"; option go_package = 'y"';
enum E { B = 1; A = 0; }
message M { // comment
  string b = 2; E a = 1 [deprecated = true, (custom) = { z: 1 a: "x" }];
  map<string, N> n = 7;
  oneof o { string d = 4; int32 c = 3; } oneof empty_after { bool z = 9; }
  message N {} reserved 30, 20 to 25, 11; reserved "q", "p";
}
service S { rpc R (M) returns (stream M.N); }
"""
CANONICAL = """syntax = "proto3";
package p;

import "google/protobuf/timestamp.proto";
import "google/protobuf/any.proto";
import "google/protobuf/any.proto";

option java_package = "x";
option go_package = "y\\"";

message M {
  reserved 30, 20 to 25, 11;
  reserved "q", "p";

  string b = 2;
  E a = 1 [deprecated = true, (custom) = { z: 1, a: "x" }];
  map<string, N> n = 7;

  oneof o {
    string d = 4;
    int32 c = 3;
  }
  oneof empty_after {
    bool z = 9;
  }

  message N {}
}
enum E {
  B = 1;
  A = 0;
}

service S {
  rpc R (M) returns (stream M.N);
}
"""
NORMALIZED = """syntax = "proto3";
package p;

import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";

option go_package = "y\\"";
option java_package = "x";

message M {
  reserved 11;
  reserved 20 to 25;
  reserved 30;
  reserved "p";
  reserved "q";

  .p.E a = 1 [(custom) = { a: "x", z: 1 }, deprecated = true];
  string b = 2;
  map<string, .p.M.N> n = 7;

  oneof o {
    int32 c = 3;
    string d = 4;
  }
  oneof empty_after {
    bool z = 9;
  }

  message N {}
}
enum E {
  A = 0;
  B = 1;
}

service S {
  rpc R (.p.M) returns (stream .p.M.N);
}
"""


def test_the_canonical_text_keeps_the_order_and_the_normalized_one_sorts_and_names_in_full() -> None:
    schema = ProtobufSchema(WRITTEN)
    assert schema.canonical == CANONICAL
    assert schema.normalized == NORMALIZED


def test_both_texts_mean_the_schema_they_come_from() -> None:
    for pair in PAIRS:
        schema = ProtobufSchema(pair.new)
        assert ProtobufSchema(schema.normalized).normalized == schema.normalized
        again = ProtobufSchema(schema.canonical)
        assert (again.canonical, again.normalized) == (schema.canonical, schema.normalized), pair.rule


def test_everything_is_written_as_it_is_read() -> None:
    text = proto_text(parse_proto(EVERYTHING))
    assert proto_text(parse_proto(text)) == text
    assert parse_proto(text) == parse_proto(proto_text(parse_proto(text)))
    for part in (
        '[default = "\\000\\377"]',
        "repeated group Group = 3 {",
        "extensions 1000 to max;",
        'import weak "weak.proto";',
    ):
        assert part in text


def test_proto2_is_the_default_syntax_of_the_normalized_text() -> None:
    assert ProtobufSchema('syntax = "proto2"; message M {}').normalized == ProtobufSchema("message M {}").normalized
    assert ProtobufSchema('edition = "2023"; message M {}').canonical.startswith('edition = "2023";\n')


def test_the_order_of_messages_has_a_meaning() -> None:
    one, other = ProtobufSchema("message A {} message B {}"), ProtobufSchema("message B {} message A {}")
    assert one.normalized != other.normalized
