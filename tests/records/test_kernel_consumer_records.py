"""Consumer records: the same from both kernels, decoded or not, with exact decode errors."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import weakref
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.outcomes import CONSUMER_RECORD_FIELDS, outcome, plain
from tests.records.strategies import edits, mutate, some_records

from penstock.records import HEADER_SIZE, Codec, CorruptBatch, DecodeFailed, RecordTuple, payload_of, python_kernel
from penstock.records.batch import encode_batch


def decoded(loops: ModuleType, batch: Any, from_offset: int = 0, key: Any = None, value: Any = None) -> Any:
    [header] = loops.scan(batch).headers
    return loops.decode_consumer_records(batch, header, *payload_of(batch, header), "views", 3, from_offset, key, value)


def text(data: bytes) -> str:
    return data.decode()


def numbered(count: int, **settings: Any) -> bytearray:
    items: list[RecordTuple] = [(10 + i, b"k%d" % i, b"v%d" % i, [("h", b"%d" % i)]) for i in range(count)]
    return encode_batch(items, base_offset=100, leader_epoch=6, **settings)


@given(
    items=some_records,
    codec=st.sampled_from(Codec),
    stamped=st.booleans(),
    from_offset=st.integers(0, 20),
    decoders=st.tuples(*[st.sampled_from([None, bytes.hex, text, json.loads])] * 2),
)
@settings(max_examples=150, deadline=None)
def test_both_read_the_same_consumer_records(
    kernel: ModuleType, items: list[Any], codec: Codec, stamped: bool, from_offset: int, decoders: tuple[Any, Any]
) -> None:
    batch = encode_batch(items, codec=codec, base_offset=10, leader_epoch=4, timestamp_type=int(stamped))
    sides = []
    for loops in (kernel, python_kernel):
        try:
            sides.append(("read", plain(decoded(loops, batch, from_offset, *decoders))))
        except DecodeFailed as failed:
            cause = failed.__cause__
            before = plain(failed.records)
            sides.append(("failed", str(failed), failed.offset, failed.field, failed.data, before, type(cause)))  # type: ignore[arg-type]
    assert sides[0] == sides[1]


@given(items=some_records, changes=edits, from_offset=st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_both_find_the_same_fault_in_mutated_batches(
    kernel: ModuleType, items: list[Any], changes: list[Any], from_offset: int
) -> None:
    batch = encode_batch(items)
    payload = bytes(mutate(batch[HEADER_SIZE:], changes))
    sides = []
    for loops in (kernel, python_kernel):
        [header] = loops.scan(batch).headers
        args = (header, payload, 0, len(payload), "t", 0, from_offset, None, bytes.hex)
        sides.append(outcome(loops.decode_consumer_records, batch, *args))
    assert sides[0] == sides[1]


def test_a_record_knows_where_it_stands(loops: ModuleType) -> None:
    batch = numbered(2)
    record = decoded(loops, batch)[1]
    assert [getattr(record, name) for name in CONSUMER_RECORD_FIELDS] == [
        "views", 3, 101, 11, 0, b"k1", b"v1", (("h", b"1"),), 6,
    ]  # fmt: skip
    [header] = loops.scan(batch).headers
    in_place = loops.decode_consumer_records(batch, header, None, 61, len(batch), "views", 3, 0, None, None)
    assert in_place == decoded(loops, batch)


def test_a_fetch_from_the_middle_begins_there_and_decodes_nothing_before(loops: ModuleType) -> None:
    asked: list[bytes] = []

    def note(data: bytes) -> bytes:
        asked.append(data)
        return data

    assert [record.offset for record in decoded(loops, numbered(5), 103, None, note)] == [103, 104]
    assert asked == [b"v3", b"v4"]
    assert decoded(loops, numbered(5), 105) == []


def test_the_brokers_time_overrides_the_producers(loops: ModuleType) -> None:
    batch = numbered(3)
    [header] = loops.scan(batch).headers
    loops.stamp_append_time(batch, header, 999)
    assert {(record.timestamp, record.timestamp_type) for record in decoded(loops, batch)} == {(999, 1)}


def test_null_is_not_decoded(loops: ModuleType) -> None:
    batch = encode_batch([(1, None, b"1", ()), (2, b"2", None, ())])
    found = decoded(loops, batch, 0, int, int)
    assert [(record.key, record.value) for record in found] == [(None, 1), (2, None)]


def test_a_decode_error_carries_the_records_before_it(loops: ModuleType) -> None:
    items: list[RecordTuple] = [(i, b"%d" % i, b"{}" if i != 2 else b"{", ()) for i in range(4)]
    with pytest.raises(DecodeFailed, match="cannot decode the value of views-3 at offset 52") as raised:
        decoded(loops, encode_batch(items, base_offset=50), 0, int, json.loads)
    failed = raised.value
    assert isinstance(failed.__cause__, json.JSONDecodeError)
    assert (failed.offset, failed.field, failed.data) == (52, "value", b"{")
    assert (failed.record.key, failed.record.value, failed.record.timestamp) == (b"2", b"{", 2)
    assert [(record.key, record.value) for record in failed.records] == [(0, {}), (1, {})]


def test_an_interrupt_in_a_decoder_is_not_swallowed(loops: ModuleType) -> None:
    def interrupted(data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(loops, numbered(1), 0, None, interrupted)


def test_damage_and_wrong_arguments_are_rejected(loops: ModuleType) -> None:
    batch = numbered(3)
    [header] = loops.scan(batch).headers
    with pytest.raises(CorruptBatch):
        loops.decode_consumer_records(batch, header, None, 61, len(batch) - 1, "t", 0, 0, None, None)
    with pytest.raises(ValueError, match="outside of a buffer"):
        loops.decode_consumer_records(batch, header, None, 61, len(batch) + 1, "t", 0, 0, None, None)
    with pytest.raises(TypeError, match="a topic must be str, not bytes"):
        loops.decode_consumer_records(batch, header, None, 61, len(batch), b"t", 0, 0, None, None)
    with pytest.raises(TypeError, match="a BatchHeader is needed, not NoneType"):
        loops.decode_consumer_records(batch, None, None, 61, len(batch), "t", 0, 0, None, None)


def test_a_decoder_that_writes_into_the_buffer_does_no_harm(loops: ModuleType) -> None:
    batch = numbered(50)

    def scribble(data: bytes) -> bytes:
        batch[HEADER_SIZE:] = b"\xff" * (len(batch) - HEADER_SIZE)
        with pytest.raises(BufferError):
            batch.clear()
        return data

    with pytest.raises(CorruptBatch, match="record 1 of the batch does not parse"):
        decoded(loops, batch, 0, None, scribble)


def test_consumer_records_compare_hash_and_travel_by_value_and_do_not_change(loops: ModuleType) -> None:
    make = loops.ConsumerRecord
    record, same = (
        make("t", 0, 5, 6, 0, "k", b"v", (("h", b"x"),), 2),
        make("t", 0, 5, 6, 0, "k", b"v", (("h", b"x"),), 2),
    )
    assert record == same
    assert hash(record) == hash(same)
    assert record != make("t", 0, 6, 6, 0, "k", b"v")
    assert record != 5
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == copy.copy(record) == record
    assert repr(record) == (
        "ConsumerRecord(topic='t', partition=0, offset=5, timestamp=6, timestamp_type=0, key='k', value=b'v', "
        "headers=(('h', b'x'),), leader_epoch=2)"
    )
    assert (make("t", 0, 5, 6, 0, None, None).headers, make("t", 0, 5, 6, 0, None, None).leader_epoch) == ((), -1)
    for name in CONSUMER_RECORD_FIELDS:
        with pytest.raises(AttributeError):
            setattr(record, name, None)
    with pytest.raises(TypeError, match="unhashable"):
        hash(make("t", 0, 5, 6, 0, None, {}))
    assert not hasattr(record, "__dict__")


def test_the_fields_of_a_compiled_consumer_record_are_read_in_place(kernel: ModuleType) -> None:
    for name in CONSUMER_RECORD_FIELDS:
        assert type(getattr(kernel.ConsumerRecord, name)).__name__ == "member_descriptor"


def test_a_record_in_a_ring_with_its_own_value_is_collected(loops: ModuleType) -> None:
    class Value:
        record: Any

    [record] = decoded(loops, numbered(1), 0, None, lambda data: Value())
    record.value.record = record
    gone = weakref.ref(record.value)
    del record
    gc.collect()
    assert gone() is None
