"""The state of one transactional id: states, transitions and the records of `__transaction_state`. Pure.

    Empty ─> Ongoing ─> PrepareCommit ─> CompleteCommit ─> Ongoing ...
                     └> PrepareAbort  ─> CompleteAbort

A `Transaction` is immutable. Each function below returns the next one, which counts once its record is in the log.
PrepareCommit and PrepareAbort are decisions: whatever happens, markers follow and then the Complete state.

Epochs fence. A transaction that the coordinator aborts (a timeout, a new producer with the same id) ends in the next
epoch, so that its producer can do nothing more. In transaction version 2 (KIP-890) every transaction ends in the next
epoch: a late Produce, EndTxn or marker names an epoch that is over. Epoch 32766 is the last one that a producer gets;
its transaction ends in 32767, and the producer continues with a new id (KAFKA-18660).

Two-phase commit (KIP-939): such a transaction has no timeout, and a producer that asks to keep it gets the next epoch
while the transaction stays open in its own; from then on only that producer can end it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from penstock.coordination.coordinator_record import (
    CoordinatorRecord,
    decode_versioned,
    encode_versioned,
    version_of,
)
from penstock.coordination.errors import BadTransactionRecord, ImpossibleTransition
from penstock.wire.types import EMPTY, Buffer, Int8, Int16, Int32, Int64, Message, Schema, nullable, tagged

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 2**15 - 2
"""The last epoch that a producer gets; the one after it is for markers."""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""The timeout of transactions with two-phase commit."""

VERSION_1: Final = 1
VERSION_2: Final = 2

TopicPartition: TypeAlias = tuple[str, int]

_KEY_VERSION: Final = 0
# Tagged fields need a flexible version.
_VALUE_VERSION: Final = 1


class TransactionState(IntEnum):
    """The states, with the numbers that Kafka stores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name, as in PrepareCommit."""
        return self.name.title().replace("_", "")


EMPTY_STATE, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
DECIDED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
COMPLETED: Final = frozenset({EMPTY_STATE, COMPLETE_COMMIT, COMPLETE_ABORT})
"""No transaction is open."""

TRANSITIONS: Final = {
    EMPTY_STATE: {EMPTY_STATE, ONGOING, PREPARE_ABORT},
    # To itself: partitions are added, or a producer keeps a prepared transaction.
    ONGOING: {ONGOING, PREPARE_COMMIT, PREPARE_ABORT},
    PREPARE_COMMIT: {COMPLETE_COMMIT},
    PREPARE_ABORT: {COMPLETE_ABORT},
    # A transaction of version 2 without partitions can be aborted, for the next epoch.
    COMPLETE_COMMIT: {EMPTY_STATE, ONGOING, PREPARE_ABORT},
    COMPLETE_ABORT: {EMPTY_STATE, ONGOING, PREPARE_ABORT},
}


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a transactional id, as it is stored."""

    producer_id: int
    epoch: int = NO_EPOCH
    timeout_ms: int
    state: TransactionState = EMPTY_STATE
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    update_ms: int = NO_TIME
    version: int = 0
    """The transaction version of the client that ends, or ended, the transaction."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer's id after a transaction that ends in the last epoch."""
    next_epoch: int = NO_EPOCH
    """The epoch of a producer that keeps a prepared transaction: only it can end the transaction."""

    @property
    def is_exhausted(self) -> bool:
        """Whether there is no next epoch for the producer."""
        return max(self.epoch, self.next_epoch) >= LAST_EPOCH

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == NO_TIMEOUT_MS

    @property
    def ending_epoch(self) -> int:
        """The epoch of the producer that can end the transaction."""
        return self.epoch if self.next_epoch == NO_EPOCH else self.next_epoch

    @property
    def successor(self) -> tuple[int, int]:
        """Producer id and epoch for the next transaction, once this one is decided."""
        return (self.producer_id, self.epoch) if self.next_producer_id < 0 else (self.next_producer_id, 0)


# --- transitions


def begin_producer(transaction: Transaction, timeout_ms: int, now_ms: int) -> Transaction:
    """A producer starts: the next epoch. Without a next one, use `rotate_producer`."""
    return _next(transaction, EMPTY_STATE, now_ms, epoch=transaction.epoch + 1, timeout_ms=timeout_ms)


