"""Idempotence and open transactions: what a partition knows about its producers, and its snapshot file.

A producer numbers its records per partition. A batch that continues the numbers is new; one that repeats any of the
last five is a retry and gets the offsets of the first time; anything else is rejected. Sequences wrap from 2^31 - 1 to
0. A higher epoch starts at 0 and fences the lower ones. An unknown producer may start anywhere (KIP-360). `check`
decides and changes nothing; `apply` changes and never rejects: leader, follower and recovery apply the same batches
and reach the same state. Expiry uses the broker's clock, not record timestamps.

The snapshot `<20-digit offset>.snapshot` holds this state at an offset. It is Kafka's version 1 plus an extension that
Kafka's reader skips. A file that contradicts the format is a `SnapshotError`; the caller uses an older one. Big-endian:

    version i16 = 1 | crc32c u32 of the rest | count i32 | count x
        producer id i64, epoch i16, last sequence i32, last offset i64, last offset - base offset i32,
        timestamp i64, coordinator epoch i32, first offset of the open transaction i64 (-1: none)
    extension: "PNSK" | version i16 = 1 | count x, in the same order:
        last active i64 (broker's clock), number of batches i8 (0-5), oldest first:
            last sequence i32, last offset i64, last offset - base offset i32, timestamp i64
      | count i32 of transactions that ended but are not replicated: first offset i64, last offset i64
      | optional: size i32, then that many bytes: a recovery mark (see penstock.log.group_commit)
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from penstock.log.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    LogError,
    MissingSequence,
    NonMonotonicOffsets,
    NotInTransaction,
    OutOfOrderSequence,
    TooManyProducers,
)
from penstock.records.batch import EndMarker
from penstock.runtime.files import Buffer

NO_SEQUENCE: Final = -1
NO_EPOCH: Final = -1
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1

# An idempotent producer has at most this many requests in flight, so it repeats at most this many batches.
BATCHES_KEPT: Final = 5
EPOCH_PER_TRANSACTION: Final = 2  # a transaction version
MAX_SEQUENCE: Final = 2**31 - 1
DEFAULT_MAX_PRODUCERS: Final = 100_000
SNAPSHOT_SUFFIX: Final = ".snapshot"

_VERSION: Final = 1
_EXTENSION_MAGIC: Final = b"PNSK"
_EXTENSION_VERSION: Final = 1
_PREFIX: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_EXTENSION: Final = struct.Struct(">4sh")
_ACTIVITY: Final = struct.Struct(">qb")
_BATCHES: Final = tuple(struct.Struct(">" + "iqiq" * count) for count in range(BATCHES_KEPT + 1))
_UNREPLICATED: Final = struct.Struct(">qq")


# ------------------------------------------------------------------------------------------------------- snapshot file


class SnapshotError(LogError):
    """The bytes are not a snapshot, or a damaged one."""


class AppendedBatch(NamedTuple):
    """A batch in the log. `last_sequence` is -1 for a batch of a coordinator, which has none."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """Sequences wrap: a batch of three that ends at 1 starts at 2^31 - 1."""
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) & MAX_SEQUENCE


class ProducerEntry(NamedTuple):
    """The state of one producer. Immutable: a change creates a new entry."""

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
        """Of its last data batch; -1 if unknown."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    @property
    def in_transaction(self) -> bool:
        return self.transaction_first_offset != NO_OFFSET


class UnreplicatedTransaction(NamedTuple):
    """A transaction whose marker, at `last_offset`, is not known to be below the high watermark."""

    first_offset: int
    last_offset: int


class ProducerSnapshot(NamedTuple):
    """The state of all producers at an offset."""

    entries: tuple[ProducerEntry, ...] = ()
    unreplicated: tuple[UnreplicatedTransaction, ...] = ()
    mark: bytes = b""  # a recovery mark of the segment at that offset, if any


