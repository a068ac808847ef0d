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


_MARK = b"\x82SNAPPY\x00"
_HEADER = _MARK + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
_BLOCK_SIZE = 32 * 1024
# The densest element is a copy: 3 bytes that become 64.
_DENSEST_FROM, _DENSEST_TO = 3, 64


@cache
def _cramjam() -> Any:
    import cramjam

    return cramjam


def _compress_snappy(data: Buffer) -> bytes:
    """A xerial stream, which all clients read; some of the older ones read nothing else."""
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts: list[Any] = [_HEADER]
    for start in range(0, len(view), _BLOCK_SIZE):
        block = compress_raw(view[start : start + _BLOCK_SIZE])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    """The content of a xerial stream or of one raw block."""
    cramjam = _cramjam()
    content = BytesIO()
    room = limit
    for block in _blocks(memoryview(data)):
        if len(block) == 0:
            raise CorruptBatch("snappy: nothing where a block should be")
        try:
            claim = cramjam.snappy.decompress_raw_len(block)
            room -= claim
            if room < 0:
                raise TooLarge("what snappy decompresses to", limit)
            if claim * _DENSEST_FROM > len(block) * _DENSEST_TO:
                raise CorruptBatch(f"snappy: {len(block)} bytes claim to hold {claim}")
            content.write(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise CorruptBatch(str(error)) from None
    return content.getvalue()


def _blocks(view: memoryview) -> Iterator[memoryview]:
    """The raw blocks of a stream, whose header may come again where streams were joined; or all of `view`.

    The header's two versions are not looked at: some writers put them in little-endian.
    """
    if view[: len(_MARK)] != _MARK:
        yield view
        return
    position, end = 0, len(view)
    while position < end:
        if view[position : position + len(_MARK)] == _MARK:
            position += len(_HEADER)
            if position > end:
                raise CorruptBatch("snappy: the stream ends within its header")
            continue
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if size < 0 or position + size > end:
            raise CorruptBatch(f"snappy: a block of {size} bytes where {max(end - position, 0)} are left")
        yield view[position : position + size]
        position += size


_MAGIC_SIZE = 4
_HAS_CONTENT_SIZE = 0x08
_HAS_DICTIONARY_ID = 0x01
_CHUNK = 64 * 1024
PIECE_BYTES: Final = 1024 * 1024
"""What is taken from a library at a time: a piece is copied while no other thread runs."""
_DENSEST = 255  # a further byte of a match's length stands for at most 255 bytes of content


@cache
def _lz4() -> Any:
    import lz4.frame

    return lz4.frame


def _compress_lz4(data: Buffer, level: int | None, magic: int) -> bytes:
    """One frame; with magic 0 under the header checksum that clients of that time expect."""
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
    checksum_at = _checksum_at(frame)
    checksum = _header_checksum(frame[:checksum_at])
    return b"".join((frame[:checksum_at], bytes((checksum,)), frame[checksum_at + 1 :]))


def _decompress_lz4(data: Buffer, limit: int, magic: int) -> bytes:
    """The content of the frame that `data` is, to the last byte."""
    frame = memoryview(data if magic > 0 else _with_right_checksum(data))
    decompressor = _lz4().LZ4FrameDecompressor()
    content = BytesIO()
    taken, grown = 0, 0
    while taken < len(frame) and not decompressor.eof:
        chunk = frame[taken : taken + _CHUNK]
        taken += len(chunk)
        rest: Buffer = chunk
        while True:
            # The library takes the memory it is allowed at once, and as much again for the copy it returns.
            most = min(limit - grown + 1, _DENSEST * taken, PIECE_BYTES)
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


def _with_right_checksum(data: Buffer) -> bytes:
    """The frame under the checksum that the format asks for, whatever is there.

    Writers of magic 0 disagreed about that byte, and the message's own checksum covers it anyway.
    """
    frame = bytearray(data)
    if len(frame) > _MAGIC_SIZE:
        checksum_at = _checksum_at(frame)
        if checksum_at < len(frame):
            frame[checksum_at] = _header_checksum(frame[_MAGIC_SIZE:checksum_at])
    return bytes(frame)


def _checksum_at(frame: bytes | bytearray) -> int:
    flags = frame[_MAGIC_SIZE]
    content_size = 8 if flags & _HAS_CONTENT_SIZE else 0
    dictionary_id = 4 if flags & _HAS_DICTIONARY_ID else 0
    return _MAGIC_SIZE + 2 + content_size + dictionary_id


def _header_checksum(header: bytes | bytearray) -> int:
    """The one byte that guards a frame's header.

    The format computes it over the fields after the magic number. The first Java client took in the magic
    number too, when it wrote and when it checked, so a message of magic 0 carries that other value.
    """
    return _xxh32_of_few(header) >> 8 & 0xFF


def _xxh32_of_few(data: bytes | bytearray) -> int:
    """xxHash32, seed 0, of fewer than 16 bytes: a header is no longer, and it takes a third of the code."""
    if len(data) >= 16:
        raise ValueError(f"{len(data)} bytes are not few: 15 at most")
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


_DEFAULT_LEVEL = 3
_LARGEST_WINDOW = 1 << 27  # what Java's reader takes, and what its writer asks for at the highest levels
_LARGEST_BLOCK = 128 * 1024
_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED_BLOCK = 1, 2, 3

# A context costs more to make than a small batch costs to compress, and serves one thread at a time. Taking
# one out of a deque is atomic, so no two threads ever hold the same.
_compressors: deque[Any] = deque(maxlen=4)
_decompressors: deque[Any] = deque(maxlen=4)


class _Frame(NamedTuple):
    end: int
    claim: int | None
    most: int


@cache
def _zstandard() -> Any:
    import zstandard

    return zstandard


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    """One frame that says its content's size, without a checksum: the batch has its own."""
    if level is not None and level != _DEFAULT_LEVEL:
        once: bytes = _zstandard().ZstdCompressor(level=level).compress(data)
        return once
    try:
        compressor = _compressors.pop()
    except IndexError:
        compressor = _zstandard().ZstdCompressor(level=_DEFAULT_LEVEL)
    packed: bytes = compressor.compress(data)
    _compressors.append(compressor)
    return packed


def _decompress_zstd(data: Buffer, limit: int) -> bytes:
    """The content of all the frames in `data`."""
    zstandard = _zstandard()
    view = memoryview(data)
    if len(view) == 0:
        raise CorruptBatch("zstd: nothing where a frame should begin")
    try:
        decompressor = _decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
    parts: list[bytes] = []
    position, room = 0, limit
    try:
        while position < len(view):
            frame = _frame_at(view, position)
            if frame.most:
                part = _content(decompressor, view[position : frame.end], frame, room)
                if part is None:
                    raise TooLarge("what zstd decompresses to", limit)
                room -= len(part)
                parts.append(part)
            position = frame.end
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd: {error}") from None
    _decompressors.append(decompressor)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _frame_at(view: memoryview, start: int) -> _Frame:
    """Where the frame at `start` ends, how much it claims to hold, and how much its blocks could hold."""
    end = len(view)
    if int.from_bytes(view[start : start + 4], "little") in _SKIPPABLE:
        position = start + 8 + int.from_bytes(view[start + 4 : start + 8], "little")
        if position > end:
            raise CorruptBatch("zstd: a skippable frame ends early")
        return _Frame(position, None, 0)
    header = _zstandard().get_frame_parameters(view[start:])
    position = start + _zstandard().frame_header_size(view[start:])
    largest = min(header.window_size, _LARGEST_BLOCK)
    most, last = 0, False
    while not last:
        if position + 3 > end:
            raise CorruptBatch("zstd: the frame ends before its last block")
        block = int.from_bytes(view[position : position + 3], "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED_BLOCK:
            raise CorruptBatch("zstd: a block of the reserved kind")
        most += largest if kind == _COMPRESSED_BLOCK else min(size, largest)
        position += 3 + (1 if kind == _RLE_BLOCK else size)
    position += 4 if header.has_checksum else 0
    if position > end:
        raise CorruptBatch("zstd: the frame ends within its last block")
    unsized = header.content_size == _zstandard().CONTENTSIZE_UNKNOWN
    return _Frame(position, None if unsized else header.content_size, most)


def _content(decompressor: Any, data: memoryview, frame: _Frame, room: int) -> bytes | None:
    """The content of one whole frame that fits into `room`; None if it does not."""
    content: bytes
    if frame.claim is None:
        with decompressor.stream_reader(data) as reader:
            content = reader.read(min(frame.most, room) + 1)
        return content if len(content) <= room else None
    if frame.claim > frame.most:
        raise CorruptBatch(f"zstd: a frame claims {frame.claim} bytes, its blocks hold {frame.most} at most")
    if frame.claim > room:
        return None
    content = decompressor.decompress(data)
    return content


class Codec(IntEnum):
    """The number in bits 0 to 2 of a batch's or message's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final[Mapping[Codec, range]] = MappingProxyType(
    {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 18), Codec.ZSTD: range(-131_072, 23)}
)
"""The levels that each codec takes; those that are missing here have none."""

_GZIP_WINDOW_BITS = 31  # 15 bits of window, +16 for gzip's header and trailer rather than zlib's
_GZIP_CHUNK = 32 * 1024


def compress(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """The bytes of `data` as `codec` writes them; `level` None is the codec's own default."""
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
    """What `data` was before it was compressed: at most `limit` bytes, else `TooLarge`."""
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
        raise UnsupportedCodec(f"compression codec {codec} is not known; 0 to 4 are") from None
    if known is Codec.ZSTD and magic < 2:
        raise UnsupportedCodec(f"zstd needs record format (magic) 2; this is {magic}")
    return known


def _check_level(codec: Codec, level: int) -> None:
    levels = LEVELS.get(codec)
    if levels is None:
        raise ValueError(f"{codec.name.lower()} has no compression levels, yet level {level} was asked for")
    if level not in levels:
        raise ValueError(f"{codec.name.lower()} takes levels {levels[0]} to {levels[-1]}, not {level}")


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
        # In chunks, since zlib copies what follows a member's end: a stream of many tiny members would cost
        # the square of its length.
        chunk = view[position : position + _GZIP_CHUNK]
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
