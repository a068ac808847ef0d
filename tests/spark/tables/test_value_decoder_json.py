"""JSON to columns: fast for many, and the same for each by itself."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.spark.tables.declaration import columns_text, from_mapping
from penstock.spark.tables.value_decoder import Decoded, JsonDecoder


def decoder(schema: str, **more: Any) -> JsonDecoder:
    return JsonDecoder(from_mapping({"name": "t", "topic": "t", "schema": schema, "evolution": "none", **more}))


def decoded(schema: str, *values: bytes, **more: Any) -> Decoded:
    return decoder(schema, **more).decode(pa.array(values, pa.binary()))


def test_every_type_is_read() -> None:
    schema = (
        "b boolean, i int, l long, d double, s string, x binary, day date, at timestamp, ms timestamp_ms, "
        "price decimal(6,2), tags array<string>, place struct<x:int>"
    )
    value = {
        "b": True, "i": 1, "l": 2**40, "d": 1, "s": "ü", "x": "bytes", "day": "2026-11-15",
        "at": "2026-11-15T10:00:00Z", "ms": 1_767_225_600_123, "price": "12.50", "tags": ["a", None], "place": {"x": 5},
    }  # fmt: skip
    found = decoded(schema, json.dumps(value).encode())
    assert found.failures == []
    assert found.rows.to_pylist() == [
        {
            "b": True, "i": 1, "l": 2**40, "d": 1.0, "s": "ü", "x": b"bytes", "day": date(2026, 11, 15),
            "at": datetime(2026, 11, 15, 10, tzinfo=UTC), "ms": datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC),
            "price": Decimal("12.50"), "tags": ["a", None], "place": {"x": 5},
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("a int", b"{bad", "is not valid JSON"),
        ("a int", b"", "is not valid JSON"),
        ("a int", b"[1]", "is not a JSON object"),
        ("a int", b"null", "is not a JSON object"),
        ("a int", b'{"a": 1} {"a": 2}', "is not valid JSON"),
        ("a int", b'{"a": "1"}', "a is '1', expected int"),
        ("a int", b'{"a": 1.5}', "expected int"),
        ("a int", b'{"a": 3000000000}', "too large for int"),
        ("a long", b'{"a": 99999999999999999999}', "too large for long"),
        ("a string", b'{"a": 1}', "expected string"),
        ("a string", b'{"a": "\xff\xfe"}', "is not valid JSON"),
        ("a boolean", b'{"a": 0}', "expected boolean"),
        ("a timestamp", b'{"a": 5}', "expected timestamp"),
        ("a timestamp", b'{"a": "soon"}', "expected timestamp"),
        ("a timestamp_ms", b'{"a": "5"}', "ms since 1970"),
        ("a timestamp_ms", b'{"a": 9223372036854775807}', "is not a valid timestamp"),
        ("a date", b'{"a": "2026-13-01"}', "expected date"),
        ("a decimal(4,2)", b'{"a": 123.45}', "too many digits"),
        ("a string not null", b'{"b": 1}', "a is null or missing"),
        ("a struct<x:int>", b'{"a": 5}', "expected struct"),
        ("a array<int>", b'{"a": [1, "2"]}', "a[] is '2'"),
        ("a int", b"[" * 5000, "is not valid JSON"),
    ],
)
def test_bad_record_is_separated_from_its_neighbours(schema: str, value: bytes, said: str) -> None:
    fits = b'{"a": null}' if "not null" not in schema else b'{"a": "x"}'
    found = decoded(schema, fits, value, fits)
    assert [row for row, _ in found.failures] == [1]
    assert said in found.failures[0][1]
    assert found.index.to_pylist() == [0, 2]
    assert found.rows.num_rows == 2


def test_a_record_that_is_cut_off_does_not_swallow_the_next() -> None:
    found = decoded("a int", b'{"a": 1', b'} {"a": 2}', b'{"a": 3}')
    assert found.rows.column("a").to_pylist() == [3]
    assert [row for row, _ in found.failures] == [0, 1]


def test_two_objects_in_one_record_and_none_in_the_next_do_not_count_as_two_records() -> None:
    found = decoded("a int", b'{"a": 1}\n{"a": 2}', b"{}x{}", b'{"a": 3}')
    assert found.rows.column("a").to_pylist() == [3]
    assert len(found.failures) == 2


def test_objects_over_several_lines_are_read() -> None:
    found = decoded("a int", b'{\n "a": 1\n}', b'  {"a": 2}  ')
    assert found.rows.column("a").to_pylist() == [1, 2]


def test_a_poisoned_record_among_many_costs_only_itself() -> None:
    values = [json.dumps({"a": number}).encode() for number in range(5000)]
    values[2500] = b"\x00\x01"
    found = decoded("a int", *values)
    assert [row for row, _ in found.failures] == [2500]
    assert found.rows.column("a").to_pylist() == [number for number in range(5000) if number != 2500]
    assert found.index.to_pylist() == [number for number in range(5000) if number != 2500]


def test_fields_of_structs_that_are_not_known_are_passed_over_in_a_crowd_and_alone() -> None:
    values = [b'{"g": {"x": 1, "z": []}}', b'{"l": [{"y": "a", "q": {}}]}']
    schema = "g struct<x:long>, l array<struct<y:string>>"
    for others in ([], [b"bad"]):
        found = decoded(schema, *values, *others)
        assert found.rows.to_pylist() == [{"g": {"x": 1}, "l": None}, {"g": None, "l": [{"y": "a"}]}]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5) | st.sampled_from(["2026-11-15", "2026-11-15T10:00:00Z"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
SCHEMA = (
    "a int, b long, c double, d string, e boolean, f array<long>, g struct<x:long,y:string>, h date, i timestamp_ms"
)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcdefghi"), JSON_VALUES, max_size=4), min_size=1, max_size=4))
def test_a_record_has_the_same_fate_in_a_crowd_as_by_itself(documents: list[dict[str, Any]]) -> None:
    values = [json.dumps(document).encode() for document in documents]
    crowd = decoded(SCHEMA, *values)
    alone = decoder(SCHEMA)._slow(pa.array(values, pa.binary()))
    assert crowd.index.to_pylist() == alone.index.to_pylist()
    assert crowd.rows.to_pylist() == alone.rows.to_pylist()


def test_a_decoder_that_may_grow_finds_all_that_is_new() -> None:
    growing = decoder("a int", evolution="add")
    growing.decode(pa.array([b'{"a": 1, "when": "2026-11-15T10:00:00Z"}', b'{"a": 2, "z": {"q": [1]}}'], pa.binary()))
    growing.decode(pa.array([b'{"a": 3000000000}', b"bad", b'{"z": {"r": 1.5}}'], pa.binary()))
    assert growing.grew
    assert columns_text(growing.columns) == "a long, when string, z struct<q:array<long>,r:double>"


def test_fields_that_are_always_null_or_empty_ask_for_nothing() -> None:
    growing = decoder("a int", evolution="add")
    found = growing.decode(pa.array([b'{"a": 1, "n": null, "e": [], "o": {}}'], pa.binary()))
    assert not growing.grew
    assert found.rows.to_pylist() == [{"a": 1}]


def test_a_field_that_cannot_become_a_column_makes_a_dead_letter_in_a_crowd_too() -> None:
    growing = decoder("a int", evolution="add")
    found = growing.decode(pa.array([b'{"a": 1}', b'{"a": 2, "_offset": 3}'], pa.binary()))
    assert not growing.grew
    assert [row for row, _ in found.failures] == [1]
    assert "_offset" in found.failures[0][1]


def test_a_field_that_contradicts_its_column_does_not_extend_the_schema() -> None:
    growing = decoder("a int, b long", evolution="add")
    found = growing.decode(pa.array([b'{"a": "text"}', b'{"b": 1.5}', b'{"b": 1}'], pa.binary()))
    assert not growing.grew
    assert [row for row, _ in found.failures] == [0, 1]
