"""What new records ask of a table's columns, and what they get."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.spark.tables.declaration import Column, columns_text, parse_columns
from penstock.spark.tables.schema_evolution import decide, infer_columns, wider
from penstock.spark.tables.warehouse import only_adds

AB = pa.struct([("a", pa.int64()), ("b", pa.string())])
A = pa.struct([("a", pa.int64())])


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.int32(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.float64(), pa.int64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.string(), pa.int64(), None),
        (pa.int64(), pa.string(), None),
        (pa.bool_(), pa.int64(), None),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.null(), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(7, 3), pa.decimal128(7, 3)),
        (pa.decimal128(38, 0), pa.decimal128(38, 38), None),
        (A, AB, AB),
        (AB, A, AB),
        (A, pa.struct([("a", pa.string())]), None),
        (pa.list_(pa.field("element", pa.int32())), pa.list_(pa.int64()), pa.list_(pa.field("element", pa.int64()))),
    ],
)
def test_a_type_widens_only_to_one_that_holds_all_its_values(
    old: pa.DataType, new: pa.DataType, result: pa.DataType | None
) -> None:
    assert wider(old, new) == result


def test_new_fields_become_columns_and_narrow_ones_wider() -> None:
    columns = parse_columns("user string, n int")
    evolution = decide(columns, [pa.field("n", pa.int64()), pa.field("page", pa.string()), pa.field("x", pa.null())])
    assert columns_text(evolution.columns) == "user string, n long, page string"
    assert (evolution.added, evolution.widened, evolution.rejected) == (("page",), ("n",), ())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_offset", "is reserved"),
        ("Event_Day", "is reserved"),
        ("USER", "case-insensitive"),
        ("a b", "space"),
        ("", "empty"),
        ("x" * 300, "255"),
    ],
)
def test_a_field_that_cannot_be_a_column_is_rejected(name: str, said: str) -> None:
    evolution = decide(parse_columns("user string"), [pa.field(name, pa.string())])
    assert not evolution.changes
    assert said in evolution.rejected[0]


def test_a_table_does_not_grow_beyond_its_limit() -> None:
    fields = [pa.field(f"f{number}", pa.string()) for number in range(10)]
    evolution = decide(parse_columns("user string"), fields, max_columns=4)
    assert len(evolution.columns) == 4
    assert "max_columns" in evolution.rejected[0]


def test_columns_are_inferred_from_what_most_records_say_first() -> None:
    sample = [
        {"user": "a", "n": 1, "place": {"x": 1}},
        {"user": "b", "n": 2.5, "place": {"y": "z"}, "tags": ["a"], "nothing": None, "empty": []},
        {"user": 5, "_offset": 3},
        "no object",
    ]
    assert columns_text(infer_columns(sample)) == (
        "user string, n double, place struct<x:long,y:string>, tags array<string>"
    )


def test_only_structs_grow_without_their_files_being_written_again() -> None:
    assert only_adds(A, AB)
    assert not only_adds(pa.int32(), pa.int64())
    assert not only_adds(pa.list_(pa.int32()), pa.list_(pa.int64()))


def test_a_time_that_was_declared_as_a_number_stays_one() -> None:
    columns = (Column("at", pa.timestamp("us", "UTC"), epoch="ms"),)
    assert not decide(columns, [pa.field("at", pa.int64())]).changes
