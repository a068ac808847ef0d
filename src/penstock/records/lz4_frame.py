"""LZ4 frames as Kafka's clients read and write them.

    frame: magic u32, flags u8, block descriptor u8, [content size u64], [dictionary id u32],
           header checksum u8, blocks of [size u32][bytes], end mark u32 0, [content checksum u32]

Rule: one frame, nothing after it. Written with independent blocks of 64 KiB and no optional fields, which is
all that the first clients can read. With magic 0 the header checksum is wrong in a known way, see
`_header_checksum`.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from penstock.records.errors import CorruptBatch, TooLarge

if TYPE_CHECKING:
    from penstock.records.twin import Buffer

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


def compress(data: Buffer, level: int | None, magic: int) -> bytes:
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


def decompress(data: Buffer, limit: int, magic: int) -> bytes:
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
