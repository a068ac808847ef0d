"""Parsing of JSON Schema: drafts, references, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.formats.json_schema_pairs import DRAFTS, PAIRS, of_2020

from penstock.registry.formats import InvalidSchema, ReferencedSchema
from penstock.registry.formats.json_schema import JsonSchema


def parsed(schema: Any, *references: ReferencedSchema) -> JsonSchema:
    return JsonSchema(json.dumps(schema), references)


def reference(name: str, schema: Any) -> ReferencedSchema:
    return ReferencedSchema(name, json.dumps(schema))


def test_the_canonical_text_keeps_the_order_and_the_normalized_one_sorts() -> None:
    schema = JsonSchema('{ "type": "object",\n "b": 1.0, "a": {"d": "\\u00fc", "c": null} }')
    assert schema.canonical == '{"type":"object","b":1.0,"a":{"d":"ü","c":null}}'
    assert schema.normalized == '{"a":{"c":null,"d":"ü"},"b":1.0,"type":"object"}'
    assert JsonSchema(schema.normalized).normalized == schema.normalized


def test_both_texts_are_the_schema() -> None:
    for pair in PAIRS:
        schema = JsonSchema(pair.new)
        assert json.loads(schema.canonical) == json.loads(schema.normalized) == json.loads(pair.new)
        schema.check_unfinished()


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ([], "The schema is \\[\\]; use an object, true or false"),
        ({"type": "strin"}, 'At /type: "strin" is not allowed; use one or more of null'),
        ({"type": []}, "At /type"),
        ({"type": ["string", "string"]}, "At /type"),
        ({"properties": []}, "At /properties: \\[\\] is not allowed; use an object with schemas"),
        ({"properties": {"a": 1}}, "At /properties/a: 1 is not a schema"),
        ({"required": True}, "use an array of different strings of the object that has the property"),
        ({"required": ["a", "a"]}, "At /required"),
        ({"minLength": -1}, "At /minLength: -1 is not allowed; use an integer that is at least 0"),
        ({"maxLength": 1.5}, "At /maxLength"),
        ({"minimum": "1"}, 'At /minimum: "1" is not allowed; use a number'),
        ({"exclusiveMinimum": True}, "At /exclusiveMinimum: true is not allowed; use a number"),
        ({"multipleOf": 0}, "At /multipleOf: 0 is not allowed; use a number greater than 0"),
        ({"enum": "a"}, "At /enum"),
        ({"uniqueItems": 1}, "At /uniqueItems: 1 is not allowed; use true or false"),
        ({"allOf": []}, "At /allOf: \\[\\] is not allowed; use an array of schemas that is not empty"),
        ({"anyOf": {}}, "At /anyOf"),
        ({"oneOf": [1]}, "At /oneOf/0: 1 is not a schema"),
        ({"not": None}, "At /not: null is not a schema"),
        ({"items": [{"items": 1}]}, "At /items/0/items: 1 is not a schema"),
        ({"pattern": "("}, "At /pattern: '\\(' is not a regular expression: a '\\(' is not closed"),
        ({"patternProperties": {"[": {}}}, "At /patternProperties: '\\[' is not a regular expression"),
        ({"patternProperties": 5}, "At /patternProperties: 5 is not allowed"),
        ({"dependencies": {"a": ["b", "b"]}}, "At /dependencies/a"),
        ({"dependencies": {"a": 1}}, "At /dependencies/a: 1 is not a schema"),
        ({"$schema": 1}, "\\$schema: 1 is not allowed"),
        ({"$id": "http://[x"}, "is not a URI"),
        ({"$id": "http://example.com/" + "x" * 3_000}, "has more than 2000 characters"),
        ({"$ref": "#/definitions/a"}, "At the root: \\$ref '#/definitions/a' leads nowhere: there is no 'definitions'"),
        (
            {"properties": {"a": {"$ref": "b.json"}}},
            "At /properties/a: \\$ref 'b.json' leads to 'b.json', which is neither",
        ),
        ({"$ref": "#nowhere"}, "names an anchor that is not there"),
        ({"items": {"$ref": "http://[x"}}, "is not a URI"),
        ({"$ref": "#/a/x", "a": 5}, "leads nowhere"),
        ({"$ref": "#/a", "a": 5}, "At /a: 5 is not a schema"),
        ({"$ref": "#/a/9999999999999", "a": [{}]}, "leads nowhere"),
        ({"$ref": "#"}, "refers to itself without going into a part of the data"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "refers to itself"),
        (
            {"$ref": "#/definitions/a", "definitions": {"a": {"allOf": [{"$ref": "#/definitions/a"}]}}},
            "refers to itself",
        ),
        ({"$schema": DRAFTS[4], "required": []}, "At /required"),
        ({"$schema": DRAFTS[4], "properties": {"a": True}}, "draft 4 has no schemas true and false"),
        (of_2020(items=[{}]), "in 2020-12, a tuple is written as prefixItems"),
        (of_2020(dependentRequired={"a": "b"}), "At /dependentRequired"),
    ],
)
def test_errors_say_what_is_wrong_and_where(schema: Any, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parsed(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DRAFTS[4], "const": 5, "if": 5, "propertyNames": 5, "contains": 5},
        {"$schema": DRAFTS[4], "maximum": 1, "exclusiveMaximum": True, "additionalProperties": False},
        {"$schema": DRAFTS[7], "prefixItems": 5, "dependentSchemas": 5, "minContains": "x", "unevaluatedItems": 5},
        {
            "$schema": DRAFTS[2020],
            "additionalItems": 5,
            "$dynamicAnchor": "x",
            "properties": {"n": {"$dynamicRef": "#x"}},
        },
        {"$schema": DRAFTS[2019], "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}},
        {"$schema": "http://example.com/a-meta-schema-of-our-own", "x-keyword": [1]},
        {"$ref": "http://json-schema.org/draft-07/schema#"},
        {"$ref": "#/components/a", "components": {"a": {"$ref": "#/components/b"}, "b": {}}},
        {"$ref": "#/definitions/a%20b~1c", "definitions": {"a b/c": {}}},
        {"properties": {"$ref": {"type": "string"}, "enum": {"type": "array"}}},
        {"items": {"$ref": "#/items2/0"}, "items2": [{"type": "string"}]},
        {"default": {"$ref": "#/nowhere"}, "enum": [{"$ref": 5}]},
        {"$id": "#root", "items": {"$ref": "#root"}},
    ],
)
def test_keywords_count_in_their_drafts_only_and_what_is_no_schema_is_not_read_as_one(schema: Any) -> None:
    parsed(schema)


def test_references_are_found_by_name_by_id_and_relative_to_the_base() -> None:
    address = reference("address.json", {"type": "object", "definitions": {"zip": {"type": "string"}}})
    parsed({"$ref": "address.json#/definitions/zip"}, address)
    parsed({"$id": "http://example.com/root.json", "$ref": "address.json"}, address)
    by_url = reference("http://example.com/address.json", {"type": "object"})
    parsed({"$id": "http://example.com/root.json", "properties": {"a": {"$ref": "address.json"}}}, by_url)
    inner = {"properties": {"b": {"$ref": "#/definitions/b"}}, "definitions": {"b": {}}}
    by_id = reference("whatever", {"$id": "http://example.com/a.json", **inner})
    parsed({"$ref": "http://example.com/a.json"}, by_id)


def test_circles_among_references_are_followed_once() -> None:
    one = reference("one.json", {"properties": {"other": {"$ref": "two.json"}}})
    two = reference("two.json", {"properties": {"other": {"$ref": "one.json"}, "root": {"$ref": "one.json#"}}})
    parsed({"$ref": "one.json"}, one, two)
    with pytest.raises(InvalidSchema, match="refers to itself"):
        parsed(
            {"$ref": "one.json"},
            reference("one.json", {"$ref": "two.json"}),
            reference("two.json", {"$ref": "one.json"}),
        )


def test_an_error_in_a_reference_names_it() -> None:
    with pytest.raises(InvalidSchema, match=r"Reference 'a\.json': At /type"):
        parsed({}, reference("a.json", {"type": 5}))


def test_names_that_start_with_two_dollars_are_not_for_new_schemas() -> None:
    schema = parsed({"properties": {"$$a": {}}})
    with pytest.raises(InvalidSchema, match=r"names of properties must not start with \$\$"):
        schema.check_unfinished()


def test_long_names_long_chains_and_many_expressions_take_a_bounded_amount_of_memory() -> None:
    parsed({"properties": {"x" * 300_000: {"properties": {str(index): {} for index in range(5_000)}}}})
    chain = {f"d{index}": {"$ref": f"#/definitions/d{index + 1}"} for index in range(5_000)}
    parsed({"$ref": "#/definitions/d0", "definitions": {**chain, "d5000": {}}})
    many = parsed({"patternProperties": {f"(a{{900}}){index}": {} for index in range(400)}})
    undecided = [each for each in json.loads(many.canonical)["patternProperties"] if many.pattern(each) is None]
    assert len(undecided) > 200
