"""All transactional ids of one partition of `__transaction_state`, without I/O. Pure.

    shard.replay(key, value)             for every record of the log, then outcome = shard.loaded(now_ms)
    outcome = shard.init_producer(...)   or add_partitions, end
    send outcome.replies and outcome.markers; append outcome.records as one batch, and then
    outcome = shard.appended(outcome.write_id, now_ms)    or shard.append_failed(...), and so on
    outcome = shard.marked(transactional_id, ...)         when partitions have the marker

1. State changes when its record is committed, and an id has one write in flight at most. The one exception is
   Complete, which counts at once and is appended with the next record of any id, or after `_DEFERRED_MS`: if it is
   lost, the markers are sent again, which is harmless, and every later record of the id is lost with it.
2. A decision (PrepareCommit, PrepareAbort) is answered when it is committed. Its markers follow; after a restart they
   are sent again.
3. A request that arrives while a decision is being carried out waits for its end, for at most `hold_ms`, instead of
   being answered with CONCURRENT_TRANSACTIONS: clients retry after 20 ms or more, and the end takes about 2 ms.
4. Transactions that are open for longer than their timeout are aborted in the next epoch.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from penstock.config_def import DAY_MS, HOUR_MS, MIB, MINUTE_MS, ConfigType, Importance, setting
from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.errors import Rejected, ShardActive, ShardNotActive, WriteOutOfOrder
from penstock.coordination.responses import Producer, Token
from penstock.coordination.transactions import transaction as transitions
from penstock.coordination.transactions.transaction import (
    COMPLETED,
    DECIDED,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    ONGOING,
    PREPARE_COMMIT,
    VERSION_1,
    VERSION_2,
    TopicPartition,
    Transaction,
    TransactionRecord,
    TransactionState,
    decode_record,
    encode_record,
)
from penstock.wire.protocol import ErrorCode
from penstock.wire.types import Buffer

_INT: Final = ConfigType.INT
_HIGH, _LOW = Importance.HIGH, Importance.LOW

_MAX_HELD: Final = 8
"""Requests of one id that wait for a decision; a producer sends one at a time."""
_RETRY_MS: Final = 1_000
_DEFERRED_MS: Final = 50
"""How long a Complete waits for a record to share its batch and its sync."""
_EXPIRY_BATCH: Final = 1_000
_NEVER_MS: Final = 2**62

_APPEND_ERRORS: Final = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The response to a request whose record could not be appended; any other is COORDINATOR_NOT_AVAILABLE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    max_timeout_ms: int = setting(
        _INT, 15 * MINUTE_MS, "Maximum timeout that a transactional producer may request, in milliseconds.",
        broker="transaction.max.timeout.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    id_expiration_ms: int = setting(
        _INT, 7 * DAY_MS, "Time after which a transactional id without an open transaction is forgotten, in "
        "milliseconds.", broker="transactional.id.expiration.ms", importance=_HIGH, min=1,
    )  # fmt: skip
    expiry_interval_ms: int = setting(
        _INT, HOUR_MS, "How often the coordinator checks for expired transactional ids, in milliseconds.",
        broker="transaction.remove.expired.transaction.cleanup.interval.ms", importance=_LOW, min=1,
    )  # fmt: skip
    num_partitions: int = setting(
        _INT, 50, "Number of partitions of __transaction_state.", broker="transaction.state.log.num.partitions",
        importance=_HIGH, min=1,
    )  # fmt: skip
    replication_factor: int = setting(
        ConfigType.SHORT, 3, "Replication factor of __transaction_state. A broker that stands alone uses 1.",
        broker="transaction.state.log.replication.factor", importance=_HIGH, min=1,
    )  # fmt: skip
    min_isr: int = setting(
        _INT, 2, "Value of min.insync.replicas for __transaction_state. A broker that stands alone uses 1.",
        broker="transaction.state.log.min.isr", importance=_HIGH, min=1,
    )  # fmt: skip
    segment_bytes: int = setting(
        _INT, 100 * MIB, "Segment size of __transaction_state, in bytes.",
        broker="transaction.state.log.segment.bytes", importance=_HIGH, min=14,
    )  # fmt: skip
    two_phase_commit: bool = setting(
        ConfigType.BOOLEAN, False, "Whether producers may use two-phase commit (KIP-939): prepared transactions "
        "without a timeout, which only their application ends.",
        broker="transaction.two.phase.commit.enable", importance=_LOW,
    )  # fmt: skip
    verify_partitions: bool = setting(
        ConfigType.BOOLEAN, True, "Whether a transactional write is verified with the coordinator of its transaction.",
        broker="transaction.partition.verification.enable", importance=_LOW, dynamic=True,
    )  # fmt: skip
    version: int = setting(
        ConfigType.SHORT, 2, "Transaction version that clients use. 2 is KIP-890: each transaction has its "
        "own epoch. Not a setting of Kafka, where it is the feature transaction.version.",
        broker="transaction.version", importance=_LOW, min=1, max=2, dynamic=True,
    )  # fmt: skip
    # How long a request waits for the end of a decision.
    hold_ms: int = 500
    write_timeout_ms: int = 30_000


# --- what the caller gets and does


class Initialized(NamedTuple):
    """The response to `init_producer`. With `keep_prepared`, also who owned the open transaction."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    ongoing_producer_id: int = NO_PRODUCER_ID
    ongoing_epoch: int = NO_EPOCH


