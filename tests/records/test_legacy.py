"""Message sets of magic 0 and 1: their layout, their wrappers, and what is rejected."""

from __future__ import annotations

import gzip
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import CREATE_TIME, LOG_APPEND_TIME
from penstock.records.compression import Codec, compress
from penstock.records.errors import CorruptBatch, RecordError, TooLarge, UnsupportedCodec, UnsupportedMagic
from penstock.records.legacy import LegacyMessage, decode_message_set, encode_message_set

LIMIT = 1 << 20
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
WRAPPING = OLD_CODECS[1:]
THREE = [
    LegacyMessage(10, 1000, CREATE_TIME, b"key", b"value"),
    LegacyMessage(11, 1005, CREATE_TIME, None, b""),
    LegacyMessage(14, 1002, CREATE_TIME, b"", None),
]


def message(offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """A message spelt out field by field, independent of the encoder."""
    body = pack(">bb", magic, attributes) + (pack(">q", timestamp) if magic else b"")
    for part in (key, value):
        body += pack(">i", -1) if part is None else pack(">i", len(part)) + part
    return pack(">qiI", offset, len(body) + 4, crc32(body)) + body


def timeless(messages: list[LegacyMessage]) -> list[LegacyMessage]:
    return [m._replace(timestamp=-1, timestamp_type=CREATE_TIME) for m in messages]


def as_read(messages: list[LegacyMessage], magic: int) -> list[LegacyMessage]:
    return messages if magic else timeless(messages)


blobs = st.one_of(st.none(), st.binary(max_size=40))


@st.composite
def message_lists(draw: st.DrawFn, smallest: int = 0) -> list[LegacyMessage]:
    """Ascending offsets with gaps; one timestamp type, and one time if the broker stamped it."""
    gaps = draw(st.lists(st.integers(1, 5), min_size=smallest, max_size=12))
    offset = draw(st.integers(0, 2**62))
    kind = draw(st.sampled_from([CREATE_TIME, LOG_APPEND_TIME]))
    stamp = draw(st.integers(-1, 2**48))
    messages = []
    for gap in gaps:
        offset += gap
        timestamp = stamp if kind == LOG_APPEND_TIME else draw(st.integers(-1, 2**48))
        messages.append(LegacyMessage(offset, timestamp, kind, draw(blobs), draw(blobs)))
    return messages


@given(messages=message_lists(), magic=st.sampled_from([0, 1]), codec=st.sampled_from(OLD_CODECS))
@settings(max_examples=150, deadline=None)
def test_what_is_encoded_decodes_the_same(messages: list[LegacyMessage], magic: int, codec: Codec) -> None:
    encoded = encode_message_set(messages, magic, codec=codec)
    assert decode_message_set(encoded, limit=LIMIT) == as_read(messages, magic)


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_without_codec_are_laid_out_field_by_field(magic: int) -> None:
    expected = b"".join(message(m.offset, magic, 0, m.timestamp, m.key, m.value) for m in THREE)
    assert encode_message_set(THREE, magic) == expected
    assert decode_message_set(expected, limit=0) == as_read(THREE, magic)


def test_a_set_of_no_messages_is_empty_bytes() -> None:
    assert encode_message_set([], 1, codec=Codec.GZIP) == b""
    assert decode_message_set(b"", limit=0) == []


def test_any_buffer_can_be_decoded() -> None:
    encoded = encode_message_set(THREE, 1, codec=Codec.SNAPPY)
    padded = memoryview(b"--" + encoded + b"--")[2:-2]
    assert decode_message_set(bytearray(encoded), limit=LIMIT) == THREE
    assert decode_message_set(padded, limit=LIMIT) == THREE


# --- wrappers -----------------------------------------------------------------------------------------------


def test_inside_a_wrapper_of_magic_0_offsets_are_absolute() -> None:
    inner = message(10, 0, 0, -1, b"k", b"v") + message(12, 0, 0, -1, None, b"w")
    wrapper = message(12, 0, Codec.GZIP, -1, None, gzip.compress(inner))
    assert [m.offset for m in decode_message_set(wrapper, limit=LIMIT)] == [10, 12]
    encoded = encode_message_set(timeless(THREE), 0, codec=Codec.GZIP)
    assert encoded[:8] == pack(">q", 14)
    assert [m.offset for m in decode_message_set(encoded, limit=LIMIT)] == [10, 11, 14]


def test_inside_a_wrapper_of_magic_1_offsets_are_relative_to_the_last() -> None:
    inner = b"".join(message(at, 1, 0, 5, None, b"v") for at in (0, 1, 4))
    wrapper = message(12, 1, Codec.GZIP, 5, None, gzip.compress(inner))
    assert [m.offset for m in decode_message_set(wrapper, limit=LIMIT)] == [8, 9, 12]


def test_our_wrappers_of_magic_1_hold_relative_offsets_and_the_newest_time() -> None:
    wrapper = encode_message_set(THREE, 1, codec=Codec.GZIP)
    assert wrapper[:8] == pack(">q", 14)
    assert wrapper[16:26] == pack(">bbq", 1, Codec.GZIP, 1005)
    inner = gzip.decompress(wrapper[34:])
    assert inner == b"".join(message(m.offset - 10, 1, 0, m.timestamp, m.key, m.value) for m in THREE)


def test_a_producers_wrapper_left_at_offset_0_keeps_its_inner_offsets() -> None:
    inner = b"".join(message(at, 1, 0, 5, None, b"v") for at in (0, 1, 2))
    wrapper = message(0, 1, Codec.GZIP, 5, None, gzip.compress(inner))
    assert [m.offset for m in decode_message_set(wrapper, limit=LIMIT)] == [0, 1, 2]


@pytest.mark.parametrize(("outer", "inner"), [(1, [0, 1, 2]), (9, [0, 5, 3]), (9, [-1, 0]), (-1, [0, 1])])
def test_offsets_that_do_not_end_with_their_wrappers_are_corrupt(outer: int, inner: list[int]) -> None:
    packed = gzip.compress(b"".join(message(at, 1, 0, 5, None, b"v") for at in inner))
    with pytest.raises(CorruptBatch, match="do not end with it"):
        decode_message_set(message(outer, 1, Codec.GZIP, 5, None, packed), limit=LIMIT)


def test_a_wrapper_that_the_broker_stamped_overrides_the_times_inside() -> None:
    inner = message(0, 1, 0, 111, None, b"a") + message(1, 1, 0, 222, None, b"b")
    stamped = message(8, 1, Codec.GZIP | 8, 999, None, gzip.compress(inner))
    assert decode_message_set(stamped, limit=LIMIT) == [
        LegacyMessage(7, 999, LOG_APPEND_TIME, None, b"a"),
        LegacyMessage(8, 999, LOG_APPEND_TIME, None, b"b"),
    ]


def test_a_wrapper_that_the_producer_stamped_decides_the_type_inside_but_not_the_time() -> None:
    inner = message(0, 1, 8, 111, None, b"a") + message(1, 1, 0, 222, None, b"b")
    wrapper = message(8, 1, Codec.GZIP, 999, None, gzip.compress(inner))
    assert decode_message_set(wrapper, limit=LIMIT) == [
        LegacyMessage(7, 111, CREATE_TIME, None, b"a"),
        LegacyMessage(8, 222, CREATE_TIME, None, b"b"),
    ]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_an_append_time_stamps_every_message(codec: Codec) -> None:
    encoded = encode_message_set(THREE, 1, codec=codec, append_time_ms=777)
    stamped = [m._replace(timestamp=777, timestamp_type=LOG_APPEND_TIME) for m in THREE]
    assert decode_message_set(encoded, limit=LIMIT) == stamped
    assert encoded[17] == codec | 8


def test_messages_that_cannot_share_a_wrapper_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="timestamp type"):
        encode_message_set([THREE[0], THREE[1]._replace(timestamp_type=1)], 1, codec=Codec.GZIP)
    with pytest.raises(ValueError, match="offsets"):
        encode_message_set(THREE[::-1], 1, codec=Codec.GZIP)


