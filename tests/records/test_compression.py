"""Codecs: data round-trips, and other implementations agree on the bytes."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.compression import (
    LEVELS,
    PIECE_BYTES,
    POOLED_BYTES,
    Codec,
    _lz4_header_checksum,
    _xxh32_of_few,
    compress,
    decompress,
    decompress_pooled,
    release,
)
from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec

with warnings.catch_warnings():  # it reads its schemas by a call that Python 3.11 deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec

JSON = b"".join(b'{"id":%d,"page":"/p/%d","ok":true}' % (i, i * 7919 % 1000) for i in range(3000))
LIMIT = 1 << 20
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"

payloads = st.one_of(
    st.binary(max_size=2000),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=90), st.integers(0, 3000)),
)


@given(codec=st.sampled_from(Codec), data=payloads, magic=st.sampled_from([0, 1, 2]))
@settings(max_examples=150, deadline=None)
def test_what_goes_in_comes_out(codec: Codec, data: bytes, magic: int) -> None:
    if codec is Codec.ZSTD:
        magic = 2
    assert decompress(codec, compress(codec, data, magic=magic), len(data), magic=magic) == data


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(codec: Codec, kind: Any) -> None:
    packed = compress(codec, kind(JSON))
    plain = decompress(codec, kind(packed), LIMIT)
    assert plain == JSON
    assert (type(packed), type(plain)) == (bytes, bytes)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_slice_of_a_larger_buffer_is_taken_alone(codec: Codec) -> None:
    packed = compress(codec, memoryview(b"before" + JSON + b"after")[6:-5])
    assert decompress(codec, memoryview(b"xx" + packed + b"yyy")[2:-3], LIMIT) == JSON


@pytest.mark.parametrize("codec", list(Codec))
def test_nothing_can_be_compressed_too(codec: Codec) -> None:
    assert decompress(codec, compress(codec, b""), 0) == b""


@pytest.mark.parametrize("codec", COMPRESSING)
def test_no_bytes_at_all_are_not_compressed_nothing(codec: Codec) -> None:
    with pytest.raises(CorruptBatch):
        decompress(codec, b"", LIMIT)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_result_of_exactly_the_limit_passes_and_one_byte_more_does_not(codec: Codec) -> None:
    packed = compress(codec, JSON)
    assert decompress(codec, packed, len(JSON)) == JSON
    with pytest.raises(TooLarge) as caught:
        decompress(codec, packed, len(JSON) - 1)
    assert caught.value.limit == len(JSON) - 1


@pytest.mark.parametrize("codec", [5, 6, 7, -1, 99])
def test_an_unknown_codec_is_named(codec: int) -> None:
    with pytest.raises(UnsupportedCodec, match=str(codec)):
        compress(codec, b"")
    with pytest.raises(UnsupportedCodec, match=str(codec)):
        decompress(codec, b"", LIMIT)


@pytest.mark.parametrize("magic", [0, 1])
def test_zstd_does_not_exist_before_magic_2(magic: int) -> None:
    with pytest.raises(UnsupportedCodec, match="zstd"):
        compress(Codec.ZSTD, JSON, magic=magic)
    with pytest.raises(UnsupportedCodec, match="zstd"):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, JSON), LIMIT, magic=magic)


@pytest.mark.parametrize(
    ("codec", "level", "says"),
    [
        (Codec.GZIP, 0, "1 to 9"),
        (Codec.GZIP, 10, "1 to 9"),
        (Codec.LZ4, 0, "1 to 17"),
        (Codec.LZ4, 18, "1 to 17"),
        (Codec.ZSTD, 23, "-131072 to 22"),
        (Codec.ZSTD, -131073, "-131072 to 22"),
        (Codec.SNAPPY, 1, "no compression levels"),
        (Codec.NONE, 1, "no compression levels"),
    ],
)
def test_a_level_outside_the_range_is_rejected_with_the_range(codec: Codec, level: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        compress(codec, JSON, level)


@pytest.mark.parametrize("codec", list(LEVELS))
def test_the_ends_of_each_range_work_and_the_upper_one_compresses_better(codec: Codec) -> None:
    lowest, highest = compress(codec, JSON, LEVELS[codec][0]), compress(codec, JSON, LEVELS[codec][-1])
    assert decompress(codec, lowest, LIMIT) == decompress(codec, highest, LIMIT) == JSON
    assert len(highest) < len(lowest)


def test_a_negative_limit_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="limit"):
        decompress(Codec.NONE, b"", -1)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_threads_may_compress_at_the_same_time(codec: Codec) -> None:
    contents = [JSON[start : start + 40_000] * 3 for start in range(0, 40_000, 1000)]
    with ThreadPoolExecutor(max_workers=6) as pool:
        packed = list(pool.map(lambda data: compress(codec, data), contents * 3))
        assert list(pool.map(lambda data: decompress(codec, data, LIMIT), packed)) == contents * 3


def test_importing_the_module_imports_no_codec_library() -> None:
    listing = "import sys, penstock.records.compression; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert not {"lz4", "lz4.frame", "zstandard", "cramjam"} & set(ran.stdout.split())


# --- frames -------------------------------------------------------------------------------------------------


def test_several_gzip_members_are_one_stream() -> None:
    members = gzip.compress(JSON) + gzip.compress(b"") + gzip.compress(b"tail", compresslevel=1)
    assert decompress(Codec.GZIP, members, LIMIT) == JSON + b"tail"


def test_several_zstd_frames_with_and_without_sizes_are_one_stream() -> None:
    streaming = zstandard.ZstdCompressor(level=1).compressobj()
    unsized = streaming.compress(JSON) + streaming.flush()
    checked = zstandard.ZstdCompressor(write_checksum=True).compress(b"checked")
    skippable = b"\x57\x2a\x4d\x18\x05\x00\x00\x00hello"
    empty = zstandard.ZstdCompressor().compress(b"")
    assert zstandard.get_frame_parameters(unsized).content_size == zstandard.CONTENTSIZE_UNKNOWN
    stream = unsized + skippable + checked + empty + unsized
    assert decompress(Codec.ZSTD, stream, LIMIT) == JSON + b"checked" + JSON


def test_zstd_of_the_widest_window_that_java_writes_is_read() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    streaming = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert decompress(Codec.ZSTD, streaming.compress(JSON) + streaming.flush(), LIMIT) == JSON


def test_snappy_is_written_as_a_java_stream_of_32_kib_blocks() -> None:
    packed = compress(Codec.SNAPPY, JSON)
    assert packed.startswith(XERIAL_HEADER)
    position, plain = 16, b""
    while position < len(packed):
        size = int.from_bytes(packed[position : position + 4], "big")
        block = bytes(cramjam.snappy.decompress_raw(packed[position + 4 : position + 4 + size]))
        assert len(block) == 32 * 1024 or position + 4 + size == len(packed)
        plain += block
        position += 4 + size
    assert plain == JSON


def test_snappy_is_read_raw_as_well() -> None:
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(JSON)), LIMIT) == JSON
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"")), LIMIT) == b""


def test_snappy_streams_that_were_joined_are_read_on() -> None:
    assert decompress(Codec.SNAPPY, compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two"), LIMIT) == b"onetwo"


def test_a_snappy_stream_with_little_endian_versions_is_read() -> None:
    packed = compress(Codec.SNAPPY, JSON)
    assert decompress(Codec.SNAPPY, packed[:8] + b"\x01\0\0\0\x01\0\0\0" + packed[16:], LIMIT) == JSON


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_lz4_frames_have_independent_64_kib_blocks_and_no_options(magic: int) -> None:
    magic_number, flags, descriptor = b"\x04\x22\x4d\x18", 0x60, 0x40
    assert compress(Codec.LZ4, JSON, magic=magic)[:6] == magic_number + bytes((flags, descriptor))


def test_lz4_of_magic_0_differs_in_the_header_checksum_alone() -> None:
    old, new = compress(Codec.LZ4, JSON, magic=0), compress(Codec.LZ4, JSON, magic=1)
    assert (old[:6], old[7:]) == (new[:6], new[7:])
    assert old[6] == _lz4_header_checksum(old[:6]) != new[6] == _lz4_header_checksum(new[4:6])
    with pytest.raises(RuntimeError):
        lz4.frame.decompress(old)


@pytest.mark.parametrize("written_as", [0, 1])
def test_lz4_of_magic_0_is_read_with_either_checksum(written_as: int) -> None:
    packed = compress(Codec.LZ4, JSON, magic=written_as)
    assert decompress(Codec.LZ4, packed, LIMIT, magic=0) == JSON


def test_lz4_of_magic_0_is_read_with_a_content_size_in_its_header() -> None:
    right = lz4.frame.compress(JSON, store_size=True)
    wrong = right[:14] + bytes((_lz4_header_checksum(right[:14]),)) + right[15:]
    assert decompress(Codec.LZ4, wrong, LIMIT, magic=0) == decompress(Codec.LZ4, right, LIMIT, magic=0) == JSON


def test_lz4_of_linked_blocks_with_all_checksums_is_read() -> None:
    packed = lz4.frame.compress(JSON, block_linked=True, content_checksum=True, block_checksum=True)
    assert decompress(Codec.LZ4, packed, LIMIT) == JSON


LZ4_FRAMES: dict[str, dict[str, Any]] = {
    "one block": {},
    "header's size": {"store_size": True},
    "checksums": {"content_checksum": True, "block_checksum": True},
    "linked": {"block_linked": True},
    "large blocks": {"block_size": 7},
    "high level": {"compression_level": 12},
}


@pytest.mark.parametrize("name", LZ4_FRAMES)
@pytest.mark.parametrize("size", [10, 1 << 16, (1 << 16) + 1, 300_000, POOLED_BYTES + 1])
def test_lz4_of_every_writer_is_read(name: str, size: int) -> None:
    for data in ((JSON * (size // len(JSON) + 1))[:size], random.Random(size).randbytes(size)):
        packed = lz4.frame.compress(data, **LZ4_FRAMES[name])
        assert decompress(Codec.LZ4, packed, size) == data
        with pytest.raises(TooLarge):
            decompress(Codec.LZ4, packed, size - 1)


def test_lz4_of_a_writer_that_flushes_often_is_read() -> None:
    for blocks in (63, 64, 65, 3000):
        writer = lz4.frame.LZ4FrameCompressor(block_linked=False, auto_flush=True)
        packed = writer.begin() + b"".join(writer.compress(JSON[:100]) for _ in range(blocks)) + writer.flush()
        assert decompress(Codec.LZ4, packed, blocks * 100) == JSON[:100] * blocks
        with pytest.raises(TooLarge):
            decompress(Codec.LZ4, packed, blocks * 100 - 1)


@pytest.mark.parametrize(
    ("data", "digest"),
    [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)],
)
def test_the_small_xxhash_agrees_with_published_values(data: bytes, digest: int) -> None:
    assert _xxh32_of_few(data) == digest


@pytest.mark.parametrize("options", [{}, {"store_size": True}, {"store_size": True, "block_size": 7}])
def test_the_small_xxhash_agrees_with_the_lz4_library(options: dict[str, Any]) -> None:
    frame = lz4.frame.compress(JSON, **{"store_size": False, **options})
    checksum_at = 14 if options.get("store_size") else 6
    assert frame[checksum_at] == _lz4_header_checksum(frame[4:checksum_at])


# --- peers --------------------------------------------------------------------------------------------------


@pytest.fixture
def kafka_python(monkeypatch: pytest.MonkeyPatch) -> Any:
    """kafka-python's codecs; it wants packages for raw snappy and xxHash that we have under other names."""

    def raw(function: Any) -> Any:
        return lambda data: bytes(function(data))

    snappy = SimpleNamespace(compress=raw(cramjam.snappy.compress_raw), decompress=raw(cramjam.snappy.decompress_raw))
    xxhash = SimpleNamespace(xxh32=lambda data: SimpleNamespace(digest=lambda: _xxh32_of_few(data).to_bytes(4, "big")))
    monkeypatch.setattr(kafka.codec, "snappy", snappy)
    monkeypatch.setattr(kafka.codec, "xxhash", xxhash)
    return kafka.codec


