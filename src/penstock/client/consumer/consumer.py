"""Every call of a consumer, written once, and the blocking consumer, for one thread of the application.

    with Consumer("views", bootstrap_servers=address, group_id="feed", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            handle(record.value)

Fetching, heartbeats and look-ups run on a background loop shared by all blocking clients of the process; decoding and
rebalance callbacks run in the application's thread, inside `poll`, `batches` or the iteration, and finish before the
partitions are given back. Threads exchange chunks of up to max_partition_fetch_bytes, never single records. Between
two records one flag is checked, so a rebalance waits for one record, not for a batch.

`ConsumerCalls` has the calls as coroutines, over a few primitives: wait, call a function, run something on the loop.
`AsyncConsumer` implements these by awaiting. Here they block, so the coroutines never suspend: `run_here` runs them to
their end in the application's thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.background import Background, blocking, run_here
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
from penstock.client.consumer.coordinator import OnCommit
from penstock.client.consumer.core import ConsumerCore, Pattern, SubscriptionRequest, assignment_request
from penstock.client.consumer.fetcher import RebalanceCallback
from penstock.client.consumer.reader import (
    Committable,
    F,
    K,
    Partitions,
    Reader,
    RebalanceCallbacks,
    RebalanceListener,
    RecordBatch,
    V,
    checked_listener,
    checked_subscription,
    in_ms,
    milliseconds,
    pairs,
    partitions_meant,
    unassigned,
)
from penstock.client.consumer.settings import ConsumerOptions, ConsumerSettings
from penstock.client.errors import ClosedError, CommitFailed, ConfigError, PenstockError
from penstock.client.fetch_state import EARLIEST, LATEST
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.serializers.base import AnyDecoder, decoder_from
from penstock.client.settings import Metrics, settings_from
from penstock.client.transactions import GroupMetadata
from penstock.records.kernel import ConsumerRecord
from penstock.wire.protocol import ErrorCode

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0
BATCH_RECORDS = 50_000
_log = logging.getLogger(__name__)
_EXIT_TIMEOUT_S = 3.0
_CLEANUP_S = 1.0


class ConsumerState(Generic[K, V]):
    """The state that both consumers know without a request."""

    _settings: ConsumerSettings
    _core: ConsumerCore
    _callbacks: RebalanceCallbacks
    _reader: Reader[K, V]

    def subscription(self) -> frozenset[str]:
        """The topics that the subscription currently matches."""
        return self._core.topics_meant()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._core.assignment)

    @property
    def member_id(self) -> str:
        """The id of this consumer in its group; empty outside of one."""
        return self._core.commits.committer.member_id

    @property
    def generation(self) -> int:
        """The generation of the group, -1 outside of one: use it to fence offsets in a store of your own."""
        return self._core.commits.committer.generation

    def group_metadata(self) -> GroupMetadata:
        """Group, generation and member, for `Producer.send_offsets_to_transaction`.

        Raises CommitFailed while this consumer is not a member of its group, and ConfigError if it has none or commits
        by itself: it would commit what an aborted transaction has read.
        """
        group_id, committer = self._settings.group_id, self._core.commits.committer
        if group_id is None:
            raise ConfigError("the consumer has no group", hint="Give it a group_id")
        if self._settings.commits_by_itself:
            raise ConfigError(
                "enable_auto_commit is on, so the consumer would commit offsets outside of transactions",
                hint="Create it with exactly_once=True, or enable_auto_commit=False",
            )
        if self._core.commits.membership is not None and committer.generation < 0:
            # Without a generation the offsets would be accepted while the group is empty.
            raise CommitFailed(group_id, "this consumer is not a member of the group now", ErrorCode.UNKNOWN_MEMBER_ID)
        return GroupMetadata(group_id, *committer)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit()` would commit: the offsets after everything that was handed out and not committed."""
        return self._reader.offsets_of(None)

    @property
    def is_exactly_once(self) -> bool:
        """Whether it reads committed records only, in a group, and leaves commits to the application."""
        settings = self._settings
        is_committed = settings.isolation_level == "read_committed"
        return settings.group_id is not None and is_committed and not settings.enable_auto_commit

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.partition for state in self._core.assignment.values() if state.paused)

    def highwater(self, partition: tuple[str, int]) -> int | None:
        """The high watermark of a partition according to the last fetch: the offset after the last record that may be
        read. None while it is unknown. `end_offsets` asks the broker."""
        state = self._core.assignment.get(TopicPartition(*partition))
        return None if state is None or state.high_watermark < 0 else state.high_watermark

    def metrics(self) -> Metrics:
        """Counters since this consumer was created, and current values.

        `on_statistics` is called with the same dictionary every `statistics_interval_ms`, on the event loop.
        """
        return self._core.metrics()

    def on_assign(self, function: F) -> F:
        """Call a function with newly assigned partitions, before their first record; you can seek there."""
        self._callbacks.assign.append(function)
        return function

    def on_revoke(self, function: F) -> F:
        """Call a function with partitions that move to other members, while this one still owns them: finish and
        commit there."""
        self._callbacks.revoke.append(function)
        return function

    def on_lost(self, function: F) -> F:
        """Call a function with partitions that are already lost. Without one, those of on_revoke are called."""
        self._callbacks.lose.append(function)
        return function