def test_lz4_wrappers_of_magic_0_have_the_old_header_checksum() -> None:
    wrappers = [encode_message_set(timeless(THREE), magic, codec=Codec.LZ4) for magic in (0, 1)]
    starts = [wrapper.index(b"\x04\x22\x4d\x18") for wrapper in wrappers]
    old, new = (wrapper[start + 6] for wrapper, start in zip(wrappers, starts, strict=True))
    assert old != new
    assert new == compress(Codec.LZ4, b"")[6]
    inner = encode_message_set(timeless(THREE), 0)
    correct = message(14, 0, Codec.LZ4, -1, None, compress(Codec.LZ4, inner, magic=1))
    assert decode_message_set(correct, limit=LIMIT) == decode_message_set(wrappers[0], limit=LIMIT)


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_and_messages_may_follow_each_other(magic: int) -> None:
    parts = [
        encode_message_set(THREE[:1], magic),
        encode_message_set(THREE[1:2], magic, codec=Codec.SNAPPY),
        encode_message_set(THREE[2:], magic, codec=Codec.LZ4),
    ]
    assert decode_message_set(b"".join(parts), limit=LIMIT) == as_read(THREE, magic)


def nested(depth: int, magic: int = 0) -> bytes:
    encoded = message(0, magic, 0, 5, None, b"deep")
    for _ in range(depth):
        encoded = message(0, magic, Codec.GZIP, 5, None, gzip.compress(encoded))
    return encoded


