"""Conversion between magic 0, 1 and 2: what survives, what is dropped, and what is rejected."""

from __future__ import annotations

import gzip
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Record,
    encode_batch,
    records_of,
    scan,
)
from penstock.records.compression import Codec, compress
from penstock.records.errors import CorruptBatch, RecordError, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.records.legacy import (
    LegacyMessage,
    convert,
    decode_message_set,
    downconvert,
    encode_message_set,
    upconvert,
)

LIMIT = 1 << 20
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
THREE = [
    LegacyMessage(10, 1000, CREATE_TIME, b"key", b"value"),
    LegacyMessage(11, 1005, CREATE_TIME, None, b""),
    LegacyMessage(14, 1002, CREATE_TIME, b"", None),
]


def records_in(batches: bytes) -> list[Record]:
    found = scan(batches)
    assert found.problem is None
    return [record for header in found.headers for record in records_of(batches, header, LIMIT)]


def plain(record: Record) -> tuple[int, int, bytes | None, bytes | None]:
    return (record.offset, record.timestamp, record.key, record.value)


def batch_of(messages: list[LegacyMessage], codec: Codec = Codec.NONE) -> bytes:
    return bytes(
        encode_batch(
            [(m.timestamp, m.key, m.value, [("h", b"dropped")]) for m in messages],
            codec=codec,
            offsets=[m.offset for m in messages],
            timestamp_type=messages[0].timestamp_type,
        )
    )


def as_read(messages: list[LegacyMessage], magic: int) -> list[LegacyMessage]:
    return messages if magic else [m._replace(timestamp=-1, timestamp_type=CREATE_TIME) for m in messages]


blobs = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def message_lists(draw: st.DrawFn) -> list[LegacyMessage]:
    """Ascending offsets with gaps; one timestamp type, and one time if the broker stamped it."""
    gaps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    offset = draw(st.integers(0, 2**62))
    kind = draw(st.sampled_from([CREATE_TIME, LOG_APPEND_TIME]))
    stamp = draw(st.integers(0, 2**48))
    messages = []
    for gap in gaps:
        offset += gap
        timestamp = stamp if kind == LOG_APPEND_TIME else draw(st.integers(-1, 2**48))
        messages.append(LegacyMessage(offset, timestamp, kind, draw(blobs), draw(blobs)))
    return messages


# --- up -----------------------------------------------------------------------------------------------------