def rotate_producer(transaction: Transaction, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A producer starts under a new id, because the epochs of the old one are used up."""
    return _next(
        transaction,
        EMPTY_STATE,
        now_ms,
        producer_id=producer_id,
        previous_producer_id=transaction.producer_id,
        epoch=0,
        timeout_ms=timeout_ms,
    )


def keep_prepared(transaction: Transaction, timeout_ms: int, now_ms: int) -> Transaction:
    """A producer takes over an open transaction (KIP-939): the epoch of its former producer is over."""
    return _next(
        transaction,
        ONGOING,
        now_ms,
        next_epoch=transaction.ending_epoch + 1,
        timeout_ms=timeout_ms,
        start_ms=transaction.start_ms,
        partitions=transaction.partitions,
    )


def add_partitions(
    transaction: Transaction, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> Transaction:
    """Partitions join the transaction; the first ones begin it."""
    is_new = transaction.state is not ONGOING
    return _next(
        transaction,
        ONGOING,
        now_ms,
        start_ms=now_ms if is_new else transaction.start_ms,
        partitions=frozenset(partitions) if is_new else transaction.partitions.union(partitions),
        version=version,
        next_epoch=NO_EPOCH if is_new else transaction.next_epoch,
    )


def decide(
    transaction: Transaction,
    now_ms: int,
    *,
    commit: bool,
    version: int,
    bump: bool,
    next_producer_id: int = NO_PRODUCER_ID,
) -> Transaction:
    """Commit or abort; with `bump` in the next epoch, which fences the producer's current one.

    `next_producer_id` is needed if `is_exhausted`. Epoch 7, version 2: the markers have 8, and so has the producer's
    next transaction. Epoch 32766: the markers have 32767, and the producer continues as `next_producer_id` in epoch 0.
    """
    epoch = transaction.ending_epoch
    return _next(
        transaction,
        PREPARE_COMMIT if commit else PREPARE_ABORT,
        now_ms,
        epoch=epoch + 1 if bump else epoch,
        version=version,
        partitions=transaction.partitions if transaction.state is ONGOING else frozenset(),
        start_ms=transaction.start_ms if transaction.state is ONGOING else now_ms,
        next_producer_id=next_producer_id if bump and transaction.is_exhausted else NO_PRODUCER_ID,
    )


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    state = COMPLETE_COMMIT if transaction.state is PREPARE_COMMIT else COMPLETE_ABORT
    producer_id, epoch = transaction.successor
    is_rotated = producer_id != transaction.producer_id
    previous = transaction.producer_id if is_rotated else transaction.previous_producer_id
    return _next(
        transaction,
        state,
        now_ms,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=previous,
        start_ms=transaction.start_ms,
    )


def _next(transaction: Transaction, state: TransactionState, now_ms: int, **changes: object) -> Transaction:
    """The next state; without another word it has no partitions, no start and no successor."""
    if state not in TRANSITIONS[transaction.state]:
        raise ImpossibleTransition(f"producer {transaction.producer_id}", transaction.state.label, state.label)
    reset: dict[str, object] = {
        "partitions": frozenset(),
        "start_ms": NO_TIME,
        "next_producer_id": NO_PRODUCER_ID,
        "next_epoch": NO_EPOCH,
    }
    return msgspec.structs.replace(transaction, **{**reset, **changes, "state": state, "update_ms": now_ms})


# --- records


class TransactionLogKey(Message):
    SCHEMA: ClassVar[Schema] = Schema("0")

    transactional_id: str = ""


class PartitionsSchema(Message):
    topic: str = ""
    partition_ids: list[Int32] = EMPTY


class TransactionLogValue(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, tagged(0, "1+")] = NO_PRODUCER_ID
    next_producer_id: Annotated[Int64, tagged(1, "1+")] = NO_PRODUCER_ID
    producer_epoch: Int16 = 0
    next_producer_epoch: Annotated[Int16, tagged(3, "1+")] = NO_EPOCH
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: Annotated[list[PartitionsSchema] | None, nullable("0+")] = EMPTY
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, tagged(2, "1+")] = 0


class TransactionRecord(NamedTuple):
    """The state of a transactional id; without a value the id has expired."""

    transactional_id: str
    value: Transaction | None


def encode_record(record: TransactionRecord) -> CoordinatorRecord:
    value = None if record.value is None else encode_versioned(_stored(record.value), _VALUE_VERSION)
    return CoordinatorRecord(_key(record.transactional_id), value)


@lru_cache(256)  # ids may have 32 KiB
def _key(transactional_id: str) -> bytes:
    return encode_versioned(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """Decode a record; None for versions that are unknown here. BadTransactionRecord if its bytes do not fit."""
    if key is None:
        raise BadTransactionRecord("the record has no key")
    if version_of(key, BadTransactionRecord) not in TransactionLogKey.SCHEMA.versions:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key, BadTransactionRecord).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    if version_of(value, BadTransactionRecord) not in TransactionLogValue.SCHEMA.versions:
        return None
    return TransactionRecord(
        transactional_id, _loaded(decode_versioned(TransactionLogValue, value, BadTransactionRecord))
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, sorted."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return dict(topics)


def _stored(transaction: Transaction) -> TransactionLogValue:
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=indexes)
        for topic, indexes in by_topic(transaction.partitions).items()
    ]
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        next_producer_epoch=transaction.next_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        # As Kafka: nothing where no transaction can be open.
        transaction_partitions=None if transaction.state is EMPTY_STATE else partitions,
        transaction_last_update_timestamp_ms=transaction.update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.version,
    )


def _loaded(message: TransactionLogValue) -> Transaction:
    try:
        state = TransactionState(message.transaction_status)
    except ValueError:
        raise BadTransactionRecord(f"{message.transaction_status} is not a state of a transaction") from None
    if state not in TRANSITIONS:
        raise BadTransactionRecord(f"state {state.label} is never stored")
    partitions = frozenset(
        (topic.topic, index) for topic in message.transaction_partitions or () for index in topic.partition_ids
    )
    return Transaction(
        producer_id=message.producer_id,
        epoch=message.producer_epoch,
        timeout_ms=message.transaction_timeout_ms,
        state=state,
        partitions=partitions,
        start_ms=message.transaction_start_timestamp_ms,
        update_ms=message.transaction_last_update_timestamp_ms,
        version=message.client_transaction_version,
        previous_producer_id=message.previous_producer_id,
        next_producer_id=message.next_producer_id,
        next_epoch=message.next_producer_epoch,
    )
