"""Arrow columns to batches: every row is encoded like a single record, and inconsistent buffers are rejected."""

from __future__ import annotations

import array
import random
import struct
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.outcomes import outcome

from penstock.records import TooLarge, arrow, decode_batch, python_kernel
from penstock.records.arrow import partition_numbers, rows_of_arrow
from penstock.records.types import BytesSource, HeaderSource, NumberSource

pa = pytest.importorskip("pyarrow")

INT32_MAX = 2**31 - 1

cells = st.one_of(st.none(), st.binary(max_size=12), st.integers(60, 3000).map(bytes))
pairs = st.lists(st.tuples(st.text(max_size=4), st.one_of(st.none(), st.binary(max_size=4))), max_size=3)
tables = st.lists(
    st.tuples(cells, cells, st.one_of(st.none(), st.integers(-(2**62), 2**62)), st.one_of(st.none(), pairs)),
    max_size=25,
)
binaries = st.sampled_from([pa.binary(), pa.large_binary()])


@pytest.fixture(autouse=True)
def rows_of_this_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "loops" in request.fixturenames:
        monkeypatch.setattr(arrow, "ColumnRows", request.getfixturevalue("loops").ColumnRows)


def header_type(large: bool = False) -> Any:
    pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.large_list(pair) if large else pa.list_(pair)


def record_batch_of(table: list[Any], kinds: tuple[Any, Any], large_lists: bool = False) -> Any:
    columns = list(zip(*table, strict=True)) or [()] * 4
    headers = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in columns[3]]
    return pa.record_batch(
        {
            "value": pa.array(columns[0], kinds[0]),
            "key": pa.array(columns[1], kinds[1]),
            "timestamp": pa.array(columns[2], pa.int64()),
            "headers": pa.array(headers, header_type(large_lists)),
        }
    )


def records_in(builder: Any) -> list[Any]:
    if builder.count == 0:
        return []
    return [(r.value, r.key, r.timestamp, list(r.headers)) for r in decode_batch(builder.build())]


def all_records(loops: ModuleType, rows: Any, limit: int, selection: Any = None) -> list[Any]:
    """The rows, by as many batches as it takes."""
    found, at, most = [], 0, rows.rows if selection is None else len(selection)
    while at < most:
        builder, took = loops.encode_columns(rows, limit, at, None, selection)
        assert took == builder.count > 0
        assert builder.count == 1 or builder.size <= limit
        found += records_in(builder)
        at += took
    return found


def expected(table: list[Any], timestamp_ms: int = 77) -> list[Any]:
    return [(v, k, timestamp_ms if t is None else t, h or []) for v, k, t, h in table]


# --- what comes out --------------------------------------------------------------------------------------------


@given(
    table=tables,
    kinds=st.tuples(binaries, binaries),
    large_lists=st.booleans(),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 30)),
    limit=st.integers(61, 4000),
)
@settings(max_examples=100, deadline=None)
def test_rows_are_the_records_they_would_be_by_themselves(
    kernel: ModuleType,
    table: list[Any],
    kinds: tuple[Any, Any],
    large_lists: bool,
    cut: tuple[int, int],
    limit: int,
) -> None:
    batch = record_batch_of(table, kinds, large_lists).slice(*cut)
    wanted = expected(table[cut[0] : cut[0] + cut[1]])
    for loops in (kernel, python_kernel):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow, "ColumnRows", loops.ColumnRows)
            rows = rows_of_arrow(batch, timestamp_ms=77)
        assert rows.rows == len(wanted)
        assert all_records(loops, rows, limit) == wanted