def snapshot_name(offset: int) -> str:
    """The file name for the state before `offset`: 42 -> "00000000000000000042.snapshot"."""
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def snapshot_offset(name: str) -> int | None:
    """The offset in a snapshot's file name; None for other names."""
    digits = name.removesuffix(SNAPSHOT_SUFFIX)
    if len(digits) != 20 or digits == name or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits)


def encode_snapshot(snapshot: ProducerSnapshot) -> bytes:
    """The bytes of a snapshot file. May run on any thread."""
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
        raise SnapshotError(f"{len(data)} bytes are too short for a snapshot")
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise SnapshotError(f"unknown version {version}, expected {_VERSION}")
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
        raise SnapshotError(f"invalid producer id {producer_id}")
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
        raise SnapshotError("the extension is incomplete") from error
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
        raise SnapshotError(f"{len(rest)} bytes after the transactions are not a recovery mark")
    return bytes(rest[_COUNT.size :])


def _require_continuation(entry: ProducerEntry, batches: tuple[AppendedBatch, ...]) -> None:
    """The extension must have the same last batch as Kafka's part, and earlier ones before it."""
    last_offset = batches[-1].last_offset if batches else NO_OFFSET
    rising = all(earlier.last_offset < later.base_offset for earlier, later in pairwise(batches))
    if last_offset != entry.last_offset or not rising:
        raise SnapshotError(f"contradictory batches of producer {entry.producer_id}")


# --------------------------------------------------------------------------------------------------------------- state


class ProducerBatch(Protocol):
    """What this module needs from a batch header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_control(self) -> bool: ...


class SequenceCheck(NamedTuple):
    """The result for a batch: write it, or answer a retry with the offsets of the first attempt."""

    is_duplicate: bool
    base_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    timestamp_ms: int = -1


NEW: Final = SequenceCheck(is_duplicate=False)


class CompletedTransaction(NamedTuple):
    """A transaction from its first record to its marker.

    `last_stable_offset` is the log's once the marker is replicated: the start of the oldest open transaction, or the
    offset after the marker. The transaction index stores it.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int


def last_sequence_of(base_sequence: int, offset_delta: int) -> int:
    """The sequence of the last record of a batch: (5, 2) -> 7, (2^31 - 1, 2) -> 1, (-1, 2) -> -1."""
    if base_sequence < 0:
        return NO_SEQUENCE
    return (base_sequence + offset_delta) & MAX_SEQUENCE


