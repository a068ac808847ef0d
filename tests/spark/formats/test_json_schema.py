"""Columns of JSON Schemas, and values that are read into them."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pyarrow as pa
import pytest

from penstock.client.errors import ConfigError
from penstock.spark.formats.decoder import Decoder, parse_spec
from penstock.spark.formats.json_schema import PARTS_MAX, struct_of_json_schema

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def columns(document: Any, **references: Any) -> dict[str, str]:
    """The types of the columns in Spark's words; `!` is NOT NULL, `~` JSON text."""
    return columns_of(document, references)


def columns_of(document: Any, references: dict[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(each) for name, each in references.items()}
    struct = struct_of_json_schema(json.dumps(document), texts, "views-value")
    return {
        field.name: f"{field.dataType.simpleString()}{'' if field.nullable else '!'}"
        f"{'~' if (field.metadata or {}).get('json') == 'text' else ''}"
        for field in struct.fields
    }


def column(schema: Any, **document: Any) -> str:
    """The column of a property that has this schema."""
    return columns({"type": "object", "properties": {"x": schema}, **document})["x"]


def rows(document: Any, *values: bytes) -> list[Any]:
    """The values, or what does not match."""
    struct = struct_of_json_schema(json.dumps(document), {}, "views-value")
    found = Decoder(parse_spec("json", schema=struct.json())).decode(pa.array(values, pa.binary()))
    records: list[Any] = found.array.to_pylist()
    for row, reason in found.failures:
        records[row] = reason
    return records


# ------------------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (STRING, "string"),
        (INTEGER, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"enum": ["a", "b"]}, "string"),
        ({"const": 3}, "bigint"),
        ({"const": True}, "boolean"),
        ({"enum": [1, 2.5]}, "double"),
        ({"type": "array", "items": STRING}, "array<string>"),
        ({"type": "array", "items": {"type": "array", "items": INTEGER}}, "array<array<bigint>>"),
        ({"type": "object", "additionalProperties": INTEGER}, "map<string,bigint>"),
        ({"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False}, "map<string,bigint>"),
        ({"type": "object", "properties": {"a": STRING}}, "struct<a:string>"),
        ({"properties": {"a": STRING}}, "struct<a:string>"),
        ({"type": "object", "properties": {"a": STRING}, "additionalProperties": INTEGER}, "struct<a:string>"),
        ({"oneOf": [{"type": "null"}, STRING]}, "string"),
        ({"anyOf": [INTEGER, {"type": "number"}]}, "double"),
        ({"allOf": [{"type": "number"}, INTEGER]}, "bigint"),
        ({"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "a"}]}, "string"),
    ],
)
def test_types_become_columns(schema: Any, kind: str) -> None:
    assert column(schema) == kind


@pytest.mark.parametrize(
    "schema",
    [
        {},
        True,
        {"type": "null"},
        {"type": ["string", "integer"]},
        {"enum": ["a", 1]},
        {"type": "array"},
        {"type": "array", "items": [STRING, INTEGER]},
        {"type": "array", "prefixItems": [STRING], "items": INTEGER},
        {"type": "object"},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "additionalProperties": False},
        {"type": "object", "patternProperties": {"^x": INTEGER}},
        {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": STRING},
        {"oneOf": [STRING, INTEGER]},
        {"allOf": [STRING, INTEGER]},
        {"oneOf": [{"properties": {"a": STRING}}, {"properties": {"b": STRING}}]},
        {"$ref": "http://json-schema.org/draft-07/schema#"},
    ],
)
def test_what_has_no_column_type_is_json_text(schema: Any) -> None:
    assert column(schema) == "string~"


def test_elements_without_a_type_are_json_text() -> None:
    assert column({"type": "array", "items": {}}) == "array<string>~"
    assert column({"type": "object", "additionalProperties": {"type": ["string", "integer"]}}) == "map<string,string>~"


def test_required_properties_are_not_null() -> None:
    properties = {
        "a": STRING, "b": STRING, "c": {"type": ["string", "null"]}, "d": {"type": "string", "default": ""},
        "e": {"anyOf": [STRING, {"type": "null"}]},
    }  # fmt: skip
    found = columns({"type": "object", "properties": properties, "required": ["a", "c", "d", "e"]})
    # Values that were written before a property with a default became required lack it.
    assert found == {"a": "string!", "b": "string", "c": "string", "d": "string", "e": "string"}


def test_all_of_adds_up_properties() -> None:
    base = {"type": "object", "properties": {"id": {"type": "number"}, "any": {}}, "required": ["id"]}
    more = {"type": "object", "properties": {"id": INTEGER, "any": STRING, "user": STRING}}
    assert columns({"allOf": [base, more]}) == {"id": "bigint!", "any": "string", "user": "string"}


# ------------------------------------------------------------------------------------------------- references


def test_references_inside_the_document_are_followed() -> None:
    definitions = {"Id": INTEGER, "a/b": STRING, "named": {"$id": "#anchor", **STRING}}
    properties = {
        "id": {"$ref": "#/definitions/Id"}, "slash": {"$ref": "#/definitions/a~1b"}, "anchor": {"$ref": "#anchor"},
        "item": {"$ref": "#/properties/list/items/0"}, "list": {"type": "array", "items": [{"type": "boolean"}]},
    }  # fmt: skip
    found = columns({"type": "object", "properties": properties, "definitions": definitions})
    assert found == {
        "id": "bigint", "slash": "string", "anchor": "string", "item": "boolean", "list": "string~",
    }  # fmt: skip


def test_references_of_the_registry_are_followed_by_name_and_by_id() -> None:
    shared = {"$defs": {"User": {"type": "object", "properties": {"name": {"$ref": "#/$defs/Name"}}}, "Name": STRING}}
    named = {"$id": "http://shop/common.json", "definitions": {"Price": {"type": "number"}}}
    document = {
        "$id": "http://shop/views/view.json",
        "type": "object",
        "properties": {
            "user": {"$ref": "user.json#/$defs/User"},
            "price": {"$ref": "../common.json#/definitions/Price"},
        },
    }
    found = columns_of(document, {"user.json": shared, "whatever": named})
    assert found == {"user": "struct<name:string>", "price": "double"}


def test_keywords_beside_a_reference_count_since_draft_2019() -> None:
    part = {"$ref": "#/definitions/A", "properties": {"b": STRING}}
    more = {"definitions": {"A": {"type": "object", "properties": {"a": INTEGER}}}}
    assert column(part, **more) == "struct<a:bigint>"
    assert column(part, **more, **{"$schema": DRAFT_2020}) == "struct<a:bigint,b:string>"


def test_a_recursive_part_is_json_text() -> None:
    node = {"type": "object", "properties": {"id": INTEGER, "next": {"$ref": "#"}}}
    assert columns(node) == {"id": "bigint", "next": "string~"}
    # The same part twice is no recursion.
    pair = {"a": {"$ref": "#/definitions/I"}, "b": {"$ref": "#/definitions/I"}}
    assert columns({"properties": pair, "definitions": {"I": INTEGER}}) == {"a": "bigint", "b": "bigint"}


@pytest.mark.parametrize("name", ["default", "const", "enum", "examples", "$id", "id", "$ref", "$schema"])
def test_names_may_be_words_of_json_schema(name: str) -> None:
    part = {"type": "object", "properties": {name: {"$ref": "#/definitions/Id"}}}
    assert columns({**part, "definitions": {"Id": INTEGER}}) == {name: "bigint"}
    for keyword in ("definitions", "$defs"):
        named = {name: part, "Id": INTEGER}
        document = {
            "properties": {"x": {"$ref": f"#/{keyword}/{name}"}},
            "definitions": {"Id": INTEGER},
            keyword: named,
        }
        assert columns(document) == {"x": f"struct<{name}:bigint>"}


def test_fragments_belong_to_the_document_with_a_urn() -> None:
    shared = {"$id": "urn:shop:user", "properties": {"name": {"$ref": "#/$defs/Name"}}, "$defs": {"Name": STRING}}
    root = {"$id": "urn:shop:view", "properties": {"u": {"$ref": "urn:shop:user"}, "n": {"$ref": "#/$defs/Name"}}}
    found = columns_of({**root, "$defs": {"Name": INTEGER}}, {"user.json": shared})
    assert found == {"u": "struct<name:string>", "n": "bigint"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "any"}, {"type": [{}]}, {"type": [["string"]]}, {"type": [3, "null"]},
        {"$ref": "http://["}, {"$ref": "#/default/part"}, {"$ref": "#/properties"}, {"$ref": "#/allOf/00000000000001"},
        {"$id": "http://[", "type": "any"},
    ],
)  # fmt: skip
def test_what_is_not_json_schema_is_json_text(schema: Any) -> None:
    more = {"default": {"part": {"$ref": "#/default"}}, "allOf": [{}]}
    assert columns({"type": "object", "properties": {"x": schema}, **more})["x"] == "string~"


