"""Differences between JSON Schemas: their kinds and places, references, and schemas made to keep a checker busy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.registry.formats.json_schema_pairs import (
    INTEGER,
    NUMBER,
    STRING,
    closed,
    items,
    of_2020,
    opened,
    partly,
    required,
)

from penstock.registry.formats import (
    InvalidSchema,
    ReferencedSchema,
    comparison,
    parse_schema,
    reader_incompatibilities,
)


def differences(reader: Any, writer: Any, *references: ReferencedSchema) -> list[tuple[str, str]]:
    schemas = [parse_schema("JSON", json.dumps(each), references) for each in (reader, writer)]
    return [(each.kind, each.path) for each in reader_incompatibilities(*schemas)]


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (STRING, INTEGER, [("TYPE_CHANGED", "")]),
        (INTEGER, NUMBER, [("TYPE_NARROWED", "")]),
        (
            {"type": "string", "maxLength": 1},
            {"type": "string", "maxLength": 2},
            [("MAX_LENGTH_DECREASED", "/maxLength")],
        ),
        ({"type": "string", "minLength": 1}, STRING, [("MIN_LENGTH_ADDED", "/minLength")]),
        ({"type": "string", "pattern": "a"}, STRING, [("PATTERN_ADDED", "/pattern")]),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, [("PATTERN_CHANGED", "/pattern")]),
        ({"type": "number", "maximum": 1}, {"type": "number", "maximum": 2}, [("MAXIMUM_DECREASED", "/maximum")]),
        (
            {"type": "number", "exclusiveMinimum": 1},
            {"type": "number", "minimum": 1},
            [("EXCLUSIVE_MINIMUM_INCREASED", "/exclusiveMinimum")],
        ),
        (
            {"type": "number", "multipleOf": 4},
            {"type": "number", "multipleOf": 2},
            [("MULTIPLE_OF_EXPANDED", "/multipleOf")],
        ),
        (
            {"type": "number", "multipleOf": 3},
            {"type": "number", "multipleOf": 2},
            [("MULTIPLE_OF_CHANGED", "/multipleOf")],
        ),
        (opened(a=STRING), opened(), [("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", "/properties/a")]),
        (
            required(closed(a=STRING), "a"),
            closed(),
            [("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", "/required/a")],
        ),
        (closed(), closed(a=STRING), [("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", "/properties/a")]),
        (
            partly(INTEGER),
            partly(INTEGER, a=STRING),
            [
                ("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", "/properties/a"),
                ("TYPE_CHANGED", "/properties/a"),
            ],
        ),
        (closed(), opened(), [("ADDITIONAL_PROPERTIES_REMOVED", "/additionalProperties")]),
        (partly(STRING), opened(), [("ADDITIONAL_PROPERTIES_NARROWED", "/additionalProperties")]),
        (required(opened(a=STRING), "a"), opened(a=STRING), [("REQUIRED_ATTRIBUTE_ADDED", "/required/a")]),
        (items(STRING), {"type": "array"}, [("SCHEMA_ADDED", "/items")]),
        (items(STRING), items(INTEGER), [("TYPE_CHANGED", "/items")]),
        (items([STRING, STRING]), items([STRING]), [("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", "/items/1")]),
        (
            items([STRING], additionalItems=False),
            items([STRING, STRING], additionalItems=False),
            [("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", "/items/1")],
        ),
        (
            of_2020(type="array", prefixItems=[STRING]),
            of_2020(type="array", prefixItems=[INTEGER]),
            [("TYPE_CHANGED", "/prefixItems/0")],
        ),
        (items(STRING, uniqueItems=True), items(STRING), [("UNIQUE_ITEMS_ADDED", "/uniqueItems")]),
        ({"enum": [1]}, {"enum": [1, 2]}, [("ENUM_ARRAY_NARROWED", "/enum")]),
        ({"oneOf": [STRING]}, {"oneOf": [STRING, INTEGER]}, [("SUM_TYPE_NARROWED", "/oneOf")]),
        ({"not": NUMBER}, {"not": INTEGER}, [("NOT_TYPE_EXTENDED", "/not")]),
        ({"allOf": [STRING, {"maxLength": 1}]}, {"allOf": [STRING]}, [("MAX_LENGTH_ADDED", "/allOf/1/maxLength")]),
        ({"allOf": [STRING, {"enum": ["a"]}]}, {"allOf": [STRING]}, [("ENUM_ARRAY_CHANGED", "/allOf/1/enum")]),
    ],
)
def test_differences_have_a_kind_and_a_pointer_into_the_reader(
    reader: Any, writer: Any, expected: list[tuple[str, str]]
) -> None:
    assert differences(reader, writer) == expected


def test_messages_name_both_sides() -> None:
    schemas = [parse_schema("JSON", json.dumps({"type": "number", "maximum": each})) for each in (5, 10)]
    [difference] = reader_incompatibilities(*schemas)
    assert difference.message == "The reader's maximum is 5, and the writer's bound is 10."


def test_a_reference_that_changes_changes_the_schema() -> None:
    root = json.dumps(opened(a={"$ref": "a.json"}))
    string, number = (
        parse_schema("JSON", root, [ReferencedSchema("a.json", json.dumps(each))]) for each in (STRING, NUMBER)
    )
    assert string.canonical == number.canonical
    assert [each.path for each in reader_incompatibilities(string, number)] == ["/properties/a"]
    assert reader_incompatibilities(string, string) == []


def test_decimals_that_connect_has_written_in_two_forms_are_the_same() -> None:
    number = {"type": "number", "connect.type": "bytes"}
    string = {"type": "string", "connect.type": "bytes"}
    assert differences(number, string) == []
    assert differences(number, STRING) != []


def chain(length: int, last: Any) -> dict[str, Any]:
    links = {f"d{each}": opened(a={"$ref": f"#/definitions/d{each + 1}"}) for each in range(length)}
    return {"$ref": "#/definitions/d0", "definitions": {**links, f"d{length}": last}}


def test_a_chain_of_references_longer_than_the_stack_is_compared() -> None:
    assert differences(chain(1_200, NUMBER), chain(1_200, INTEGER)) == []
    [(kind, path)] = differences(chain(1_200, INTEGER), chain(1_200, NUMBER))
    assert kind == "TYPE_NARROWED"
    assert path.startswith("/properties/a/properties/a/")


def test_choices_that_all_lead_to_all_others_are_compared_or_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def tangle(count: int, last: Any) -> dict[str, Any]:
        names = [f"d{each}" for each in range(count)]
        choice = {"anyOf": [last, *({"$ref": f"#/definitions/{name}"} for name in names)]}
        return {"$ref": "#/definitions/d0", "definitions": {name: partly(choice) for name in names}}

    assert differences(tangle(4, NUMBER), tangle(4, INTEGER)) == []
    assert differences(tangle(4, INTEGER), tangle(4, NUMBER)) != []
    monkeypatch.setattr(comparison, "STEPS_MAX", 5_000)
    with pytest.raises(InvalidSchema, match=r"more than .* comparisons"):
        differences(tangle(90, NUMBER), tangle(90, INTEGER))


def test_doubling_references_are_compared_once() -> None:
    def doubling(last: Any) -> dict[str, Any]:
        links = {f"d{each}": {"allOf": [{"$ref": f"#/definitions/d{each + 1}"}] * 2} for each in range(300)}
        return {"$ref": "#/definitions/d0", "definitions": {**links, "d300": last}}

    assert differences(doubling(NUMBER), doubling(INTEGER)) == []
    assert [kind for kind, _ in differences(doubling(INTEGER), doubling(NUMBER))] == ["TYPE_NARROWED"]


def test_a_wide_choice_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "STEPS_MAX", 5_000)
    wide = {"anyOf": [closed(**{f"p{each}": STRING}) for each in range(300)]}
    with pytest.raises(InvalidSchema, match="comparisons"):
        differences(wide, {"anyOf": wide["anyOf"][::-1]})


def test_expressions_that_would_trap_a_backtracking_matcher_are_matched() -> None:
    reader = {"type": "object", "patternProperties": {"^(a+)+$": STRING}, "additionalProperties": False}
    name = "a" * 60
    assert differences(reader, closed(**{name: STRING})) == []
    assert differences(reader, closed(**{name + "!": STRING})) != []
    many = {"type": "object", "patternProperties": {f"^(a+)+{each}$": {} for each in range(400)}}
    with pytest.raises(InvalidSchema, match="too many patternProperties"):
        differences(many, opened(**{name + str(each): STRING for each in range(300)}))
