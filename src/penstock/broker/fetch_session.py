"""Fetch sessions (KIP-227): a client names its partitions once, then only changes.

A request's epoch and session id say what it is:

| epoch | session | meaning |
|---|---|---|
| -1 | 0 | full fetch without a session |
| -1 | id | the same, and session `id` ends |
| 0 | 0 | full fetch that asks for a session |
| 0 | id | the same, and session `id` ends |
| other | id | incremental: `topics` are added or changed, `forgotten_topics_data` removed |

A full fetch returns every partition; an incremental one only those with records, an error, or a high watermark or log
start that the client does not have. An unexpected epoch means that a request was lost or repeated: the client starts
again with a full fetch. Partitions without news are idle: the session watches them and skips them until they move, so
a fetch costs what happens, not what is asked for. `recheck` finds changes without a notification (log start, failed
disk).

When all slots are taken, a new session evicts the first of: a session unused for longer than the eviction time; for a
follower, the smallest consumer session; the smallest old session of its own kind, if that is smaller. Otherwise it
gets none. The partitions of all sessions are bounded, for followers separately, so that consumers cannot stop
replication.

Topic ids (KIP-516) become names when a request arrives and ids again in the response. A topic that was deleted and
created again has another id, and is never served for the old one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.runtime.randomness import Random
from penstock.wire.fetch_session import (
    FINAL_EPOCH,
    FIRST_VERSION_WITH_SESSIONS,
    INITIAL_EPOCH,
    LAST_VERSION_WITH_NAMES,
    NO_SESSION,
    next_epoch,
)
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from penstock.wire.types import BUFFERS, NO_UUID

if TYPE_CHECKING:
    from penstock.replication.partition import EndWatcher, Partition

Key: TypeAlias = tuple[str, int]
RequestedPartition: TypeAlias = tuple[str, FetchPartition]

MAX_SESSION_ID: Final = 2**31 - 1
MAX_SIZE: Final = 50_000
"""Partitions of one session: as many as one request may name. Ending a session takes half a microsecond for each."""
DEFAULT_MAX_PARTITIONS: Final = 1_000_000
EVICTION_MS: Final = 120_000  # as in Kafka, where it is not a setting either
MAX_CHANGE: Final = 20_000
"""Partitions that one request may add to a session; with more, the client has to start a new session."""
SLICE: Final = 500
"""Partitions that are handled before other requests are served."""
RECHECK_MS: Final = 1_000
"""How long a change of an idle partition without a notification may go unnoticed."""
_NO_NAMES: Final[Mapping[bytes, str]] = {}
_UNKNOWN: Final = "\0"  # begins the names of unknown ids


# --- topic ids


class TopicIds:
    """The ids of a session's topics. `names` are the cluster's: one object until a topic is created or deleted."""

    __slots__ = ("_ids", "_names")

    def __init__(self, ids: dict[str, bytes], names: Mapping[bytes, str]) -> None:
        self._ids = ids
        self._names = names

    def of(self, name: str) -> bytes:
        return self._ids.get(name, NO_UUID)

    def merge(self, later: TopicIds) -> bool:
        """Add the ids of a later request of the session; False if an id means another topic by now."""
        if later._names is not self._names:
            known = later._names
            if any(known.get(topic_id) != (None if is_unknown(name) else name) for name, topic_id in self._ids.items()):
                return False
            self._names = known
        self._ids |= later._ids
        return True


def is_unknown(name: str) -> bool:
    return name.startswith(_UNKNOWN)


def name_topics(request: FetchRequest, names: Mapping[bytes, str]) -> TopicIds:
    """Give the topics of a request their names."""
    ids: dict[str, bytes] = {}
    for topic in request.topics:
        topic.topic = _name(topic.topic_id, names)
        ids[topic.topic] = topic.topic_id
    for forgotten in request.forgotten_topics_data:
        forgotten.topic = _name(forgotten.topic_id, names)
    return TopicIds(ids, names)


def _name(topic_id: bytes, names: Mapping[bytes, str]) -> str:
    return names.get(topic_id) or _UNKNOWN + topic_id.hex()


# --- sessions


def requested_partitions(topics: Iterable[FetchTopic]) -> dict[Key, RequestedPartition]:
    """The partitions of a request, in its order; the last occurrence of one that is named twice applies."""
    return {
        (topic.topic, partition.partition): (topic.topic, partition)
        for topic in topics
        for partition in topic.partitions
    }


def _has_records(data: PartitionData) -> bool:
    records = data.records
    if records is None:
        return False
    return len(records) > 0 if isinstance(records, BUFFERS) else records.size > 0


class _IdlePartition(NamedTuple):
    """A partition that had nothing new, with its leader epoch at that time."""

    partition: Partition
    leader_epoch: int


class FetchSession:
    """One client's session. The cache sorts sessions by size, so only the cache changes their partitions.

    It watches its idle partitions and notifies the fetches that wait.
    """

    __slots__ = (
        "_active",
        "_ended",
        "_idle",
        "_order",
        "_ranks",
        "_reported",
        "_requested",
        "_waiting",
        "checked_ms",
        "created_ms",
        "epoch",
        "id",
        "invalidations",
        "privileged",
        "superseded",
        "topic_ids",
        "used_ms",
    )  # fmt: skip

    def __init__(self, session_id: int, asked: dict[Key, RequestedPartition], *, privileged: bool, now_ms: int) -> None:
        self.id = session_id
        self.privileged = privileged
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.checked_ms = now_ms
        self.invalidations = 0
        self.superseded: Callable[[], None] | None = (
            None  # called with the next request, if the last is not answered yet
        )
        self.epoch = 1
        self.topic_ids: TopicIds | None = None  # of a client that names topics by id
        self._requested: dict[Key, RequestedPartition] = {}
        # High watermark and log start that the client has; None if the next response must include them.
        self._reported: dict[Key, tuple[int, int] | None] = {}
        self._order: tuple[RequestedPartition, ...] | None = None
        # The rank of each in the order, with gaps. Every partition is active or idle.
        self._ranks: dict[Key, int] = {}
        self._active: set[Key] = set()
        self._idle: dict[Key, _IdlePartition] = {}
        self._waiting: list[EndWatcher] = []
        self._ended = False
        self.change(asked, ())

    @property
    def size(self) -> int:
        return len(self._requested)

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        """What to read, in order; later changes do not affect it."""
        if self._order is None:
            self._order = tuple(self._requested.values())
        return self._order

    def change(self, asked: dict[Key, RequestedPartition], forgotten: Iterable[ForgottenTopic]) -> None:
        """Append partitions or change them in place, and remove the forgotten ones."""
        for key, (_, partition) in asked.items():
            # Unknown tags would be kept as long as the session.
            partition.unknown_tags = None
            if self.privileged:
                # A follower that asks again ignores the response that was on its way.
                self._reported[key] = None
            else:
                self._reported.setdefault(key)
            if key not in self._ranks:
                self._to_the_end(key)
            self._activate(key)
        self._requested |= asked
        for topic in forgotten:
            for index in topic.partitions:
                self._forget((topic.topic, index))
        self._order = None

    def _forget(self, key: Key) -> None:
        if self._requested.pop(key, None) is None:
            return
        self._activate(key)
        self._active.discard(key)
        del self._reported[key], self._ranks[key]

    def _to_the_end(self, key: Key) -> None:
        ranks = self._ranks
        ranks.pop(key, None)
        # Ranks are in order, so the last is the largest.
        ranks[key] = ranks[next(reversed(ranks))] + 1 if ranks else 0

    def advance(self, now_ms: int) -> None:
        """Expect the next epoch."""
        self.epoch = next_epoch(self.epoch)
        self.used_ms = now_ms

    # --- active and idle partitions

    @property
    def idle(self) -> int:
        return len(self._idle)

    def active(self) -> Sequence[RequestedPartition]:
        """The partitions that may have something new, in order."""
        if len(self._active) == len(self._requested):
            return self.partitions
        return [self._requested[key] for key in sorted(self._active, key=self._ranks.__getitem__)]

    def set_idle(self, partition: Partition) -> None:
        """Watch a partition that has no more records for the client, whose offsets the client has."""
        key = (partition.topic, partition.index)
        if self._ended or key not in self._active:
            return
        self._active.remove(key)
        self._idle[key] = _IdlePartition(partition, partition.leader_epoch)
        if self.privileged:
            partition.watch_end(self)
        else:
            partition.watch(self)

    def _activate(self, key: Key) -> None:
        rest = self._idle.pop(key, None)
        if rest is not None:
            rest.partition.unwatch(self)
        self._active.add(key)

    def recheck(self, now_ms: int) -> None:
        """Find the idle partitions that changed without a notification."""
        self.checked_ms = now_ms
        changed = [
            key
            for key, (partition, leader_epoch) in self._idle.items()
            if partition.leader_epoch != leader_epoch
            or partition.log.failure is not None
            or self._reported[key] != (partition.log.high_watermark, partition.log.log_start_offset)
        ]
        for key in changed:
            self._activate(key)

    def grown(self, partition: Partition, size: int) -> None:
        self._activate((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.grown(partition, size)

    def gone(self, partition: Partition) -> None:
        self._activate((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.gone(partition)

    def moved(self, partition: Partition) -> None:
        self._activate((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.moved(partition)

    def add_waiting(self, waiting: EndWatcher) -> None:
        """Notify a waiting fetch of changes of idle partitions."""
        self._waiting.append(waiting)

    def remove_waiting(self, waiting: EndWatcher) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def end(self) -> None:
        """Stop watching. Fetches that wait for its partitions watch them themselves from now on."""
        self._ended = True
        for key, rest in tuple(self._idle.items()):
            self._activate(key)
            for waiting in tuple(self._waiting):
                waiting.grown(rest.partition, 0)

    # --- what the client has

    def knows(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client has these offsets."""
        return self._reported.get(key) == (high_watermark, log_start_offset)

    def answer(self, key: Key, data: PartitionData) -> bool:
        """Record that the client gets `data`; False if it has all of it, so that it need not be sent.

        High watermark 5, as before: not sent. High watermark 6: sent. An error: sent, and the next result too.
        """
        # KeyError for a partition that is not in the session.
        before = self._reported[key]
        if data.error_code:
            self._reported[key] = None
            return True
        offsets = (data.high_watermark, data.log_start_offset)
        is_new = offsets != before
        if is_new:
            self._reported[key] = offsets
        if _has_records(data):
            self._requested[key] = self._requested.pop(key)
            self._to_the_end(key)
            self._order = None
            return True
        return is_new or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0