def test_required_names_that_are_not_text_are_ignored() -> None:
    assert columns({"properties": {"x": STRING}, "required": [{}, "x", 3]}) == {"x": "string!"}


@pytest.mark.parametrize("keyword", ["properties", "allOf"])
def test_references_that_double_at_each_step_are_bounded(keyword: str) -> None:
    def twice(number: int) -> Any:
        ref = {"$ref": f"#/definitions/n{number + 1}"}
        return {keyword: [ref, dict(ref)] if keyword == "allOf" else {"a": ref, "b": dict(ref)}}

    definitions = {f"n{number}": twice(number) for number in range(30)} | {"n30": STRING}
    with pytest.raises(ConfigError, match=f"too large: more than {PARTS_MAX:,} parts"):
        columns({"type": "object", "properties": {"x": {"$ref": "#/definitions/n0"}}, "definitions": definitions})


def test_deep_parts_are_json_text() -> None:
    schema: Any = STRING
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    found = column(schema)
    assert found.startswith("array<array<")
    assert found.endswith("~")


@pytest.mark.parametrize("document", [STRING, {}, {"type": "array", "items": STRING}, {"type": "object"}, True])
def test_a_schema_that_is_no_object_is_rejected(document: Any) -> None:
    with pytest.raises(ConfigError, match=r"views-value is not an object with properties.*Give the columns"):
        columns(document)


