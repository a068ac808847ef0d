"""What both kernels guarantee: invalid bytes are rejected, limits hold, and nothing is lost or leaked."""

from __future__ import annotations

import mmap
import pickle
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from tests.records.record_bytes import batch_of, payload_of, record_of, varint

from penstock.records import python_kernel
from penstock.records.errors import CorruptBatch, RecordError, TooLarge

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
HEADER_SIZE = 61


def body(timestamp: int = 0, offset: int = 0, tail: bytes = b"\x01\x01\x00") -> bytes:
    return b"\x00" + varint(timestamp) + varint(offset) + tail


def test_both_take_any_bytes_like_object(loops: ModuleType) -> None:
    class Bytes(bytes):
        pass

    expected = loops.encode_records([(1, b"k", b"value", [("h", b"x")])])
    for kind in (bytearray, memoryview, Bytes):
        assert loops.encode_records([(1, kind(b"k"), kind(b"value"), (("h", kind(b"x")),))]) == expected
    assert loops.encode_records(iter([[1, b"k", b"value", (pair for pair in [("h", b"x")])]])) == expected


def test_fewer_offsets_than_records_are_rejected(loops: ModuleType) -> None:
    with pytest.raises(ValueError, match="fewer offsets than records"):
        loops.encode_records([(0, None, None, ())] * 2, [0])


@pytest.mark.parametrize("delta", [-1, INT32_MAX + 1, 2**63])
def test_an_offset_delta_that_no_reader_would_take_is_rejected(loops: ModuleType, delta: int) -> None:
    with pytest.raises(ValueError, match="outside of 0 to"):
        loops.encode_records([(0, None, None, ())], [delta])


def test_assigned_offsets_follow_one_another_and_keep_the_checksum(loops: ModuleType) -> None:
    data = batch_of([(1, None, b"x", ())] * 3) + batch_of([(1, None, b"y", ())] * 2)
    found = loops.scan(data)
    assert loops.assign_offsets(data, found.headers, 10, 6) == 15
    again = loops.scan(data)
    assert [(header.base_offset, header.leader_epoch) for header in again.headers] == [(10, 6), (13, 6)]
    assert again.problem is None
    assert again.headers == found.headers


@pytest.mark.parametrize("offset", [-1, INT64_MIN, INT64_MAX, INT64_MAX - 2])
def test_offsets_that_do_not_exist_are_not_assigned(loops: ModuleType, offset: int) -> None:
    data = batch_of([(1, None, b"x", ())] * 3)
    before = bytes(data)
    with pytest.raises(ValueError, match="cannot be the base of 3 offsets"):
        loops.assign_offsets(data, loops.scan(data).headers, offset, 1)
    assert data == before


def test_a_read_only_buffer_is_not_patched(loops: ModuleType) -> None:
    data = bytes(batch_of([(1, None, b"x", ())]))
    found = loops.scan(data).headers
    calls: list[Callable[[], object]] = [
        lambda: loops.assign_offsets(data, found, 1, 1),
        lambda: loops.stamp_append_time(data, found[0], 1),
        lambda: loops.write_header(data, *range(10)),
    ]
    for call in calls:
        with pytest.raises(BufferError):
            call()


def test_a_header_of_another_buffer_is_rejected(loops: ModuleType) -> None:
    long, short = batch_of([(1, None, b"x" * 50, ())]), bytearray(80)
    header = loops.scan(batch_of([(1, None, b"x", ())]) + long).headers[1]
    with pytest.raises(ValueError, match="outside of a buffer of 80 bytes"):
        loops.assign_offsets(short, [header], 0, 0)
    with pytest.raises(ValueError, match="outside of a buffer of 80 bytes"):
        loops.stamp_append_time(short, loops.scan(long).headers[0], 0)
    assert short == bytes(80)


@pytest.mark.parametrize("impostor", [None, 5, "header", object()])
def test_what_is_not_a_header_is_rejected(loops: ModuleType, impostor: Any) -> None:
    data = batch_of([(1, None, b"x", ())])
    with pytest.raises(TypeError, match="a BatchHeader is needed"):
        loops.assign_offsets(data, [impostor], 0, 0)
    with pytest.raises(TypeError, match="a BatchHeader is needed"):
        loops.stamp_append_time(data, impostor, 0)


