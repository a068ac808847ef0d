"""Replica fetchers: one per leader, each with one link and one fetch session, and their throttle.

A partition is fetched from its log end, and only once everything below is as durable as the topic demands, because the
leader counts the fetch as an acknowledgement. A response is appended and synced, and the next request names the new end
at once. The request waits up to `sync_patience_ms` (3 ms) for syncs that have just begun, because two requests cost
more than most syncs; a partition whose sync takes longer is left out. Partitions that become ready while a request
waits at the leader are sent in a second one, which overtakes it. There are never more than two.

    response: a, b  append both, two syncs begin      a's is done, b's not: wait
                    b's is done in time               request: a, b
                    b's is not done in time           request: a, without b;  b's is done: request: b

A leader that does not know yet that b is coming is not asked to wait longer than the youngest sync has taken so far.
No thread, no randomness, no clock but the loop's.

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
from penstock.config_def import MIB, ConfigType, Importance, setting
from penstock.log.errors import LogError, LogFailed
from penstock.log.group_commit import GroupCommit
from penstock.records import RecordError
from penstock.replication.fetch_state import (
    Cut,
    Effect,
    FollowedPartition,
    PartitionFetchState,
    Pause,
    SessionKey,
    Truncation,
    apply_fetch_response,
)
from penstock.runtime.backoff import backoff_ms
from penstock.wire.fetch_session import SESSION_ERRORS, FetchSession, SessionRequest, fetch_request, records_in
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.fetch import FetchRequest, FetchResponse, PartitionData, ReplicaState
from penstock.wire.types import Message

__all__ = ["FetcherMetrics", "FetcherSettings", "ReplicaFetcherManager", "FollowedPartition", "Pause"]


logger = logging.getLogger(__name__)

FETCH_VERSION: Final = 17
UNLIMITED: Final = float("inf")
Key = tuple[str, int]
"""Topic and partition."""

_INT = ConfigType.INT
_IN_FLIGHT_MAX: Final = 2
_MIN_DELAY_MS: Final = 0.05  # a loop's time may not advance by less
_SECOND_MS: Final = 1000.0


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's replica.fetch.* settings, and `sync_patience_ms`."""

    max_wait_ms: int = setting(
        _INT, 500, "How long a leader may wait for new records before it answers a follower, in milliseconds.",
        broker="replica.fetch.wait.max.ms", importance=Importance.HIGH, min=0,
    )  # fmt: skip
    min_bytes: int = setting(
        _INT, 1, "Bytes that a leader waits for before it answers a follower.",
        broker="replica.fetch.min.bytes", importance=Importance.HIGH, min=0,
    )  # fmt: skip
    max_bytes: int = setting(
        _INT, 10 * MIB, "Maximum bytes that a follower requests at once. A larger first batch is returned whole.",
        broker="replica.fetch.response.max.bytes", min=0,
    )  # fmt: skip
    partition_max_bytes: int = setting(
        _INT, MIB, "Maximum bytes that a follower requests of one partition. A larger first batch is returned whole.",
        broker="replica.fetch.max.bytes", min=0,
    )  # fmt: skip
    backoff_ms: float = 20.0
    backoff_max_ms: float = setting(
        _INT, 1000, "Maximum time between the attempts of a follower after failed fetches, in milliseconds.",
        broker="replica.fetch.backoff.ms", min=0,
    )  # fmt: skip
    timeout_ms: float = 5000.0
    """How long a response may take beyond `max_wait_ms`."""
    sync_patience_ms: float = 3.0


class FetcherMetrics:
    """Counters of all fetchers of a broker."""

    __slots__ = ("bytes_in", "damaged", "links_lost", "overtaking", "requests", "throttled_bytes_in")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.throttled_bytes_in = 0
        self.requests = 0
        self.overtaking = 0  # requests sent while another waited at the leader
        self.damaged = 0  # responses whose bytes were not valid records
        self.links_lost = 0


@dataclass(frozen=True, slots=True)
class FetcherEnvironment:
    """What all fetchers of a broker share. `failed` is called with a partition whose disk failed."""

    me: int
    broker_epoch: Callable[[], int]
    links: Links
    commits: GroupCommit
    loop: asyncio.AbstractEventLoop
    settings: FetcherSettings
    throttle: Throttle | None
    metrics: FetcherMetrics
    failed: Callable[[FollowedPartition, LogFailed], None]

    def now_ms(self) -> float:
        return self.loop.time() * 1000.0

    def received(self, key: Key, size: int) -> None:
        """Count bytes of a partition."""
        self.metrics.bytes_in += size
        if self.throttle is not None and self.throttle.applies_to(*key):
            self.metrics.throttled_bytes_in += size
            self.throttle.add(size, self.now_ms())


