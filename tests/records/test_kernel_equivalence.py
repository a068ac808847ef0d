"""The compiled and the Python kernel: the same bytes, records, columns and errors for any input."""

from __future__ import annotations

import random
import struct
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.outcomes import outcome, plain
from tests.records.record_bytes import batch_of, payload_of, record_of, varint
from tests.records.strategies import edits, int64s, mutate, records, some_records

from penstock.records import RecordTuple, python_kernel

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
HEADER_SIZE = 61

modest = settings(max_examples=120, deadline=None)


# --- how two answers are held against each other ---------------------------------------------------------------


def parse_all(loops: ModuleType, payload: bytes, count: int, base_offset: int, base_timestamp: int) -> list[Any]:
    """Everything that reads records, on the same bytes."""
    span = (payload, 0, len(payload), count)
    newest: dict[bytes, int] = {}
    results = [
        outcome(loops.decode_records, *span, base_offset, base_timestamp),
        outcome(loops.decode_records, *span, base_offset, base_timestamp, 77),
        outcome(loops.count_null_keys, *span),
        outcome(loops.index_keys, *span, base_offset, newest),
        newest,
        outcome(loops.filter_records, *span, base_offset, base_timestamp, newest, True, base_timestamp + 5),
        outcome(loops.filter_records, *span, base_offset, base_timestamp, {}, False, 0),
    ]
    for needs_keys, earliest, latest, most in (
        (False, INT64_MIN, INT64_MAX, 100),
        (True, base_timestamp, min(base_timestamp + 100, INT64_MAX), 100),
        (True, INT64_MIN, -2, 1),
    ):
        results.append(outcome(loops.validate_records, *span, base_timestamp, earliest, latest, needs_keys, most))
    for with_headers in (False, True):
        builder = loops.ColumnBuilder(headers=with_headers, timestamp_scale=1000)
        results.append(outcome(builder.append, *span, base_offset, base_timestamp))
        results.append(outcome(builder.append, *span, base_offset, base_timestamp, 5, base_offset + 1, base_offset + 3))
        results.append((builder.rows, builder.data_size, outcome(builder.finish), builder.rows))
    return results


def assert_same_parse(kernel: ModuleType, payload: bytes, count: int, base: int = 3, timestamp: int = 9) -> None:
    assert parse_all(kernel, payload, count, base, timestamp) == parse_all(
        python_kernel, payload, count, base, timestamp
    )


def fix_checksum(batch: bytearray) -> None:
    batch[17:21] = struct.pack(">I", crc32c(batch[21:]))


numbers = st.one_of(
    st.integers(-3, 9),
    st.sampled_from([INT32_MAX, INT32_MAX + 1, 2**62, INT64_MAX, INT64_MIN, 2**61, -(2**62)]),
)
fragments = st.one_of(
    numbers.map(varint),
    st.binary(max_size=4),
    st.just(b"\x80\x00"),  # zero, written in two bytes
    st.just(b"\xff" * 9 + b"\x01"),
    st.just(b"\xff" * 9 + b"\x02"),  # one bit too many
    st.just(b"\xff" * 12),
)
hostile_bodies = st.lists(fragments, max_size=9).map(b"".join)


# --- encode ----------------------------------------------------------------------------------------------------


@modest
@given(items=records)
def test_both_encode_the_same_bytes(kernel: ModuleType, items: list[RecordTuple]) -> None:
    assert outcome(kernel.encode_records, items) == outcome(python_kernel.encode_records, items)


@modest
@given(items=records, deltas=st.lists(st.one_of(st.integers(0, 40), numbers), max_size=9))
def test_both_take_or_reject_the_same_offset_deltas(
    kernel: ModuleType, items: list[RecordTuple], deltas: list[int]
) -> None:
    assert outcome(kernel.encode_records, items, deltas) == outcome(python_kernel.encode_records, items, deltas)


fields = st.one_of(numbers, st.integers(-(2**15), 2**15), st.integers(-(2**70), 2**70))


