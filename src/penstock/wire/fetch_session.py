"""The requesting side of Fetch: sessions, requests, and what a response means for a partition. Pure.

Consumer, follower, simple consumer, Spark reader, mirror and lag queries all build their requests and read their
responses here; each keeps only its own policy.

A session (KIP-227) names a partition when it changes, so a request costs what happens, not what is read. Whatever was
sent counts as known to the broker: one connection carries all requests of a session in order, so a second request may
be sent before the first is answered. When a request may not have arrived, `reset` makes the next one a full one.

    want(a), want(b); next_request() -> full: a, b       accepted(request, 7)    session 7, next epoch 1
    forget(a); next_request() -> epoch 1: forget a       want(a); next_request() -> epoch 2: a

The broker's half is penstock.broker.fetch_session; it shares the constants and `next_epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.wire.protocol import ErrorCode, error_code
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData
from penstock.wire.types import BUFFERS, Buffer

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
"""A full fetch that asks for a session."""
FINAL_EPOCH: Final = -1
"""A full fetch without a session; it ends the session that it names."""
MAX_EPOCH: Final = 2**31 - 1

FIRST_VERSION_WITH_SESSIONS: Final = 7
FIRST_VERSION_WITH_LAST_EPOCH: Final = 12
LAST_VERSION_WITH_NAMES: Final = 12
"""From 13 on, topics are named by id."""

MAX_FETCH_BYTES: Final = 2**31 - 1
NO_EPOCH: Final = -1

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

K = TypeVar("K")
T = TypeVar("T")
P = TypeVar("P", bound=tuple[str | bytes, int])


def next_epoch(epoch: int) -> int:
    """1, 2, ..., 2147483647, 1: zero would ask for a new session."""
    return epoch + 1 if epoch < MAX_EPOCH else 1


# --------------------------------------------------------------------------------------------------- sessions


class SessionRequest(NamedTuple, Generic[K, T]):
    """What a request says about the session: `named` are new or changed, or in a full request all."""

    session_id: int
    epoch: int
    named: dict[K, T]
    forgotten: list[K]
    generation: int = 0
    """Counts the session's resets: a response to a request from before the last one says nothing about the session."""

    @property
    def is_full(self) -> bool:
        return self.epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def without_session(wanted: Mapping[K, T]) -> SessionRequest[K, T]:
    """A full request that leaves nothing behind at the broker."""
    return SessionRequest(NO_SESSION, FINAL_EPOCH, dict(wanted), [])


class FetchSession(Generic[K, T]):
    """The requesting half of a session: which partitions are wanted, and which of them the broker knows."""

    __slots__ = ("_changed", "_epoch", "_forgotten", "_generation", "_id", "_known", "_wanted")

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._generation = 0
        self._wanted: dict[K, T] = {}
        self._known: set[K] = set()
        # Dictionaries, not sets: their order makes a simulated run repeatable.
        self._changed: dict[K, T] = {}
        self._forgotten: dict[K, None] = {}

    @property
    def is_open(self) -> bool:
        return self._id != NO_SESSION

    @property
    def is_empty(self) -> bool:
        """Whether nothing is wanted."""
        return not self._wanted

    @property
    def has_changes(self) -> bool:
        """Whether something is wanted that the broker does not know."""
        return bool(self._changed)

    def want(self, key: K, what: T) -> None:
        """Fetch a partition from now on, or fetch it differently."""
        self._wanted[key] = self._changed[key] = what
        self._forgotten.pop(key, None)

    def forget(self, key: K) -> None:
        """Stop fetching a partition."""
        self._wanted.pop(key, None)
        self._changed.pop(key, None)
        if key in self._known:
            self._forgotten[key] = None

    def want_exactly(self, wanted: Mapping[K, T]) -> None:
        """Fetch these partitions and no others; what has not changed is not named again."""
        for key in [key for key in self._wanted if key not in wanted]:
            self.forget(key)
        for key, what in wanted.items():
            if self._wanted.get(key) != what:
                self.want(key, what)
        # A full request names them in this order, and a broker that has to cut serves the first ones.
        self._wanted = dict(wanted)

    def next_request(self) -> SessionRequest[K, T]:
        """What the next request says. It must be sent, or the session reset."""
        if self.is_open:
            request = SessionRequest(self._id, self._epoch, self._changed, list(self._forgotten), self._generation)
            self._known.update(self._changed)
            self._known.difference_update(self._forgotten)
            self._epoch = next_epoch(self._epoch)
        else:
            request = SessionRequest(NO_SESSION, INITIAL_EPOCH, dict(self._wanted), [], self._generation)
            self._known = set(self._wanted)
        self._changed = {}
        self._forgotten = {}
        return request

    def is_current(self, request: SessionRequest[K, T]) -> bool:
        """Whether the session was not reset since this request."""
        return request.generation == self._generation

    def accepted(self, request: SessionRequest[K, T], session_id: int) -> None:
        """The broker answered without a session error; id 0 means that it keeps no session."""
        if not self.is_current(request):
            return
        if request.is_full:
            self._id = session_id
            self._epoch = 1 if session_id != NO_SESSION else INITIAL_EPOCH
        elif session_id != self._id:
            self.reset()

    def reset(self) -> None:
        """The broker remembers nothing, or it is unknown what: the next request is a full one."""
        self._id, self._epoch = NO_SESSION, INITIAL_EPOCH
        self._generation += 1
        self._known.clear()
        self._forgotten.clear()
        self._changed = dict(self._wanted)


