"""Levels of compatibility, and schemas of all types by one interface."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from penstock.registry.formats import (
    COMPATIBILITIES,
    SCHEMA_TYPES,
    Compatibility,
    InvalidSchema,
    ReferencedSchema,
    SchemaType,
    check_compatibility,
    format_schema,
    parse_schema,
    reader_incompatibilities,
)


def avro(*fields: str, default: bool = False) -> Any:
    more: dict[str, Any] = {"default": 0} if default else {}
    value = {"type": "record", "name": "R", "fields": [{"name": each, "type": "int", **more} for each in fields]}
    return parse_schema("AVRO", json.dumps(value))


NONE, A, A_B, WITH_DEFAULT = avro(), avro("a"), avro("a", "b"), avro("a", default=True)


@pytest.mark.parametrize(
    ("level", "new", "earlier", "compatible"),
    [
        ("NONE", A, [parse_schema("AVRO", '"int"')], True),
        ("BACKWARD", A, [], True),
        # A field without default may be removed, and not added.
        ("BACKWARD", NONE, [A], True),
        ("BACKWARD", A, [NONE], False),
        ("FORWARD", A, [NONE], True),
        ("FORWARD", NONE, [A], False),
        ("FULL", A, [NONE], False),
        ("FULL", NONE, [A], False),
        ("FULL", WITH_DEFAULT, [NONE], True),
        # The last version is not the whole story: `a` has a default in between.
        ("BACKWARD", A, [NONE, WITH_DEFAULT], True),
        ("BACKWARD_TRANSITIVE", A, [NONE, WITH_DEFAULT], False),
        ("FORWARD", NONE, [A, WITH_DEFAULT], True),
        ("FORWARD_TRANSITIVE", NONE, [A, WITH_DEFAULT], False),
        ("FULL", A, [NONE, WITH_DEFAULT], True),
        ("FULL_TRANSITIVE", A, [NONE, WITH_DEFAULT], False),
        ("BACKWARD_TRANSITIVE", NONE, [A_B, A], True),
        ("FORWARD_TRANSITIVE", A_B, [NONE, A], True),
        ("FULL_TRANSITIVE", WITH_DEFAULT, [NONE, WITH_DEFAULT], True),
    ],
)
def test_levels_look_in_their_direction_and_as_far_back_as_they_say(
    level: Compatibility, new: Any, earlier: list[Any], compatible: bool
) -> None:
    assert (check_compatibility(new, earlier, level) == []) is compatible


def test_the_differences_are_those_of_the_latest_version_that_has_some() -> None:
    [difference] = check_compatibility(A_B, [avro("x"), A], "BACKWARD_TRANSITIVE")
    assert difference.path == "/fields/1"
    both = check_compatibility(A, [avro("b")], "FULL")
    assert [each.path for each in both] == ["/fields/0", "/fields/0"]


def test_a_level_that_is_not_known_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="compatibility level 'SOME' is not known; use one of NONE, BACKWARD"):
        check_compatibility(A, [], "SOME")  # type: ignore[arg-type]
    assert set(COMPATIBILITIES) == set(get_args(Compatibility))
    assert len(COMPATIBILITIES) == 7


def test_schemas_of_different_types_are_never_compatible() -> None:
    texts: dict[SchemaType, str] = {"AVRO": '"string"', "JSON": '{"type": "string"}', "PROTOBUF": "message M {}"}
    schemas = {type_: parse_schema(type_, text) for type_, text in texts.items()}
    for one in SCHEMA_TYPES:
        assert schemas[one].schema_type == one
        for other in SCHEMA_TYPES:
            kinds = [each.kind for each in reader_incompatibilities(schemas[one], schemas[other])]
            assert kinds == ([] if one == other else ["SCHEMA_TYPE_MISMATCH"])


def test_a_type_that_is_not_known_is_an_invalid_schema() -> None:
    with pytest.raises(InvalidSchema, match="Schema type XML is not known; use one of AVRO, JSON, PROTOBUF"):
        parse_schema("XML", "<a/>")  # type: ignore[arg-type]


def test_forms_are_those_of_the_type() -> None:
    reference = ReferencedSchema("r", '{"type": "enum", "name": "E", "symbols": ["A"]}')
    schema = parse_schema("AVRO", '{"type": "array", "items": "E"}', [reference])
    assert format_schema(schema, "") == '{"type":"array","items":"E"}'
    assert format_schema(schema, "resolved") == '{"type":"array","items":{"type":"enum","name":"E","symbols":["A"]}}'
    assert format_schema(schema, "serialized") == schema.canonical
    protobuf = parse_schema("PROTOBUF", 'syntax = "proto3"; message M {}')
    serialized = format_schema(protobuf, "serialized")
    assert parse_schema("PROTOBUF", serialized).canonical == protobuf.canonical


@pytest.mark.parametrize("schema_type", SCHEMA_TYPES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\x00",
        "{",
        "}",
        '"',
        "[[[[[[",
        "null",
        "1e400",
        "{}{}",
        "message",
        "AAAA",
        "\ud800",
        "[" * 500_000,
        '{"a":' * 150_000,
        "message A {" * 80_000,
        "/*" * 100_000,
        "(" * 300_000,
        "CgFB" * 100_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_junk_is_an_invalid_schema_or_a_schema_and_nothing_else(schema_type: SchemaType, text: str) -> None:
    problem = ""
    try:
        parse_schema(schema_type, text).check_unfinished()
    except InvalidSchema as error:
        problem = str(error)
    assert len(problem) < 1_000
