"""Mutations of transactions: safeguards of coordinators, partitions and clients that can be switched off.

`TRANSACTION_MUTATIONS` has a row for each: what it is, what it replaces, and the violations that follow, as the name
of an error and a sentence. `mutations` makes them usable by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from unittest import mock

import msgspec

from penstock.broker.handlers.produce import _Produce
from penstock.client.consumer.consumer import ConsumerCalls
from penstock.client.producer.producer_batch import PartitionSequences, ProducerBatch, ProducerId
from penstock.client.producer.transaction_manager import TransactionManager
from penstock.client.producer.transaction_state import Event, State
from penstock.client.transactions import Attempts
from penstock.coordination import offsets as group_commits
from penstock.coordination.group_records import OffsetRecord
from penstock.coordination.groups.group import Group
from penstock.coordination.offsets import CommittedOffsets
from penstock.coordination.responses import NO_PRODUCER_ID, Token
from penstock.coordination.transactions import transaction as transitions
from penstock.coordination.transactions import transaction_shard as shards
from penstock.coordination.transactions.transaction import DECIDED, VERSION_2, Transaction, TransactionState
from penstock.coordination.transactions.transaction_shard import (
    End,
    Ended,
    Outcome,
    TransactionShard,
    _Entry,
    _Kind,
    _Phase,
    _Turn,
)
from penstock.log.index import AbortedTransaction
from penstock.log.partition_log import Appended, PartitionLog
from penstock.log.producer_state import ProducerBatch as ProducerBatchHeader
from penstock.log.producer_state import ProducerStates
from penstock.log.segment import Region
from penstock.records import Buffer
from penstock.records.batch import EndMarker
from penstock.replication.partition import Partition
from penstock.testing.simulation.transactions.workload import has_expiry, is_drawn, version_of
from penstock.wire.protocol import ErrorCode


class Row(NamedTuple):
    what: str
    replaced: tuple[tuple[Any, str, Any], ...]
    expected: tuple[tuple[str, str], ...]
    may_catch: Callable[[int], bool] = is_drawn


def _ids_expire(seed: int) -> bool:
    return is_drawn(seed) and has_expiry(seed)


def _is_version_2(seed: int) -> bool:
    return is_drawn(seed) and version_of(seed) == VERSION_2


# --- coordinators


def _decide_early(self: TransactionShard, entry: _Entry, request: End, token: Token, turn: _Turn) -> None:
    bump = request.version >= VERSION_2
    following = transitions.decide(
        entry.current, turn.now_ms, commit=request.commit, version=request.version, bump=bump
    )
    turn.reply(token, Ended(ErrorCode.NONE, *(following.successor if bump else ())))
    self._write(entry, following, turn, lambda turn: self._send_markers(entry, turn), lambda turn, code: None)


def _load_without_markers(self: TransactionShard, now_ms: int) -> Outcome:
    self._phase = _Phase.ACTIVE
    self._expiry_due_ms = now_ms + self._settings.expiry_interval_ms
    for entry in self._entries.values():
        if entry.current.state in DECIDED:
            entry.unmarked = set(entry.current.partitions)
        else:
            self._watch(entry)
    return self._finish(_Turn(now_ms))


def _forget_open_ones(self: TransactionShard, turn: _Turn) -> None:
    everything = frozenset(TransactionState)
    with mock.patch.object(shards, "COMPLETED", everything):
        _REAL_EXPIRE(self, turn)


def _never_forget(self: TransactionShard, turn: _Turn) -> None:
    self._expiry_due_ms = turn.now_ms + self._settings.expiry_interval_ms


def _complete_at_once(self: TransactionShard, entry: _Entry, turn: _Turn) -> None:
    _REAL_SEND_MARKERS(self, entry, turn)
    entry.unmarked.clear()
    self._complete_if_marked(entry, turn)


def _abort_in_the_same_epoch(self: TransactionShard, entry: _Entry, turn: _Turn) -> None:
    current = entry.current
    following = transitions.decide(current, turn.now_ms, commit=False, version=current.version, bump=False)
    self._write(entry, following, turn, lambda turn: self._send_markers(entry, turn), lambda turn, code: None)


def _begin_in_the_same_epoch(transaction: Transaction, timeout_ms: int, now_ms: int) -> Transaction:
    following = _REAL_BEGIN(transaction, timeout_ms, now_ms)
    return following if transaction.epoch < 0 else msgspec.structs.replace(following, epoch=transaction.epoch)


def _never_repeated(request: End, *, is_repeated: bool) -> _Kind:
    return _Kind.VERSION_2 if request.version >= VERSION_2 else _Kind.VERSION_1


_REAL_SEND_MARKERS = TransactionShard._send_markers
_REAL_BEGIN = transitions.begin_producer
_REAL_EXPIRE = TransactionShard._expire


# --- partitions


def _check_as_version_1(self: ProducerStates, batch: ProducerBatchHeader, marker: EndMarker, version: int = 1) -> None:
    _REAL_CHECK_MARKER(self, batch, marker)


def _append_unverified(self: Any, partition: Partition, prepared: Any, outcome: Any) -> bool:
    return True


def _nothing_aborted(
    self: PartitionLog, offset: int, upper_offset: int, region: Region | None = None
) -> list[AbortedTransaction]:
    return []


def _append_without_aborted(self: PartitionLog, batches: Buffer, *, now_ms: int) -> Appended | None:
    with mock.patch.object(PartitionLog, "_note_aborted", return_value=None):
        return _REAL_APPEND(self, batches, now_ms=now_ms)


_REAL_CHECK_MARKER = ProducerStates.check_marker
_REAL_APPEND = PartitionLog.append_as_follower


# --- offsets of groups


def _replay_without_transaction(
    self: CommittedOffsets, record: OffsetRecord, producer_id: int = NO_PRODUCER_ID
) -> None:
    _REAL_REPLAY(self, record)


def _commit_aborted_offsets(self: CommittedOffsets, producer_id: int, *, committed: bool) -> set[str]:
    return _REAL_END(self, producer_id, committed=True)


def _accept_any_generation_in_transactions(
    group: Group, generation: int, member_id: str, instance_id: str | None, *, transactional: bool
) -> None:
    if not transactional:
        _REAL_CHECK_COMMIT(group, generation, member_id, instance_id, transactional=transactional)


_REAL_REPLAY = CommittedOffsets.replay
_REAL_END = CommittedOffsets.end_transaction
_REAL_CHECK_COMMIT = group_commits.check_commit


# --- clients


def _forgive_batches(self: TransactionManager, batch: ProducerBatch, error: Exception) -> None:
    """The transaction continues without the batch."""


def _without_doubt(self: TransactionManager, error: BaseException) -> None:
    with self._lock:
        if self.state.state is State.COMMITTING:
            self.state.is_doubtful = False
            self.state.happened(Event.NOT_ENDED)


def _moved_without_doubt(self: Attempts) -> None:
    """Take the answer of a coordinator that loses its role as a certain one."""


async def _stay(self: ConsumerCalls[Any, Any]) -> None:
    """Continue behind the records of the aborted transaction."""


def _keep_numbers(self: PartitionSequences, producer: ProducerId) -> None:
    if self.owner is not None:
        self.owner = producer


_VISIBLE: Final = "Violation", "but … of its … records are visible"
_IN_PART: Final = "Violation", "is visible in part"
_READ_EARLY: Final = "Violation", "reads record … of transaction …, which"
_UNREAD: Final = "Violation", "was read at …, where now … is"
_TWICE: Final = "Violation", "was processed twice, by … and by …"
_UNPROCESSED: Final = "Violation", "was never processed"
_NOT_AS_COMMITTED: Final = "Violation", "was processed by …, but the group is at …"
_OTHER_REPLICA: Final = "Violation", "a reader of committed records gets … records from …, not …"
_WAITS: Final = "Unhealed", "transactional clients end: not within …"
_STAYS_KNOWN: Final = "Unhealed", "unused ids are forgotten: not within …"
_STAYS_OPEN: Final = "Unhealed", "every transaction ends: not within …"

TRANSACTION_MUTATIONS: Final[dict[str, Row]] = {
    "decisions-answered-early": Row(
        "EndTxn is answered before the decision is committed",
        ((TransactionShard, "_decide", _decide_early),),
        (_VISIBLE, _IN_PART),
    ),
    "markers-not-resent": Row(
        "a new coordinator does not send the markers of decisions that it finds",
        ((TransactionShard, "loaded", _load_without_markers),),
        (_STAYS_OPEN, _WAITS),
    ),
    "complete-before-markers": Row(
        "a transaction is complete before its markers are written",
        ((TransactionShard, "_send_markers", _complete_at_once),),
        (_STAYS_OPEN, _VISIBLE, _IN_PART, _READ_EARLY),
    ),
    "timeouts-in-the-same-epoch": Row(
        "a transaction that times out is aborted in its own epoch",
        ((TransactionShard, "_abort", _abort_in_the_same_epoch),),
        (_VISIBLE, _IN_PART, _STAYS_OPEN),
    ),
    "zombies-not-fenced": Row(
        "a new producer gets the epoch of the one before it",
        ((transitions, "begin_producer", _begin_in_the_same_epoch),),
        (_VISIBLE, _IN_PART, _READ_EARLY, _TWICE),
    ),
    "late-ends-accepted": Row(
        "a late EndTxn of version 2 ends the next transaction (KAFKA-17754)",
        ((shards, "_kind", _never_repeated),),
        (_VISIBLE, _IN_PART, _READ_EARLY),
    ),
    "open-ids-expire": Row(
        "a transactional id expires while its transaction is open",
        ((TransactionShard, "_expire", _forget_open_ones),),
        (_STAYS_OPEN, _WAITS),
        _ids_expire,
    ),
    "ids-never-expire": Row(
        "a coordinator forgets no transactional id",
        ((TransactionShard, "_expire", _never_forget),),
        (_STAYS_KNOWN,),
        _ids_expire,
    ),
    "late-markers-accepted": Row(
        "a late marker of version 2 ends the next transaction",
        ((ProducerStates, "check_marker", _check_as_version_1),),
        (_VISIBLE, _IN_PART, _READ_EARLY, _STAYS_OPEN),
        _is_version_2,
    ),
    "writes-not-verified": Row(
        "a transactional write is accepted whatever its coordinator says",
        ((_Produce, "_may_append", _append_unverified),),
        (_STAYS_OPEN, _VISIBLE, _IN_PART, _READ_EARLY),
    ),
    "open-transactions-read": Row(
        "the last stable offset ignores open transactions",
        ((PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark)),),
        (_READ_EARLY, _UNREAD),
    ),
    "aborted-not-reported": Row(
        "a Fetch response does not name aborted transactions",
        ((PartitionLog, "aborted_between", _nothing_aborted),),
        (_READ_EARLY, _VISIBLE),
    ),
    "aborted-not-followed": Row(
        "followers do not index aborted transactions",
        ((PartitionLog, "append_as_follower", _append_without_aborted),),
        (_READ_EARLY, _VISIBLE, _OTHER_REPLICA),
    ),
    "pending-offsets-applied": Row(
        "offsets of an open transaction count as committed",
        ((CommittedOffsets, "replay", _replay_without_transaction),),
        (_UNPROCESSED,),
    ),
    "aborted-offsets-applied": Row(
        "offsets of an aborted transaction count as committed",
        ((CommittedOffsets, "end_transaction", _commit_aborted_offsets),),
        (_UNPROCESSED,),
    ),
    "old-generations-commit-in-transactions": Row(
        "offsets in a transaction are accepted from any generation",
        ((group_commits, "check_commit", _accept_any_generation_in_transactions),),
        (_TWICE, _NOT_AS_COMMITTED, _UNPROCESSED),
    ),
    "failed-batches-forgiven": Row(
        "the producer commits a transaction of which a batch failed",
        ((TransactionManager, "batch_failed", _forgive_batches),),
        (_VISIBLE, _IN_PART),
    ),
    "unknown-commits-aborted": Row(
        "the producer takes a commit without a response as not carried out",
        ((TransactionManager, "_commit_not_done", _without_doubt),),
        (_VISIBLE, _READ_EARLY, _TWICE),
    ),
    "moved-coordinators-believed": Row(
        "the producer takes a commit that a coordinator rejects when it loses its role as not carried out",
        ((Attempts, "moved", _moved_without_doubt),),
        (_VISIBLE, _READ_EARLY, _TWICE),
    ),
    "positions-not-rewound": Row(
        "the consumer continues behind the records of an aborted transaction",
        ((ConsumerCalls, "rewind", _stay),),
        (_UNPROCESSED,),
    ),
    "sequences-not-reset": Row(
        "the producer continues its sequence numbers in a new epoch",
        ((PartitionSequences, "move_to", _keep_numbers),),
        (_VISIBLE, _IN_PART, _READ_EARLY),
    ),
}