class ProducerStates:
    """The producers of one partition."""

    def __init__(self, max_producers: int = DEFAULT_MAX_PRODUCERS) -> None:
        if max_producers < 1:
            raise ValueError(f"max_producers is {max_producers}; at least 1 is needed")
        self._max_producers = max_producers
        # The least recently active first.
        self._producers: OrderedDict[int, ProducerEntry] = OrderedDict()
        # Producer id -> first offset; ascending, since the log opens them in that order.
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        # Ascending in both columns: see _await_replication.
        self._unreplicated: deque[UnreplicatedTransaction] = deque()

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def entries(self) -> tuple[ProducerEntry, ...]:
        """All producers, the least recently active first."""
        return tuple(self._producers.values())

    # --- check

    def check(self, batch: ProducerBatch, *, from_client: bool = True) -> SequenceCheck:
        """Whether to write a data batch. Raises a ProducerStateError if it must be rejected.

        Batches of coordinators (`from_client=False`) have a producer id and epoch, but no sequence.
        """
        producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if producer_id < 0:
            return NEW
        entry = self._producers.get(producer_id)
        if epoch < 0 or (entry is not None and epoch < entry.epoch):
            raise InvalidProducerEpoch(producer_id, epoch, entry.epoch if entry else NO_EPOCH)
        if from_client and sequence < 0:
            raise MissingSequence(producer_id, sequence)
        if entry is None:
            if len(self._ongoing) >= self._max_producers:
                raise TooManyProducers(producer_id, self._max_producers)
            return NEW
        if from_client:
            expected = _expected_sequence(entry, epoch)
            # Only 0 can be both expected and a repetition: after batches without sequence it is expected again.
            if sequence != expected or sequence == 0:
                duplicate = _find_duplicate(entry, batch)
                if duplicate is not None:
                    return SequenceCheck(True, duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms)
                if sequence != expected:
                    raise OutOfOrderSequence(producer_id, epoch, sequence, expected)
        if entry.in_transaction and not batch.is_transactional:
            raise NotInTransaction(producer_id, entry.transaction_first_offset)
        return NEW

    def check_marker(self, batch: ProducerBatch, marker: EndMarker, version: int = 1) -> None:
        """Raises a ProducerStateError if this control batch must be rejected.

        In transaction version 2 a transaction ends in the epoch after its own. A marker in the epoch of an open
        transaction is a late one of the transaction before. Without an open transaction it is a repetition, which must
        succeed: its coordinator would send it forever (KAFKA-19999).
        """
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        entry = self._producers.get(producer_id)
        current = entry.epoch if entry else NO_EPOCH
        is_late = version >= EPOCH_PER_TRANSACTION and entry is not None and entry.in_transaction and epoch == current
        if epoch < max(current, 0) or is_late:
            raise InvalidProducerEpoch(producer_id, epoch, current)
        if entry is None:
            if len(self._ongoing) >= self._max_producers:
                raise TooManyProducers(producer_id, self._max_producers)
        elif marker.coordinator_epoch < entry.coordinator_epoch:
            raise CoordinatorFenced(producer_id, marker.coordinator_epoch, entry.coordinator_epoch)

    # --- apply

    def apply(
        self,
        batch: ProducerBatch,
        base_offset: int,
        *,
        now_ms: int,
        append_time_ms: int | None = None,
        marker: EndMarker | None = None,
    ) -> CompletedTransaction | None:
        """Apply a batch that is in the log at `base_offset`. Returns the transaction that it ended, if any.

        `append_time_ms` replaces the batch's timestamp where the broker stamps records. A control batch comes with its
        `marker`; without one (compaction emptied it) it is ignored.

        A producer's first transactional batch at offset 10 (three records) opens a transaction at 10; its commit marker
        at 15 ends it: CompletedTransaction(first_offset=10, last_offset=15). Until the high watermark is above 15,
        `first_unstable_offset` stays 10.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        timestamp_ms = batch.max_timestamp if append_time_ms is None else append_time_ms
        if batch.is_control:
            return None if marker is None else self._end(batch, base_offset, marker, timestamp_ms, now_ms)
        offset_delta = batch.last_offset - batch.base_offset
        appended = AppendedBatch(
            last_sequence_of(batch.base_sequence, offset_delta),
            base_offset + offset_delta,
            offset_delta,
            timestamp_ms,
        )
        entry = self._producers.get(producer_id)
        batches: tuple[AppendedBatch, ...] = (appended,)
        coordinator_epoch, first_offset = NO_EPOCH, NO_OFFSET
        if entry is not None:
            coordinator_epoch, first_offset = entry.coordinator_epoch, entry.transaction_first_offset
            if entry.epoch == batch.producer_epoch:
                batches = (*entry.batches[1 - BATCHES_KEPT :], appended)
        if first_offset == NO_OFFSET and batch.is_transactional:
            first_offset = base_offset
            self._open(producer_id, base_offset)
        self._put(
            ProducerEntry(
                producer_id,
                batch.producer_epoch,
                batches,
                coordinator_epoch,
                first_offset,
                timestamp_ms,
                now_ms,
            )
        )
        return None

    def _end(
        self, batch: ProducerBatch, offset: int, marker: EndMarker, timestamp_ms: int, now_ms: int
    ) -> CompletedTransaction | None:
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        entry = self._producers.get(producer_id)
        batches = entry.batches if entry is not None and entry.epoch == epoch else ()
        first_offset = self._ongoing.pop(producer_id, None)
        self._put(ProducerEntry(producer_id, epoch, batches, marker.coordinator_epoch, NO_OFFSET, timestamp_ms, now_ms))
        if first_offset is None:
            return None
        self._await_replication(UnreplicatedTransaction(first_offset, offset))
        undecided = self.first_undecided_offset
        stable = offset + 1 if undecided is None else undecided
        return CompletedTransaction(producer_id, first_offset, offset, not marker.is_commit, stable)

    def _open(self, producer_id: int, first_offset: int) -> None:
        newest = next(reversed(self._ongoing.values())) if self._ongoing else NO_OFFSET
        if first_offset <= newest:
            raise NonMonotonicOffsets(newest + 1, first_offset)
        self._ongoing[producer_id] = first_offset

    def _await_replication(self, completed: UnreplicatedTransaction) -> None:
        # A transaction that ended earlier and started later is replicated earlier and never the smallest.
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[-1].first_offset > completed.first_offset:
            unreplicated.pop()
        unreplicated.append(completed)

    def _put(self, entry: ProducerEntry) -> None:
        producers = self._producers
        producers[entry.producer_id] = entry
        producers.move_to_end(entry.producer_id)
        while len(self._ongoing) < len(producers) > self._max_producers:
            oldest_id, oldest = producers.popitem(last=False)
            if oldest.in_transaction:
                # Back at the other end, so that the next search does not find it again.
                producers[oldest_id] = oldest

    # --- last stable offset

    @property
    def first_undecided_offset(self) -> int | None:
        """The start of the oldest open transaction; None if none is open."""
        return next(iter(self._ongoing.values())) if self._ongoing else None

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that consumers of committed records may not read yet; None if there is none.

        The smallest start of the open transactions and of those whose marker is not yet replicated.
        """
        undecided = self.first_undecided_offset
        if not self._unreplicated:
            return undecided
        unreplicated = self._unreplicated[0].first_offset
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker is below `high_watermark` are stable from now on.

        Transactions 10-15 and 20-25: at high watermark 15 both stay (15 itself is not replicated), at 16 the first is
        dropped and the first unstable offset becomes 20.
        """
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()

    # --- expire

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for `expiration_ms` without an open transaction; how many."""
        expired = []
        for producer_id, entry in self._producers.items():
            if entry.in_transaction:
                continue
            if now_ms - entry.last_active_ms < expiration_ms:
                break
            expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def clear(self) -> None:
        """Forget all producers, before a snapshot is loaded and batches are replayed."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    # --- snapshot

    def snapshot(self) -> ProducerSnapshot:
        """An immutable copy of the state, which any thread may encode."""
        return ProducerSnapshot(self.entries(), tuple(self._unreplicated))

    def encode_snapshot(self) -> bytes:
        return encode_snapshot(self.snapshot())

    def load_snapshot(self, data: Buffer) -> None:
        """Replace the state by that of a snapshot file. On SnapshotError the state is unchanged."""
        snapshot = decode_snapshot(data)
        self.clear()
        open_ones = [entry for entry in snapshot.entries if entry.in_transaction]
        for entry in sorted(open_ones, key=lambda entry: entry.transaction_first_offset):
            self._ongoing[entry.producer_id] = entry.transaction_first_offset
        for entry in sorted(snapshot.entries, key=lambda entry: entry.last_active_ms):
            self._put(entry)
        for completed in snapshot.unreplicated:
            self._await_replication(completed)


def _find_duplicate(entry: ProducerEntry, batch: ProducerBatch) -> AppendedBatch | None:
    if batch.producer_epoch != entry.epoch:
        return None
    offset_delta = batch.last_offset - batch.base_offset
    last_sequence = last_sequence_of(batch.base_sequence, offset_delta)
    # The last batches are the most likely to be repeated.
    for appended in reversed(entry.batches):
        if appended.last_sequence == last_sequence and appended.offset_delta == offset_delta:
            return appended
    return None


def _expected_sequence(entry: ProducerEntry, epoch: int) -> int:
    if epoch != entry.epoch or not entry.batches:
        return 0
    return (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE
