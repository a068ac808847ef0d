"""A leader's validation of records: every consumer can read what passes."""

from __future__ import annotations

import warnings
from types import ModuleType

import aiokafka.record.default_records as aiokafka_records
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.records.record_bytes import payload_of, record_of, varint
from tests.records.strategies import edits, mutate, some_records

from penstock.records import HEADER_SIZE, CorruptBatch, RecordTuple, decode_batch, python_kernel

with warnings.catch_warnings():  # it reads its schemas by a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_python_records

ANY_TIME = -(2**63), 2**63 - 1
ALWAYS: RecordTuple = (1000, b"k", b"v", [("name", b"content"), ("naïve \U0001f600", None)])


def faults(
    loops: ModuleType, payload: bytes, count: int, *, needs_keys: bool = False, most: int = 100
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = loops.validate_records(
        payload, 0, len(payload), count, 1000, *ANY_TIME, needs_keys, most
    )[1]
    return found


def one(
    *,
    attributes: bytes = b"\x00",
    timestamp: bytes = varint(0),
    offset: bytes = varint(0),
    key: bytes = varint(-1),
    value: bytes = varint(-1),
    headers: bytes = varint(0),
) -> bytes:
    return record_of(attributes + timestamp + offset + key + value + headers)


def test_sound_records_pass_and_the_largest_timestamp_is_returned(loops: ModuleType) -> None:
    stamps = [1000, 5000, -1, 3000]
    payload = payload_of([(stamp, b"k", b"v", ALWAYS[3]) for stamp in stamps])
    assert loops.validate_records(payload, 0, len(payload), 4, 1000, *ANY_TIME, True) == (5000, [])
    assert loops.validate_records(b"--" + payload + b"-", 2, len(payload) + 2, 4, 1000, *ANY_TIME, True) == (5000, [])
    old = payload_of([(-500, None, None, ())])
    assert loops.validate_records(old, 0, len(old), 1, -500, *ANY_TIME, False) == (-1, [])


def test_each_record_is_judged_by_itself(loops: ModuleType) -> None:
    rows: list[RecordTuple] = [(1000, key, b"v", ()) for key in (b"a", None, b"b", None)]
    payload = payload_of(rows)
    assert faults(loops, payload, 4) == []
    assert faults(loops, payload, 4, needs_keys=True) == [(1, loops.RECORD_WITHOUT_KEY), (3, loops.RECORD_WITHOUT_KEY)]
    assert faults(loops, payload, 4, needs_keys=True, most=1) == [(1, loops.RECORD_WITHOUT_KEY)]
    payload = payload_of(rows, [0, 1, 1, 7])
    assert faults(loops, payload, 4) == [(2, loops.RECORD_OUT_OF_PLACE), (3, loops.RECORD_OUT_OF_PLACE)]


@pytest.mark.parametrize(
    ("stamp", "is_sound"), [(99, False), (100, True), (200, True), (201, False), (-1, True), (-2, False)]
)
def test_times_are_within_bounds_or_there_is_none(loops: ModuleType, stamp: int, is_sound: bool) -> None:
    payload = payload_of([(150, b"k", b"v", ()), (stamp, b"k", b"v", ())])
    _, found = loops.validate_records(payload, 0, len(payload), 2, 150, 100, 200, False)
    assert found == ([] if is_sound else [(1, loops.RECORD_OUT_OF_TIME)])


def header(name: bytes) -> bytes:
    return varint(1) + varint(len(name)) + name + varint(-1)


UNREADABLE = {
    "a length of six bytes": b"\x8c\x80\x80\x80\x80\x00" + one()[1:],
    "attributes with their top bit": one(attributes=b"\x80"),
    "an offset of six bytes": one(offset=b"\x80\x80\x80\x80\x80\x00"),
    "an offset beyond 32 bits": one(offset=varint(2**31)),
    "a key's length of six bytes": one(key=b"\x80\x80\x80\x80\x80\x00"),
    "a key's length below -1": one(key=varint(-2)),
    "a value beyond the record": one(value=varint(5) + b"v"),
    "a count of headers of six bytes": one(headers=b"\x80\x80\x80\x80\x80\x00"),
    "a negative count of headers": one(headers=varint(-1)),
    "a header's name that is null": one(headers=varint(1) + varint(-1) + varint(-1)),
    "a timestamp of eleven bytes": one(timestamp=b"\xff" * 10 + b"\x00"),
    "bytes after the headers": one(headers=varint(0) + b"\x00"),
    "a byte that is not UTF-8": one(headers=header(b"\xff")),
    "a continuation without a beginning": one(headers=header(b"\x80")),
    "a character cut off": one(headers=header("é".encode()[:1])),
    "a character in too many bytes": one(headers=header(b"\xc0\x80")),
    "three bytes for what takes two": one(headers=header(b"\xe0\x80\x80")),
    "four bytes for what takes three": one(headers=header(b"\xf0\x80\x80\x80")),
    "a surrogate": one(headers=header(b"\xed\xa0\x80")),
    "beyond Unicode": one(headers=header(b"\xf4\x90\x80\x80")),
    "five bytes": one(headers=header(b"\xf8\x88\x80\x80\x80")),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_records_that_consumers_cannot_read_are_unreadable(loops: ModuleType, what: str) -> None:
    assert faults(loops, one(), 1) == []
    assert faults(loops, one() + UNREADABLE[what], 2) == [(1, loops.UNREADABLE_RECORD)]


def test_nothing_is_judged_behind_what_cannot_be_read(loops: ModuleType) -> None:
    payload = one(offset=varint(9)) + UNREADABLE["a surrogate"] + one(offset=varint(2))
    assert faults(loops, payload, 3) == [(0, loops.RECORD_OUT_OF_PLACE), (1, loops.UNREADABLE_RECORD)]


@pytest.mark.parametrize(("count", "text"), [(2, "follow the last record"), (10**6, "do not fit"), (0, "follow")])
def test_more_or_fewer_records_than_the_header_says_are_a_fault_of_the_batch(
    loops: ModuleType, count: int, text: str
) -> None:
    payload = payload_of([ALWAYS] * 3)
    with pytest.raises(CorruptBatch, match=text):
        faults(loops, payload, count)
    assert faults(loops, payload_of([ALWAYS] * 3) + bytes(20), 4) == [(3, loops.UNREADABLE_RECORD)]


def test_large_batches_are_judged_like_small_ones(loops: ModuleType) -> None:
    """Above 64 KiB other threads run meanwhile."""
    rows: list[RecordTuple] = [(1000, b"k" if number != 700 else None, bytes(100), ()) for number in range(1000)]
    payload = payload_of(rows)
    assert len(payload) > 65536
    assert faults(loops, payload, 1000, needs_keys=True) == [(700, loops.RECORD_WITHOUT_KEY)]


def batch_with(payload: bytes, count: int) -> bytes:
    batch = bytearray(HEADER_SIZE) + payload
    python_kernel.write_header(batch, 0, -1, 0, count - 1, 1000, 1000, -1, -1, -1, count)
    return bytes(batch)


hostile = st.one_of(
    st.binary(max_size=6),
    st.integers(-(2**40), 2**40).map(varint),
    st.sampled_from([b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x80\x00", b"\xff" * 9 + b"\x01"]),
)


@settings(max_examples=400, deadline=None)
@given(items=some_records, changes=edits, tail=st.lists(hostile, max_size=4).map(b"".join))
@example(items=[(0, None, None, ())], changes=[("set", 0, 12)], tail=b"")
@example(items=[(0, None, None, [("", None)])], changes=[("insert", 1, 128), ("delete", 2, 0)], tail=b"")
def test_whatever_passes_can_be_read_by_every_consumer(
    items: list[RecordTuple], changes: list[tuple[str, int, int]], tail: bytes
) -> None:
    payload = bytes(mutate(payload_of(items), changes)) + tail
    for data, count in ((payload_of(items), len(items)), (payload, len(items)), (record_of(tail), 1)):
        try:
            found = faults(python_kernel, data, count)
        except CorruptBatch:
            continue
        if found:
            continue
        batch = batch_with(data, count)
        ours = [(record.offset, record.key, record.value) for record in decode_batch(batch)]
        assert [offset for offset, _, _ in ours] == list(range(count))
        for peer in (
            aiokafka_records.DefaultRecordBatch(batch),
            aiokafka_records._DefaultRecordBatchPy(batch),
            kafka_python_records.DefaultRecordBatch(batch),
        ):
            assert [(record.offset, record.key, record.value) for record in peer] == ours
