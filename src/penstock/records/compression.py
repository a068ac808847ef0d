"""The compression codecs of the record formats, numbers 0 to 4 in a batch's attributes, framed as Kafka's clients do.

    none    the bytes themselves
    gzip    one or more gzip members
    snappy  xerial's stream (0x82 "SNAPPY" 0x00, version i32, compatible version i32, then blocks of [length i32]
            [raw snappy]) or one raw block; no end mark, so a stream cut between blocks reads as a shorter one
    lz4     one frame, independent blocks of 64 KiB, no optional fields (all that the first clients read); in magic 0
            the header checksum is wrong in a known way
    zstd    one or more frames, magic 2 only; block headers are read first and give the end and the largest content

A claimed size is checked before memory is allocated, and growth is bounded, so `decompress` never holds much more than
its limit. The libraries are imported on first use: most processes need one codec, many none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cache
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec

if TYPE_CHECKING:
    from penstock.records.types import Buffer


PIECE_BYTES: Final = 1024 * 1024
"""What is taken from a library at a time, because other threads wait while a piece is copied."""

_GZIP_WINDOW_BITS: Final = 31  # a window of 15 bits, +16 for gzip's header and trailer instead of zlib's
_GZIP_CHUNK_BYTES: Final = 32 * 1024

_SNAPPY_MARK: Final[bytes] = b"\x82SNAPPY\x00"
_SNAPPY_HEADER: Final = _SNAPPY_MARK + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
# The densest element is a copy: 3 bytes become 64.
_SNAPPY_DENSEST_FROM: Final = 3
_SNAPPY_DENSEST_TO: Final = 64

_LZ4_MAGIC_BYTES: Final = 4
_LZ4_HAS_CONTENT_SIZE: Final = 0x08
_LZ4_HAS_DICTIONARY_ID: Final = 0x01
_LZ4_CHUNK_BYTES: Final = 64 * 1024
_LZ4_DENSEST: Final = 255  # a further byte of a match's length stands for at most 255 bytes of content

_ZSTD_LEVEL: Final = 3
_ZSTD_MAX_WINDOW: Final = 1 << 27  # what Java's reader accepts, and its writer uses at the highest levels
_ZSTD_MAX_BLOCK: Final = 128 * 1024
_ZSTD_SKIPPABLE: Final = range(0x184D2A50, 0x184D2A60)
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED_BLOCK = 1, 2, 3

# A context costs more to create than a small batch costs to compress, and serves one thread at a time. Taking one out
# of a deque is atomic, so no two threads ever have the same.
_compressors: Final[deque[Any]] = deque(maxlen=4)
_decompressors: Final[deque[Any]] = deque(maxlen=4)


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's or message's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final[Mapping[Codec, range]] = MappingProxyType(
    {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-131_072, 23)}
)
"""The levels of each codec. Codecs that are not listed have none."""


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """Compress `data`. With `level` None the codec's default is used."""
    known = _known(codec, magic)
    if level is not None:
        _check_level(known, level)
    if known is Codec.GZIP:
        return _compress_gzip(data, level)
    if known is Codec.SNAPPY:
        return _compress_snappy(data)
    if known is Codec.LZ4:
        return _compress_lz4(data, level, magic)
    if known is Codec.ZSTD:
        return _compress_zstd(data, level)
    return bytes(data)


def decompress(codec: int, data: Buffer, limit: int, *, magic: int = 2) -> bytes:
    """Decompress `data` to at most `limit` bytes; `TooLarge` if it is more."""
    known = _known(codec, magic)
    if limit < 0:
        raise ValueError(f"limit is {limit}; it must be 0 or more")
    if known is Codec.GZIP:
        return _decompress_gzip(data, limit)
    if known is Codec.SNAPPY:
        return _decompress_snappy(data, limit)
    if known is Codec.LZ4:
        return _decompress_lz4(data, limit, magic)
    if known is Codec.ZSTD:
        return _decompress_zstd(data, limit)
    if len(data) > limit:
        raise TooLarge("the uncompressed records", limit)
    return bytes(data)


def _known(codec: int, magic: int) -> Codec:
    try:
        known = Codec(codec)
    except ValueError:
        raise UnsupportedCodec(f"unknown compression codec {codec}; known are 0 to 4") from None
    if known is Codec.ZSTD and magic < 2:
        raise UnsupportedCodec(f"zstd needs record format (magic) 2; this is {magic}")
    return known


def _check_level(codec: Codec, level: int) -> None:
    levels = LEVELS.get(codec)
    if levels is None:
        raise ValueError(f"{codec.name.lower()} has no compression levels; remove the level {level}")
    if level not in levels:
        raise ValueError(f"{codec.name.lower()} has levels {levels[0]} to {levels[-1]}, not {level}")


# ---------------------------------------------------------------------------------------------------------------- gzip


@cache
def _zlib() -> Any:
    import zlib

    return zlib


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    packed: bytes = _zlib().compress(data, -1 if level is None else level, _GZIP_WINDOW_BITS)
    return packed


