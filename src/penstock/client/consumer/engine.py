"""The part of a consumer that lives on the event loop: the same for both faces.

Noun: what is wanted, what is assigned, where each partition stands; and the tasks that fetch, look offsets up and take
part in the group.

Rule: everything here runs on the loop. Records never pass through it one by one: chunks go into the `Handover`, duties
come back from there. `pump` starts whatever can be started and is called after every change; it never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from penstock.client.addresses import Addresses
from penstock.client.cluster import ClusterClient
from penstock.client.cluster_view import ClusterView
from penstock.client.consumer.commits import Commits
from penstock.client.consumer.fetch_plan import Budget
from penstock.client.consumer.fetcher import Fetcher
from penstock.client.consumer.group import GroupWorker
from penstock.client.consumer.handover import Duty, Handover
from penstock.client.consumer.lookups import OffsetLookup
from penstock.client.consumer.membership import Assign, Membership, Revoke
from penstock.client.consumer.positions import EARLIEST, LATEST, Place, Standing, is_offset
from penstock.client.consumer.resolver import Resolver
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.subscription import Wish
from penstock.client.consumer.types import OffsetAndTimestamp, TopicPartition
from penstock.client.errors import ClosedError, ConfigError, PenstockError, TimedOut
from penstock.client.metadata import ask_metadata
from penstock.client.metrics import Metrics, Reports
from penstock.client.offset_stores.base import OffsetAndMetadata, OffsetStore
from penstock.client.offset_stores.broker import BrokerOffsetStore
from penstock.runtime.clock import Clock, SystemClock

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LOOK_FIRST_MS: Final = 100.0
_LOOK_MOST_MS: Final = 5_000.0
_FAREWELL_S: Final = 3.0
_NEVER: Final = float("inf")


class Engine:
    def __init__(
        self,
        bootstrap_servers: Addresses,
        settings: ConsumerSettings,
        *,
        post: Callable[[Callable[[], object]], object],
        clock: Clock | None = None,
    ) -> None:
        """`post` runs a function soon on the loop, from whatever thread."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._post = post
        self.cluster = ClusterClient(
            bootstrap_servers,
            client_id=settings.client_id,
            request_timeout_ms=settings.request_timeout_ms,
            connect_timeout_ms=settings.connect_timeout_ms,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            retry_backoff_ms=max(1, settings.retry_backoff_ms),
            retry_backoff_max_ms=max(1, settings.retry_backoff_max_ms),
            ssl=settings.ssl,
            rack=settings.client_rack,
            clock=self.clock,
        )
        self.handover = Handover(Budget(settings.buffer_memory), on_room=lambda: post(self.pump))
        self.places: dict[TopicPartition, Place] = {}
        self.wish = Wish()
        self.closed = False
        self.reached: Callable[[], object] = lambda: None
        """The record handed out last, or whatever changes when the user goes on."""
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
        self._fetcher = Fetcher(self.cluster, self.handover, settings, self.clock, self.pump)
        self._resolver = Resolver(
            self.cluster, self._lookup, self.store, self.handover, settings, self.clock, self._fetcher.truncated
        )
        self._worker: GroupWorker | None = None
        self._working: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._resolving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_ms = _NEVER
        """When to ask again for topics that are missing."""
        self._look_after_ms = _LOOK_FIRST_MS
        self._changed = asyncio.Event()
        self._rebalances = 0
        self._reports = Reports(self.metrics, settings.on_statistics, settings.statistics_interval_ms)
        self._duty: Duty | None = None
        self.has_been_assigned = False

    # Start and end

    async def start(self) -> None:
        await self.cluster.start()
        self.cluster.on_change(self._cluster_changed)
        self.cluster.on_overdue(self._fetcher.abandon)
        self._reports.start()
        if self.settings.commits_by_itself:
            self._spawn(self._remind_of_commits())

    async def close(self, farewell_s: float = _FAREWELL_S) -> None:
        """End everything; the group is told, if its coordinator hears within `farewell_s`. Whoever has offsets to
        commit does so before."""
        if self.closed:
            return
        self.closed = True
        self._reports.stop()
        self.handover.close()
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(farewell_s):
                await self.commits.drain()
                await self._leave_group(say_so=True)
        except TimeoutError:
            _log.info("the coordinator did not hear the farewell; the session will end by itself")
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

    def _spawn(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remind_of_commits(self) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            self.handover.ask_for_commit()

    # What to read

    async def want(self, wish: Wish) -> None:
        """Read these from now on."""
        self._check_open()
        if not wish.is_manual and not wish.is_empty and self.settings.group_id is None:
            # Without a group nobody shares: all partitions of the topics are ours.
            _log.debug("no group_id: reading all partitions of %s", wish)
        was_manual = self.wish.is_manual
        self.wish = wish
        self._look_at_ms, self._look_after_ms = _NEVER, _LOOK_FIRST_MS
        if wish.needs_all_topics:
            self.cluster.follow_all()
        else:
            topics = wish.topics or {partition.topic for partition in wish.partitions or ()}
            self.cluster.follow(topics)
            if topics:
                with contextlib.suppress(PenstockError):
                    await self.cluster.refresh(topics, create=self.settings.allow_auto_create_topics)
        if wish.needs_all_topics:
            await self.cluster.refresh()
        if wish.is_manual or self.settings.group_id is None or wish.is_empty:
            await self._leave_group(say_so=True)
            self._place_all()
        else:
            if was_manual:
                self._set_places(frozenset())
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
        self._worker = GroupWorker(
            group_id,
            self.cluster,
            membership,
            settings,
            self.clock,
            topics=self._topics,
            visits=lambda: (self.handover.polled, id(self.reached())),
            do_duty=self._do_duty,
            on_failure=self.handover.fail,
            on_loss=self._lost_place,
        )
        self._working = asyncio.ensure_future(self._worker.run())

    def _topics(self) -> frozenset[str]:
        view = self.cluster.view
        existing = {name: topic.is_internal for name, topic in view.topics.items() if topic.partitions}
        return self.wish.match(existing)

    def topics_meant(self) -> frozenset[str]:
        return frozenset() if self.wish.is_manual else self._topics()

    def _place_all(self) -> None:
        """Without a group: the partitions named, or all of the topics meant."""
        if self.wish.partitions is not None:
            self._set_places(self.wish.partitions)
            return
        wanted: set[TopicPartition] = set()
        for name in self._topics():
            topic = self.cluster.view.topics.get(name)
            if topic is not None:
                wanted.update(TopicPartition(name, view.index) for view in topic.partitions)
        self._set_places(frozenset(wanted))

    def _set_places(self, wanted: frozenset[TopicPartition]) -> list[Place]:
        """Assign exactly these; answers with the new ones."""
        self.has_been_assigned = self.has_been_assigned or bool(wanted)
        gone = self.places.keys() - wanted
        for partition in gone:
            self.places.pop(partition).version += 1
            self.commits.forget(partition)
        fresh = [
            Place(partition, self.settings.max_partition_fetch_bytes)
            for partition in sorted(wanted - self.places.keys())
        ]
        self.places = {**self.places, **{place.partition: place for place in fresh}}
        self._fetcher.set_places(self.places)
        if gone:
            self.handover.drop_stale()
        if gone or fresh:
            self.handover.look_here()
        return fresh

    async def assigned(self) -> frozenset[TopicPartition]:
        return frozenset(self.places)

    async def _do_duty(self, step: Revoke | Assign) -> None:
        """Have the user's side let partitions go, or hear of new ones; comes back when it has."""
        if isinstance(step, Assign):
            places = self._set_places(step.everything)
            self._rebalances += 1
            self.pump()
            if step.added or not self.settings.is_cooperative:
                await self._posted("assign", step.added, places)
            return
        places = [self.places[partition] for partition in step.partitions if partition in self.places]
        await self._posted("lose" if step.lost else "revoke", step.partitions, places)
        self._set_places(frozenset(self.places.keys() - step.partitions))

    async def _posted(self, kind: Any, partitions: frozenset[TopicPartition], places: list[Place]) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self._duty = Duty(kind, partitions, places, lambda: self._post(finish))
        self.handover.post(self._duty)
        try:
            await done
        finally:
            self._duty = None

    def _lost_place(self) -> None:
        """The group goes on without us. What was to be given back is lost, if the user has not done so yet."""
        if self._duty is not None and self._duty.kind == "revoke":
            self._duty.kind = "lose"
        self.handover.look_here()

    def end_soon(self) -> None:
        """For a consumer that was forgotten without being closed."""
        self._forgotten = asyncio.ensure_future(self.close())

    async def partitions_of(self, topic: str) -> frozenset[int]:
        self._check_open()
        view = self.cluster.view.topic(topic)
        if view is None:
            view = (await self.cluster.refresh([topic])).topic(topic)
        return frozenset() if view is None else frozenset(one.index for one in view.partitions)

    async def all_topics(self) -> frozenset[str]:
        """The topics of the cluster that it does not keep for itself."""
        self._check_open()
        connection = await self.cluster.to_any()
        response = await ask_metadata(connection, None, timeout_ms=self.settings.request_timeout_ms)
        return frozenset(topic.name for topic in response.topics if topic.name is not None and not topic.is_internal)

    def metrics(self) -> Metrics:
        """What was counted, and what is so at the moment; from any thread."""
        fetcher, commits = self._fetcher, self.commits
        places = list(self.places.values())
        lags = [max(place.high_watermark - place.position, 0) for place in places if place.high_watermark >= 0]
        return {
            "records_fetched": fetcher.records_fetched,
            "bytes_fetched": fetcher.bytes_fetched,
            "fetches": fetcher.fetches,
            "fetch_failures": fetcher.fetch_failures,
            "fetch_latency_ms_mean": fetcher.latency.mean_ms,
            "fetch_latency_ms_max": fetcher.latency.most_ms,
            "commits": commits.count,
            "commit_failures": commits.failures,
            "rebalances": self._rebalances,
            "assigned_partitions": len(places),
            "lag": sum(lags),
            "lag_max": max(lags, default=0),
            "buffer_bytes": self.handover.budget.buffered,
            "buffer_bytes_limit": self.settings.buffer_memory,
            "connections": self.cluster.connection_count,
        }

    def attended(self) -> None:
        """The user's side has done its duties."""
        if self._worker is not None:
            self._worker.wake()

    # Going on

    def pump(self) -> None:
        if self.closed:
            return
        now_ms = self.clock.monotonic_ms()
        # It first: it is where places hear of new leaders, after whom a position may have to be validated.
        self._fetcher.pump(now_ms)
        waiting = self._resolver.waiting(self.places, now_ms)
        if waiting and (self._resolving is None or self._resolving.done()):
            self._resolving = asyncio.ensure_future(self._resolve(waiting))
        self._set_timer(now_ms)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _resolve(self, places: list[Place]) -> None:
        try:
            await self._resolver.round(places)
        except PenstockError as error:
            self.handover.fail(error)
        finally:
            self._resolving = None
            self.pump()

    def _set_timer(self, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._fetcher.next_retry_ms(now_ms)
        if self._has_missing_topics():
            # What goes on in other partitions must not put it off again and again.
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
        """Whether a topic is wanted that is not there: here, or by another member of the group that is led here."""
        if self.wish.needs_all_topics:
            return not self._topics()
        if any(self.cluster.view.topic(name) is None for name in self.wish.topics):
            return True
        return self._worker is not None and self._worker.lacks_topics

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        if self.settings.group_id is None and not self.wish.is_manual and not self.wish.is_empty:
            self._place_all()
        self.pump()

    async def until(self, ready: Callable[[], T | None], timeout_ms: float, what: str) -> T:
        """The value once there is one; raises TimedOut, or the error that keeps it from being there."""
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
                    hint="See whether the topic exists and its brokers are up",
                ) from None

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the consumer is closed")

    # Positions

    def place_of(self, partition: tuple[str, int]) -> Place:
        place = self.places.get(TopicPartition(*partition))
        if place is None:
            topic, index = partition
            raise ConfigError(
                f"{topic}-{index} is not assigned to this consumer",
                hint="Assigned are " + (", ".join(map(str, sorted(self.places))) or "no partitions yet"),
            )
        return place

    async def seek(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        self._check_open()
        for partition, target in offsets.items():
            offset, epoch = target[:2] if isinstance(target, OffsetAndMetadata) else (target, -1)
            if not is_offset(offset):
                raise ConfigError(f"{offset!r} is no offset: {partition} begins at 0")
            self.place_of(partition).seek(offset, epoch)
        self._moved(offsets)

    async def seek_to(self, partitions: Iterable[TopicPartition], time_ms: int) -> None:
        self._check_open()
        chosen = list(partitions)
        for partition in chosen:
            self.place_of(partition).seek_to(time_ms)
        self._moved(chosen)

    def _moved(self, partitions: Iterable[TopicPartition]) -> None:
        self.handover.sought(partitions)
        self.handover.drop_stale()
        self.handover.look_here()
        self.pump()

    async def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for partition in partitions:
            self.place_of(partition).paused = paused
        self.handover.look_here()
        self.pump()

    async def position(self, partition: TopicPartition, timeout_ms: float) -> int:
        def known() -> int | None:
            place = self.place_of(partition)
            if place.standing is Standing.STUCK:
                raise ConfigError(f"{partition} has no position", hint="Seek to where reading shall go on")
            return place.position if place.has_position else None

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
        """Records between each position and the end as it is now."""
        wanted = list(partitions)
        ends = await self.ends(wanted, timeout_ms)
        return {p: max(0, ends[p] - await self.position(p, timeout_ms)) for p in wanted}

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """How far the user got in all partitions, where that is news."""
        return self.commits.consumed(self.places.values())
