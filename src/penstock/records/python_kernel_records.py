"""Records to bytes and back, and what a broker does with them: validation and compaction.

The records of a batch fill its bytes exactly; nothing is returned of a batch that does not parse. Validation is
stricter than parsing, so that every consumer can read what passes: integers of at most five bytes and 32 bits, as
Java's clients require, no top bit in the attributes, header names in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from penstock.records.errors import CorruptBatch, TooLarge
from penstock.records.python_kernel_batch import (
    INT32_MAX,
    MIN_RECORD,
    BadRecordError,
    check_int64,
    get_sized,
    get_varint,
    put_sized,
    put_varint,
    wrap_int64,
)
from penstock.records.types import HEADER_SIZE, Buffer, RecordTuple

Headers: TypeAlias = Iterable[tuple[str, bytes | None]]


def as_bytes(value: object, what: str) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a record's {what} must be bytes or None, not {type(value).__name__}")


def encode_headers(headers: Headers | None) -> bytearray:
    """Headers as a record has them: their count, then each."""
    pairs = []
    for name, value in headers or ():
        if not isinstance(name, str):
            raise TypeError(f"a header's key must be str, not {type(name).__name__}")
        pairs.append((name.encode(), as_bytes(value, "header value")))
    out = bytearray()
    put_varint(out, len(pairs))
    for name_bytes, content in pairs:
        put_sized(out, name_bytes)
        put_sized(out, content)
    return out


def _record_body(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> bytearray:
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    put_sized(body, as_bytes(key, "key"))
    put_sized(body, as_bytes(value, "value"))
    body += encode_headers(headers)
    if len(body) > INT32_MAX:
        raise TooLarge("a record", INT32_MAX)
    return body


def _next_delta(deltas: Iterator[int]) -> int:
    try:
        delta = next(deltas)
    except StopIteration:
        raise ValueError("there are fewer offsets than records") from None
    if not 0 <= delta <= INT32_MAX:
        raise ValueError(f"offset delta {delta} is outside of 0 to {INT32_MAX}")
    return delta


def encode_records(records: Iterable[RecordTuple], offsets: Iterable[int] | None = None) -> tuple[bytearray, int, int]:
    """(a bytearray with 61 bytes left free for the header, then the records; base timestamp; max timestamp).

    `records` are (timestamp_ms, key, value, headers) tuples; `offsets` their deltas where these have gaps.
    """
    out = bytearray(HEADER_SIZE)
    base_timestamp = max_timestamp = -1
    deltas = None if offsets is None else iter(offsets)
    for index, (timestamp, key, value, headers) in enumerate(records):
        check_int64(timestamp)
        if index == 0:
            base_timestamp = max_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        offset_delta = index if deltas is None else _next_delta(deltas)
        body = _record_body(wrap_int64(timestamp - base_timestamp), offset_delta, key, value, headers)
        put_varint(out, len(body))
        out += body
    return out, base_timestamp, max_timestamp


class Record:
    """A record: offset, timestamp in milliseconds, key, value, headers as ((name, value), ...)."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def _fields(self) -> tuple[object, ...]:
        return (self.offset, self.timestamp, self.key, self.value, self.headers)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Record:
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return (
            f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )


class Parsed:
    """One record, not yet an object of its own: deltas as they stand, header names not yet decoded."""

    __slots__ = ("after_timestamp", "end", "headers", "key", "offset_delta", "timestamp_delta", "value")

    after_timestamp: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def _parse_record(view: memoryview, position: int, limit: int) -> Parsed:
    parsed = Parsed()
    length, position = get_varint(view, position, limit)
    if length < MIN_RECORD - 1 or length > limit - position:
        raise BadRecordError
    end = parsed.end = position + length
    parsed.timestamp_delta, position = get_varint(view, position + 1, end)
    parsed.after_timestamp = position
    parsed.offset_delta, position = get_varint(view, position, end)
    parsed.key, position = get_sized(view, position, end)
    parsed.value, position = get_sized(view, position, end)
    count, position = get_varint(view, position, end)
    if count < 0 or count > (end - position) // 2:
        raise BadRecordError
    parsed.headers = []
    for _ in range(count):
        name, position = get_sized(view, position, end)
        if name is None:
            raise BadRecordError
        content, position = get_sized(view, position, end)
        parsed.headers.append((name, content))
    if position != end or not 0 <= parsed.offset_delta <= INT32_MAX:
        raise BadRecordError
    return parsed


