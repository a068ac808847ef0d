"""Codecs against bad bytes: truncated, damaged, with a false size, or growing without end."""

from __future__ import annotations

import gzip
import subprocess
import sys
from unittest import mock

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import compression
from penstock.records.compression import Codec, _decompress_long_lz4, compress, decompress, decompress_pooled, release
from penstock.records.errors import CorruptBatch, TooLarge

TEXT = b"".join(b"%d bottles of water on the wall, " % i for i in range(60))
LIMIT = 1 << 20
COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def unsized_zstd(data: bytes) -> bytes:
    streaming = zstandard.ZstdCompressor(level=3).compressobj()
    return streaming.compress(data) + streaming.flush()


STREAMS = {
    "gzip": (Codec.GZIP, compress(Codec.GZIP, TEXT)),
    "gzip members": (Codec.GZIP, gzip.compress(TEXT) + gzip.compress(TEXT)),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT)),
    "raw snappy": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
    "lz4": (Codec.LZ4, compress(Codec.LZ4, TEXT)),
    "lz4 with checksums": (Codec.LZ4, lz4.frame.compress(TEXT, content_checksum=True, block_checksum=True)),
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, TEXT)),
    "zstd without size": (Codec.ZSTD, unsized_zstd(TEXT)),
    "zstd with checksum": (Codec.ZSTD, zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)),
}


def reads_shorter(name: str, cut: int) -> bool:
    """The cuts that no reader can notice: between the members, frames or blocks that make up a stream."""
    if name == "gzip members":
        return cut == len(gzip.compress(TEXT))
    return name == "snappy" and cut == len(XERIAL_HEADER)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("magic", [0, 2])
def test_a_stream_cut_at_any_byte_is_corrupt(name: str, magic: int) -> None:
    codec, stream = STREAMS[name]
    magic = 2 if codec is Codec.ZSTD else magic
    for cut in range(len(stream)):
        if not reads_shorter(name, cut):
            with pytest.raises(CorruptBatch):
                decompress(codec, stream[:cut], LIMIT, magic=magic)


@pytest.mark.parametrize("name", STREAMS)
def test_bytes_after_the_end_are_corrupt(name: str) -> None:
    codec, stream = STREAMS[name]
    for tail in (b"\x00", b"\xff\xff\xff\xff\xff", b"garbage garbage garbage"):
        with pytest.raises(CorruptBatch):
            decompress(codec, stream + tail, LIMIT)


@given(codec=st.sampled_from(COMPRESSING), data=st.binary(max_size=200), magic=st.sampled_from([0, 2]))
@settings(max_examples=300, deadline=None)
def test_garbage_is_rejected_or_stays_within_the_limit(codec: Codec, data: bytes, magic: int) -> None:
    try:
        plain = decompress(codec, data, 1000, magic=2 if codec is Codec.ZSTD else magic)
    except (CorruptBatch, TooLarge):
        return
    assert len(plain) <= 1000


@given(
    name=st.sampled_from(sorted(STREAMS)),
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    limit=st.sampled_from([100, len(TEXT), LIMIT]),
)
@settings(max_examples=400, deadline=None)
def test_a_damaged_stream_is_rejected_or_stays_within_the_limit(
    name: str, edits: list[tuple[int, int]], limit: int
) -> None:
    codec, stream = STREAMS[name]
    damaged = bytearray(stream)
    for position, byte in edits:
        damaged[position % len(damaged)] = byte
    try:
        plain = decompress(codec, damaged, limit)
    except (CorruptBatch, TooLarge):
        return
    assert len(plain) <= limit


# --- sizes that lie -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 0, 5, 1000])
def test_a_xerial_block_of_a_wrong_length_is_corrupt(size: int) -> None:
    block = bytes(cramjam.snappy.compress_raw(TEXT))
    assert len(block) not in (0, 5, 1000)
    stream = XERIAL_HEADER + size.to_bytes(4, "big", signed=True) + block
    with pytest.raises(CorruptBatch):
        decompress(Codec.SNAPPY, stream, LIMIT)


