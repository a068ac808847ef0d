"""Rows into a table of keys, against a dictionary that does the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.activity.pipelines.engine.results import TimeSpan, last_of_each, plan_change, split_by_day

START = datetime(2026, 11, 15, tzinfo=UTC)
SCHEMA = pa.schema(
    [("time", pa.timestamp("us", "UTC")), ("who", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))]
)
Row = tuple[int, str, int | None, list[str] | None]

rows_of = st.lists(
    st.tuples(
        st.integers(0, 6), st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 2)),
        st.one_of(st.none(), st.lists(st.sampled_from("xy"), max_size=2)),
    ),
    max_size=12,
    unique_by=lambda row: row[:2],
)  # fmt: skip


def moment(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def table(rows: list[Row]) -> pa.Table:
    return pa.table([[moment(one[0]) for one in rows], *([one[at] for one in rows] for at in (1, 2, 3))], schema=SCHEMA)


def model(rows: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {(row["time"], row["who"]): (row["n"], row["tags"]) for row in rows.to_pylist()}


@settings(max_examples=150, deadline=None)
@given(
    before=st.lists(rows_of, max_size=3),
    rows=rows_of,
    replaced=st.one_of(st.none(), st.tuples(st.integers(0, 6), st.integers(0, 6))),
)
def test_a_change_does_what_a_dictionary_does(
    before: list[list[Row]], rows: list[Row], replaced: tuple[int, int] | None
) -> None:
    # One key is in one file only, as in a table.
    seen: set[tuple[int, str]] = set()
    files: dict[str, pa.Table] = {}
    for number, content in enumerate(before):
        mine = [row for row in content if row[:2] not in seen]
        seen |= {row[:2] for row in mine}
        files[f"f{number}"] = table(mine)
    span = None if replaced is None else TimeSpan(moment(replaced[0]), moment(replaced[1]))
    change = plan_change(table(rows), files, ("time", "who"), "time", span)

    old = {key: value for one in files.values() for key, value in model(one).items()}
    new = model(table(rows))
    gone = {
        key for key in old
        if span is not None and key not in new and moment(replaced[0]) <= key[0] < moment(replaced[1])  # type: ignore[index]
    }  # fmt: skip
    expected = {**{key: value for key, value in old.items() if key not in gone}, **new}

    assert model(change.changed) == {key: value for key, value in new.items() if old.get(key, "none") != value}
    assert set(model(change.deleted)) == gone
    untouched = [one for path, one in files.items() if path not in change.touched]
    parts = [*untouched, *change.kept, change.changed]
    assert sum(part.num_rows for part in parts) == len(expected)
    assert {key: value for part in parts for key, value in model(part).items()} == expected


def test_rows_given_again_as_they_are_change_nothing() -> None:
    rows = table([(0, "a", 1, ["x"]), (1, "b", None, None)])
    change = plan_change(rows, {"f": rows}, ("time", "who"), "time", TimeSpan())
    assert change.is_empty
    assert not change.touched


def test_lists_of_structs_are_compared_by_what_is_in_them() -> None:
    kind = pa.list_(pa.struct([("id", pa.int64()), ("text", pa.string())]))
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("who", pa.string()), ("entries", kind)])

    def rows(*entries: list[dict[str, Any]] | None) -> pa.Table:
        count = len(entries)
        return pa.table([[START] * count, [str(one) for one in range(count)], list(entries)], schema=schema)

    before = rows([{"id": 1, "text": "a"}], [{"id": 2, "text": None}], [], None, [{"id": 5, "text": "e"}])
    after = rows([{"id": 1, "text": "a"}], [{"id": 2, "text": "b"}], None, None, [{"id": 5, "text": "e"}] * 2)
    change = plan_change(after, {"f": before}, ("who",), "time")
    assert change.changed.column("who").to_pylist() == ["1", "2", "4"]


def test_files_are_of_one_day_and_no_larger_than_wanted() -> None:
    count = 3000
    times = [START - timedelta(minutes=700) + timedelta(minutes=number) for number in range(count)]
    rows = pa.table({"time": pa.array(times, pa.timestamp("us", "UTC")), "n": range(count)})
    parts = list(split_by_day(rows, "time", most=500))
    assert sum(part.num_rows for _, part in parts) == count
    for day, part in parts:
        assert {one.date().isoformat() for one in part.column("time").to_pylist()} == {day}
        assert part.num_rows <= 500


def test_of_rows_with_one_key_the_last_stays() -> None:
    rows = table([(0, "a", 1, None), (0, "b", 2, None)])
    twice = pa.concat_tables([rows, table([(0, "a", 9, None)])])
    assert model(last_of_each(twice, ("time", "who")))[moment(0), "a"] == (9, None)


@pytest.mark.parametrize(("low", "high", "meets"), [(0, 1, False), (0, 2, True), (3, 5, True), (4, 5, False)])
def test_a_span_meets_times_that_reach_into_it(low: int, high: int, meets: bool) -> None:
    assert TimeSpan(moment(2), moment(4)).meets(moment(low), moment(high)) is meets