# ------------------------------------------------------------------------------------------------- values


def test_values_are_read_into_columns() -> None:
    document = {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": INTEGER,
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "price": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": ["string", "null"]}},
            "counts": {"type": "object", "additionalProperties": INTEGER},
            "user": {"type": "object", "properties": {"name": STRING}},
        },
    }
    value = {
        "id": 1, "at": "2026-01-02T03:04:05+01:00", "day": "2026-01-02", "price": 1, "tags": ["a", None],
        "counts": {"x": 5}, "user": {"name": "ann", "unknown": 1}, "more": True,
    }  # fmt: skip
    whole, least = rows(document, json.dumps(value).encode(), b'{"id": 2, "price": null}')
    assert whole == {
        "id": 1, "at": datetime.datetime(2026, 1, 2, 2, 4, 5, tzinfo=datetime.UTC), "day": datetime.date(2026, 1, 2),
        "price": 1.0, "tags": ["a", None], "counts": [("x", 5)], "user": {"name": "ann"},
    }  # fmt: skip
    assert least == {"id": 2, **dict.fromkeys(["at", "day", "price", "tags", "counts", "user"])}


def test_json_text_is_what_the_value_has_there() -> None:
    mixed = {"type": "array", "items": {"type": ["string", "integer", "null"]}}
    found = rows(
        {"type": "object", "required": ["any"], "properties": {"any": {}, "mixed": mixed, "map": {
            "type": "object", "additionalProperties": {"type": ["object", "string"]},
        }}},
        b'{"any": {"a": [1, 2.50]}, "mixed": ["x", 1, null], "map": {"k": {"b": 1}}}',
        b'{"any": null}', b'{"any": "\\u00e9"}', b'{"any": "\xff"}', b"{}",
    )  # fmt: skip
    assert found[:3] == [
        {"any": '{"a": [1, 2.50]}', "mixed": ['"x"', "1", None], "map": [("k", '{"b": 1}')]},
        {"any": None, "mixed": None, "map": None},
        {"any": '"\\u00e9"', "mixed": None, "map": None},
    ]
    assert "utf-8" in found[3]


def test_integers_may_be_written_with_a_fraction_of_zero() -> None:
    document = {"type": "object", "properties": {"id": INTEGER, "all": {"type": "array", "items": INTEGER}}}
    found = rows(document, b'{"id": 3.0, "all": [1, 2.0]}', b'{"id": 1.5}', b'{"id": 9223372036854775808}')
    assert found[0] == {"id": 3, "all": [1, 2]}
    assert found[1] == "expected an integer, got 1.5"
    assert "9223372036854775807" in found[2]


def test_values_of_other_types_do_not_match() -> None:
    document = {"type": "object", "required": ["id"], "properties": {"id": INTEGER}}
    missing, text, array = rows(document, b"{}", b'{"id": "1"}', b"[]")
    assert "missing required field `id`" in missing
    assert "got `str`" in text
    assert "got `array`" in array