def test_a_snappy_block_that_claims_more_than_it_could_hold_is_corrupt_within_the_limit() -> None:
    with pytest.raises(CorruptBatch, match="claim"):
        decompress(Codec.SNAPPY, b"\x80\x80\x80\x01" + b"\x00" * 10, 1 << 30)


def test_a_snappy_block_that_claims_more_than_the_limit_is_too_large_before_it_is_read() -> None:
    with pytest.raises(TooLarge):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\x00" * 10, LIMIT)


def test_snappy_blocks_share_one_limit() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1000)))
    stream = XERIAL_HEADER + (len(block).to_bytes(4, "big") + block) * 10
    assert decompress(Codec.SNAPPY, stream, 10_000) == bytes(10_000)
    with pytest.raises(TooLarge):
        decompress(Codec.SNAPPY, stream, 9_999)


def test_snappy_of_very_many_blocks_is_read_up_to_the_limit() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"x" * 100))
    sized = len(block).to_bytes(4, "big") + block
    for count in (255, 256, 257, 5000):
        stream = XERIAL_HEADER + sized * count
        assert decompress(Codec.SNAPPY, stream, 100 * count) == b"x" * 100 * count
        with pytest.raises(TooLarge):
            decompress(Codec.SNAPPY, stream, 100 * count - 1)
        with pytest.raises(CorruptBatch):
            decompress(Codec.SNAPPY, stream + b"\0\0\0\0", 100 * count)


def test_the_densest_snappy_there_is_passes_the_check_on_claims() -> None:
    literal, copies = b"\x00a", b"\xfe\x01\x00" * 1000  # one byte, then copies of 64 bytes from one byte back
    claim = 1 + 64 * 1000
    varint = bytes((claim & 0x7F | 0x80, claim >> 7 & 0x7F | 0x80, claim >> 14))
    assert decompress(Codec.SNAPPY, varint + literal + copies, LIMIT) == b"a" * claim


def zstd_frame(claim: int, *blocks: bytes) -> bytes:
    """A frame whose header claims `claim` bytes of content, in one segment."""
    return b"\x28\xb5\x2f\xfd" + b"\xe0" + claim.to_bytes(8, "little") + b"".join(blocks)


def zstd_block(kind: int, size: int, content: bytes, last: bool = True) -> bytes:
    return (last | kind << 1 | size << 3).to_bytes(3, "little") + content


def test_a_zstd_frame_made_by_hand_is_read() -> None:
    assert decompress(Codec.ZSTD, zstd_frame(5, zstd_block(0, 5, b"hello")), LIMIT) == b"hello"
    assert decompress(Codec.ZSTD, zstd_frame(9, zstd_block(1, 9, b"z")), LIMIT) == b"z" * 9


@pytest.mark.parametrize("claim", [4, 6, 1 << 19, 1 << 40, 2**64 - 2])
def test_a_zstd_frame_that_lies_about_its_size_is_rejected(claim: int) -> None:
    with pytest.raises((CorruptBatch, TooLarge)):
        decompress(Codec.ZSTD, zstd_frame(claim, zstd_block(0, 5, b"hello")), LIMIT)


def test_a_zstd_frame_that_claims_more_than_its_blocks_could_hold_takes_no_memory_for_it() -> None:
    with pytest.raises(CorruptBatch, match="claims 524288 bytes, its blocks hold at most 5"):
        decompress(Codec.ZSTD, zstd_frame(1 << 19, zstd_block(0, 5, b"hello")), LIMIT)


def test_a_zstd_block_of_the_reserved_kind_is_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="reserved"):
        decompress(Codec.ZSTD, zstd_frame(5, zstd_block(3, 5, b"hello")), LIMIT)


def test_a_zstd_window_wider_than_any_client_asks_for_is_rejected() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    streaming = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(CorruptBatch, match="memory"):
        decompress(Codec.ZSTD, streaming.compress(TEXT) + streaming.flush(), LIMIT)


