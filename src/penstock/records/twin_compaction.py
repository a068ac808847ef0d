"""What compaction asks of a batch's records, for the kernel's twin.

Noun: the keys of a batch, and a copy of it without the records that a later one replaced. Rule: a batch is read
to its last byte before anything is returned; keys noted before damage was met stay noted.
"""

from __future__ import annotations

from penstock.records.twin_bytes import HEADER_SIZE, Buffer, put_varint, wrap_int64
from penstock.records.twin_records import check_range, parse_records


def count_null_keys(buffer: Buffer, start: int, end: int, count: int) -> int:
    """How many records have no key: a compacted log takes none of those."""
    view = check_range(buffer, start, end, count)
    return sum(parsed.key is None for parsed in parse_records(view, start, end, count))


def index_keys(buffer: Buffer, start: int, end: int, count: int, base_offset: int, newest: dict[bytes, int]) -> None:
    """Note in `newest` (key: offset) the last offset of every key in the batch."""
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
    delta, which is reckoned anew from `new_base_timestamp`. The max timestamp of none is -1.
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