def test_a_header_that_was_never_read_is_rejected(loops: ModuleType) -> None:
    with pytest.raises((ValueError, AttributeError)):
        loops.stamp_append_time(bytearray(), loops.BatchHeader(), 0)
    with pytest.raises((ValueError, AttributeError)):
        loops.assign_offsets(bytearray(), [loops.BatchHeader()], 0, 0)


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        pytest.param(b"", 1, id="no bytes"),
        pytest.param(record_of(b"\x00\x00\x00\x01\x01"), 1, id="a length below the least"),
        pytest.param(record_of(body(), length=7), 1, id="a length beyond the end"),
        pytest.param(varint(-7) + body(), 1, id="a negative length"),
        pytest.param(varint(INT64_MAX) + body(), 1, id="a length of 64 bits"),
        pytest.param(b"\xff" * 40, 1, id="an endless varint"),
        pytest.param(record_of(body(offset=-1)), 1, id="an offset below zero"),
        pytest.param(record_of(body(offset=INT32_MAX + 1)), 1, id="an offset beyond 31 bits"),
        pytest.param(record_of(body(tail=b"\x03\x01\x00")), 1, id="a key of length -2"),
        pytest.param(record_of(body(tail=varint(9) + b"abc\x01\x00")), 1, id="a key longer than the record"),
        pytest.param(record_of(body(tail=b"\x01" + varint(INT32_MAX) + b"\x00")), 1, id="a value of 2 GiB"),
        pytest.param(record_of(body(tail=b"\x01\x01" + varint(-1))), 1, id="a negative header count"),
        pytest.param(record_of(body(tail=b"\x01\x01" + varint(2) + b"\x00\x00")), 1, id="more headers than bytes"),
        pytest.param(
            record_of(body(tail=b"\x01\x01" + varint(2**62) + b"\x00\x00")), 1, id="2**62 headers, twice which is 0"
        ),
        pytest.param(record_of(body(tail=b"\x01\x01" + varint(INT64_MAX) + b"\x00\x00")), 1, id="2**63 - 1 headers"),
        pytest.param(record_of(body(tail=b"\x01\x01" + varint(1) + b"\x01\x00")), 1, id="a header without key"),
        pytest.param(record_of(body(tail=b"\x01\x01" + varint(1) + b"\x00\x03")), 1, id="a header value of length -2"),
        pytest.param(record_of(body(tail=b"\x01\x01\x00\x00")), 1, id="bytes after the headers"),
        pytest.param(record_of(body()) + b"\x00", 1, id="bytes after the record"),
        pytest.param(record_of(body()) + record_of(body(offset=1)), 1, id="a record too few"),
        pytest.param(record_of(body()) + b"\x00" * 7, 3, id="a record too many"),
        pytest.param(record_of(body()), -1, id="a negative count"),
        pytest.param(record_of(body()), INT32_MAX, id="a count of 2**31 - 1"),
    ],
)
def test_records_that_lie_are_corrupt(loops: ModuleType, payload: bytes, count: int) -> None:
    span = (payload, 0, len(payload), count)
    builder = loops.ColumnBuilder(headers=True)
    calls: list[Callable[[], object]] = [
        lambda: loops.decode_records(*span, 0, 0),
        lambda: loops.count_null_keys(*span),
        lambda: loops.index_keys(*span, 0, {}),
        lambda: loops.filter_records(*span, 0, 0, {}, True, 0),
        lambda: builder.append(*span, 0, 0),
    ]
    for call in calls:
        with pytest.raises(CorruptBatch):
            call()
    assert builder.rows == 0


def test_a_header_key_that_is_not_text_is_corrupt(loops: ModuleType) -> None:
    payload = record_of(body(tail=b"\x01\x01" + varint(1) + varint(2) + b"\xc3\x28" + b"\x00"))
    with pytest.raises(CorruptBatch, match="not UTF-8"):
        loops.decode_records(payload, 0, len(payload), 1, 0, 0)
    with pytest.raises(CorruptBatch, match="not UTF-8"):
        loops.ColumnBuilder(headers=True).append(payload, 0, len(payload), 1, 0, 0)
    without = loops.ColumnBuilder()
    assert without.append(payload, 0, len(payload), 1, 0, 0) == 1


def test_nothing_and_null_are_not_the_same(loops: ModuleType) -> None:
    items = [(0, b"", None, ()), (0, None, b"", ()), (0, b"k", b"v", [("", b""), ("n", None)])]
    payload = payload_of(items)
    decoded = loops.decode_records(payload, 0, len(payload), 3, 0, 0)
    assert [(r.key, r.value, r.headers) for r in decoded] == [
        (b"", None, ()),
        (None, b"", ()),
        (b"k", b"v", (("", b""), ("n", None))),
    ]


