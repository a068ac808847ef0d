"""The part of a consumer that runs on the event loop, the same for both faces.

It holds the subscription, the assignment and every partition's position, and the tasks that fetch, look up offsets
and take part in the group. Chunks go into the `ApplicationQueue`; no record passes through here. `pump` starts what
can be started, after every change, and never waits.

A new partition starts at its committed offset, else by `auto_offset_reset`; after a leader change its position is
validated. A pattern must match the whole topic name, and never selects internal topics.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from penstock.client.addresses import Addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import ClusterView, OffsetAndTimestamp, TopicPartition
from penstock.client.consumer.coordinator import Commits, ConsumerCoordinator
from penstock.client.consumer.fetcher import ApplicationQueue, Fetcher, RebalanceCallback
from penstock.client.consumer.membership import Assign, Membership, Revoke
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.errors import ClosedError, ConfigError, NoOffset, PenstockError, TimedOut
from penstock.client.fetch_state import (
    EARLIEST,
    LATEST,
    NO_OFFSET,
    Budget,
    FetchState,
    PartitionState,
    Truncation,
    is_offset,
    start_of,
)
from penstock.client.leader_requests import OffsetLookup
from penstock.client.metadata_updater import ask_metadata
from penstock.client.offset_stores.base import OffsetAndMetadata, OffsetStore
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.client.settings import Metrics, StatisticsReporter
from penstock.runtime.clock import Clock, SystemClock
from penstock.wire.fetch_session import NO_EPOCH

Pattern = str | re.Pattern[str]
T = TypeVar("T")

_log = logging.getLogger(__name__)
_LOOK_FIRST_MS: Final = 100.0
_LOOK_MOST_MS: Final = 5_000.0
_LEAVE_TIMEOUT_S: Final = 3.0
_NEVER: Final = float("inf")


# --------------------------------------------------------------------------------------------------- subscriptions


class SubscriptionRequest(NamedTuple):
    """A subscription: by topics, by pattern, or by partitions."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    exclude: re.Pattern[str] | None = None
    partitions: frozenset[TopicPartition] | None = None

    @property
    def is_empty(self) -> bool:
        return not self.topics and self.pattern is None and not self.partitions

    @property
    def is_manual(self) -> bool:
        return self.partitions is not None

    @property
    def needs_all_topics(self) -> bool:
        return self.pattern is not None

    def match(self, existing: Mapping[str, bool]) -> frozenset[str]:
        """The topics that it selects, out of `existing` (name: is it internal). Topics by name need not exist yet."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name, is_internal in existing.items()
            if not is_internal and self.pattern.fullmatch(name) and not self._is_excluded(name)
        )

    def _is_excluded(self, name: str) -> bool:
        return self.exclude is not None and self.exclude.fullmatch(name) is not None


def subscription_request(
    topics: Iterable[str] = (),
    pattern: Pattern | None = None,
    exclude: Pattern | None = None,
) -> SubscriptionRequest:
    """A subscription by names or by pattern; raises ValueError. `exclude` alone selects all topics except those."""
    if isinstance(topics, str):
        topics = (topics,)
    names = frozenset(topics)
    for name in names:
        if not name:
            raise ValueError("a topic name is empty")
    if names and (pattern is not None or exclude is not None):
        raise ValueError("subscribe to topics by name or by pattern, not both")
    if exclude is not None and pattern is None:
        pattern = ".*"
    return SubscriptionRequest(names, _compiled(pattern, "pattern"), _compiled(exclude, "exclude"))


def assignment_request(partitions: Iterable[tuple[str, int]]) -> SubscriptionRequest:
    """Partitions chosen by the caller, outside of a group."""
    chosen = frozenset(TopicPartition(topic, partition) for topic, partition in partitions)
    for partition in chosen:
        if partition.partition < 0:
            raise ValueError(f"topic {partition.topic} has no partition {partition.partition}")
    return SubscriptionRequest(partitions=chosen)


def _compiled(pattern: Pattern | None, what: str) -> re.Pattern[str] | None:
    if pattern is None or isinstance(pattern, re.Pattern):
        return pattern
    try:
        return re.compile(pattern)
    except re.error as reason:
        raise ValueError(f"{what} {pattern!r} is not a regular expression: {reason}") from None


# --------------------------------------------------------------------------------------------------- the core


class ConsumerCore:
    """Subscription, assignment and tasks of one consumer."""

    def __init__(
        self,
        bootstrap_servers: Addresses,
        settings: ConsumerSettings,
        *,
        post: Callable[[Callable[[], object]], object],
        clock: Clock | None = None,
    ) -> None:
        """`post` runs a function on the loop, from any thread, without waiting for it."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._post = post
        self.cluster = ClusterClient(bootstrap_servers, settings=settings, clock=self.clock)
        self.queue = ApplicationQueue(Budget(settings.buffer_memory), on_room=lambda: post(self.pump))
        self.assignment: dict[TopicPartition, PartitionState] = {}
        self.subscription = SubscriptionRequest()
        self.closed = False
        self.reached: Callable[[], object] = lambda: None
        """Returns the record handed out last, or another value that changes while the application reads."""
        self._lookup = OffsetLookup(
            self.cluster,
            isolation_level=int(settings.isolation_level == "read_committed"),
            timeout_ms=settings.request_timeout_ms,
        )
        self.store: OffsetStore = settings.offset_store or BrokerOffsetStore(
            self.cluster,
            timeout_ms=settings.default_api_timeout_ms,
            require_stable=settings.isolation_level == "read_committed",
            clock=self.clock,
        )
        self.commits = Commits(self.store, settings, self.clock, self.attended)
        self._fetcher = Fetcher(self.cluster, self.queue, settings, self.clock, self.pump)
        self._resolver = PositionResolver(
            self.cluster, self._lookup, self.store, self.queue, settings, self.clock, self._fetcher.truncated
        )
        self._worker: ConsumerCoordinator | None = None
        self._working: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resolving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = _NEVER
        """When to look again for missing topics."""
        self._look_after_ms = _LOOK_FIRST_MS
        self._changed = asyncio.Event()
        self._rebalances = 0
        self._reports = StatisticsReporter(self.metrics, settings.on_statistics, settings.statistics_interval_ms)
        self._callback: RebalanceCallback | None = None
        self.has_been_assigned = False

    # ------------------------------------------------------------------------------------------ start and end

    async def start(self) -> None:
        await self.cluster.start()
        self.cluster.on_change(self._cluster_changed)
        self.cluster.on_overdue(self._fetcher.abandon)
        self._reports.start()
        if self.settings.commits_by_itself:
            self._spawn(self._remind_of_commits())

    async def open(self, subscription: SubscriptionRequest) -> None:
        """Start and subscribe; closes everything if that fails."""
        try:
            await self.start()
            if not subscription.is_empty:
                await self.want(subscription)
        except BaseException:
            await self.close()
            raise

    async def close(self, leave_timeout_s: float = _LEAVE_TIMEOUT_S) -> None:
        """Leave the group, if the coordinator answers within `leave_timeout_s`, and close everything. Commit before
        calling it."""
        if self.closed:
            return
        self.closed = True
        self._reports.stop()
        self.queue.close()
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(leave_timeout_s):
                await self.commits.drain()
                await self._leave_group(say_so=True)
        except TimeoutError:
            _log.info("the coordinator did not answer LeaveGroup in time; the session will expire")
        finally:
            tasks = [task for task in (self._resolving, *self._tasks) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._fetcher.close()
            await self.commits.close()
            if self.settings.offset_store is None:
                await self.store.close()
            await self.cluster.close()
            self._changed.set()

    async def _leave_group(self, *, say_so: bool) -> None:
        worker, working = self._worker, self._working
        self._worker = self._working = None
        if worker is None or working is None:
            return
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        if say_so and self.settings.group_instance_id is None:
            await worker.leave("the consumer was closed")
        worker.close()
        self.commits.membership = None

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remind_of_commits(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            self.queue.ask_for_commit()

    # ------------------------------------------------------------------------------------------ what to read

    async def want(self, subscription: SubscriptionRequest) -> None:
        """Read these from now on."""
        self._check_open()
        if not subscription.is_manual and not subscription.is_empty and self.settings.group_id is None:
            # Without a group, all partitions of the topics are assigned.
            _log.debug("no group, reading all partitions: subscription=%s", subscription)
        was_manual = self.subscription.is_manual
        self.subscription = subscription
        self._look_at_ms, self._look_after_ms = _NEVER, _LOOK_FIRST_MS
        if subscription.needs_all_topics:
            self.cluster.follow_all()
        else:
            topics = subscription.topics or {partition.topic for partition in subscription.partitions or ()}
            self.cluster.follow(topics)
            if topics:
                with contextlib.suppress(PenstockError):
                    await self.cluster.refresh(topics, create=self.settings.allow_auto_create_topics)
        if subscription.needs_all_topics:
            await self.cluster.refresh()
        if subscription.is_manual or self.settings.group_id is None or subscription.is_empty:
            await self._leave_group(say_so=True)
            self._assign_all()
        else:
            if was_manual:
                self._set_assignment(frozenset())
            self._join_group(self.settings.group_id)
        self.pump()

    def _join_group(self, group_id: str) -> None:
        if self._worker is not None:
            self._worker.wake()
            return
        settings = self.settings
        membership = self.commits.membership = Membership(
            is_cooperative=settings.is_cooperative,
            instance_id=settings.group_instance_id,
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            max_poll_interval_ms=settings.max_poll_interval_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            now_ms=self.clock.monotonic_ms(),
        )
        self._worker = ConsumerCoordinator(
            group_id,
            self.cluster,
            membership,
            settings,
            self.clock,
            topics=self._topics,
            visits=lambda: (self.queue.polled, id(self.reached())),
            run_callback=self._run_callback,
            on_failure=self.queue.fail,
            on_loss=self._lost_membership,
        )
        self._working = asyncio.create_task(self._worker.run())

    def _topics(self) -> frozenset[str]:
        view = self.cluster.view
        existing = {name: topic.is_internal for name, topic in view.topics.items() if topic.partitions}
        return self.subscription.match(existing)

    def topics_meant(self) -> frozenset[str]:
        return frozenset() if self.subscription.is_manual else self._topics()

    def _assign_all(self) -> None:
        """Without a group: the partitions of the subscription, or all partitions of its topics."""
        if self.subscription.partitions is not None:
            self._set_assignment(self.subscription.partitions)
            return
        wanted: set[TopicPartition] = set()
        for name in self._topics():
            topic = self.cluster.view.topics.get(name)
            if topic is not None:
                wanted.update(TopicPartition(name, view.index) for view in topic.partitions)
        self._set_assignment(frozenset(wanted))

    def _set_assignment(self, wanted: frozenset[TopicPartition]) -> list[PartitionState]:
        """Assign exactly these; returns the states of the new ones."""
        self.has_been_assigned = self.has_been_assigned or bool(wanted)
        gone = self.assignment.keys() - wanted
        for partition in gone:
            self.assignment.pop(partition).version += 1
            self.commits.forget(partition)
        fresh = [
            PartitionState(partition, self.settings.max_partition_fetch_bytes)
            for partition in sorted(wanted - self.assignment.keys())
        ]
        self.assignment = {**self.assignment, **{state.partition: state for state in fresh}}
        self._fetcher.set_assignment(self.assignment)
        if gone:
            self.queue.drop_stale()
        if gone or fresh:
            self.queue.set_attention()
        return fresh

    async def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self.assignment)

    async def _run_callback(self, step: Revoke | Assign) -> None:
        """Have the application run its rebalance callbacks; returns when it has."""
        if isinstance(step, Assign):
            states = self._set_assignment(step.everything)
            self._rebalances += 1
            self.pump()
            if step.added or not self.settings.is_cooperative:
                await self._posted("assign", step.added, states)
            return
        states = [self.assignment[partition] for partition in step.partitions if partition in self.assignment]
        await self._posted("lose" if step.lost else "revoke", step.partitions, states)
        self._set_assignment(frozenset(self.assignment.keys() - step.partitions))

    async def _posted(self, kind: Any, partitions: frozenset[TopicPartition], states: list[PartitionState]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self._callback = RebalanceCallback(kind, partitions, states, lambda: self._post(finish))
        self.queue.post(self._callback)
        try:
            await done
        finally:
            self._callback = None

    async def own(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these from now on, as decided elsewhere. New ones begin at their committed offsets."""
        self._check_open()
        wanted = frozenset(partitions)
        added = wanted - self.assignment.keys()
        self.subscription = SubscriptionRequest(partitions=wanted)
        self.cluster.follow({partition.topic for partition in wanted})
        states = self._set_assignment(wanted)
        self._rebalances += 1
        if added:
            self.queue.post(RebalanceCallback("assign", added, states, lambda: None))
        self.pump()

    async def disown(self, partitions: Iterable[TopicPartition], *, patience_s: float, lost: bool = False) -> None:
        """Stop reading these, as decided elsewhere. The application runs its callbacks and commits, or loses them when
        it has not come back after `patience_s`; what it had processed before is committed then.
        """
        states = [self.assignment[partition] for partition in partitions if partition in self.assignment]
        if not states or self.closed:
            return
        gone = frozenset(state.partition for state in states)
        done = asyncio.Event()
        callback = RebalanceCallback("lose" if lost else "revoke", gone, states, lambda: self._post(done.set))
        self.queue.post(callback)
        try:
            async with asyncio.timeout(patience_s):
                await done.wait()
        except TimeoutError:
            callback.kind = "lose"
            if not lost and self.settings.commits_by_itself:
                with contextlib.suppress(PenstockError):
                    await self.commits.commit(self.commits.consumed(states), max(1.0, patience_s * 1000))
        kept = frozenset(self.assignment.keys() - gone)
        self.subscription = SubscriptionRequest(partitions=kept)
        self._set_assignment(kept)
        self.pump()

    def _lost_membership(self) -> None:
        """The membership is lost: a pending revocation becomes a loss."""
        if self._callback is not None and self._callback.kind == "revoke":
            self._callback.kind = "lose"
        self.queue.set_attention()

    def end_soon(self) -> None:
        """Close a consumer that was garbage-collected without being closed."""
        self._forgotten = asyncio.create_task(self.close())

    async def partitions_of(self, topic: str) -> frozenset[int]:
        self._check_open()
        view = self.cluster.view.topic(topic)
        if view is None:
            view = (await self.cluster.refresh([topic])).topic(topic)
        return frozenset() if view is None else frozenset(one.index for one in view.partitions)

    async def all_topics(self) -> frozenset[str]:
        """The topics of the cluster except internal ones."""
        self._check_open()
        connection = await self.cluster.to_any()
        response = await ask_metadata(connection, None, timeout_ms=self.settings.request_timeout_ms)
        return frozenset(topic.name for topic in response.topics if topic.name is not None and not topic.is_internal)

    def metrics(self) -> Metrics:
        """Counters and current values; may be called from any thread."""
        fetcher, commits = self._fetcher, self.commits
        states = list(self.assignment.values())
        is_committed = self.settings.isolation_level == "read_committed"
        ends = [(state.last_stable_offset if is_committed else state.high_watermark, state) for state in states]
        lags = [max(end - state.position, 0) for end, state in ends if end >= 0]
        return {
            "records_fetched": fetcher.records_fetched,
            "bytes_fetched": fetcher.bytes_fetched,
            "fetches": fetcher.fetches,
            "fetch_failures": fetcher.fetch_failures,
            "fetch_latency_ms_mean": fetcher.latency_total_ms / max(1, fetcher.fetches),
            "fetch_latency_ms_max": fetcher.latency_max_ms,
            "commits": commits.count,
            "commit_failures": commits.failures,
            "rebalances": self._rebalances,
            "assigned_partitions": len(states),
            "lag": sum(lags),
            "lag_max": max(lags, default=0),
            "buffer_bytes": self.queue.budget.buffered,
            "buffer_bytes_limit": self.settings.buffer_memory,
            "connections": self.cluster.connection_count,
        }

    def attended(self) -> None:
        """The application has run its callbacks."""
        if self._worker is not None:
            self._worker.wake()

    # ------------------------------------------------------------------------------------------ pumping

    def pump(self) -> None:
        if self.closed:
            return
        now_ms = self.clock.monotonic_ms()
        # The fetcher first: it notices new leaders, after which positions have to be validated.
        self._fetcher.pump(now_ms)
        waiting = self._resolver.waiting(self.assignment, now_ms)
        if waiting and (self._resolving is None or self._resolving.done()):
            self._resolving = asyncio.create_task(self._resolve(waiting))
        self._set_timer(now_ms)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _resolve(self, states: list[PartitionState]) -> None:
        try:
            await self._resolver.round(states)
        except PenstockError as error:
            self.queue.fail(error)
        finally:
            self._resolving = None
            self.pump()

    def _set_timer(self, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._fetcher.next_retry_ms(now_ms)
        if self._has_missing_topics():
            # Activity in other partitions must not postpone it.
            self._look_at_ms = min(self._look_at_ms, now_ms + self._look_after_ms)
        else:
            self._look_at_ms, self._look_after_ms = _NEVER, _LOOK_FIRST_MS
        is_look = self._look_at_ms <= due_ms
        due_ms = min(due_ms, self._look_at_ms)
        if due_ms < _NEVER:
            delay_s = max(0.0, due_ms - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_rang, is_look)

    def _timer_rang(self, is_look: bool) -> None:
        self._timer = None
        if is_look:
            self._look_at_ms, self._look_after_ms = _NEVER, min(2 * self._look_after_ms, _LOOK_MOST_MS)
            self.cluster.refresh_soon()
        self.pump()

    def _has_missing_topics(self) -> bool:
        """Whether a subscribed topic does not exist: of this consumer, or of a member of the group that it leads."""
        if self.subscription.needs_all_topics:
            return not self._topics()
        if any(self.cluster.view.topic(name) is None for name in self.subscription.topics):
            return True
        return self._worker is not None and self._worker.lacks_topics

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        if self.settings.group_id is None and not self.subscription.is_manual and not self.subscription.is_empty:
            self._assign_all()
        self.pump()

    async def until(self, ready: Callable[[], T | None], timeout_ms: float, what: str) -> T:
        """The value of `ready` once it is not None; raises TimedOut."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            self._check_open()
            value = ready()
            if value is not None:
                return value
            changed = self._changed
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                raise TimedOut(
                    f"{what} was not known within {timeout_ms:.0f} ms",
                    hint="Check that the topic exists and its brokers are up",
                ) from None

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the consumer is closed")

    # ------------------------------------------------------------------------------------------ positions

    def state_of(self, partition: tuple[str, int]) -> PartitionState:
        state = self.assignment.get(TopicPartition(*partition))
        if state is None:
            topic, index = partition
            raise ConfigError(
                f"{topic}-{index} is not assigned to this consumer",
                hint="Assigned partitions: " + (", ".join(map(str, sorted(self.assignment))) or "none yet"),
            )
        return state

    async def seek(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        self._check_open()
        for partition, target in offsets.items():
            offset, epoch = target[:2] if isinstance(target, OffsetAndMetadata) else (target, -1)
            if not is_offset(offset):
                raise ConfigError(f"{offset!r} is not an offset of {partition}", hint="Give a number, 0 or more")
            state = self.state_of(partition)
            state.seek(offset, epoch)
            state.start = offset
        self._moved(offsets)

    async def seek_to(self, partitions: Iterable[TopicPartition], time_ms: int) -> None:
        self._check_open()
        chosen = list(partitions)
        for partition in chosen:
            state = self.state_of(partition)
            state.seek_to(time_ms)
            state.start = NO_OFFSET
        self._moved(chosen)

    async def rewind(self) -> None:
        """Look the committed offsets of all partitions up again, and continue there."""
        self._check_open()
        for state in self.assignment.values():
            state.rewind()
        self._moved(list(self.assignment))

    def _moved(self, partitions: Iterable[TopicPartition]) -> None:
        self.queue.sought(partitions)
        self.queue.drop_stale()
        self.queue.set_attention()
        self.pump()

    async def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for partition in partitions:
            self.state_of(partition).paused = paused
        self.queue.set_attention()
        self.pump()

    async def position(self, partition: TopicPartition, timeout_ms: float) -> int:
        def known() -> int | None:
            state = self.state_of(partition)
            if state.fetch_state is FetchState.STUCK:
                raise ConfigError(f"{partition} has no position", hint="Seek to where to continue")
            return state.position if state.has_position else None

        return await self.until(known, timeout_ms, f"the position of {partition}")

    async def offsets_at(
        self, times: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_open()
        unknown = {partition.topic for partition in times} - self.cluster.view.topics.keys()
        if unknown:
            await self.cluster.refresh(unknown)
        return await self._lookup.all_offsets(times, timeout_ms)

    async def beginnings(self, partitions: Iterable[TopicPartition], timeout_ms: float) -> dict[TopicPartition, int]:
        found = await self.offsets_at(dict.fromkeys(partitions, EARLIEST), timeout_ms)
        return {partition: one.offset for partition, one in found.items()}

    async def ends(self, partitions: Iterable[TopicPartition], timeout_ms: float) -> dict[TopicPartition, int]:
        found = await self.offsets_at(dict.fromkeys(partitions, LATEST), timeout_ms)
        return {partition: one.offset for partition, one in found.items()}

    async def lags(self, partitions: Iterable[TopicPartition], timeout_ms: float) -> dict[TopicPartition, int]:
        """Records between each position and the current end."""
        wanted = list(partitions)
        ends = await self.ends(wanted, timeout_ms)
        return {p: max(0, ends[p] - await self.position(p, timeout_ms)) for p in wanted}

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of all partitions that are not committed yet."""
        return self.commits.consumed(self.assignment.values())


# --------------------------------------------------------------------------------------------------- positions


class PositionResolver:
    """Finds positions: by committed offset, by reset policy, and validates them after a leader change."""

    def __init__(
        self,
        cluster: ClusterClient,
        lookup: OffsetLookup,
        store: OffsetStore,
        queue: ApplicationQueue,
        settings: ConsumerSettings,
        clock: Clock,
        on_truncation: Callable[[PartitionState, Truncation | None], None],
    ) -> None:
        self._cluster = cluster
        self._lookup = lookup
        self._store = store
        self._queue = queue
        self._settings = settings
        self._clock = clock
        self._on_truncation = on_truncation

    def waiting(self, states: Mapping[TopicPartition, PartitionState], now_ms: float) -> list[PartitionState]:
        """The partitions that need a look-up now."""
        return [
            state
            for state in states.values()
            if state.fetch_state in (FetchState.UNKNOWN, FetchState.RESET, FetchState.VALIDATE)
            and now_ms >= state.not_before_ms
        ]

    async def round(self, states: list[PartitionState]) -> None:
        await self._begin([state for state in states if state.fetch_state is FetchState.UNKNOWN])
        await self._reset([state for state in states if state.fetch_state is FetchState.RESET])
        await self._validate([state for state in states if state.fetch_state is FetchState.VALIDATE])

    async def _begin(self, states: list[PartitionState]) -> None:
        if not states:
            return
        versions = {state.partition: state.version for state in states}
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if self._settings.group_id is not None:
            try:
                committed = await self._store.load(self._settings.group_id, list(versions))
            except PenstockError as error:
                self._put_off(states, error)
                return
        missing: list[TopicPartition] = []
        for state in states:
            if state.version != versions[state.partition] or state.fetch_state is not FetchState.UNKNOWN:
                continue
            stored = committed.get(state.partition)
            reset_to = start_of(self._settings.auto_offset_reset)
            if stored is not None and stored.offset >= 0:
                state.seek(stored.offset, stored.leader_epoch)
            elif state.start >= 0:
                state.seek(state.start)
            elif reset_to is not None:
                state.seek_to(reset_to)
            else:
                state.fetch_state = FetchState.STUCK
                missing.append(state.partition)
        if missing:
            self._queue.fail(NoOffset(missing, self._settings.group_id))

    async def _reset(self, states: list[PartitionState]) -> None:
        if not states:
            return
        asked = {state.partition: (state.version, state.reset_to) for state in states}
        found = await self._lookup.offsets({partition: time_ms for partition, (_, time_ms) in asked.items()})
        for state in states:
            version, time_ms = asked[state.partition]
            if state.version != version or state.fetch_state is not FetchState.RESET:
                continue
            one = found[state.partition]
            if isinstance(one, PenstockError):
                self._put_off([state], one)
            elif one.offset < 0 and time_ms >= 0:
                # No record is that young: start with the next one that arrives.
                state.seek_to(LATEST)
            else:
                state.seek(max(0, one.offset))
                self._queue.set_attention()

    async def _validate(self, states: list[PartitionState]) -> None:
        if not states:
            return
        versions = {state.partition: state.version for state in states}
        epochs = {state.partition: state.fetch_epoch for state in states}
        for state in states:
            if state.fetch_epoch == NO_EPOCH:
                state.validated(state.version, NO_EPOCH, -1)
                epochs.pop(state.partition)
        found = await self._lookup.epoch_ends(epochs)
        for state in states:
            one = found.get(state.partition)
            if isinstance(one, PenstockError):
                self._put_off([state], one)
            elif one is not None:
                self._on_truncation(state, state.validated(versions[state.partition], one.epoch, one.end_offset))

    def _put_off(self, states: list[PartitionState], error: PenstockError) -> None:
        not_before_ms = self._clock.monotonic_ms() + self._settings.retry_backoff_ms
        for state in states:
            state.retry_at(not_before_ms)
        if error.retriable:
            _log.info("position look-up failed, retrying: partitions=%d error=%s", len(states), error)
            self._cluster.refresh_soon()
            return
        for state in states:
            state.fetch_state = FetchState.STUCK
        self._queue.fail(error)
