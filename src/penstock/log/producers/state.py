"""Idempotence and open transactions: what a partition knows of its producers.

Noun: the producers that wrote here, each with its epoch, its last five batches, and where its open
transaction began.

Theory: a producer numbers its records per partition. A batch that continues the numbers is new; one that
repeats one of the last five is a retry whose answer got lost, and is answered with the offsets of the first
time; anything else would be a gap or a reordering and is refused. Numbers wrap from 2^31 - 1 to 0. A higher
epoch begins at 0 and fences the lower ones. A producer of which nothing is known (expired, or its records
deleted) may begin anywhere (KIP-360).

Rule: `check` decides and changes nothing; `apply` changes and refuses nothing. Whatever is in the log was
accepted once, so the leader after its write, a follower and recovery all `apply` the same batches, in offset
order, and arrive at the same state. Idle time is measured by the broker's clock, not by the records'
timestamps, which may be years old.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple, Protocol

from penstock.log.errors import NonMonotonicOffsets
from penstock.log.producers.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    MissingSequence,
    NotInTransaction,
    OutOfOrderSequence,
    TooManyProducers,
)
from penstock.log.producers.snapshot import (
    BATCHES_KEPT,
    MAX_SEQUENCE,
    NO_EPOCH,
    NO_OFFSET,
    NO_SEQUENCE,
    AppendedBatch,
    ProducerEntry,
    ProducerSnapshot,
    UnreplicatedTransaction,
    decode_snapshot,
    encode_snapshot,
)
from penstock.records.control import EndMarker
from penstock.runtime.files import Buffer

DEFAULT_MAX_PRODUCERS = 100_000


class ProducerBatch(Protocol):
    """What of a batch's header matters here."""

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


class Verdict(NamedTuple):
    """What to do with a batch: write it, or answer a retry with what the first time got."""

    is_duplicate: bool
    base_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET
    timestamp_ms: int = -1


NEW = Verdict(is_duplicate=False)


class CompletedTransaction(NamedTuple):
    """A transaction from its first record to its marker.

    `last_stable_offset` is what the log's would be with the marker replicated: where the oldest transaction
    still open begins, else the offset after the marker. The transaction index stores it.
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
        # Producer id -> first offset; rising, since the log opens them in that order.
        self._ongoing: OrderedDict[int, int] = OrderedDict()
        # Rising in both columns: see _await_replication.
        self._unreplicated: deque[UnreplicatedTransaction] = deque()

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    def entries(self) -> tuple[ProducerEntry, ...]:
        """All producers, the least recently active first."""
        return tuple(self._producers.values())

    # --- decide

    def check(self, batch: ProducerBatch, *, from_client: bool = True) -> Verdict:
        """Whether to write a data batch; raises a ProducerStateError for one that must be refused.

        The coordinators' own batches (`from_client=False`) carry a producer's id and epoch, but no sequence.
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
            due = _due_sequence(entry, epoch)
            # Only 0 can be both due and a repetition: it is due again after batches without sequence.
            if sequence != due or sequence == 0:
                duplicate = _find_duplicate(entry, batch)
                if duplicate is not None:
                    return Verdict(True, duplicate.base_offset, duplicate.last_offset, duplicate.timestamp_ms)
                if sequence != due:
                    raise OutOfOrderSequence(producer_id, epoch, sequence, due)
        if entry.in_transaction and not batch.is_transactional:
            raise NotInTransaction(producer_id, entry.transaction_first_offset)
        return NEW

    def check_marker(self, batch: ProducerBatch, marker: EndMarker) -> None:
        """Raises a ProducerStateError if this control batch must not be written."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        entry = self._producers.get(producer_id)
        current = entry.epoch if entry else NO_EPOCH
        if epoch < max(current, 0):
            raise InvalidProducerEpoch(producer_id, epoch, current)
        if entry is None:
            if len(self._ongoing) >= self._max_producers:
                raise TooManyProducers(producer_id, self._max_producers)
        elif marker.coordinator_epoch < entry.coordinator_epoch:
            raise CoordinatorFenced(producer_id, marker.coordinator_epoch, entry.coordinator_epoch)

    # --- change

    def apply(
        self,
        batch: ProducerBatch,
        base_offset: int,
        *,
        now_ms: int,
        append_time_ms: int | None = None,
        marker: EndMarker | None = None,
    ) -> CompletedTransaction | None:
        """Take note of a batch that is in the log at `base_offset`; returns the transaction that it ended.

        `append_time_ms` replaces the batch's own timestamp where the log stamps records. A control batch
        comes with its `marker`; without one (compaction emptied it) it tells nothing.

        A producer's first transactional batch at offset 10 (three records) opens a transaction at 10; its
        commit marker at 15 ends it: CompletedTransaction(first_offset=10, last_offset=15). Until the high
        watermark is above 15, `first_unstable_offset` stays 10.
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
        # One that ended earlier and began later leaves before this one and is never the least meanwhile.
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
                # Back in, at the far end, so that the next search does not meet it again.
                producers[oldest_id] = oldest

    # --- what readers may see

    @property
    def first_undecided_offset(self) -> int | None:
        """Where the oldest open transaction begins; None if none is open."""
        return next(iter(self._ongoing.values())) if self._ongoing else None

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that readers of committed records must not see yet; None if there is none.

        The least of where the open transactions begin and where those begin whose marker may still be lost.
        """
        undecided = self.first_undecided_offset
        if not self._unreplicated:
            return undecided
        unreplicated = self._unreplicated[0].first_offset
        return unreplicated if undecided is None else min(undecided, unreplicated)

    def on_high_watermark(self, high_watermark: int) -> None:
        """All below `high_watermark` is replicated: transactions whose marker is there are stable.

        Decided transactions 10-15 and 20-25: at high watermark 15 both stay (15 itself is not replicated), at
        16 the first is dropped and the first unstable offset becomes 20.
        """
        unreplicated = self._unreplicated
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()

    # --- forget

    def remove_expired(self, now_ms: int, expiration_ms: int) -> int:
        """Forget those idle for `expiration_ms`, unless they have a transaction open; returns how many."""
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
        """Forget everything: the log was truncated, a snapshot and a replay follow."""
        self._producers.clear()
        self._ongoing.clear()
        self._unreplicated.clear()

    # --- persist

    def snapshot(self) -> ProducerSnapshot:
        """The state as a value that later changes do not touch: encode it wherever there is time."""
        return ProducerSnapshot(self.entries(), tuple(self._unreplicated))

    def encode_snapshot(self) -> bytes:
        return encode_snapshot(self.snapshot())

    def load_snapshot(self, data: Buffer) -> None:
        """Replace the state by that of a snapshot file. SnapshotError, nothing changed, if it is damaged."""
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
    # The last ones are the likeliest to be repeated.
    for appended in reversed(entry.batches):
        if appended.last_sequence == last_sequence and appended.offset_delta == offset_delta:
            return appended
    return None


def _due_sequence(entry: ProducerEntry, epoch: int) -> int:
    if epoch != entry.epoch or not entry.batches:
        return 0
    return (entry.batches[-1].last_sequence + 1) & MAX_SEQUENCE