def test_a_varint_may_be_longer_than_it_needs_to_be(loops: ModuleType) -> None:
    payload = record_of(b"\x00\x80\x80\x00\x82\x00\x81\x80\x00\x01\x80\x00")
    [record] = loops.decode_records(payload, 0, len(payload), 1, 100, 50)
    assert (record.offset, record.timestamp, record.key, record.value) == (101, 50, None, None)


def test_timestamps_at_the_limits_survive(loops: ModuleType) -> None:
    stamps = [INT64_MAX, INT64_MIN, 0, -1, INT64_MAX - 1]
    batch, base_timestamp, max_timestamp = loops.encode_records([(stamp, None, None, ()) for stamp in stamps])
    assert (base_timestamp, max_timestamp) == (INT64_MAX, INT64_MAX)
    decoded = loops.decode_records(batch, HEADER_SIZE, len(batch), len(stamps), 0, base_timestamp)
    assert [record.timestamp for record in decoded] == stamps


@pytest.mark.parametrize("span", [(-1, 5), (0, 11), (6, 5), (11, 11), (2**40, 2**41)])
def test_a_span_outside_of_the_buffer_is_rejected(loops: ModuleType, span: tuple[int, int]) -> None:
    calls: list[Callable[[], object]] = [
        lambda: loops.decode_records(bytes(10), *span, 0, 0, 0),
        lambda: loops.count_null_keys(bytes(10), *span, 0),
        lambda: loops.index_keys(bytes(10), *span, 0, 0, {}),
        lambda: loops.filter_records(bytes(10), *span, 0, 0, 0, {}, True, 0),
        lambda: loops.ColumnBuilder().append(bytes(10), *span, 0, 0, 0),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="outside of a buffer of 10 bytes"):
            call()


def test_records_compare_hash_and_travel_by_value(loops: ModuleType) -> None:
    record = loops.Record(4, 5, b"k", None, (("h", b"x"),))
    same = loops.Record(4, 5, b"k", None, (("h", b"x"),))
    assert record == same
    assert hash(record) == hash(same)
    assert record != loops.Record(4, 5, b"k", b"", (("h", b"x"),))
    assert record != (4, 5, b"k", None, (("h", b"x"),))
    assert pickle.loads(pickle.dumps(record)) == record
    assert repr(record) == "Record(offset=4, timestamp=5, key=b'k', value=None, headers=(('h', b'x'),))"
    assert loops.Record(4, 5, b"k", None).headers == ()


def test_headers_compare_hash_and_travel_by_value(loops: ModuleType) -> None:
    data = batch_of([(1, None, b"x", ())])
    [header], [same] = loops.scan(data).headers, loops.scan(data).headers
    assert header == same
    assert hash(header) == hash(same)
    assert pickle.loads(pickle.dumps(header)) == header
    loops.assign_offsets(data, [same], 1, 0)
    assert header != same
    assert header != 5


def test_damage_in_the_middle_leaves_the_rows_before_it_alone(loops: ModuleType) -> None:
    items = [(5, b"k%d" % i, None if i % 3 else b"v" * i, [("h", b"x" * i)]) for i in range(20)]
    sound = payload_of(items)
    damaged = bytearray(sound)
    damaged[-1] ^= 0x40
    clean, tried = loops.ColumnBuilder(headers=True), loops.ColumnBuilder(headers=True)
    for base in (0, 20, 40):
        clean.append(sound, 0, len(sound), 20, base, 5)
        tried.append(sound, 0, len(sound), 20, base, 5)
        with pytest.raises(CorruptBatch):
            tried.append(damaged[: len(sound) - 1], 0, len(sound) - 1, 20, base, 5)
        with pytest.raises(CorruptBatch):
            tried.append(sound, 0, len(sound), 19, base, 5)
    assert tried.rows == clean.rows == 60
    assert tried.finish() == clean.finish()


def test_a_finished_builder_starts_again_and_does_not_touch_what_it_gave(loops: ModuleType) -> None:
    payload = payload_of([(5, b"key", b"value", [("h", b"x")])] * 100)
    builder = loops.ColumnBuilder(headers=True)
    builder.append(payload, 0, len(payload), 100, 0, 5)
    first = builder.finish()
    kept = [memoryview(column) for column in (first[1], first[2], first[3][0], first[3][1])]
    copies = [bytes(view) for view in kept]
    assert (builder.rows, builder.data_size) == (0, 0)
    for _ in range(5):
        builder.append(payload, 0, len(payload), 100, 900, 700)
    second = builder.finish()
    assert (first[0], second[0]) == (100, 500)
    assert [bytes(view) for view in kept] == copies
    assert second[3][1] == b"key" * 500