# --------------------------------------------------------------------------------------------------- requests


class PartitionFetch(NamedTuple):
    """How one partition is fetched."""

    offset: int
    max_bytes: int
    leader_epoch: int = NO_EPOCH
    """Fences brokers that no longer lead, or do not know yet that they do."""
    last_fetched_epoch: int = NO_EPOCH
    """Epoch of the last record before `offset`; the leader compares it with its own log."""
    log_start_offset: int = -1
    """Where a follower's log starts."""


def fetch_request(
    request: SessionRequest[P, PartitionFetch],
    *,
    version: int,
    max_bytes: int,
    max_wait_ms: int = 0,
    min_bytes: int = 0,
    isolation_level: int = 0,
    rack_id: str = "",
) -> FetchRequest:
    """The message. A partition's topic is a name up to version 12 and an id (bytes) from 13 on."""
    topics: dict[str | bytes, FetchTopic] = {}
    for (topic, index), fetch in request.named.items():
        partition = FetchPartition(
            partition=index,
            current_leader_epoch=fetch.leader_epoch,
            fetch_offset=fetch.offset,
            log_start_offset=fetch.log_start_offset,
            partition_max_bytes=fetch.max_bytes,
        )
        if version >= FIRST_VERSION_WITH_LAST_EPOCH:
            partition.last_fetched_epoch = fetch.last_fetched_epoch
        entry = topics.get(topic)
        if entry is None:
            entry = FetchTopic(topic=topic) if isinstance(topic, str) else FetchTopic(topic_id=topic)
            topics[topic] = entry
        entry.partitions.append(partition)
    forgotten: dict[str | bytes, ForgottenTopic] = {}
    for topic, index in request.forgotten:
        gone = forgotten.get(topic)
        if gone is None:
            gone = ForgottenTopic(topic=topic) if isinstance(topic, str) else ForgottenTopic(topic_id=topic)
            forgotten[topic] = gone
        gone.partitions.append(index)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=request.session_id,
        session_epoch=request.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
        rack_id=rack_id,
    )


# --------------------------------------------------------------------------------------------------- responses


class FetchOutcome(Enum):
    """What a response says about one partition."""

    RECORDS = "records"  # perhaps less than one whole batch
    EMPTY = "empty"
    REDIRECTED = "redirected"  # a nearer replica has the records (KIP-392)
    DIVERGED = "diverged"  # the leader's log differs before the offset (KIP-595)
    OUT_OF_RANGE = "out of range"
    NOT_LEADER = "not leader"  # the request or the broker is behind the cluster: look up the leader, then retry
    RETRY = "retry"  # it may pass by itself
    FATAL = "fatal"


_ERROR_OUTCOMES: Final[dict[ErrorCode, FetchOutcome]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: FetchOutcome.OUT_OF_RANGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: FetchOutcome.NOT_LEADER,
    ErrorCode.LEADER_NOT_AVAILABLE: FetchOutcome.NOT_LEADER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: FetchOutcome.NOT_LEADER,
    ErrorCode.UNKNOWN_TOPIC_ID: FetchOutcome.NOT_LEADER,
    ErrorCode.INCONSISTENT_TOPIC_ID: FetchOutcome.NOT_LEADER,
    ErrorCode.FENCED_LEADER_EPOCH: FetchOutcome.NOT_LEADER,
    ErrorCode.REPLICA_NOT_AVAILABLE: FetchOutcome.NOT_LEADER,
    ErrorCode.KAFKA_STORAGE_ERROR: FetchOutcome.NOT_LEADER,
    ErrorCode.OFFSET_NOT_AVAILABLE: FetchOutcome.NOT_LEADER,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FetchOutcome.RETRY,
}


def outcome_of(data: PartitionData) -> FetchOutcome:
    """What became of the fetch of one partition."""
    if data.error_code:
        code = error_code(data.error_code)
        return _ERROR_OUTCOMES.get(code) or (FetchOutcome.RETRY if code.retriable else FetchOutcome.FATAL)
    if data.preferred_read_replica >= 0:
        return FetchOutcome.REDIRECTED
    if data.diverging_epoch.epoch >= 0 or data.diverging_epoch.end_offset >= 0:
        return FetchOutcome.DIVERGED
    return FetchOutcome.EMPTY if records_in(data) is None else FetchOutcome.RECORDS


def records_in(data: PartitionData) -> Buffer | None:
    """The bytes that arrived, if any."""
    records = data.records
    return records if isinstance(records, BUFFERS) and len(records) else None


def enlarged(max_bytes: int, limit: int = MAX_FETCH_BYTES) -> int | None:
    """The size to request when not even one whole batch fitted (brokers before 0.10.1 cut it); None at the limit."""
    return min(limit, 2 * max_bytes) if max_bytes < limit else None