PEER_NAMES = {Codec.GZIP: "gzip", Codec.SNAPPY: "snappy", Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("data", [JSON, b"x", bytes(100_000)], ids=["json", "one byte", "zeros"])
def test_kafka_python_reads_ours_and_we_read_its(kafka_python: Any, codec: Codec, data: bytes) -> None:
    name = PEER_NAMES[codec]
    assert getattr(kafka_python, f"{name}_decode")(compress(codec, data)) == data
    assert decompress(codec, getattr(kafka_python, f"{name}_encode")(data), LIMIT) == data


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("data", [JSON, b"x", bytes(100_000)], ids=["json", "one byte", "zeros"])
def test_aiokafka_reads_ours_and_we_read_its(codec: Codec, data: bytes) -> None:
    name = PEER_NAMES[codec]
    assert getattr(aiokafka.codec, f"{name}_decode")(compress(codec, data)) == data
    assert decompress(codec, getattr(aiokafka.codec, f"{name}_encode")(data), LIMIT) == data


def test_kafka_python_reads_and_writes_lz4_of_magic_0_as_we_do(kafka_python: Any) -> None:
    assert kafka_python.lz4_decode_old_kafka(compress(Codec.LZ4, JSON, magic=0)) == JSON
    theirs = kafka_python.lz4_encode_old_kafka(JSON)
    assert decompress(Codec.LZ4, theirs, LIMIT, magic=0) == JSON
    assert theirs[6] == compress(Codec.LZ4, JSON, magic=0)[6]


def test_raw_snappy_of_peers_is_read(kafka_python: Any) -> None:
    assert decompress(Codec.SNAPPY, kafka_python.snappy_encode(JSON, xerial_compatible=False), LIMIT) == JSON
    assert decompress(Codec.SNAPPY, aiokafka.codec.snappy_encode(JSON, xerial_compatible=False), LIMIT) == JSON


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_what_takes_several_pieces_comes_out_whole(codec: Codec, size: int) -> None:
    noise = bytes(range(251)) * 3
    for data in (bytes(size), (noise * (size // len(noise) + 1))[:size]):
        packed = compress(codec, data)
        assert decompress(codec, packed, size) == data
        with pytest.raises(TooLarge):
            decompress(codec, packed, size - 1)
        with pytest.raises(CorruptBatch):
            decompress(codec, packed[:-1], size)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize(
    "size", [0, 1, 1 << 16, (1 << 16) + 1, 1 << 20, POOLED_BYTES - 1, POOLED_BYTES, POOLED_BYTES + 1]
)
def test_pooled_memory_holds_the_same_whatever_was_in_it_before(codec: Codec, size: int) -> None:
    for letter in (b"0123456789abcdef\n", b"\xff"):
        data = (letter * (size // len(letter) + 1))[:size]
        buffer, end = decompress_pooled(codec, compress(codec, data), size)
        assert (end, bytes(memoryview(buffer)[:end])) == (size, data)
        release(buffer)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_pooled_memory_belongs_to_one_content_until_it_is_released(codec: Codec) -> None:
    contents = [bytes((number,)) * 300_000 for number in range(6)]
    held = [decompress_pooled(codec, compress(codec, content), LIMIT) for content in contents]
    assert [bytes(memoryview(buffer)[:end]) for buffer, end in held] == contents
    for buffer, _ in held:
        release(buffer)
    again, _ = decompress_pooled(codec, compress(codec, contents[0]), LIMIT)
    assert any(again is buffer for buffer, _ in held)


def test_other_memory_does_not_get_into_the_pool() -> None:
    others: list[Any] = [bytearray(LIMIT), bytes(LIMIT), memoryview(bytearray(LIMIT))]
    release(*others)
    buffers = [decompress_pooled(Codec.LZ4, compress(Codec.LZ4, bytes(300_000)), LIMIT)[0] for _ in range(6)]
    assert not any(buffer is other for buffer in buffers for other in others)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_threads_may_use_the_pool_at_the_same_time(codec: Codec) -> None:
    contents = [JSON[start : start + 40_000] * 8 for start in range(0, 40_000, 5000)]

    def round_trip(data: bytes) -> bytes:
        buffer, end = decompress_pooled(codec, compress(codec, data), LIMIT)
        plain = bytes(memoryview(buffer)[:end])
        release(buffer)
        return plain

    with ThreadPoolExecutor(max_workers=6) as pool:
        assert list(pool.map(round_trip, contents * 5)) == contents * 5


def test_members_of_gzip_longer_than_the_trailer_says_come_out_whole() -> None:
    first = JSON * 40
    for start in (first, first * 2):
        packed = compress(Codec.GZIP, start) + compress(Codec.GZIP, b"the end")
        buffer, end = decompress_pooled(Codec.GZIP, packed, 2 * POOLED_BYTES + LIMIT)
        assert bytes(memoryview(buffer)[:end]) == start + b"the end"
        release(buffer)


def test_members_of_gzip_that_take_several_pieces_come_out_whole() -> None:
    first, second = bytes(PIECE_BYTES), b"\x01" * (2 * PIECE_BYTES)
    packed = compress(Codec.GZIP, first) + compress(Codec.GZIP, b"") + compress(Codec.GZIP, second)
    assert decompress(Codec.GZIP, packed, 3 * PIECE_BYTES) == first + second
