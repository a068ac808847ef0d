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
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from penstock.client.addresses import Addresses
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.consumer import BATCH_RECORDS, CLOSE_TIMEOUT_S, ConsumerCalls
from penstock.client.consumer.coordinator import OnCommit
from penstock.client.consumer.core import ConsumerCore, Pattern
from penstock.client.consumer.reader import Committable, K, RecordBatch, V, checked_subscription
from penstock.client.consumer.settings import ConsumerOptions, ConsumerSettings
from penstock.client.errors import ClosedError
from penstock.client.serializers.base import AnyDecoder
from penstock.client.settings import settings_from
from penstock.records.kernel import ConsumerRecord

T = TypeVar("T")

_log = logging.getLogger(__name__)
_YIELD_AFTER_S = 0.005


class AsyncConsumer(ConsumerCalls[K, V]):
    """Reads topics. Keys and values are bytes unless `key` and `value` decode them; null stays None."""

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
        """Raises ConfigError for an invalid option; connecting is `start`, or `async with`.

        Name the topics, or select them by `pattern` and `exclude`, regular expressions for the whole name. Without
        `group_id` all partitions are read; in a group its members share them.
        """
        settings = settings_from(ConsumerSettings, options, "a consumer")
        self._subscription = checked_subscription(topics, pattern, exclude)
        self._wakened = asyncio.Event()
        self._set_up(ConsumerCore(bootstrap_servers, settings, post=self._soon), key, value, self._wakened.set)

    async def start(self) -> None:
        """Connect; raises BootstrapError if no broker can be reached."""
        if self._started:
            return
        if self._closed:
            raise ClosedError("the consumer is closed")
        self._loop = asyncio.get_running_loop()
        self._yielded_at = self._loop.time()
        self._started = True
        try:
            await self._core.open(self._subscription)
        except BaseException:
            self._closed = True
            raise

    # ------------------------------------------------------------------------------------------ primitives

    def _soon(self, function: Callable[[], object]) -> None:
        self._loop.call_soon(function)

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)

    async def _call(self, function: Callable[..., Any], partitions: list[TopicPartition]) -> None:
        outcome = function(partitions)
        if inspect.isawaitable(outcome):
            await outcome

    async def _wait_for_wake(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wakened.wait()
        except TimeoutError:
            pass
        self._yielded_at = self._loop.time()

    def _clear_wake(self) -> None:
        self._wakened.clear()

    def _now_s(self) -> float:
        return self._loop.time()

    async def _yield_to_loop(self) -> None:
        """Heartbeats and fetches need a turn of the loop now and then."""
        if self._loop.time() - self._yielded_at > _YIELD_AFTER_S:
            await asyncio.sleep(0)
            self._yielded_at = self._loop.time()

    # ------------------------------------------------------------------------------------------ records

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord[K, V]]:
        """The records, one by one; ends when the consumer is closed, or nothing came for consumer_timeout_ms."""
        self._check_open()
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

    async def batches(
        self, max_records: int = BATCH_RECORDS, *, timeout_ms: float | None = None, timeout: float | None = None
    ) -> AsyncIterator[RecordBatch[K, V]]:
        """Batches of up to `max_records` of what has arrived; ends like the iteration of records."""
        limit_ms = self._batch_timeout_ms(max_records, timeout_ms, timeout)
        while await self._ready(self._deadline(limit_ms)):
            slices = self._reader.gather_slices(max_records)
            if slices:
                yield self._reader.batch(slices)

    def commit_nowait(self, what: Committable | None = None, callback: OnCommit | None = None) -> None:
        """`commit` without waiting; `callback(offsets, error)` is called with the outcome."""
        self._commit_soon(what, callback)

    # ------------------------------------------------------------------------------------------ the end

    async def close(self, timeout: float = CLOSE_TIMEOUT_S, *, autocommit: bool = True) -> None:
        """Commit what was handed out (if enable_auto_commit), leave the group and close all connections, within
        `timeout` seconds. Calling it twice is allowed; from another task it ends an iteration there."""
        await self._close(timeout, autocommit=autocommit, failed=False)

    async def _close(self, timeout: float, *, autocommit: bool, failed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._started:
            return
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._commit_and_revoke(timeout, autocommit=autocommit, failed=failed)
        except TimeoutError:
            _log.warning("revoke callbacks did not finish in time: timeout_s=%s", timeout)
        finally:
            await self._core.close(max(0.0, deadline - self._loop.time()) / 2)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(CLOSE_TIMEOUT_S, autocommit=True, failed=kind is not None)

    def __repr__(self) -> str:
        group = f" of group {self._settings.group_id}" if self._settings.group_id else ""
        state = ", closed" if self._closed else "" if self._started else ", not started"
        return f"<AsyncConsumer{group}{state}>"
