"""Fetch sessions: a client says once what it reads, and from then on both sides speak of changes only (KIP-227).

A request names a session and an epoch, and from the two follows what it is:

| epoch | session | meaning |
|---|---|---|
| -1 | 0 | a full fetch without a session |
| -1 | id | the same, and the end of session `id` |
| 0 | 0 | a full fetch that would like a session |
| 0 | id | the same, and the end of session `id` |
| other | id | incremental: `topics` are added or changed, `forgotten_topics_data` removed, the rest is as before |

A full fetch is answered with every partition; an incremental one with those that have records, an error, another high
watermark or another log start than the client was told. The epoch counts the requests of a session: if it is not the
one expected, a request was lost or repeated, the two sides may disagree, and the client starts again with a full fetch.

Between `begin` and `answer` a fetch may wait for records; what happens to the session meanwhile is noticed in `answer`.
A client that gets session id 0 has no session, and asks again for one with its next fetch.

Which partitions a fetch has to look at, `pending` tells: all in a full fetch, the lively ones of a session. What had
nothing new is put to `rest` by whoever looked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.fetch_session_cache import Asked, FetchSession, FetchSessionCache, Key, asked_by
from penstock.broker.fetch_topic_ids import TopicIds, name_topics
from penstock.runtime.randomness import Random
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData

if TYPE_CHECKING:
    from penstock.replication.partition import Partition
    from penstock.replication.watchers import EndWatcher

NO_SESSION: Final = 0
NEW_SESSION_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
FIRST_VERSION_WITH_SESSIONS: Final = 7
LAST_VERSION_WITH_NAMES: Final = 12
DEFAULT_MAX_PARTITIONS: Final = 1_000_000
EVICTION_MS: Final = 120_000  # Kafka's, where it is no setting either
_NO_NAMES: Final[Mapping[bytes, str]] = {}
MAX_CHANGE: Final = 20_000
"""Partitions that may be added to a session by one request; a client that brings more has to say all of it again."""
SLICE: Final = 500
"""Partitions that are gone over before others are served."""
RECHECK_MS: Final = 1_000
"""How long a change of a partition at rest that nobody was told of may go unnoticed."""


class AnswerMismatch(ValueError):
    """An answer whose partitions are not those that were to be read."""


class FetchContext(ABC):
    """One fetch, from what is to be read to its response. `error` is of the fetch as a whole: then nothing is read."""

    error: ErrorCode = ErrorCode.NONE
    topic_ids: TopicIds | None = None
    """Of a client that names topics by id."""

    @property
    @abstractmethod
    def partitions(self) -> Sequence[Asked]:
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

    def pending(self) -> Sequence[Asked]:
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
            return _Sessionless(asked_by(request.topics))
        session = self._of(request.session_id, privileged)
        if request.session_epoch not in (NEW_SESSION_EPOCH, FINAL_EPOCH):
            return self._continue(session, request, topic_ids, now_ms)
        if session is not None:
            self._cache.remove(session)
        asked = asked_by(request.topics)
        if request.session_epoch == FINAL_EPOCH:
            return _Sessionless(asked, topic_ids)
        return _Opening(self._cache, asked, topic_ids, privileged, now_ms)

    def disturb(self) -> None:
        """Partitions may have changed otherwise than by growing: every session compares what it takes to be at rest."""
        self._cache.disturbances += 1

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
            return _Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if (session.topic_ids is None) != (topic_ids is None):
            return _Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != request.session_epoch:
            return _Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.topic_ids is not None and topic_ids is not None and not session.topic_ids.merge(topic_ids):
            # A topic went, or came, under an id that the session has: the client has to say all of it again.
            self._cache.remove(session)
            return _Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if request.topics and sum(len(topic.partitions) for topic in request.topics) > MAX_CHANGE:
            # What is said anew is taken in slices; what is added is not.
            self._cache.remove(session)
            return _Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.overtaken is not None:
            session.overtaken()
        if (request.topics or request.forgotten_topics_data) and not self._cache.change(
            session, asked_by(request.topics), request.forgotten_topics_data
        ):
            # Nothing left to ask for ends the session; if it grew too large, the client has to say all of it again.
            return _Sessionless({}) if session.size == 0 else _Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._cache.touch(session, now_ms)
        return _Incremental(session, self._cache, now_ms)


class _Refused(FetchContext):
    """A fetch that fails as a whole."""

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    @property
    def partitions(self) -> Sequence[Asked]:
        return ()

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        if any(True for _ in results):
            raise AnswerMismatch(f"results for a fetch that was refused with {self.error.name}")
        return FetchResponse(error_code=self.error)


class _Sessionless(FetchContext):
    """A full fetch after which nothing is remembered."""

    def __init__(self, asked: dict[Key, Asked], topic_ids: TopicIds | None = None) -> None:
        self._asked = asked
        self.topic_ids = topic_ids
        self._partitions = tuple(asked.values())

    @property
    def partitions(self) -> Sequence[Asked]:
        return self._partitions

    def answer(self, results: Iterable[tuple[str, PartitionData]]) -> FetchResponse:
        answered = list(results)
        keys = {(topic, data.partition_index) for topic, data in answered}
        if len(answered) != len(keys) or keys != self._asked.keys():
            raise AnswerMismatch(_difference(self._asked.keys(), keys, len(answered)))
        return FetchResponse(session_id=self._open(answered), responses=_by_topic(answered))

    def answer_slices(self, results: Sequence[tuple[str, PartitionData]]) -> Generator[None, None, FetchResponse]:
        asked = self._asked
        if len(results) != len(asked):
            raise AnswerMismatch(f"{len(results)} results for {len(asked)} partitions")
        topics: dict[str, FetchableTopicResponse] = {}
        for part in _slices(results):
            for topic, data in part:
                if (topic, data.partition_index) not in asked:
                    raise AnswerMismatch(f"{topic}-{data.partition_index} was not asked for")
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
        asked: dict[Key, Asked],
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
        self._partitions: Sequence[Asked] | None = None
        session.overtaken = self._keep_partitions

    @property
    def partitions(self) -> Sequence[Asked]:
        return self._session.partitions if self._partitions is None else self._partitions

    def _keep_partitions(self) -> None:
        self._partitions = self._session.partitions

    @property
    def is_empty(self) -> bool:
        return self._session.size == 0

    def pending(self) -> Sequence[Asked]:
        session = self._session
        if self.is_overtaken:
            return ()
        if session.disturbances != self._cache.disturbances or self._now_ms - session.checked_ms >= RECHECK_MS:
            session.disturbances = self._cache.disturbances
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
            raise AnswerMismatch(f"{error.args[0]} is not in fetch session {session.id}") from error
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