class SizeOrder:
    """Sessions by size, then id. A sorted list: with a thousand slots, it is faster than a tree."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[tuple[int, int]] = []

    def add(self, size: int, session_id: int) -> None:
        insort(self._rows, (size, session_id))

    def discard(self, size: int, session_id: int) -> None:
        place = bisect_left(self._rows, (size, session_id))
        if place < len(self._rows) and self._rows[place] == (size, session_id):
            del self._rows[place]

    def smallest(self) -> tuple[int, int] | None:
        """Size and id of the smallest session."""
        return self._rows[0] if self._rows else None


class FetchSessionCache:
    """The sessions by id, least recently used first, and in the orders in which they are evicted."""

    def __init__(self, slots: int, eviction_ms: int, max_partitions: int, random: Random) -> None:
        if slots < 0 or eviction_ms < 0 or max_partitions < 0:
            raise ValueError(f"negative limit: {slots=}, {eviction_ms=}, {max_partitions=}")
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # In order of creation; sessions older than the eviction time move to `_old` when a slot is needed.
        self._young: OrderedDict[int, FetchSession] = OrderedDict()
        self._old: dict[bool, SizeOrder] = {False: SizeOrder(), True: SizeOrder()}
        self._consumers = SizeOrder()
        self.partitions = 0
        self._followed = 0  # those of followers
        self.evictions = 0
        self.invalidations = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def create(
        self, asked: dict[Key, RequestedPartition], *, privileged: bool, now_ms: int, expected: int = 0
    ) -> FetchSession | None:
        """A new session; None if there is no room and no other session has to make room.

        `expected` is the number of its partitions if more are added right away.
        """
        if not asked or not self._make_room(max(expected, len(asked)), privileged, now_ms):
            return None
        session = FetchSession(self._unused_id(), asked, privileged=privileged, now_ms=now_ms)
        self._sessions[session.id] = session
        self._young[session.id] = session
        if not privileged:
            self._consumers.add(session.size, session.id)
        self._count(session, session.size)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """The session is used: it expects its next epoch, and is the last that could be too long unused."""
        session.advance(now_ms)
        self._sessions.move_to_end(session.id)

    def change(
        self, session: FetchSession, asked: dict[Key, RequestedPartition], forgotten: Iterable[ForgottenTopic]
    ) -> bool:
        """Let a session ask for more and forget some; False if that leaves nothing, or too much, and it was removed."""
        before = session.size
        session.change(asked, forgotten)
        if session.size != before:
            self._resize(session, before)
        is_over = session.size > MAX_SIZE or self._is_over(0, session.privileged)
        if session.size == 0 or (session.size > before and is_over):
            self.remove(session)
            return False
        return True

    def remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._young.pop(session.id, None)
        self._old[session.privileged].discard(session.size, session.id)
        self._consumers.discard(session.size, session.id)
        self._count(session, -session.size)
        session.end()

    def _count(self, session: FetchSession, more: int) -> None:
        self.partitions += more
        if session.privileged:
            self._followed += more

    def _resize(self, session: FetchSession, before: int) -> None:
        orders = [] if session.id in self._young else [self._old[session.privileged]]
        if not session.privileged:
            orders.append(self._consumers)
        for order in orders:
            order.discard(before, session.id)
            order.add(session.size, session.id)
        self._count(session, session.size - before)

    def _unused_id(self) -> int:
        while True:
            session_id = 1 + self._random.below(MAX_SESSION_ID)
            if session_id not in self._sessions:
                return session_id

    def _is_over(self, more: int, privileged: bool) -> bool:
        return (self._followed if privileged else self.partitions) + more > self._max_partitions

    def _make_room(self, size: int, privileged: bool, now_ms: int) -> bool:
        if size > min(self._max_partitions, MAX_SIZE):
            return False
        while len(self._sessions) >= self._slots or self._is_over(size, privileged):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= self._eviction_ms:
                break
            self._evict(oldest)
        if self._is_over(size, privileged):
            return False
        if len(self._sessions) < self._slots:
            return True
        victim = self._smaller_than(size, privileged, now_ms)
        if victim is None:
            return False
        self._evict(self._sessions[victim])
        return True

    def _evict(self, session: FetchSession) -> None:
        self.remove(session)
        self.evictions += 1

    def _smaller_than(self, size: int, privileged: bool, now_ms: int) -> int | None:
        """The id of the session to evict for one of this size."""
        self._age(now_ms)
        if privileged and (consumer := self._consumers.smallest()) is not None:
            return consumer[1]
        old = self._old[privileged].smallest()
        return old[1] if old is not None and old[0] < size else None

    def _age(self, now_ms: int) -> None:
        while self._young:
            session = next(iter(self._young.values()))
            if now_ms - session.created_ms <= self._eviction_ms:
                return
            del self._young[session.id]
            self._old[session.privileged].add(session.size, session.id)


# --- fetches


class ResponseMismatch(ValueError):
    """Results whose partitions are not the requested ones."""


class FetchContext(ABC):
    """One fetch, from the partitions to read to its response. With an `error` nothing is read."""

    error: ErrorCode = ErrorCode.NONE
    topic_ids: TopicIds | None = None
    """Set if the client names topics by id."""

    @property
    @abstractmethod
    def partitions(self) -> Sequence[RequestedPartition]:
        """Topics and partitions to read, in order."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested."""
        return not self.partitions

    @property
    def is_superseded(self) -> bool:
        """Whether a later request of the same session arrived, perhaps a repetition of this one."""
        return False

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        """The same as `answer` for many partitions, with a yield after every `SLICE`."""
        yield from ()
        return self.answer(results)

    @abstractmethod
    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        """The response. A full fetch needs a result for every partition; an incremental one, for those not `unchanged`.

        ResponseMismatch if a result is missing or was not requested.
        """

    def pending(self) -> Sequence[RequestedPartition]:
        """Those of `partitions` that may have something new, in the same order."""
        return self.partitions

    # Without a session no partition is idle.

    def set_idle(self, partition: Partition) -> None:  # noqa: B027
        """Skip a pending partition that is `unchanged` and has no more records until it changes."""

    def watch(self, watcher: EndWatcher) -> None:  # noqa: B027
        """Notify `watcher` of changes of partitions that are not pending."""

    def unwatch(self, watcher: EndWatcher) -> None:  # noqa: B027
        """Stop notifying it."""

    def throttled(self, throttle_time_ms: int) -> FetchResponse:
        """The empty response to a throttled client: the session stays as if nothing had been read."""
        return FetchResponse(throttle_time_ms=throttle_time_ms, error_code=self.error)

    def unchanged(self, topic: str, partition: int, high_watermark: int, log_start_offset: int) -> bool:
        """Whether a partition with these offsets, without records or error, may be left out of the results.

        It makes an idle poll of a wide session cheap: most partitions need no result.
        """
        return False


