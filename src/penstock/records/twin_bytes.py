"""Numbers in bytes, for the kernel's twin: varints, sized values, wrapping arithmetic, sizes and shared types.

Rule: what C's fixed widths do by themselves is done here by hand, so that both come to the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview
RecordTuple = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

HEADER_SIZE: Final = 61
LENGTH_END: Final = 12
CRC_START: Final = 21
MIN_LENGTH: Final = HEADER_SIZE - LENGTH_END
MIN_RECORD: Final = 7
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class BadRecordError(Exception):
    """The bytes at hand are not a record; its number is known to the caller."""


def wrap_int64(value: int) -> int:
    """Two's complement, as the compiled kernel's arithmetic wraps."""
    return (value + 2**63) % 2**64 - 2**63


def check_int64(value: int) -> int:
    """The value, where C could hold it."""
    if not -(2**63) <= value <= INT64_MAX:
        raise OverflowError(f"{value} does not fit 64 bits")
    return value


def writable(buffer: Buffer) -> memoryview:
    """The bytes of a buffer that may be changed in place."""
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise BufferError("the buffer is read-only")
    return view


def put_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint of up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_sized(out: bytearray, data: bytes | memoryview | None) -> None:
    """Append a length and the bytes; null has length -1."""
    if data is None:
        out.append(1)
    else:
        put_varint(out, len(data))
        out += data


def get_varint(view: memoryview, position: int, end: int) -> tuple[int, int]:
    """(value, position after it); BadRecordError if it does not end before `end` or within 64 bits."""
    value = shift = 0
    while position < end and shift < 64:
        byte = view[position]
        position += 1
        if byte < 0x80:
            if shift == 63 and byte > 1:
                break
            value |= byte << shift
            return (value >> 1) ^ -(value & 1), position
        value |= (byte & 0x7F) << shift
        shift += 7
    raise BadRecordError


def get_sized(view: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    """(bytes or None, position after them)."""
    length, position = get_varint(view, position, end)
    if length == -1:
        return None, position
    if length < 0 or length > end - position:
        raise BadRecordError
    return bytes(view[position : position + length]), position + length
