"""Integers in bytes (varints, wrapping arithmetic) and batch headers: find, check, patch and write them.

Arithmetic wraps as C's fixed widths do, so that both kernels get the same numbers. Whatever the bytes are, `scan`
reports what is wrong and where, and returns no batch that it did not check.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct, error
from typing import Final

from crc32c import crc32c

from penstock.records.errors import TooLarge
from penstock.records.types import HEADER_SIZE, Buffer

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


_HEADER = Struct(">qiibIhiqqqhii")
_BATCH_LENGTH = Struct(">i")
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")


class BatchHeader:
    """The 61 bytes before a batch's records, and the position of the batch in the scanned buffer."""

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "base_timestamp", "crc", "last_offset_delta", "leader_epoch",
        "max_timestamp", "position", "producer_epoch", "producer_id", "record_count", "size",
    )  # fmt: skip

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def timestamp_type(self) -> int:
        return (self.attributes >> 3) & 1

    @property
    def is_transactional(self) -> bool:
        return (self.attributes & 16) != 0

    @property
    def is_control(self) -> bool:
        return (self.attributes & 32) != 0

    @property
    def has_delete_horizon(self) -> bool:
        return (self.attributes & 64) != 0

    @property
    def last_sequence(self) -> int:
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX

    def _fields(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not BatchHeader:
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return (
            f"BatchHeader(position={self.position}, size={self.size}, offsets={self.base_offset}.."
            f"{self.last_offset}, epoch={self.leader_epoch}, records={self.record_count})"
        )


class Scan:
    """The result of scanning a buffer: complete batches, where they end, and why the scan stopped.

    `problem` is None if the buffer ends with a complete batch, "incomplete" if it ends inside one that needs `needed`
    bytes (0: not even its length is there), or a description of the damage at `end`.
    """

    __slots__ = ("end", "headers", "needed", "problem")

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.end = 0
        self.problem: str | None = None
        self.needed = 0


def _read_header(view: memoryview, position: int, size: int) -> BatchHeader:
    header = BatchHeader()
    header.position = position
    header.size = size
    (
        header.base_offset, _, header.leader_epoch, _, header.crc, header.attributes,
        header.last_offset_delta, header.base_timestamp, header.max_timestamp, header.producer_id,
        header.producer_epoch, header.base_sequence, header.record_count,
    ) = _HEADER.unpack_from(view, position)  # fmt: skip
    return header


def _header_damage(header: BatchHeader) -> str | None:
    """Why this is not a sound magic-2 batch, or None. Checked before the checksum: cheap and exact."""
    last_delta, count = header.last_offset_delta, header.record_count
    if header.base_offset < 0:
        return f"base offset {header.base_offset} is negative"
    if last_delta < 0:
        return f"last offset delta {last_delta} is negative"
    if header.base_offset > INT64_MAX - last_delta - 1:
        return f"offsets overflow: base {header.base_offset} with last offset delta {last_delta}"
    if count < 0:
        return f"record count {count} is negative"
    if count > last_delta + 1:
        return f"{count} records do not fit {last_delta + 1} offsets"
    if header.codec == 0 and count * MIN_RECORD > header.size - HEADER_SIZE:
        return f"{count} records do not fit {header.size - HEADER_SIZE} bytes"
    if header.codec > 4:
        return f"unknown compression codec {header.codec}"
    return None


def _next_batch(
    view: memoryview, position: int, end: int, verify: bool, whole: bool
) -> tuple[BatchHeader | None, str | None, int]:
    """(the header at `position`, None, 0) or (None, why no batch can be taken from there, bytes needed)."""
    available = end - position
    if available < LENGTH_END:
        return None, "incomplete", 0
    length = _BATCH_LENGTH.unpack_from(view, position + 8)[0]
    if available > 16 and view[position + 16] != 2:
        magic = view[position + 16]
        return None, f"magic {magic - (magic >> 7 << 8)} is not 2", 0
    if length < MIN_LENGTH:
        return None, f"length {length} is below the {MIN_LENGTH} bytes of a header", 0
    size = length + LENGTH_END
    if available < (size if whole else HEADER_SIZE):
        return None, "incomplete", size
    header = _read_header(view, position, size)
    damage = _header_damage(header)
    if damage is None and verify and crc32c(view[position + CRC_START : position + size]) != header.crc:
        damage = "checksum does not match"
    return (header, None, 0) if damage is None else (None, damage, 0)


def scan(
    buffer: Buffer,
    start: int = 0,
    end: int = -1,
    verify: bool = True,
    whole: bool = True,
    most: int = INT32_MAX,
) -> Scan:
    """Walk the batches in buffer[start:end], at most `most` of them, checking each; never raises for bad bytes.

    With `verify` the checksum is checked too. Without `whole` (and then without `verify`) a last batch with only its
    header counts, and `end` may be beyond the buffer. A batch of an older magic is damage: the log holds magic 2
    only.
    """
    view = memoryview(buffer).cast("B")
    if end < 0 or end > len(view):
        end = len(view)
    if start < 0 or start > end:
        raise ValueError(f"start {start} is outside of a buffer of {end} bytes")
    if verify and not whole:
        raise ValueError("a batch that is not whole cannot be verified")
    result = Scan()
    position = start
    while position < end and most > 0:
        header, result.problem, result.needed = _next_batch(view, position, end, verify, whole)
        if header is None:
            break
        result.headers.append(header)
        position += header.size
        most -= 1
    result.end = position
    return result


def assign_offsets(buffer: Buffer, headers: Iterable[BatchHeader], offset: int, leader_epoch: int) -> int:
    """Patch base offset and leader epoch of the scanned batches in place, from `offset` on.

    Returns the next free offset. Two batches of 3 and 2 records, assigned from 10: base offsets become 10 and
    13, and 15 is returned.
    """
    view = writable(buffer)
    for header in headers:
        check_header(header)
        if header.position < 0 or header.position > len(view) - HEADER_SIZE:
            raise ValueError(f"batch at {header.position} is outside of a buffer of {len(view)} bytes")
        if not 0 <= offset <= INT64_MAX - header.last_offset_delta - 1:
            raise ValueError(f"offset {offset} cannot be the base of {header.last_offset_delta + 1} offsets")
        _BASE_OFFSET.pack_into(view, header.position, offset)
        _LEADER_EPOCH.pack_into(view, header.position + 12, leader_epoch)
        header.base_offset = offset
        header.leader_epoch = leader_epoch
        offset += header.last_offset_delta + 1
    return offset


def stamp_append_time(buffer: Buffer, header: BatchHeader, now_ms: int) -> None:
    """Change a batch in place to the broker's timestamp: attribute, max timestamp, checksum."""
    check_header(header)
    _stamp(buffer, header, header.attributes | 8, now_ms)


def stamp_create_time(buffer: Buffer, header: BatchHeader, max_timestamp: int) -> None:
    """Change a batch in place to its producer's timestamps, the largest being `max_timestamp`."""
    check_header(header)
    _stamp(buffer, header, header.attributes & ~8, max_timestamp)


def _stamp(buffer: Buffer, header: BatchHeader, attributes: int, max_timestamp: int) -> None:
    view = writable(buffer)
    if header.position < 0 or header.size < HEADER_SIZE or header.position > len(view) - header.size:
        raise ValueError(f"batch at {header.position} is outside of a buffer of {len(view)} bytes")
    header.attributes = attributes
    header.max_timestamp = max_timestamp
    _ATTRIBUTES.pack_into(view, header.position + 21, attributes)
    _MAX_TIMESTAMP.pack_into(view, header.position + 35, max_timestamp)
    header.crc = crc32c(view[header.position + CRC_START : header.position + header.size])
    _CRC.pack_into(view, header.position + 17, header.crc)


def check_header(candidate: object) -> None:
    if type(candidate) is not BatchHeader:
        raise TypeError(f"a BatchHeader is needed, not {type(candidate).__name__}")


def write_header(
    buffer: Buffer, base_offset: int, leader_epoch: int, attributes: int, last_offset_delta: int,
    base_timestamp: int, max_timestamp: int, producer_id: int, producer_epoch: int, base_sequence: int,
    record_count: int,
) -> None:  # fmt: skip
    """Fill the first 61 bytes of a bytearray that holds a whole batch, checksum included."""
    try:
        header = _HEADER.pack(
            base_offset, 0, leader_epoch, 2, 0, attributes, last_offset_delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, record_count,
        )  # fmt: skip
    except error as reason:
        raise OverflowError(f"a field of the batch header does not fit: {reason}") from None
    view = writable(buffer)
    if len(view) < HEADER_SIZE:
        raise ValueError(f"{len(view)} bytes cannot hold a batch header of {HEADER_SIZE}")
    if len(view) - LENGTH_END > INT32_MAX:
        raise TooLarge("a batch", INT32_MAX)
    view[:HEADER_SIZE] = header
    _BATCH_LENGTH.pack_into(view, 8, len(view) - LENGTH_END)
    _CRC.pack_into(view, 17, crc32c(view[CRC_START:]))
