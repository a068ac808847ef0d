"""Limits and JSON text of schemas."""

from __future__ import annotations

import pytest

from penstock.registry.formats.schema import (
    NESTING_MAX,
    REFERENCED_CHARACTERS_MAX,
    REFERENCES_MAX,
    SCHEMA_CHARACTERS_MAX,
    InvalidSchema,
    ReferencedSchema,
    check_sizes,
    json_equal,
    parse_json,
    pointer,
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": 1', "at line 1, column 8"),
        ("", "not JSON"),
        ("NaN", "NaN is not a number of JSON"),
        ("[-Infinity]", "-Infinity is not a number of JSON"),
        ("1e999", "too large for a double"),
        ("9" * 5_000, "a number that cannot be used"),
        ('"\\ud800"', "half of a surrogate pair"),
        ('{"\\udfff": 1}', "half of a surrogate pair"),
        ("[" * 100_000, f"more than {NESTING_MAX} levels deep at character {NESTING_MAX}"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, f"more than {NESTING_MAX} levels deep"),
    ],
)
def test_text_that_is_not_usable_json_is_rejected_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchema, match=problem):
        parse_json(text)


def test_brackets_in_strings_are_not_nesting() -> None:
    value = ["[" * 1_000, '"{' * 1_000, "\\"]
    import json

    assert parse_json(json.dumps(value)) == value


def test_the_deepest_allowed_nesting_is_parsed() -> None:
    assert parse_json("[" * NESTING_MAX + "]" * NESTING_MAX) is not None


def test_schemas_and_references_have_a_largest_size() -> None:
    check_sizes("x" * SCHEMA_CHARACTERS_MAX, [])
    with pytest.raises(InvalidSchema, match="1,000,001 characters"):
        check_sizes("x" * (SCHEMA_CHARACTERS_MAX + 1), [])
    with pytest.raises(InvalidSchema, match="1,001 references"):
        check_sizes("", [ReferencedSchema(str(index), "") for index in range(REFERENCES_MAX + 1)])
    with pytest.raises(InvalidSchema, match="4,000,001 characters"):
        check_sizes("", [ReferencedSchema("a", "x" * (REFERENCED_CHARACTERS_MAX + 1))])


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ([1, 2], [2, 1], False),
        (None, "null", False),
        (1.5, 1.5, True),
    ],
)
def test_json_values_are_equal_as_numbers_not_as_texts(left: object, right: object, equal: bool) -> None:
    assert json_equal(left, right) is equal


def test_pointers_escape_and_shorten_names() -> None:
    assert pointer(("properties", "a/b~c", 0)) == "/properties/a~1b~0c/0"
    assert len(pointer(("x" * 10_000,))) < 100