def _decompress_gzip(data: Buffer, limit: int) -> bytes:
    zlib = _zlib()
    view = memoryview(data)
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    content = BytesIO()
    position, room = 0, limit
    while position < len(view):
        if member.eof:
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        # In chunks, since zlib copies what follows a member's end: many tiny members would cost quadratic time.
        chunk = view[position : position + _GZIP_CHUNK_BYTES]
        rest: Buffer = chunk
        while True:
            most = min(room + 1, PIECE_BYTES)
            try:
                part = member.decompress(rest, most)
            except zlib.error as error:
                raise CorruptBatch(f"gzip: {error}") from None
            room -= len(part)
            if room < 0:
                raise TooLarge("what gzip decompresses to", limit)
            content.write(part)
            rest = member.unconsumed_tail
            if member.eof or not (rest or len(part) == most):
                break
        position += len(chunk) - len(member.unused_data)
    if not member.eof:
        raise CorruptBatch("gzip: the stream ends before its end mark")
    return content.getvalue()


# -------------------------------------------------------------------------------------------------------------- snappy


@cache
def _cramjam() -> Any:
    import cramjam

    return cramjam


def _compress_snappy(data: Buffer) -> bytes:
    """A xerial stream, which all clients read; some older ones read nothing else."""
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts: list[Any] = [_SNAPPY_HEADER]
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    """The content of a xerial stream or of one raw block."""
    cramjam = _cramjam()
    content = BytesIO()
    room = limit
    for block in _snappy_blocks(memoryview(data)):
        if len(block) == 0:
            raise CorruptBatch("snappy: empty block")
        try:
            claim = cramjam.snappy.decompress_raw_len(block)
            room -= claim
            if room < 0:
                raise TooLarge("what snappy decompresses to", limit)
            if claim * _SNAPPY_DENSEST_FROM > len(block) * _SNAPPY_DENSEST_TO:
                raise CorruptBatch(f"snappy: block of {len(block)} bytes claims to hold {claim}")
            content.write(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise CorruptBatch(str(error)) from None
    return content.getvalue()


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of a stream, whose header may occur again where streams were joined; or all of `view`.

    The header's two versions are ignored: some writers store them little-endian.
    """
    if view[: len(_SNAPPY_MARK)] != _SNAPPY_MARK:
        yield view
        return
    position, end = 0, len(view)
    while position < end:
        if view[position : position + len(_SNAPPY_MARK)] == _SNAPPY_MARK:
            position += len(_SNAPPY_HEADER)
            if position > end:
                raise CorruptBatch("snappy: the stream ends within its header")
            continue
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or position + size > end:
            raise CorruptBatch(f"snappy: block of {size} bytes, {max(end - position, 0)} are left")
        yield view[position : position + size]
        position += size


# ----------------------------------------------------------------------------------------------------------------- lz4


@cache
def _lz4() -> Any:
    import lz4.frame

    return lz4.frame


def _compress_lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    """One frame. With magic 0 it has the header checksum that clients of that time expect."""
    lz4 = _lz4()
    frame: bytes = lz4.compress(
        data,
        compression_level=0 if level is None else level,
        block_size=lz4.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    if magic > 0:
        return frame
    checksum_at = _lz4_checksum_at(frame)
    checksum = _lz4_header_checksum(frame[:checksum_at])
    return b"".join((frame[:checksum_at], bytes((checksum,)), frame[checksum_at + 1 :]))


def _decompress_lz4(data: Buffer, limit: int, magic: int) -> bytes:
    """The content of the one frame that `data` must be."""
    frame = memoryview(data if magic > 0 else _lz4_with_checksum(data))
    decompressor = _lz4().LZ4FrameDecompressor()
    content = BytesIO()
    taken, grown = 0, 0
    while taken < len(frame) and not decompressor.eof:
        chunk = frame[taken : taken + _LZ4_CHUNK_BYTES]
        taken += len(chunk)
        rest: Buffer = chunk
        while True:
            # The library allocates the allowed memory at once, and as much again for the copy that it returns.
            most = min(limit - grown + 1, _LZ4_DENSEST * taken, PIECE_BYTES)
            try:
                grown += content.write(decompressor.decompress(rest, max_length=most))
            except RuntimeError as error:
                raise CorruptBatch(f"lz4: {error}") from None
            if grown > limit:
                raise TooLarge("what lz4 decompresses to", limit)
            if decompressor.eof or decompressor.needs_input:
                break
            rest = b""
    if not decompressor.eof:
        raise CorruptBatch("lz4: the frame ends before its end mark")
    if taken < len(frame) or decompressor.unused_data:
        raise CorruptBatch("lz4: more bytes follow the frame")
    return content.getvalue()


def _lz4_with_checksum(data: Buffer) -> bytes:
    """The frame with the checksum that the format requires, whatever it has.

    Writers of magic 0 disagreed about that byte, and the message's own checksum covers it anyway.
    """
    frame = bytearray(data)
    if len(frame) > _LZ4_MAGIC_BYTES:
        checksum_at = _lz4_checksum_at(frame)
        if checksum_at < len(frame):
            frame[checksum_at] = _lz4_header_checksum(frame[_LZ4_MAGIC_BYTES:checksum_at])
    return bytes(frame)


def _lz4_checksum_at(frame: bytes | bytearray) -> int:
    flags = frame[_LZ4_MAGIC_BYTES]
    content_size = 8 if flags & _LZ4_HAS_CONTENT_SIZE else 0
    dictionary_id = 4 if flags & _LZ4_HAS_DICTIONARY_ID else 0
    return _LZ4_MAGIC_BYTES + 2 + content_size + dictionary_id


def _lz4_header_checksum(header: bytes | bytearray) -> int:
    """The checksum byte of a frame's header.

    The format computes it over the fields after the magic number. The first Java client included the magic number, when
    it wrote and when it checked, so messages of magic 0 have that value.
    """
    return _xxh32_of_few(header) >> 8 & 0xFF


def _xxh32_of_few(data: bytes | bytearray) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes. A header is not longer, and it takes a third of the code."""
    if len(data) >= 16:
        raise ValueError(f"{len(data)} bytes; at most 15 are supported")
    mask = 0xFFFFFFFF
    value = 0x165667B1 + len(data)
    words_end = len(data) & ~3
    for start in range(0, words_end, 4):
        value = (value + int.from_bytes(data[start : start + 4], "little") * 0xC2B2AE3D) & mask
        value = ((value << 17 | value >> 15) * 0x27D4EB2F) & mask
    for byte in data[words_end:]:
        value = (value + byte * 0x165667B1) & mask
        value = ((value << 11 | value >> 21) * 0x9E3779B1) & mask
    value = ((value ^ value >> 15) * 0x85EBCA77) & mask
    value = ((value ^ value >> 13) * 0xC2B2AE3D) & mask
    return value ^ value >> 16


# ---------------------------------------------------------------------------------------------------------------- zstd


class _ZstdFrame(NamedTuple):
    end: int
    claim: int | None
    most: int


@cache
def _zstandard() -> Any:
    import zstandard

    return zstandard


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    """One frame with its content size, without a checksum: the batch has its own."""
    if level is not None and level != _ZSTD_LEVEL:
        once: bytes = _zstandard().ZstdCompressor(level=level).compress(data)
        return once
    try:
        compressor = _compressors.pop()
    except IndexError:
        compressor = _zstandard().ZstdCompressor(level=_ZSTD_LEVEL)
    packed: bytes = compressor.compress(data)
    _compressors.append(compressor)
    return packed


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    """The content of all the frames in `data`."""
    zstandard = _zstandard()
    view = memoryview(data)
    if len(view) == 0:
        raise CorruptBatch("zstd: no frame")
    try:
        decompressor = _decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
    parts: list[bytes] = []
    position, room = 0, limit
    try:
        while position < len(view):
            frame = _zstd_frame_at(view, position)
            if frame.most:
                part = _zstd_content(decompressor, view[position : frame.end], frame, room)
                if part is None:
                    raise TooLarge("what zstd decompresses to", limit)
                room -= len(part)
                parts.append(part)
            position = frame.end
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    _decompressors.append(decompressor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _zstd_frame_at(view: memoryview, start: int) -> _ZstdFrame:
    """The end of the frame at `start`, the content size that it claims, and the most that its blocks can hold."""
    end = len(view)
    if int.from_bytes(view[start : start + 4], "little") in _ZSTD_SKIPPABLE:
        position = start + 8 + int.from_bytes(view[start + 4 : start + 8], "little")
        if position > end:
            raise CorruptBatch("zstd: incomplete skippable frame")
        return _ZstdFrame(position, None, 0)
    header = _zstandard().get_frame_parameters(view[start:])
    position = start + _zstandard().frame_header_size(view[start:])
    largest = min(header.window_size, _ZSTD_MAX_BLOCK)
    most, last = 0, False
    while not last:
        if position + 3 > end:
            raise CorruptBatch("zstd: the frame ends before its last block")
        block = int.from_bytes(view[position : position + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED_BLOCK:
            raise CorruptBatch("zstd: block of the reserved type")
        most += largest if kind == _COMPRESSED_BLOCK else min(size, largest)
        position += 3 + (1 if kind == _RLE_BLOCK else size)
    position += 4 if header.has_checksum else 0
    if position > end:
        raise CorruptBatch("zstd: the frame ends within its last block")
    unsized = header.content_size == _zstandard().CONTENTSIZE_UNKNOWN
    return _ZstdFrame(position, None if unsized else header.content_size, most)


def _zstd_content(decompressor: Any, data: memoryview, frame: _ZstdFrame, room: int) -> bytes | None:
    """The content of one frame; None if it exceeds `room`."""
    content: bytes
    if frame.claim is None:
        with decompressor.stream_reader(data) as reader:
            content = reader.read(min(frame.most, room) + 1)
        return content if len(content) <= room else None
    if frame.claim > frame.most:
        raise CorruptBatch(f"zstd: frame claims {frame.claim} bytes, its blocks hold at most {frame.most}")
    if frame.claim > room:
        return None
    content = decompressor.decompress(data)
    return content
