"""The blocking producer. Thread-safe; its I/O runs on a background loop.

    with Producer("localhost:9092", value=Json(View), linger_ms=5) as producer:
        delivery = producer.send("views", View(1), key="u1", headers={"src": b"web"})
        metadata = delivery.result(timeout=5)

`send` returns at once while there is memory, at the cost of one call into the kernel. It waits up to `max_block_ms`
for memory and for the partitions of a new topic, never for a broker's response; that is what the `Delivery` is for. A
producer that was not closed is flushed at the interpreter's exit, for at most 5 s, with a warning.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Unpack

from penstock.client.addresses import Addresses
from penstock.client.background import Background
from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BufferFull, ClosedError, PenstockError, TimedOut
from penstock.client.producer.accumulator import Blocked
from penstock.client.producer.bulk import BulkJob, ColumnsJob, ProducerRecord, values_job
from penstock.client.producer.core import (
    INTERRUPTED_CLOSE_S,
    NO_HEADERS,
    PLAIN_HEADERS,
    AnyHeaders,
    ProducerCore,
    plain_bytes,
)
from penstock.client.producer.delivery import BulkDelivery, Delivery
from penstock.client.producer.producer_batch import OnDelivery, wait_for_all
from penstock.client.producer.settings import K, ProducerOptions, ProducerSettings, V
from penstock.client.serializers.base import AnyEncoder, Encoder, encoder_from
from penstock.client.settings import Metrics, settings_from

if TYPE_CHECKING:
    import pyarrow

_log = logging.getLogger("penstock.producer")
_EXIT_FLUSH_S: Final = 5.0
_CLOSE_GRACE_S: Final = 5.0  # for closing connections, after the time-out of close()
_time_ns = time.time_ns


class Producer(Generic[K, V]):
    """Sends records; thread-safe.

    `key` and `value` are serializers, objects with `encode(topic, value)`, or functions of the value. Without them,
    keys and values are bytes or str.
    """

    _is_closed = True  # until it is open: __del__ runs after a failed __init__, too

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        key: AnyEncoder[K] | None = None,
        value: AnyEncoder[V] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """Connect; raises BootstrapError if no broker can be reached, ConfigError for an invalid option."""
        settings = settings_from(ProducerSettings, options, "a producer")
        encoders = encoder_from(key, "key"), encoder_from(value, "value")
        self._background = Background.acquire()
        try:
            self._core: ProducerCore = self._background.run(_started(bootstrap_servers, settings, *encoders))
        except BaseException:
            self._background.release()
            raise
        self._settings = settings
        self._encodes = key is not None or value is not None
        self._fast = self._core.fast
        self._moment = self._core.moment
        self._room = threading.Condition(self._core.lock)
        self._waiting_for_room = 0
        self._closing = threading.Lock()
        self._is_closed = False
        core_room = weakref.WeakMethod(self._freed)
        self._core.on_freed = lambda: wake() if (wake := core_room()) is not None else None
        _open.add(self)

    # --- sending

    def send(
        self,
        topic: str,
        value: V | None = None,
        key: K | None = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Enqueue a record. Raises BufferFull if memory was full for max_block_ms, SerializationError, RecordTooLarge,
        ClosedError; errors of brokers are raised by the Delivery.

        `on_delivery(error, metadata)` is called once, when the record is acknowledged (`error` is None) or has failed
        (`metadata.offset` is -1). Callbacks of a partition run in the order of its records, on the thread of the event
        loop: one that blocks delays all blocking clients of the process. What it raises is logged. `flush` and `close`
        return after the callbacks have run.
        """
        if self._encodes:
            key, value = self._core.encode_key(topic, key), self._core.encode_value(topic, value)  # type: ignore[assignment]
        if headers is not None and type(headers) not in PLAIN_HEADERS:
            headers = self._core.encode_headers(headers)
        lanes = self._fast.get(topic)
        if lanes is not None:
            try:
                self._moment.now_ms = _time_ns() // 1_000_000
                delivery = lanes.append(value, key, timestamp_ms, headers, partition, on_delivery)  # type: ignore[arg-type]
                if delivery is not None:
                    return delivery
            except (TypeError, ValueError, OverflowError):
                pass  # `_send_slowly` finds out which argument is wrong
        return self._send_slowly(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def _send_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: AnyHeaders | None,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        return self._send_bytes(
            topic, plain_bytes(key, topic, "key"), plain_bytes(value, topic, "value"),
            self._core.encode_headers(headers) if headers else NO_HEADERS, partition, timestamp_ms, on_delivery,
        )  # fmt: skip

    def _send_bytes(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> Delivery:
        deadline_s: float | None = None
        while True:
            taken = self._core.append(topic, key, value, headers, partition, timestamp_ms, on_delivery)
            if not isinstance(taken, Blocked):
                return taken
            if deadline_s is None:
                deadline_s = time.monotonic() + self._settings.max_block_ms / 1000
            self._wait(taken, topic, deadline_s)

    def send_many(
        self,
        topic: str,
        values: Iterable[V | ProducerRecord | None],
        *,
        keys: Iterable[K | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkDelivery:
        """Enqueue many records: values, with one key each if `keys` is given, or `ProducerRecord`s.

        Waits as `send` does. If memory stays full after some records were accepted, the others fail in the delivery,
        with BufferFull.
        """
        return self._bulk(values_job(self._core, topic, values, keys, partition, timestamp_ms))

    def send_arrow(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch, *, partition: int | None = None
    ) -> BulkDelivery:
        """Enqueue the rows of a table: its columns `value` and, if present, `key`, `timestamp`, `headers` and
        `partition`. Serializers are not used. Interceptors see its batches, not its records."""
        return self._bulk(ColumnsJob(self._core, topic, table, partition))

    def _bulk(self, job: BulkJob) -> BulkDelivery:
        while (blocked := job.step()) is not None:
            try:
                self._wait(blocked, job.topic, time.monotonic() + self._settings.max_block_ms / 1000)
            except PenstockError as error:
                if not job.has_begun:
                    raise
                job.give_up(error)
                break
        return job.delivery()

    def _wait(self, blocked: Blocked, topic: str, deadline_s: float) -> None:
        """Wait for memory or metadata; raises if there is none in time."""
        left_s = deadline_s - time.monotonic()
        if blocked is Blocked.NO_TOPIC:
            self._background.run(self._core.learn_topic(topic, max(int(left_s * 1000), 1)), left_s + 1)
            return
        if self._background.on_loop:
            raise BufferFull(
                "memory is full, and a delivery callback cannot wait for it",
                hint="Send from another thread, or raise buffer_memory",
            )
        with self._room:
            self._waiting_for_room += 1
            try:
                if left_s <= 0 or not self._room.wait_for(self._may_have_room, left_s):
                    raise BufferFull(
                        f"the producer's {self._settings.buffer_memory} bytes were full for "
                        f"{self._settings.max_block_ms:.0f} ms"
                    )
            finally:
                self._waiting_for_room -= 1

    def _may_have_room(self) -> bool:
        return self._core.is_closed or self._core.accumulator.has_room

    def _freed(self) -> None:
        if self._waiting_for_room:
            with self._room:
                self._room.notify_all()

    # --- waiting

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is acknowledged or has failed, and the callbacks have run.

        Raises TimedOut after `timeout` seconds.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        batches = self._core.hurry()
        if self._background.on_loop:
            raise ClosedError("flush() in a delivery callback would wait for itself")
        if not wait_for_all(batches, timeout):
            left = sum(not batch.is_done for batch in batches)
            raise TimedOut(f"{left} batches were not acknowledged within {timeout} s", hint="They are still being sent")
        if self._core.accumulator.usage.has_callbacks:
            # Callbacks run on the loop as soon as their batch is done, so they have run when this has.
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
            self._background.run(_turn(), left_s)

    def partitions_for(self, topic: str) -> frozenset[int]:
        """The partitions of a topic; waits up to max_block_ms if they are not known yet."""
        partitions = self._core.partitions_of(topic)
        if partitions is None:
            self._wait(Blocked.NO_TOPIC, topic, time.monotonic() + self._settings.max_block_ms / 1000)
            partitions = self._core.partitions_of(topic) or frozenset()
        return partitions

    def metrics(self) -> Metrics:
        """Counters since this producer was created, and current values; may be called from any thread.

        `on_statistics` is called with the same dictionary every `statistics_interval_ms`, on the thread of the event
        loop, which it must not block.
        """
        return self._core.metrics()

    def close(self, timeout: float | None = None) -> None:
        """Send what waits, for at most `timeout` seconds, and close all connections. It may be called twice.

        Without a time-out it takes at most delivery_timeout_ms. Records that are not acknowledged by then fail with
        ClosedError.
        """
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        _open.discard(self)
        self._core.stop_accepting()
        try:
            limit_s = self._settings.delivery_timeout_ms / 1000 if timeout is None else max(timeout, 0)
            if self._background.on_loop:
                self._background.loop.create_task(self._core.close(0))
            else:
                self._background.run(self._core.close(limit_s), limit_s + _CLOSE_GRACE_S)
        except BaseException:
            # Most likely Ctrl-C: fail what waits at once.
            self._background.call(_close_now, self._core)
            raise
        finally:
            self._background.release()

    def __enter__(self) -> Producer[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C, do not wait long for a broker that may be down.
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        self.close(INTERRUPTED_CLOSE_S if is_interrupted else None)

    def __del__(self) -> None:
        if not self._is_closed:
            warnings.warn("a Producer was not closed; its records are still delivered", ResourceWarning, stacklevel=2)
            self._is_closed = True
            _abandon(self._background, self._core, self._settings.delivery_timeout_ms / 1000)


async def _started(
    bootstrap_servers: Addresses,
    settings: ProducerSettings,
    key: Encoder[Any] | None,
    value: Encoder[Any] | None,
) -> ProducerCore:
    cluster = ClusterClient(bootstrap_servers, settings=settings)
    core = ProducerCore(cluster, settings, key=key, value=value, is_waited_for_by_threads=True)
    try:
        await core.start()
    except BaseException:
        await core.close(0)
        raise
    return core


async def _turn() -> None:
    """Does nothing: waiting for it is waiting for one turn of the loop."""


def _close_now(core: ProducerCore) -> None:
    import asyncio

    task = asyncio.ensure_future(core.close(0))
    _ending.add(task)
    task.add_done_callback(_ending.discard)


def _abandon(background: Background, core: ProducerCore, timeout_s: float) -> None:
    """The producer was garbage-collected: send its records, then close everything."""
    import asyncio

    core.stop_accepting()

    async def finish() -> None:
        try:
            await core.close(timeout_s)
        finally:
            # The last release joins the loop's thread, which this is.
            threading.Thread(target=background.release, name="penstock-release", daemon=True).start()

    def begin() -> None:
        task = asyncio.ensure_future(finish())
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    background.call(begin)


_ending: set[Any] = set()
_open: weakref.WeakSet[Producer[Any, Any]] = weakref.WeakSet()


def _at_exit() -> None:
    deadline_s = time.monotonic() + _EXIT_FLUSH_S
    for producer in list(_open):
        left = len(producer._core.accumulator.undone())
        _log.warning(
            "a producer was not closed before the interpreter's exit; %s",
            f"sending its records for up to {_EXIT_FLUSH_S:.0f} s" if left else "it has nothing left to send",
        )
        try:
            producer.close(max(deadline_s - time.monotonic(), 0))
        except Exception:  # noqa: BLE001 - the interpreter ends anyway
            _log.exception("a producer could not be closed")


# Registered after Background's handler, so it runs before that one, while the loop is still there.
atexit.register(_at_exit)