def check_range(buffer: Buffer, start: int, end: int, count: int) -> memoryview:
    """The bytes of a buffer, if `count` records can be in buffer[start:end]."""
    view = memoryview(buffer).cast("B")
    if start < 0 or end < start or end > len(view):
        raise ValueError(f"bytes {start} to {end} are outside of a buffer of {len(view)} bytes")
    if count < 0 or count > (end - start) // MIN_RECORD:
        raise CorruptBatch(f"{count} records do not fit {end - start} bytes")
    return view


def parse_records(view: memoryview, start: int, end: int, count: int) -> Iterator[Parsed]:
    """The records in view[start:end]; CorruptBatch unless they are exactly `count` and fill it."""
    position = start
    for index in range(count):
        try:
            parsed = _parse_record(view, position, end)
        except BadRecordError:
            raise CorruptBatch(f"record {index} of the batch does not parse") from None
        position = parsed.end
        yield parsed
    if position != end:
        raise CorruptBatch(f"{end - position} bytes follow the last record of the batch")


def decode_headers(headers: list[tuple[bytes, bytes | None]]) -> tuple[tuple[str, bytes | None], ...]:
    """A record's headers, their names as text."""
    try:
        return tuple([(name.decode(), content) for name, content in headers])
    except UnicodeDecodeError:
        raise CorruptBatch("a header's key is not UTF-8") from None


def decode_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None = None,
) -> list[Record]:
    """The records in buffer[start:end], already decompressed, as objects.

    `append_time` overrides their timestamps.
    """
    view = check_range(buffer, start, end, count)
    return [
        Record(
            wrap_int64(base_offset + parsed.offset_delta),
            wrap_int64(base_timestamp + parsed.timestamp_delta) if append_time is None else append_time,
            parsed.key,
            parsed.value,
            decode_headers(parsed.headers),
        )
        for parsed in parse_records(view, start, end, count)
    ]


def count_null_keys(buffer: Buffer, start: int, end: int, count: int) -> int:
    """How many records have no key. A compacted log accepts none."""
    view = check_range(buffer, start, end, count)
    return sum(parsed.key is None for parsed in parse_records(view, start, end, count))


def index_keys(buffer: Buffer, start: int, end: int, count: int, base_offset: int, newest: dict[bytes, int]) -> None:
    """Store in `newest` (key: offset) the last offset of every key in the batch."""
    view = check_range(buffer, start, end, count)
    for parsed in parse_records(view, start, end, count):
        if parsed.key is not None:
            newest[parsed.key] = wrap_int64(base_offset + parsed.offset_delta)


def filter_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    newest: dict[bytes, int],
    keep_tombstones: bool,
    new_base_timestamp: int,
) -> tuple[bytearray, int, int, int]:
    """(records kept as a bytearray after 61 free bytes, how many, how many of them tombstones, max timestamp).

    A record stays if no later one of its key is in `newest`; a tombstone (null value) only with
    `keep_tombstones`; a record without key never does. What stays is copied byte for byte, but for its timestamp
    delta, which is computed from `new_base_timestamp`. The max timestamp of none is -1.
    """
    view = check_range(buffer, start, end, count)
    out, kept, tombstones, max_timestamp = bytearray(HEADER_SIZE), 0, 0, -1
    for parsed in parse_records(view, start, end, count):
        if parsed.key is None or (parsed.value is None and not keep_tombstones):
            continue
        offset = wrap_int64(base_offset + parsed.offset_delta)
        if newest.get(parsed.key, offset) > offset:
            continue
        timestamp = wrap_int64(base_timestamp + parsed.timestamp_delta)
        body = bytearray(1)
        put_varint(body, wrap_int64(timestamp - new_base_timestamp))
        body += view[parsed.after_timestamp : parsed.end]
        put_varint(out, len(body))
        out += body
        kept += 1
        tombstones += parsed.value is None
        max_timestamp = max(max_timestamp, timestamp)
    return out, kept, tombstones, max_timestamp