class FetchSessions:
    """All fetch sessions of a broker. `evictions` counts the evicted sessions."""

    def __init__(
        self, slots: int, eviction_ms: int, random: Random, *, max_partitions: int = DEFAULT_MAX_PARTITIONS
    ) -> None:
        self._cache = FetchSessionCache(slots, eviction_ms, max_partitions, random)

    @property
    def count(self) -> int:
        return len(self._cache)

    @property
    def partitions_cached(self) -> int:
        return self._cache.partitions

    @property
    def evictions(self) -> int:
        return self._cache.evictions

    def begin(
        self,
        request: FetchRequest,
        version: int,
        now_ms: int,
        *,
        privileged: bool = False,
        names: Mapping[bytes, str] = _NO_NAMES,
    ) -> FetchContext:
        """The context of a request. `privileged` is for followers, whose sessions outrank those of consumers.

        `names` are the topics by id, for versions that only have ids.
        """
        topic_ids = name_topics(request, names) if version > LAST_VERSION_WITH_NAMES else None
        if version < FIRST_VERSION_WITH_SESSIONS:
            return _Sessionless(requested_partitions(request.topics))
        session = self._of(request.session_id, privileged)
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            return self._continue(session, request, topic_ids, now_ms)
        if session is not None:
            self._cache.remove(session)
        asked = requested_partitions(request.topics)
        if request.session_epoch == FINAL_EPOCH:
            return _Sessionless(asked, topic_ids)
        return _Opening(self._cache, asked, topic_ids, privileged, now_ms)

    def invalidate(self) -> None:
        """Logs may have changed without a notification: every session rechecks its idle partitions."""
        self._cache.invalidations += 1

    def close_session(self, session_id: int) -> bool:
        """Close a session; False if there is none."""
        session = self._cache.get(session_id)
        if session is None:
            return False
        self._cache.remove(session)
        return True

    def _of(self, session_id: int, privileged: bool) -> FetchSession | None:
        session = self._cache.get(session_id)
        # A consumer that guesses the id of a follower's session must not affect it.
        return session if session is not None and session.privileged == privileged else None

    def _continue(
        self, session: FetchSession | None, request: FetchRequest, topic_ids: TopicIds | None, now_ms: int
    ) -> FetchContext:
        if session is None:
            return _Rejected(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if (session.topic_ids is None) != (topic_ids is None):
            return _Rejected(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != request.session_epoch:
            return _Rejected(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.topic_ids is not None and topic_ids is not None and not session.topic_ids.merge(topic_ids):
            # A topic of the session was created or deleted: the client has to start a new session.
            self._cache.remove(session)
            return _Rejected(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.topics and sum(len(topic.partitions) for topic in request.topics) > MAX_CHANGE:
            # A full fetch is handled in slices; additions are not.
            self._cache.remove(session)
            return _Rejected(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.superseded is not None:
            session.superseded()
        if (request.topics or request.forgotten_topics_data) and not self._cache.change(
            session, requested_partitions(request.topics), request.forgotten_topics_data
        ):
            # A session without partitions ends; if it grew too large, the client has to start a new one.
            return _Sessionless({}) if session.size == 0 else _Rejected(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._cache.touch(session, now_ms)
        return _Incremental(session, self._cache, now_ms)


class _Rejected(FetchContext):
    """A fetch that fails as a whole."""

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        return ()

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        if any(True for _ in results):
            raise ResponseMismatch(f"results for a fetch that was rejected with {self.error.name}")
        return FetchResponse(error_code=self.error)


class _Sessionless(FetchContext):
    """A full fetch without a session."""

    def __init__(self, asked: dict[Key, RequestedPartition], topic_ids: TopicIds | None = None) -> None:
        self._requested = asked
        self.topic_ids = topic_ids
        self._partitions = tuple(asked.values())

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        return self._partitions

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        answered = list(results)
        keys = {(topic, data.partition_index) for topic, data in answered}
        if len(answered) != len(keys) or keys != self._requested.keys():
            raise ResponseMismatch(_difference(self._requested.keys(), keys, len(answered)))
        return FetchResponse(session_id=self._open(answered), responses=_by_topic(answered))

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        asked = self._requested
        if len(results) != len(asked):
            raise ResponseMismatch(f"{len(results)} results for {len(asked)} partitions")
        topics: dict[str, FetchableTopicResponse] = {}
        for part in _slices(results):
            for topic, data in part:
                if (topic, data.partition_index) not in asked:
                    raise ResponseMismatch(f"{topic}-{data.partition_index} was not requested")
            _add_by_topic(topics, part)
            yield
        session_id = yield from self._open_slices(results)
        return FetchResponse(session_id=session_id, responses=list(topics.values()))

    def _open(self, answered: list[tuple[str, PartitionData]]) -> int:
        return NO_SESSION

    def _open_slices(self, answered: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, int]:
        yield from ()
        return NO_SESSION


class _Opening(_Sessionless):
    """A full fetch that opens a session with its response, if there is a slot."""

    def __init__(
        self,
        cache: FetchSessionCache,
        asked: dict[Key, RequestedPartition],
        topic_ids: TopicIds | None,
        privileged: bool,
        now_ms: int,
    ) -> None:
        super().__init__(asked, topic_ids)
        self._cache = cache
        self._privileged = privileged
        self._now_ms = now_ms

    def _open(self, answered: list[tuple[str, PartitionData]]) -> int:
        session = self._cache.create(self._requested, privileged=self._privileged, now_ms=self._now_ms)
        if session is None:
            return NO_SESSION
        session.topic_ids = self.topic_ids
        for topic, data in answered:
            session.answer((topic, data.partition_index), data)
        return session.id

    def _open_slices(self, answered: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, int]:
        cache = self._cache
        asked = self._partitions
        session: FetchSession | None = None
        for begin in range(0, len(asked), SLICE):
            part = {(topic, each.partition): (topic, each) for topic, each in asked[begin : begin + SLICE]}
            if session is None:
                session = cache.create(
                    part, privileged=self._privileged, now_ms=self._now_ms, expected=len(self._requested)
                )
                if session is None:
                    return NO_SESSION
                session.topic_ids = self.topic_ids
            elif cache.get(session.id) is not session or not cache.change(session, part, ()):
                return NO_SESSION  # it was evicted before it was complete
            for topic, data in answered[begin : begin + SLICE]:
                if (topic, data.partition_index) in part:
                    session.answer((topic, data.partition_index), data)
            yield
        return NO_SESSION if session is None else session.id


class _Incremental(FetchContext):
    """A fetch of all partitions of a session, answered with what is new."""

    def __init__(self, session: FetchSession, cache: FetchSessionCache, now_ms: int) -> None:
        self._session = session
        self._cache = cache
        self._now_ms = now_ms
        self._epoch = session.epoch
        self.topic_ids = session.topic_ids
        # Listing all of a wide session costs more than an idle fetch: only when they are about to change.
        self._partitions: Sequence[RequestedPartition] | None = None
        session.superseded = self._keep_partitions

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        return self._session.partitions if self._partitions is None else self._partitions

    def _keep_partitions(self) -> None:
        self._partitions = self._session.partitions

    @property
    def is_empty(self) -> bool:
        return self._session.size == 0

    def pending(self) -> Sequence[RequestedPartition]:
        session = self._session
        if self.is_superseded:
            return ()
        if session.invalidations != self._cache.invalidations or self._now_ms - session.checked_ms >= RECHECK_MS:
            session.invalidations = self._cache.invalidations
            session.recheck(self._now_ms)
        return session.active()

    def set_idle(self, partition: Partition) -> None:
        self._session.set_idle(partition)

    def watch(self, watcher: EndWatcher) -> None:
        self._session.add_waiting(watcher)

    def unwatch(self, watcher: EndWatcher) -> None:
        self._session.remove_waiting(watcher)

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        session = self._session
        if self.is_superseded:
            return self.throttled(0)
        session.superseded = None
        try:
            news = [(topic, data) for topic, data in results if session.answer((topic, data.partition_index), data)]
        except KeyError as error:
            raise ResponseMismatch(f"{error.args[0]} is not in fetch session {session.id}") from error
        return FetchResponse(session_id=session.id, responses=_by_topic(news))

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        session = self._session
        topics: dict[str, FetchableTopicResponse] = {}
        for part in _slices(results):
            if self.is_superseded:
                break
            _add_by_topic(
                topics, ((name, data) for name, data in part if session.answer((name, data.partition_index), data))
            )
            yield
        if self.is_superseded:
            return self.throttled(0)
        session.superseded = None
        return FetchResponse(session_id=session.id, responses=list(topics.values()))

    def throttled(self, throttle_time_ms: int) -> FetchResponse:
        error = ErrorCode.INVALID_FETCH_SESSION_EPOCH if self.is_superseded else ErrorCode.NONE
        return FetchResponse(throttle_time_ms=throttle_time_ms, error_code=error, session_id=self._session.id)

    def unchanged(self, topic: str, partition: int, high_watermark: int, log_start_offset: int) -> bool:
        return self._session.knows((topic, partition), high_watermark, log_start_offset)

    @property
    def is_superseded(self) -> bool:
        return self._session.epoch != self._epoch


def _by_topic(results: Iterable[tuple[str, PartitionData]]) -> list[FetchableTopicResponse]:
    """Each topic once, in order of first appearance."""
    topics: dict[str, FetchableTopicResponse] = {}
    _add_by_topic(topics, results)
    return list(topics.values())


def _add_by_topic(topics: dict[str, FetchableTopicResponse], results: Iterable[tuple[str, PartitionData]]) -> None:
    for name, data in results:
        topic = topics.get(name)
        if topic is None:
            topics[name] = topic = FetchableTopicResponse(topic=name)
        topic.partitions.append(data)


def _slices(results: Sequence[tuple[str, PartitionData]]) -> Iterator[Sequence[tuple[str, PartitionData]]]:
    for begin in range(0, len(results), SLICE):
        yield results[begin : begin + SLICE]


def _difference(asked: Collection[Key], answered: Collection[Key], count: int) -> str:
    missing = next(iter(sorted(set(asked) - set(answered))), None)
    extra = next(iter(sorted(set(answered) - set(asked))), None)
    return f"{count} results for {len(asked)} partitions: {missing=}, {extra=}"
