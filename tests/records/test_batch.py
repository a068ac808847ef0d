"""Batches: encoding and decoding round-trip, and truncated, changed or hostile bytes are rejected."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import HEADER_SIZE, Codec, CorruptBatch, RecordTuple, TooLarge, UnsupportedCodec
from penstock.records.batch import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    append_time_of,
    decode_batch,
    encode_batch,
    payload_of,
    records_of,
)

pytestmark = pytest.mark.usefixtures("loops")

INT32_MAX = 2**31 - 1
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
RECORDS: list[RecordTuple] = [
    (1_000, b"a", b"first", []),
    (1_003, None, b"second" * 30, [("trace", b"\x00\x01"), ("empty", b""), ("none", None)]),
    (999, b"a", None, []),
    (1_001, b"", b"", [("naïve", b"x")]),
]

blobs = st.one_of(st.none(), st.binary(max_size=40), st.integers(100, 20_000).map(bytes))
records = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**45),
        blobs,
        blobs,
        st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def as_tuples(decoded: Any) -> list[tuple[Any, ...]]:
    return [(record.timestamp, record.key, record.value, list(record.headers)) for record in decoded]


def repair(batch: bytearray) -> bytearray:
    """Length and checksum made to fit what the bytes are now."""
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    batch[17:21] = struct.pack(">I", crc32c(batch[21:]))
    return batch


@contextmanager
def memory_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes, f"{peak} bytes were taken"


# --- round trips -----------------------------------------------------------------------------------------------


@given(items=records, codec=st.sampled_from(Codec), base=st.integers(0, 2**62))
@settings(max_examples=80, deadline=None)
def test_what_was_encoded_is_decoded(items: list[RecordTuple], codec: Codec, base: int) -> None:
    decoded = decode_batch(encode_batch(items, codec=codec, base_offset=base))
    assert as_tuples(decoded) == items
    assert [record.offset for record in decoded] == list(range(base, base + len(items)))


@pytest.mark.parametrize("codec", list(Codec))
def test_the_header_says_what_the_batch_is(loops: ModuleType, codec: Codec) -> None:
    batch = encode_batch(
        RECORDS, codec=codec, base_offset=70, leader_epoch=5, producer_id=2**40, producer_epoch=7,
        base_sequence=INT32_MAX - 1, transactional=True, control=True, timestamp_type=LOG_APPEND_TIME,
    )  # fmt: skip
    [header] = loops.scan(batch).headers
    assert (header.codec, header.record_count, header.size, header.position) == (codec, 4, len(batch), 0)
    assert (header.base_offset, header.last_offset, header.next_offset) == (70, 73, 74)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch) == (5, 2**40, 7)
    assert (header.base_sequence, header.last_sequence) == (INT32_MAX - 1, 1)  # sequences wrap after 2**31 - 1
    assert (header.base_timestamp, header.max_timestamp) == (1_000, 1_003)
    assert (header.is_transactional, header.is_control, header.timestamp_type) == (True, True, LOG_APPEND_TIME)
    assert not header.has_delete_horizon


def test_a_plain_batch_has_no_producer_and_no_flags(loops: ModuleType) -> None:
    [header] = loops.scan(encode_batch(RECORDS)).headers
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (-1, -1, -1, -1)
    assert (header.leader_epoch, header.attributes, header.timestamp_type) == (-1, 0, CREATE_TIME)


def test_a_compression_level_is_passed_on() -> None:
    items: list[RecordTuple] = [(0, None, b"%d" % (i * i), []) for i in range(2000)]
    fast, small = (encode_batch(items, codec=Codec.GZIP, level=level) for level in (1, 9))
    assert len(small) < len(fast)
    assert decode_batch(small) == decode_batch(fast)


@pytest.mark.parametrize("codec", list(Codec))
def test_offsets_with_gaps_survive(loops: ModuleType, codec: Codec) -> None:
    offsets = [10, 11, 500, 500 + INT32_MAX // 2]
    batch = encode_batch(RECORDS, codec=codec, offsets=offsets)
    assert [record.offset for record in decode_batch(batch)] == offsets
    [header] = loops.scan(batch).headers
    assert (header.base_offset, header.next_offset, header.record_count) == (10, offsets[-1] + 1, 4)


@pytest.mark.parametrize("offsets", [[1, 2, 3], [1, 2, 3, 3], [4, 3, 2, 1], [1, 2, 3, 4, 5], []])
def test_offsets_that_do_not_ascend_or_do_not_match_are_rejected(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets must ascend, one for each record"):
        encode_batch(RECORDS, offsets=offsets)


def test_offsets_too_far_apart_for_one_batch_are_rejected() -> None:
    with pytest.raises(ValueError, match="outside of 0 to"):
        encode_batch(RECORDS[:2], offsets=[0, INT32_MAX + 1])


def test_a_batch_of_nothing_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        encode_batch([])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"codec": 5}, "5"),
        ({"codec": -1}, "-1"),
        ({"timestamp_type": 2}, "timestamp type 2"),
        ({"base_offset": -1}, "base offset -1 is negative"),
        ({"offsets": [-1, 0, 1, 2]}, "base offset -1 is negative"),
    ],
)
def test_settings_that_no_reader_would_take_are_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, UnsupportedCodec), match=words):
        encode_batch(RECORDS, **wrong)


def test_any_buffer_and_any_position_will_do() -> None:
    batch = encode_batch(RECORDS, codec=Codec.LZ4)
    expected = decode_batch(batch)
    for kind in (bytes, bytearray, memoryview):
        assert decode_batch(kind(b"before" + batch + b"after"), 6) == expected


# --- what a broker does with batches ---------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_scan_does_not_look_at_the_records(loops: ModuleType, codec: Codec) -> None:
    garbage = bytearray(encode_batch(RECORDS, codec=codec)[:HEADER_SIZE]) + b"\xfe" * 50
    found = loops.scan(repair(garbage))
    assert found.problem is None
    assert found.headers[0].record_count == 4
    with pytest.raises(CorruptBatch):
        records_of(garbage, found.headers[0])


@pytest.mark.parametrize("codec", list(Codec))
def test_append_time_takes_the_place_of_the_producers_time(loops: ModuleType, codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    [header] = loops.scan(batch).headers
    assert append_time_of(header) is None
    loops.stamp_append_time(batch, header, 5_000)
    found = loops.scan(batch)
    assert found.problem is None
    assert found.headers == [header]
    assert append_time_of(header) == 5_000
    decoded = decode_batch(batch)
    assert {record.timestamp for record in decoded} == {5_000}
    assert [(record.key, record.value) for record in decoded] == [(key, value) for _, key, value, _ in RECORDS]


def test_an_uncompressed_payload_is_not_copied(loops: ModuleType) -> None:
    batch = encode_batch(RECORDS)
    [header] = loops.scan(batch).headers
    payload = payload_of(batch, header)
    assert payload.buffer is batch
    assert (payload.start, payload.end) == (HEADER_SIZE, len(batch))


def test_a_batch_whose_records_were_all_compacted_away_is_empty(loops: ModuleType) -> None:
    empty = bytearray(HEADER_SIZE)
    loops.write_header(empty, 50, 1, 0, 9, -1, -1, 1000, 0, 0, 0)
    [header] = loops.scan(empty).headers
    assert (header.next_offset, records_of(empty, header)) == (60, [])


# --- bad bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_cut_anywhere_is_corrupt(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    for end in range(len(batch)):
        with pytest.raises(CorruptBatch):
            decode_batch(batch[:end])


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_cut_anywhere_is_corrupt_even_if_length_and_checksum_fit(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    for end in range(HEADER_SIZE, len(batch)):
        with pytest.raises(CorruptBatch):
            decode_batch(repair(batch[:end]))


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_change_anywhere_is_noticed_but_in_offset_and_epoch(codec: Codec, mask: int) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    sound = as_tuples(decode_batch(batch))
    brokers_own = {*range(8), *range(12, 16)}  # patched at each append, so not under the checksum
    for place in range(len(batch)):
        changed = bytearray(batch)
        changed[place] ^= mask
        if place in brokers_own and not (place == 0 and mask & 0x80):
            assert as_tuples(decode_batch(changed)) == sound
        else:
            with pytest.raises(CorruptBatch):
                decode_batch(changed)


def test_damage_is_found_without_the_checksum_too() -> None:
    batch = encode_batch(RECORDS)
    batch[HEADER_SIZE] ^= 0x02
    with pytest.raises(CorruptBatch, match="checksum"):
        decode_batch(batch)
    with pytest.raises(CorruptBatch, match="does not parse"):
        decode_batch(batch, verify=False)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_an_error_names_the_place_of_the_batch(loops: ModuleType, codec: Codec) -> None:
    sound = encode_batch(RECORDS)
    damaged = repair(encode_batch(RECORDS, codec=codec)[:-3])
    both = sound + damaged
    with pytest.raises(CorruptBatch) as raised:
        records_of(both, loops.scan(both).headers[1])
    assert raised.value.position == len(sound)
    assert str(raised.value).endswith(f"(batch at byte {len(sound)})")


def test_no_batch_at_the_end_of_the_buffer_is_corrupt() -> None:
    batch = encode_batch(RECORDS)
    with pytest.raises(CorruptBatch, match="no batch found"):
        decode_batch(batch, len(batch))
    with pytest.raises(ValueError, match="outside of a buffer"):
        decode_batch(batch, len(batch) + 1)


@pytest.mark.parametrize("magic", [0, 1, 3, 255])
def test_bytes_with_another_magic_are_not_a_batch(magic: int) -> None:
    batch = encode_batch(RECORDS)
    batch[16] = magic
    with pytest.raises(CorruptBatch, match=r"magic -?[0-9]+ is not 2"):
        decode_batch(batch)


# --- bytes made to harm ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", COMPRESSING)
def test_a_bomb_is_rejected(codec: Codec) -> None:
    bomb = encode_batch([(0, None, bytes(8 << 20), [])], codec=codec)
    assert len(bomb) < 1 << 20
    with pytest.raises(TooLarge) as caught:
        decode_batch(bomb, limit=1 << 20)
    assert caught.value.limit == 1 << 20
    assert decode_batch(bomb, limit=9 << 20)[0].value == bytes(8 << 20)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_count_of_two_billion_takes_no_memory(codec: Codec) -> None:
    batch = encode_batch(RECORDS, codec=codec)
    struct.pack_into(">i", batch, 23, INT32_MAX)
    struct.pack_into(">i", batch, 57, INT32_MAX)
    repair(batch)
    decode_batch(encode_batch(RECORDS, codec=codec))  # so that the codec's library is there
    with memory_below(200_000), pytest.raises(CorruptBatch, match="2147483647 records do not fit"):
        decode_batch(batch)


@pytest.mark.parametrize(
    "tail",
    [
        b"\xfe\xff\xff\xff\x0f\x01\x00",  # a key of 2**31 - 1 bytes
        b"\x01\xfe\xff\xff\xff\x0f\x00",  # such a value
        b"\x01\x01\xfe\xff\xff\xff\x0f",  # more headers than bytes
        b"\x01\x01\x02\xfe\xff\xff\xff\x0f\x01",  # a header's key
        b"\x01\x01\x02\x00\xfe\xff\xff\xff\x0f",  # a header's value
        b"\x01\x01" + b"\xff" * 9 + b"\x01",  # a count of -2**63 headers
    ],
)
def test_a_length_of_two_gib_takes_no_memory(loops: ModuleType, tail: bytes) -> None:
    body = b"\x00\x00\x00" + tail
    batch = bytearray(HEADER_SIZE) + bytes([len(body) << 1]) + body
    loops.write_header(batch, 0, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    with memory_below(50_000), pytest.raises(CorruptBatch, match="record 0 of the batch does not parse"):
        decode_batch(batch)
    builder = loops.ColumnBuilder(headers=True)
    with memory_below(50_000), pytest.raises(CorruptBatch, match="record 0 of the batch does not parse"):
        builder.append(batch, HEADER_SIZE, len(batch), 1, 0, 0)


def test_a_batch_that_claims_two_gib_is_incomplete_and_takes_no_memory(loops: ModuleType) -> None:
    batch = encode_batch(RECORDS)
    batch[8:12] = struct.pack(">i", INT32_MAX)
    with memory_below(50_000):
        found = loops.scan(batch)
    assert (found.problem, found.needed, found.headers) == ("incomplete", INT32_MAX + 12, [])
