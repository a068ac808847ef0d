"""Snappy as Kafka's clients frame it: xerial's stream of raw blocks, or one raw block alone.

    stream: 0x82 "SNAPPY" 0x00, version i32, compatible version i32, then blocks of [length i32][raw snappy]

Rule: a raw block says in its first bytes how much it holds; that is checked against the limit, and against
what so few bytes could hold at best, before the block is touched. The stream has no end mark: one that was
cut exactly between two blocks reads as a shorter stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any

from penstock.records.errors import CorruptBatch, TooLarge

if TYPE_CHECKING:
    from penstock.records.twin import Buffer

_MARK = b"\x82SNAPPY\x00"
_HEADER = _MARK + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x01"
_BLOCK_SIZE = 32 * 1024
# The densest element is a copy: 3 bytes that become 64.
_DENSEST_FROM, _DENSEST_TO = 3, 64


@cache
def _cramjam() -> Any:
    import cramjam

    return cramjam


def compress(data: Buffer) -> bytes:
    """A xerial stream, which all clients read; some of the older ones read nothing else."""
    compress_raw = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts: list[Any] = [_HEADER]
    for start in range(0, len(view), _BLOCK_SIZE):
        block = compress_raw(view[start : start + _BLOCK_SIZE])
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def decompress(data: Buffer, limit: int) -> bytes:
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
