"""The codecs of the record formats: the numbers 0 to 4 in a batch's attributes, framed as Kafka's clients do.

Rule: a sender's claim about a size is checked before memory is taken for it, and what grows is bounded while
it grows, so `decompress` never holds much more than the limit it was given.

    none    the bytes themselves
    gzip    one or more gzip members
    snappy  xerial's stream of blocks, or one raw block       (snappy_stream.py)
    lz4     one lz4 frame, with a quirk in magic 0            (lz4_frame.py)
    zstd    one or more zstd frames, in magic 2 only          (zstd_frame.py)

The libraries are imported when first needed: most processes meet one codec, many none.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.records import lz4_frame, snappy_stream, zstd_frame
from penstock.records.errors import CorruptBatch, TooLarge, UnsupportedCodec
from penstock.records.lz4_frame import PIECE_BYTES

if TYPE_CHECKING:
    from penstock.records.twin import Buffer


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
        return snappy_stream.compress(data)
    if known is Codec.LZ4:
        return lz4_frame.compress(data, level, magic)
    if known is Codec.ZSTD:
        return zstd_frame.compress(data, level)
    return bytes(data)


def decompress(codec: int, data: Buffer, limit: int, *, magic: int = 2) -> bytes:
    """What `data` was before it was compressed: at most `limit` bytes, else `TooLarge`."""
    known = _known(codec, magic)
    if limit < 0:
        raise ValueError(f"limit is {limit}; it must be 0 or more")
    if known is Codec.GZIP:
        return _decompress_gzip(data, limit)
    if known is Codec.SNAPPY:
        return snappy_stream.decompress(data, limit)
    if known is Codec.LZ4:
        return lz4_frame.decompress(data, limit, magic)
    if known is Codec.ZSTD:
        return zstd_frame.decompress(data, limit)
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