@given(messages=message_lists(), magic=st.sampled_from([0, 1]), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=100, deadline=None)
def test_going_up_keeps_times_keys_values_and_codec(messages: list[LegacyMessage], magic: int, codec: Codec) -> None:
    batches = upconvert(encode_message_set(messages, magic, codec=codec), limit=LIMIT)
    expected = as_read(messages, magic)
    (header,) = scan(batches).headers
    assert (header.codec, header.timestamp_type) == (codec, expected[0].timestamp_type)
    assert [plain(record) for record in records_in(batches)] == [
        (index, m.timestamp, m.key, m.value) for index, m in enumerate(expected)
    ]
    assert header.max_timestamp == max(m.timestamp for m in expected)
    assert (header.producer_id, header.base_sequence, header.leader_epoch) == (-1, -1, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_each_wrapper_and_each_run_without_one_becomes_a_batch(magic: int) -> None:
    message_set = b"".join(
        [
            encode_message_set(THREE[:2], magic),
            encode_message_set(THREE, magic, codec=Codec.GZIP),
            encode_message_set(THREE[:1], magic, codec=Codec.LZ4),
            encode_message_set(THREE, magic),
        ]
    )
    headers = scan(upconvert(message_set, limit=LIMIT)).headers
    assert [(h.base_offset, h.record_count, h.codec) for h in headers] == [
        (0, 2, Codec.NONE),
        (2, 3, Codec.GZIP),
        (5, 1, Codec.LZ4),
        (6, 3, Codec.NONE),
    ]


def test_a_run_is_split_where_magic_or_kind_of_time_changes() -> None:
    stamped = [m._replace(timestamp_type=LOG_APPEND_TIME) for m in THREE]
    message_set = encode_message_set(THREE[:1], 0) + encode_message_set([*THREE, *stamped], 1)
    batches = upconvert(message_set, limit=LIMIT)
    assert [(h.record_count, h.timestamp_type) for h in scan(batches).headers] == [
        (1, CREATE_TIME),
        (3, CREATE_TIME),
        (1, LOG_APPEND_TIME),
        (1, LOG_APPEND_TIME),
        (1, LOG_APPEND_TIME),
    ]
    assert [r.timestamp for r in records_in(batches)] == [-1, *(m.timestamp for m in THREE + stamped)]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_an_append_time_stamps_the_batches(magic: int, codec: Codec) -> None:
    batches = upconvert(encode_message_set(THREE, magic, codec=codec), limit=LIMIT, append_time_ms=777)
    (header,) = scan(batches).headers
    assert (header.timestamp_type, header.max_timestamp) == (LOG_APPEND_TIME, 777)
    assert [r.timestamp for r in records_in(batches)] == [777] * 3


def test_producers_that_number_every_message_0_are_served() -> None:
    message_set = encode_message_set([m._replace(offset=0) for m in THREE], 0, codec=Codec.SNAPPY)
    assert [r.offset for r in records_in(upconvert(message_set, limit=LIMIT))] == [0, 1, 2]


def test_going_up_can_keep_offsets_with_their_gaps() -> None:
    for codec in OLD_CODECS:
        batches = upconvert(encode_message_set(THREE, 1, codec=codec), limit=LIMIT, keep_offsets=True)
        assert [plain(r) for r in records_in(batches)] == [(m.offset, m.timestamp, m.key, m.value) for m in THREE]


def test_offsets_that_no_batch_can_have_are_rejected_only_if_they_are_to_be_kept() -> None:
    for offsets in ([5, 5], [6, 5], [-3, -2], [0, 2**31], [2**63 - 2, 2**63 - 1]):
        message_set = encode_message_set([LegacyMessage(at, 1, CREATE_TIME, None, b"") for at in offsets], 1)
        assert len(records_in(upconvert(message_set, limit=LIMIT))) == 2
        with pytest.raises(CorruptBatch, match="offsets"):
            upconvert(message_set, limit=LIMIT, keep_offsets=True)


@pytest.mark.parametrize("timestamp", [-2, -(2**63), 2**63 - 1])
def test_a_time_out_of_all_reason_is_rejected(timestamp: int) -> None:
    message_set = encode_message_set([LegacyMessage(0, timestamp, CREATE_TIME, None, b"")], 1)
    with pytest.raises(CorruptBatch, match="timestamp"):
        upconvert(message_set, limit=LIMIT)
    assert len(records_in(upconvert(message_set, limit=LIMIT, append_time_ms=5))) == 1


def test_nothing_goes_up_as_nothing() -> None:
    assert upconvert(b"", limit=0) == b""


def test_a_message_cut_at_the_end_goes_up_only_if_cuts_are_allowed() -> None:
    cut = encode_message_set(THREE, 0)[:-1]
    assert len(records_in(upconvert(cut, limit=LIMIT, allow_partial=True))) == 2
    with pytest.raises(CorruptBatch):
        upconvert(cut, limit=LIMIT)


def test_a_decompression_bomb_is_not_converted() -> None:
    bomb = encode_message_set([LegacyMessage(0, 5, CREATE_TIME, None, bytes(8 << 20))], 1, codec=Codec.LZ4)
    with pytest.raises(TooLarge):
        upconvert(bomb, limit=LIMIT)


# --- down ---------------------------------------------------------------------------------------------------


@given(messages=message_lists(), magic=st.sampled_from([0, 1]), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=100, deadline=None)
def test_going_down_keeps_offsets_times_keys_and_values(
    messages: list[LegacyMessage], magic: int, codec: Codec
) -> None:
    message_set = downconvert(batch_of(messages, codec), magic, limit=LIMIT)
    assert decode_message_set(message_set, limit=LIMIT) == as_read(messages, magic)
    assert message_set[17] & 7 == codec


@given(messages=message_lists(), magic=st.sampled_from([0, 1]), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=60, deadline=None)
def test_down_and_up_again_is_the_same_but_for_headers(messages: list[LegacyMessage], magic: int, codec: Codec) -> None:
    down = downconvert(batch_of(messages, codec), magic, limit=LIMIT)
    again = upconvert(down, limit=LIMIT, keep_offsets=True)
    assert [plain(r) for r in records_in(again)] == [
        (m.offset, m.timestamp, m.key, m.value) for m in as_read(messages, magic)
    ]
    assert all(r.headers == () for r in records_in(again))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_records_below_the_offset_asked_for_are_left_out(magic: int, codec: Codec) -> None:
    batches = batch_of(THREE[:1], codec) + batch_of([THREE[1], THREE[2]], codec)
    for from_offset, expected in [(0, [10, 11, 14]), (11, [11, 14]), (12, [14]), (15, [])]:
        message_set = downconvert(batches, magic, limit=LIMIT, from_offset=from_offset)
        assert [m.offset for m in decode_message_set(message_set, limit=LIMIT)] == expected


def test_one_wrapper_is_written_for_each_compressed_batch() -> None:
    batches = batch_of(THREE[:2], Codec.GZIP) + batch_of(THREE[2:], Codec.SNAPPY)
    message_set = downconvert(batches, 1, limit=LIMIT)
    second = 12 + int.from_bytes(message_set[8:12], "big")
    assert (message_set[17], message_set[second + 17]) == (Codec.GZIP, Codec.SNAPPY)
    assert int.from_bytes(message_set[:8], "big") == 11
    assert int.from_bytes(message_set[second : second + 8], "big") == 14


@pytest.mark.parametrize("magic", [0, 1])
def test_control_batches_are_left_out(magic: int) -> None:
    marker = encode_batch(
        [(5, pack(">hh", 0, 1), pack(">hi", 0, 0), ())], base_offset=12, control=True, transactional=True
    )
    batches = batch_of(THREE[:2]) + bytes(marker) + batch_of(THREE[2:])
    assert decode_message_set(downconvert(batches, magic, limit=LIMIT), limit=LIMIT) == as_read(THREE, magic)
    assert downconvert(bytes(marker), magic, limit=LIMIT) == b""


@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_cut_at_any_byte_is_left_out(magic: int) -> None:
    first, second = batch_of(THREE[:2], Codec.GZIP), batch_of(THREE[2:])
    expected = downconvert(first, magic, limit=LIMIT)
    for cut in range(len(second)):
        assert downconvert(first + second[:cut], magic, limit=LIMIT) == expected


def test_a_damaged_batch_is_not_served() -> None:
    damaged = bytearray(batch_of(THREE))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        downconvert(damaged, 1, limit=LIMIT)


def test_zstd_ends_the_conversion_and_is_rejected_when_it_comes_first() -> None:
    zstd = batch_of(THREE[2:], Codec.ZSTD)
    assert downconvert(batch_of(THREE[:2]) + zstd, 1, limit=LIMIT) == encode_message_set(THREE[:2], 1)
    with pytest.raises(UnsupportedCodec, match="zstd"):
        downconvert(zstd, 1, limit=LIMIT)
    with pytest.raises(UnsupportedCodec, match="zstd"):
        downconvert(batch_of(THREE[:2]) + zstd, 1, limit=LIMIT, from_offset=12)


def test_the_limit_ends_the_conversion_and_rejects_what_comes_first() -> None:
    batches = [batch_of([LegacyMessage(at, 5, CREATE_TIME, None, bytes(1000))], Codec.GZIP) for at in range(5)]
    message_set = downconvert(b"".join(batches), 0, limit=3500)
    assert [m.offset for m in decode_message_set(message_set, limit=LIMIT)] == [0, 1, 2]
    with pytest.raises(TooLarge) as caught:
        downconvert(batches[0], 0, limit=999)
    assert caught.value.limit == 999


def test_records_whose_offsets_run_backwards_are_corrupt() -> None:
    batch = bytearray(encode_batch([(5, None, b"a", ()), (5, None, b"b", ())], offsets=[7, 9]))
    assert batch.count(b"\x04\x01\x02b") == 1  # offset delta 2, no key, one byte
    swapped = bytes(batch).replace(b"\x04\x01\x02b", b"\x00\x01\x02b")
    from crc32c import crc32c

    swapped = swapped[:17] + crc32c(swapped[21:]).to_bytes(4, "big") + swapped[21:]
    with pytest.raises(CorruptBatch, match="ascend"):
        downconvert(swapped, 1, limit=LIMIT)


@pytest.mark.parametrize("magic", [2, 3, -1])
def test_down_is_to_magic_0_or_1_only(magic: int) -> None:
    with pytest.raises(UnsupportedMagic):
        downconvert(batch_of(THREE), magic, limit=LIMIT)


# --- any to any ---------------------------------------------------------------------------------------------


def encoded_as(messages: list[LegacyMessage], magic: int, codec: Codec) -> bytes:
    return batch_of(messages, codec) if magic == 2 else encode_message_set(messages, magic, codec=codec)


def read_as(buffer: bytes, magic: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    if magic == 2:
        return [plain(record) for record in records_in(buffer)]
    return [(m.offset, m.timestamp, m.key, m.value) for m in decode_message_set(buffer, limit=LIMIT)]


@given(
    messages=message_lists(),
    source=st.sampled_from([0, 1, 2]),
    target=st.sampled_from([0, 1, 2]),
    codec=st.sampled_from(OLD_CODECS),
)
@settings(max_examples=150, deadline=None)
def test_any_format_converts_to_any_other(
    messages: list[LegacyMessage], source: int, target: int, codec: Codec
) -> None:
    converted = convert(encoded_as(messages, source, codec), target, limit=LIMIT)
    expected = as_read(messages, min(source, target, 1))
    assert read_as(converted, target) == [(m.offset, m.timestamp, m.key, m.value) for m in expected]


@pytest.mark.parametrize("target", [0, 1, 2])
def test_mixed_formats_convert_in_order(target: int) -> None:
    mixed = (
        encode_message_set(THREE[:1], 0)
        + batch_of(THREE[1:2], Codec.SNAPPY)
        + encode_message_set(THREE[2:], 1, codec=Codec.GZIP)
    )
    converted = read_as(convert(mixed, target, limit=LIMIT), target)
    assert [(offset, key, value) for offset, _, key, value in converted] == [(m.offset, m.key, m.value) for m in THREE]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_has_the_format_already_stays_byte_for_byte(magic: int) -> None:
    same = encoded_as(THREE, magic, Codec.GZIP) + encoded_as(THREE, magic, Codec.NONE)
    assert convert(same, magic, limit=0) == same
    assert convert(b"", magic, limit=0) == b""


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("target", [0, 1, 2])
def test_entries_cut_at_any_byte_are_corrupt(source: int, target: int) -> None:
    whole = encoded_as(THREE, source, Codec.GZIP)
    for cut in range(1, len(whole)):
        with pytest.raises(CorruptBatch):
            convert(whole[:cut], target, limit=LIMIT)


def test_converting_is_all_or_nothing() -> None:
    zstd = batch_of(THREE[2:], Codec.ZSTD)
    with pytest.raises(UnsupportedCodec):
        convert(batch_of(THREE[:2]) + zstd, 1, limit=LIMIT)
    compressed = [batch_of([LegacyMessage(at, 5, CREATE_TIME, None, bytes(1000))], Codec.GZIP) for at in range(5)]
    with pytest.raises(TooLarge):
        convert(b"".join(compressed), 1, limit=3500)
    wrappers = convert(b"".join(compressed), 1, limit=LIMIT)
    for target in (0, 2):
        with pytest.raises(TooLarge):
            convert(wrappers, target, limit=3500)


@pytest.mark.parametrize("magic", [3, -1])
def test_an_unknown_format_is_rejected_on_either_side(magic: int) -> None:
    with pytest.raises(UnsupportedMagic):
        convert(b"", magic, limit=LIMIT)
    foreign = bytearray(encode_message_set(THREE, 0))
    foreign[16] = magic & 0xFF
    with pytest.raises(UnsupportedMagic):
        convert(foreign, 2, limit=LIMIT)


def test_wrapped_offsets_that_run_backwards_do_not_cross_over() -> None:
    backwards = encode_message_set(THREE[::-1], 0, codec=Codec.GZIP)
    with pytest.raises(CorruptBatch, match="ascend"):
        convert(backwards, 1, limit=LIMIT)


@given(
    source=st.sampled_from([0, 1, 2]),
    target=st.sampled_from([0, 1, 2]),
    codec=st.sampled_from(OLD_CODECS),
    edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_damage_anywhere_converts_or_gives_a_typed_error(
    source: int, target: int, codec: Codec, edits: list[tuple[int, int]]
) -> None:
    damaged = bytearray(encoded_as(THREE, source, codec))
    for position, byte in edits:
        damaged[position % len(damaged)] = byte
    try:
        convert(damaged, target, limit=LIMIT)
    except RecordError:
        return


@given(
    fields=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=4
    ),
    outer=st.integers(-(2**63), 2**63 - 1),
    attributes=st.sampled_from([0, 1, 8, 9]),
    target=st.sampled_from([0, 2]),
)
@settings(max_examples=200, deadline=None)
def test_hostile_offsets_and_times_under_right_checksums_give_a_typed_error(
    fields: list[tuple[int, int]], outer: int, attributes: int, target: int
) -> None:
    def message(offset: int, attributes: int, timestamp: int, value: bytes) -> bytes:
        body = pack(">bbqii", 1, attributes, timestamp, -1, len(value)) + value
        return pack(">qiI", offset, len(body) + 4, crc32(body)) + body

    hostile = b"".join(message(offset, attributes & 8, timestamp, b"v") for offset, timestamp in fields)
    if attributes & 1:
        hostile = message(outer, attributes, fields[0][1], gzip.compress(hostile))
    try:
        convert(hostile, target, limit=LIMIT)
    except RecordError:
        return


def test_a_wrapper_is_compressed_as_its_new_format_wants_it() -> None:
    """Lz4 of magic 0 has its own header checksum, which readers of magic 1 reject."""
    old = encode_message_set(as_read(THREE, 0), 0, codec=Codec.LZ4)
    new = convert(old, 1, limit=LIMIT)
    frame = compress(Codec.LZ4, b"")[:7]
    assert frame not in old
    assert frame in new