def test_a_builder_that_was_given_nothing_gives_empty_columns(loops: ModuleType) -> None:
    empty = (bytearray(4), bytearray(), None)
    assert loops.ColumnBuilder().finish() == (0, bytearray(), bytearray(), empty, empty, None)
    assert loops.ColumnBuilder(headers=True).finish()[5] == (bytearray(4), empty, empty)


def test_a_column_of_more_than_two_gib_is_rejected_before_memory_is_taken(loops: ModuleType) -> None:
    builder = loops.ColumnBuilder(headers=True)
    with mmap.mmap(-1, INT32_MAX + 2) as huge:
        with pytest.raises(TooLarge):
            builder.append(huge, 0, INT32_MAX + 1, 0, 0, 0)
        with pytest.raises(TooLarge):
            builder.append(huge, 1, INT32_MAX + 2, 1, 0, 0)
    assert builder.rows == 0


def test_compaction_keeps_the_last_record_of_each_key(loops: ModuleType) -> None:
    items = [(10, b"a", b"1", ()), (11, None, b"2", ()), (12, b"b", None, ()), (13, b"a", b"3", [("h", b"x")])]
    payload = payload_of(items)
    newest: dict[bytes, int] = {}
    loops.index_keys(payload, 0, len(payload), 4, 100, newest)
    assert newest == {b"a": 103, b"b": 102}
    assert loops.count_null_keys(payload, 0, len(payload), 4) == 1
    kept, count, tombstones, newest_ms = loops.filter_records(payload, 0, len(payload), 4, 100, 10, newest, True, 5)
    assert (count, tombstones, newest_ms) == (2, 1, 13)
    assert [
        (record.offset, record.timestamp, record.key, record.value, record.headers)
        for record in loops.decode_records(kept, HEADER_SIZE, len(kept), 2, 100, 5)
    ] == [(102, 12, b"b", None, ()), (103, 13, b"a", b"3", (("h", b"x"),))]
    _, count, tombstones, _ = loops.filter_records(payload, 0, len(payload), 4, 100, 10, newest, False, 5)
    assert (count, tombstones) == (1, 0)


def test_nothing_kept_has_no_max_timestamp(loops: ModuleType) -> None:
    payload = payload_of([(10, None, b"1", ())])
    assert loops.filter_records(payload, 0, len(payload), 1, 0, 10, {}, True, 10) == (bytearray(61), 0, 0, -1)


def test_the_keys_need_a_dictionary(loops: ModuleType) -> None:
    payload = payload_of([(10, b"a", b"1", ())])
    with pytest.raises(TypeError if loops is not python_kernel else (TypeError, AttributeError)):
        loops.index_keys(payload, 0, len(payload), 1, 0, None)
    with pytest.raises(TypeError if loops is not python_kernel else (TypeError, AttributeError)):
        loops.filter_records(payload, 0, len(payload), 1, 0, 0, None, True, 0)


def test_neither_leaks_memory_on_sound_or_damaged_records(loops: ModuleType) -> None:
    sound = payload_of([(5, b"key", b"value" * 9, [("name", b"content")])] * 40)
    damaged = sound[:-9] + b"\xff" * 9
    batch = batch_of([(5, b"key", b"value" * 9, [("name", b"content")])] * 40)

    def work(times: int) -> None:
        builder = loops.ColumnBuilder(headers=True)
        for _ in range(times):
            loops.scan(batch)
            loops.encode_records([(5, b"key", b"value", [("name", b"content")])] * 3)
            for payload in (sound, damaged):
                span = (payload, 0, len(payload), 40)
                with suppress(RecordError):
                    loops.decode_records(*span, 0, 0)
                with suppress(RecordError):
                    builder.append(*span, 0, 0)
                with suppress(RecordError):
                    loops.filter_records(*span, 0, 0, {}, True, 0)
                with suppress(RecordError):
                    loops.index_keys(*span, 0, {})
            builder.finish()

    tracemalloc.start()
    try:
        work(10)
        before = tracemalloc.get_traced_memory()[0]
        work(60)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 10_000