class ConsumerCalls(ConsumerState[K, V]):
    """The calls as coroutines. Used by one thread or task of the application."""

    _closed = False
    _started = False

    def _set_up(
        self, core: ConsumerCore, key: AnyDecoder[Any] | None, value: AnyDecoder[Any] | None, wake: Callable[[], None]
    ) -> None:
        self._core = core
        self._settings = core.settings
        self._callbacks = RebalanceCallbacks()
        self._reader = Reader(core, decoder_from(key, "key"), decoder_from(value, "value"))
        self._cursor = self._reader.cursor
        self._queue = core.queue
        self._queue.wake = wake
        self._attending = False

    # ------------------------------------------------------------------------------------------ primitives

    @abstractmethod
    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the core."""

    @abstractmethod
    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run a function on the event loop of the core, without waiting for it."""

    @abstractmethod
    async def _call(self, function: Callable[..., Any], partitions: list[TopicPartition]) -> None:
        """Call a function of the application."""

    @abstractmethod
    async def _wait_for_wake(self, timeout_s: float) -> None:
        """Wait until the queue wakes the application."""

    @abstractmethod
    def _clear_wake(self) -> None: ...

    @abstractmethod
    def _now_s(self) -> float: ...

    async def _yield_to_loop(self) -> None:
        """Give the loop a turn, if it needs one."""

    # ------------------------------------------------------------------------------------------ what to read

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: Pattern | None = None,
        exclude: Pattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics from now on, instead of what was read before.

        `listener` is called for partitions that are assigned or revoked, until the next `subscribe`.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        subscription = checked_subscription(names, pattern, exclude)
        self._callbacks.listener = checked_listener(listener)
        await self._want(subscription)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, outside of a group."""
        try:
            subscription = assignment_request(partitions)
        except ValueError as reason:
            raise ConfigError(str(reason)) from None
        await self._want(subscription)

    async def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        await self._want(SubscriptionRequest())

    async def _want(self, subscription: SubscriptionRequest) -> None:
        self._check_open()
        self._reader.came_back()
        await self._on_loop(self._core.want(subscription))

    async def wait_for_assignment(
        self, timeout_ms: float | None = None, *, timeout: float | None = None
    ) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads, once there are any and the functions of `on_assign` have run.

        Raises TimedOut after `timeout` seconds (default_api_timeout_ms). It hands out no record.
        """
        self._check_open()
        if self._attending:
            return self.assignment()
        self._reader.came_back()
        limit_ms = self._within(timeout_ms, timeout)
        deadline = self._deadline(limit_ms)
        while True:
            if self._queue.attention:
                await self._attend()
            self._check_open()
            # On the loop, a partition is assigned together with its callback.
            found = await self._on_loop(self._core.assigned()) if self._core.assignment else None
            if found and not self._queue.attention:
                return found
            if not await self._wait(deadline):
                raise unassigned(self._core, limit_ms)

    async def _until_assigned(self) -> None:
        """In a group it takes a moment until partitions are assigned: wait for the first assignment."""
        self._check_open()
        self._reader.came_back()
        deadline = self._deadline(self._settings.default_api_timeout_ms)
        while not self._core.has_been_assigned and not self._attending:
            if self._queue.attention:
                await self._attend()
            elif not await self._wait(deadline):
                raise unassigned(self._core, self._settings.default_api_timeout_ms)

    # ------------------------------------------------------------------------------------------ rebalances

    async def _attend(self) -> None:
        """Run callbacks and commits that are due; raises what went wrong on the loop."""
        if self._attending:
            raise ConfigError("a rebalance callback must not read records", hint="Seek or commit there")
        callbacks, error, commit_due = self._queue.attend()
        self._reader.tidy()
        self._attending = True
        try:
            while callbacks:
                await self._carry_out(callbacks.pop(0))
        finally:
            self._attending = False
            self._queue.put_back(callbacks)
        if commit_due and not self._closed:
            self._post(self._core.commits.commit_soon, self._core.consumed())
        self._post(self._core.attended)
        if error is not None:
            raise error

    async def _carry_out(self, callback: RebalanceCallback) -> None:
        try:
            if callback.kind == "revoke" and self._settings.commits_by_itself:
                await self._commit_before_revoke(callback)
            for function in self._callbacks.of(callback):
                await self._call(function, sorted(callback.partitions))
        finally:
            self._reader.let_go(callback)
            callback.finish()

    async def _commit_before_revoke(self, callback: RebalanceCallback) -> None:
        offsets = self._core.commits.consumed(callback.states)
        try:
            await self._on_loop(self._core.commits.commit(offsets, self._settings.default_api_timeout_ms))
        except PenstockError as error:
            _log.warning("commit before revocation failed: error=%s", error)

    # ------------------------------------------------------------------------------------------ records

    async def _ready(self, deadline: float | None) -> bool:
        """Wait until there is something to read; False if there is nothing by then, or never will be."""
        self._reader.came_back()
        await self._yield_to_loop()
        while True:
            if self._queue.attention:
                await self._attend()
            if self._closed or self._queue.closed:
                return False
            if self._cursor.chunk is not None or self._reader.begin_next():
                return True
            if not await self._wait(deadline):
                return False

    async def _wait(self, deadline: float | None) -> bool:
        """Wait for the loop to wake the application; False if the time is over."""
        self._clear_wake()
        if self._queue.attention or self._queue.has_chunks():
            return True
        # The wait is cut up, so that a poll is counted even if nothing comes for longer than max_poll_interval_ms.
        wait_s = self._settings.heartbeat_interval_ms / 1000
        if deadline is not None:
            wait_s = min(wait_s, deadline - self._now_s())
            if wait_s <= 0:
                return False
        await self._wait_for_wake(wait_s)
        self._queue.polled += 1
        return True

    async def poll(
        self, timeout_ms: float | None = None, max_records: int | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Up to `max_records` (max_poll_records) records by partition, as soon as there are any.

        Waits for at most `timeout` seconds, and not at all without it; empty if nothing arrived. Here and elsewhere
        `timeout_ms` is the same in milliseconds, as in kafka-python.
        """
        self._check_open()
        most = self._settings.max_poll_records if max_records is None else max_records
        result: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        deadline = self._deadline(milliseconds(timeout, timeout_ms) or 0)
        while await self._ready(deadline) and not self._reader.gather(result, most):
            pass
        return result

    def _batch_timeout_ms(self, max_records: int, timeout_ms: float | None, timeout: float | None) -> float | None:
        if max_records < 1:
            raise ConfigError(f"max_records is {max_records}; it must be 1 or more")
        self._check_open()
        timeout_ms = milliseconds(timeout, timeout_ms)
        return self._settings.consumer_timeout_ms if timeout_ms is None else timeout_ms

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these partitions until `resume`; they stay assigned."""
        self._check_open()
        self._reader.came_back()
        await self._on_loop(self._core.set_paused(pairs(partitions), True))

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Hand out records of these partitions again."""
        self._check_open()
        await self._on_loop(self._core.set_paused(pairs(partitions), False))

    # ------------------------------------------------------------------------------------------ positions

    async def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Continue at this offset."""
        await self._until_assigned()
        await self._on_loop(self._core.seek({TopicPartition(*partition): offset}))

    async def seek_to_beginning(self, *partitions: str | tuple[str, int]) -> None:
        """Continue at the first record that exists; without arguments in all partitions."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: str | tuple[str, int]) -> None:
        """Continue with records that arrive from now on; without arguments in all partitions."""
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, partitions: Partitions, when: datetime | float) -> None:
        """Continue at the first record at or after a time: a datetime, or milliseconds since 1970."""
        await self._seek_to(partitions, in_ms(when))

    async def _seek_to(self, what: Partitions, time_ms: int) -> None:
        await self._until_assigned()
        meant = partitions_meant(what, self._core.assignment) if what else list(self._core.assignment)
        await self._on_loop(self._core.seek_to(meant, time_ms))

    async def rewind(self) -> None:
        """Continue at the committed offsets: everything handed out since is handed out again.

        For use after a transaction that was aborted. A partition without a committed offset continues where this
        consumer began to read it, or last sought. It asks for the offsets in the background, and waits while a
        transaction is about to decide on them.
        """
        self._check_open()
        self._reader.came_back()
        await self._on_loop(self._core.rewind())

    async def position(
        self, partition: tuple[str, int], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> int:
        """The offset of the next record to be handed out."""
        await self._until_assigned()
        return await self._on_loop(self._core.position(TopicPartition(*partition), self._within(timeout_ms, timeout)))

    async def committed(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that the group has committed; partitions without one are left out."""
        self._check_open()
        wanted = pairs(partitions) or list(self._core.assignment)
        return await self._on_loop(self._core.commits.committed(wanted, self._within(timeout_ms, timeout)))

    async def lag(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Records between each position and the current end; without arguments of all partitions."""
        self._check_open()
        self._cursor.settle()
        wanted = pairs(partitions) or list(self._core.assignment)
        return await self._on_loop(self._core.lags(wanted, self._within(timeout_ms, timeout)))

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record in each partition, from the brokers."""
        self._check_open()
        return await self._on_loop(self._core.beginnings(pairs(partitions), self._within(timeout_ms, timeout)))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read in each partition, from the brokers."""
        self._check_open()
        return await self._on_loop(self._core.ends(pairs(partitions), self._within(timeout_ms, timeout)))

    async def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | float],
        *,
        timeout_ms: float | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None if no record is that young."""
        self._check_open()
        asked = {TopicPartition(*partition): in_ms(when) for partition, when in times.items()}
        found = await self._on_loop(self._core.offsets_at(asked, self._within(timeout_ms, timeout)))
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    async def partitions_for_topic(self, topic: str) -> frozenset[int]:
        """The partitions of a topic; empty if it does not exist."""
        self._check_open()
        return await self._on_loop(self._core.partitions_of(topic))

    async def topics(self) -> frozenset[str]:
        """The topics of the cluster except internal ones, from the brokers."""
        self._check_open()
        return await self._on_loop(self._core.all_topics())

    # ------------------------------------------------------------------------------------------ commits and the end

    async def commit(
        self, what: Committable | None = None, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> None:
        """Commit a record, a batch, offsets by partition, or without argument everything handed out so far.

        A committed offset is that of the next record to read. Raises CommitFailed if the group has moved on.
        """
        self._check_open()
        offsets = self._reader.offsets_of(what)
        await self._on_loop(self._core.commits.commit(offsets, self._within(timeout_ms, timeout)))

    def _commit_soon(self, what: Committable | None, callback: OnCommit | None) -> None:
        self._check_open()
        self._post(self._core.commits.commit_soon, self._reader.offsets_of(what), callback)

    async def _commit_and_revoke(self, timeout_s: float, *, autocommit: bool, failed: bool) -> None:
        """Before the core is closed: commit, within half of the time, and run the revoke callbacks."""
        try:
            if autocommit and self._settings.commits_by_itself:
                offsets = self._reader.offsets_when_leaving(failed)
                await self._on_loop(self._core.commits.commit(offsets, max(1.0, timeout_s * 500)))
        except PenstockError as error:
            _log.warning("commit at close failed: error=%s", error)
        states = list(self._core.assignment.values())
        if not states or self._core.subscription.is_manual or self._settings.group_id is None:
            return
        callback = RebalanceCallback("revoke", frozenset(state.partition for state in states), states, lambda: None)
        for function in self._callbacks.of(callback):
            try:
                await self._call(function, sorted(callback.partitions))
            except Exception:  # noqa: BLE001 - closing continues whatever the application's function does
                _log.exception("a revoke callback failed")

    def _deadline(self, timeout_ms: float | None) -> float | None:
        return None if timeout_ms is None else self._now_s() + timeout_ms / 1000

    def _within(self, timeout_ms: float | None, timeout: float | None) -> float:
        given_ms = milliseconds(timeout, timeout_ms)
        return self._settings.default_api_timeout_ms if given_ms is None else given_ms

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")
        if not self._started:
            raise ClosedError("the consumer is not started", hint="Use it in `async with`, or await start() first")


# --------------------------------------------------------------------------------------------------- blocking


class _BlockingCalls(ConsumerCalls[K, V]):
    """The primitives for a thread that is not the loop's."""

    def __init__(
        self, core: ConsumerCore, background: Background, key: AnyDecoder[Any] | None, value: AnyDecoder[Any] | None
    ) -> None:
        self.background = background
        self._wakened = threading.Event()
        self._set_up(core, key, value, self._wakened.set)
        self._started = True

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return self.background.run(work)

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        self.background.call(function, *arguments)

    async def _call(self, function: Callable[..., Any], partitions: list[TopicPartition]) -> None:
        function(partitions)

    async def _wait_for_wake(self, timeout_s: float) -> None:
        self._wakened.wait(timeout_s)

    def _clear_wake(self) -> None:
        self._wakened.clear()

    def _now_s(self) -> float:
        return time.monotonic()


class Consumer(ConsumerState[K, V]):
    """Reads topics. Keys and values are bytes unless `key` and `value` decode them; null stays None.

    `key` and `value` are serializers, objects with `decode(topic, data)`, or functions of the bytes. Use a consumer
    from one thread; only `close` may be called from another.
    """

    _closed = True  # until it is open

    @overload
    def __init__(
        self: Consumer[bytes, bytes],
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[bytes, V],
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        value: AnyDecoder[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Consumer[K, bytes],
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        key: AnyDecoder[K],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        key: AnyDecoder[K] | None = ...,
        value: AnyDecoder[V] | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: Addresses = "127.0.0.1:9092",
        pattern: Pattern | None = None,
        exclude: Pattern | None = None,
        key: AnyDecoder[Any] | None = None,
        value: AnyDecoder[Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        """Connect; raises BootstrapError if no broker can be reached, ConfigError for an invalid option.

        Name the topics, or select them by `pattern` and `exclude`, regular expressions for the whole name. Without
        `group_id` all partitions are read; in a group its members share them.
        """
        self._settings = settings_from(ConsumerSettings, options, "a consumer")
        subscription = checked_subscription(topics, pattern, exclude)
        self._iteration: Iterator[ConsumerRecord[K, V]] | None = None
        self._background = Background.acquire()
        try:
            self._core = ConsumerCore(bootstrap_servers, self._settings, post=self._background.call)
            self._async: _BlockingCalls[K, V] = _BlockingCalls(self._core, self._background, key, value)
            self._callbacks, self._reader = self._async._callbacks, self._async._reader
            self._background.run(self._core.open(subscription))
        except BaseException:
            self._background.release()
            raise
        self._closed = False
        _open.add(self)

    _run = staticmethod(run_here)

    subscribe = blocking(ConsumerCalls[Any, Any].subscribe)
    assign = blocking(ConsumerCalls[Any, Any].assign)
    unsubscribe = blocking(ConsumerCalls[Any, Any].unsubscribe)
    wait_for_assignment = blocking(ConsumerCalls[Any, Any].wait_for_assignment)

    # ------------------------------------------------------------------------------------------ records

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        """The records, one by one; ends when the consumer is closed, or nothing came for consumer_timeout_ms."""
        self._iteration = self._iterate()
        return self._iteration

    def __next__(self) -> ConsumerRecord[K, V]:
        if self._iteration is None:
            self._iteration = self._iterate()
        try:
            return next(self._iteration)
        except BaseException:
            self._iteration = None
            raise

    def _iterate(self) -> Iterator[ConsumerRecord[K, V]]:
        calls, cursor, queue = self._async, self._async._cursor, self._core.queue
        timeout_ms = self._settings.consumer_timeout_ms
        calls._check_open()
        calls._reader.came_back()
        if queue.attention:
            run_here(calls._attend())
        while True:
            for record in cursor.records:
                cursor.last = record
                yield record
                if queue.attention:
                    break
            else:
                if cursor.advance():
                    continue
            if not run_here(calls._ready(calls._deadline(timeout_ms))):
                return

    def poll(
        self, timeout_ms: float | None = None, max_records: int | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        return run_here(self._async.poll(timeout_ms, max_records, timeout=timeout))

    poll.__doc__ = ConsumerCalls.poll.__doc__

    def batches(
        self, max_records: int = BATCH_RECORDS, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> Iterator[RecordBatch[K, V]]:
        """Batches of up to `max_records` of what has arrived; ends like the iteration of records."""
        calls = self._async
        limit_ms = calls._batch_timeout_ms(max_records, timeout_ms, timeout)
        while run_here(calls._ready(calls._deadline(limit_ms))):
            slices = calls._reader.gather_slices(max_records)
            if slices:
                yield calls._reader.batch(slices)

    pause = blocking(ConsumerCalls[Any, Any].pause)
    resume = blocking(ConsumerCalls[Any, Any].resume)

    # ------------------------------------------------------------------------------------------ positions and commits

    seek = blocking(ConsumerCalls[Any, Any].seek)
    seek_to_beginning = blocking(ConsumerCalls[Any, Any].seek_to_beginning)
    seek_to_end = blocking(ConsumerCalls[Any, Any].seek_to_end)
    seek_to_time = blocking(ConsumerCalls[Any, Any].seek_to_time)
    rewind = blocking(ConsumerCalls[Any, Any].rewind)
    position = blocking(ConsumerCalls[Any, Any].position)
    committed = blocking(ConsumerCalls[Any, Any].committed)
    lag = blocking(ConsumerCalls[Any, Any].lag)
    beginning_offsets = blocking(ConsumerCalls[Any, Any].beginning_offsets)
    end_offsets = blocking(ConsumerCalls[Any, Any].end_offsets)
    offsets_for_times = blocking(ConsumerCalls[Any, Any].offsets_for_times)
    partitions_for_topic = blocking(ConsumerCalls[Any, Any].partitions_for_topic)
    topics = blocking(ConsumerCalls[Any, Any].topics)
    commit = blocking(ConsumerCalls[Any, Any].commit)

    def commit_async(self, what: Committable | None = None, callback: OnCommit | None = None) -> None:
        """`commit` without waiting; `callback(offsets, error)` is called on the thread of the event loop."""
        self._async._commit_soon(what, callback)

    # ------------------------------------------------------------------------------------------ the end

    def close(self, timeout: float = CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """Commit what was handed out (if enable_auto_commit), leave the group and close all connections, within
        `timeout` seconds. Calling it twice is allowed; from another thread it ends an iteration there."""
        self._close(timeout, autocommit=autocommit, failed=False)

    def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        if self._closed:
            return
        self._closed = self._async._closed = True
        _open.discard(self)
        deadline = time.monotonic() + timeout
        try:
            run_here(self._async._commit_and_revoke(timeout, autocommit=autocommit, failed=failed))
            left_s = max(0.0, deadline - time.monotonic())
            self._background.run(self._core.close(left_s / 2), left_s + _CLEANUP_S)
        except PenstockError as error:
            _log.warning("the consumer was not closed in time: error=%s", error)
        finally:
            self._core.queue.close()
            self._background.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSE_TIMEOUT_S, autocommit=True, failed=kind is not None)

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self._background.call(self._core.end_soon)
            self._background.release()

    def __repr__(self) -> str:
        group = f" of group {self._settings.group_id}" if self._settings.group_id else ""
        return f"<Consumer{group}, {len(self._core.assignment)} partitions{', closed' if self._closed else ''}>"


_open: weakref.WeakSet[Consumer[Any, Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The interpreter ends: leave the groups, so that other members need not wait for the session time-out."""
    for consumer in list(_open):
        consumer.close(_EXIT_TIMEOUT_S, autocommit=False)
