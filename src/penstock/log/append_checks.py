"""Whether batches fit into a log, and when an append begins a new segment: decisions on headers alone.

Pure functions of settings, headers and the time. What is in the batches is looked at by `validation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from penstock.log.errors import AppendTooLarge, BatchTooLarge
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.settings import LogSettings
from penstock.records import BatchHeader

_INDEX_ENTRY_BYTES = 8


def check_sizes(settings: LogSettings, headers: Sequence[BatchHeader], total: int) -> None:
    limit = settings.max_message_bytes
    for header in headers:
        if header.size > limit:
            raise BatchTooLarge(header.size, limit)
    if total > settings.segment_bytes:
        raise AppendTooLarge(total, settings.segment_bytes)


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
