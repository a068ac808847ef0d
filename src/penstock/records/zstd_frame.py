"""Zstandard frames, one or several in a row, skippable ones skipped.

    frame: magic u32, header, blocks of [last 1 bit, kind 2 bits, size 21 bits][bytes], [checksum u32]

Rule: the block headers are walked first. They say where the frame ends, so that a cut one is known before any
work is done, and how much it can hold at most, so that no claim of its header makes us take more memory.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.records.errors import CorruptBatch, TooLarge

if TYPE_CHECKING:
    from penstock.records.twin import Buffer

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


def compress(data: Buffer, level: int | None) -> bytes:
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


def decompress(data: Buffer, limit: int) -> bytes:
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
