"""Bounds of numbers and values of enumerations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from penstock.registry.formats.json_schema_values import kind_of, limit_problems, number_problems, scalar_fits, type_of


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (None, "null"),
        (True, "boolean"),
        (1, "integer"),
        (1.0, "integer"),
        (1.5, "number"),
        ("", "string"),
        ([], "array"),
        ({}, "object"),
    ],
)
def test_types_of_values(value: object, type_: str) -> None:
    assert type_of(value) == type_


def test_names_of_differences() -> None:
    assert kind_of("exclusiveMaximum", "ADDED") == "EXCLUSIVE_MAXIMUM_ADDED"


def _allowed(value: float, kind: str, keywords: dict[str, Any]) -> bool:
    if kind == "integer" and value != int(value):
        return False
    return bool(
        keywords.get("minimum", -100) <= value <= keywords.get("maximum", 100)
        and keywords.get("exclusiveMinimum", -100) < value < keywords.get("exclusiveMaximum", 100)
        and value % keywords.get("multipleOf", 0.5) == 0
    )


def test_bounds_follow_from_others_exactly_where_all_numbers_agree() -> None:
    """Every combination of some bounds, beside the numbers that they allow. Empty sets are left out."""
    options: list[dict[str, Any]] = [
        {},
        {"minimum": 1},
        {"minimum": 0.5},
        {"exclusiveMinimum": 0},
        {"exclusiveMinimum": 0.5},
        {"maximum": 2},
        {"exclusiveMaximum": 3},
        {"exclusiveMaximum": 2.5},
        {"minimum": 1, "maximum": 2},
        {"multipleOf": 1},
        {"multipleOf": 2},
        {"multipleOf": 1.5},
    ]
    numbers = [each / 2 for each in range(-20, 21)]
    for kinds in itertools.product(("number", "integer"), repeat=2):
        for reader, writer in itertools.product(options, repeat=2):
            problems = list(number_problems((kinds[0], reader, 7), [(kinds[1], writer, 7)]))
            written = [each for each in numbers if _allowed(each, kinds[1], writer)]
            readable = all(_allowed(each, kinds[0], reader) for each in written)
            if not problems:
                assert readable, (kinds, reader, writer)
            elif readable:
                # Numbers between the halves that were tried, or bounds that follow from a step only.
                fine_grained = kinds[1] == "number" and "multipleOf" not in writer
                assert fine_grained or "multipleOf" in writer or "multipleOf" in reader, (kinds, reader, writer)


def test_a_minimum_of_zero_demands_nothing() -> None:
    assert list(limit_problems({"minItems": 0, "maxItems": 3}, [{"maxItems": 2}], ("minItems", "maxItems"))) == []


@pytest.mark.parametrize(
    ("value", "kind", "keywords", "fits"),
    [
        (1, "integer", {}, True),
        (1, "number", {"minimum": 1}, True),
        (1, "number", {"exclusiveMinimum": 1}, False),
        (0, "number", {"multipleOf": 7}, True),
        (8, "number", {"multipleOf": 4}, True),
        (9, "number", {"multipleOf": 4}, False),
        (1.5, "integer", {}, False),
        ("ab", "string", {"maxLength": 2}, True),
        ("ab", "string", {"maxLength": 1}, False),
        ("ab", "integer", {}, False),
        (True, "integer", {}, False),
        (None, "null", {}, True),
        ([], "array", {}, True),
        ([], "array", {"minItems": 1}, False),
        ({}, "object", {"title": "x"}, True),
    ],
)
def test_values_of_enumerations(value: object, kind: str, keywords: dict[str, Any], fits: bool) -> None:
    assert scalar_fits(value, kind, keywords, 7, lambda _: None) is fits