@modest
@given(values=st.lists(fields, min_size=10, max_size=10), size=st.sampled_from([0, 60, 61, 62, 90, 2069, 2070, 9000]))
def test_both_write_the_same_header(kernel: ModuleType, values: list[int], size: int) -> None:
    ours, theirs = bytearray(size), bytearray(size)
    assert outcome(kernel.write_header, ours, *values) == outcome(python_kernel.write_header, theirs, *values)
    assert ours == theirs


@pytest.mark.parametrize(
    "record",
    [
        (0, "text", None, ()),
        (0, None, 5, ()),
        (0, None, None, [("name", "text")]),
        (0, None, None, [(b"name", b"")]),
        (0, None, None, [("\ud800", b"")]),
        (0, None, None, [("name",)]),
        (0, None, None),
        (),
        (2**63, None, None, ()),
        (INT64_MIN - 1, None, None, ()),
    ],
)
def test_both_reject_the_same_objects(kernel: ModuleType, record: Any) -> None:
    ours, theirs = outcome(kernel.encode_records, [record]), outcome(python_kernel.encode_records, [record])
    assert ours[:2] == theirs[:2]
    assert ours[0] == "raised"
    assert ours[2:] == theirs[2:] or "unpack" in theirs[2]  # Cython has its own words for that


# --- scan and patch --------------------------------------------------------------------------------------------


def scan_all(loops: ModuleType, data: bytes | bytearray, start: int, end: int, most: int) -> list[Any]:
    return [
        outcome(loops.scan, data),
        outcome(loops.scan, data, start, end, True, True, most),
        outcome(loops.scan, data, start, verify=False),
        outcome(loops.scan, memoryview(data), start, end, verify=False, whole=False, most=most),
        outcome(loops.scan, data, whole=False),
    ]


@modest
@given(
    batches=st.lists(some_records, max_size=3),
    changes=st.one_of(st.just([]), edits),
    start=st.integers(-1, 300),
    end=st.integers(-2, 700),
    most=st.integers(-1, 3),
)
def test_both_find_the_same_batches_and_the_same_damage(
    kernel: ModuleType,
    batches: list[list[RecordTuple]],
    changes: list[tuple[str, int, int]],
    start: int,
    end: int,
    most: int,
) -> None:
    data = mutate(b"".join(batch_of(items, base_offset=7) for items in batches), changes)
    assert scan_all(kernel, data, start, end, most) == scan_all(python_kernel, data, start, end, most)


@modest
@given(data=st.binary(max_size=200))
def test_both_see_the_same_in_random_bytes(kernel: ModuleType, data: bytes) -> None:
    assert scan_all(kernel, data, 3, -1, 5) == scan_all(python_kernel, data, 3, -1, 5)


header_values = st.tuples(
    int64s,
    st.sampled_from([2, 2, 2, 1, 0, 3, -1, -128]),
    st.one_of(st.integers(-(2**15), 2**15 - 1), st.integers(0, 7)),
    st.one_of(st.integers(-2, 30), st.sampled_from([INT32_MAX, INT32_MAX - 1, -(2**31)])),
    st.one_of(st.integers(-2, 30), st.sampled_from([INT32_MAX, -(2**31)])),
)


@modest
@given(values=header_values, size=st.integers(0, 80), extra=st.integers(-80, 20))
def test_both_judge_headers_of_any_content_alike(
    kernel: ModuleType, values: tuple[int, int, int, int, int], size: int, extra: int
) -> None:
    base_offset, magic, attributes, last_delta, count = values
    batch = bytearray(HEADER_SIZE + size)
    struct.pack_into(
        ">qiibIhiqqqhii", batch, 0, base_offset, len(batch) - 12 + extra, 1, magic, 0, attributes, last_delta,
        -5, 6, 7, 8, INT32_MAX - 2, count,
    )  # fmt: skip
    fix_checksum(batch)
    assert scan_all(kernel, batch, 0, -1, 5) == scan_all(python_kernel, batch, 0, -1, 5)


