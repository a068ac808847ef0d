"""Varints, lengths and tagged fields, and the errors of decoding and encoding: what compiled codecs call.

The common case (lengths below 128, no tagged fields) is inlined in the compiled code; this is the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NoReturn

from penstock.wire.errors import (
    DecodeError,
    EncodeError,
    FieldNotInVersion,
    InvalidLength,
    InvalidUtf8,
    TooManyElements,
    Truncated,
    UnexpectedNull,
    WireError,
)
from penstock.wire.types import Buffer

LONGEST_STRING: Final = 0x7FFF
LONGEST_ANYTHING: Final = 0x7FFFFFFF
BY_REFERENCE_BYTES: Final = 1024
"""Records of at least this size are passed by reference; below it, copying costs less than a chunk."""

SLICE: Final = 1024
"""Elements that a sliced codec reads or writes between two yields: about 2 ms."""

TABLE: Final = 32
_MAX_TAGS: Final = 1000
ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))


def pack_table(prefix: str, code: str) -> list[Callable[..., bytes]]:
    """Packers for 0, 1, 2... values of one type after a prefix, for short arrays."""
    return [struct.Struct(f">{prefix}{code * n}").pack for n in range(TABLE)]


def unpack_table(code: str) -> list[Callable[..., tuple[Any, ...]]]:
    return [struct.Struct(f">{code * n}").unpack_from for n in range(TABLE)]


def repeated(code: str, count: int) -> str:
    """A format for `count` values; a repeat count in front of `16s` would not repeat it."""
    return f">{code * count}" if code[0].isdigit() else f">{count}{code}"


def uvarint(value: int) -> bytes:
    """An unsigned varint of any length."""
    if value < 128:
        if value < 0:
            raise EncodeError(f"unsigned varint {value} is negative")
        return ONE_BYTE[value]
    if value < 1 << 21:
        low, high = value & 127 | 128, value >> 7
        return bytes((low, high)) if high < 128 else bytes((low, high & 127 | 128, high >> 7))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def uvarint_within(value: int, bits: int) -> bytes:
    if value >> bits:
        raise EncodeError(f"{value} does not fit into {bits} unsigned bits")
    return uvarint(value)


def compact_length(length: int, longest: int) -> bytes:
    """The prefix of a compact string: its length plus one, which `length` includes."""
    if length > longest:
        raise EncodeError(f"length {length - 1} exceeds the maximum of {longest - 1}")
    return uvarint(length)


def read_uvarint(buffer: Buffer, position: int, first: int, bits: int = 32) -> tuple[int, int]:
    """The rest of a varint whose first byte, above 127, was read and is just before `position`."""
    value = first & 127
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift >= bits:
            raise InvalidLength(f"varint is longer than {bits} bits")
    if value >> bits:
        raise InvalidLength(f"varint exceeds {bits} bits")
    return value, position


def read_length(buffer: Buffer, position: int, first: int, longest: int) -> tuple[int, int]:
    """A compact length of several bytes, rejected above `longest` (both include the added one)."""
    value, position = read_uvarint(buffer, position, first)
    if value > longest:
        raise InvalidLength(f"length {value - 1} exceeds the maximum of {longest - 1}")
    return value, position


def next_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    first = buffer[position]
    if first < 128:
        return first, position + 1
    return read_uvarint(buffer, position + 1, first)


def read_tags(buffer: Buffer, position: int, first: int) -> tuple[dict[int, bytes], int]:
    """A tagged section as raw bytes by tag. `first`, just before `position`, is the first byte of its count."""
    count, position = (first, position) if first < 128 else read_uvarint(buffer, position, first)
    if count * 2 > len(buffer) - position:
        raise Truncated(f"{count} tagged fields exceed the bytes left")
    if count > _MAX_TAGS:
        raise TooManyElements(f"{count} tagged fields exceed the maximum of {_MAX_TAGS}")
    tags: dict[int, bytes] = {}
    for _ in range(count):
        tag, position = next_uvarint(buffer, position)
        size, position = next_uvarint(buffer, position)
        end = position + size
        if end > len(buffer):
            raise Truncated(f"tagged field {tag} exceeds the message")
        if tag in tags:
            raise DecodeError(f"tagged field {tag} occurs twice")
        tags[tag] = bytes(buffer[position:end])
        position = end
    return tags, position


def write_tags(tags: dict[int, bytes]) -> bytes:
    parts = [uvarint(len(tags))]
    for tag in sorted(tags):
        value = tags[tag]
        parts += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(parts)


def check_tag_end(tag: int, position: int, size: int) -> None:
    if position != size:
        raise InvalidLength(f"tagged field {tag} has {size} bytes, its content {position}")


def bad_length(field: str, length: int) -> NoReturn:
    if length == -1:
        raise UnexpectedNull(field)
    raise InvalidLength(f"{field} has length {length}")


def bad_count(field: str, count: int, left: int) -> NoReturn:
    raise Truncated(f"{field} announces {count} elements, but only {max(left, 0)} bytes are left")


def too_many(field: str) -> NoReturn:
    raise TooManyElements(f"too many elements in the message, at {field}")


def lost_field(message: Any, version: int, flexible: bool, defaults: dict[str, Any]) -> None:
    """Raise FieldNotInVersion for a field that differs from its default; some values only look different."""
    name = type(message).__name__
    for field, default in defaults.items():
        if getattr(message, field) != default:
            raise FieldNotInVersion(name, field, version)
    if message.unknown_tags and not flexible:
        raise FieldNotInVersion(name, "unknown_tags", version)


def decode_error(error: Exception, name: str, version: int) -> WireError:
    """The typed error for an error of `struct`, indexing or UTF-8 decoding."""
    what = f"{name} version {version}"
    if isinstance(error, UnicodeDecodeError):
        return InvalidUtf8(f"{what}: a string is not UTF-8 ({error.reason} at its byte {error.start})")
    return Truncated(f"{what} ends before its fields do")


def overrun_error(name: str, version: int, end: int, size: int) -> WireError:
    return Truncated(f"{name} version {version} needs {end} bytes, has {size}")


def encode_error(error: Exception, name: str, version: int) -> WireError:
    return EncodeError(f"cannot encode {name} version {version}: {error}")
