"""Parsing of Avro schemas, their texts, and their errors."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest
from tests.registry.formats.avro_pairs import PAIRS, decimal, enum, field, fixed, record

from penstock.registry.formats import InvalidSchema, ReferencedSchema, parse_schema
from penstock.registry.formats.avro import AvroSchema


def parsed(schema: Any, *references: ReferencedSchema) -> AvroSchema:
    return AvroSchema(json.dumps(schema), references)


@pytest.mark.parametrize(
    ("schema", "canonical"),
    [
        ({"type": "string"}, '"string"'),
        ({"type": {"type": "int"}, "logicalType": "date"}, '{"type":"int","logicalType":"date"}'),
        (
            {"name": "a.b.R", "fields": [{"type": "a.b.R", "name": "next"}], "type": "record", "x": 1},
            '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"next","type":"R"}],"x":1}',
        ),
        (
            record(field("i", record(name="I", namespace="q")), field("j", "q.I"), namespace="p"),
            '{"type":"record","name":"R","namespace":"p","fields":[{"name":"i","type":'
            '{"type":"record","name":"I","namespace":"q","fields":[]}},{"name":"j","type":"q.I"}]}',
        ),
        (
            enum("A", "B", default="A", aliases=["X"], doc="d", namespace="n"),
            '{"type":"enum","name":"E","namespace":"n","doc":"d","symbols":["A","B"],"default":"A","aliases":["X"]}',
        ),
        (fixed(4), '{"type":"fixed","name":"F","size":4}'),
        (
            record(field("a", "int", order="descending", default=1, doc="ü", aliases=["b"], pii=True)),
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int","doc":"ü","default":1,'
            '"order":"descending","aliases":["b"],"pii":true}]}',
        ),
        (["null", {"type": "array", "items": "int"}], '["null",{"type":"array","items":"int"}]'),
    ],
)
def test_the_canonical_text_has_short_names_and_attributes_in_a_fixed_order(schema: Any, canonical: str) -> None:
    assert parsed(schema).canonical == canonical


def test_the_normalized_text_is_equal_for_schemas_that_differ_in_spelling_only() -> None:
    one = parsed(record(field("a", {"type": "int", "z": 1, "b": {"y": 1, "x": 2}}), namespace="n", aliases=["Q", "P"]))
    other = parsed(
        record(
            field("a", {"b": {"x": 2, "y": 1}, "z": 1, "type": "int"}, order="ascending"),
            name="n.R",
            aliases=["P", "Q"],
        )
    )
    assert one.canonical != other.canonical
    assert one.normalized == other.normalized
    assert one.normalized == (
        '{"name":"n.R","type":"record","fields":[{"name":"a","type":{"type":"int","b":{"x":2,"y":1},"z":1},'
        '"order":"ascending"}],"aliases":["n.P","n.Q"]}'
    )


def test_decimals_are_normalized_with_their_precision_and_a_scale_unless_it_is_zero() -> None:
    assert parsed(decimal(4, 0)).normalized == '{"type":"bytes","logicalType":"decimal","precision":4}'
    assert parsed({**decimal(4, 2), "a": 1}).normalized.endswith('"decimal","precision":4,"scale":2,"a":1}')


def test_both_texts_mean_the_schema_they_come_from_and_others_can_read_them() -> None:
    for pair in PAIRS:
        schema = AvroSchema(pair.new)
        assert AvroSchema(schema.canonical).canonical == schema.canonical
        assert AvroSchema(schema.normalized).normalized == schema.normalized
        expected = fastavro.schema.to_parsing_canonical_form(json.loads(pair.new))
        for text in (schema.canonical, schema.normalized):
            assert fastavro.schema.to_parsing_canonical_form(json.loads(text)) == expected, pair.rule


def test_a_type_without_namespace_inside_one_with_a_namespace_stays_without() -> None:
    schema = parsed(record(field("a", record(name="I", namespace="")), namespace="n"))
    for text in (schema.canonical, schema.normalized):
        assert AvroSchema(text).root.fields[0].type.name == "I"


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("Unknown", "At the root: type 'Unknown' is not defined"),
        ({}, "a type has no 'type'"),
        (7, "At the root: 7 is not a type"),
        ({"type": "record"}, "a type record has no 'name'"),
        ({"type": "record", "name": "R"}, "record 'R' has no list 'fields'"),
        (record({"name": "a"}), "At /fields/0: field 'a' has no 'type'"),
        (record({"type": "int"}), "At /fields/0: a field's name is None"),
        (record(field("1a", "int")), "a field's name is 1a"),
        (record(field("a", "int"), field("a", "int")), "At /fields/1: field 'a' is there twice"),
        (record("a"), 'a field is "a", not an object'),
        (record(field("a", "int", order="up")), "the order of field 'a' is up"),
        (record(field("a", "int", doc=1)), "At /fields/0/doc: the doc is 1, not a string"),
        (record(field("a", "int", aliases="b")), 'aliases is "b", not a list of names'),
        (record(field("a", record())), "type 'R' is defined twice"),
        (record(name="a-b"), "'a-b' is not a name"),
        (record(name="a..b"), "'a..b' is not a name"),
        (record(name="int"), "'int' is a primitive type"),
        (record(namespace=1), "At /namespace: the namespace is 1, not a string"),
        (enum(), None),
        (enum("A", "A"), "At /symbols/1: symbol 'A' is there twice"),
        (enum("a-b"), 'At /symbols/0: "a-b" is not a name'),
        (enum("A", default="B"), "the default B of enum 'E' is not a symbol"),
        (enum("A", default=[]), "the default \\[\\] of enum 'E' is not a symbol"),
        ({"type": "enum", "name": "E"}, "enum 'E' has no list 'symbols'"),
        (fixed(-1), "the size of fixed 'F' is -1"),
        (fixed(2**31), "the size of fixed 'F' is 2147483648"),
        ({"type": "fixed", "name": "F", "size": True}, "the size of fixed 'F' is True"),
        ({"type": "array"}, "a type array has no 'items'"),
        ({"type": "map"}, "a type map has no 'values'"),
        ("array", "'array' is a kind of type"),
        (["int", "int"], "At /1: the union has 'int' twice"),
        (["int", ["string"]], "At /1: a union is directly inside a union"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "the union has 'array' twice"),
        (record(field("a", ["null", {"type": "map", "values": "X"}])), "At /fields/0/type/1/values: type 'X' is not"),
    ],
)
def test_errors_say_what_is_wrong_and_where(schema: Any, problem: str | None) -> None:
    if problem is None:
        parsed(schema)
        return
    with pytest.raises(InvalidSchema, match=problem):
        parsed(schema)


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("int", [0, -(2**31), 2**31 - 1], [2**31, 1.5, "1", True, None]),
        ("long", [2**63 - 1], [2**63, "x"]),
        ("double", [1, 1.5], ["1", False]),
        ("string", [""], [1, None]),
        ("bytes", ["\u00ff"], ["\u0100", 1]),
        ("boolean", [True], [0]),
        ("null", [None], [0, ""]),
        (fixed(2), ["ab"], ["a", "abc", "a\u0100"]),
        (enum("A"), ["A"], ["B", 1]),
        ({"type": "array", "items": "int"}, [[], [1]], [["a"], {}]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [{"a": "b"}, []]),
        (["null", "int"], [None, 1], ["a"]),
        (record(field("x", "int"), field("y", "int", default=1), name="I"), [{"x": 1}], [{}, {"x": "a"}, []]),
    ],
)
def test_defaults_are_checked_in_new_schemas_only(type_: Any, good: list[Any], bad: list[Any]) -> None:
    for default in good:
        parsed(record(field("a", type_, default=default))).check_unfinished()
    for default in bad:
        schema = parsed(record(field("a", type_, default=default)))
        with pytest.raises(InvalidSchema, match="The default at /fields/0/default does not fit its type"):
            schema.check_unfinished()


def test_a_default_that_many_unions_could_take_is_checked_in_a_bounded_time() -> None:
    names = [f"B{index}" for index in range(40)]
    types = [record(field("f", ["null", *names[:index]]), name=name) for index, name in enumerate(names)]
    value: dict[str, Any] = {}
    for _ in range(35):
        value = {"f": value}
    fields = [field(f"r{index}", type_) for index, type_ in enumerate(types)]
    schema = parsed(record(*fields, field("d", names, default=value)))
    with pytest.raises(InvalidSchema, match="fits no branch of the union"):
        schema.check_unfinished()


def test_a_default_that_is_nested_deep_does_not_end_the_stack() -> None:
    value: Any = None
    for _ in range(100):
        value = {"f": value}
    schema = parsed(record(field("f", ["null", "R"]), field("d", ["null", "R"], default=value)))
    with pytest.raises(InvalidSchema, match="nested too deep"):
        schema.check_unfinished()


def test_references_are_types_that_are_named_but_not_repeated() -> None:
    inner = ReferencedSchema("inner", json.dumps(record(field("x", "int"), name="I", namespace="n")))
    middle = ReferencedSchema("middle", json.dumps(record(field("i", "n.I"), name="M", namespace="n")))
    schema = parsed(record(field("m", "M"), field("i", "I"), namespace="n"), inner, middle, inner)
    assert schema.canonical == (
        '{"type":"record","name":"R","namespace":"n","fields":[{"name":"m","type":"M"},{"name":"i","type":"I"}]}'
    )
    assert '"type":"n.M"' in schema.normalized
    assert AvroSchema(schema.resolved).root.fields[0].type.fields[0].type.fields[0].name == "x"


def test_an_error_in_a_reference_names_it() -> None:
    with pytest.raises(InvalidSchema, match="Reference 'inner': At the root: a type record has no 'name'"):
        parsed("int", ReferencedSchema("inner", '{"type": "record"}'))
    with pytest.raises(InvalidSchema, match="type 'I' is defined twice"):
        parsed(record(name="I"), ReferencedSchema("inner", json.dumps(record(name="I"))))


def test_records_in_one_another_end_at_the_nesting_of_the_text_not_at_the_stack() -> None:
    schema: Any = "int"
    for index in range(40):
        schema = record(field("a", schema), name=f"R{index}")
    parsed(schema)
    with pytest.raises(InvalidSchema, match="nested more than"):
        parsed(record(field("a", schema), name="Outer"))


def test_a_bare_name_is_a_schema() -> None:
    assert parse_schema("AVRO", "string").canonical == '"string"'
    reference = ReferencedSchema("r", json.dumps(record(namespace="n")))
    assert parse_schema("AVRO", " n.R ", [reference]).canonical == '"n.R"'
