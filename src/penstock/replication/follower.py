"""Replica fetchers: one per leader, each with one link and one fetch session, and their throttle.

A partition is fetched from its log end, and only once everything below is as durable as the topic demands, because the
leader counts the fetch as an acknowledgement. A response is appended and synced, and the next request names the new end
at once. The request waits up to `sync_patience_ms` (3 ms) for syncs that have just begun, because two requests cost
more than most syncs; a partition whose sync takes longer is left out. Partitions that become ready while a request
waits at the leader are sent in a second one, which overtakes it. There are never more than two.

    response: a, b  append both, two syncs begin      a's is done, b's not: wait
                    b's is done in time               request: a, b
                    b's is not done in time           request: a, without b;  b's is done: request: b

A leader that may not know yet that b is coming is not asked to wait longer than the youngest sync has taken so far. No
thread, no randomness, no clock but the loop's.

`Throttle` (`follower.` and `leader.replication.throttled.rate`) is a debt in bytes that time pays off. Bytes are
counted after they arrive, because a fetch returns at least one batch, however large. Throttled partitions wait while
the debt exceeds one second's worth. Replicas in sync are never throttled (they would fall out of the ISR), but their
bytes count.

    rate 1000/s; 3000 bytes arrive at 0 s: one second's worth is free, so the next fetch may start at 2 s
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.log.errors import LogError, LogFailed
from penstock.log.group_commit import GroupCommit
from penstock.records import RecordError
from penstock.replication.fetch_state import (
    Effect,
    FetchRequestData,
    FetchSessionHandler,
    FollowedPartition,
    PartitionFetchState,
    Pause,
    SessionKey,
    apply_fetch_response,
    records_in,
)
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.fetch import (
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from penstock.wire.types import Message

__all__ = ["FetcherMetrics", "FetcherSettings", "ReplicaFetcherManager", "FollowedPartition", "Pause"]


UNLIMITED: Final = float("inf")
_SECOND_MS: Final = 1000.0


class Throttle:
    """One for all fetchers of a broker, one for all that it leads. `now_ms` is a monotonic time throughout."""

    def __init__(self, rate_bytes_s: float, is_throttled: Callable[[str, int], bool]) -> None:
        _require_rate(rate_bytes_s)
        self._rate_bytes_s = rate_bytes_s
        self._is_throttled = is_throttled
        self._debt_bytes = 0.0
        self._counted_ms = 0.0

    @property
    def rate_bytes_s(self) -> float:
        return self._rate_bytes_s

    def set_rate(self, rate_bytes_s: float, now_ms: float) -> None:
        """Another rate, from now on."""
        _require_rate(rate_bytes_s)
        self._pay(now_ms)
        self._rate_bytes_s = rate_bytes_s

    def applies_to(self, topic: str, index: int) -> bool:
        """Whether a partition is throttled (`follower.` or `leader.replication.throttled.replicas`)."""
        return self._rate_bytes_s != UNLIMITED and self._is_throttled(topic, index)

    def came(self, size: int, now_ms: float) -> None:
        """So many bytes of throttled partitions came, or went."""
        self._pay(now_ms)
        if self._rate_bytes_s != UNLIMITED:
            self._debt_bytes += size

    def delay_ms(self, now_ms: float) -> float:
        """How long a throttled partition has to wait; 0 if it need not."""
        self._pay(now_ms)
        excess_bytes = self._debt_bytes - self._rate_bytes_s
        return excess_bytes / self._rate_bytes_s * _SECOND_MS if excess_bytes > 0 else 0.0

    def _pay(self, now_ms: float) -> None:
        if self._rate_bytes_s == UNLIMITED:
            self._debt_bytes = 0.0
        else:
            paid_bytes = (now_ms - self._counted_ms) / _SECOND_MS * self._rate_bytes_s
            self._debt_bytes = max(0.0, self._debt_bytes - max(0.0, paid_bytes))
        self._counted_ms = max(self._counted_ms, now_ms)


def _require_rate(rate_bytes_s: float) -> None:
    if not rate_bytes_s > 0:
        raise ValueError(f"a throttled rate of {rate_bytes_s} bytes a second lets nothing through; give a positive one")


FETCH_VERSION: Final = 17


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's replica.fetch.* and our own."""

    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 10 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    backoff_ms: float = 20.0
    backoff_max_ms: float = 1000.0
    timeout_ms: float = 5000.0
    """How long an answer may take beyond `max_wait_ms`."""
    sync_patience_ms: float = 3.0


