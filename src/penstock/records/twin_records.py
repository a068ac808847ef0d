"""Records into bytes and back, for the kernel's twin.

Noun: a record, as a tuple on the way in and as an object on the way out. Rule: a batch's records fill its bytes
exactly, and nothing of a batch that does not parse comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.records.errors import CorruptBatch, TooLarge
from penstock.records.twin_bytes import (
    HEADER_SIZE,
    INT32_MAX,
    MIN_RECORD,
    BadRecordError,
    Buffer,
    RecordTuple,
    check_int64,
    get_sized,
    get_varint,
    put_sized,
    put_varint,
    wrap_int64,
)


def as_bytes(value: object, what: str) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a record's {what} must be bytes or None, not {type(value).__name__}")


def header_pairs(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[bytes, bytes | None]]:
    pairs = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's key must be str, not {type(name).__name__}")
        pairs.append((name.encode(), as_bytes(value, "header value")))
    return pairs


def _record_body(
    timestamp_delta: int,
    offset_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
) -> bytearray:
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    put_sized(body, as_bytes(key, "key"))
    put_sized(body, as_bytes(value, "value"))
    pairs = header_pairs(headers) if headers else []
    put_varint(body, len(pairs))
    for name, content in pairs:
        put_sized(body, name)
        put_sized(body, content)
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
