"""The ledger of exactly-once writes, and the protocol around it. Pure: the brokers are given.

Every task attempt writes in a transaction of its own and leaves it prepared. One ledger record per query says which run
of the query owns it, which batch was decided last and with which transactions. Writing that record is the moment of
decision: before it no record of the batch can become visible, after it all will. docs/decisions/019 has the proof.

    claim    The first task of a run in a process takes the query over: a new generation, which names its transactions.
    commit   The driver decides a batch, commits its winners, and aborts what can never win.
    abort    The driver aborts a batch, unless it was decided.

Two rules carry the proof. The ledger is written only by the last one that took it over (`Brokers.take_over` fences all
others), after reading it. A transactional id belongs to one process and is used again only for a later batch of the
same generation, when the transaction before it was ended.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from penstock.client.errors import PenstockError, TransactionAborted, TransactionOutcomeUnknown
from penstock.client.transactions import PreparedTransaction
from penstock.spark.errors import CheckpointMismatch, LedgerDamaged, MarginCrossed, RowsLost, Superseded, one_line

_log = logging.getLogger("penstock.spark")

NO_BATCH: Final = -1
_FORMAT: Final = 1
_ID_PREFIX: Final = "penstock-spark"
_ID: Final = re.compile(rf"{_ID_PREFIX}\.(?P<query>.+)\.(?P<generation>\d+)\.(?P<slot>[0-9a-f]+-\d+)")
_REMEMBERED_RUNS: Final = 16
_SHOWN_RANGES: Final = 20
_STOP_OTHER: Final = "A query runs once at a time: stop the other one, then start this one again"

# ---------------------------------------------------------------------------------------------- records


class StoredRange(NamedTuple):
    """Offsets [start, end) of a partition contain the records of this write, possibly interleaved with others."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class Winner:
    """A prepared transaction of a task, and where its records are."""

    transaction: PreparedTransaction
    records: int
    stored: tuple[StoredRange, ...]


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What is known about a query: its owner, and its last decision."""

    query_id: str
    run_id: str
    """The run of the query that owns it. Every start of a query is a run."""
    generation: int
    """Grows with every owner."""
    batch_id: int = NO_BATCH
    """The last batch that was decided."""
    winners: tuple[Winner, ...] = ()
    superseded: tuple[str, ...] = ()
    """The last runs that owned the query before."""

    def taken_over_by(self, run_id: str) -> LedgerRecord:
        """The record of the next owner. It keeps the last decision, which may have to be carried out yet."""
        before = (*self.superseded, self.run_id)[-_REMEMBERED_RUNS:]
        return replace(self, run_id=run_id, generation=self.generation + 1, superseded=before)

    def decided(self, batch_id: int, winners: Sequence[Winner]) -> LedgerRecord:
        """The record that decides a batch. Raises LedgerDamaged if a winner is not of the owner's generation."""
        for winner in winners:
            name = winner.transaction.transactional_id
            if generation_of(name, self.query_id) != self.generation:
                raise LedgerDamaged(f"transaction {name} is not of generation {self.generation} of {self.query_id}")
        return replace(self, batch_id=batch_id, winners=tuple(winners))

    def encode(self) -> bytes:
        winners = [
            {
                "transaction": json.loads(winner.transaction.to_json()),
                "records": winner.records,
                "stored": [list(each) for each in winner.stored],
            }
            for winner in self.winners
        ]
        document = {
            "format": _FORMAT, "query": self.query_id, "run": self.run_id, "generation": self.generation,
            "batch": self.batch_id, "winners": winners, "superseded": list(self.superseded),
        }  # fmt: skip
        return json.dumps(document, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes | None) -> LedgerRecord:
        """Raises LedgerDamaged for anything but what `encode` returns."""
        try:
            document = json.loads(data or b"")
            if document["format"] != _FORMAT:
                raise LedgerDamaged(
                    f"a ledger record has format {document['format']}; this version reads {_FORMAT}",
                    hint="Start the query with the version that wrote it, or a newer one",
                )
            winners = tuple(_winner(each) for each in document["winners"])
            return LedgerRecord(
                str(document["query"]), str(document["run"]), int(document["generation"]), int(document["batch"]),
                winners, tuple(map(str, document["superseded"])),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            shown = (data or b"")[:100]
            raise LedgerDamaged(f"{shown!r} is not a ledger record: {one_line(error)}") from error


def _winner(document: Any) -> Winner:
    stored = tuple(StoredRange(str(each[0]), *map(int, each[1:])) for each in document["stored"])
    return Winner(PreparedTransaction(**document["transaction"]), int(document["records"]), stored)


def transactional_id(query_id: str, generation: int, token: str, slot: int) -> str:
    """An id of the process that made up `token`, which is hexadecimal."""
    return f"{_ID_PREFIX}.{query_id}.{generation}.{token}-{slot}"


def id_prefix(query_id: str) -> str:
    """How all transactional ids of a query begin."""
    return f"{_ID_PREFIX}.{query_id}."


def generation_of(name: str, query_id: str) -> int | None:
    """The generation that a transactional id belongs to, or None if it is not one of this query."""
    found = _ID.fullmatch(name)
    return int(found["generation"]) if found is not None and found["query"] == query_id else None


def can_never_win(record: LedgerRecord, transaction: PreparedTransaction, *, batch_is_over: bool) -> bool:
    """Whether no driver can ever decide for this open transaction, so that aborting it loses nothing.

    That is so for the generations before the owner's, and for the owner's own once its batch was decided, except for
    the winners. A later generation is one of a newer owner.
    """
    generation = generation_of(transaction.transactional_id, record.query_id)
    if generation is None or _is_in(transaction, record.winners):
        return False
    return generation < record.generation or (batch_is_over and generation == record.generation)


def _is_in(transaction: PreparedTransaction, winners: Iterable[Winner]) -> bool:
    same = (transaction.transactional_id, transaction.producer_id, transaction.epoch)
    return any(
        (each.transaction.transactional_id, each.transaction.producer_id, each.transaction.epoch) == same
        for each in winners
    )


class Slots:
    """The transactional ids of one process for one generation of a query.

    An id is given out once per batch at most, and again only for a later one: then the transaction it named before was
    ended, since Spark starts no task of a batch before the one before is committed. `token` must be one that no other
    process uses.
    """

    def __init__(self, query_id: str, generation: int, token: str) -> None:
        self.query_id = query_id
        self.generation = generation
        self._token = token
        self._last_batch: list[int] = []

    def take(self, batch_id: int) -> str:
        """An id for a task of this batch."""
        free = (slot for slot, last in enumerate(self._last_batch) if last < batch_id)
        slot = next(free, len(self._last_batch))
        self._last_batch[slot : slot + 1] = [batch_id]
        return transactional_id(self.query_id, self.generation, self._token, slot)


# ---------------------------------------------------------------------------------------------- the margin


def check_margin(age_ms: float, timeout_ms: int, margin_ms: int) -> None:
    """Raises MarginCrossed if transactions of this age could time out before they are committed.

    `age_ms` is the time since the batch was planned, so no transaction of it is older.
    """
    if age_ms <= timeout_ms - margin_ms:
        return
    raise MarginCrossed(
        f"the batch has taken {age_ms / 1000:.1f} s, and its transactions time out after {timeout_ms / 1000:.1f} s: "
        f"less than the margin of {margin_ms / 1000:.1f} s is left; no record of the batch is visible",
        hint="Make batches smaller (maxOffsetsPerTrigger), or raise penstock.transaction.timeout.ms and "
        "transaction.max.timeout.ms of the brokers",
    )


# ---------------------------------------------------------------------------------------------- the brokers


class LedgerFenced(PenstockError):
    """Another process has taken the ledger over since. It has to be read again."""


class LedgerInDoubt(PenstockError):
    """The record may be written or not. Taking the ledger over settles it."""


class Brokers(Protocol):
    """What the protocol needs of a cluster. Calls raise PenstockError, besides what is documented here."""

    def read(self, query_id: str, *, settled: bool = True) -> LedgerRecord | None:
        """The committed record of a query, as of now: pending writes are waited for, unless not `settled`."""

    def take_over(self, query_id: str) -> None:
        """Fences every other writer of this query's record. What they left is committed or aborted afterwards."""

    def write(self, record: LedgerRecord) -> None:
        """Replaces the record; only after `take_over`. Raises LedgerFenced, LedgerInDoubt."""

    def closed(self, transactions: Sequence[PreparedTransaction]) -> Sequence[PreparedTransaction]:
        """The transactions that are not open any longer."""

    def end(self, transactions: Sequence[PreparedTransaction], *, commit: bool) -> Sequence[PenstockError | None]:
        """Ends transactions, and says of each how it went: as `Admin.end_transaction`."""

    def was_committed(self, winner: Winner) -> bool:
        """Looks for the records of an ended transaction in the log."""

    def open_transactions(self, prefix: str) -> Sequence[PreparedTransaction]:
        """Open transactions whose id begins so."""

    def pause(self, attempt: int) -> None:
        """Waits for a moment of random length before another attempt. Raises TimedOut after too many."""


# ---------------------------------------------------------------------------------------------- the protocol


class Claim(NamedTuple):
    """What a task needs to know."""

    generation: int
    decided_batch: int
    """The last batch that was decided when the claim was made: its tasks have nothing to write."""


@dataclass(frozen=True)
class Batch:
    """What the tasks of a batch have prepared."""

    run_id: str
    batch_id: int
    winners: tuple[Winner, ...]
    has_skipped: bool = False
    """A task found the batch decided and wrote nothing."""
    check_age: Callable[[], None] = lambda: None
    """Raises if it is too late to decide."""

    @property
    def transactions(self) -> list[PreparedTransaction]:
        return [each.transaction for each in self.winners]


class Ledger:
    """The record of one query, as this process knows it. Used by one thread at a time."""

    def __init__(self, brokers: Brokers, query_id: str) -> None:
        self._brokers = brokers
        self.query_id = query_id
        self._record: LedgerRecord | None = None
        self._is_held = False
        """This process took the ledger over, and knows of no later takeover: if it may write, nothing has changed."""

    # ------------------------------------------------------------------------------------------ claiming

    def claim(self, run_id: str) -> Claim:
        """Makes this run the owner, if it is not yet. Raises Superseded if another run has replaced it."""
        attempt = 0
        while True:
            # Not waiting for a write of a driver that died in it: if this run is the owner, that is all a task needs.
            record = self._brokers.read(self.query_id, settled=False)
            if record is None or record.run_id != run_id:
                self._is_held = False
                record = self._held()
            if record is not None and record.run_id == run_id:
                return Claim(record.generation, record.batch_id)
            if record is not None and run_id in record.superseded:
                raise self._superseded(run_id, record)
            new = LedgerRecord(self.query_id, run_id, 1) if record is None else record.taken_over_by(run_id)
            if self._written(new):
                _log.info("query claimed: query=%s run=%s generation=%d", self.query_id, run_id, new.generation)
                return Claim(new.generation, new.batch_id)
            # Another task of this run may have been faster.
            self._brokers.pause(attempt)
            attempt += 1

    # ------------------------------------------------------------------------------------------ deciding

    def commit(self, batch: Batch, *, accept_lost: bool = False) -> LedgerRecord:
        """Decides a batch and carries the decision out; a batch that was decided before is only carried out.

        Raises Superseded, CheckpointMismatch, MarginCrossed, RowsLost, and errors of the brokers. After any of them the
        batch may be decided or not: the next run of the query finds out, and writes it or carries it out.
        """
        record = self._decision(batch)
        self._carry_out(record, accept_lost=accept_lost)
        self._end_losers([each for each in batch.transactions if not _is_in(each, record.winners)])
        return record

    def _decision(self, batch: Batch) -> LedgerRecord:
        batch_id, winners = batch.batch_id, batch.winners
        attempt = 0
        while True:
            is_remembered = self._is_held
            record = self._held()
            is_open = record is not None and record.run_id == batch.run_id and record.batch_id < batch_id
            if is_remembered and not is_open:
                # What is remembered is checked by writing only; the query may have been started again since.
                self._is_held = False
                continue
            if record is None or record.run_id != batch.run_id:
                self._end_losers(batch.transactions)
                raise self._superseded(batch.run_id, record)
            if record.batch_id == batch_id:
                return record
            if record.batch_id > batch_id:
                self._end_losers(batch.transactions)
                raise CheckpointMismatch(
                    f"batch {batch_id} of query {self.query_id} is older than its ledger, which has batch "
                    f"{record.batch_id}; nothing was written",
                    hint="The checkpoint was restored from an older copy. Use the newest, or a new checkpoint",
                )
            if batch.has_skipped:
                raise LedgerDamaged(
                    f"tasks of batch {batch_id} of query {self.query_id} found it in the ledger, which now has only "
                    f"batch {record.batch_id}",
                    hint="Was the ledger topic changed by hand? The batch is written again when the query is restarted",
                )
            if not winners:
                # A batch without rows needs no decision: writing nothing can be repeated.
                return replace(record, batch_id=batch_id, winners=())
            batch.check_age()
            self._check_open(winners)
            decided = record.decided(batch_id, winners)
            if self._written(decided):
                return decided
            self._brokers.pause(attempt)
            attempt += 1

    def _check_open(self, winners: Sequence[Winner]) -> None:
        """A transaction that has timed out must not win."""
        closed = self._brokers.closed([each.transaction for each in winners])
        if closed:
            raise MarginCrossed(
                f"{len(closed)} of {len(winners)} transactions of the batch are no longer open, first "
                f"{closed[0].transactional_id}: they timed out or were aborted; no record of the batch is visible",
                hint="The query continues with this batch when it is started again. If it recurs, make batches smaller "
                "(maxOffsetsPerTrigger) or raise penstock.transaction.timeout.ms",
            )

    def finish(self, batch_id: int, *, accept_lost: bool = False) -> None:
        """Carries out an earlier decision about a batch for which there is nothing to decide now."""
        record = self._brokers.read(self.query_id)
        if record is not None and record.batch_id == batch_id:
            self._carry_out(record, accept_lost=accept_lost)

    def commit_unrecorded(self, batch: Batch) -> LedgerRecord:
        """Commits a write that cannot be repeated, so that a record of it would never be read."""
        batch.check_age()
        self._check_open(batch.winners)
        record = LedgerRecord(self.query_id, batch.run_id, 0, batch.batch_id, batch.winners)
        lost = self._lost(record)
        if lost:
            raise self._rows_lost(record, lost)
        return record

    def _carry_out(self, record: LedgerRecord, *, accept_lost: bool) -> None:
        """Commits the winners of a decision. May be repeated. Raises RowsLost, and errors of the brokers."""
        lost = self._lost(record)
        if not lost:
            return
        # If no record of the batch is visible, or can become visible, the batch is as good as undecided.
        void = replace(record, batch_id=record.batch_id - 1, winners=())
        if len(lost) == len(record.winners) and self._is_held and self._written(void):
            raise MarginCrossed(
                f"all transactions of batch {record.batch_id} of query {self.query_id} timed out before they were "
                "committed; no record of the batch is visible",
                hint="The query writes this batch again when it is started again",
            )
        error = self._rows_lost(record, lost)
        if not accept_lost:
            raise error
        _log.error("lost rows accepted: error=%r", one_line(error.message))

    def _lost(self, record: LedgerRecord) -> list[Winner]:
        """Commits winners, and returns those that were aborted before."""
        ends = self._brokers.end([each.transaction for each in record.winners], commit=True)
        lost: list[Winner] = []
        for winner, error in zip(record.winners, ends, strict=True):
            if error is None:
                continue
            if isinstance(error, TransactionAborted):
                lost.append(winner)
            elif isinstance(error, TransactionOutcomeUnknown) and not error.retriable:
                # The id was used again, which its process does only for the batch after; or it has expired.
                if not self._brokers.was_committed(winner):
                    lost.append(winner)
            else:
                raise error
        return lost

    def _rows_lost(self, record: LedgerRecord, lost: Sequence[Winner]) -> RowsLost:
        ranges = [each for winner in lost for each in winner.stored]
        rows = sum(each.records for each in lost)
        shown = ", ".join(map(str, ranges[:_SHOWN_RANGES]))
        more = f" and {len(ranges) - _SHOWN_RANGES} more ranges" if len(ranges) > _SHOWN_RANGES else ""
        return RowsLost(
            f"batch {record.batch_id} of query {self.query_id} was decided, but {len(lost)} of {len(record.winners)} "
            f"of its transactions timed out before they were committed: {rows} rows are not visible, at "
            f"{shown}{more}",
            ranges=tuple(ranges),
            hint="A read_uncommitted consumer still finds them at these offsets. Write them to the topic again, then "
            "start the query once with penstock.lost.rows=accept. Brokers with two-phase commit cannot lose them",
        )

    # ------------------------------------------------------------------------------------------ aborting

    def abort(self, run_id: str, batch_id: int, transactions: Sequence[PreparedTransaction]) -> bool:
        """Aborts a batch that has failed, with its run; False if it was decided, and nothing was touched."""
        # A write of this very batch may be on its way, if the commit failed: taking over settles it.
        self._is_held = False
        record = self._held()
        if record is not None and record.run_id == run_id and record.batch_id == batch_id:
            return False
        self._end_losers([each for each in transactions if record is None or not _is_in(each, record.winners)])
        if record is not None and record.run_id == run_id:
            # Spark ends a run whose batch has failed, so nothing of it can win any more.
            self.sweep(record)
        return True

    def sweep(self, record: LedgerRecord) -> int:
        """Aborts what dead or late tasks left, when the batch of `record`, which this run owns, is over."""
        found = self._brokers.open_transactions(id_prefix(self.query_id))
        left = [each for each in found if can_never_win(record, each, batch_is_over=True)]
        self._end_losers(left)
        return len(left)

    def _end_losers(self, transactions: Collection[PreparedTransaction]) -> None:
        """Aborts. An abort that fails is repeated by the next sweep, or by the time-out."""
        for error in self._brokers.end(list(transactions), commit=False) if transactions else ():
            if error is not None:
                _log.debug("transaction not aborted: error=%r", one_line(error))

    # ------------------------------------------------------------------------------------------ the record

    def _held(self) -> LedgerRecord | None:
        """The record. Another process cannot change it without this one noticing when it writes."""
        if not self._is_held:
            self._brokers.take_over(self.query_id)
            self._record = self._brokers.read(self.query_id)
            self._is_held = True
        return self._record

    def _written(self, record: LedgerRecord) -> bool:
        """Whether the record was certainly written; if not, it has to be read again."""
        self._is_held = False
        try:
            self._brokers.write(record)
        except (LedgerFenced, LedgerInDoubt) as error:
            _log.info("ledger write repeated: query=%s reason=%r", self.query_id, one_line(error))
            return False
        self._record, self._is_held = record, True
        return True

    def _superseded(self, run_id: str, record: LedgerRecord | None) -> PenstockError:
        if record is None:
            return LedgerDamaged(
                f"the ledger has no record of query {self.query_id}, which run {run_id} has written before",
                hint="Was the ledger topic deleted? The batch is written again when the query is started again",
            )
        return Superseded(
            f"run {run_id} of query {self.query_id} was superseded by run {record.run_id}; nothing of it was written",
            hint=_STOP_OTHER,
        )