class _Sent(NamedTuple):
    """A request in flight."""

    serial: int
    request: SessionRequest[SessionKey, PartitionFetchState]
    link: Link


class ReplicaFetcher:
    """Follows one leader until it is stopped."""

    def __init__(self, leader: int, environment: FetcherEnvironment) -> None:
        self.leader = leader
        self._environment = environment
        self._states: dict[SessionKey, PartitionFetchState] = {}
        self._session: FetchSession[SessionKey, PartitionFetchState] = FetchSession()
        self._session_errors = 0  # in a row
        self._has_sessions = True  # the leader keeps sessions, as far as is known
        self._syncing: dict[PartitionFetchState, float] = {}  # when each sync began, the youngest last
        self._timers: dict[PartitionFetchState, asyncio.TimerHandle] = {}
        self._link: Link | None = None
        self._sent: list[_Sent] = []
        self._serial = 0
        self._failures = 0  # of the link, in a row
        self._tasks: dict[asyncio.Future[Message], None] = {}  # requests that first open the link
        self._retry: asyncio.TimerHandle | None = None  # until then nothing is requested
        self._patience: asyncio.TimerHandle | None = None
        self._is_turn_due = False
        self._is_stopped = False

    @property
    def states(self) -> Iterable[PartitionFetchState]:
        return self._states.values()

    @property
    def is_idle(self) -> bool:
        """Whether it follows nothing."""
        return not self._states

    # --- what to follow

    def follow(self, partition: FollowedPartition) -> PartitionFetchState:
        """Follow a partition in its current leader epoch."""
        state = PartitionFetchState(partition, self._environment.settings.partition_max_bytes)
        self._states[state.session_key] = state
        if self._retry is not None:
            # Metadata has changed: the leader may be back.
            self._retry.cancel()
            self._retry = None
        self._begin(state)
        self._turn_soon()
        return state

    def _begin(self, state: PartitionFetchState) -> None:
        log = state.partition.log
        try:
            if log.failure is None and log.epochs.latest_start_offset >= log.log_end_offset:
                # It led and wrote nothing: records of older epochs could not be appended after that epoch.
                state.partition.truncate_to(log.log_end_offset)
        except LogError as error:
            self._failed(state, error)
        else:
            self._prepare(state)

    def unfollow(self, state: PartitionFetchState) -> None:
        self._hold(state, Pause.NONE)
        state.is_over = True
        if self._states.get(state.session_key) is state:
            del self._states[state.session_key]

    def reconnect(self) -> None:
        """The leader has registered again: its previous process may have lost power, and will not answer."""
        if self._sent:
            self._lost(LinkLost("the leader has registered again"))

    def stop(self) -> list[asyncio.Future[Message]]:
        """Stop following; returns the tasks that are about to end."""
        self._is_stopped = True
        for state in tuple(self._states.values()):
            self.unfollow(state)
        for timer in (self._retry, self._patience):
            if timer is not None:
                timer.cancel()
        self._drop_link()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    # --- from a response to the next request

    def _prepare(self, state: PartitionFetchState) -> None:
        """Fetch it as soon as what it has is durable."""
        self._hold(state, Pause.SYNC)
        log = state.partition.log
        if log.failure is not None:
            self._fail(state, log.failure)
        elif state.must_sync:
            token = state.token
            self._syncing[state] = self._environment.now_ms()
            self._environment.commits.when_durable(
                log, log.log_end_offset, lambda error: self._synced(state, token, error)
            )  # fmt: skip
        else:
            self._ready(state)

    def _synced(self, state: PartitionFetchState, token: int, error: LogError | None) -> None:
        if token != state.token:
            return
        self._syncing.pop(state, None)
        if error is None:
            self._ready(state)
        else:
            self._failed(state, error)
        self._turn_soon()

    def _ready(self, state: PartitionFetchState) -> None:
        throttle = self._environment.throttle
        if throttle is not None and state.is_behind and throttle.applies_to(*state.key):
            delay_ms = throttle.delay_ms(self._environment.now_ms())
            if delay_ms > 0:
                self._hold(state, Pause.THROTTLED, delay_ms)
                return
        state.pause = Pause.NONE
        self._session.want(state.session_key, state)

    def _hold(self, state: PartitionFetchState, why: Pause, delay_ms: float | None = None) -> None:
        """Do not fetch it for `delay_ms`, or until it is prepared again."""
        state.token += 1
        if (timer := self._timers.pop(state, None)) is not None:
            timer.cancel()
        state.pause = why
        self._syncing.pop(state, None)
        self._session.forget(state.session_key)
        if delay_ms is not None:
            self._timers[state] = self._environment.loop.call_later(max(1.0, delay_ms) / 1000.0, self._again, state)

    def _again(self, state: PartitionFetchState) -> None:
        del self._timers[state]
        self._prepare(state)
        self._turn_soon()

    def _back_off(self, state: PartitionFetchState, why: Pause, reason: object, *, level: int) -> None:
        state.failures += 1
        delay_ms = self._backoff_ms(state.failures)
        # Once per outage: a lasting error would fill the disk with log lines.
        logger.log(
            level if state.failures == 1 else logging.DEBUG,
            "fetch failed, retrying: partition=%s leader=%d epoch=%d offset=%d delay_ms=%.0f reason=%s",
            state, self.leader, state.epoch, state.partition.log.log_end_offset, delay_ms, reason,
        )  # fmt: skip
        self._hold(state, why, delay_ms)

    def _backoff_ms(self, failures: int) -> float:
        settings = self._environment.settings
        return backoff_ms(failures, settings.backoff_ms, settings.backoff_max_ms)

    def _failed(self, state: PartitionFetchState, error: LogError | RecordError) -> None:
        if isinstance(error, LogFailed):
            self._fail(state, error)
            return
        if isinstance(error, RecordError):
            self._environment.metrics.damaged += 1
        self._back_off(state, Pause.BACKOFF, error, level=logging.ERROR)

    def _fail(self, state: PartitionFetchState, failure: LogFailed) -> None:
        self._hold(state, Pause.FAILED)
        logger.error("stopped following, its disk failed: partition=%s error=%s", state, failure)
        self._environment.failed(state.partition, failure)

    # --- requests

    def _turn_soon(self) -> None:
        """Decide what to request at the end of this turn of the loop: more may become ready in it."""
        if not self._is_turn_due:
            self._is_turn_due = True
            self._environment.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_turn_due = False
        if self._is_stopped or self._retry is not None or self._session.is_empty:
            return
        if not self._sent:
            if not self._is_patient():
                self._send()
        elif len(self._sent) < _IN_FLIGHT_MAX and self._session.is_open and self._session.has_changes:
            self._environment.metrics.overtaking += 1
            self._send()

    def _is_patient(self) -> bool:
        """Whether to wait for a sync that has just begun."""
        if not self._syncing:
            return False
        began_ms = next(reversed(self._syncing.values()))
        left_ms = began_ms + self._environment.settings.sync_patience_ms - self._environment.now_ms()
        if left_ms < _MIN_DELAY_MS:
            return False
        if self._patience is None:
            self._patience = self._environment.loop.call_later(left_ms / 1000.0, self._patience_over)
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
                self._link = self._environment.links.to(self.leader)
        except LinkLost as error:
            self._lost(error)
            return
        self._serial += 1
        request = self._session.next_request()
        sent = _Sent(self._serial, request, self._link)
        # A second request cannot be sent before the session is open, so the first one does not wait.
        max_wait_ms = 0 if request.is_full and self._has_sessions else self._max_wait_ms()
        message = self._message(request, max_wait_ms)
        self._sent.append(sent)
        self._environment.metrics.requests += 1
        timeout_ms = max_wait_ms + self._environment.settings.timeout_ms
        answer = self._link.send(ApiKey.FETCH, FETCH_VERSION, message, timeout_ms)
        if answer is None:
            asking = self._link.ask(ApiKey.FETCH, FETCH_VERSION, message, timeout_ms)
            answer = task = self._environment.loop.create_task(asking)
            self._tasks[task] = None
        answer.add_done_callback(partial(self._came, sent))

    def _message(self, request: SessionRequest[SessionKey, PartitionFetchState], max_wait_ms: int) -> FetchRequest:
        """Every partition that is named is fetched from where its log ends now."""
        fetches = {key: state.request(self._serial) for key, state in request.named.items()}
        settings = self._environment.settings
        message = fetch_request(
            SessionRequest(request.session_id, request.epoch, fetches, request.forgotten),
            version=FETCH_VERSION,
            max_wait_ms=max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=max([settings.max_bytes, *(fetch.max_bytes for fetch in fetches.values())]),
        )
        message.replica_state = ReplicaState(
            replica_id=self._environment.me, replica_epoch=self._environment.broker_epoch()
        )
        return message

    def _max_wait_ms(self) -> int:
        max_wait_ms = self._environment.settings.max_wait_ms
        if self._syncing:
            youngest_ms = self._environment.now_ms() - next(reversed(self._syncing.values()))
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
        except Exception as failure:  # noqa: BLE001 - the other partitions must be fetched again, whatever it is
            message = f"the response of leader {self.leader} could not be applied"
            self._environment.loop.call_exception_handler({"message": message, "exception": failure})
            if not self._is_stopped:
                self._lost(failure)

    # --- responses

    def _lost(self, error: BaseException) -> None:
        """It is unknown what the leader knows: start over after a backoff."""
        self._environment.metrics.links_lost += 1
        self._failures += 1
        delay_ms = self._backoff_ms(self._failures)
        logger.log(
            logging.WARNING if self._failures == 1 else logging.DEBUG,
            "leader unreachable, retrying: leader=%d partitions=%d delay_ms=%.0f error=%s",
            self.leader, len(self._states), delay_ms, error,
        )  # fmt: skip
        self._drop_link()
        if self._retry is not None:
            self._retry.cancel()
        self._retry = self._environment.loop.call_later(delay_ms / 1000.0, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._take_turn()

    def _drop_link(self) -> None:
        link, self._link = self._link, None
        self._sent.clear()
        self._session.reset()
        if link is not None:
            link.close()

    def _answered(self, sent: _Sent, answer: Message) -> None:
        if not isinstance(answer, FetchResponse):
            self._lost(LinkLost(f"Fetch was answered with {type(answer).__name__}"))
            return
        error = error_code(answer.error_code)
        if error in SESSION_ERRORS:
            self._session_rejected(sent, error)
        elif error != ErrorCode.NONE:
            self._lost(LinkLost(f"Fetch failed: {error.name}"))
            return
        else:
            self._failures = self._session_errors = 0
            self._session.accepted(sent.request, answer.session_id)
            if sent.request.is_full and self._session.is_current(sent.request):
                self._has_sessions = self._session.is_open
            self._take_all(sent, answer)
        self._take_turn()

    def _session_rejected(self, sent: _Sent, error: ErrorCode) -> None:
        if not self._session.is_current(sent.request):
            return
        if self._sent and error == ErrorCode.INVALID_FETCH_SESSION_EPOCH:
            return  # a later request superseded it; if there is more to it, the response to the next request says so
        self._session.reset()
        self._session_errors += 1
        if self._session_errors > 1:
            self._lost(LinkLost(f"Fetch failed again: {error.name}"))

    def _take_all(self, sent: _Sent, answer: FetchResponse) -> None:
        for topic in answer.responses:
            for data in topic.partitions:
                state = self._states.get((topic.topic_id, data.partition_index))
                if state is None or state.requested_serial > sent.serial:
                    continue  # requested in another epoch, or from another offset since
                if state.pause in (Pause.NONE, Pause.SYNC):
                    self._take(state, data)

    def _take(self, state: PartitionFetchState, data: PartitionData) -> None:
        if not state.is_current:
            # The change is about to be announced.
            self._hold(state, Pause.METADATA)
            return
        if (records := records_in(data)) is not None:
            self._environment.received(state.key, len(records))
        try:
            taken = apply_fetch_response(state, data)
        except (LogError, RecordError) as error:
            self._failed(state, error)
            return
        if taken.truncation is not None:
            self._report(state, taken.truncation)
        match taken.effect:
            case Effect.MOVED:
                state.failures = 0
                state.max_bytes = self._environment.settings.partition_max_bytes
                self._prepare(state)
            case Effect.TOO_SMALL if state.enlarge():
                self._prepare(state)
            case Effect.TOO_SMALL | Effect.WAIT:
                reason = taken.reason or f"no whole batch in {state.max_bytes} bytes"
                self._back_off(state, Pause.BACKOFF, reason, level=logging.INFO)
            case Effect.AWAIT_METADATA if taken.is_final:
                self._hold(state, Pause.METADATA)
            case Effect.AWAIT_METADATA:
                # The leader may be behind: then no metadata change comes here, and only a retry helps.
                self._back_off(state, Pause.METADATA, taken.reason, level=logging.INFO)

    def _report(self, state: PartitionFetchState, cut: Truncation) -> None:
        logger.log(
            logging.INFO if cut.why is Cut.DIVERGED else logging.WARNING,
            "%s: partition=%s offset=%d end=%d high_watermark=%d leader=%d epoch=%d%s",
            cut.why.value, state, cut.offset, cut.end, cut.high_watermark, self.leader, state.epoch,
            f" damage={cut.detail}" if cut.detail else "",
        )  # fmt: skip


class ReplicaFetcherManager:
    """The fetchers of a broker. `broker_epoch` is read for every request; `failed` is called with a partition whose
    disk failed."""

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
        self.metrics = FetcherMetrics()
        self._me = me
        self._environment = FetcherEnvironment(
            me, broker_epoch, links, commits, loop, settings or FetcherSettings(), throttle, self.metrics, failed
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._states: dict[Key, tuple[ReplicaFetcher, PartitionFetchState]] = {}
        self._ending: dict[asyncio.Future[Message], None] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- what to follow

    def follow(self, partitions: Iterable[FollowedPartition]) -> None:
        """Follow each from its leader, in its epoch; not those without a leader or led by this broker."""
        if self._is_closed:
            raise RuntimeError("the replica fetchers are closed")
        for partition in partitions:
            self._leave((partition.topic, partition.index))
            leader = partition.leader
            if leader < 0 or leader == self._me:
                continue
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = ReplicaFetcher(leader, self._environment)
            self._states[partition.topic, partition.index] = fetcher, fetcher.follow(partition)
        self._sweep()

    def unfollow(self, keys: Iterable[Key]) -> None:
        """Stop following these; partitions that are not followed are ignored."""
        for key in keys:
            self._leave(key)
        self._sweep()

    def reconnect(self, leaders: Iterable[int]) -> None:
        """Ask these leaders over new connections, as far as an answer is awaited."""
        for leader in leaders:
            fetcher = self._fetchers.get(leader)
            if fetcher is not None:
                fetcher.reconnect()

    async def close(self) -> None:
        """Stop all fetchers; when this returns, nothing is requested or appended any more."""
        self._is_closed = True
        self._states.clear()
        for fetcher in self._fetchers.values():
            self._stop(fetcher)
        self._fetchers.clear()
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _leave(self, key: Key) -> None:
        found = self._states.pop(key, None)
        if found is not None:
            fetcher, state = found
            fetcher.unfollow(state)

    def _sweep(self) -> None:
        for leader, fetcher in tuple(self._fetchers.items()):
            if fetcher.is_idle:
                self._stop(self._fetchers.pop(leader))

    def _stop(self, fetcher: ReplicaFetcher) -> None:
        for task in fetcher.stop():
            self._ending[task] = None
            task.add_done_callback(lambda ended: self._ending.pop(ended, None))

    # --- metrics

    @property
    def leaders(self) -> list[int]:
        """The brokers that partitions are followed from."""
        return list(self._fetchers)

    def lags(self) -> dict[Key, int]:
        """Records between each partition's end and its leader's high watermark, where that is known."""
        return {key: state.lag for key, (_, state) in self._states.items() if state.lag is not None}

    def pauses(self) -> dict[Key, Pause]:
        """The partitions that are not fetched at the moment, and why."""
        found = {key: state.pause for key, (_, state) in self._states.items()}
        return {key: pause for key, pause in found.items() if pause is not Pause.NONE}


# --------------------------------------------------------------------------------------------------- throttle


class Throttle:
    """A broker has one for all it follows and one for all it leads. `now_ms` is monotonic."""

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
        """Change the rate."""
        _require_rate(rate_bytes_s)
        self._pay(now_ms)
        self._rate_bytes_s = rate_bytes_s

    def applies_to(self, topic: str, index: int) -> bool:
        """Whether a partition is throttled (`follower.` or `leader.replication.throttled.replicas`)."""
        return self._rate_bytes_s != UNLIMITED and self._is_throttled(topic, index)

    def add(self, size: int, now_ms: float) -> None:
        """Count bytes of throttled partitions that were received or sent."""
        self._pay(now_ms)
        if self._rate_bytes_s != UNLIMITED:
            self._debt_bytes += size

    def delay_ms(self, now_ms: float) -> float:
        """How long a throttled partition has to wait; 0 if it may be fetched."""
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
        raise ValueError(f"a throttled rate of {rate_bytes_s} bytes/s lets nothing through; set a positive rate")
