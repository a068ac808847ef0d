"""Descriptors of files, with Google's own implementation as the judge."""

from __future__ import annotations

import base64
import random
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from tests.registry.formats.protobuf_pairs import PAIRS

from penstock.registry.formats import InvalidSchema, ReferencedSchema
from penstock.registry.formats.proto_descriptor import decode_file
from penstock.registry.formats.proto_text import proto_text
from penstock.registry.formats.protobuf import ProtobufSchema

KNOWN = [
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
]
RICH = """
syntax = "proto3";
package rich;
import "google/protobuf/timestamp.proto";
option java_package = "com.example";
option optimize_for = LITE_RUNTIME;
message Event {
  reserved 50 to 60, 70; reserved "old";
  optional int32 maybe = 1;
  string name = 2 [json_name = "label", deprecated = true];
  repeated sint64 numbers = 3 [packed = false];
  map<string, Inner> by_name = 4;
  map<int32, Kind> kinds = 14;
  oneof choice { bytes raw = 5; Inner inner = 6; }
  optional string second = 7;
  google.protobuf.Timestamp at = 8;
  Kind kind = 9;
  message Inner { Event event = 1; enum Deep { ZERO = 0; } Deep deep = 2; }
}
enum Kind { option allow_alias = true; NONE = 0; NEGATIVE = -5; ALSO = 0; reserved -20 to -10; reserved "GONE"; }
service Events {
  option deprecated = true;
  rpc Watch (stream Event) returns (stream Event.Inner) { option deprecated = true; }
}
"""


def descriptor(schema: ProtobufSchema) -> Any:
    proto = descriptor_pb2.FileDescriptorProto()
    proto.ParseFromString(base64.b64decode(schema.serialized))
    return proto


@pytest.mark.parametrize("module", KNOWN, ids=lambda module: module.__name__.rpartition(".")[2])
def test_files_of_google_are_the_same_after_they_were_text(module: Any) -> None:
    serialized = base64.b64encode(module.DESCRIPTOR.serialized_pb).decode()
    imported = [
        ReferencedSchema(each.name, base64.b64encode(each.serialized_pb).decode())
        for each in module.DESCRIPTOR.dependencies
    ]
    schema = ProtobufSchema(serialized, imported)
    expected = descriptor_pb2.FileDescriptorProto()
    expected.ParseFromString(module.DESCRIPTOR.serialized_pb)
    actual = descriptor(ProtobufSchema(schema.canonical, imported))
    assert [each.name for each in actual.message_type] == [each.name for each in expected.message_type]
    for mine, theirs in zip(actual.message_type, expected.message_type, strict=True):
        _without_what_has_no_name(theirs)
        _without_what_has_no_name(mine)
        assert mine == theirs


def _without_what_has_no_name(message: Any) -> None:
    """Options of extensions and features are left out. Fields of oneofs come last."""
    for each in message.nested_type:
        _without_what_has_no_name(each)
    for each in (*message.field, *message.enum_type, *message.extension_range, message):
        each.ClearField("options")
        if each.DESCRIPTOR.name == "EnumDescriptorProto":
            for value in each.value:
                value.ClearField("options")
    fields = sorted(message.field, key=lambda each: each.number)
    for each in fields:
        each.ClearField("json_name")
    del message.field[:]
    message.field.extend(fields)


def test_a_rich_file_is_accepted_by_the_pool_of_google_and_means_the_same() -> None:
    schema = ProtobufSchema(RICH)
    schema.check_unfinished()
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = pool.AddSerializedFile(base64.b64decode(schema.serialized))
    event = file.message_types_by_name["Event"]
    assert event.fields_by_name["maybe"].has_presence
    assert event.fields_by_name["name"].json_name == "label"
    assert event.fields_by_name["by_name"].message_type.GetOptions().map_entry
    assert event.fields_by_name["kinds"].message_type.fields_by_name["value"].enum_type.full_name == "rich.Kind"
    assert [each.name for each in event.oneofs_by_name["choice"].fields] == ["raw", "inner"]
    assert event.fields_by_name["at"].message_type.full_name == "google.protobuf.Timestamp"
    assert file.enum_types_by_name["Kind"].values_by_name["NEGATIVE"].number == -5
    again = ProtobufSchema(base64.b64encode(file.serialized_pb).decode())
    assert again.normalized == schema.normalized


def test_a_schema_is_the_same_as_text_and_as_a_descriptor() -> None:
    for pair in PAIRS:
        schema = ProtobufSchema(pair.new)
        assert descriptor(schema).name == "default"
        assert ProtobufSchema(schema.serialized).normalized == schema.normalized, pair.rule


def test_options_of_extensions_survive_as_options_that_are_not_interpreted() -> None:
    options_text = 'option (a.b).c = "x"; option (d) = { e: 1 }; option (f) = -1; option (g) = X; option (h) = 1.5;'
    text = f'syntax = "proto2"; message M {{ {options_text} }}'
    proto = descriptor(ProtobufSchema(text))
    options = proto.message_type[0].options.uninterpreted_option
    assert [[part.name_part for part in each.name] for each in options] == [["a.b", "c"], ["d"], ["f"], ["g"], ["h"]]
    assert options[0].name[0].is_extension
    assert not options[0].name[1].is_extension
    assert (options[0].string_value, options[1].aggregate_value, options[2].negative_int_value) == (b"x", "e: 1", -1)
    assert (options[3].identifier_value, options[4].double_value) == ("X", 1.5)
    assert ProtobufSchema(ProtobufSchema(text).serialized).normalized == ProtobufSchema(text).normalized


def test_defaults_of_all_types_survive() -> None:
    text = (
        'message M { optional string s = 1 [default = "a\\"\\n"]; optional bytes b = 2 [default = "\\377x"];'
        " optional double d = 3 [default = -inf]; optional bool t = 4 [default = true]; }"
    )
    schema = ProtobufSchema(text)
    defaults = [each.default_value for each in descriptor(schema).message_type[0].field]
    assert defaults == ['a"\n', "\\377x", "-inf", "true"]
    assert ProtobufSchema(schema.serialized).canonical == schema.canonical


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x22\x05ab",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x27",
        b"\x22\x02\x0a\x7f",
        b"\x20\x05",
        b"\x12\x01\xff",
    ],
)
def test_bytes_that_are_no_descriptor_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidSchema, match=r"neither a \.proto file nor a FileDescriptorProto"):
        decode_file(data)


def test_descriptors_with_bytes_changed_are_schemas_or_invalid() -> None:
    original = base64.b64decode(ProtobufSchema(RICH).serialized)
    randomness = random.Random(22)
    decoded = 0
    for _ in range(400):
        data = bytearray(original)
        for _ in range(randomness.randint(1, 3)):
            data[randomness.randrange(len(data))] = randomness.randrange(256)
        try:
            text = proto_text(decode_file(bytes(data)))
        except InvalidSchema:
            continue
        decoded += 1
        assert proto_text(decode_file(bytes(data))) == text
    assert decoded > 20


def test_a_name_that_is_no_name_does_not_get_into_the_text() -> None:
    proto = descriptor_pb2.FileDescriptorProto()
    proto.message_type.add(name='M {} option java_package = "evil"; message N')
    schema = ProtobufSchema(base64.b64encode(proto.SerializeToString()).decode())
    assert ProtobufSchema(schema.canonical).canonical == schema.canonical
    proto.message_type[0].name = "M }"
    with pytest.raises(InvalidSchema, match="expected"):
        ProtobufSchema(base64.b64encode(proto.SerializeToString()).decode())
