r"""The transactional producer as a state machine. Pure.

    uninitialized -> initializing -> ready -> in transaction -> committing -> ready
                                                     |    \---> aborting ---^   ^
                                                     v             ^            |
                                              abortable error -----+     unknown outcome

`TRANSITIONS` lists every transition. A failed batch or offset leads to *abortable error*, from
where only an abort leads on. A commit that was sent and never answered leads to *unknown outcome*, from where only the
same commit leads on: aborting what may be committed would make the application send its records twice. *Prepared*
is a transaction that takes no more records: after `prepare_transaction`, or after a commit that certainly did not
reach the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from penstock.client.errors import (
    AbortableTransactionError,
    FatalTransactionError,
    InvalidTransactionState,
    PenstockError,
    ProducerFenced,
    TransactionOutcomeUnknown,
)
from penstock.client.producer.producer_batch import ProducerId
from penstock.client.transactions import PreparedTransaction, Verdict

Partition = tuple[str, int]


class State(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "between transactions"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "in a prepared transaction"
    COMMITTING = "committing a transaction"
    ABORTING = "aborting a transaction"
    ABORTABLE_ERROR = "in a failed transaction"
    UNKNOWN_OUTCOME = "after a commit whose outcome is unknown"
    FATAL_ERROR = "stopped by an error"


class Event(Enum):
    INITIALIZE = "init_transactions()"
    INITIALIZED = "the coordinator assigned a producer id"
    NOT_INITIALIZED = "the coordinator did not"
    BEGIN = "begin_transaction()"
    PREPARE = "prepare_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"
    ENDED = "the coordinator confirmed the end"
    NOT_ENDED = "the end was certainly not carried out"
    DOUBT = "the end may have been carried out"
    FAILED = "a record or offset was rejected"
    FATAL = "the producer cannot continue"


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.UNINITIALIZED: {Event.INITIALIZE: State.INITIALIZING},
    State.INITIALIZING: {
        Event.INITIALIZED: State.READY,
        Event.NOT_INITIALIZED: State.UNINITIALIZED,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.READY: {Event.BEGIN: State.IN_TRANSACTION, Event.FATAL: State.FATAL_ERROR},
    State.IN_TRANSACTION: {
        Event.PREPARE: State.PREPARED,
        Event.COMMIT: State.COMMITTING,
        Event.ABORT: State.ABORTING,
        Event.FAILED: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.PREPARED: {
        # It is left to another process, which has ended it, or is aborted by the coordinator.
        Event.INITIALIZE: State.INITIALIZING,
        Event.PREPARE: State.PREPARED,
        Event.COMMIT: State.COMMITTING,
        Event.ABORT: State.ABORTING,
        Event.FAILED: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.COMMITTING: {
        Event.ENDED: State.READY,
        Event.NOT_ENDED: State.PREPARED,
        Event.DOUBT: State.UNKNOWN_OUTCOME,
        Event.FAILED: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTING: {
        Event.ENDED: State.READY,
        # An abort can be repeated, whether it was carried out or not.
        Event.NOT_ENDED: State.ABORTABLE_ERROR,
        Event.DOUBT: State.ABORTABLE_ERROR,
        Event.FAILED: State.ABORTING,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.ABORTABLE_ERROR: {
        Event.ABORT: State.ABORTING,
        Event.FAILED: State.ABORTABLE_ERROR,
        Event.FATAL: State.FATAL_ERROR,
    },
    State.UNKNOWN_OUTCOME: {Event.COMMIT: State.COMMITTING, Event.FATAL: State.FATAL_ERROR},
    State.FATAL_ERROR: {Event.FATAL: State.FATAL_ERROR},
}

_HINTS: Final[Mapping[State, str]] = {
    State.UNINITIALIZED: "Call begin_transaction() first",
    State.INITIALIZING: "Another thread is calling init_transactions(); use a transactional producer from one thread",
    State.READY: "Call begin_transaction() first",
    State.IN_TRANSACTION: "Commit or abort the current transaction first",
    State.PREPARED: "It takes no more records: commit or abort it",
    State.COMMITTING: "Another thread is committing; use a transactional producer from one thread",
    State.ABORTING: "Another thread is aborting; use a transactional producer from one thread",
}


class TransactionState:
    """The state of a transactional producer, and what belongs to its current transaction.

    The caller makes sure that one thread uses it at a time.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        self.error: PenstockError | None = None
        """What failed first, in an error state."""
        self.producer: ProducerId | None = None
        self.version = 1
        self.is_doubtful = False
        """A commit of this transaction was sent and never answered."""
        self.is_lost = False
        """The coordinator does not know the producer id any more."""
        self.has_gap = False
        """A numbered batch failed, so that the epoch has no next sequence number."""
        self._is_begun = False
        self._partitions: set[Partition] = set()
        self._wanted: set[Partition] = set()
        self._groups: set[str] = set()

    def __repr__(self) -> str:
        return f"<TransactionState {self.transactional_id}, {self.state.value}>"

    # --- transitions

    def call(self, event: Event) -> None:
        """A call of the application; raises a TransactionError if the state does not allow it."""
        if event not in TRANSITIONS[self.state]:
            raise self.rejection(event.value)
        self.happened(event)

    def happened(self, event: Event, error: PenstockError | None = None) -> None:
        """Raises InvalidTransactionState for an event that cannot happen in this state: a bug of the client."""
        if event is Event.NOT_ENDED and self.state is State.COMMITTING and self.is_doubtful:
            event = Event.DOUBT  # an earlier attempt may have been carried out
        elif event is Event.FAILED and self.is_doubtful:
            event = Event.FATAL  # the response to a later attempt does not show how it ended
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise InvalidTransactionState(f"{event.value!r} happened to a producer that is {self.state.value}")
        if event is Event.BEGIN or event is Event.ENDED:
            self._start_over()
        elif event is Event.DOUBT and self.state is State.COMMITTING:
            self.is_doubtful = True
        if error is not None and (self.error is None or following is State.FATAL_ERROR is not self.state):
            self.error = error
        self.state = following

    def _start_over(self) -> None:
        self.error = None
        self.is_doubtful = self.is_lost = self.has_gap = self._is_begun = False
        self._partitions.clear()
        self._wanted.clear()
        self._groups.clear()

    def failed(self, verdict: Verdict, error: PenstockError) -> None:
        """A record, an offset or a request of the transaction was rejected for good."""
        if verdict in (Verdict.FENCED, Verdict.STOP):
            self.happened(Event.FATAL, error)
        elif Event.FAILED in TRANSITIONS[self.state]:
            self.is_lost = self.is_lost or verdict is Verdict.LOST
            self.happened(Event.FAILED, error)

    # --- what is allowed

    @property
    def may_send(self) -> bool:
        """Whether the application may send records."""
        return self.state is State.IN_TRANSACTION

    @property
    def may_retry(self) -> bool:
        """Whether batches may be sent, for the first time or again."""
        return self.state in (State.IN_TRANSACTION, State.COMMITTING, State.PREPARED)

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that only this producer knows how to end: close() aborts it."""
        return self.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR)

    def rejection(self, call: str) -> PenstockError:
        """The error for a call that this state does not allow."""
        cause = self.error
        error: PenstockError
        if self.state is State.FATAL_ERROR and cause is not None:
            return self._stopped(call, cause)
        if self.state is State.ABORTABLE_ERROR and cause is not None:
            error = AbortableTransactionError(f"{call} is not possible: the transaction has failed: {cause.message}")
        elif self.state is State.UNKNOWN_OUTCOME:
            error = TransactionOutcomeUnknown(
                f"{call} is not possible: the transaction may be committed, as its commit was sent and not answered"
            )
        else:
            error = InvalidTransactionState(
                f"{call} is not possible while the producer is {self.state.value}", hint=_HINTS.get(self.state, "")
            )
        error.__cause__ = cause
        return error

    def _stopped(self, call: str, cause: PenstockError) -> PenstockError:
        doubt = ". Whether the last transaction was committed is not known" if self.is_doubtful else ""
        error: PenstockError
        if isinstance(cause, ProducerFenced):
            error = ProducerFenced(cause.code, where=cause.where, detail=cause.detail, hint=f"{cause.hint}{doubt}")
        else:
            error = FatalTransactionError(f"{call} is not possible: {str(cause).rstrip('.')}")
            error.hint += doubt
        error.__cause__ = cause
        return error

    # --- the content of the transaction

    @property
    def is_empty(self) -> bool:
        """Whether the coordinator knows nothing of this transaction, so that there is nothing to end."""
        return not self._is_begun

    def admits(self, topic: str, partition: int) -> bool:
        """Whether a batch of this partition may be sent now.

        In version 1 only once the coordinator knows that the partition takes part, which `to_add` is for.
        """
        if not self.may_retry:
            return False
        if self.version >= 2:
            self._is_begun = True
            return True
        if (topic, partition) in self._partitions:
            return True
        self._wanted.add((topic, partition))
        return False

    def to_add(self) -> frozenset[Partition]:
        """Partitions that wait for AddPartitionsToTxn."""
        return frozenset(self._wanted - self._partitions)

    def added(self, partitions: frozenset[Partition]) -> None:
        self._is_begun = True
        self._partitions |= partitions
        self._wanted -= partitions

    def touches_coordinator(self) -> None:
        """A request is sent that may begin the transaction at the coordinator."""
        self._is_begun = True

    def has_group(self, group_id: str) -> bool:
        return group_id in self._groups

    def added_group(self, group_id: str) -> None:
        self._is_begun = True
        self._groups.add(group_id)

    def prepared(self) -> PreparedTransaction:
        """The current transaction, for the process that ends it."""
        if self.producer is None:
            raise self.rejection(Event.PREPARE.value)
        return PreparedTransaction(
            self.transactional_id, self.producer.id, self.producer.epoch, self.version, is_empty=self.is_empty
        )