UNREADABLE_RECORD: Final = 1
RECORD_WITHOUT_KEY: Final = 2
RECORD_OUT_OF_TIME: Final = 3
RECORD_OUT_OF_PLACE: Final = 4

_SOUND = 0
_INT_BYTES = 5


def validate_records(
    buffer: Buffer,
    start: int,
    end: int,
    count: int,
    base_timestamp: int,
    earliest: int,
    latest: int,
    needs_keys: bool,
    most: int = 100,
) -> tuple[int, list[tuple[int, int]]]:
    """(the largest timestamp or -1, [(index of a record, what is wrong with it), ...]) of uncompressed records.

    Sound records follow one another with offset deltas 0, 1, 2, have a key where `needs_keys`, and a timestamp from
    `earliest` to `latest` or none (-1). At most `most` faults are listed, none after an unreadable record. CorruptBatch
    if there are more or fewer records than `count`.
    """
    view = check_range(buffer, start, end, count)
    position, max_timestamp = start, -1
    faults: list[tuple[int, int]] = []
    for index in range(count):
        try:
            position, timestamp_delta, offset_delta, has_key = _parse(view, position, end)
        except BadRecordError:
            faults.append((index, UNREADABLE_RECORD))
            break
        timestamp = wrap_int64(base_timestamp + timestamp_delta)
        max_timestamp = max(max_timestamp, timestamp)
        problem = _SOUND
        if offset_delta != index:
            problem = RECORD_OUT_OF_PLACE
        elif needs_keys and not has_key:
            problem = RECORD_WITHOUT_KEY
        elif timestamp != -1 and not earliest <= timestamp <= latest:
            problem = RECORD_OUT_OF_TIME
        if problem:
            faults.append((index, problem))
            if len(faults) >= most:
                break
    if not faults and position != end:
        raise CorruptBatch(f"{end - position} bytes follow the last record of the batch")
    return max_timestamp, faults


def _parse(view: memoryview, position: int, end: int) -> tuple[int, int, int, bool]:
    """(position after the record, timestamp delta, offset delta, whether it has a key)."""
    length, position = _get_int(view, position, end)
    if length < MIN_RECORD - 1 or length > end - position:
        raise BadRecordError
    end = position + length
    if view[position] >= 0x80:  # aiokafka reads the attributes as a varint, which such a byte would continue
        raise BadRecordError
    timestamp_delta, position = get_varint(view, position + 1, end)
    offset_delta, position = _get_int(view, position, end)
    key, position = _skip_sized(view, position, end, -1)
    _, position = _skip_sized(view, position, end, -1)
    headers, position = _get_int(view, position, end)
    if headers < 0 or headers > (end - position) // 2:
        raise BadRecordError
    for _ in range(headers):
        size, position = _skip_sized(view, position, end, 0)
        try:
            bytes(view[position - size : position]).decode()
        except UnicodeDecodeError:
            raise BadRecordError from None
        _, position = _skip_sized(view, position, end, -1)
    if position != end:
        raise BadRecordError
    return end, timestamp_delta, offset_delta, key >= 0


def _get_int(view: memoryview, position: int, end: int) -> tuple[int, int]:
    value, after = get_varint(view, position, end)
    if after - position > _INT_BYTES or not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise BadRecordError
    return value, after


def _skip_sized(view: memoryview, position: int, end: int, least: int) -> tuple[int, int]:
    size, position = _get_int(view, position, end)
    if size < least or size > end - position:
        raise BadRecordError
    return size, position + max(size, 0)