def test_text_dictionaries_views_and_times_are_taken_as_they_are(loops: ModuleType) -> None:
    words = ["naïve", None, "", "plain"]
    as_bytes = [None if word is None else word.encode() for word in words]
    stamps = pa.array([1_500, None, 2_999, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
    for kind in (
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
    ):
        batch = pa.record_batch({"value": pa.array(words).cast(kind), "timestamp": stamps})
        found = all_records(loops, rows_of_arrow(batch, timestamp_ms=9), 1000)
        assert [record[0] for record in found] == as_bytes
        assert [record[2] for record in found] == [1, 9, 2, 0]
    fixed = pa.record_batch({"value": pa.array([b"ab", None], pa.binary(2)), "key": pa.nulls(2)})
    assert all_records(loops, rows_of_arrow(fixed, timestamp_ms=9), 100) == [(b"ab", None, 9, []), (None, None, 9, [])]


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        ({"value": pa.array([1])}, TypeError, "column value must be binary or string, not int64"),
        ({"key": pa.array([b"k"])}, ValueError, "no column value; the columns are key"),
        ({"value": pa.array([b"v"]), "key": pa.array([1.5])}, TypeError, "column key must be binary or string"),
        ({"value": pa.array([b"v"]), "timestamp": pa.array([1], pa.int32())}, TypeError, "column timestamp must be"),
        ({"value": pa.array([b"v"]), "headers": pa.array([["h"]])}, TypeError, "column headers must be list<struct"),
        (
            {"value": pa.array([b"v"]), "headers": pa.array([[None]], header_type())},
            ValueError,
            "a null header",
        ),
        (
            {"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b""}]], header_type())},
            ValueError,
            "header 0 has no key",
        ),
    ],
)
def test_columns_of_other_types_are_rejected_by_name(
    loops: ModuleType, columns: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        rows_of_arrow(pa.record_batch(columns), timestamp_ms=1)


def test_a_table_and_duplicate_column_names_are_rejected(loops: ModuleType) -> None:
    batch = pa.record_batch({"value": pa.array([b"v"])})
    with pytest.raises(TypeError, match=r"expected a pyarrow.RecordBatch, not Table"):
        rows_of_arrow(pa.Table.from_batches([batch]), timestamp_ms=1)
    twice = pa.RecordBatch.from_arrays([pa.array([b"v"])] * 2, names=["value", "value"])
    with pytest.raises(ValueError, match="2 columns are named value"):
        rows_of_arrow(twice, timestamp_ms=1)


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"penstock\[spark\]"):
        rows_of_arrow(None, timestamp_ms=1)


# --- selections and partitions ---------------------------------------------------------------------------------


def many_rows(loops: ModuleType, count: int = 300) -> tuple[Any, list[Any]]:
    chance = random.Random(5)
    table = [(b"v%d" % i, None if i % 9 == 0 else b"key%d" % chance.randrange(50), i, None) for i in range(count)]
    batch = record_batch_of(table, (pa.binary(), pa.large_binary()))
    return loops.ColumnRows(
        count,
        arrow.bytes_source(batch.column("value"), "value"),
        arrow.bytes_source(batch.column("key"), "key"),
        5,
        arrow.timestamp_source(batch.column("timestamp"), "timestamp"),
    ), expected(table)


@pytest.mark.parametrize("kind", ["i", "l", "q"])
def test_a_selection_takes_its_rows_in_its_order(loops: ModuleType, kind: str) -> None:
    rows, wanted = many_rows(loops)
    chosen = [5, 299, 5, 0, *range(100, 160)]
    found = all_records(loops, rows, 400, array.array(kind, chosen))
    assert found == [wanted[row] for row in chosen]


def test_rows_go_to_the_partitions_of_their_keys(loops: ModuleType) -> None:
    rows, wanted = many_rows(loops)
    parts, without_key = loops.partition_rows(rows, 6)
    assert sorted(row for part in [*parts, without_key] for row in part) == list(range(300))
    assert list(without_key) == list(range(0, 300, 9))
    for number, part in enumerate(parts):
        assert list(part) == sorted(part)
        assert {loops.murmur2(wanted[row][1]) % 6 for row in part} <= {number}
        assert all_records(loops, rows, 500, part) == [wanted[row] for row in part]


def test_a_column_of_partitions_comes_before_the_keys(loops: ModuleType) -> None:
    rows, wanted = many_rows(loops, 40)
    numbers = partition_numbers(pa.array([None, 2, 0, None] * 11, pa.int64()).slice(1, 40))
    parts, without_key = loops.partition_rows(rows, 3, numbers)
    for row in range(40):
        place = [2, 0, None, None][row % 4]
        if place is None and wanted[row][1] is None:
            assert row in list(without_key)
        else:
            assert row in list(parts[loops.murmur2(wanted[row][1]) % 3 if place is None else place])
    for bad in (3, -2):
        with pytest.raises(ValueError, match="row 7 has no partition of 0 to 2"):
            loops.partition_rows(rows, 3, array.array("i", [0] * 7 + [bad] + [0] * 32))
    with pytest.raises(ValueError, match="39 partitions for 40 rows"):
        loops.partition_rows(rows, 3, array.array("i", [0] * 39))
    with pytest.raises(TypeError, match="column partition must have an integer type, not string"):
        partition_numbers(pa.array(["0"]))
    with pytest.raises(ValueError, match="has an invalid partition"):
        partition_numbers(pa.array([2**40]))


@pytest.mark.parametrize("count", [0, -1, 10**6 + 1, 2**40])
def test_a_topic_has_a_sane_number_of_partitions(loops: ModuleType, count: int) -> None:
    with pytest.raises(ValueError, match="a topic has 1 to"):
        loops.partition_rows(many_rows(loops, 5)[0], count)


def test_wrong_selections_are_rejected_and_rows_before_a_wrong_one_are_kept(loops: ModuleType) -> None:
    rows, _ = many_rows(loops, 10)
    builder = loops.BatchBuilder(1000)
    for selection in (
        array.array("d", [0.0]),
        array.array("I", [0]),
        b"\0\0\0\0",
        memoryview(array.array("i", [1, 2, 3]))[::2],
    ):
        with pytest.raises(TypeError, match="must be contiguous int32 or int64"):
            builder.append_columns(rows, 0, None, selection)
    with pytest.raises(TypeError, match="the selected rows must be a buffer, not list"):
        builder.append_columns(rows, 0, None, [1])
    for start, stop in ((-1, None), (0, 11), (5, 4), (11, None)):
        with pytest.raises(ValueError, match="are outside of 10"):
            builder.append_columns(rows, start, stop)
    for bad in (10, -1, -(2**31)):
        wrong = array.array("i", [3, 4, bad, 5])
        before = builder.count
        assert builder.append_columns(rows, 0, None, wrong) == 2
        with pytest.raises(ValueError, match="is not one of 10"):
            builder.append_columns(rows, 2, None, wrong)
        assert builder.count == before + 2
    with pytest.raises(TypeError, match="ColumnRows are needed, not str"):
        builder.append_columns("rows")
    assert loops.encode_columns(rows, 500, 10)[1] == 0


# --- buffers that lie ------------------------------------------------------------------------------------------


def ends_of(*numbers: int, kind: str = "i") -> bytes:
    return struct.pack(f"={len(numbers)}{kind}", *numbers)


LIES = {
    "offsets too short": (3, BytesSource(None, ends_of(0, 1, 2), b"abc"), "offsets of the value column are 12 bytes"),
    "slice beyond the offsets": (2, BytesSource(None, ends_of(0, 1, 2), b"abc", 4, 1), "are 12 bytes; 16 are needed"),
    "offsets narrower than said": (2, BytesSource(None, ends_of(0, 1, 2), b"abc", 8), "are 12 bytes; 24 are needed"),
    "no such width": (2, BytesSource(None, ends_of(0, 1, 2), b"abc", 2), "has 4 or 8 bytes, not 2"),
    "validity too short": (9, BytesSource(b"\xff", ends_of(*range(10)), bytes(9)), "validity bits of the value column"),
    "data too short": (2, BytesSource(None, ends_of(0, 1, 4), b"abc"), "row 1 of the value column spans 1 to 4 of 3"),
    "no data": (1, BytesSource(None, ends_of(0, 1), None), "row 0 of the value column spans 0 to 1 of 0"),
    "backwards": (2, BytesSource(None, ends_of(0, 3, 1), b"abc"), "row 1 of the value column spans 3 to 1 of 3"),
    "negative": (1, BytesSource(None, ends_of(-1, 1), b"abc"), "row 0 of the value column spans -1 to 1 of 3"),
    "far out": (1, BytesSource(None, ends_of(0, 2**62, kind="q"), b"abc", 8), "spans 0 to 4611686018427387904 of 3"),
    "null rows too": (1, BytesSource(b"\0", ends_of(0, 9), b"abc"), "row 0 of the value column spans 0 to 9 of 3"),
    "negative start": (1, BytesSource(None, ends_of(0, 1), b"abc", 4, -1), "cannot begin at row -1"),
    "huge start": (1, BytesSource(None, ends_of(0, 1), b"abc", 4, 2**62), "cannot begin at row"),
    "negative rows": (-1, None, "there may be 0 to"),
    "too many rows": (2**31, None, "there may be 0 to"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_column_whose_buffers_lie_is_rejected_before_any_row_is_taken(loops: ModuleType, lie: str) -> None:
    rows, column, words = LIES[lie]
    with pytest.raises(ValueError, match=words):
        loops.ColumnRows(rows, column)


def test_lies_about_times_and_headers_are_rejected(loops: ModuleType) -> None:
    with pytest.raises(ValueError, match="the numbers of the timestamp column are 8 bytes; 16 are needed"):
        loops.ColumnRows(2, None, None, 0, NumberSource(None, bytes(8)))
    with pytest.raises(ValueError, match="the timestamp column cannot begin at row -1"):
        loops.ColumnRows(2, None, None, 0, NumberSource(None, bytes(80), -1))
    names = BytesSource(None, ends_of(0, 1, 2), b"\xc3a")
    for headers, words in [
        (HeaderSource(None, ends_of(0, 3), 4, 0, names, None, 2), "row 0 of the headers column spans 0 to 3 of 2"),
        (HeaderSource(None, ends_of(0, 1), 4, 0, names, None, 2), "the key of header 0 is not UTF-8"),
        (HeaderSource(None, ends_of(0, 1), 4, 0, names, None, 3), "offsets of the header key column are 12 bytes"),
        (HeaderSource(None, ends_of(0, 1), 4, 0, names, None, -1), "there may be 0 to"),
        (HeaderSource(None, ends_of(0), 4, 0, names, None, 2), "offsets of the headers column are 4 bytes; 8"),
    ]:
        with pytest.raises(ValueError, match=words):
            loops.ColumnRows(1, None, None, 0, None, headers)
    with pytest.raises(TypeError, match="the header key column must be there"):
        loops.ColumnRows(1, None, None, 0, None, HeaderSource(None, ends_of(0, 0), 4, 0, None, None, 0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the offsets of the value column must be a buffer, not list"):
        loops.ColumnRows(1, BytesSource(None, [0, 1], b"a"))  # type: ignore[arg-type]


def test_a_buffer_changed_after_it_was_checked_is_rejected_not_followed(loops: ModuleType) -> None:
    ends = bytearray(ends_of(0, 1, 2, 3))
    pair_ends = bytearray(ends_of(0, 1, 2, 3))
    names = BytesSource(None, ends, b"abc")
    rows = loops.ColumnRows(3, names, None, 0, None, HeaderSource(None, pair_ends, 4, 0, names, names, 3))
    with pytest.raises(BufferError):
        ends.clear()
    builder = loops.BatchBuilder(1000)
    for buffer, bad in ((ends, 2**30), (ends, -5), (pair_ends, 2**30), (pair_ends, -5)):
        saved = bytes(buffer)
        buffer[8:12] = ends_of(bad)
        before = builder.count
        assert builder.append_columns(rows) == 1
        with pytest.raises(ValueError, match="row 1 was changed after it was checked"):
            builder.append_columns(rows, 1)
        assert builder.count == before + 1
        buffer[:] = saved
    assert builder.append_columns(rows) == 3
    assert [record[3] for record in records_in(builder)][-1] == [("c", b"c")]


def test_a_row_above_two_gibibytes_is_rejected(loops: ModuleType) -> None:
    rows = loops.ColumnRows(2, BytesSource(None, ends_of(0, 1, 2**31 + 1, kind="q"), bytes(2**31 + 1), 8))
    builder = loops.BatchBuilder(1000)
    assert builder.append_columns(rows) == 1
    with pytest.raises(TooLarge, match="a record"):
        builder.append_columns(rows, 1)


hostile = st.binary(max_size=40)
small = st.integers(-2, 9)


@given(
    rows=st.integers(-1, 8),
    value=st.tuples(
        st.one_of(st.none(), hostile), hostile, st.one_of(st.none(), hostile), st.sampled_from([4, 8, 3]), small
    ),
    numbers=st.lists(small, max_size=9),
    stamps=st.one_of(st.none(), st.tuples(st.one_of(st.none(), hostile), hostile, small)),
    pair_numbers=st.lists(small, max_size=9),
    selection=st.one_of(st.none(), st.lists(small, max_size=6)),
    real=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_both_judge_any_buffers_alike(
    kernel: ModuleType, rows: int, value: Any, numbers: Any, stamps: Any, pair_numbers: Any, selection: Any, real: bool
) -> None:
    if real:  # mostly sound, so that what lies behind the first checks is reached
        value = (value[0], ends_of(*sorted(numbers)), value[2], 4, value[4])
    pair = BytesSource(None, ends_of(*range(6)), b"abcde")
    headers = HeaderSource(None, ends_of(*sorted(pair_numbers)), 4, 0, pair, None, 5) if pair_numbers else None
    sides = []
    for loops in (kernel, python_kernel):
        side: list[Any] = []
        try:
            made = loops.ColumnRows(rows, BytesSource(*value), BytesSource(*value), 3, stamps, headers)
        except (ValueError, TypeError) as error:
            sides.append([type(error), str(error)])
            continue
        builder = loops.BatchBuilder(150)
        chosen = None if selection is None else array.array("i", selection)
        side.append(outcome(builder.append_columns, made, 0, None, chosen))
        side.append((builder.count, builder.size, builder.max_timestamp, outcome(builder.build)))
        side.append(outcome(lambda loops=loops, made=made: [list(p) for p in loops.partition_rows(made, 3)[0]]))
        sides.append(side)
    assert sides[0] == sides[1]