@modest
@given(
    batches=st.lists(some_records, max_size=3),
    offset=st.one_of(st.integers(0, 100), int64s),
    epoch=st.integers(-(2**31), INT32_MAX),
    now_ms=int64s,
)
def test_both_patch_the_same_bytes(
    kernel: ModuleType, batches: list[list[RecordTuple]], offset: int, epoch: int, now_ms: int
) -> None:
    data = b"".join(batch_of(items) for items in batches)
    sides = []
    for loops in (kernel, python_kernel):
        buffer = bytearray(data)
        found = loops.scan(buffer).headers
        assigned = outcome(loops.assign_offsets, buffer, found, offset, epoch)
        for header in found:
            loops.stamp_append_time(buffer, header, now_ms)
        rescanned = outcome(loops.scan, buffer)
        by_broker = bytes(buffer)
        for header in found:
            loops.stamp_create_time(buffer, header, now_ms // 2)
        sides.append((buffer, plain(found), assigned, rescanned, by_broker, outcome(loops.scan, buffer)))
    assert sides[0] == sides[1]


# --- decode ----------------------------------------------------------------------------------------------------


@modest
@given(items=records, base=st.one_of(st.integers(0, 50), int64s), timestamp=int64s)
def test_both_read_the_same_records(kernel: ModuleType, items: list[RecordTuple], base: int, timestamp: int) -> None:
    base, timestamp = min(base, INT64_MAX - 50), min(timestamp, INT64_MAX - 50)
    assert_same_parse(kernel, payload_of(items), len(items), base, timestamp)


@modest
@given(items=some_records, changes=edits, off_by=st.sampled_from([0, 0, 0, 1, -1, INT32_MAX]))
def test_both_find_the_same_fault_in_mutated_records(
    kernel: ModuleType, items: list[RecordTuple], changes: list[tuple[str, int, int]], off_by: int
) -> None:
    assert_same_parse(kernel, bytes(mutate(payload_of(items), changes)), len(items) + off_by)


@settings(max_examples=250, deadline=None)
@given(bodies=st.lists(hostile_bodies, min_size=1, max_size=3), length=st.one_of(st.none(), numbers))
def test_both_read_hostile_records_alike(kernel: ModuleType, bodies: list[bytes], length: int | None) -> None:
    payload = b"".join(record_of(body) for body in bodies[:-1]) + record_of(bodies[-1], length)
    assert_same_parse(kernel, payload, len(bodies))


@modest
@given(data=st.binary(max_size=80), count=st.integers(-1, 12))
def test_both_read_random_bytes_alike(kernel: ModuleType, data: bytes, count: int) -> None:
    assert_same_parse(kernel, data, count)


@modest
@given(items=some_records, changes=edits)
def test_both_agree_on_mutated_batches_whose_checksum_is_right(
    kernel: ModuleType, items: list[RecordTuple], changes: list[tuple[str, int, int]]
) -> None:
    batch = batch_of(items, base_offset=12)
    data = batch[:21] + mutate(batch[21:], changes)
    data[8:12] = struct.pack(">i", len(data) - 12)
    fix_checksum(data)
    assert scan_all(kernel, data, 0, -1, 9) == scan_all(python_kernel, data, 0, -1, 9)
    for header in python_kernel.scan(data).headers:
        assert_same_parse(kernel, bytes(data[HEADER_SIZE:]), header.record_count, header.base_offset)


def test_the_compiled_record_is_read_in_place_and_not_written(kernel: ModuleType) -> None:
    record = kernel.Record(4, 5, b"k", None)
    for name in ("key", "value", "headers"):
        assert type(getattr(kernel.Record, name)).__name__ == "member_descriptor"
        with pytest.raises(AttributeError):
            setattr(record, name, b"other")


# --- columns ---------------------------------------------------------------------------------------------------


appends = st.lists(
    st.tuples(
        some_records,
        st.one_of(st.just([]), st.just([]), edits),
        st.integers(-3, 12),
        st.integers(-3, 14),
        st.one_of(st.none(), int64s),
    ),
    min_size=1,
    max_size=5,
)


@modest
@given(rounds=appends, with_headers=st.booleans(), scale=st.sampled_from([1, 1000, -1, 2**62]))
def test_both_build_the_same_columns_over_many_appends(
    kernel: ModuleType, rounds: list[Any], with_headers: bool, scale: int
) -> None:
    sides: list[list[Any]] = [[], []]
    for side, loops in zip(sides, (kernel, python_kernel), strict=True):
        builder = loops.ColumnBuilder(headers=with_headers, timestamp_scale=scale)
        for items, changes, low, high, stamp in rounds:
            payload = bytes(mutate(payload_of(items), changes))
            span = (payload, 0, len(payload), len(items))
            side.append(outcome(builder.append, *span, 2, items[0][0], stamp, low, high))
            side.append((builder.rows, builder.data_size))
        side.append(outcome(builder.finish))
        side.append(outcome(builder.finish))
    assert sides[0] == sides[1]


# --- compaction ------------------------------------------------------------------------------------------------


@modest
@given(
    items=some_records,
    newest=st.dictionaries(st.one_of(st.binary(max_size=2), st.sampled_from([b"a", b"b"])), st.integers(-1, 9)),
    keep=st.booleans(),
    base_timestamp=int64s,
    new_base=int64s,
)
def test_both_keep_the_same_records(
    kernel: ModuleType,
    items: list[RecordTuple],
    newest: dict[bytes, int],
    keep: bool,
    base_timestamp: int,
    new_base: int,
) -> None:
    items = [
        (stamp, b"ab"[i % 3 : i % 3 + 1] if i % 2 else key, value, pairs)
        for i, (stamp, key, value, pairs) in enumerate(items)
    ]
    payload = payload_of(items)
    args = (payload, 0, len(payload), len(items), 1, base_timestamp, newest, keep, new_base)
    ours, theirs = outcome(kernel.filter_records, *args), outcome(python_kernel.filter_records, *args)
    assert ours == theirs
    kept, count = ours[1][0], ours[1][1]
    assert_same_parse(kernel, bytes(kept[HEADER_SIZE:]), count)


# --- size and safety -------------------------------------------------------------------------------------------


def test_both_agree_on_twenty_thousand_records(kernel: ModuleType) -> None:
    items = [
        (
            1_000_000 + i * 3,
            b"key%d" % (i % 700) if i % 5 else None,
            b"v" * (i % 190),
            [("n", b"x")] if i % 11 == 0 else (),
        )
        for i in range(20_000)
    ]
    encoded = kernel.encode_records(items)
    assert encoded == python_kernel.encode_records(items)
    payload = bytes(encoded[0][HEADER_SIZE:])
    span = (payload, 0, len(payload), len(items))
    decoded = kernel.decode_records(*span, 50, 1_000_000)
    assert plain(decoded) == plain(python_kernel.decode_records(*span, 50, 1_000_000))
    assert [(r.timestamp, r.key, r.value) for r in decoded] == [(t, k, v) for t, k, v, _ in items]
    built = []
    for loops in (kernel, python_kernel):
        builder = loops.ColumnBuilder(headers=True)
        builder.append(*span, 50, 1_000_000)
        built.append(builder.finish())
    assert built[0] == built[1]


def test_thousands_of_mutated_batches_do_not_shake_the_kernel(kernel: ModuleType) -> None:
    chance = random.Random(20_240_607)
    items = [
        (100 + i, None if i == 2 else b"k" * (i * 21), b"v" * (i * 67), [("né" * i, b"x"), ("", None)][: i % 3])
        for i in range(6)
    ]
    sound = payload_of(items)
    kinds = ["set", "flip", "insert", "delete", "cut", "repeat"]
    raised = 0
    for _ in range(4000):
        changes = [
            (chance.choice(kinds), chance.randrange(10_000), chance.randrange(256)) for _ in range(chance.randint(1, 3))
        ]
        payload = bytes(mutate(sound, changes))
        ours = outcome(kernel.decode_records, payload, 0, len(payload), 6, 3, 9)
        raised += ours[0] == "raised"
        assert ours == outcome(python_kernel.decode_records, payload, 0, len(payload), 6, 3, 9)
        builder = kernel.ColumnBuilder(headers=True)
        assert outcome(builder.append, payload, 0, len(payload), 6, 3, 9)[0] == ours[0]
    assert 1000 < raised < 4000