class Added(NamedTuple):
    """The response to `add_partitions`, for all of them, or by partition for those that are not in the transaction."""

    code: ErrorCode
    missing: frozenset[TopicPartition] = frozenset()


class Ended(NamedTuple):
    """The response to `end`: the producer's id and epoch from now on (transaction version 2)."""

    code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


Result: TypeAlias = Initialized | Added | Ended


class Reply(NamedTuple):
    token: Token
    message: Result


class Markers(NamedTuple):
    """The decision on a transaction, to be written into these partitions."""

    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool
    version: int
    partitions: frozenset[TopicPartition]


class Outcome(NamedTuple):
    """What the caller does: send `replies` and `markers`, append `records` as one batch and report it."""

    replies: list[Reply]
    records: list[CoordinatorRecord]
    write_id: int | None
    markers: list[Markers]
    producer: Producer | None = None


class Init(NamedTuple):
    """InitProducerId. A producer that has an id sends it, with its epoch (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    two_phase: bool = False
    keep_prepared: bool = False


class Add(NamedTuple):
    """Partitions to add to a transaction, or with `verify_only` to look for in it."""

    transactional_id: str
    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition]
    version: int = VERSION_1
    verify_only: bool = False


class End(NamedTuple):
    transactional_id: str
    producer_id: int
    epoch: int
    commit: bool
    version: int = VERSION_1


Request: TypeAlias = Init | Add | End


# --- the shard


class _Turn:
    """The handling of one event."""

    __slots__ = ("markers", "now_ms", "replies", "writes")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.replies: list[Reply] = []
        self.writes: list[_Write] = []
        self.markers: list[Markers] = []

    def reply(self, token: Token, result: Result) -> None:
        self.replies.append(Reply(token, result))


class _Write(NamedTuple):
    """A record on its way into the log, and what follows."""

    record: TransactionRecord
    done: Callable[[_Turn], None]
    failed: Callable[[_Turn, ErrorCode], None]
    is_awaited: bool = True


class _Held(NamedTuple):
    """A request that waits for the end of a decision."""

    request: Request
    token: Token
    until_ms: int


class _Entry:
    """A transactional id: its state, the write in flight, the markers that are missing, the requests that wait."""

    __slots__ = ("alarm_ms", "current", "held", "is_writing", "previous_epoch", "transactional_id", "unmarked")

    def __init__(self, transactional_id: str, current: Transaction) -> None:
        self.transactional_id = transactional_id
        self.current = current
        self.is_writing = False
        self.unmarked: set[TopicPartition] = set()
        self.held: list[_Held] = []
        # What the producer had before its last InitProducerId, to recognise a repeated one. It is not stored.
        self.previous_epoch = NO_EPOCH
        self.alarm_ms = _NEVER_MS

    @property
    def is_busy(self) -> bool:
        return self.is_writing or self.current.state in DECIDED


class _Phase(Enum):
    LOADING = 0
    ACTIVE = 1
    UNLOADED = 2


class TransactionShard:
    """The transactional ids of one partition."""

    def __init__(self, settings: TransactionSettings, take_producer_id: Callable[[], int | None]) -> None:
        """`take_producer_id` returns an id that was never used, or None if there is none at hand."""
        self._settings = settings
        self._take_producer_id = take_producer_id
        self._phase = _Phase.LOADING
        self._entries: dict[str, _Entry] = {}
        self._writes: dict[int, list[_Write]] = {}
        self._last_write_id = 0
        self._deferred: list[_Write] = []
        self._deferred_due_ms = _NEVER_MS
        # (time, transactional id): when to look at an id. Only the entry's own alarm counts.
        self._alarms: list[tuple[int, str]] = []
        self._expiry_due_ms = _NEVER_MS
        self._expiry_left: list[str] = []

    # --- state

    def get(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.current

    def each(self) -> Iterator[tuple[str, Transaction]]:
        return ((name, entry.current) for name, entry in self._entries.items())

    @property
    def next_deadline_ms(self) -> int:
        """When to call `tick`; it may be early, never late. It may change with every call."""
        alarm_ms = self._alarms[0][0] if self._alarms else _NEVER_MS
        return min(alarm_ms, self._expiry_due_ms, self._deferred_due_ms)

    # --- loading

    def replay(self, key: Buffer | None, value: Buffer | None, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record of the log; unknown versions change nothing. BadTransactionRecord for damaged ones."""
        if self._phase is not _Phase.LOADING:
            raise ShardActive("records must be replayed before the shard is loaded")
        record = decode_record(key, value)
        if record is not None:
            self._apply(record)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A marker in this log. There is none: the log is not written in transactions."""

    def loaded(self, now_ms: int) -> Outcome:
        """All records are replayed; requests can be served. Decisions are carried out again."""
        if self._phase is not _Phase.LOADING:
            raise ShardActive("the shard is already loaded")
        self._phase = _Phase.ACTIVE
        self._expiry_due_ms = now_ms + self._settings.expiry_interval_ms
        turn = _Turn(now_ms)
        for entry in list(self._entries.values()):
            if entry.current.state in DECIDED:
                self._send_markers(entry, turn)
            else:
                self._watch(entry)
        return self._finish(turn)

    def write_deferred(self, now_ms: int) -> Outcome:
        """Before the shard is unloaded: what would otherwise be appended later."""
        return self._finish(_Turn(now_ms), is_last=True)

    def unload(self) -> Outcome:
        """Another broker coordinates these transactions now: waiting requests get NOT_COORDINATOR."""
        turn = _Turn(0)
        self._phase = _Phase.UNLOADED
        for writes in self._writes.values():
            for write in writes:
                write.failed(turn, ErrorCode.NOT_COORDINATOR)
        for entry in self._entries.values():
            for held in entry.held:
                turn.reply(held.token, _error(held.request, ErrorCode.NOT_COORDINATOR))
        self._writes.clear()
        self._deferred.clear()
        self._entries.clear()
        return Outcome(turn.replies, [], None, [])

    # --- writes and markers

    def appended(self, write_id: int, now_ms: int) -> Outcome:
        """The batch with this id is committed."""
        turn = _Turn(now_ms)
        for write in self._take_write(write_id, in_order=True):
            self._apply(write.record)
            write.done(turn)
        return self._finish(turn)

    def append_failed(self, write_id: int, code: ErrorCode, now_ms: int) -> Outcome:
        """The batch with this id is not in the log and never will be.

        If that is not certain, unload the shard and load it again from the log.
        """
        turn = _Turn(now_ms)
        for write in self._take_write(write_id, in_order=False):
            write.failed(turn, _APPEND_ERRORS.get(code, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return self._finish(turn)

    def marked(self, transactional_id: str, epoch: int, partitions: Iterable[TopicPartition], now_ms: int) -> Outcome:
        """These partitions have the marker of the transaction that ended in `epoch`, or no longer exist."""
        turn = _Turn(now_ms)
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.current.state in DECIDED and entry.current.epoch == epoch:
            entry.unmarked.difference_update(partitions)
            self._complete_if_marked(entry, turn)
        return self._finish(turn)

    # --- requests

    def handle(self, request: Request, token: Token, now_ms: int, hold_ms: int | None = None) -> Outcome:
        """Serve a request; its reply may come with a later outcome, within `hold_ms` if it waits for a decision."""
        if self._phase is not _Phase.ACTIVE:
            raise ShardNotActive(f"the shard is {self._phase.name.lower()}")
        turn = _Turn(now_ms)
        self._serve(request, token, turn, now_ms + (self._settings.hold_ms if hold_ms is None else hold_ms))
        return self._finish(turn)

    def tick(self, now_ms: int) -> Outcome:
        """Handle the deadlines that have passed."""
        turn = _Turn(now_ms)
        while self._alarms and self._alarms[0][0] <= now_ms:
            alarm_ms, transactional_id = heapq.heappop(self._alarms)
            entry = self._entries.get(transactional_id)
            if entry is not None and entry.alarm_ms == alarm_ms:
                entry.alarm_ms = _NEVER_MS
                self._look_at(entry, turn)
                self._watch(entry)
        if self._expiry_due_ms <= now_ms:
            self._expire(turn)
        return self._finish(turn)

    def forget_topics(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Topics were deleted: their partitions need no marker."""
        gone = set(topics)
        turn = _Turn(now_ms)
        for entry in list(self._entries.values()):
            if entry.unmarked and entry.current.state in DECIDED:
                before = len(entry.unmarked)
                entry.unmarked = {each for each in entry.unmarked if each[0] not in gone}
                if len(entry.unmarked) < before:
                    self._complete_if_marked(entry, turn)
        return self._finish(turn)

    # --- parts: requests

    def _serve(self, request: Request, token: Token, turn: _Turn, until_ms: int) -> None:
        try:
            if isinstance(request, Init):
                self._init(request, token, turn, until_ms)
            elif isinstance(request, Add):
                self._add(request, token, turn, until_ms)
            else:
                self._end(request, token, turn, until_ms)
        except Rejected as rejected:
            turn.reply(token, _error(request, rejected.code))

    def _hold(self, entry: _Entry, request: Request, token: Token, turn: _Turn, until_ms: int) -> None:
        """Wait for the end of what is under way."""
        if until_ms <= turn.now_ms or len(entry.held) >= _MAX_HELD:
            raise Rejected(ErrorCode.CONCURRENT_TRANSACTIONS)
        entry.held.append(_Held(request, token, until_ms))
        self._wake_at(entry, until_ms)

    def _init(self, request: Init, token: Token, turn: _Turn, until_ms: int) -> None:
        settings = self._settings
        if not request.transactional_id:
            raise Rejected(ErrorCode.INVALID_REQUEST)
        if request.two_phase and not settings.two_phase_commit:
            raise Rejected(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        timeout_ms = NO_TIMEOUT_MS if request.two_phase else request.timeout_ms
        if not request.two_phase and not 0 < timeout_ms <= settings.max_timeout_ms:
            raise Rejected(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        entry = self._entries.get(request.transactional_id)
        if entry is None:
            entry = self._new_entry(request.transactional_id, timeout_ms)
        current = entry.current
        if not _may_init(entry, request):
            raise Rejected(ErrorCode.PRODUCER_FENCED)
        if entry.is_busy:
            self._hold(entry, request, token, turn, until_ms)
        elif current.state is ONGOING and request.keep_prepared:
            self._keep_prepared(entry, timeout_ms, token, turn)
        elif current.state is ONGOING:
            # The former producer is fenced, and its transaction aborted, before the new one starts.
            self._hold(entry, request, token, turn, until_ms)
            self._abort(entry, turn)
            if request.epoch >= 0:
                entry.previous_epoch = request.epoch  # it is the current producer itself: it gets the next epoch
        else:
            self._begin_producer(entry, request, timeout_ms, token, turn)

    def _new_entry(self, transactional_id: str, timeout_ms: int) -> _Entry:
        transaction = Transaction(producer_id=self._new_producer_id(), timeout_ms=timeout_ms)
        entry = self._entries[transactional_id] = _Entry(transactional_id, transaction)
        return entry

    def _new_producer_id(self) -> int:
        producer_id = self._take_producer_id()
        if producer_id is None:
            raise Rejected(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return producer_id

    def _begin_producer(self, entry: _Entry, request: Init, timeout_ms: int, token: Token, turn: _Turn) -> None:
        current = entry.current
        previous_epoch = NO_EPOCH
        if request.epoch >= 0 and current.epoch != NO_EPOCH:
            if request.epoch == entry.previous_epoch and request.epoch != current.epoch:
                # The response to the same request was lost: the epoch stays.
                turn.reply(token, Initialized(ErrorCode.NONE, current.producer_id, current.epoch))
                return
            previous_epoch = current.epoch
        if current.is_exhausted:
            following = transitions.rotate_producer(current, self._new_producer_id(), timeout_ms, turn.now_ms)
        else:
            following = transitions.begin_producer(current, timeout_ms, turn.now_ms)

        def done(turn: _Turn) -> None:
            entry.previous_epoch = previous_epoch
            turn.reply(token, Initialized(ErrorCode.NONE, following.producer_id, following.epoch))

        self._write(entry, following, turn, done, _reply_error(token, request))

    def _keep_prepared(self, entry: _Entry, timeout_ms: int, token: Token, turn: _Turn) -> None:
        current = entry.current
        if current.is_exhausted:
            raise Rejected(ErrorCode.INVALID_TXN_STATE)  # there is no epoch for the new producer
        following = transitions.keep_prepared(current, timeout_ms, turn.now_ms)
        done = Initialized(
            ErrorCode.NONE, current.producer_id, following.next_epoch, current.producer_id, current.epoch
        )
        request = Init(entry.transactional_id, timeout_ms)
        self._write(entry, following, turn, lambda turn: turn.reply(token, done), _reply_error(token, request))

    def _add(self, request: Add, token: Token, turn: _Turn, until_ms: int) -> None:
        if not request.transactional_id:
            raise Rejected(ErrorCode.INVALID_REQUEST)
        entry = self._entries.get(request.transactional_id)
        if entry is None or (entry.current.producer_id != request.producer_id and not entry.is_busy):
            raise Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        current = entry.current
        if entry.is_busy:
            if request.verify_only and current.state in DECIDED:
                # Too late for this batch: if it waited, the answer would be about the next transaction.
                raise Rejected(ErrorCode.CONCURRENT_TRANSACTIONS)
            self._hold(entry, request, token, turn, until_ms)
            return
        if current.epoch != request.epoch:
            raise Rejected(ErrorCode.PRODUCER_FENCED)
        known = current.partitions if current.state is ONGOING else frozenset[TopicPartition]()
        missing = request.partitions - known
        if not missing:
            turn.reply(token, Added(ErrorCode.NONE))
        elif request.verify_only:
            turn.reply(token, Added(ErrorCode.TRANSACTION_ABORTABLE, missing))
        elif current.next_epoch != NO_EPOCH:
            raise Rejected(ErrorCode.PRODUCER_FENCED)  # another producer keeps the prepared transaction
        else:
            # Partition leaders ask at the same time: those who wait share the record.
            tokens = [token]
            for other, other_token in _take_alike(entry, request):
                missing = missing.union(other.partitions - known)
                tokens.append(other_token)
            following = transitions.add_partitions(current, missing, request.version, turn.now_ms)
            self._write(
                entry,
                following,
                turn,
                lambda turn: _reply_added(turn, tokens, ErrorCode.NONE),
                lambda turn, code: _reply_added(turn, tokens, code),
            )

    def _end(self, request: End, token: Token, turn: _Turn, until_ms: int) -> None:
        if not request.transactional_id:
            raise Rejected(ErrorCode.INVALID_REQUEST)
        entry = self._entries.get(request.transactional_id)
        if entry is None:
            raise Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if entry.is_busy:
            self._hold(entry, request, token, turn, until_ms)
            return
        current = entry.current
        is_repeated = request.version >= VERSION_2 and _is_repeated(current, request)
        if current.producer_id != request.producer_id and not is_repeated:
            raise Rejected(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if request.epoch != current.ending_epoch and not is_repeated:
            raise Rejected(ErrorCode.PRODUCER_FENCED)
        verdict = _VERDICTS.get((current.state, request.commit, _kind(request, is_repeated=is_repeated)))
        if verdict is _Verdict.DECIDE:
            self._decide(entry, request, token, turn)
        elif verdict is _Verdict.DONE:
            is_bumped = request.version >= VERSION_2
            turn.reply(token, Ended(ErrorCode.NONE, *(current.successor if is_bumped else ())))
        elif verdict is _Verdict.FENCED:
            raise Rejected(ErrorCode.PRODUCER_FENCED)
        else:
            raise Rejected(ErrorCode.INVALID_TXN_STATE)

    def _decide(self, entry: _Entry, request: End, token: Token, turn: _Turn) -> None:
        current, bump = entry.current, request.version >= VERSION_2 or entry.current.next_epoch != NO_EPOCH
        next_producer_id = self._new_producer_id() if bump and current.is_exhausted else NO_PRODUCER_ID
        following = transitions.decide(
            current,
            turn.now_ms,
            commit=request.commit,
            version=request.version,
            bump=bump,
            next_producer_id=next_producer_id,
        )

        def done(turn: _Turn) -> None:
            producer_id, epoch = following.successor
            if request.version < VERSION_2:
                producer_id, epoch = NO_PRODUCER_ID, NO_EPOCH
            turn.reply(token, Ended(ErrorCode.NONE, producer_id, epoch))
            self._send_markers(entry, turn)

        self._write(entry, following, turn, done, _reply_error(token, request))

    # --- parts: the coordinator's own decisions

    def _abort(self, entry: _Entry, turn: _Turn) -> None:
        """Abort an open transaction in the next epoch, which fences its producer."""
        current = entry.current
        next_producer_id = NO_PRODUCER_ID
        if current.is_exhausted:
            taken = self._take_producer_id()
            if taken is None:
                self._wake_at(entry, turn.now_ms + _RETRY_MS)
                return
            next_producer_id = taken
        following = transitions.decide(
            current, turn.now_ms, commit=False, version=current.version, bump=True, next_producer_id=next_producer_id
        )
        entry.previous_epoch = NO_EPOCH

        def failed(turn: _Turn, code: ErrorCode) -> None:
            self._wake_at(entry, turn.now_ms + _RETRY_MS)

        self._write(entry, following, turn, lambda turn: self._send_markers(entry, turn), failed)

    def _send_markers(self, entry: _Entry, turn: _Turn) -> None:
        current = entry.current
        entry.unmarked = set(current.partitions)
        if entry.unmarked:
            is_commit = current.state is PREPARE_COMMIT
            turn.markers.append(
                Markers(
                    entry.transactional_id,
                    current.producer_id,
                    current.epoch,
                    is_commit,
                    current.version,
                    current.partitions,
                )
            )
        self._complete_if_marked(entry, turn)

    def _complete_if_marked(self, entry: _Entry, turn: _Turn) -> None:
        if entry.unmarked or entry.is_writing or entry.current.state not in DECIDED:
            return
        decided = entry.current
        following = transitions.complete(decided, turn.now_ms)

        def failed(turn: _Turn, code: ErrorCode) -> None:
            # It counted too early: the log still says that the markers are to be sent.
            if entry.current is following and self._phase is _Phase.ACTIVE:
                entry.current = decided
                self._wake_at(entry, turn.now_ms + _RETRY_MS)

        record = TransactionRecord(entry.transactional_id, following)
        turn.writes.append(_Write(record, _nothing, failed, is_awaited=False))
        entry.current = following
        self._release(entry, turn)

    def _look_at(self, entry: _Entry, turn: _Turn) -> None:
        """An alarm of this id went off."""
        late = [held for held in entry.held if held.until_ms <= turn.now_ms]
        if late:
            entry.held = [held for held in entry.held if held.until_ms > turn.now_ms]
            for held in late:
                turn.reply(held.token, _error(held.request, ErrorCode.CONCURRENT_TRANSACTIONS))
        if entry.is_writing:
            return
        current = entry.current
        if current.state is ONGOING:
            is_awaited = any(isinstance(held.request, Init) for held in entry.held)
            if is_awaited or self._timeout_at(current) <= turn.now_ms:
                self._abort(entry, turn)
        elif current.state in DECIDED:
            self._complete_if_marked(entry, turn)

    def _timeout_at(self, current: Transaction) -> int:
        return _NEVER_MS if current.is_two_phase else current.start_ms + current.timeout_ms

    def _watch(self, entry: _Entry) -> None:
        """Set the alarm for what the id waits for."""
        if entry.held:
            self._wake_at(entry, min(held.until_ms for held in entry.held))
        if entry.current.state is ONGOING and not entry.is_writing:
            self._wake_at(entry, self._timeout_at(entry.current))

    def _wake_at(self, entry: _Entry, at_ms: int) -> None:
        # An earlier alarm sets this one when it goes off.
        if at_ms < entry.alarm_ms:
            entry.alarm_ms = at_ms
            heapq.heappush(self._alarms, (at_ms, entry.transactional_id))

    def _expire(self, turn: _Turn) -> None:
        """Forget ids that were not used for long: a bounded number at a time."""
        if not self._expiry_left:
            self._expiry_left = list(self._entries)
        expiration_ms = self._settings.id_expiration_ms
        visited = 0
        while self._expiry_left and visited < _EXPIRY_BATCH:
            visited += 1
            entry = self._entries.get(self._expiry_left.pop())
            if entry is None or entry.is_writing or entry.held or entry.current.state not in COMPLETED:
                continue
            if turn.now_ms - entry.current.update_ms >= expiration_ms:
                self._forget(entry, turn)
        self._expiry_due_ms = 0 if self._expiry_left else turn.now_ms + self._settings.expiry_interval_ms

    # --- parts: writes

    def _write(
        self,
        entry: _Entry,
        following: Transaction,
        turn: _Turn,
        done: Callable[[_Turn], None],
        failed: Callable[[_Turn, ErrorCode], None],
    ) -> None:
        entry.is_writing = True

        def written(turn: _Turn) -> None:
            entry.is_writing = False
            done(turn)
            self._watch(entry)
            self._release(entry, turn)

        def not_written(turn: _Turn, code: ErrorCode) -> None:
            entry.is_writing = False
            failed(turn, code)
            self._reject_held(entry, turn, code)

        turn.writes.append(_Write(TransactionRecord(entry.transactional_id, following), written, not_written))

    def _forget(self, entry: _Entry, turn: _Turn) -> None:
        entry.is_writing = True

        def done(turn: _Turn) -> None:
            for held in entry.held:
                self._serve(held.request, held.token, turn, held.until_ms)

        def failed(turn: _Turn, code: ErrorCode) -> None:
            entry.is_writing = False
            self._reject_held(entry, turn, code)

        turn.writes.append(_Write(TransactionRecord(entry.transactional_id, None), done, failed))

    def _release(self, entry: _Entry, turn: _Turn) -> None:
        """Serve the requests that waited, as far as the state allows."""
        while entry.held and not entry.is_busy:
            held = entry.held.pop(0)
            self._serve(held.request, held.token, turn, held.until_ms)
            if entry.held and entry.held[-1].token is held.token:
                return  # it waits again

    def _reject_held(self, entry: _Entry, turn: _Turn, code: ErrorCode) -> None:
        """A write failed. Requests that waited for it would fail likewise, again and again while the log rejects it."""
        held, entry.held = entry.held, []
        for each in held:
            turn.reply(each.token, _error(each.request, code))

    def _finish(self, turn: _Turn, *, is_last: bool = False) -> Outcome:
        is_awaited = is_last or any(write.is_awaited for write in turn.writes)
        if turn.writes and not self._deferred:
            self._deferred_due_ms = turn.now_ms + _DEFERRED_MS
        writes = self._deferred = [*self._deferred, *turn.writes]
        if not writes or (not is_awaited and turn.now_ms < self._deferred_due_ms):
            return Outcome(turn.replies, [], None, turn.markers)
        self._deferred, self._deferred_due_ms = [], _NEVER_MS
        self._last_write_id += 1
        self._writes[self._last_write_id] = writes
        records = [encode_record(write.record) for write in writes]
        return Outcome(turn.replies, records, self._last_write_id, turn.markers)

    def _take_write(self, write_id: int, *, in_order: bool) -> list[_Write]:
        if self._phase is _Phase.UNLOADED:
            return []
        oldest = next(iter(self._writes), None)
        if write_id != oldest and (in_order or write_id not in self._writes):
            raise WriteOutOfOrder(write_id, oldest)
        return self._writes.pop(write_id)

    def _apply(self, record: TransactionRecord) -> None:
        entry = self._entries.get(record.transactional_id)
        if record.value is None:
            self._entries.pop(record.transactional_id, None)
        elif entry is None:
            self._entries[record.transactional_id] = _Entry(record.transactional_id, record.value)
        else:
            entry.current = record.value


# --- rules


class _Kind(Enum):
    """How an EndTxn comes: by transaction version, or with the epoch before the current one."""

    VERSION_1 = 1
    VERSION_2 = 2
    REPEATED = 3


class _Verdict(Enum):
    DECIDE = 1
    DONE = 2
    FENCED = 3


_VERDICTS: Final = {
    # (state, commit, kind); what is not here is INVALID_TXN_STATE.
    (ONGOING, True, _Kind.VERSION_1): _Verdict.DECIDE,
    (ONGOING, False, _Kind.VERSION_1): _Verdict.DECIDE,
    (ONGOING, True, _Kind.VERSION_2): _Verdict.DECIDE,
    (ONGOING, False, _Kind.VERSION_2): _Verdict.DECIDE,
    # A delayed EndTxn must not end the next transaction (KAFKA-17754).
    (ONGOING, True, _Kind.REPEATED): _Verdict.FENCED,
    (ONGOING, False, _Kind.REPEATED): _Verdict.FENCED,
    (TransactionState.COMPLETE_COMMIT, True, _Kind.VERSION_1): _Verdict.DONE,
    (TransactionState.COMPLETE_COMMIT, True, _Kind.REPEATED): _Verdict.DONE,
    (TransactionState.COMPLETE_ABORT, False, _Kind.VERSION_1): _Verdict.DONE,
    (TransactionState.COMPLETE_ABORT, False, _Kind.REPEATED): _Verdict.DONE,
    # A transaction without partitions: aborting it gives the next epoch.
    (TransactionState.COMPLETE_COMMIT, False, _Kind.VERSION_2): _Verdict.DECIDE,
    (TransactionState.COMPLETE_ABORT, False, _Kind.VERSION_2): _Verdict.DECIDE,
    (TransactionState.EMPTY, False, _Kind.VERSION_2): _Verdict.DECIDE,
    # The epoch is over because another producer started.
    (TransactionState.EMPTY, True, _Kind.REPEATED): _Verdict.FENCED,
    (TransactionState.EMPTY, False, _Kind.REPEATED): _Verdict.FENCED,
}


def _kind(request: End, *, is_repeated: bool) -> _Kind:
    if is_repeated:
        return _Kind.REPEATED
    return _Kind.VERSION_2 if request.version >= VERSION_2 else _Kind.VERSION_1


def _is_repeated(current: Transaction, request: End) -> bool:
    """Whether an EndTxn names the epoch before the current one: its first response was lost, or it comes late."""
    if request.producer_id == current.producer_id:
        return request.epoch + 1 == current.epoch
    is_former = request.producer_id == current.previous_producer_id
    return is_former and request.epoch >= LAST_EPOCH and current.epoch == 0


def _may_init(entry: _Entry, request: Init) -> bool:
    """Whether a producer that names its id and epoch is the current one."""
    current = entry.current
    if request.producer_id < 0 or request.epoch < 0 or current.epoch == NO_EPOCH:
        return True
    if request.producer_id == current.producer_id:
        return request.epoch in (current.epoch, entry.previous_epoch)
    return request.producer_id == current.previous_producer_id and request.epoch >= LAST_EPOCH


def _take_alike(entry: _Entry, request: Add) -> Iterator[tuple[Add, Token]]:
    """Those who wait next and add partitions to the same transaction. They wait no longer."""
    while entry.held and isinstance(other := entry.held[0].request, Add):
        if other._replace(partitions=request.partitions) != request:
            return
        yield other, entry.held.pop(0).token


def _reply_added(turn: _Turn, tokens: Iterable[Token], code: ErrorCode) -> None:
    for token in tokens:
        turn.reply(token, Added(code))


def _error(request: Request, code: ErrorCode) -> Result:
    if isinstance(request, Init):
        return Initialized(code)
    return Added(code) if isinstance(request, Add) else Ended(code)


def _reply_error(token: Token, request: Request) -> Callable[[_Turn, ErrorCode], None]:
    return lambda turn, code: turn.reply(token, _error(request, code))


def _nothing(turn: _Turn) -> None:
    pass
