"""What a log takes from a client, and when an append begins a new segment: decisions on headers alone.

Rule: pure functions of settings, headers and the time. Records are looked into only where the topic demands it (a
compacted one takes no record without a key).
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from penstock.log.errors import AppendTooLarge, BatchTooLarge, InvalidBatch, InvalidTimestamp
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.settings import LogSettings
from penstock.records import BatchHeader, Buffer, payload_of
from penstock.records.kernel import count_null_keys

_INDEX_ENTRY_BYTES = 8


def check_sizes(settings: LogSettings, headers: Sequence[BatchHeader], total: int) -> None:
    limit = settings.max_message_bytes
    for header in headers:
        if header.size > limit:
            raise BatchTooLarge(header.size, limit)
    if total > settings.segment_bytes:
        raise AppendTooLarge(total, settings.segment_bytes)


def check_client_batches(settings: LogSettings, batches: Buffer, headers: Sequence[BatchHeader], now_ms: int) -> None:
    for header in headers:
        if header.is_control:
            raise InvalidBatch("a client may not write control batches")
        if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
            raise InvalidBatch(
                f"a batch of {header.record_count} records may not span {header.last_offset_delta + 1} offsets"
            )
        if header.producer_id >= 0 and len(headers) > 1:
            raise InvalidBatch("an idempotent producer sends one batch a partition and request")
        if settings.compacts:
            _check_keys(batches, header)
        if header.max_timestamp >= 0 and not settings.message_timestamp_append_time:
            _check_timestamps(settings, header, now_ms)


def _check_keys(batches: Buffer, header: BatchHeader) -> None:
    plain, start, end = payload_of(batches, header)
    if count_null_keys(plain, start, end, header.record_count):
        raise InvalidBatch("a compacted topic takes only records with a key")


def _check_timestamps(settings: LogSettings, header: BatchHeader, now_ms: int) -> None:
    newest, oldest = header.max_timestamp, min(header.max_timestamp, header.base_timestamp)
    if newest > now_ms + settings.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {newest} is over message.timestamp.after.max.ms="
            f"{settings.message_timestamp_after_max_ms} ahead of the broker's clock {now_ms}"
        )
    if oldest < now_ms - settings.message_timestamp_before_max_ms:
        raise InvalidTimestamp(
            f"timestamp {oldest} is over message.timestamp.before.max.ms="
            f"{settings.message_timestamp_before_max_ms} behind the broker's clock {now_ms}"
        )


def must_roll(
    settings: LogSettings, active: Segment, headers: Sequence[BatchHeader], size: int, rolled_ms: int, now_ms: int
) -> bool:
    """Whether these batches, `size` bytes, belong into a new segment: by size, by room in the index, or by age.

    A segment that began with timestamp 1000 and segment.ms=500 takes a batch stamped 1500, and not one stamped 1501.
    """
    if headers[-1].last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if active.size == 0:
        return False
    if active.size + size > settings.segment_bytes:
        return True
    if (len(active.index) + 1) * _INDEX_ENTRY_BYTES > settings.segment_index_bytes:
        return True
    age_max_ms = settings.segment_ms
    # Only what is sealed is compacted.
    if settings.max_compaction_lag_ms < age_max_ms and settings.compacts:
        age_max_ms = settings.max_compaction_lag_ms
    if settings.segment_jitter_ms:
        age_max_ms = max(1, age_max_ms - roll_jitter_ms(settings, active.path))
    first = active.first_timestamp
    if first is None or first < 0 or headers[0].max_timestamp < 0:
        return now_ms - rolled_ms > age_max_ms
    return headers[0].max_timestamp - first > age_max_ms


def roll_jitter_ms(settings: LogSettings, path: str) -> int:
    """How much earlier than others the segment at `path` is rolled: segment.jitter.ms, or segment.ms if less, at most.

    It follows from the name alone. Logs that began together part all the same, each segment anew, and a segment keeps
    its share over a restart.
    """
    return min(settings.segment_jitter_ms, settings.segment_ms) * crc32(path.encode()) >> 32
