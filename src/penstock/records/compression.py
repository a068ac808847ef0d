"""The compression codecs of the record formats, numbers 0 to 4 in a batch's attributes, framed as Kafka's clients do.

    none    the bytes themselves
    gzip    one or more gzip members
    snappy  xerial's stream (0x82 "SNAPPY" 0x00, version i32, compatible version i32, then blocks of [length i32]
            [raw snappy]) or one raw block; no end mark, so a stream cut between blocks reads as a shorter one
    lz4     one frame, independent blocks of 64 KiB, no optional fields (all that the first clients read); in magic 0
            the header checksum is wrong in a known way
    zstd    one or more frames, magic 2 only; block headers are read first and give the end and the largest content

A claimed size is checked before memory is allocated, and growth is bounded, so `decompress` never holds much more than
its limit. Content of up to 4 MiB is decompressed into pooled memory. The libraries are imported on first use: most
processes need one codec, many none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import cache
from io import BytesIO
from itertools import islice
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec

if TYPE_CHECKING:
    from penstock.records.types import Buffer


PIECE_BYTES: Final = 256 * 1024
"""What is taken from a library at a time: other threads wait while a piece is copied, and the memory of larger ones
goes back to the system each time."""
POOLED_BYTES: Final = 4 * 1024 * 1024
"""The largest content that is decompressed into pooled memory."""
_POOL_STEP_BYTES: Final = 256 * 1024
_UNPOOLED_BYTES: Final = 64 * 1024  # up to this size fresh memory costs little: allocators keep it

_GZIP_WINDOW_BITS: Final = 31  # a window of 15 bits, +16 for gzip's header and trailer instead of zlib's
# zlib copies matches faster within what one call returns than from what earlier calls returned: 15 % of all time.
_GZIP_CHUNK_BYTES: Final = 256 * 1024
_GZIP_MEMBER_BYTES: Final = 32 * 1024
_GZIP_DENSEST: Final = 1032  # a bit stands for at most 129 bytes: a match of 258 in two bits

_SNAPPY_MARK: Final[bytes] = b"\x82SNAPPY\x00"
_SNAPPY_HEADER: Final = _SNAPPY_MARK + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
_SNAPPY_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_BLOCKS_MOST: Final = 256
# The densest element is a copy: 3 bytes become 64.
_SNAPPY_DENSEST_FROM: Final = 3
_SNAPPY_DENSEST_TO: Final = 64

_LZ4_MAGIC: Final[bytes] = b"\x04\x22\x4d\x18"
_LZ4_MAGIC_BYTES: Final = 4
_LZ4_HEADER_BYTES: Final = 7  # without optional fields
_LZ4_PLAIN: Final = 0x60  # version 1, independent blocks
_LZ4_HAS_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_HAS_CONTENT_SIZE: Final = 0x08
_LZ4_HAS_CHECKSUM: Final = 0x04
_LZ4_HAS_DICTIONARY_ID: Final = 0x01
_LZ4_BLOCK_HEADER: Final = Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_BLOCKS_MOST: Final = 64  # of 64 KiB: 4 MiB
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


class _PoolBuffer(bytearray):
    """A buffer of the pool, by its type: no other memory gets there."""

    __slots__ = ()


# By the same rule. The system clears fresh memory page by page, which takes longer than lz4 does.
_pool: Final[deque[_PoolBuffer]] = deque(maxlen=4)

_Content: TypeAlias = tuple[bytes | _PoolBuffer, int]  # a buffer, and how many bytes of it are the content


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
    buffer, size = _decompress(codec, data, limit, magic, pooled=False)
    if isinstance(buffer, bytes):
        return buffer
    content = bytes(memoryview(buffer)[:size])
    release(buffer)
    return content


def decompress_pooled(codec: int, data: Buffer, limit: int, *, magic: int = 2) -> tuple[Buffer, int]:
    """The same without a copy: a buffer, which may be longer than the content, and the content's size.

    The buffer is the caller's until `release`. Content above POOLED_BYTES has memory of its own.
    """
    return _decompress(codec, data, limit, magic, pooled=True)


def release(*buffers: Buffer) -> None:
    """Give buffers of `decompress_pooled` back, once: other content overwrites them. Other buffers are left alone."""
    for buffer in buffers:
        if isinstance(buffer, _PoolBuffer):
            _pool.append(buffer)


def _decompress(codec: int, data: Buffer, limit: int, magic: int, *, pooled: bool) -> _Content:
    """Unless `pooled`, zstd decompresses into the bytes that `decompress` returns, which saves a copy."""
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
        return _decompress_zstd(data, limit, pooled=pooled)
    if len(data) > limit:
        raise TooLarge("the uncompressed records", limit)
    return bytes(data), len(data)


def _take(size: int) -> _PoolBuffer:
    """A buffer of at least `size` bytes, which are at most POOLED_BYTES, with anything in it."""
    try:
        buffer = _pool.pop()
    except IndexError:
        buffer = _PoolBuffer()
    if len(buffer) < size or not buffer:
        buffer = _PoolBuffer(-(-max(size, 1) // _POOL_STEP_BYTES) * _POOL_STEP_BYTES)
    return buffer


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


def _decompress_gzip(data: Buffer, limit: int) -> _Content:
    view = memoryview(data)
    content = _Pieces(_gzip_claim(view, limit))
    try:
        _inflate(view, limit, content)
    except TooLarge:
        content.discard()
        raise
    return content.taken()


def _inflate(view: memoryview, limit: int, content: _Pieces) -> None:
    zlib = _zlib()
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    position, room, step = 0, limit, _GZIP_CHUNK_BYTES
    while position < len(view):
        if member.eof:
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
            # zlib copies what follows a member's end: many tiny members would cost quadratic time.
            step = _GZIP_MEMBER_BYTES
        chunk = view[position : position + step]
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


def _gzip_claim(view: memoryview, limit: int) -> int:
    """What the trailer says that the last member holds, usually the only one. It decides about memory only."""
    return min(int.from_bytes(view[-4:], "little"), len(view) * _GZIP_DENSEST, limit)


class _Pieces:
    """Content that comes in pieces: in a buffer of the pool if that is long enough, else in memory that grows."""

    __slots__ = ("_buffer", "_long", "_size")

    def __init__(self, claim: int) -> None:
        self._buffer = _take(claim if claim <= POOLED_BYTES else 0)
        self._size = 0
        self._long: BytesIO | None = None

    def write(self, part: Buffer) -> None:
        if self._long is None:
            end = self._size + len(part)
            if end <= len(self._buffer):
                self._buffer[self._size : end] = part
                self._size = end
                return
            self._long = BytesIO()
            self._long.write(memoryview(self._buffer)[: self._size])
            release(self._buffer)
        self._long.write(part)

    def discard(self) -> None:
        if self._long is None:
            release(self._buffer)

    def taken(self) -> _Content:
        if self._long is None:
            return self._buffer, self._size
        content = self._long.getvalue()
        return content, len(content)


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


def _decompress_snappy(data: Buffer, limit: int) -> _Content:
    """The content of a xerial stream or of one raw block."""
    snappy = _cramjam().snappy
    blocks = _snappy_blocks(memoryview(data))
    few = list(islice(blocks, _SNAPPY_BLOCKS_MOST))
    size = 0
    try:
        for block in few:
            size += _snappy_claim(block, size, limit)
        if len(few) < _SNAPPY_BLOCKS_MOST and size <= POOLED_BYTES:
            buffer, end = _take(size), 0
            with memoryview(buffer) as content:
                for block in few:
                    end += snappy.decompress_raw_into(block, content[end:])
            return buffer, end
        long = BytesIO()
        for block in few:
            long.write(snappy.decompress_raw(block))
        for block in blocks:
            size += _snappy_claim(block, size, limit)
            long.write(snappy.decompress_raw(block))
    except _cramjam().DecompressionError as error:
        raise CorruptBatch(str(error)) from None
    return long.getvalue(), size


def _snappy_claim(block: memoryview, before: int, limit: int) -> int:
    """What a block claims to hold: as much as it can, and within the limit with what was `before`."""
    if len(block) == 0:
        raise CorruptBatch("snappy: empty block")
    claim: int = _cramjam().snappy.decompress_raw_len(block)
    if before + claim > limit:
        raise TooLarge("what snappy decompresses to", limit)
    if claim * _SNAPPY_DENSEST_FROM > len(block) * _SNAPPY_DENSEST_TO:
        raise CorruptBatch(f"snappy: block of {len(block)} bytes claims to hold {claim}")
    return claim


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


class _Lz4Frame(NamedTuple):
    blocks: list[tuple[int, int]]
    """Where each begins, and its size, plus _LZ4_STORED if it is not compressed."""
    most: int
    """What they hold at most."""


def _decompress_lz4(data: Buffer, limit: int, magic: int) -> _Content:
    """The content of the one frame that `data` must be."""
    view = memoryview(data if magic > 0 else _lz4_with_checksum(data))
    frame = _lz4_frame(view)
    if frame is None or frame.most > min(limit, POOLED_BYTES):
        return _decompress_long_lz4(view, limit)
    lz4, buffer = _cramjam().lz4, _take(frame.most)
    try:
        largest = _lz4_plain_headers().get(bytes(view[:_LZ4_HEADER_BYTES]))
        if largest is None:
            return buffer, lz4.decompress_into(view, buffer)
        # Block by block: for whole frames the library allocates as much memory again, and frees it.
        size = 0
        with memoryview(buffer) as content:
            for start, block in frame.blocks:
                if block & _LZ4_STORED:
                    end = size + block - _LZ4_STORED
                    content[size:end] = view[start : start + end - size]
                    size = end
                else:
                    space = content[size : size + largest]
                    size += lz4.decompress_block_into(view[start : start + block], space, output_len=len(space))
    except _cramjam().DecompressionError as error:
        raise CorruptBatch(f"lz4: {str(error).removeprefix('lz4: ')}") from None
    return buffer, size


def _lz4_frame(view: memoryview) -> _Lz4Frame | None:
    """The blocks of a frame; None if they are many, or if `view` is anything but one frame of the usual kind."""
    end = len(view)
    if view[:_LZ4_MAGIC_BYTES] != _LZ4_MAGIC or end < _LZ4_HEADER_BYTES:
        return None
    flags, descriptor = view[_LZ4_MAGIC_BYTES], view[_LZ4_MAGIC_BYTES + 1]
    largest = 1 << 8 + 2 * (descriptor >> 4 & 7)  # 4 is 64 KiB, 7 is 4 MiB
    checksum_bytes = 4 if flags & _LZ4_HAS_BLOCK_CHECKSUMS else 0
    position = _lz4_checksum_at(view) + 1
    end -= 4 if flags & _LZ4_HAS_CHECKSUM else 0
    blocks: list[tuple[int, int]] = []
    most = 0
    while len(blocks) <= _LZ4_BLOCKS_MOST and position + 4 <= end:
        (block,) = _LZ4_BLOCK_HEADER.unpack_from(view, position)
        position += 4
        if block == 0:
            return _Lz4Frame(blocks, most) if position == end else None
        size = block & ~_LZ4_STORED
        if size > largest:
            return None
        most += size if block & _LZ4_STORED else min(size * _LZ4_DENSEST, largest)
        blocks.append((position, block))
        position += size + checksum_bytes
    return None


@cache
def _lz4_plain_headers() -> Mapping[bytes, int]:
    """The headers of independent blocks without any option, and the largest block: what Kafka's clients write.

    None with a cramjam before 2.11, which cannot decompress blocks that do not begin with their size.
    """
    plain: dict[bytes, int] = {}
    if "output_len" not in (_cramjam().lz4.decompress_block_into.__text_signature__ or ""):
        return plain
    for size in range(4, 8):
        descriptor = bytes((_LZ4_PLAIN, size << 4))
        plain[_LZ4_MAGIC + descriptor + bytes((_lz4_header_checksum(descriptor),))] = 1 << 8 + 2 * size
    return plain


def _decompress_long_lz4(frame: memoryview, limit: int) -> _Content:
    """The content of any frame, in pieces."""
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
    return content.getvalue(), grown


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


def _lz4_checksum_at(frame: Buffer) -> int:
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

    @property
    def size(self) -> int:
        """What it holds, or at most holds where it does not say."""
        return self.most if self.claim is None else self.claim


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


def _decompress_zstd(data: Buffer, limit: int, *, pooled: bool) -> _Content:
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
    pooled_most = min(limit, POOLED_BYTES - 1) if pooled else 0
    try:
        while position < len(view):
            frame = _zstd_frame_at(view, position)
            if not parts and frame.end == len(view) and _UNPOOLED_BYTES < frame.size <= pooled_most:
                only = _zstd_pooled(decompressor, view[position:], frame)
                _decompressors.append(decompressor)
                return only
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
    return parts[0] if len(parts) == 1 else b"".join(parts), limit - room


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


def _zstd_pooled(decompressor: Any, data: memoryview, frame: _ZstdFrame) -> _Content:
    """The content of the only frame, which is not too large."""
    if frame.size > frame.most:
        raise CorruptBatch(f"zstd: frame claims {frame.size} bytes, its blocks hold at most {frame.most}")
    # Were the buffer full with the last byte, the reader would not look at the checksum behind it.
    buffer = _take(frame.size + 1)
    with decompressor.stream_reader(data) as reader, memoryview(buffer) as whole, whole[: frame.size + 1] as content:
        size = reader.readinto(content)
    if frame.claim not in (size, None):
        raise CorruptBatch(f"zstd: frame claims {frame.claim} bytes and holds {size}")
    return buffer, size


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