class FetcherMetrics:
    """What all fetchers of a broker have done."""

    __slots__ = ("bytes_in", "damaged", "links_lost", "overtaking", "requests", "throttled_bytes_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.throttled_bytes_in = 0
        self.requests = 0
        self.overtaking = 0  # requests that were sent while another waited
        self.damaged = 0  # answers whose bytes could not be taken as records
        self.links_lost = 0


@dataclass(frozen=True, slots=True)
class FetcherEnvironment:
    """What all fetchers of a broker share. `failed` is told of a partition whose log the disk failed."""

    me: int
    broker_epoch: Callable[[], int]
    links: Links
    commits: GroupCommit
    loop: asyncio.AbstractEventLoop
    settings: FetcherSettings
    throttle: Throttle | None
    figures: FetcherMetrics
    failed: Callable[[FollowedPartition, LogFailed], None]

    def now_ms(self) -> float:
        return self.loop.time() * 1000.0

    def came(self, key: tuple[str, int], size: int) -> None:
        """Count so many bytes of a partition."""
        self.figures.bytes_in += size
        if self.throttle is not None and self.throttle.applies_to(*key):
            self.figures.throttled_bytes_in += size
            self.throttle.came(size, self.now_ms())


def make_fetch_request(
    said: FetchRequestData[PartitionFetchState], serial: int, max_wait_ms: int, outside: FetcherEnvironment
) -> FetchRequest:
    """Request number `serial`: every partition that it names is asked for from where its log ends now."""
    max_bytes = outside.settings.max_bytes
    topics: dict[bytes, FetchTopic] = {}
    for course in said.named:
        topic_id = course.session_key[0]
        topic = topics.get(topic_id)
        if topic is None:
            topics[topic_id] = topic = FetchTopic(topic_id=topic_id)
        topic.partitions.append(course.ask(serial))
        max_bytes = max(max_bytes, course.max_bytes)
    forgotten: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in said.forgotten:
        forgotten.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return FetchRequest(
        replica_state=ReplicaState(replica_id=outside.me, replica_epoch=outside.broker_epoch()),
        max_wait_ms=max_wait_ms,
        min_bytes=outside.settings.min_bytes,
        max_bytes=max_bytes,
        session_id=said.session_id,
        session_epoch=said.epoch,
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )


logger = logging.getLogger(__name__)

_IN_FLIGHT_MAX: Final = 2
_NO_TIME_MS: Final = 0.05  # a loop's time may not move by less
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class _Sent(NamedTuple):
    """A request on its way."""

    serial: int
    session: int  # number of the session, as counted here
    session_id: int
    is_full: bool
    link: Link


class ReplicaFetcher:
    """Follows one leader until it is stopped."""

    def __init__(self, leader: int, outside: FetcherEnvironment) -> None:
        self.leader = leader
        self._out = outside
        self._courses: dict[SessionKey, PartitionFetchState] = {}
        self._session: FetchSessionHandler[PartitionFetchState] = FetchSessionHandler()
        self._sessions = 0
        self._session_errors = 0  # in a row
        self._may_have_session = True  # the leader keeps sessions, as far as is known
        self._syncing: dict[PartitionFetchState, float] = {}  # since when, the youngest last
        self._link: Link | None = None
        self._sent: list[_Sent] = []
        self._serial = 0
        self._failures = 0  # of the link, in a row
        self._tasks: dict[asyncio.Future[Message], None] = {}  # questions that first open the link
        self._rest: asyncio.TimerHandle | None = None  # until then nothing is asked
        self._patience: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._is_stopped = False

    @property
    def courses(self) -> Iterable[PartitionFetchState]:
        return self._courses.values()

    @property
    def is_idle(self) -> bool:
        """Whether it follows nothing."""
        return not self._courses

    # --- what to follow

    def follow(self, partition: FollowedPartition) -> PartitionFetchState:
        """From now on, in the epoch in which it is led now."""
        course = PartitionFetchState(partition, self._out.settings.partition_max_bytes)
        self._courses[course.session_key] = course
        if self._rest is not None:
            # There is news of the leader: it may well be back.
            self._rest.cancel()
            self._rest = None
        self._begin(course)
        self._turn_soon()
        return course

    def _begin(self, course: PartitionFetchState) -> None:
        log = course.partition.log
        try:
            if log.failure is None and log.epochs.latest_start_offset >= log.log_end_offset:
                # It led and wrote nothing. Records of others, older than that, could not be appended behind it.
                course.partition.cut(log.log_end_offset)
        except LogError as error:
            self._failed(course, error)
        else:
            self._prepare(course)

    def unfollow(self, course: PartitionFetchState) -> None:
        self._hold(course, Pause.NONE)
        course.is_over = True
        if self._courses.get(course.session_key) is course:
            del self._courses[course.session_key]

    def stop(self) -> list[asyncio.Future[Message]]:
        """Follow nothing any more; the tasks that are about to end."""
        self._is_stopped = True
        for course in tuple(self._courses.values()):
            self.unfollow(course)
        for timer in (self._rest, self._patience):
            if timer is not None:
                timer.cancel()
        self._drop_link()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    # --- from an answer to the next question

    def _prepare(self, course: PartitionFetchState) -> None:
        """Ask for it as soon as what it has is durable."""
        self._hold(course, Pause.SYNC)
        log = course.partition.log
        if log.failure is not None:
            self._fail(course, log.failure)
        elif course.must_sync:
            token = course.token
            self._syncing[course] = self._out.now_ms()
            self._out.commits.when_durable(
                log, log.log_end_offset, lambda error: self._synced(course, token, error)
            )  # fmt: skip
        else:
            self._ready(course)

    def _synced(self, course: PartitionFetchState, token: int, error: LogError | None) -> None:
        if token != course.token:
            return
        self._syncing.pop(course, None)
        if error is None:
            self._ready(course)
        else:
            self._failed(course, error)
        self._turn_soon()

    def _ready(self, course: PartitionFetchState) -> None:
        throttle = self._out.throttle
        if throttle is not None and course.is_behind and throttle.applies_to(*course.key):
            delay_ms = throttle.delay_ms(self._out.now_ms())
            if delay_ms > 0:
                self._hold(course, Pause.THROTTLED, delay_ms)
                return
        course.pause = Pause.NONE
        self._session.wants(course.session_key, course)

    def _hold(self, course: PartitionFetchState, why: Pause, delay_ms: float | None = None) -> None:
        """Do not ask for it, until `delay_ms` passed or somebody prepares it."""
        course.stop_waiting()
        course.pause = why
        self._syncing.pop(course, None)
        self._session.leaves(course.session_key)
        if delay_ms is not None:
            course.timer = self._out.loop.call_later(max(1.0, delay_ms) / 1000.0, self._again, course)

    def _again(self, course: PartitionFetchState) -> None:
        course.timer = None
        self._prepare(course)
        self._turn_soon()

    def _back_off(self, course: PartitionFetchState, why: Pause, reason: object, *, level: int) -> None:
        course.failures += 1
        delay_ms = self._backoff_ms(course.failures)
        # Once for each time that it begins: what lasts would fill the disk with telling so.
        logger.log(
            level if course.failures == 1 else logging.DEBUG,
            "%s: following leader %d in epoch %d from offset %d, trying again in %.0f ms: %s",
            course, self.leader, course.epoch, course.partition.log.log_end_offset, delay_ms, reason,
        )  # fmt: skip
        self._hold(course, why, delay_ms)

    def _backoff_ms(self, failures: int) -> float:
        settings = self._out.settings
        return min(settings.backoff_max_ms, settings.backoff_ms * 2.0 ** min(failures - 1, 30))

    def _failed(self, course: PartitionFetchState, error: LogError | RecordError) -> None:
        if isinstance(error, LogFailed):
            self._fail(course, error)
            return
        if isinstance(error, RecordError):
            self._out.figures.damaged += 1
        self._back_off(course, Pause.WHILE, error, level=logging.ERROR)

    def _fail(self, course: PartitionFetchState, failure: LogFailed) -> None:
        self._hold(course, Pause.FAILED)
        logger.error("%s: not followed any more: %s", course, failure)
        self._out.failed(course.partition, failure)

    # --- questions

    def _turn_soon(self) -> None:
        """Look what to ask when this turn of the loop is over: more may become ready in it."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._out.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        if self._is_stopped or self._rest is not None or self._session.is_empty:
            return
        if not self._sent:
            if not self._is_patient():
                self._send()
        elif len(self._sent) < _IN_FLIGHT_MAX and self._session.is_open and self._session.has_fresh:
            self._out.figures.overtaking += 1
            self._send()

    def _is_patient(self) -> bool:
        """Whether to wait for a sync that has just begun."""
        if not self._syncing:
            return False
        left_ms = next(reversed(self._syncing.values())) + self._out.settings.sync_patience_ms - self._out.now_ms()
        if left_ms < _NO_TIME_MS:
            return False
        if self._patience is None:
            self._patience = self._out.loop.call_later(left_ms / 1000.0, self._patience_over)
        return True

    def _patience_over(self) -> None:
        self._patience = None
        self._take_turn()

    def _send(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        try:
            if self._link is None:
                self._link = self._out.links.to(self.leader)
        except LinkLost as error:
            self._lost(error)
            return
        self._serial += 1
        said = self._session.take()
        sent = _Sent(self._serial, self._sessions, said.session_id, said.is_full, self._link)
        # A session that is being opened cannot be overtaken, so it is not waited in.
        max_wait_ms = 0 if said.is_full and self._may_have_session else self._max_wait_ms()
        request = make_fetch_request(said, self._serial, max_wait_ms, self._out)
        self._sent.append(sent)
        self._out.figures.requests += 1
        timeout_ms = max_wait_ms + self._out.settings.timeout_ms
        answer = self._link.send(ApiKey.FETCH, FETCH_VERSION, request, timeout_ms)
        if answer is None:
            asking = self._link.ask(ApiKey.FETCH, FETCH_VERSION, request, timeout_ms)
            answer = task = self._out.loop.create_task(asking)
            self._tasks[task] = None
        answer.add_done_callback(partial(self._came, sent))

    def _max_wait_ms(self) -> int:
        max_wait_ms = self._out.settings.max_wait_ms
        if self._syncing:
            youngest_ms = self._out.now_ms() - next(reversed(self._syncing.values()))
            max_wait_ms = min(max_wait_ms, max(1, int(youngest_ms)))
        return max_wait_ms

    def _came(self, sent: _Sent, answer: asyncio.Future[Message]) -> None:
        self._tasks.pop(answer, None)
        if answer.cancelled():
            return
        error = answer.exception()
        if sent not in self._sent:
            return
        if error is not None:
            self._lost(error)
            return
        self._sent.remove(sent)
        try:
            self._answered(sent, answer.result())
        except Exception as failure:  # noqa: BLE001 - whatever it is, what else is followed must be asked for again
            message = f"what leader {self.leader} answered could not be taken in"
            self._out.loop.call_exception_handler({"message": message, "exception": failure})
            if not self._is_stopped:
                self._lost(failure)

    # --- answers

    def _lost(self, error: BaseException) -> None:
        """Nobody knows what the leader knows: begin anew, after a while."""
        self._out.figures.links_lost += 1
        self._failures += 1
        delay_ms = self._backoff_ms(self._failures)
        logger.log(
            logging.WARNING if self._failures == 1 else logging.DEBUG,
            "leader %d of %d partitions is out of reach, trying again in %.0f ms: %s",
            self.leader, len(self._courses), delay_ms, error,
        )  # fmt: skip
        self._drop_link()
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._out.loop.call_later(delay_ms / 1000.0, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._take_turn()

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        self._sent.clear()
        self._reset_session()
        if link is not None:
            link.close()

    def _reset_session(self) -> None:
        self._session.reset()
        self._sessions += 1

    def _answered(self, sent: _Sent, answer: Message) -> None:
        if not isinstance(answer, FetchResponse):
            self._lost(LinkLost(f"a Fetch was answered with {type(answer).__name__}"))
            return
        error = error_code(answer.error_code)
        if error in _SESSION_ERRORS:
            self._session_refused(sent, error)
        elif error != ErrorCode.NONE:
            self._lost(LinkLost(f"a Fetch was refused: {error.name}"))
            return
        else:
            self._failures = self._session_errors = 0
            if sent.session == self._sessions:
                if sent.is_full:
                    self._session.accepted(answer.session_id)
                    self._may_have_session = self._session.is_open
                elif answer.session_id != sent.session_id:
                    self._reset_session()
            self._take_all(sent, answer)
        self._take_turn()

    def _session_refused(self, sent: _Sent, error: ErrorCode) -> None:
        if sent.session != self._sessions:
            return
        if self._sent and error == ErrorCode.INVALID_FETCH_SESSION_EPOCH:
            return  # it was overtaken; if there is more to it, the answer to the next one will tell
        self._reset_session()
        self._session_errors += 1
        if self._session_errors > 1:
            self._lost(LinkLost(f"a Fetch was refused again: {error.name}"))

    def _take_all(self, sent: _Sent, answer: FetchResponse) -> None:
        for topic in answer.responses:
            for data in topic.partitions:
                course = self._courses.get((topic.topic_id, data.partition_index))
                if course is None or course.asked_serial > sent.serial:
                    continue  # it was asked for in another epoch, or from another place
                if course.pause in (Pause.NONE, Pause.SYNC):
                    self._take(course, data)

    def _take(self, course: PartitionFetchState, data: PartitionData) -> None:
        if not course.is_current:
            # Whoever changed it is about to say so.
            self._hold(course, Pause.NEWS)
            return
        if (records := records_in(data)) is not None:
            self._out.came(course.key, len(records))
        try:
            taken = apply_fetch_response(course, data)
        except (LogError, RecordError) as error:
            self._failed(course, error)
            return
        match taken.effect:
            case Effect.MOVED:
                course.failures = 0
                course.max_bytes = self._out.settings.partition_max_bytes
                self._prepare(course)
            case Effect.TOO_SMALL if course.enlarge():
                self._prepare(course)
            case Effect.TOO_SMALL | Effect.WAIT:
                reason = taken.reason or f"no whole batch in {course.max_bytes} bytes"
                self._back_off(course, Pause.WHILE, reason, level=logging.INFO)
            case Effect.NEWS if taken.is_final:
                self._hold(course, Pause.NEWS)
            case Effect.NEWS:
                # It may be the leader who has not heard yet: if nobody asked again, nobody would ever follow.
                self._back_off(course, Pause.NEWS, taken.reason, level=logging.INFO)


Key = tuple[str, int]


class ReplicaFetcherManager:
    """`broker_epoch` is asked with every request; `failed` is told of a partition whose log the disk failed."""

    def __init__(
        self,
        me: int,
        broker_epoch: Callable[[], int],
        links: Links,
        commits: GroupCommit,
        loop: asyncio.AbstractEventLoop,
        settings: FetcherSettings | None = None,
        throttle: Throttle | None = None,
        failed: Callable[[FollowedPartition, LogFailed], None] = lambda partition, failure: None,
    ) -> None:
        self.figures = FetcherMetrics()
        self._me = me
        self._outside = FetcherEnvironment(
            me, broker_epoch, links, commits, loop, settings or FetcherSettings(), throttle, self.figures, failed
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._courses: dict[Key, tuple[ReplicaFetcher, PartitionFetchState]] = {}
        self._ending: dict[asyncio.Future[Message], None] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- what to follow

    def follow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Follow each from its leader, in its epoch. Whoever has no leader, or is led here, is not followed."""
        if self._is_closed:
            raise RuntimeError("the fetchers are closed: nothing can be followed any more")
        for partition in partitions:
            self._leave((partition.topic, partition.index))
            leader = partition.leader
            if leader < 0 or leader == self._me:
                continue
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = ReplicaFetcher(leader, self._outside)
            self._courses[partition.topic, partition.index] = fetcher, fetcher.follow(partition)
        self._sweep()

    def unfollow(self, keys: Iterable[Key]) -> None:
        """Follow these no more; who is not followed is passed over."""
        for key in keys:
            self._leave(key)
        self._sweep()

    async def close(self) -> None:
        """Follow nothing any more; when this returns nothing is asked or appended."""
        self._is_closed = True
        self._courses.clear()
        for fetcher in self._fetchers.values():
            self._stop(fetcher)
        self._fetchers.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _leave(self, key: Key) -> None:
        found = self._courses.pop(key, None)
        if found is not None:
            fetcher, course = found
            fetcher.unfollow(course)

    def _sweep(self) -> None:
        for leader, fetcher in tuple(self._fetchers.items()):
            if fetcher.is_idle:
                self._stop(self._fetchers.pop(leader))

    def _stop(self, fetcher: ReplicaFetcher) -> None:
        for task in fetcher.stop():
            self._ending[task] = None
            task.add_done_callback(lambda ended: self._ending.pop(ended, None))

    # --- figures

    @property
    def leaders(self) -> list[int]:
        """The brokers that something is followed from."""
        return list(self._fetchers)

    def lags(self) -> dict[Key, int]:
        """How many records each partition is behind its leader's watermark, where the leader has told it."""
        return {key: course.lag for key, (_, course) in self._courses.items() if course.lag is not None}

    def pauses(self) -> dict[Key, Pause]:
        """The partitions that are not asked for at the moment, and why."""
        found = {key: course.pause for key, (_, course) in self._courses.items()}
        return {key: pause for key, pause in found.items() if pause is not Pause.NONE}