def test_zstd_frames_share_one_limit() -> None:
    for frame in (compress(Codec.ZSTD, TEXT), unsized_zstd(TEXT)):
        assert decompress(Codec.ZSTD, frame * 3, 3 * len(TEXT)) == TEXT * 3
        with pytest.raises(TooLarge):
            decompress(Codec.ZSTD, frame * 3, 3 * len(TEXT) - 1)


@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_wrong_checksum_of_zstd_is_corrupt(size: int) -> None:
    data = (TEXT * 200)[:size]
    streaming = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    for packed in (
        zstandard.ZstdCompressor(write_checksum=True).compress(data),
        streaming.compress(data) + streaming.flush(),
    ):
        wrong = packed[:-1] + bytes((packed[-1] ^ 1,))
        for read in (decompress, decompress_pooled):
            with pytest.raises(CorruptBatch):
                read(Codec.ZSTD, wrong, LIMIT)
        assert decompress(Codec.ZSTD, packed, LIMIT) == data


@pytest.mark.parametrize("name", STREAMS)
def test_large_streams_that_are_cut_or_go_on_are_rejected_in_pooled_memory_too(name: str) -> None:
    codec, _ = STREAMS[name]
    data = TEXT * 200
    stream = {
        "gzip members": gzip.compress(data) + gzip.compress(data),
        "raw snappy": bytes(cramjam.snappy.compress_raw(data)),
        "lz4 with checksums": lz4.frame.compress(data, content_checksum=True, block_checksum=True),
        "zstd without size": unsized_zstd(data),
        "zstd with checksum": zstandard.ZstdCompressor(write_checksum=True).compress(data),
    }.get(name, compress(codec, data))
    for bad in (stream[:-1], stream[: len(stream) // 3], stream + b"\0", b"\xff" * 9 + stream[9:]):
        with pytest.raises((CorruptBatch, TooLarge)):
            decompress_pooled(codec, bad, LIMIT)
    buffer, end = decompress_pooled(codec, stream, LIMIT)
    assert bytes(memoryview(buffer)[:end]) in (data, data * 2)
    release(buffer)


def test_zstd_works_again_after_an_error() -> None:
    for bad in (zstd_frame(4, zstd_block(0, 5, b"hello")), unsized_zstd(bytes(LIMIT + 1))):
        with pytest.raises((CorruptBatch, TooLarge)):
            decompress(Codec.ZSTD, bad, LIMIT)
        assert decompress(Codec.ZSTD, compress(Codec.ZSTD, TEXT), LIMIT) == TEXT


def test_an_lz4_header_that_claims_petabytes_is_rejected() -> None:
    frame = bytearray(lz4.frame.compress(TEXT, store_size=True))
    frame[6:14] = (1 << 50).to_bytes(8, "little")
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, bytes(frame), LIMIT, magic=0)  # magic 0 puts the header's checksum right


def test_an_lz4_header_checksum_that_is_wrong_counts_from_magic_1_on() -> None:
    with pytest.raises(CorruptBatch):
        decompress(Codec.LZ4, compress(Codec.LZ4, TEXT, magic=0), LIMIT, magic=1)


LZ4_TEXT = b"".join(b"%d bottles of water on the wall, " % i for i in range(12_000))
LZ4_FRAMES = [
    lz4.frame.compress(LZ4_TEXT[:size], block_linked=False, **options)
    for size in (1000, 100_000, 300_000)
    for options in ({"store_size": False}, {"content_checksum": True, "block_checksum": True}, {"block_size": 6})
]


@given(
    frame=st.sampled_from(LZ4_FRAMES),
    edits=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
    header_edit=st.none() | st.tuples(st.integers(0, 20), st.integers(0, 255)),
    cut=st.sampled_from([0, 0, 0, 1, 4, 5, 100]),
    tail=st.sampled_from([b"", b"", b"\0", b"\0\0\0\0", b"garbage"]),
    limit=st.sampled_from([1000, 100_000, 299_999, 300_000, 1 << 20]),
)
@settings(max_examples=500, deadline=None)
def test_lz4_at_once_and_lz4_in_pieces_agree(
    frame: bytes,
    edits: list[tuple[int, int]],
    header_edit: tuple[int, int] | None,
    cut: int,
    tail: bytes,
    limit: int,
) -> None:
    damaged = bytearray(frame[: len(frame) - cut] + tail)
    for position, byte in edits + ([] if header_edit is None else [header_edit]):
        damaged[position % len(damaged)] = byte
    try:
        expected: bytes | type = bytes(_decompress_long_lz4(memoryview(damaged), limit)[0])
    except (CorruptBatch, TooLarge) as error:
        expected = type(error)
    for headers in (compression._lz4_plain_headers, dict):  # with block by block, and without
        try:
            with mock.patch.object(compression, "_lz4_plain_headers", headers):
                found: bytes | type = decompress(Codec.LZ4, damaged, limit)
        except (CorruptBatch, TooLarge) as error:
            found = type(error)
        assert found == expected


def test_the_densest_lz4_there_is_is_read_whole() -> None:
    plain = bytes(4 << 20)
    assert decompress(Codec.LZ4, lz4.frame.compress(plain, block_size=7, compression_level=12), len(plain)) == plain


def test_a_stream_of_very_many_empty_gzip_members_is_read() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"") * 20_000, 0) == b""


