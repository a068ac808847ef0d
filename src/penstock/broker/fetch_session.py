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
a fetch costs what happens, not what is asked for. `recheck` finds changes that notify nobody (log start, failed
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


_UNKNOWN = "\0"


class TopicIds:
    """`names` are all that the cluster knows; the same object as long as no topic comes or goes."""

    __slots__ = ("_ids", "_names")

    def __init__(self, ids: dict[str, bytes], names: Mapping[bytes, str]) -> None:
        self._ids = ids
        self._names = names

    def of(self, name: str) -> bytes:
        return self._ids.get(name, NO_UUID)

    def merge(self, later: TopicIds) -> bool:
        """Take in what a later request of the session names; False if an id means something else by now."""
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


Key: TypeAlias = tuple[str, int]
RequestedPartition: TypeAlias = tuple[str, FetchPartition]

MAX_SESSION_ID: Final = 2**31 - 1
MAX_SIZE: Final = 50_000
"""Partitions of one session: as many as one request may name. To end a session takes half a microsecond for each."""


def requested_partitions(topics: Iterable[FetchTopic]) -> dict[Key, RequestedPartition]:
    """What a request asks for, in its order; of a partition that is named twice, what was said last."""
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
    """A partition that had nothing new, in the epoch in which it was led then."""

    partition: Partition
    leader_epoch: int


class FetchSession:
    """One client's session. Its size is what the cache sorts by: only the cache changes what is asked for.

    It watches its partitions at rest, and passes on what it hears to the fetches that wait.
    """

    __slots__ = (
        "_answered",
        "_asked",
        "_ended",
        "_lively",
        "_order",
        "_ranks",
        "_resting",
        "_waiting",
        "checked_ms",
        "created_ms",
        "epoch",
        "id",
        "invalidations",
        "overtaken",
        "privileged",
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
        self.overtaken: Callable[[], None] | None = None  # told of the next request, while the last is not answered
        self.epoch = 1
        self.topic_ids: TopicIds | None = None  # of a client that names topics by id
        self._asked: dict[Key, RequestedPartition] = {}
        # High watermark and log start as the client last heard them; None if the next answer has to tell.
        self._answered: dict[Key, tuple[int, int] | None] = {}
        self._order: tuple[RequestedPartition, ...] | None = None
        # The place of each in the order; gaps do not matter. Every partition is lively or at rest.
        self._ranks: dict[Key, int] = {}
        self._lively: set[Key] = set()
        self._resting: dict[Key, _IdlePartition] = {}
        self._waiting: list[EndWatcher] = []
        self._ended = False
        self.change(asked, ())

    @property
    def size(self) -> int:
        return len(self._asked)

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        """What to read, in the order in which to read it; later changes do not show in it."""
        if self._order is None:
            self._order = tuple(self._asked.values())
        return self._order

    def change(self, asked: dict[Key, RequestedPartition], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add partitions, at the end, or change what is asked of those that are there, in their place; forget some."""
        for key, (_, partition) in asked.items():
            # Whatever a client attached to the request is not worth keeping for as long as the session lives.
            partition.unknown_tags = None
            if self.privileged:
                # A follower ignores what an answer tells that was on its way when it asked this anew.
                self._answered[key] = None
            else:
                self._answered.setdefault(key)
            if key not in self._ranks:
                self._to_the_end(key)
            self._rouse(key)
        self._asked |= asked
        for topic in forgotten:
            for index in topic.partitions:
                self._forget((topic.topic, index))
        self._order = None

    def _forget(self, key: Key) -> None:
        if self._asked.pop(key, None) is None:
            return
        self._rouse(key)
        self._lively.discard(key)
        del self._answered[key], self._ranks[key]

    def _to_the_end(self, key: Key) -> None:
        ranks = self._ranks
        ranks.pop(key, None)
        # Kept in order, so the last is the largest.
        ranks[key] = ranks[next(reversed(ranks))] + 1 if ranks else 0

    def advance(self, now_ms: int) -> None:
        """Expect the next epoch."""
        self.epoch = next_epoch(self.epoch)
        self.used_ms = now_ms

    # --- what is worth looking at

    @property
    def resting(self) -> int:
        return len(self._resting)

    def lively(self) -> Sequence[RequestedPartition]:
        """What may have news, in the order in which to read it."""
        if len(self._lively) == len(self._asked):
            return self.partitions
        return [self._asked[key] for key in sorted(self._lively, key=self._ranks.__getitem__)]

    def rest(self, partition: Partition) -> None:
        """A partition has no records for the client beyond what it has, and it was told the offsets: watch it."""
        key = (partition.topic, partition.index)
        if self._ended or key not in self._lively:
            return
        self._lively.remove(key)
        self._resting[key] = _IdlePartition(partition, partition.leader_epoch)
        if self.privileged:
            partition.watch_end(self)
        else:
            partition.watch(self)

    def _rouse(self, key: Key) -> None:
        rest = self._resting.pop(key, None)
        if rest is not None:
            rest.partition.unwatch(self)
        self._lively.add(key)

    def recheck(self, now_ms: int) -> None:
        """Find the partitions at rest that changed without a word."""
        self.checked_ms = now_ms
        changed = [
            key
            for key, (partition, leader_epoch) in self._resting.items()
            if partition.leader_epoch != leader_epoch
            or partition.log.failure is not None
            or self._answered[key] != (partition.log.high_watermark, partition.log.log_start_offset)
        ]
        for key in changed:
            self._rouse(key)

    def grown(self, partition: Partition, size: int) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.grown(partition, size)

    def gone(self, partition: Partition) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.gone(partition)

    def moved(self, partition: Partition) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.moved(partition)

    def add_waiting(self, waiting: EndWatcher) -> None:
        """Tell a fetch, too, of what happens to partitions at rest."""
        self._waiting.append(waiting)

    def remove_waiting(self, waiting: EndWatcher) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def end(self) -> None:
        """The session is no more: watch nothing. Whoever waits for its partitions does so by himself from now on."""
        self._ended = True
        for key, rest in tuple(self._resting.items()):
            self._rouse(key)
            for waiting in tuple(self._waiting):
                waiting.grown(rest.partition, 0)

    # --- what the client was told

    def knows(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client was told these offsets last."""
        return self._answered.get(key) == (high_watermark, log_start_offset)

    def answer(self, key: Key, data: PartitionData) -> bool:
        """Note that the client is told `data`; False if there is no news in it, and it need not be sent.

        Watermark 5, told before: nothing to send. Watermark 6: sent. An error: sent, and whatever is next as well.
        """
        # KeyError for a partition that is not in the session.
        told = self._answered[key]
        if data.error_code:
            self._answered[key] = None
            return True
        offsets = (data.high_watermark, data.log_start_offset)
        news = offsets != told
        if news:
            self._answered[key] = offsets
        if _has_records(data):
            self._asked[key] = self._asked.pop(key)
            self._to_the_end(key)
            self._order = None
            return True
        return news or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0


class SizeOrder:
    """Sessions by size, then id. A sorted list: at a thousand slots, moving its tail costs less than a tree."""

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
    """The sessions by id, least recently used first, and in the orders in which they give way."""

    def __init__(self, slots: int, eviction_ms: int, max_partitions: int, random: Random) -> None:
        if slots < 0 or eviction_ms < 0 or max_partitions < 0:
            raise ValueError(f"negative limit: {slots=}, {eviction_ms=}, {max_partitions=}")
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # In order of creation; whoever outlives the eviction time moves on to `_old` when a slot is looked for.
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
        """A session that asks for these; None if no other has to give way to it.

        `expected` is how many it will have in all, if more are to be added at once.
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
        """The id of the session that gives way to one of this size."""
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


DEFAULT_MAX_PARTITIONS: Final = 1_000_000
EVICTION_MS: Final = 120_000  # Kafka's, where it is no setting either
_NO_NAMES: Final[Mapping[bytes, str]] = {}
MAX_CHANGE: Final = 20_000
"""Partitions that may be added to a session by one request; a client that brings more has to say all of it again."""
SLICE: Final = 500
"""Partitions that are gone over before others are served."""
RECHECK_MS: Final = 1_000
"""How long a change of a partition at rest that nobody was told of may go unnoticed."""


class ResponseMismatch(ValueError):
    """An answer whose partitions are not those that were to be read."""


class FetchContext(ABC):
    """One fetch, from what is to be read to its response. `error` is of the fetch as a whole: then nothing is read."""

    error: ErrorCode = ErrorCode.NONE
    topic_ids: TopicIds | None = None
    """Of a client that names topics by id."""

    @property
    @abstractmethod
    def partitions(self) -> Sequence[RequestedPartition]:
        """Topic and partition to read, in the order in which to read them."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked for."""
        return not self.partitions

    @property
    def is_overtaken(self) -> bool:
        """Whether a later request of the same session, a repetition perhaps, came while this one was in work."""
        return False

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        """The same as `answer` for many partitions, with a yield after every `SLICE`."""
        yield from ()
        return self.answer(results)

    @abstractmethod
    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        """The response. A full fetch needs a result for every partition; an incremental one, for those not `unchanged`.

        AnswerMismatch if a result is missing, or is for a partition that was not asked for.
        """

    def pending(self) -> Sequence[RequestedPartition]:
        """Those of `partitions` that may have something to tell, in the same order."""
        return self.partitions

    # Where everything is pending there is nothing at rest, and nothing more to watch.

    def rest(self, partition: Partition) -> None:  # noqa: B027
        """A pending partition is `unchanged` and has no more records: do not look at it again before it moves."""

    def watch(self, watcher: EndWatcher) -> None:  # noqa: B027
        """Tell `watcher` of partitions that are not pending when they grow or go."""

    def unwatch(self, watcher: EndWatcher) -> None:  # noqa: B027
        """Tell it no more."""

    def throttled(self, throttle_time_ms: int) -> FetchResponse:
        """The empty response to a client that has to wait: the session stays as if nothing had been read."""
        return FetchResponse(throttle_time_ms=throttle_time_ms, error_code=self.error)

    def unchanged(self, topic: str, partition: int, high_watermark: int, log_start_offset: int) -> bool:
        """Whether a partition with these offsets, without records or error, may be left out of the results.

        It makes an idle poll of a wide session cheap: for most partitions no result need be built.
        """
        return False


class FetchSessions:
    """All fetch sessions of a broker. `evictions` counts the sessions that had to give way to others."""

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
        """What this request asks to be read. `privileged` is for followers: their sessions outrank consumers'.

        `names` are those of topics by id, for versions that know only ids.
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
        """Partitions may have changed otherwise than by growing: every session compares what it takes to be at rest."""
        self._cache.invalidations += 1

    def close_session(self, session_id: int) -> bool:
        """Forget a session; False if there was none."""
        session = self._cache.get(session_id)
        if session is None:
            return False
        self._cache.remove(session)
        return True

    def _of(self, session_id: int, privileged: bool) -> FetchSession | None:
        session = self._cache.get(session_id)
        # A consumer that hits upon the id of a follower's session must neither move nor end it.
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
            # A topic went, or came, under an id that the session has: the client has to say all of it again.
            self._cache.remove(session)
            return _Rejected(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.topics and sum(len(topic.partitions) for topic in request.topics) > MAX_CHANGE:
            # What is said anew is taken in slices; what is added is not.
            self._cache.remove(session)
            return _Rejected(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.overtaken is not None:
            session.overtaken()
        if (request.topics or request.forgotten_topics_data) and not self._cache.change(
            session, requested_partitions(request.topics), request.forgotten_topics_data
        ):
            # Nothing left to ask for ends the session; if it grew too large, the client has to say all of it again.
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
            raise ResponseMismatch(f"results for a fetch that was refused with {self.error.name}")
        return FetchResponse(error_code=self.error)


class _Sessionless(FetchContext):
    """A full fetch after which nothing is remembered."""

    def __init__(self, asked: dict[Key, RequestedPartition], topic_ids: TopicIds | None = None) -> None:
        self._asked = asked
        self.topic_ids = topic_ids
        self._partitions = tuple(asked.values())

    @property
    def partitions(self) -> Sequence[RequestedPartition]:
        return self._partitions

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        answered = list(results)
        keys = {(topic, data.partition_index) for topic, data in answered}
        if len(answered) != len(keys) or keys != self._asked.keys():
            raise ResponseMismatch(_difference(self._asked.keys(), keys, len(answered)))
        return FetchResponse(session_id=self._open(answered), responses=_by_topic(answered))

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        asked = self._asked
        if len(results) != len(asked):
            raise ResponseMismatch(f"{len(results)} results for {len(asked)} partitions")
        topics: dict[str, FetchableTopicResponse] = {}
        for part in _slices(results):
            for topic, data in part:
                if (topic, data.partition_index) not in asked:
                    raise ResponseMismatch(f"{topic}-{data.partition_index} was not asked for")
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
    """A full fetch that becomes a session with its answer, if there is a slot for it."""

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
        session = self._cache.create(self._asked, privileged=self._privileged, now_ms=self._now_ms)
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
                    part, privileged=self._privileged, now_ms=self._now_ms, expected=len(self._asked)
                )
                if session is None:
                    return NO_SESSION
                session.topic_ids = self.topic_ids
            elif cache.get(session.id) is not session or not cache.change(session, part, ()):
                return NO_SESSION  # it had to give way before it was complete
            for topic, data in answered[begin : begin + SLICE]:
                if (topic, data.partition_index) in part:
                    session.answer((topic, data.partition_index), data)
            yield
        return NO_SESSION if session is None else session.id


class _Incremental(FetchContext):
    """A fetch of all that a session asks for, answered with what is new."""

    def __init__(self, session: FetchSession, cache: FetchSessionCache, now_ms: int) -> None:
        self._session = session
        self._cache = cache
        self._now_ms = now_ms
        self._epoch = session.epoch
        self.topic_ids = session.topic_ids
        # Listing all of a wide session costs more than a quiet fetch of it: only when they are about to change.
        self._partitions: Sequence[RequestedPartition] | None = None
        session.overtaken = self._keep_partitions

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
        if self.is_overtaken:
            return ()
        if session.invalidations != self._cache.invalidations or self._now_ms - session.checked_ms >= RECHECK_MS:
            session.invalidations = self._cache.invalidations
            session.recheck(self._now_ms)
        return session.lively()

    def rest(self, partition: Partition) -> None:
        self._session.rest(partition)

    def watch(self, watcher: EndWatcher) -> None:
        self._session.add_waiting(watcher)

    def unwatch(self, watcher: EndWatcher) -> None:
        self._session.remove_waiting(watcher)

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        session = self._session
        if self.is_overtaken:
            return self.throttled(0)
        session.overtaken = None
        try:
            news = [(topic, data) for topic, data in results if session.answer((topic, data.partition_index), data)]
        except KeyError as error:
            raise ResponseMismatch(f"{error.args[0]} is not in fetch session {session.id}") from error
        return FetchResponse(session_id=session.id, responses=_by_topic(news))

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        session = self._session
        topics: dict[str, FetchableTopicResponse] = {}
        for part in _slices(results):
            if self.is_overtaken:
                break
            _add_by_topic(
                topics, ((name, data) for name, data in part if session.answer((name, data.partition_index), data))
            )
            yield
        if self.is_overtaken:
            return self.throttled(0)
        session.overtaken = None
        return FetchResponse(session_id=session.id, responses=list(topics.values()))

    def throttled(self, throttle_time_ms: int) -> FetchResponse:
        error = ErrorCode.INVALID_FETCH_SESSION_EPOCH if self.is_overtaken else ErrorCode.NONE
        return FetchResponse(throttle_time_ms=throttle_time_ms, error_code=error, session_id=self._session.id)

    def unchanged(self, topic: str, partition: int, high_watermark: int, log_start_offset: int) -> bool:
        return self._session.knows((topic, partition), high_watermark, log_start_offset)

    @property
    def is_overtaken(self) -> bool:
        return self._session.epoch != self._epoch


def _by_topic(results: Iterable[tuple[str, PartitionData]]) -> list[FetchableTopicResponse]:
    """Each topic once, in order of first appearance."""
    topics: dict[str, FetchableTopicResponse] = {}
    for name, data in results:
        topic = topics.get(name)
        if topic is None:
            topics[name] = topic = FetchableTopicResponse(topic=name)
        topic.partitions.append(data)
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
