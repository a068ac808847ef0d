"""Fetched bytes as steps of a mirror: batches to append, and gaps where the source has no record to read. Pure.

A gap is a run of offsets that no reader of committed records gets: markers and records of aborted transactions,
records that compaction removed. A dense batch keeps its records byte for byte; of its header the producer fields, the
transactional flag and the checksum are the mirror's. A batch with holes, one that begins before the position, and one
that the source's broker stamped with its append time are encoded again, with the same codec.

Messages of Kafka before 0.11 become batches: one per compressed set, one per run of messages without compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from penstock.client.connection import BufferList
from penstock.records.batch import CREATE_TIME, decode_marker, encode_batch, records_of
from penstock.records.compression import Codec
from penstock.records.errors import CorruptBatch
from penstock.records.kernel import BatchHeader, Record, scan
from penstock.records.legacy import upconvert
from penstock.records.types import HEADER_SIZE, Buffer, RecordTuple

ORIGIN_HEADER: Final = "mirror.origin"
"""Header of records in a shared topic: CLUSTER/TOPIC/PARTITION/OFFSET of the source."""
SEQUENCES: Final = 2**31
PADDING_RECORDS: Final = 20_000
_CRC_START: Final = 21
_HEADER: Final = Struct(">qiibIhiqqqhii")
_TRANSACTIONAL: Final = 16
_MAGIC_AT: Final = 16
_MAGIC: Final = 2
_ENTRY: Final = Struct(">qi")
# What the messages of one fetch may decompress to.
_LEGACY_BYTES: Final = 256 * 1024 * 1024


class Data(NamedTuple):
    """A batch whose records have the offsets from `offset` on, without a hole."""

    offset: int
    count: int  # type: ignore[assignment]
    batch: Buffer
    leader_epoch: int

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


class Gap(NamedTuple):
    """Offsets without a record to read."""

    offset: int
    count: int  # type: ignore[assignment]
    leader_epoch: int

    @property
    def next_offset(self) -> int:
        return self.offset + self.count


Step = Data | Gap


class Fetched(NamedTuple):
    """The steps of a fetch; `size` is how many bytes they were."""

    steps: list[Step]
    size: int


def as_batches(buffer: Buffer) -> Buffer:
    """Messages of magic 0 and 1 as batches with the same offsets; batches as they are.

    Batches after messages, and an incomplete message at the end, are left out: the next fetch begins with them. Raises
    RecordError if the messages are damaged.
    """
    if len(buffer) <= _MAGIC_AT or buffer[_MAGIC_AT] == _MAGIC:
        return buffer
    view, end = memoryview(buffer), 0
    while end + _MAGIC_AT < len(view) and view[end + _MAGIC_AT] != _MAGIC:
        _, size = _ENTRY.unpack_from(view, end)
        if size < 0:
            raise CorruptBatch(f"a message of {size} bytes", end)
        if end + _ENTRY.size + size > len(view):
            break
        end += _ENTRY.size + size
    return upconvert(view[:end], limit=_LEGACY_BYTES, keep_offsets=True)


def steps_of(buffer: Buffer, position: int, aborted: Iterable[tuple[int, int]]) -> Fetched:
    """The steps from a position on. `aborted`: producer id and first offset of each aborted transaction.

    Raises CorruptBatch if the bytes are damaged, and for messages of magic 0 and 1 (see `as_batches`).
    """
    found = scan(buffer)
    if found.problem is not None and found.problem != "incomplete":
        raise CorruptBatch(found.problem, found.end)
    ends = _Aborted(aborted)
    steps: list[Step] = []
    for header in found.headers:
        if header.next_offset <= position:
            continue
        epoch = header.leader_epoch
        if header.base_offset > position:
            _add_gap(steps, position, header.base_offset, epoch)
            position = header.base_offset
        if ends.hides(buffer, header) or not header.record_count:
            _add_gap(steps, position, header.next_offset, epoch)
        elif _is_whole(header, position):
            view = memoryview(buffer)[header.position : header.position + header.size]
            steps.append(Data(position, header.record_count, view, epoch))
        else:
            _add_runs(steps, records_of(buffer, header), position, header)
        position = header.next_offset
    return Fetched(steps, found.end)


class _Aborted:
    """Which batches belong to aborted transactions, by the list in a fetch response."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._open: set[int] = set()

    def hides(self, buffer: Buffer, header: BatchHeader) -> bool:
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._open.add(self._waiting.pop()[1])
        if header.is_control:
            marker = decode_marker(buffer, header)
            if marker is not None and not marker.is_commit:
                self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def _is_whole(header: BatchHeader, position: int) -> bool:
    return (
        header.base_offset == position
        and header.record_count == header.last_offset_delta + 1
        and header.timestamp_type == CREATE_TIME
        and not header.has_delete_horizon
    )


