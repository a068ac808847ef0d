"""What a leader asks of the records that a client sends, for the kernel's twin.

What passes here every consumer can read: it is stricter than the parser of what is stored. An integer takes at most
five bytes and fits 32 bits, as the consumers in Java demand, the top bit of the attributes is not set, and the name of
a header is UTF-8.
"""

from __future__ import annotations

from typing import Final

from penstock.records.errors import CorruptBatch
from penstock.records.twin_bytes import INT32_MAX, MIN_RECORD, BadRecordError, Buffer, get_varint, wrap_int64
from penstock.records.twin_records import check_range

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
    """(the largest timestamp or -1, [(number of a record, what is wrong with it), ...]) of uncompressed records.

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
