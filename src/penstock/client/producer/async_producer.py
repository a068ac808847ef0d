"""The asyncio producer: the same core on the caller's loop.

    async with AsyncProducer(address) as producer:
        metadata = await producer.send("views", b"3")     # acknowledged
        delivery = producer.send_nowait("views", b"4")    # enqueued
        await delivery

`await send` returns when the broker has acknowledged the record. `send_nowait` never waits and raises BufferFull when
memory is full; `await producer.room()` first. A record for an unknown topic is kept until its partitions are known,
and is sent before all later ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

from penstock.client.addresses import Addresses
from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BufferFull, ClosedError, PenstockError, TimedOut
from penstock.client.producer.accumulator import Blocked, record_size
from penstock.client.producer.bulk import ColumnsJob, ProducerRecord
from penstock.client.producer.core import (
    INTERRUPTED_CLOSE_S,
    NO_HEADERS,
    PLAIN_HEADERS,
    AnyHeaders,
    ProducerCore,
    plain_bytes,
)
from penstock.client.producer.delivery import BulkMetadata, Delivery
from penstock.client.producer.producer import ProducerCalls, Record
from penstock.client.producer.producer_batch import Completion, OnDelivery, RecordMetadata
from penstock.client.producer.settings import K, ProducerOptions, ProducerSettings, V
from penstock.client.producer.transaction_manager import (
    check_consumer,
)
from penstock.client.serializers.base import AnyEncoder, encoder_from
from penstock.client.settings import settings_from
from penstock.records.kernel import lanes_first

if TYPE_CHECKING:
    import pyarrow

    from penstock.client.consumer.async_consumer import AsyncConsumer

T = TypeVar("T")

_time_ns = time.time_ns


class _Parked(NamedTuple):
    """A record whose topic is being looked up. Its callback is in the completion."""

    completion: Completion
    record: Record
    size: int


class AsyncProducer(ProducerCalls[K, V]):
    """Sends records from one event loop. Connects on `start()`, or on entering `async with`.

    The options are those of `Producer`.
    """

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        key: AnyEncoder[K] | None = None,
        value: AnyEncoder[V] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Raises ConfigError for an invalid option; connecting is `start`, or `async with`."""
        self._settings = settings_from(ProducerSettings, options, "a producer")
        self._core = ProducerCore(
            ClusterClient(bootstrap_servers, settings=self._settings),
            self._settings,
            key=encoder_from(key, "key"),
            value=encoder_from(value, "value"),
        )
        self._core.on_freed = self._freed
        self._encodes = key is not None or value is not None
        self._fast = self._core.fast
        self._lanes = self._core.compiled
        self._moment = self._core.moment
        self._is_started = False
        self._is_closed = False
        self._room_waiters: list[asyncio.Future[None]] = []
        self._parked: dict[str, list[_Parked]] = {}
        self._lookups: set[asyncio.Task[None]] = set()

    async def start(self) -> AsyncProducer[K, V]:
        """Connect; raises BootstrapError if no broker can be reached."""
        if not self._is_started:
            self._core.check_open()
            await self._core.start()
            self._is_started = True
        return self

    # --- sending

    async def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordMetadata:
        """Send a record and wait until the broker has acknowledged it.

        `on_delivery(error, metadata)` is called on the event loop when the outcome is known, even if the waiting task
        was cancelled meanwhile; what it raises is logged. See `Producer.send`.
        """
        return await (await self.enqueue(topic, value, key, headers, partition, timestamp_ms, on_delivery))

    async def enqueue(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Enqueue a record, once there is memory; returns its delivery, to be awaited later or not at all."""
        taken = self._try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if isinstance(taken, Delivery):
            return taken
        return await self._append_after(taken[0], topic, taken[1])

    @lanes_first
    def send_nowait(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Enqueue a record at once; raises BufferFull if memory is full (`await room()` waits for it)."""
        taken = self._try_send(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        if isinstance(taken, Delivery):
            return taken
        blocked, record = taken
        if blocked is Blocked.NO_TOPIC:
            return self._park(topic, record)
        raise BufferFull(
            f"the producer's {self._settings.buffer_memory} bytes are full",
            hint="Await room() before send_nowait, or use send, which waits",
        )

    def _try_send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: AnyHeaders | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery | tuple[Blocked, Record]:
        """Enqueue a record without waiting; else what it has to wait for, and the record, serialized."""
        if self._encodes:
            key, value, headers = self._core.encode(topic, key, value, headers)
        if headers is not None and type(headers) not in PLAIN_HEADERS:
            headers = self._core.encode_headers(headers)
        lanes = self._fast.get(topic)
        if lanes is not None:
            try:
                self._moment.now_ms = _time_ns() // 1_000_000
                delivery = lanes.append(value, key, timestamp_ms, headers, partition, on_delivery)
                if delivery is not None:
                    return delivery
            except (TypeError, ValueError, OverflowError):
                pass  # the slow path finds out which argument is wrong
        record = Record(
            plain_bytes(key, topic, "key"),
            plain_bytes(value, topic, "value"),
            self._core.encode_headers(headers) if headers else NO_HEADERS,
            partition,
            timestamp_ms,
            on_delivery,
        )
        outcome = self._append(topic, record)
        return outcome if not isinstance(outcome, Blocked) else (outcome, record)

    async def send_many(
        self,
        topic: str,
        values: Iterable[V | ProducerRecord | None],
        *,
        keys: Iterable[K | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkMetadata:
        """Send many records and wait until all are acknowledged; raises the error of the first failed one."""
        return await (await self.enqueue_many(topic, values, keys=keys, partition=partition, timestamp_ms=timestamp_ms))

    async def send_arrow(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch, *, partition: int | None = None
    ) -> BulkMetadata:
        """Send the rows of a table and wait until all are acknowledged; see `Producer.send_arrow`."""
        return await (await self._bulk(ColumnsJob(self._core, topic, table, partition)))

    # --- transactions

    @asynccontextmanager
    async def transaction(
        self, *, consumer: AsyncConsumer[Any, Any] | None = None
    ) -> AsyncIterator[AsyncProducer[K, V]]:
        """Begin a transaction, and commit it at the end of the block; abort it if the block raises.

        See `Producer.transaction`.
        """
        check_consumer(consumer, is_async=True)
        await self.begin_transaction()
        try:
            yield self
            await self._commit_processed(consumer)
        except BaseException as error:
            await self._abort_processed(consumer, error)
            raise

    # --- waiting

    async def _on_loop(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        return await work

    def _check_started(self) -> None:
        if not self._is_started:
            raise ClosedError("the producer is not started", hint="Use it in `async with`, or await start() first")

    def _is_held_up(self, topic: str) -> bool:
        return topic in self._parked

    async def _earlier_appended(self, topic: str) -> None:
        while topic in self._parked:
            await asyncio.sleep(0)

    async def _all_appended(self, timeout: float | None) -> float | None:
        begun_s = time.monotonic()
        if self._lookups:
            await asyncio.wait(set(self._lookups), timeout=timeout)
        return None if timeout is None else max(timeout - (time.monotonic() - begun_s), 0)

    async def _wait_for_room(self, deadline_s: float) -> bool:
        try:
            async with asyncio.timeout(max(deadline_s - time.monotonic(), 0)):
                await self.room()
        except TimeoutError:
            return False
        return True

    async def room(self) -> None:
        """Wait until there is memory for another batch."""
        while not self._core.is_closed and not self._core.accumulator.has_room:
            self._core.hurry()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room_waiters.append(future)
            await future
        self._core.check_open()

    def _freed(self) -> None:
        waiters, self._room_waiters = self._room_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    def _park(self, topic: str, record: Record) -> Delivery:
        self._core.check_sending()
        on_delivery = record.on_delivery
        if on_delivery is not None and not callable(on_delivery):
            raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
        size = record_size(record.key, record.value, record.headers)
        self._core.check_size(topic, size)
        if not self._core.accumulator.memory.take(size):
            raise BufferFull(f"the producer's {self._settings.buffer_memory} bytes are full")
        completion = Completion(topic, -1 if record.partition is None else record.partition)
        if on_delivery is not None:
            completion.callbacks.add(0, on_delivery)
        waiting = self._parked.get(topic)
        if waiting is None:
            waiting = self._parked[topic] = []
            task = asyncio.get_running_loop().create_task(self._look_up(topic))
            self._lookups.add(task)
            task.add_done_callback(self._lookups.discard)
        waiting.append(_Parked(completion, record._replace(on_delivery=None), size))
        return Delivery(completion, 0)

    async def _look_up(self, topic: str) -> None:
        """Look up a topic, then send what waits for it, in order."""
        core, waiting = self._core, self._parked[topic]
        failure: Exception = ClosedError("the producer was closed before the topic was known")
        try:
            await core.learn_topic(topic, max(int(self._settings.max_block_ms), 1))
            while waiting:
                parked = waiting[0]
                core.accumulator.memory.give_back(parked.size)
                taken = core.append(topic, *parked.record)
                if isinstance(taken, Blocked):
                    core.accumulator.memory.used += parked.size
                    await self.room()
                    continue
                waiting.pop(0)
                parked.completion.divide([(0, taken._completion, taken.index)])
        except PenstockError as error:
            failure = error
        finally:
            del self._parked[topic]
            for parked in waiting:
                core.accumulator.memory.give_back(parked.size)
                parked.completion.fail(failure)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is acknowledged or has failed; raises TimedOut after `timeout` seconds."""
        left_s = await self._all_appended(timeout)
        if self._lookups or not await self._core.flush(left_s):
            raise TimedOut(f"not everything was acknowledged within {timeout} s", hint="The rest is still being sent")

    async def close(self, timeout: float | None = None) -> None:
        """Send what waits, for at most `timeout` seconds, and close all connections. It may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        limit_s = self._settings.delivery_timeout_ms / 1000 if timeout is None else max(timeout, 0)
        begun_s = time.monotonic()
        if self._lookups:
            await asyncio.wait(set(self._lookups), timeout=limit_s)
            for task in self._lookups:
                task.cancel()
            if self._lookups:
                await asyncio.wait(set(self._lookups))
        await self._core.close(max(limit_s - (time.monotonic() - begun_s), 0))

    async def __aenter__(self) -> AsyncProducer[K, V]:
        try:
            return await self.start()
        except BaseException:
            await self.close(0)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a cancellation, by Ctrl-C for example, do not wait long for a broker that may be down.
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        await self.close(INTERRUPTED_CLOSE_S if is_interrupted else None)