@pytest.mark.parametrize("magic", [0, 1])
def test_wrappers_inside_wrappers_are_read_down_to_a_depth(magic: int) -> None:
    assert [m.value for m in decode_message_set(nested(3, magic), limit=LIMIT)] == [b"deep"]
    with pytest.raises(CorruptBatch, match="deep"):
        decode_message_set(nested(4, magic), limit=LIMIT)
    with pytest.raises(CorruptBatch, match="deep"):
        decode_message_set(nested(2, magic), limit=LIMIT, max_depth=1)


def test_nested_relative_offsets_add_up() -> None:
    innermost = b"".join(message(at, 1, 0, 5, None, b"%d" % at) for at in (0, 1))
    middle = message(0, 1, 0, 5, None, b"first") + message(3, 1, Codec.GZIP, 5, None, gzip.compress(innermost))
    outer = message(103, 1, Codec.SNAPPY, 5, None, compress(Codec.SNAPPY, middle))
    assert [(m.offset, m.value) for m in decode_message_set(outer, limit=LIMIT)] == [
        (100, b"first"),
        (102, b"0"),
        (103, b"1"),
    ]


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_set_cut_at_any_byte_is_corrupt_or_shorter_if_asked(magic: int, codec: Codec) -> None:
    first = encode_message_set(THREE[:2], magic, codec=codec)
    whole = first + encode_message_set(THREE[2:], magic)
    second_starts = len(encode_message_set(THREE[:1], magic))
    boundaries = {0: 0, len(first): 2, **({second_starts: 1} if codec is Codec.NONE else {})}
    for cut in range(len(whole)):
        kept = max(count for boundary, count in boundaries.items() if boundary <= cut)
        shorter = decode_message_set(whole[:cut], limit=LIMIT, allow_partial=True)
        assert shorter == as_read(THREE[:kept], magic)
        if cut not in boundaries:
            with pytest.raises(CorruptBatch):
                decode_message_set(whole[:cut], limit=LIMIT)


def test_a_cut_inside_a_wrapper_is_corrupt_even_where_cuts_are_allowed() -> None:
    inner = encode_message_set(THREE, 0)[:-1]
    with pytest.raises(CorruptBatch, match="compressed message"):
        decode_message_set(message(14, 0, 1, -1, None, gzip.compress(inner)), limit=LIMIT, allow_partial=True)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_any_flipped_bit_that_the_checksum_covers_is_caught(magic: int, codec: Codec) -> None:
    encoded = encode_message_set(THREE[:1], magic, codec=codec)
    for position in range(12, len(encoded)):
        for bit in range(8):
            damaged = bytearray(encoded)
            damaged[position] ^= 1 << bit
            with pytest.raises((CorruptBatch, UnsupportedMagic)):
                decode_message_set(damaged, limit=LIMIT)


@given(
    codec=st.sampled_from(OLD_CODECS),
    magic=st.sampled_from([0, 1]),
    edits=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), min_size=1, max_size=4),
    partial=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_damage_anywhere_gives_messages_or_a_typed_error(
    codec: Codec, magic: int, edits: list[tuple[int, int]], partial: bool
) -> None:
    damaged = bytearray(encode_message_set(THREE, magic, codec=codec))
    for position, byte in edits:
        damaged[position % len(damaged)] = byte
    try:
        decode_message_set(damaged, limit=LIMIT, allow_partial=partial)
    except RecordError:
        return


@given(body=st.binary(max_size=80), magic=st.sampled_from([0, 1]), attributes=st.integers(-128, 127))
@settings(max_examples=200, deadline=None)
def test_garbage_under_a_right_checksum_gives_messages_or_a_typed_error(
    body: bytes, magic: int, attributes: int
) -> None:
    body = pack(">bb", magic, attributes) + body
    try:
        decode_message_set(pack(">qiI", 3, len(body) + 4, crc32(body)) + body, limit=LIMIT)
    except RecordError:
        return


