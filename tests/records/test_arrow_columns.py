"""Columns: Arrow shows the records, and the next fetch brings what one left out."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import BatchHeader, Codec, CorruptBatch, RecordTuple, TooLarge, UnsupportedCodec
from penstock.records.arrow import append_batches, to_arrow
from penstock.records.batch import LOG_APPEND_TIME, decode_batch, encode_batch, records_of

pyarrow = pytest.importorskip("pyarrow")

blobs = st.one_of(st.none(), st.binary(max_size=20), st.integers(100, 9000).map(bytes))
batches_of_records = st.lists(
    st.lists(
        st.tuples(
            st.integers(0, 2**44),
            blobs,
            blobs,
            st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3),
        ),
        min_size=1,
        max_size=8,
    ),
    max_size=4,
)


def some(count: int, first: int = 0) -> list[RecordTuple]:
    return [(1_000 + i, b"k%d" % i, b"value %d" % i, [("n", b"%d" % i)]) for i in range(first, first + count)]


def fetched(*counts: int, base: int = 0, **settings: Any) -> bytearray:
    """Batches of that many records each, their offsets following one another."""
    data = bytearray()
    for count in counts:
        data += encode_batch(some(count, base), base_offset=base, **settings)
        base += count
    return data


def break_record(batch: bytearray) -> bytearray:
    """Damage that only parsing the records finds."""
    batch[61] ^= 0x02
    batch[17:21] = struct.pack(">I", crc32c(batch[21:]))
    return batch


def rows_of(loops: ModuleType, data: Any, **options: Any) -> tuple[list[int], int]:
    """(offsets of the rows that came out, the next offset)."""
    builder = loops.ColumnBuilder()
    next_offset = append_batches(builder, data, **options)
    table = to_arrow(builder.finish())
    table.validate(full=True)
    return table.column("offset").to_pylist(), next_offset


# --- Arrow -----------------------------------------------------------------------------------------------------


@given(groups=batches_of_records, codec=st.sampled_from(Codec), with_headers=st.booleans(), micros=st.booleans())
@settings(max_examples=60, deadline=None)
def test_arrow_shows_what_the_records_are(
    loops: ModuleType, groups: list[list[RecordTuple]], codec: Codec, with_headers: bool, micros: bool
) -> None:
    data, base = bytearray(), 5
    for number, items in enumerate(groups):
        data += encode_batch(items, base_offset=base, codec=codec, timestamp_type=number & 1)
        base += len(items)
    expected = [record for header in loops.scan(data).headers for record in records_of(data, header)]

    builder = loops.ColumnBuilder(headers=with_headers, timestamp_scale=1000 if micros else 1)
    assert append_batches(builder, data, from_offset=5) == base
    table = to_arrow(builder.finish(), timestamp_type="us" if micros else "ms")
    table.validate(full=True)

    assert table.num_rows == len(expected)
    assert table.column("offset").to_pylist() == [record.offset for record in expected]
    stamps = table.column("timestamp").cast(pyarrow.int64()).to_pylist()
    assert stamps == [record.timestamp * (1000 if micros else 1) for record in expected]
    assert table.column("key").to_pylist() == [record.key for record in expected]
    assert table.column("value").to_pylist() == [record.value for record in expected]
    if with_headers:
        shown = [[(pair["key"], pair["value"]) for pair in row] for row in table.column("headers").to_pylist()]
        assert shown == [list(record.headers) for record in expected]


def test_the_schema_is_the_same_with_and_without_rows(loops: ModuleType) -> None:
    builder = loops.ColumnBuilder(headers=True)
    empty = to_arrow(builder.finish())
    append_batches(builder, fetched(3))
    full = to_arrow(builder.finish())
    for table in (empty, full):
        table.validate(full=True)
    assert empty.schema == full.schema
    assert (empty.num_rows, full.num_rows) == (0, 3)
    pair = pyarrow.struct([pyarrow.field("key", pyarrow.string(), nullable=False), ("value", pyarrow.binary())])
    assert full.schema == pyarrow.schema(
        [
            ("offset", pyarrow.int64()),
            ("timestamp", pyarrow.timestamp("ms", "UTC")),
            ("key", pyarrow.binary()),
            ("value", pyarrow.binary()),
            ("headers", pyarrow.list_(pair)),
        ]
    )


def test_nulls_are_counted_and_empty_values_are_not_null(loops: ModuleType) -> None:
    items: list[RecordTuple] = [(0, None if i % 3 else b"", b"" if i % 2 else None, []) for i in range(20)]
    builder = loops.ColumnBuilder()
    append_batches(builder, encode_batch(items))
    table = to_arrow(builder.finish())
    table.validate(full=True)
    assert table.column("key").null_count == 13
    assert table.column("value").null_count == 10
    assert table.column("key").to_pylist()[:3] == [b"", None, None]


def test_a_record_batch_outlives_its_builder_and_the_fetched_bytes(loops: ModuleType) -> None:
    builder = loops.ColumnBuilder()
    data = fetched(50)
    append_batches(builder, data)
    table = to_arrow(builder.finish())
    data[:] = bytes(len(data))
    append_batches(builder, fetched(90, base=500))
    builder.finish()
    del builder
    assert table.column("value").to_pylist() == [b"value %d" % i for i in range(50)]


def test_many_small_fetches_make_one_record_batch(loops: ModuleType) -> None:
    builder, next_offset = loops.ColumnBuilder(headers=True), 0
    for start in range(0, 3000, 30):
        next_offset = append_batches(builder, fetched(13, 17, base=start), from_offset=next_offset)
    assert (next_offset, builder.rows) == (3000, 3000)
    assert builder.data_size == sum(len(b"k%d" % i) + len(b"value %d" % i) for i in range(3000))
    table = to_arrow(builder.finish())
    table.validate(full=True)
    assert table.column("offset").to_pylist() == list(range(3000))
    assert table.column("headers").to_pylist()[-1] == [{"key": "n", "value": b"2999"}]


def test_append_time_and_finer_units_reach_the_timestamp_column(loops: ModuleType) -> None:
    stamped = encode_batch(some(2), timestamp_type=LOG_APPEND_TIME)
    builder = loops.ColumnBuilder(timestamp_scale=1000)
    append_batches(builder, stamped)
    table = to_arrow(builder.finish(), timestamp_type="us")
    assert table.column("timestamp").cast(pyarrow.int64()).to_pylist() == [1_001_000, 1_001_000]


# --- which rows, and where to continue ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_fetch_that_starts_inside_a_batch_gives_the_rest_of_it(loops: ModuleType, codec: Codec) -> None:
    data = fetched(10, 10, codec=codec)
    assert rows_of(loops, data, from_offset=5) == (list(range(5, 20)), 20)
    assert rows_of(loops, data, from_offset=12) == (list(range(12, 20)), 20)
    assert rows_of(loops, data, from_offset=5, until_offset=14) == (list(range(5, 14)), 14)
    assert rows_of(loops, data, from_offset=3, until_offset=10) == (list(range(3, 10)), 10)
    assert rows_of(loops, data, until_offset=1) == ([0], 1)


def test_a_range_that_the_fetch_does_not_touch_gives_nothing(loops: ModuleType) -> None:
    data = fetched(10)
    assert rows_of(loops, data, from_offset=10) == ([], 10)
    assert rows_of(loops, data, from_offset=25) == ([], 25)
    assert rows_of(loops, data, until_offset=0) == ([], 0)
    assert rows_of(loops, b"", from_offset=7) == ([], 7)


def test_offsets_with_gaps_are_skipped(loops: ModuleType) -> None:
    data = encode_batch(some(3), offsets=[10, 15, 16]) + encode_batch(some(2), offsets=[40, 41])
    assert rows_of(loops, data, from_offset=11) == ([15, 16, 40, 41], 42)
    assert rows_of(loops, data, from_offset=11, until_offset=30) == ([15, 16], 17)
    assert rows_of(loops, data, from_offset=17) == ([40, 41], 42)


def test_control_batches_are_skipped_and_counted(loops: ModuleType) -> None:
    marker = encode_batch([(5, bytes(4), bytes(6), [])], base_offset=10, control=True, transactional=True)
    data = fetched(10, transactional=True) + marker
    assert rows_of(loops, data) == (list(range(10)), 11)
    assert rows_of(loops, marker, from_offset=10) == ([], 11)


def test_batches_that_are_not_visible_are_skipped_and_counted(loops: ModuleType) -> None:
    asked: list[int] = []

    def visible(header: BatchHeader) -> bool:
        asked.append(header.base_offset)
        return header.producer_id != 7

    data = fetched(2, producer_id=6) + fetched(3, base=2, producer_id=7) + fetched(2, base=5, producer_id=6)
    assert rows_of(loops, data, visible=visible) == ([0, 1, 5, 6], 7)
    assert asked == [0, 2, 5]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_batch_cut_off_at_the_end_is_left_for_the_next_fetch(loops: ModuleType, codec: Codec) -> None:
    data = fetched(10, 10, codec=codec)
    whole = len(fetched(10, codec=codec))
    for end in range(whole, len(data)):
        assert rows_of(loops, data[:end]) == (list(range(10)), 10)
    assert rows_of(loops, data[: whole - 1]) == ([], 0)
    assert rows_of(loops, data, from_offset=10) == (list(range(10, 20)), 20)


# --- damage ----------------------------------------------------------------------------------------------------


def test_damage_at_the_start_is_raised(loops: ModuleType) -> None:
    damaged = fetched(10)
    damaged[-1] ^= 1
    builder = loops.ColumnBuilder()
    with pytest.raises(CorruptBatch, match="checksum does not match"):
        append_batches(builder, damaged)
    assert builder.rows == 0


def test_rows_before_the_damage_come_out_once_and_the_damage_is_raised_next(loops: ModuleType) -> None:
    for break_batch in (break_record, lambda batch: batch[:30] + b"\xff" + batch[31:]):
        data = fetched(10) + break_batch(fetched(10, base=10)) + fetched(10, base=20)
        assert rows_of(loops, data) == (list(range(10)), 10)
        with pytest.raises(CorruptBatch) as raised:
            rows_of(loops, data, from_offset=10)
        assert raised.value.position == len(fetched(10))


def test_damage_beyond_the_wanted_offsets_does_not_matter(loops: ModuleType) -> None:
    data = fetched(10) + break_record(fetched(10, base=10))
    assert rows_of(loops, data, until_offset=10) == (list(range(10)), 10)


def test_without_verification_the_checksum_does_not_matter_but_the_records_do(loops: ModuleType) -> None:
    data = fetched(10)
    data[17:21] = bytes(4)
    assert rows_of(loops, data, verify=False) == (list(range(10)), 10)
    with pytest.raises(CorruptBatch):
        rows_of(loops, break_record(fetched(10)), verify=False)


def test_a_bomb_is_rejected_when_it_comes_first(loops: ModuleType) -> None:
    bomb = encode_batch([(0, None, bytes(1 << 20), [])], base_offset=10, codec=Codec.GZIP)
    with pytest.raises(TooLarge):
        rows_of(loops, bomb, limit=1 << 16)
    assert rows_of(loops, fetched(10) + bomb, limit=1 << 16) == (list(range(10)), 10)


def test_a_codec_that_does_not_exist_is_damage(loops: ModuleType) -> None:
    data = fetched(3)
    struct.pack_into(">h", data, 21, 6)
    data[17:21] = struct.pack(">I", crc32c(data[21:]))
    with pytest.raises((CorruptBatch, UnsupportedCodec), match="unknown compression codec 6"):
        rows_of(loops, data)


def test_objects_and_columns_agree_on_the_same_batch(loops: ModuleType) -> None:
    data = fetched(100, codec=Codec.SNAPPY)
    builder = loops.ColumnBuilder()
    append_batches(builder, data)
    values = to_arrow(builder.finish()).column("value").to_pylist()
    assert values == [record.value for record in decode_batch(data)]
