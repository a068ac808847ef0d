"""Bytes into structs, by a schema: JSON, Avro, Protobuf; and what becomes of those that are something else."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import ConfigError, DeserializationError
from penstock.spark.formats.decoder import Decoder, decode_batch, decoded_field, parse_spec, spec_of_options

UTC = datetime.UTC


def decoded(text: str, *data: bytes | None, **parts: str) -> list[Any]:
    found = Decoder(parse_spec(text, **parts)).decode(pa.array(data, pa.binary()))
    assert found.failures == []
    rows: list[Any] = found.array.to_pylist()
    return rows


def failures(text: str, *data: bytes | None, **parts: str) -> list[tuple[int, str]]:
    found = Decoder(parse_spec(text, **parts)).decode(pa.array(data, pa.binary()))
    assert len(found.array) == len(data)
    assert [number for number, row in enumerate(found.array.to_pylist()) if row is None] == [
        number for number, value in enumerate(data) if value is None or number in dict(found.failures)
    ]
    return found.failures


# ------------------------------------------------------------------------------------------------------------- JSON


def test_json_becomes_a_struct() -> None:
    schema = "json: id BIGINT, name STRING, ok BOOLEAN, price DOUBLE, tags ARRAY<STRING>, at TIMESTAMP, day DATE"
    data = (
        b'{"id":1,"name":"x","ok":true,"price":2,"tags":["a",null],"at":"2024-05-01T02:00:00+02:00","day":"2024-05-01"}'
    )
    assert decoded(schema, data, b"{}", None) == [
        {
            "id": 1, "name": "x", "ok": True, "price": 2.0, "tags": ["a", None],
            "at": datetime.datetime(2024, 5, 1, tzinfo=UTC), "day": datetime.date(2024, 5, 1),
        },
        dict.fromkeys(("id", "name", "ok", "price", "tags", "at", "day")),
        None,
    ]  # fmt: skip


def test_json_nested_as_deep_as_one_likes() -> None:
    schema = "json: a STRUCT<b: ARRAY<STRUCT<c: MAP<STRING, STRUCT<d: INT>>>>>"
    data = b'{"a":{"b":[{"c":{"x":{"d":1},"y":null}},null,{}]}}'
    assert decoded(schema, data, b'{"a":null}', b'{"a":{}}') == [
        {"a": {"b": [{"c": [("x", {"d": 1}), ("y", None)]}, None, {"c": None}]}}, {"a": None}, {"a": {"b": None}}
    ]  # fmt: skip


def test_json_decimals_and_names_that_are_not_identifiers() -> None:
    schema = "json: `the price` DECIMAL(6, 2), `class` STRING, _x INT"
    assert decoded(schema, b'{"the price":12.5,"class":"c","_x":1}', b'{"the price":"3.25"}') == [
        {"the price": decimal.Decimal("12.50"), "class": "c", "_x": 1},
        {"the price": decimal.Decimal("3.25"), "class": None, "_x": None},
    ]


def test_json_skips_what_the_schema_does_not_know() -> None:
    assert decoded("json: a INT", b'{"zz":{"a":[1]},"a":3}') == [{"a": 3}]


def test_json_that_is_something_else_fails_by_itself() -> None:
    bad = [
        b"", b"nonsense", b'{"a":', b"[]", b'"x"', b'{"a":"1"}', b'{"a":1.5}', b'{"a":2147483648}', b'{"a":1}{"a":2}',
        b"\xff\xfe", b'{"a":1},"b":2', b"[" * 100_000,
    ]  # fmt: skip
    mixed = [piece for each in bad for piece in (each, b'{"a":1}')]
    found = failures("json: a INT", *mixed)
    assert [row for row, _ in found] == list(range(0, len(mixed), 2))
    assert all(reason and "\n" not in reason for _, reason in found)


def test_json_not_null_must_be_there() -> None:
    found = failures("json: a INT NOT NULL, b INT", b'{"b":1}', b'{"a":null}', b'{"a":1}')
    assert [row for row, _ in found] == [0, 1]
    assert found[0][1] == "Object missing required field `a`"


def test_a_value_that_its_column_cannot_hold_fails_by_itself() -> None:
    found = failures("json: a DECIMAL(4, 2)", b'{"a":1.25}', b'{"a":12345.67}', b"{", b'{"a":1.234}', b"{}")
    assert [row for row, _ in found] == [1, 2, 3]


def test_text_columns_are_decoded_too() -> None:
    spec = parse_spec("json: a INT")
    assert Decoder(spec).decode(pa.array(['{"a":1}', None])).array.to_pylist() == [{"a": 1}, None]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=20), st.builds(lambda n: b'{"a":%d}' % n, st.integers(0, 9)))))
def test_rows_never_move_whatever_the_bytes_are(data: list[bytes | None]) -> None:
    found = Decoder(parse_spec("json: a INT")).decode(pa.array(data, pa.binary()))
    bad = dict(found.failures)
    for number, (value, row) in enumerate(zip(data, found.array.to_pylist(), strict=True)):
        if value is None or number in bad:
            assert row is None
        else:
            document = json.loads(value)
            assert row == {"a": document.get("a")}


# ------------------------------------------------------------------------------------------------------------- Avro

AVRO: dict[str, Any] = {
    "type": "record", "name": "View", "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "double"}]}},
    ],
}  # fmt: skip
VIEW = {
    "id": 1, "who": None, "kind": "B", "again": "A", "at": datetime.datetime(2024, 5, 1, tzinfo=UTC),
    "price": decimal.Decimal("12.50"), "tags": {"a": 1}, "key": uuid.UUID(int=7), "inner": {"x": 1.5},
}  # fmt: skip


def avro(value: dict[str, Any], schema: Any = AVRO) -> bytes:
    output = io.BytesIO()
    fastavro.schemaless_writer(output, fastavro.parse_schema(schema), value)
    return output.getvalue()


def test_avro_becomes_a_struct(tmp_path: Path) -> None:
    expected = {**VIEW, "tags": [("a", 1)], "key": str(uuid.UUID(int=7))}
    file = tmp_path / "view.avsc"
    file.write_text(json.dumps(AVRO))
    assert decoded(f"avro: {json.dumps(AVRO)}", avro(VIEW), None) == [expected, None]
    assert decoded(f"avro: {file}", avro(VIEW)) == [expected]
    kinds = decoded_field(parse_spec(f"avro: {file}")).dataType.simpleString()
    assert kinds == (
        "struct<id:bigint,who:string,kind:string,again:string,at:timestamp,price:decimal(6,2),tags:map<string,int>,"
        "key:string,inner:struct<x:double>>"
    )


def test_avro_that_is_something_else_fails_by_itself() -> None:
    found = failures(f"avro: {json.dumps(AVRO)}", avro(VIEW), b"", b"\xff" * 9, avro(VIEW) + b"!", avro(VIEW)[:-1])
    assert [row for row, _ in found] == [1, 2, 3, 4]


def test_avro_in_the_frame_of_a_registry() -> None:
    frame = b"\x00\x00\x00\x00\x07"
    (row,) = decoded(f"avro: {json.dumps(AVRO)}", frame + avro(VIEW), framing="confluent")
    assert row["id"] == 1
    found = failures(f"avro: {json.dumps(AVRO)}", avro(VIEW), framing="confluent")
    assert "schema-registry header" in found[0][1]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (["int", "string"], "field f is a union of several types"),
        ({"type": "int", "logicalType": "time-millis"}, "field f is a time-millis"),
        (["null", "T"], "is recursive"),
        ("nonsense", "not a schema"),
    ],
)
def test_avro_that_spark_has_no_type_for_is_rejected(kind: Any, problem: str) -> None:
    schema = {"type": "record", "name": "T", "fields": [{"name": "f", "type": kind}]}
    with pytest.raises(ConfigError) as rejected:
        parse_spec(f"avro: {json.dumps(schema)}")
    assert problem in str(rejected.value)
    assert "\n" not in str(rejected.value)


# --------------------------------------------------------------------------------------------------------- Protobuf


def descriptors() -> bytes:
    """message View { int64 id; optional string who; Kind kind; repeated Inner inner; map<string, int32> tags;
    google.protobuf.Timestamp at; uint64 big; bytes raw; }"""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="view.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    view = file.message_type.add(name="View")
    view.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    view.field.add(
        name="who", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL, proto3_optional=True, oneof_index=0
    )
    view.oneof_decl.add(name="_who")
    view.field.add(name="kind", number=3, type=field.TYPE_ENUM, label=field.LABEL_OPTIONAL, type_name=".shop.Kind")
    view.field.add(name="inner", number=4, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".shop.Inner")
    entry = view.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    view.field.add(
        name="tags", number=5, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".shop.View.TagsEntry"
    )
    view.field.add(
        name="at", number=6, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".google.protobuf.Timestamp"
    )
    view.field.add(name="big", number=7, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    view.field.add(name="raw", number=8, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".shop.Node")
    written: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return written


@pytest.fixture
def views(tmp_path: Path) -> Path:
    file = tmp_path / "view.desc"
    file.write_bytes(descriptors())
    return file


def view(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.AddSerializedFile(file.SerializeToString())
    message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.View"))
    data: bytes = message(**fields).SerializeToString()
    return data


def test_protobuf_becomes_a_struct(views: Path) -> None:
    data = view(
        id=1, who="", kind=1, inner=[{"x": 1.5}, {}], tags={"a": 3}, big=2**64 - 1, raw=b"\x00",
        at={"seconds": 1_714_521_600, "nanos": 5_000},
    )  # fmt: skip
    at = datetime.datetime(2024, 5, 1, 0, 0, 0, 5, tzinfo=UTC)
    full = {
        "id": 1, "who": "", "kind": "B", "inner": [{"x": 1.5}, {"x": 0.0}], "tags": [("a", 3)], "at": at,
        "big": decimal.Decimal(2**64 - 1), "raw": b"\x00",
    }  # fmt: skip
    empty: dict[str, Any] = {
        "id": 0, "who": None, "kind": "A", "inner": [], "tags": [], "at": None, "big": decimal.Decimal(0), "raw": b""
    }  # fmt: skip
    assert decoded(f"protobuf: {views}#shop.View", data, b"", None) == [full, empty, None]
    assert decoded("protobuf", data, schema=str(views), message="shop.View") == [full]


def test_protobuf_that_is_something_else_fails_by_itself(views: Path) -> None:
    found = failures(f"protobuf: {views}#shop.View", view(id=1), b"\xff\xff\xff", view(id=1))
    assert [row for row, _ in found] == [1]


def test_protobuf_in_the_frame_of_a_registry(views: Path) -> None:
    text = f"protobuf: {views}#shop.View"
    for indexes in (b"\x00", b"\x02\x02"):
        frame = b"\x00\x00\x00\x00\x07" + indexes
        assert decoded(text, frame + view(id=5), framing="confluent")[0]["id"] == 5
    found = failures(
        text, b"\x00\x00\x00\x00\x07", b"\x01abcdefg", b"\x00\x00\x00\x00\x07\xff\xff", framing="confluent"
    )
    assert [row for row, _ in found] == [0, 1, 2]


def test_invalid_protobuf_messages_are_rejected(views: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown Protobuf message shop\.Vue\. Available: shop\.Inner, shop\.Node, shop\.View"
    ):
        parse_spec(f"protobuf: {views}#shop.Vue")
    with pytest.raises(ConfigError, match=r"shop\.Node is recursive"):
        parse_spec(f"protobuf: {views}#shop.Node")
    with pytest.raises(ConfigError, match="does not name a message"):
        parse_spec(f"protobuf: {views}")
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"\xff\xff")
    with pytest.raises(ConfigError, match="cannot load the Protobuf descriptors"):
        parse_spec(f"protobuf: {nonsense}#X")


# ------------------------------------------------------------------------------------------------------- specs, batches


@pytest.mark.parametrize(
    ("text", "parts", "problem"),
    [
        ("xml: a", {}, "starts with 'xml', which is not a format"),
        ("json", {}, "has no schema"),
        ("json: a FOO", {}, "invalid schema"),
        ("json: a INT", {"mode": "lenient"}, "penstock.decode.mode is 'lenient'. Use failfast or permissive"),
        ("json: a INT", {"framing": "confluent"}, "JSON has no framing"),
        ("json: a INT", {"column": " "}, "penstock.decode.column is empty"),
        ("avro: /no/such/file.avsc", {}, "cannot read the Avro schema /no/such/file.avsc: No such file or directory"),
        ("avro: {", {}, "the Avro schema is not JSON"),
        ('avro: "string"', {}, "is not a record"),
        ('avro: "string"', {"registry": "http://r", "framing": "none"}, "a registry applies only to framed"),
        ("json: a INT", {"registry": "nowhere"}, "Write http://HOST:PORT"),
        ("json", {"registry": "http://r"}, "no subject is known"),
        ("avro", {"registry": "http://r"}, "no subject is known"),
        ("json: a INT", {"registry_user": "me"}, "penstock.decode.registry.user is set, but not penstock.decode.regi"),
        ("json: a INT", {"subject": "s"}, "penstock.decode.subject is set, but not penstock.decode.registry"),
        ("json: a INT", {"registry_pin": "1"}, "penstock.decode has no part registry_pin"),
        ("protobuf: /no/such#X", {}, "cannot read the Protobuf descriptors /no/such"),
    ],
)
def test_invalid_spec_is_rejected_in_one_line(text: str, parts: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as rejected:
        parse_spec(text, **parts)
    assert problem in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_a_spec_is_in_the_options_or_not() -> None:
    assert spec_of_options({"subscribe": "a"}) is None
    given = {"Penstock.Decode": "json", "penstock.decode.schema": "a INT", "penstock.decode.mode": "PERMISSIVE"}
    assert spec_of_options(given) == parse_spec("json: a INT", mode="permissive")
    with pytest.raises(ConfigError, match=r"penstock\.decode\.mode is set, but not penstock\.decode"):
        spec_of_options({"penstock.decode.mode": "permissive"})


def test_a_spec_holds_what_tasks_need_and_travels(views: Path) -> None:
    spec = parse_spec(f"protobuf: {views}#shop.View")
    views.unlink()
    there = pickle.loads(pickle.dumps(spec))
    assert Decoder(there).decode(pa.array([view(id=4)])).array.to_pylist()[0]["id"] == 4


def batch(*data: bytes | None) -> pa.RecordBatch:
    count = len(data)
    return pa.record_batch(
        {
            "value": pa.array(data, pa.binary()), "topic": ["views"] * count,
            "partition": pa.array([3] * count, pa.int32()), "offset": pa.array(range(100, 100 + count)),
        }
    )  # fmt: skip


def test_a_batch_keeps_its_columns_and_gets_one_more() -> None:
    found = decode_batch(batch(b'{"a":1}', None), parse_spec("json: a INT"))
    assert found.schema.names == ["value", "topic", "partition", "offset", "decoded"]
    assert found.column("decoded").to_pylist() == [{"a": 1}, None]
    renamed = decode_batch(batch(b'{"a":1}'), parse_spec("json: a INT", column="view"))
    assert renamed.schema.names[-1] == "view"


def test_a_poisoned_record_is_named_by_its_place() -> None:
    with pytest.raises(DeserializationError) as failed:
        decode_batch(batch(b'{"a":1}', b"{oops"), parse_spec("json: a INT"))
    assert str(failed.value).startswith("views-3 at offset 101 does not match its json schema: ")
    assert "penstock.decode.mode=permissive" in str(failed.value)
    assert failed.value.data == b"{oops"


def test_a_poisoned_record_is_null_if_that_is_wanted() -> None:
    found = decode_batch(batch(b'{"a":1}', b"{oops"), parse_spec("json: a INT", mode="permissive"))
    assert found.column("decoded").to_pylist() == [{"a": 1}, None]


def test_a_column_of_that_name_is_not_hidden() -> None:
    with pytest.raises(ConfigError, match="column topic already exists"):
        decode_batch(batch(b"{}"), parse_spec("json: a INT", column="topic"))