# --- bombs --------------------------------------------------------------------------------------------------

BOMBS = """
import resource, zlib, cramjam, lz4.frame
from penstock.records.compression import Codec, decompress
from penstock.records.errors import TooLarge

MIB = 1 << 20
LIMIT = 32 * MIB

def gzip_bomb():
    # A full flush forgets what came before it, so the same piece may be repeated.
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    start = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + piece * 1023 + packer.flush()

def xerial_bomb():
    block = bytes(cramjam.snappy.compress_raw(bytes(32 * 1024)))
    return b"\\x82SNAPPY\\0\\0\\0\\0\\1\\0\\0\\0\\1" + (len(block).to_bytes(4, "big") + block) * (32 * 1024)

def lz4_bomb():
    frame = lz4.frame.compress(bytes(4 * MIB), block_size=7, block_linked=False, store_size=False)
    return frame[:7] + frame[7:-4] * 256 + frame[-4:]

def zstd_bomb(header):
    rle = (1 << 1 | 128 * 1024 << 3).to_bytes(3, "little") + b"\\0"
    return b"\\x28\\xb5\\x2f\\xfd" + header + rle * 8191 + (rle[0] | 1).to_bytes(1, "little") + rle[1:]

sized = zstd_bomb(b"\\xe0" + (1 << 30).to_bytes(8, "little"))
lying = zstd_bomb(b"\\xe0" + (3 * MIB).to_bytes(8, "little"))
unsized = zstd_bomb(b"\\x00" + bytes(((27 - 10) << 3,)))
bombs = [
    (Codec.GZIP, gzip_bomb()), (Codec.SNAPPY, xerial_bomb()), (Codec.LZ4, lz4_bomb()),
    (Codec.ZSTD, sized), (Codec.ZSTD, lying), (Codec.ZSTD, unsized),
]
for codec in Codec:
    try:
        decompress(codec, b"x" * 20, LIMIT)
    except Exception:
        pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in bombs:
    try:
        decompress(codec, bomb, LIMIT)
    except Exception as error:
        print(codec.name, type(error).__name__)
    else:
        print(codec.name, "went off")
print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss has another unit elsewhere")
def test_a_gibibyte_of_zeros_is_rejected_without_the_memory_for_it() -> None:
    ran = subprocess.run([sys.executable, "-c", BOMBS], capture_output=True, text=True, check=True)
    *errors, memory = ran.stdout.splitlines()
    assert errors == [
        "GZIP TooLarge",
        "SNAPPY TooLarge",
        "LZ4 TooLarge",
        "ZSTD TooLarge",
        "ZSTD CorruptBatch",
        "ZSTD TooLarge",
    ]
    taken_kib = int(memory.split()[1])
    assert taken_kib < 64 * 1024
