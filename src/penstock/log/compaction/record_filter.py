"""What compaction keeps of a batch. No I/O.

- A record stays if it is the newest of its key. Records without a key and of aborted transactions go.
- A tombstone stays until readers had time to see it. The first pass writes the delete horizon into its batch (KIP-534):
  attribute bit 6, and the base timestamp becomes the horizon, with the records' deltas adjusted.
- A transaction marker stays while a batch of its transaction does, then it goes like a tombstone.
- What stays keeps offsets, producer, sequence and epoch. An empty batch stays if it is the last of its producer or of
  its segment. A batch that loses nothing keeps its bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from penstock.log.index import AbortedTransaction
from penstock.records import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    Codec,
    CorruptBatch,
    payload_of,
)
from penstock.records.batch import decode_marker, placed
from penstock.records.compression import compress
from penstock.records.kernel import filter_records, index_keys, write_header

_CODEC_BITS: Final = 7
_HORIZON_BIT: Final = 64
_LATEST_MS: Final = 2**63 - 1

# A bytes object, an int for the offset, and the share of a dict that has just grown.
KEY_OVERHEAD_BYTES: Final = 160
DEFAULT_MAP_BYTES: Final = 128 * 1024 * 1024


class OffsetMap:
    """The newest offset of every key in a part of the log, in bounded memory."""

    __slots__ = ("_limit_bytes", "newest", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.newest: dict[bytes, int] = {}
        self.used_bytes = 0
        self._limit_bytes = limit_bytes

    def has_room_for(self, header: BatchHeader) -> bool:
        """Whether a batch fits even if all its keys are new. The first one always does, to make progress."""
        return not self.newest or self.used_bytes + header.record_count * KEY_OVERHEAD_BYTES <= self._limit_bytes

    def add(self, buffer: Buffer, header: BatchHeader, decompressed_limit: int) -> None:
        newest = self.newest
        known = len(newest)
        plain, start, end = payload_of(buffer, header, decompressed_limit)
        try:
            index_keys(plain, start, end, header.record_count, header.base_offset, newest)
        except CorruptBatch as damage:
            raise placed(damage, header) from None
        added = len(newest) - known
        # A dict keeps the order of insertion: the new keys are its last.
        self.used_bytes += added * KEY_OVERHEAD_BYTES + sum(map(len, islice(reversed(newest), added)))


class AbortedRanges:
    """The aborted transactions, by producer and offset."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._first: dict[int, list[int]] = {}
        self._last: dict[int, list[int]] = {}
        for transaction in sorted(set(aborted), key=lambda one: one.first_offset):
            self._first.setdefault(transaction.producer_id, []).append(transaction.first_offset)
            self._last.setdefault(transaction.producer_id, []).append(transaction.last_offset)

    def hold(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        firsts = self._first.get(header.producer_id)
        if firsts is None:
            return False
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < self._last[header.producer_id][at]


class LastBatch(NamedTuple):
    """A producer's newest batch. `last_offset` is -1 if only a marker has its epoch."""

    epoch: int
    last_offset: int


class BatchRetention(Enum):
    """What happens to a batch that is not rewritten."""

    STAYS = "stays"
    GOES = "goes"


@dataclass(slots=True)
class FilterStats:
    """What a cleaner read and kept. Markers do not count as records."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    tombstones_after: int = 0
    batches_emptied: int = 0
    markers_removed: int = 0


class BatchCleaner:
    """Filters the batches of a log in order. It remembers which transactions have a batch left."""

    def __init__(
        self,
        newest: dict[bytes, int],
        known_until: int,
        aborted: AbortedRanges,
        last_batches: Mapping[int, LastBatch],
        *,
        now_ms: int,
        delete_retention_ms: int,
        decompressed_limit: int,
    ) -> None:
        self.stats = FilterStats()
        self._newest = newest
        self._known_until = known_until
        self._aborted = aborted
        self._last_batches = last_batches
        self._now_ms = now_ms
        self._new_horizon_ms = min(now_ms + delete_retention_ms, _LATEST_MS)
        self._decompressed_limit = decompressed_limit
        self._unended: set[int] = set()  # producers with a transactional batch that stays, and no marker yet

    def clean_all(self, buffer: Buffer, headers: Iterable[BatchHeader], last_end: int = -1) -> list[Buffer]:
        """What is left of the scanned batches of a buffer. The batch that ends at `last_end` is its segment's last."""
        view = memoryview(buffer)
        left: list[Buffer] = []
        start = end = 0  # consecutive batches that stay as they are
        for header in headers:
            try:
                retained = self.clean(buffer, header, is_last=header.end == last_end)
            except CorruptBatch as damage:
                raise placed(damage, header) from None
            if retained is BatchRetention.STAYS and header.position == end:
                end = header.end
                continue
            if end > start:
                left.append(view[start:end])
            start = end = header.end
            if retained is BatchRetention.STAYS:
                start = header.position
            elif isinstance(retained, bytearray):
                left.append(retained)
        if end > start:
            left.append(view[start:end])
        self.stats.bytes_after += sum(map(len, left))
        return left

    def clean(self, buffer: Buffer, header: BatchHeader, *, is_last: bool) -> BatchRetention | bytearray:
        """The records of the next batch that stay."""
        self.stats.bytes_before += header.size
        if header.is_control:
            return self._clean_marker(buffer, header, is_last)
        self.stats.records_before += header.record_count
        must_stay = is_last or self._is_last_of_producer(header)
        if self._aborted.hold(header):
            retained = self._emptied(header, must_stay)
        else:
            retained = self._clean_data(buffer, header, must_stay)
        if header.is_transactional and retained is not BatchRetention.GOES:
            self._unended.add(header.producer_id)
        return retained

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_batches.get(header.producer_id) if header.producer_id >= 0 else None
        return last is not None and (last.epoch, last.last_offset) == (header.producer_epoch, header.last_offset)

    def _clean_data(self, buffer: Buffer, header: BatchHeader, must_stay: bool) -> BatchRetention | bytearray:
        count = header.record_count
        if header.base_offset >= self._known_until and count:
            self.stats.records_after += count
            return BatchRetention.STAYS
        if not count:
            return self._emptied(header, must_stay)
        plain, start, end = payload_of(buffer, header, self._decompressed_limit)
        base_ms = header.base_timestamp
        keep_tombstones = not (header.has_delete_horizon and self._now_ms > base_ms)
        records, kept, tombstones, max_ms = filter_records(
            plain, start, end, count, header.base_offset, base_ms, self._newest, keep_tombstones, base_ms
        )
        if not kept:
            return self._emptied(header, must_stay)
        self.stats.records_after += kept
        self.stats.tombstones_after += tombstones
        needs_horizon = tombstones > 0 and not header.has_delete_horizon
        if kept == count and not needs_horizon:
            return BatchRetention.STAYS
        if needs_horizon:
            records = filter_records(
                plain, start, end, count, header.base_offset, base_ms, self._newest, True, self._new_horizon_ms
            )[0]
        return self._rewritten(header, records, kept, max_ms, needs_horizon)

    def _rewritten(
        self, header: BatchHeader, records: bytearray, count: int, max_ms: int, needs_horizon: bool
    ) -> bytearray:
        batch = records
        if header.codec != Codec.NONE:
            batch = bytearray(HEADER_SIZE) + compress(header.codec, memoryview(records)[HEADER_SIZE:])
        write_header(
            batch,
            header.base_offset,
            header.leader_epoch,
            header.attributes | _HORIZON_BIT if needs_horizon else header.attributes,
            header.last_offset_delta,
            self._new_horizon_ms if needs_horizon else header.base_timestamp,
            header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else max_ms,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            count,
        )
        return batch

    def _emptied(self, header: BatchHeader, must_stay: bool) -> BatchRetention | bytearray:
        if not must_stay:
            return BatchRetention.GOES
        if header.record_count == 0:
            return BatchRetention.STAYS
        self.stats.batches_emptied += 1
        batch = bytearray(HEADER_SIZE)
        # Without records it needs no codec and no timestamp.
        write_header(
            batch,
            header.base_offset,
            header.leader_epoch,
            header.attributes & ~(_CODEC_BITS | _HORIZON_BIT),
            header.last_offset_delta,
            NO_TIMESTAMP,
            NO_TIMESTAMP,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            0,
        )
        return batch

    def _clean_marker(self, buffer: Buffer, header: BatchHeader, is_last: bool) -> BatchRetention | bytearray:
        if header.record_count == 0:
            return self._emptied(header, is_last)
        if decode_marker(buffer, header) is None:  # an unknown control type
            return BatchRetention.STAYS
        if header.producer_id in self._unended:
            self._unended.remove(header.producer_id)
            return BatchRetention.STAYS
        last = self._last_batches.get(header.producer_id)
        if last is not None and last.last_offset < 0 and last.epoch == header.producer_epoch:
            return BatchRetention.STAYS
        if not header.has_delete_horizon:
            plain, start, end = payload_of(buffer, header, self._decompressed_limit)
            records, kept, _, max_ms = filter_records(
                plain, start, end, header.record_count, header.base_offset, header.base_timestamp, {}, True,
                self._new_horizon_ms,
            )  # fmt: skip
            return self._rewritten(header, records, kept, max_ms, needs_horizon=True)
        if self._now_ms <= header.base_timestamp:
            return BatchRetention.STAYS
        self.stats.markers_removed += 1
        return self._emptied(header, is_last)
