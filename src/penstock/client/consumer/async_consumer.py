"""The asyncio consumer, for one task of the application.

    async with AsyncConsumer("views", bootstrap_servers=address, group_id="feed") as consumer:
        @consumer.on_revoke
        async def drain(partitions): ...           # awaited before they are given back
        async for record in consumer:
            await handle(record.value)

Everything runs on the application's loop, heartbeats too, so the loop must not be blocked for longer than the
session. Rebalance callbacks, plain or async, are awaited inside `poll`, `batches` or the iteration. Buffered records
are handed out without suspending; every 5 ms the loop gets a turn.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.cluster_metadata import OffsetAndTimestamp, TopicPartition
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
from penstock.client.errors import ClosedError, ConfigError, PenstockError
from penstock.client.fetch_state import EARLIEST, LATEST
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.serializers.base import AnyDecoder, decoder_from
from penstock.client.settings import Metrics, settings_from
from penstock.records.kernel import ConsumerRecord

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 10.0
_BATCH_RECORDS = 50_000
_YIELD_AFTER_S = 0.005


class AsyncConsumer(Generic[K, V]):
    """Reads topics. Keys and values are bytes, unless `key` and `value` say how to decode them; null stays None."""

    @overload
    def __init__(
        self: AsyncConsumer[bytes, bytes],
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[bytes, V],
        *topics: str,
        bootstrap_servers: Addresses = ...,
        pattern: Pattern | None = ...,
        exclude: Pattern | None = ...,
        value: AnyDecoder[V],
        **options: Unpack[ConsumerOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: AsyncConsumer[K, bytes],
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
        """Raises ConfigError for options that make no sense; connecting is `start`, or `async with`.

        Topics by name, or by `pattern` and `exclude`, regular expressions for the whole name. Without `group_id` all
        partitions are read; in a group its members share them.
        """
        self._settings = settings_from(ConsumerSettings, options, "a consumer")
        self._subscription = checked_subscription(topics, pattern, exclude)
        self._bootstrap_servers = bootstrap_servers
        self._key, self._value = decoder_from(key, "key"), decoder_from(value, "value")
        self._callbacks = RebalanceCallbacks()
        self._attending = False
        self._closed = False
        self._started = False

    async def start(self) -> None:
        """Connect; raises BootstrapError if no address leads to a broker."""
        if self._started:
            return
        self._check_open()
        self._started = True
        loop = asyncio.get_running_loop()
        self._core = ConsumerCore(self._bootstrap_servers, self._settings, post=loop.call_soon)
        self._reader: Reader[K, V] = Reader(self._settings, self._core, self._key, self._value)
        self._cursor = self._reader.cursor
        self._queue = self._core.queue
        self._wakened = asyncio.Event()
        self._queue.wake = self._wakened.set
        self._yielded_at = loop.time()
        try:
            await self._core.start()
            if not self._subscription.is_empty:
                await self._core.want(self._subscription)
        except BaseException:
            self._closed = True
            await self._core.close()
            raise

    # What to read

    async def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: Pattern | None = None,
        exclude: Pattern | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics from now on, instead of what was read before.

        `listener` hears of partitions that come and go, until the next `subscribe`.
        """
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        subscription = checked_subscription(names, pattern, exclude)
        self._callbacks.listener = checked_listener(listener)
        await self._want(subscription)

    async def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions; no group moves them."""
        try:
            subscription = assignment_request(partitions)
        except ValueError as reason:
            raise ConfigError(str(reason)) from None
        await self._want(subscription)

    async def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        await self._want(SubscriptionRequest())

    async def _want(self, subscription: SubscriptionRequest) -> None:
        self._check_started()
        self._reader.came_back()
        await self._core.want(subscription)

    def subscription(self) -> frozenset[str]:
        """The topics meant at the moment."""
        return self._core.topics_meant()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._core.assignment)

    async def wait_for_assignment(
        self, timeout_ms: float | None = None, *, timeout: float | None = None
    ) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads, once there are any; functions of `on_assign` have been awaited then.

        Raises TimedOut after `timeout` seconds (default_api_timeout_ms). No record is handed out by this.
        """
        self._check_started()
        if self._attending:
            return self.assignment()
        self._reader.came_back()
        limit_ms = self._within(timeout_ms, timeout)
        deadline = self._deadline(limit_ms)
        while True:
            if self._queue.attention:
                await self._attend()
            self._check_started()
            if self._core.assignment and not self._queue.attention:
                return self.assignment()
            if not await self._wait(deadline):
                raise unassigned(self._core, limit_ms)

    @property
    def member_id(self) -> str:
        """The name by which the group knows this consumer; empty outside of one."""
        return self._core.commits.committer.member_id

    @property
    def generation(self) -> int:
        """The generation of the group, -1 outside of one: what fences offsets in a store of your own."""
        return self._core.commits.committer.generation

    # Partitions that come and go

    def on_assign(self, function: F) -> F:
        """Call with the partitions that were added, before their first record; seek there if you like."""
        self._callbacks.assign.append(function)
        return function

    def on_revoke(self, function: F) -> F:
        """Call with partitions that will go to other members, while they are still ours: finish and commit here."""
        self._callbacks.revoke.append(function)
        return function

    def on_lost(self, function: F) -> F:
        """Call with partitions that are gone already. Without such a function those of on_revoke are called."""
        self._callbacks.lose.append(function)
        return function

    async def _attend(self) -> None:
        """Do what the engine has for us; raises what went wrong there."""
        if self._attending:
            raise ConfigError(
                "a function for partitions that come and go must not read records", hint="Seek or commit there"
            )
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
            self._core.commits.commit_soon(self._core.consumed())
        self._core.attended()
        if error is not None:
            raise error

    async def _carry_out(self, callback: RebalanceCallback) -> None:
        try:
            if callback.kind == "revoke" and self._settings.commits_by_itself:
                await self._commit_before_revoke(callback)
            await self._tell(callback)
        finally:
            self._reader.let_go(callback)
            callback.finish()

    async def _tell(self, callback: RebalanceCallback) -> None:
        for function in self._callbacks.of(callback):
            outcome = function(sorted(callback.partitions))
            if inspect.isawaitable(outcome):
                await outcome

    async def _commit_before_revoke(self, callback: RebalanceCallback) -> None:
        offsets = self._core.commits.consumed(callback.states)
        try:
            await self._core.commits.commit(offsets, self._settings.default_api_timeout_ms)
        except PenstockError as error:
            _log.warning("offsets of partitions that go were not committed: %s", error)

    # Records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """The records, one by one; ends when the consumer is closed, or nothing came for consumer_timeout_ms."""
        self._check_started()
        cursor, queue = self._cursor, self._queue
        timeout_ms = self._settings.consumer_timeout_ms
        self._reader.came_back()
        if queue.attention:
            await self._attend()
        while True:
            for record in cursor.records:
                cursor.last = record
                yield record
                if queue.attention:
                    break
            else:
                if cursor.advance():
                    await self._yield_to_loop()
                    continue
            if not await self._ready(self._deadline(timeout_ms)):
                return

    async def _yield_to_loop(self) -> None:
        """Give the loop a turn, if it has not had one for a while: heartbeats and fetches need it."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._yielded_at > _YIELD_AFTER_S:
            await asyncio.sleep(0)
            self._yielded_at = loop.time()

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
        loop = asyncio.get_running_loop()
        self._wakened.clear()
        if self._queue.attention or self._queue.has_chunks():
            return True
        now = loop.time()
        if deadline is not None and deadline <= now:
            return False
        # The wait is cut up, so that a visit is seen even if nothing comes for longer than max_poll_interval_ms.
        until = now + self._settings.heartbeat_interval_ms / 1000
        try:
            async with asyncio.timeout_at(until if deadline is None else min(deadline, until)):
                await self._wakened.wait()
        except TimeoutError:
            pass
        self._yielded_at = loop.time()
        self._queue.polled += 1
        return True

    @staticmethod
    def _deadline(timeout_ms: float | None) -> float | None:
        return None if timeout_ms is None else asyncio.get_running_loop().time() + timeout_ms / 1000

    async def poll(
        self, timeout_ms: float | None = None, max_records: int | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Up to `max_records` (max_poll_records) records by partition, as soon as there are any; empty in the end.

        Waits for `timeout` seconds at most, not at all without one. `timeout_ms` is the same in milliseconds, as
        kafka-python has it; so it is wherever both are taken.
        """
        self._check_started()
        most = self._settings.max_poll_records if max_records is None else max_records
        result: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        deadline = self._deadline(milliseconds(timeout, timeout_ms) or 0)
        while await self._ready(deadline) and not self._reader.gather(result, most):
            pass
        return result

    async def batches(
        self, max_records: int = _BATCH_RECORDS, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> AsyncIterator[RecordBatch[K, V]]:
        """Batches of up to `max_records`, of whatever has arrived; ends as the iteration of records does."""
        if max_records < 1:
            raise ConfigError(f"max_records is {max_records}; it must be 1 or more")
        self._check_started()
        timeout_ms = milliseconds(timeout, timeout_ms)
        timeout_ms = self._settings.consumer_timeout_ms if timeout_ms is None else timeout_ms
        while await self._ready(self._deadline(timeout_ms)):
            slices = self._reader.gather_slices(max_records)
            if slices:
                yield self._reader.batch(slices)

    async def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these until `resume`; they stay ours."""
        self._check_started()
        self._reader.came_back()
        await self._core.set_paused(pairs(partitions), True)

    async def resume(self, *partitions: tuple[str, int]) -> None:
        """Hand out records of these again."""
        self._check_started()
        await self._core.set_paused(pairs(partitions), False)

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.partition for state in self._core.assignment.values() if state.paused)

    # Positions

    async def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Go on from this offset."""
        await self._until_assigned()
        await self._core.seek({TopicPartition(*partition): offset})

    async def seek_to_beginning(self, *partitions: str | tuple[str, int]) -> None:
        """Go on from the first record that exists; without arguments in all partitions."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: str | tuple[str, int]) -> None:
        """Go on with what arrives from now on."""
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, partitions: Partitions, when: datetime | float) -> None:
        """Go on from the first record at or after a time (a datetime, or ms since 1970), in topics or partitions."""
        await self._seek_to(partitions, in_ms(when))

    async def _seek_to(self, what: Partitions, time_ms: int) -> None:
        await self._until_assigned()
        meant = partitions_meant(what, self._core.assignment) if what else list(self._core.assignment)
        await self._core.seek_to(meant, time_ms)

    async def _until_assigned(self) -> None:
        """In a group it takes a moment until partitions are ours: wait for the first assignment."""
        self._check_started()
        self._reader.came_back()
        deadline = self._deadline(self._settings.default_api_timeout_ms)
        while not self._core.has_been_assigned and not self._attending:
            if self._queue.attention:
                await self._attend()
            elif not await self._wait(deadline):
                raise unassigned(self._core, self._settings.default_api_timeout_ms)

    async def position(
        self, partition: tuple[str, int], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> int:
        """The offset of the next record to be handed out."""
        await self._until_assigned()
        return await self._core.position(TopicPartition(*partition), self._within(timeout_ms, timeout))

    async def committed(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; partitions for which there is nothing are left out."""
        self._check_started()
        wanted = pairs(partitions) or list(self._core.assignment)
        return await self._core.commits.committed(wanted, self._within(timeout_ms, timeout))

    async def lag(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Records between each position and the end as it is now; without arguments of all partitions."""
        self._check_started()
        self._cursor.settle()
        wanted = pairs(partitions) or list(self._core.assignment)
        return await self._core.lags(wanted, self._within(timeout_ms, timeout))

    async def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record that exists in each partition; asks the brokers."""
        self._check_started()
        return await self._core.beginnings(pairs(partitions), self._within(timeout_ms, timeout))

    async def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read in each partition; asks the brokers."""
        self._check_started()
        return await self._core.ends(pairs(partitions), self._within(timeout_ms, timeout))

    async def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | float],
        *,
        timeout_ms: float | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where no record is that young."""
        self._check_started()
        asked = {TopicPartition(*partition): in_ms(when) for partition, when in times.items()}
        found = await self._core.offsets_at(asked, self._within(timeout_ms, timeout))
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    async def partitions_for_topic(self, topic: str) -> frozenset[int]:
        """The partitions of a topic; empty if it does not exist."""
        self._check_started()
        return await self._core.partitions_of(topic)

    async def topics(self) -> frozenset[str]:
        """The topics of the cluster, those that it keeps for itself left out; asked for anew."""
        self._check_started()
        return await self._core.all_topics()

    def highwater(self, partition: tuple[str, int]) -> int | None:
        """The high watermark of a partition as the last fetch told it: the offset after the last record that may be
        read. None while that is not known; asks nobody. `end_offsets` asks the broker."""
        self._check_started()
        state = self._core.assignment.get(TopicPartition(*partition))
        return None if state is None or state.high_watermark < 0 else state.high_watermark

    def metrics(self) -> Metrics:
        """What this consumer has counted since it was made, and what is so at the moment.

        `on_statistics` is called with the same every `statistics_interval_ms`, on the event loop.
        """
        self._check_started()
        return self._core.metrics()

    # Commits

    async def commit(
        self, what: Committable | None = None, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> None:
        """Commit a record, a batch, offsets by partition, or without argument everything handed out so far.

        A committed offset is that of the next record to read. Raises CommitFailed if the group has moved on.
        """
        self._check_started()
        await self._core.commits.commit(self._reader.offsets_of(what), self._within(timeout_ms, timeout))

    def commit_nowait(
        self,
        what: Committable | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], BaseException | None], object] | None = None,
    ) -> None:
        """`commit` without waiting; `callback(offsets, error)` hears of the outcome."""
        self._check_started()
        self._core.commits.commit_soon(self._reader.offsets_of(what), callback)

    # The end

    async def close(self, timeout: float = _CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """Commit what was handed out (if enable_auto_commit), leave the group, release everything, within `timeout`
        seconds. Again is harmless; from another task it ends an iteration there."""
        await self._close(timeout, autocommit=autocommit, failed=False)

    async def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._started:
            return
        deadline = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._commit_and_revoke(timeout, autocommit, failed)
        except TimeoutError:
            _log.warning("the functions for partitions that go took longer than %s s", timeout)
        finally:
            await self._core.close(max(0.0, deadline - asyncio.get_running_loop().time()) / 2)

    async def _commit_and_revoke(self, timeout: float, autocommit: bool, failed: bool) -> None:
        try:
            if autocommit and self._settings.commits_by_itself:
                await self._core.commits.commit(self._reader.offsets_when_leaving(failed), timeout * 500)
        except PenstockError as error:
            _log.warning("the last offsets were not committed: %s", error)
        states = list(self._core.assignment.values())
        if states and not self._core.subscription.is_manual and self._settings.group_id is not None:
            try:
                await self._tell(
                    RebalanceCallback("revoke", frozenset(one.partition for one in states), states, lambda: None)
                )
            except Exception:  # noqa: BLE001 - closing goes on whatever the user's function does
                _log.exception("a function for partitions that go failed")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(_CLOSE_TIMEOUT_S, autocommit=True, failed=kind is not None)

    def __repr__(self) -> str:
        group = f" of group {self._settings.group_id}" if self._settings.group_id else ""
        state = ", closed" if self._closed else "" if self._started else ", not started"
        return f"<AsyncConsumer{group}{state}>"

    def _within(self, timeout_ms: float | None, timeout: float | None) -> float:
        given_ms = milliseconds(timeout, timeout_ms)
        return self._settings.default_api_timeout_ms if given_ms is None else given_ms

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")

    def _check_started(self) -> None:
        self._check_open()
        if not self._started:
            raise ClosedError("the consumer is not started", hint="Use it in `async with`, or await start() first")
