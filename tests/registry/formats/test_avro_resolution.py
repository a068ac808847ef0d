"""Schema resolution of Avro: the differences, and Avro's own reader as the judge of the verdicts."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_many
from tests.registry.formats.avro_pairs import PAIRS, array, decimal, enum, field, fixed, record

from penstock.registry.formats import InvalidSchema, comparison, parse_schema, reader_incompatibilities


def differences(reader: Any, writer: Any) -> list[tuple[str, str]]:
    schemas = [parse_schema("AVRO", json.dumps(each)) for each in (reader, writer)]
    return [(each.kind, each.path) for each in reader_incompatibilities(*schemas)]


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("int", "long", [("TYPE_MISMATCH", "")]),
        (record(field("a", "int")), record(), [("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/0")]),
        (record(), record(name="S"), [("NAME_MISMATCH", "/name")]),
        (enum("A"), enum("A", "B"), [("MISSING_ENUM_SYMBOLS", "/symbols")]),
        (fixed(2), fixed(3), [("FIXED_SIZE_MISMATCH", "/size")]),
        (["null", "int"], "string", [("MISSING_UNION_BRANCH", "")]),
        (decimal(4, 1), decimal(4, 2), [("DECIMAL_MISMATCH", "/scale")]),
        (decimal(3, 1), decimal(4, 1), [("DECIMAL_MISMATCH", "/precision")]),
        (
            record(field("a", array("int"))),
            record(field("a", array("string"))),
            [("TYPE_MISMATCH", "/fields/0/type/items")],
        ),
        (
            record(field("a", "int"), field("b", "int")),
            record(field("a", "string")),
            [("TYPE_MISMATCH", "/fields/0/type"), ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1")],
        ),
        (
            ["null", record(field("a", "int"))],
            ["null", record()],
            [("MISSING_UNION_BRANCH", ""), ("READER_FIELD_MISSING_DEFAULT_VALUE", "/1/fields/0")],
        ),
    ],
)
def test_differences_have_a_kind_and_a_pointer_into_the_reader(
    reader: Any, writer: Any, expected: list[tuple[str, str]]
) -> None:
    assert differences(reader, writer) == expected


def test_messages_name_both_sides() -> None:
    schemas = [parse_schema("AVRO", json.dumps(each)) for each in (enum("A", name="x.E"), enum("A", "B", "C"))]
    [difference] = reader_incompatibilities(*schemas)
    assert difference.message == (
        "The writer's enum has symbols that the reader's enum x.E neither has nor replaces: B, C."
    )


def test_what_is_judged_compatible_is_read_by_another_implementation() -> None:
    """Without the pairs that fastavro has no rule for: aliases of types, names without their namespaces, decimals."""
    read = 0
    for pair in PAIRS:
        for reader, writer, compatible in ((pair.new, pair.old, pair.backward), (pair.old, pair.new, pair.forward)):
            if not compatible or "alias" in pair.rule or "namespace" in pair.rule or "decimal" in pair.rule:
                continue
            schemas = [fastavro.parse_schema(json.loads(each)) for each in (writer, reader)]
            if schemas[0] == []:
                continue
            for value in _values(schemas[0], 3):
                data = io.BytesIO()
                fastavro.schemaless_writer(data, schemas[0], value)
                try:
                    fastavro.schemaless_reader(io.BytesIO(data.getvalue()), schemas[0], schemas[1])
                except UnicodeDecodeError:
                    continue  # bytes that are no text, which the specification promotes to strings nevertheless
                read += 1
    assert read > 400


def _values(schema: Any, count: int) -> list[Any]:
    try:
        return list(generate_many(schema, count))
    except RecursionError:
        return []  # of trees it makes endless ones


def test_circles_of_records_are_compared_to_their_end() -> None:
    def graph(last: str) -> list[Any]:
        """Each record refers to all before it; the first one has the difference."""
        names = [f"R{index}" for index in range(30)]
        return [
            record(field("x", last), *(field(f"f{other}", ["null", other]) for other in names[:index]), name=name)
            for index, name in enumerate(names)
        ]

    assert differences(graph("long"), graph("int")) == []
    assert differences(graph("int"), graph("long")) != []


def test_a_long_chain_of_records_is_compared_without_recursion() -> None:
    def chain(last: str) -> Any:
        records = [record(field("a", f"R{index - 1}" if index else last), name=f"R{index}") for index in range(1_500)]
        return record(field("all", array(records[:1])), *(field(f"f{i}", each) for i, each in enumerate(records[1:])))

    assert differences(chain("long"), chain("int")) == []
    assert ("TYPE_MISMATCH", "/fields/0/type/items/0/fields/0/type") in differences(chain("int"), chain("string"))


def test_schemas_that_would_take_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "STEPS_MAX", 5_000)
    union = [enum("A", name=f"E{index}") for index in range(200)]
    with pytest.raises(InvalidSchema, match=r"more than .* comparisons"):
        differences(union, [*union[1:], union[0]])