@pytest.mark.parametrize("size", [-1, 0, 13, -(2**31)])
@pytest.mark.parametrize("partial", [False, True])
def test_an_impossible_size_is_corrupt(size: int, partial: bool) -> None:
    with pytest.raises(CorruptBatch, match="size"):
        decode_message_set(pack(">qi", 0, size) + bytes(100), limit=LIMIT, allow_partial=partial)


def test_a_message_of_magic_1_too_short_for_its_time_is_corrupt() -> None:
    body = pack(">bb", 1, 0) + bytes(10)
    with pytest.raises(CorruptBatch, match="size"):
        decode_message_set(pack(">qiI", 0, len(body) + 4, crc32(body)) + body, limit=LIMIT)


@pytest.mark.parametrize(
    "fields",
    [
        pack(">ii", -2, -1),
        pack(">ii", -1, -2),
        pack(">ii", 2**31 - 1, -1),
        pack(">ii", -1, 2**31 - 1),
        pack(">ii", 1, -1),
        pack(">ii", -1, -1) + b"left over",
    ],
)
def test_key_and_value_lengths_must_fill_the_message(fields: bytes) -> None:
    body = pack(">bb", 0, 0) + fields
    with pytest.raises(CorruptBatch):
        decode_message_set(pack(">qiI", 0, len(body) + 4, crc32(body)) + body, limit=LIMIT)


@pytest.mark.parametrize("magic", [3, -1, 127])
def test_an_unknown_magic_is_named(magic: int) -> None:
    body = pack(">bb", magic, 0) + bytes(20)
    with pytest.raises(UnsupportedMagic, match=str(magic)):
        decode_message_set(pack(">qiI", 0, len(body) + 4, crc32(body)) + body, limit=LIMIT)
    with pytest.raises(UnsupportedMagic):
        encode_message_set(THREE, magic)


def test_a_batch_in_a_message_set_is_corrupt() -> None:
    from penstock.records import encode_batch

    with pytest.raises(CorruptBatch, match="batch"):
        decode_message_set(encode_batch([(0, b"k", b"v", ())]), limit=LIMIT)


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_and_codecs_without_a_name_are_unsupported(magic: int) -> None:
    for codec in (Codec.ZSTD, 5, 6, 7):
        with pytest.raises(UnsupportedCodec):
            decode_message_set(message(0, magic, codec, 5, None, b"x"), limit=LIMIT)
        with pytest.raises(UnsupportedCodec):
            encode_message_set(THREE, magic, codec=codec)


@pytest.mark.parametrize("codec", WRAPPING)
def test_a_wrapper_without_a_value_or_without_messages_is_corrupt(codec: Codec) -> None:
    with pytest.raises(CorruptBatch, match="without a value"):
        decode_message_set(message(0, 1, codec, 5, None, None), limit=LIMIT)
    with pytest.raises(CorruptBatch, match="without messages"):
        decode_message_set(message(0, 1, codec, 5, None, compress(codec, b"")), limit=LIMIT)


def test_a_wrapper_of_another_magic_inside_is_corrupt() -> None:
    packed = gzip.compress(message(0, 0, 0, -1, None, b"v"))
    with pytest.raises(CorruptBatch, match="magic 0 inside magic 1"):
        decode_message_set(message(0, 1, Codec.GZIP, 5, None, packed), limit=LIMIT)


@pytest.mark.parametrize("codec", WRAPPING)
def test_a_wrapper_that_grows_past_the_limit_is_rejected(codec: Codec) -> None:
    bomb = encode_message_set([LegacyMessage(0, 5, CREATE_TIME, None, bytes(8 << 20))], 1, codec=codec)
    with pytest.raises(TooLarge) as caught:
        decode_message_set(bomb, limit=LIMIT)
    assert caught.value.limit == LIMIT


def test_wrappers_share_one_limit_side_by_side_and_nested() -> None:
    single = encode_message_set([LegacyMessage(0, -1, CREATE_TIME, None, bytes(1000))], 0, codec=Codec.GZIP)
    assert len(decode_message_set(single * 3, limit=3 * 1026)) == 3
    with pytest.raises(TooLarge):
        decode_message_set(single * 3, limit=3 * 1026 - 1)
    twice = message(0, 0, Codec.GZIP, -1, None, gzip.compress(single))
    with pytest.raises(TooLarge):
        decode_message_set(twice, limit=1026)


def test_an_error_says_at_which_byte_its_message_starts() -> None:
    good = encode_message_set(THREE, 1)
    bad = bytearray(encode_message_set(THREE[:1], 1, codec=Codec.GZIP))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        decode_message_set(good + bytes(bad), limit=LIMIT)
    assert caught.value.position == len(good)
