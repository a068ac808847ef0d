"""What is remembered of a producer, and the bytes that carry it across a restart.

Noun: a snapshot is the memory of all producers of a partition at one offset, kept in `<20-digit
offset>.snapshot`: it tells all that matters of the batches below that offset, so recovery replays only those
from there on.

Rule: the file is Kafka's version 1, which knows the last batch of each producer, and behind it an extension
of ours with what idempotence needs beyond that. Kafka's reader checks the CRC to the end of the file, reads
as many entries as were announced and stops, so it reads our files; we read Kafka's, which end without the
extension. All big-endian:

    version i16 = 1 | crc32c u32 of all that follows | count i32 | count x
        producer id i64, epoch i16, last sequence i32, last offset i64, last offset - base offset i32,
        timestamp i64, coordinator epoch i32, first offset of the open transaction i64 (-1: none)
    extension: "PNSK" | version i16 = 1 | count x, in the same order:
        last active i64 (the broker's clock), number of batches i8 (0-5), oldest first:
            last sequence i32, last offset i64, last offset - base offset i32, timestamp i64
      | number i32 of decided but unreplicated transactions: first offset i64, last offset i64
      | perhaps: size i32, then as many bytes, a mark (see penstock.log.segment_mark)

Anything that contradicts this is a `SnapshotError`: the caller takes an older snapshot, or none, and replays
more.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from penstock.log.errors import LogError
from penstock.runtime.files import Buffer

NO_SEQUENCE = -1
NO_EPOCH = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1

# The most requests an idempotent producer may have in flight, hence the most batches it may send again.
BATCHES_KEPT = 5
MAX_SEQUENCE = 2**31 - 1
SNAPSHOT_SUFFIX = ".snapshot"

_VERSION = 1
_EXTENSION_MAGIC = b"PNSK"
_EXTENSION_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_EXTENSION = struct.Struct(">4sh")
_ACTIVITY = struct.Struct(">qb")
_BATCHES = tuple(struct.Struct(">" + "iqiq" * count) for count in range(BATCHES_KEPT + 1))
_UNREPLICATED = struct.Struct(">qq")


class SnapshotError(LogError):
    """The bytes are not a snapshot, or are a damaged one."""


class AppendedBatch(NamedTuple):
    """A batch as it stands in the log; `last_sequence` is -1 for one without (a coordinator's own)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """With sequences wrapping: a batch of three that ends at 1 began at 2^31 - 1."""
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class ProducerEntry(NamedTuple):
    """What is remembered of one producer. A change makes a new entry, so entries may be shared freely."""

    producer_id: int
    epoch: int = NO_EPOCH
    batches: tuple[AppendedBatch, ...] = ()
    coordinator_epoch: int = NO_EPOCH
    transaction_first_offset: int = NO_OFFSET
    last_timestamp_ms: int = NO_TIMESTAMP
    last_active_ms: int = NO_TIMESTAMP

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """Of its last data batch; -1 if none is known."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def in_transaction(self) -> bool:
        return self.transaction_first_offset != NO_OFFSET


class UnreplicatedTransaction(NamedTuple):
    """A transaction whose marker, at `last_offset`, is not known to be below the high watermark."""

    first_offset: int
    last_offset: int


class ProducerSnapshot(NamedTuple):
    entries: tuple[ProducerEntry, ...] = ()
    unreplicated: tuple[UnreplicatedTransaction, ...] = ()
    mark: bytes = b""  # of the segment at that offset, if it has one


def snapshot_name(offset: int) -> str:
    """The file name for the state before `offset`: 42 -> "00000000000000000042.snapshot"."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offset(name: str) -> int | None:
    """The offset in a snapshot's file name; None for another file's name."""
    digits = name.removesuffix(SNAPSHOT_SUFFIX)
    if len(digits) != 20 or digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """The bytes of a snapshot file. Needs nothing but its argument, so it may run beside the event loop."""
    entries = snapshot.entries
    body = bytearray(_COUNT.pack(len(entries)))
    for entry in entries:
        offset_delta = entry.batches[-1].offset_delta if entry.batches else 0
        body += _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_offset,
            offset_delta,
            entry.last_timestamp_ms,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
    body += _EXTENSION.pack(_EXTENSION_MAGIC, _EXTENSION_VERSION)
    for entry in entries:
        batches = entry.batches
        body += _ACTIVITY.pack(entry.last_active_ms, len(batches))
        body += _BATCHES[len(batches)].pack(*(field for batch in batches for field in batch))
    body += _COUNT.pack(len(snapshot.unreplicated))
    for transaction in snapshot.unreplicated:
        body += _UNREPLICATED.pack(*transaction)
    if snapshot.mark:
        body += _COUNT.pack(len(snapshot.mark)) + snapshot.mark
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: Buffer) -> ProducerSnapshot:
    """The snapshot in a file's bytes, ours or Kafka's. SnapshotError if they are damaged."""
    if len(data) < _PREFIX.size + _COUNT.size:
        raise SnapshotError(f"{len(data)} bytes are too few for a snapshot")
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise SnapshotError(f"version {version} is not known, {_VERSION} is")
    body = memoryview(data)[_PREFIX.size :]
    if crc32c(body) != crc:
        raise SnapshotError(f"the checksum is {crc32c(body):#010x}, not {crc:#010x}")
    (count,) = _COUNT.unpack_from(body)
    end = _COUNT.size + count * _ENTRY.size
    if count < 0 or end > len(body):
        raise SnapshotError(f"{count} producers announced in {len(data)} bytes")
    entries = tuple(_decode_entry(*fields) for fields in _ENTRY.iter_unpack(body[_COUNT.size : end]))
    if len({entry.producer_id for entry in entries}) != len(entries):
        raise SnapshotError("a producer occurs twice")
    extension = body[end:]
    if len(extension) >= _EXTENSION.size and _EXTENSION.unpack_from(extension) == (
        _EXTENSION_MAGIC,
        _EXTENSION_VERSION,
    ):
        return _decode_extension(entries, extension)
    return ProducerSnapshot(entries)


