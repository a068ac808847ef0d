"""The blocking consumer, for one thread of the application.

    with Consumer("views", bootstrap_servers=address, group_id="feed", auto_offset_reset="earliest") as consumer:
        for record in consumer:
            handle(record.value)

Fetching, heartbeats and look-ups run on a background loop shared by all blocking clients of the process; decoding and
rebalance callbacks run in the application's thread, inside `poll`, `batches` or the iteration, and finish before the
partitions are given back. Threads exchange chunks of up to max_partition_fetch_bytes, never single records. Between
two records one flag is checked, so a rebalance waits for one record, not for a batch.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.background import Background
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

T = TypeVar("T")

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT_S = 10.0
_EXIT_TIMEOUT_S = 3.0
_CLEANUP_S = 1.0
_BATCH_RECORDS = 50_000


class Consumer(Generic[K, V]):
    """Reads topics. Keys and values are bytes, unless `key` and `value` say how to decode them; null stays None.

    `key` and `value` are serializers, objects with `decode(topic, data)`, or functions of the bytes.
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
        """Connects; raises BootstrapError if no address leads to a broker, ConfigError for options that make no sense.

        Topics by name, or by `pattern` and `exclude`, regular expressions for the whole name. Without `group_id` all
        partitions are read; in a group its members share them.
        """
        settings = settings_from(ConsumerSettings, options, "a consumer")
        decoders = decoder_from(key, "key"), decoder_from(value, "value")
        subscription = checked_subscription(topics, pattern, exclude)
        self._background = Background.acquire()
        try:
            self._core = ConsumerCore(bootstrap_servers, settings, post=self._background.call)
            self._reader: Reader[K, V] = Reader(settings, self._core, *decoders)
            self._cursor = self._reader.cursor
            self._queue = self._core.queue
            self._callbacks = RebalanceCallbacks()
            self._wakened = threading.Event()
            self._queue.wake = self._wakened.set
            self._attending = False
            self._iteration: Iterator[ConsumerRecord[K, V]] | None = None
            self._settings = settings
            self._background.run(self._start(subscription))
        except BaseException:
            self._background.release()
            raise
        self._closed = False
        _open.add(self)

    async def _start(self, subscription: SubscriptionRequest) -> None:
        try:
            await self._core.start()
            if not subscription.is_empty:
                await self._core.want(subscription)
        except BaseException:
            await self._core.close()
            raise

    # What to read

    def subscribe(
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
        self._want(subscription)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions; no group moves them."""
        try:
            self._want(assignment_request(partitions))
        except ValueError as reason:
            raise ConfigError(str(reason)) from None

    def unsubscribe(self) -> None:
        """Read nothing, and leave the group."""
        self._want(SubscriptionRequest())

    def _want(self, subscription: SubscriptionRequest) -> None:
        self._reader.came_back()
        self._run(self._core.want(subscription))

    def subscription(self) -> frozenset[str]:
        """The topics meant at the moment."""
        return self._core.topics_meant()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return frozenset(self._core.assignment)

    def wait_for_assignment(
        self, timeout_ms: float | None = None, *, timeout: float | None = None
    ) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads, once there are any; functions of `on_assign` have been called then.

        Raises TimedOut after `timeout` seconds (default_api_timeout_ms). No record is handed out by this.
        """
        self._check_open()
        if self._attending:
            return self.assignment()
        self._reader.came_back()
        limit_ms = self._within(timeout_ms, timeout)
        deadline = time.monotonic() + limit_ms / 1000
        while True:
            if self._queue.attention:
                self._attend()
            self._check_open()
            # On the loop, a state is there only together with the duty to hear of it.
            found = self._run(self._core.assigned()) if self._core.assignment else None
            if found and not self._queue.attention:
                return found
            if not self._wait(deadline):
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

    def _attend(self) -> None:
        """Do what the background has for us; raises what went wrong there."""
        if self._attending:
            raise ConfigError(
                "a function for partitions that come and go must not read records", hint="Seek or commit there"
            )
        callbacks, error, commit_due = self._queue.attend()
        self._reader.tidy()
        self._attending = True
        try:
            while callbacks:
                self._carry_out(callbacks.pop(0))
        finally:
            self._attending = False
            self._queue.put_back(callbacks)
        if commit_due and not self._closed:
            self._background.call(self._core.commits.commit_soon, self._core.consumed())
        self._background.call(self._core.attended)
        if error is not None:
            raise error

    def _carry_out(self, callback: RebalanceCallback) -> None:
        try:
            if callback.kind == "revoke" and self._settings.commits_by_itself:
                self._commit_before_revoke(callback)
            for function in self._callbacks.of(callback):
                function(sorted(callback.partitions))
        finally:
            self._reader.let_go(callback)
            callback.finish()

    def _commit_before_revoke(self, callback: RebalanceCallback) -> None:
        offsets = self._core.commits.consumed(callback.states)
        try:
            self._run(self._core.commits.commit(offsets, self._settings.default_api_timeout_ms))
        except PenstockError as error:
            _log.warning("offsets of partitions that go were not committed: %s", error)

    # Records

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
        cursor, queue = self._cursor, self._queue
        timeout_ms = self._settings.consumer_timeout_ms
        self._check_open()
        self._reader.came_back()
        if queue.attention:
            self._attend()
        while True:
            for record in cursor.records:
                cursor.last = record
                yield record
                if queue.attention:
                    break
            else:
                if cursor.advance():
                    continue
            if not self._ready(_deadline(timeout_ms)):
                return

    def _ready(self, deadline: float | None) -> bool:
        """Wait until there is something to read; False if there is nothing by then, or never will be."""
        self._reader.came_back()
        while True:
            if self._queue.attention:
                self._attend()
            if self._closed or self._queue.closed:
                return False
            if self._cursor.chunk is not None or self._reader.begin_next():
                return True
            if not self._wait(deadline):
                return False

    def _wait(self, deadline: float | None) -> bool:
        self._wakened.clear()
        if self._queue.attention or self._queue.has_chunks():
            return True
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            return False
        # The wait is cut up, so that a visit is seen even if nothing comes for longer than max_poll_interval_ms.
        longest_s = self._settings.heartbeat_interval_ms / 1000
        self._wakened.wait(longest_s if left_s is None else min(left_s, longest_s))
        self._queue.polled += 1
        return True

    def poll(
        self, timeout_ms: float | None = None, max_records: int | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """Up to `max_records` (max_poll_records) records by partition, as soon as there are any; empty in the end.

        Waits for `timeout` seconds at most, not at all without one. `timeout_ms` is the same in milliseconds, as
        kafka-python has it; so it is wherever both are taken.
        """
        self._check_open()
        most = self._settings.max_poll_records if max_records is None else max_records
        result: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        deadline = time.monotonic() + (milliseconds(timeout, timeout_ms) or 0) / 1000
        while self._ready(deadline) and not self._reader.gather(result, most):
            pass
        return result

    def batches(
        self, max_records: int = _BATCH_RECORDS, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> Iterator[RecordBatch[K, V]]:
        """Batches of up to `max_records`, of whatever has arrived; ends as the iteration of records does."""
        if max_records < 1:
            raise ConfigError(f"max_records is {max_records}; it must be 1 or more")
        self._check_open()
        timeout_ms = milliseconds(timeout, timeout_ms)
        timeout_ms = self._settings.consumer_timeout_ms if timeout_ms is None else timeout_ms
        while self._ready(_deadline(timeout_ms)):
            slices = self._reader.gather_slices(max_records)
            if slices:
                yield self._reader.batch(slices)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Hand out no records of these until `resume`; they stay ours."""
        self._reader.came_back()
        self._run(self._core.set_paused(pairs(partitions), True))

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Hand out records of these again."""
        self._run(self._core.set_paused(pairs(partitions), False))

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(state.partition for state in self._core.assignment.values() if state.paused)

    # Positions

    def seek(self, partition: tuple[str, int], offset: int | OffsetAndMetadata) -> None:
        """Go on from this offset."""
        self._until_assigned()
        self._run(self._core.seek({TopicPartition(*partition): offset}))

    def seek_to_beginning(self, *partitions: str | tuple[str, int]) -> None:
        """Go on from the first record that exists; without arguments in all partitions."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: str | tuple[str, int]) -> None:
        """Go on with what arrives from now on."""
        self._seek_to(partitions, LATEST)

    def seek_to_time(self, partitions: Partitions, when: datetime | float) -> None:
        """Go on from the first record at or after a time (a datetime, or ms since 1970), in topics or partitions."""
        self._seek_to(partitions, in_ms(when))

    def _seek_to(self, what: Partitions, time_ms: int) -> None:
        self._until_assigned()
        meant = partitions_meant(what, self._core.assignment) if what else list(self._core.assignment)
        self._run(self._core.seek_to(meant, time_ms))

    def _until_assigned(self) -> None:
        """In a group it takes a moment until partitions are ours: wait for the first assignment."""
        self._check_open()
        self._reader.came_back()
        deadline = time.monotonic() + self._settings.default_api_timeout_ms / 1000
        while not self._core.has_been_assigned and not self._attending:
            if self._queue.attention:
                self._attend()
            elif not self._wait(deadline):
                raise unassigned(self._core, self._settings.default_api_timeout_ms)

    def position(
        self, partition: tuple[str, int], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> int:
        """The offset of the next record to be handed out."""
        self._until_assigned()
        return self._run(self._core.position(TopicPartition(*partition), self._within(timeout_ms, timeout)))

    def committed(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed; partitions for which there is nothing are left out."""
        wanted = pairs(partitions) or list(self._core.assignment)
        return self._run(self._core.commits.committed(wanted, self._within(timeout_ms, timeout)))

    def lag(
        self, *partitions: tuple[str, int], timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Records between each position and the end as it is now; without arguments of all partitions."""
        self._cursor.settle()
        wanted = pairs(partitions) or list(self._core.assignment)
        return self._run(self._core.lags(wanted, self._within(timeout_ms, timeout)))

    def beginning_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record that exists in each partition; asks the brokers."""
        return self._run(self._core.beginnings(pairs(partitions), self._within(timeout_ms, timeout)))

    def end_offsets(
        self, partitions: Iterable[tuple[str, int]], *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read in each partition; asks the brokers."""
        return self._run(self._core.ends(pairs(partitions), self._within(timeout_ms, timeout)))

    def offsets_for_times(
        self,
        times: Mapping[tuple[str, int], datetime | float],
        *,
        timeout_ms: float | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where no record is that young."""
        asked = {TopicPartition(*partition): in_ms(when) for partition, when in times.items()}
        found = self._run(self._core.offsets_at(asked, self._within(timeout_ms, timeout)))
        return {partition: one if one.offset >= 0 else None for partition, one in found.items()}

    def partitions_for_topic(self, topic: str) -> frozenset[int]:
        """The partitions of a topic; empty if it does not exist."""
        return self._run(self._core.partitions_of(topic))

    def topics(self) -> frozenset[str]:
        """The topics of the cluster, those that it keeps for itself left out; asked for anew."""
        return self._run(self._core.all_topics())

    def highwater(self, partition: tuple[str, int]) -> int | None:
        """The high watermark of a partition as the last fetch told it: the offset after the last record that may be
        read. None while that is not known; asks nobody. `end_offsets` asks the broker."""
        state = self._core.assignment.get(TopicPartition(*partition))
        return None if state is None or state.high_watermark < 0 else state.high_watermark

    def metrics(self) -> Metrics:
        """What this consumer has counted since it was made, and what is so at the moment.

        `on_statistics` is called with the same every `statistics_interval_ms`, on the background's thread.
        """
        return self._core.metrics()

    # Commits

    def commit(
        self, what: Committable | None = None, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> None:
        """Commit a record, a batch, offsets by partition, or without argument everything handed out so far.

        A committed offset is that of the next record to read. Raises CommitFailed if the group has moved on.
        """
        self._check_open()
        offsets = self._reader.offsets_of(what)
        self._run(self._core.commits.commit(offsets, self._within(timeout_ms, timeout)))

    def commit_async(
        self,
        what: Committable | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], BaseException | None], object] | None = None,
    ) -> None:
        """`commit` without waiting; `callback(offsets, error)` is called on the background's thread."""
        self._check_open()
        self._background.call(self._core.commits.commit_soon, self._reader.offsets_of(what), callback)

    # The end

    def close(self, timeout: float = _CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """Commit what was handed out (if enable_auto_commit), leave the group, release everything, within `timeout`
        seconds. Again is harmless; from another thread it ends an iteration there."""
        self._close(timeout, autocommit=autocommit, failed=False)

    def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        deadline = time.monotonic() + timeout
        try:
            self._commit_and_revoke(deadline, autocommit, failed)
            left_s = max(0.0, deadline - time.monotonic())
            self._background.run(self._core.close(left_s / 2), left_s + _CLEANUP_S)
        except PenstockError as error:
            _log.warning("the consumer was not closed in time: %s", error)
        finally:
            self._queue.close()
            self._background.release()

    def _commit_and_revoke(self, deadline: float, autocommit: bool, failed: bool) -> None:
        try:
            if autocommit and self._settings.commits_by_itself:
                offsets = self._reader.offsets_when_leaving(failed)
                left_ms = max(1.0, (deadline - time.monotonic()) * 500)
                self._background.run(self._core.commits.commit(offsets, left_ms))
        except PenstockError as error:
            _log.warning("the last offsets were not committed: %s", error)
        states = list(self._core.assignment.values())
        if states and not self._core.subscription.is_manual and self._settings.group_id is not None:
            callback = RebalanceCallback("revoke", frozenset(state.partition for state in states), states, lambda: None)
            for function in self._callbacks.of(callback):
                try:
                    function(sorted(callback.partitions))
                except Exception:  # noqa: BLE001 - closing goes on whatever the user's function does
                    _log.exception("a function for partitions that go failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(_CLOSE_TIMEOUT_S, autocommit=True, failed=kind is not None)

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)
            self._background.call(self._core.end_soon)
            self._background.release()

    def __repr__(self) -> str:
        group = f" of group {self._settings.group_id}" if self._settings.group_id else ""
        return f"<Consumer{group}, {len(self._core.assignment)} partitions{', closed' if self._closed else ''}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._closed and not self._attending:
            work.close()
            raise ClosedError("the consumer is closed")
        return self._background.run(work)

    def _within(self, timeout_ms: float | None, timeout: float | None) -> float:
        given_ms = milliseconds(timeout, timeout_ms)
        return self._settings.default_api_timeout_ms if given_ms is None else given_ms

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the consumer is closed")


def _deadline(timeout_ms: float | None) -> float | None:
    return None if timeout_ms is None else time.monotonic() + timeout_ms / 1000


_open: weakref.WeakSet[Consumer[Any, Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The interpreter ends: leave the groups, so that nobody waits for sessions to end."""
    for consumer in list(_open):
        consumer.close(_EXIT_TIMEOUT_S, autocommit=False)
