"""Pairs of JSON Schemas, judged by the specification's validation rules and Confluent's documented content models.

"Backward" means that every value that the old schema allows is allowed by the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement
from typing import Any

from tests.registry.formats.pairs import Pair, text

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def opened(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def closed(**properties: Any) -> dict[str, Any]:
    return {**opened(**properties), "additionalProperties": False}


def partly(others: Any, **properties: Any) -> dict[str, Any]:
    return {**opened(**properties), "additionalProperties": others}


def required(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**schema, "required": list(names)}


def items(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": schema, **more}


def of_2020(**keywords: Any) -> dict[str, Any]:
    return {"$schema": DRAFTS[2020], **keywords}


def _accepts(reader: str, writer: str) -> bool:
    return reader == writer or (reader, writer) == ("number", "integer")


TYPE_PAIRS = [
    Pair(f"types {old} and {new}", text({"type": old}), text({"type": new}), _accepts(new, old), _accepts(old, new))
    for old, new in combinations_with_replacement(TYPES, 2)
]
# Type, keyword, the looser and the tighter value.
_LIMITS: tuple[tuple[str, str, Any, Any], ...] = (
    ("string", "maxLength", 10, 5),
    ("string", "minLength", 1, 2),
    ("number", "maximum", 10, 5.5),
    ("number", "minimum", -1, 0),
    ("number", "exclusiveMaximum", 10, 5),
    ("number", "exclusiveMinimum", 1, 2),
    ("number", "multipleOf", 2, 4),
    ("array", "maxItems", 10, 5),
    ("array", "minItems", 1, 2),
    ("object", "maxProperties", 10, 5),
    ("object", "minProperties", 1, 2),
)
LIMIT_PAIRS = [
    pair
    for type_, keyword, loose, tight in _LIMITS
    for pair in (
        Pair(f"{keyword} added", text({"type": type_}), text({"type": type_, keyword: loose}), False, True),
        Pair(f"{keyword} removed", text({"type": type_, keyword: loose}), text({"type": type_}), True, False),
        Pair(
            f"{keyword} tightened",
            text({"type": type_, keyword: loose}),
            text({"type": type_, keyword: tight}),
            False,
            True,
        ),
    )
]
_CONTEXTS: dict[str, Callable[[Any], Any]] = {
    "a property": lambda schema: closed(a=schema),
    "a property of an open object": lambda schema: opened(a=schema),
    "items": items,
    "a tuple": lambda schema: items([schema]),
    "prefixItems": lambda schema: of_2020(type="array", prefixItems=[schema]),
    "additionalProperties": lambda schema: {"type": "object", "additionalProperties": schema},
    "patternProperties": lambda schema: {"type": "object", "patternProperties": {"^a": schema}},
    "allOf": lambda schema: {"allOf": [schema]},
    "anyOf": lambda schema: {"anyOf": [schema, {"type": "null"}]},
    "oneOf": lambda schema: {"oneOf": [{"type": "null"}, schema]},
    "$ref": lambda schema: {"$ref": "#/definitions/a", "definitions": {"a": schema}},
    "$defs": lambda schema: of_2020(**{"$ref": "#/$defs/a", "$defs": {"a": schema}}),
}
CONTEXT_PAIRS = [
    Pair(f"{rule} in {name}", text(make(old)), text(make(new)), backward, forward)
    for name, make in _CONTEXTS.items()
    for rule, old, new, backward, forward in (
        ("type widened", INTEGER, NUMBER, True, False),
        ("type changed", STRING, INTEGER, False, False),
        ("limit loosened", {"type": "string", "maxLength": 2}, {"type": "string", "maxLength": 3}, True, False),
    )
]
DRAFT_PAIRS = [
    Pair(
        f"{rule} in draft {draft}",
        text({"$schema": uri, **old}),
        text({"$schema": uri, **new}),
        backward,
        forward,
    )
    for draft, uri in DRAFTS.items()
    for rule, old, new, backward, forward in (
        ("optional property in a closed object", closed(), closed(a=STRING), True, False),
        ("optional property in an open object", opened(), opened(a=STRING), False, True),
        ("value added to an enum", {"enum": ["a"]}, {"enum": ["a", "b"]}, True, False),
        ("annotations", {"type": "string"}, {"type": "string", "title": "t", "default": "x"}, True, True),
    )
]
_NOT_STRING = {"not": STRING}
_LIST: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"$ref": "#"}, "value": INTEGER},
    "additionalProperties": False,
}
# Rule, old, new, backward, forward.
_SINGLE: list[tuple[str, Any, Any, bool, bool]] = [
    # Content models.
    ("property removed from an open object", opened(a=STRING), opened(), True, False),
    ("property removed from a closed object", closed(a=STRING), closed(), False, True),
    ("property replaced in a closed object", closed(a=STRING), closed(b=STRING), False, False),
    ("property of any value added to an open object", opened(), opened(a={}), True, True),
    ("property that is never there removed", closed(a=False), closed(), True, True),
    ("object opened", closed(a=STRING), opened(a=STRING), True, False),
    ("others get a schema", opened(a=STRING), partly(STRING, a=STRING), False, True),
    ("others are allowed", closed(a=STRING), partly(STRING, a=STRING), True, False),
    ("schema of others widened", partly(INTEGER), partly(NUMBER), True, False),
    ("property covered by the others", partly(STRING), partly(STRING, a=STRING), True, True),
    ("property wider than the others", partly(INTEGER), partly(INTEGER, a=NUMBER), True, False),
    ("property other than the others", partly(INTEGER), partly(INTEGER, a=STRING), False, False),
    ("object closed with a new property", opened(), closed(a=STRING), False, True),
    ("closed object opened with a new property", closed(), opened(a=STRING), True, False),
    ("additionalProperties true is open", {"type": "object", "additionalProperties": True}, opened(), True, True),
    ("additionalProperties {} is open", {"type": "object", "additionalProperties": {}}, opened(), True, True),
    (
        "property covered by a pattern",
        {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False},
        {**closed(s_a=STRING), "patternProperties": {"^s_": STRING}},
        True,
        True,
    ),
    (
        "property against a pattern",
        {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False},
        {**closed(s_a=INTEGER), "patternProperties": {"^s_": STRING}},
        False,
        True,
    ),
    (
        "property that no pattern covers",
        {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False},
        {**closed(i=INTEGER), "patternProperties": {"^s_": STRING}},
        True,
        False,
    ),
    (
        "pattern added to a closed object",
        closed(),
        {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False},
        True,
        False,
    ),
    (
        "pattern added to an open object",
        opened(),
        {"type": "object", "patternProperties": {"^s_": STRING}},
        False,
        True,
    ),
    (
        "pattern replaced",
        {"type": "object", "patternProperties": {"^s_": STRING}, "additionalProperties": False},
        {"type": "object", "patternProperties": {"^t_": STRING}, "additionalProperties": False},
        False,
        False,
    ),
    # Required properties.
    ("property becomes required", closed(a=STRING), required(closed(a=STRING), "a"), False, True),
    ("required property added to a closed object", closed(), required(closed(a=STRING), "a"), False, False),
    ("required property added to an open object", opened(), required(opened(a=STRING), "a"), False, True),
    (
        "property with default becomes required",
        closed(a={"type": "string", "default": ""}),
        required(closed(a={"type": "string", "default": ""}), "a"),
        True,
        True,
    ),
    (
        "required property with default added to a closed object",
        closed(),
        required(closed(a={"type": "string", "default": ""}), "a"),
        True,
        False,
    ),
    (
        "required property with default added to an open object",
        opened(),
        required(opened(a={"type": "string", "default": ""}), "a"),
        False,
        True,
    ),
    ("required property removed from an open object", required(opened(a=STRING), "a"), opened(), True, False),
    ("one more name required", required(opened(), "a"), required(opened(), "a", "b"), False, True),
    ("names required in another order", required(opened(), "a", "b"), required(opened(), "b", "a"), True, True),
    ("another name required", required(opened(), "a"), required(opened(), "b"), False, False),
    # Other demands on objects.
    ("propertyNames added", opened(), {"type": "object", "propertyNames": {"maxLength": 3}}, False, True),
    (
        "propertyNames loosened",
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "object", "propertyNames": {"maxLength": 4}},
        True,
        False,
    ),
    ("dependency added", opened(), {"type": "object", "dependencies": {"a": ["b"]}}, False, True),
    (
        "dependency loosened",
        {"type": "object", "dependencies": {"a": ["b", "c"]}},
        {"type": "object", "dependencies": {"a": ["b"]}},
        True,
        False,
    ),
    (
        "dependency changed",
        {"type": "object", "dependencies": {"a": ["b"]}},
        {"type": "object", "dependencies": {"a": ["c"]}},
        False,
        False,
    ),
    (
        "dependent schema added",
        opened(),
        {"type": "object", "dependencies": {"a": {"required": ["b"]}}},
        False,
        True,
    ),
    (
        "dependentRequired added",
        of_2020(type="object"),
        of_2020(type="object", dependentRequired={"a": ["b"]}),
        False,
        True,
    ),
    (
        "dependentSchemas loosened",
        of_2020(type="object", dependentSchemas={"a": {"minProperties": 3}}),
        of_2020(type="object", dependentSchemas={"a": {"minProperties": 2}}),
        True,
        False,
    ),
    (
        "dependentRequired and dependencies are one",
        {"$schema": DRAFTS[7], "type": "object", "dependencies": {"a": ["b"]}},
        of_2020(type="object", dependentRequired={"a": ["b"]}),
        True,
        True,
    ),
    (
        "unevaluatedProperties added",
        of_2020(**opened(a=STRING)),
        of_2020(**opened(a=STRING), unevaluatedProperties=False),
        False,
        True,
    ),
    (
        "property added beside unevaluatedProperties",
        of_2020(type="object", unevaluatedProperties=False),
        of_2020(**opened(a=STRING), unevaluatedProperties=False),
        True,
        False,
    ),
    (
        "unevaluatedProperties closes what allOf has a part of",
        {**closed(a=STRING, b=STRING), "$schema": DRAFTS[2020]},
        of_2020(**opened(a=STRING), allOf=[opened(b=STRING)], unevaluatedProperties=False),
        True,
        True,
    ),
    (
        "unevaluatedProperties spares what allOf has",
        of_2020(**opened(a=STRING), allOf=[opened(b=STRING)], unevaluatedProperties=False),
        of_2020(**opened(a=STRING), allOf=[opened(b=STRING)], unevaluatedProperties=False),
        True,
        True,
    ),
    # Numbers.
    (
        "minimum becomes exclusive",
        {"type": "number", "minimum": 0},
        {"type": "number", "exclusiveMinimum": 0},
        False,
        True,
    ),
    (
        "exclusive maximum of integers",
        {"type": "integer", "exclusiveMaximum": 10},
        {"type": "integer", "maximum": 9},
        True,
        True,
    ),
    (
        "draft 4's exclusive maximum",
        {"$schema": DRAFTS[4], "type": "number", "maximum": 1, "exclusiveMaximum": True},
        {"$schema": DRAFTS[4], "type": "number", "maximum": 1},
        True,
        False,
    ),
    (
        "draft 4's exclusive maximum in draft 7",
        {"$schema": DRAFTS[4], "type": "number", "maximum": 1, "exclusiveMaximum": True},
        {"$schema": DRAFTS[7], "type": "number", "exclusiveMaximum": 1},
        True,
        True,
    ),
    (
        "bounds with fractions",
        {"type": "number", "maximum": 0.1},
        {"type": "number", "maximum": 0.10000000000000001},
        True,
        True,
    ),
    (
        "multipleOf with fractions",
        {"type": "number", "multipleOf": 0.2},
        {"type": "number", "multipleOf": 0.1},
        True,
        False,
    ),
    ("multipleOf changed", {"type": "number", "multipleOf": 2}, {"type": "number", "multipleOf": 3}, False, False),
    ("integers are multiples of 1", {"type": "integer"}, {"type": "number", "multipleOf": 1}, True, True),
    ("integers are multiples of a half", {"type": "integer"}, {"type": "number", "multipleOf": 0.5}, True, False),
    ("minimum of 0 length", {"type": "string"}, {"type": "string", "minLength": 0}, True, True),
    # Strings.
    ("pattern added", STRING, {"type": "string", "pattern": "^a"}, False, True),
    ("pattern changed", {"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}, False, False),
    ("format is an annotation", STRING, {"type": "string", "format": "date"}, True, True),
    # Enumerations.
    ("enum reordered", {"enum": ["a", "b"]}, {"enum": ["b", "a"]}, True, True),
    ("enum changed", {"enum": ["a", "b"]}, {"enum": ["a", "c"]}, False, False),
    ("const changed", {"const": 1}, {"const": 2}, False, False),
    ("const is 1.0", {"const": 1}, {"const": 1.0}, True, True),
    ("const becomes an enum", {"const": "a"}, {"enum": ["a", "b"]}, True, False),
    ("const true is not 1", {"const": True}, {"const": 1}, False, False),
    ("enum added to a string", STRING, {"type": "string", "enum": ["a"]}, False, True),
    ("enum of strings becomes a string", {"enum": ["a", "b"]}, STRING, True, False),
    ("enum of several types becomes a string", {"enum": ["a", 1]}, STRING, False, False),
    ("enum becomes types", {"enum": ["a", None]}, {"type": ["string", "null"]}, True, False),
    ("enum becomes a longer string", {"enum": ["abc"]}, {"type": "string", "maxLength": 2}, False, False),
    ("enum within bounds", {"enum": [1, 2]}, {"type": "integer", "maximum": 2}, True, False),
    ("all booleans", {"enum": [True, False]}, {"type": "boolean"}, True, True),
    # Several types.
    ("type added", STRING, {"type": ["string", "null"]}, True, False),
    ("types reordered", {"type": ["string", "null"]}, {"type": ["null", "string"]}, True, True),
    ("one of two types changed", {"type": ["string", "null"]}, {"type": ["integer", "null"]}, False, False),
    ("integer among the types widened", {"type": ["integer", "null"]}, {"type": ["number", "null"]}, True, False),
    ("types as anyOf", {"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}, True, True),
    ("types as oneOf", {"type": ["string", "null"]}, {"oneOf": [STRING, {"type": "null"}]}, True, True),
    (
        "types with limits",
        {"type": ["string", "integer"], "maxLength": 2},
        {"type": ["string", "integer"], "maxLength": 3},
        True,
        False,
    ),
    # Everything and nothing.
    ("anything becomes a string", {}, STRING, False, True),
    ("true is {}", True, {}, True, True),
    ("nothing becomes a string", False, STRING, True, False),
    ("false is not {}", False, {"not": {}}, True, True),
    # Combined schemas.
    ("allOf extended", {"allOf": [STRING]}, {"allOf": [STRING, {"maxLength": 2}]}, False, True),
    ("allOf reordered", {"allOf": [STRING, {"maxLength": 2}]}, {"allOf": [{"maxLength": 2}, STRING]}, True, True),
    ("allOf with a duplicate", {"allOf": [STRING]}, {"allOf": [STRING, STRING]}, True, True),
    ("allOf of one is the one", STRING, {"allOf": [STRING]}, True, True),
    (
        "allOf within a type",
        {"type": "string", "allOf": [{"maxLength": 3}]},
        {"type": "string", "maxLength": 3},
        True,
        True,
    ),
    ("oneOf extended", {"oneOf": [STRING]}, {"oneOf": [STRING, INTEGER]}, True, False),
    ("oneOf narrowed", {"oneOf": [STRING, NUMBER]}, {"oneOf": [STRING]}, False, True),
    ("oneOf reordered", {"oneOf": [STRING, NUMBER]}, {"oneOf": [NUMBER, STRING]}, True, True),
    ("oneOf changed", {"oneOf": [STRING, NUMBER]}, {"oneOf": [STRING, {"type": "null"}]}, False, False),
    ("oneOf that overlaps for all", INTEGER, {"oneOf": [INTEGER, NUMBER]}, False, False),
    ("anyOf that overlaps", INTEGER, {"anyOf": [INTEGER, NUMBER]}, True, False),
    ("oneOf becomes anyOf", {"oneOf": [STRING, NUMBER]}, {"anyOf": [STRING, NUMBER]}, True, True),
    (
        "anyOf that overlaps becomes oneOf",
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]},
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]},
        False,
        True,
    ),
    ("schema becomes a choice", opened(a=STRING), {"oneOf": [opened(a=STRING), STRING]}, True, False),
    ("choice becomes the schema", {"anyOf": [STRING, INTEGER]}, STRING, False, True),
    ("choice beside a type", {"type": "string", "anyOf": [{"maxLength": 1}, {"minLength": 5}]}, STRING, True, False),
    (
        "choice in a choice",
        {"anyOf": [STRING, INTEGER]},
        {"anyOf": [{"anyOf": [STRING, INTEGER]}, {"type": "null"}]},
        True,
        False,
    ),
    ("not loosened", {"not": NUMBER}, {"not": INTEGER}, True, False),
    ("not added", {}, _NOT_STRING, False, True),
    ("not of another type", INTEGER, {"type": "integer", "not": STRING}, True, True),
    ("not of the same type", STRING, {"type": "string", "not": {"type": "string", "maxLength": 1}}, False, True),
    (
        "condition added",
        opened(),
        {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
        False,
        True,
    ),
    (
        "condition loosened",
        {"type": "string", "if": {"maxLength": 3}, "then": {"minLength": 2}},
        {"type": "string", "if": {"maxLength": 3}, "then": {"minLength": 1}},
        True,
        False,
    ),
    (
        "condition changed",
        {"type": "string", "if": {"maxLength": 3}, "then": {"minLength": 2}},
        {"type": "string", "if": {"maxLength": 4}, "then": {"minLength": 2}},
        False,
        False,
    ),
    # Arrays.
    ("items added", {"type": "array"}, items(STRING), False, True),
    ("uniqueItems added", items(STRING), items(STRING, uniqueItems=True), False, True),
    ("uniqueItems false", items(STRING), items(STRING, uniqueItems=False), True, True),
    ("contains added", {"type": "array"}, {"type": "array", "contains": STRING}, False, True),
    ("contains widened", {"type": "array", "contains": INTEGER}, {"type": "array", "contains": NUMBER}, True, False),
    (
        "contains of at least none",
        of_2020(type="array"),
        of_2020(type="array", contains=STRING, minContains=0),
        True,
        True,
    ),
    ("tuple gets an item, open", items([STRING]), items([STRING, INTEGER]), False, True),
    (
        "tuple gets an item, closed",
        items([STRING], additionalItems=False),
        items([STRING, INTEGER], additionalItems=False),
        True,
        False,
    ),
    ("tuple loses an item, open", items([STRING, INTEGER]), items([STRING]), True, False),
    ("tuple gets an item of any value", items([STRING]), items([STRING, {}]), True, True),
    (
        "tuple item covered by the others",
        items([STRING], additionalItems=INTEGER),
        items([STRING, NUMBER], additionalItems=INTEGER),
        True,
        False,
    ),
    ("tuple closed", items([STRING]), items([STRING], additionalItems=False), False, True),
    (
        "tuple of 2020-12 closed",
        of_2020(type="array", prefixItems=[STRING]),
        of_2020(type="array", prefixItems=[STRING], items=False),
        False,
        True,
    ),
    (
        "tuple of draft 7 and of 2020-12",
        items([STRING, INTEGER], additionalItems=False),
        of_2020(type="array", prefixItems=[STRING, INTEGER], items=False),
        True,
        True,
    ),
    ("list of a tuple's types", items([STRING, STRING], additionalItems=STRING), items(STRING), True, True),
    (
        "unevaluatedItems added",
        of_2020(type="array", prefixItems=[STRING]),
        of_2020(type="array", prefixItems=[STRING], unevaluatedItems=False),
        False,
        True,
    ),
    # References and recursion.
    ("recursive schema", _LIST, _LIST, True, True),
    (
        "recursive schema gets a property",
        _LIST,
        {**_LIST, "properties": {**_LIST["properties"], "x": STRING}},
        True,
        False,
    ),
    (
        "recursive schema changes",
        _LIST,
        {**_LIST, "properties": {"next": {"$ref": "#"}, "value": STRING}},
        False,
        False,
    ),
    (
        "recursion unrolled once",
        _LIST,
        {
            **_LIST,
            "properties": {
                "next": {**_LIST, "properties": {"next": {"$ref": "#"}, "value": INTEGER}},
                "value": INTEGER,
            },
        },
        True,
        True,
    ),
    (
        "definition renamed",
        {"$ref": "#/definitions/a", "definitions": {"a": STRING}},
        {"$ref": "#/definitions/b", "definitions": {"b": STRING}},
        True,
        True,
    ),
    (
        "reference replaced by what it means",
        {"$ref": "#/definitions/a", "definitions": {"a": STRING}},
        STRING,
        True,
        True,
    ),
    (
        "reference by $id",
        {
            "$id": "http://example.com/root.json",
            "properties": {"a": {"$ref": "a.json"}},
            "definitions": {"a": {"$id": "a.json", "type": "string"}},
        },
        {"properties": {"a": STRING}},
        True,
        True,
    ),
    (
        "reference by $anchor",
        of_2020(**{"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "string"}}}),
        STRING,
        True,
        True,
    ),
    (
        "keywords beside $ref before 2019-09",
        {"$ref": "#/definitions/a", "maxLength": 1, "definitions": {"a": STRING}},
        STRING,
        True,
        True,
    ),
    (
        "keywords beside $ref in 2020-12",
        of_2020(**{"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": STRING}}),
        STRING,
        True,
        False,
    ),
    (
        "a recursive choice grows",
        {"anyOf": [STRING, items({"$ref": "#"})]},
        {"anyOf": [STRING, items({"$ref": "#"}), INTEGER]},
        True,
        False,
    ),
    ("untyped properties are those of an object", {"properties": {"a": STRING}}, opened(a=STRING), True, True),
]
PAIRS = [
    *TYPE_PAIRS,
    *LIMIT_PAIRS,
    *CONTEXT_PAIRS,
    *DRAFT_PAIRS,
    *(Pair(rule, text(old), text(new), backward, forward) for rule, old, new, backward, forward in _SINGLE),
]