def _decode_entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp_ms: int,
    coordinator_epoch: int,
    transaction_first_offset: int,
) -> ProducerEntry:
    if producer_id < 0:
        raise SnapshotError(f"producer id {producer_id}")
    batches: tuple[AppendedBatch, ...] = ()
    if last_offset >= 0:
        batches = (_checked(AppendedBatch(last_sequence, last_offset, offset_delta, timestamp_ms)),)
    return ProducerEntry(
        producer_id,
        epoch,
        batches,
        coordinator_epoch,
        max(transaction_first_offset, NO_OFFSET),
        timestamp_ms,
        timestamp_ms,
    )


def _checked(batch: AppendedBatch) -> AppendedBatch:
    if batch.last_sequence < NO_SEQUENCE or not 0 <= batch.offset_delta <= batch.last_offset:
        raise SnapshotError(f"impossible {batch}")
    return batch


def _decode_extension(entries: tuple[ProducerEntry, ...], extension: memoryview) -> ProducerSnapshot:
    position = _EXTENSION.size
    extended: list[ProducerEntry] = []
    try:
        for entry in entries:
            last_active_ms, count = _ACTIVITY.unpack_from(extension, position)
            position += _ACTIVITY.size
            if not 0 <= count <= BATCHES_KEPT:
                raise SnapshotError(f"{count} batches of producer {entry.producer_id}")
            flat = _BATCHES[count].unpack_from(extension, position)
            position += _BATCHES[count].size
            batches = tuple(_checked(AppendedBatch(*flat[at : at + 4])) for at in range(0, len(flat), 4))
            _require_continuation(entry, batches)
            extended.append(entry._replace(batches=batches, last_active_ms=last_active_ms))
        (count,) = _COUNT.unpack_from(extension, position)
    except struct.error as error:
        raise SnapshotError("the extension is cut off") from error
    position += _COUNT.size
    end = position + count * _UNREPLICATED.size
    if count < 0 or end > len(extension):
        raise SnapshotError(f"{count} transactions announced in {len(extension) - position} bytes")
    pairs = _UNREPLICATED.iter_unpack(extension[position:end])
    mark = _decode_mark(extension[end:])
    return ProducerSnapshot(tuple(extended), tuple(UnreplicatedTransaction(*pair) for pair in pairs), mark)


def _decode_mark(rest: memoryview) -> bytes:
    if not rest:
        return b""
    if len(rest) <= _COUNT.size or _COUNT.unpack_from(rest)[0] != len(rest) - _COUNT.size:
        raise SnapshotError(f"{len(rest)} bytes behind the transactions are no mark")
    return bytes(rest[_COUNT.size :])


def _require_continuation(entry: ProducerEntry, batches: tuple[AppendedBatch, ...]) -> None:
    """The extension tells of the same last batch as Kafka's part, and of earlier ones before it."""
    last_offset = batches[-1].last_offset if batches else NO_OFFSET
    rising = all(earlier.last_offset < later.base_offset for earlier, later in pairwise(batches))
    if last_offset != entry.last_offset or not rising:
        raise SnapshotError(f"contradictory batches of producer {entry.producer_id}")