def _add_gap(steps: list[Step], start: int, end: int, epoch: int) -> None:
    if end <= start:
        return
    if steps and isinstance(steps[-1], Gap):
        before = steps.pop()
        start = before.offset
    steps.append(Gap(start, end - start, epoch))


def _add_runs(steps: list[Step], records: Sequence[Record], position: int, header: BatchHeader) -> None:
    """Records of a batch with holes, as batches without."""
    run: list[Record] = []
    for record in records:
        if record.offset < position:
            continue
        if run and record.offset != run[-1].offset + 1:
            steps.append(_encoded(run, header))
            position, run = run[-1].offset + 1, []
        if not run:
            _add_gap(steps, position, record.offset, header.leader_epoch)
        run.append(record)
    if run:
        steps.append(_encoded(run, header))
        position = run[-1].offset + 1
    _add_gap(steps, position, header.next_offset, header.leader_epoch)


def _encoded(run: Sequence[Record], header: BatchHeader) -> Data:
    tuples = [(each.timestamp, each.key, each.value, each.headers) for each in run]
    return Data(run[0].offset, len(run), encode_batch(tuples, codec=header.codec), header.leader_epoch)


# --------------------------------------------------------------------------------------------------- what is written


def stamped(batch: Buffer, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> BufferList:
    """A batch of another producer: a new header, and the records as they are, without a copy of them."""
    view = memoryview(batch)
    _, length, _, magic, _, attributes, last_delta, base_time, max_time, _, _, _, count = _HEADER.unpack_from(view)
    attributes = attributes | _TRANSACTIONAL if transactional else attributes & ~_TRANSACTIONAL
    fields = (attributes, last_delta, base_time, max_time, producer_id, epoch, sequence % SEQUENCES, count)
    header = bytearray(_HEADER.pack(0, length, -1, magic, 0, *fields))
    records = view[HEADER_SIZE:]
    checksum = crc32c(records, crc32c(memoryview(header)[_CRC_START:]))
    header[17:21] = checksum.to_bytes(4, "big")
    return BufferList([header, records])


def with_origin(step: Data, origin: str, target_cluster: str) -> Data | None:
    """A step of a shared topic: every record with its origin. Records that come from the target are left out.

    `origin` is CLUSTER/TOPIC/PARTITION. None if no record is left.
    """
    header = scan(step.batch, verify=False, most=1).headers[0]
    back = f"{target_cluster}/".encode()
    kept: list[RecordTuple] = []
    for number, record in enumerate(records_of(step.batch, header)):
        if any(name == ORIGIN_HEADER and (value or b"").startswith(back) for name, value in record.headers):
            continue
        own = (ORIGIN_HEADER, f"{origin}/{step.offset + number}".encode())
        kept.append((record.timestamp, record.key, record.value, [*record.headers, own]))
    if not kept:
        return None
    return Data(step.offset, len(kept), encode_batch(kept, codec=header.codec), step.leader_epoch)


@cache
def _padding(count: int) -> bytes:
    # The key is empty, not null, which a compacted topic rejects. The oldest time keeps searches by time right.
    record: Any = (0, b"", None, ())
    return bytes(encode_batch([record] * count, codec=Codec.GZIP))


def padding(offset: int, end: int) -> Data:
    """Filler records up to an offset, at most PADDING_RECORDS of them. They are deleted before anything is mirrored."""
    count = min(PADDING_RECORDS, end - offset)
    return Data(offset, count, _padding(count), -1)


def same_records(ours: Buffer, theirs: Buffer, offset: int) -> bool:
    """Whether the record at an offset is the same in bytes of both clusters. True if one of them has none there."""
    mine, yours = _record_at(ours, offset), _record_at(theirs, offset)
    if mine is None or yours is None:
        return True
    return (mine.timestamp, mine.key, mine.value, list(mine.headers)) == (
        yours.timestamp, yours.key, yours.value, list(yours.headers),
    )  # fmt: skip


def _record_at(buffer: Buffer, offset: int) -> Record | None:
    for header in scan(buffer).headers:
        if header.base_offset <= offset < header.next_offset:
            if header.is_control:
                return None
            return next((each for each in records_of(buffer, header) if each.offset == offset), None)
    return None
