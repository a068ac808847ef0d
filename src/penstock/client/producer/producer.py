"""The calls of a producer that wait, written once, and the blocking producer.

    with Producer("localhost:9092", value=Json(View), linger_ms=5) as producer:
        delivery = producer.send("views", View(1), key="u1", headers={"src": b"web"})
        metadata = delivery.result(timeout=5)

A `Producer` is thread-safe; its I/O runs on a background loop. `send` returns at once while there is memory, at the
cost of one call into the kernel. It waits up to `max_block_ms` for memory and for the partitions of a new topic, never
for a broker's response; that is what the `Delivery` is for. A producer that was not closed is flushed at the
interpreter's exit, for at most 5 s, with a warning.

`ProducerCalls` has the calls as coroutines, over two primitives: wait for memory or a topic, and run something on the
loop. `AsyncProducer` implements these by awaiting; here they block, and `run_here` runs the coroutines to their end in
the caller's thread. `send`, `flush` and `close` are written for each (docs/decisions/026).
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, Unpack

from penstock.client.addresses import Addresses
from penstock.client.background import Background, blocking, run_here
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
from penstock.client.producer.interceptors import Headers
from penstock.client.producer.producer_batch import OnDelivery, wait_for_all
from penstock.client.producer.settings import K, ProducerOptions, ProducerSettings, V
from penstock.client.producer.transaction_manager import (
    Offsets,
    TransactionManager,
    check_consumer,
    checked_group,
    checked_offsets,
)
from penstock.client.serializers.base import AnyEncoder, Encoder, encoder_from
from penstock.client.settings import Metrics, settings_from
from penstock.client.transactions import GroupMetadata, PreparedTransaction
from penstock.records.kernel import lanes_first

if TYPE_CHECKING:
    import pyarrow

    from penstock.client.consumer.async_consumer import AsyncConsumer
    from penstock.client.consumer.consumer import Consumer

T = TypeVar("T")

_log = logging.getLogger("penstock.producer")
_EXIT_FLUSH_S: Final = 5.0
_DRIVEN_S: Final = 0.05  # for the batch that a commit finds unsent; the loop waits for the others
_CLOSE_GRACE_S: Final = 5.0  # for closing connections, after the time-out of close()
_time_ns = time.time_ns


class Record(NamedTuple):
    """A serialized record: the arguments of `ProducerCore.append`."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    timestamp_ms: int | None
    on_delivery: OnDelivery | None


class ProducerCalls(Generic[K, V]):
    """The calls as coroutines."""

    _core: ProducerCore
    _settings: ProducerSettings

    # ------------------------------------------------------------------------------------------ primitives

    @abstractmethod
    async def _on_loop(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        """Run a coroutine, which ends by itself within `limit_s`, on the event loop of the core."""

    @abstractmethod
    async def _wait_for_room(self, deadline_s: float) -> bool:
        """Wait until there may be memory for another batch, or the producer is closed; False at the deadline."""

    def _check_started(self) -> None:
        """Raises ClosedError before the start."""

    def _is_held_up(self, topic: str) -> bool:
        """Whether earlier records of the topic have to be appended first."""
        return False

    async def _earlier_appended(self, topic: str) -> None:
        """Wait until `_is_held_up` is over."""

    async def _all_appended(self, timeout: float | None) -> float | None:
        """Wait until nothing is held up; returns what is left of the time-out."""
        return timeout

    def _commit_here(self, transactions: TransactionManager, timeout: float | None) -> tuple[bool, float | None]:
        """Commit in the calling thread, if that is possible now; returns whether, and what is left of the time-out."""
        return False, timeout

    # ------------------------------------------------------------------------------------------ sending

    def _append(self, topic: str, record: Record) -> Delivery | Blocked:
        return Blocked.NO_TOPIC if self._is_held_up(topic) else self._core.append(topic, *record)

    async def _append_after(self, blocked: Blocked, topic: str, record: Record) -> Delivery:
        """Append a record once there is what it waits for."""
        deadline_s = self._deadline_s()
        while True:
            await self._wait(blocked, topic, deadline_s)
            taken = self._append(topic, record)
            if not isinstance(taken, Blocked):
                return taken
            blocked = taken

    async def enqueue_many(
        self,
        topic: str,
        values: Iterable[V | ProducerRecord | None],
        *,
        keys: Iterable[K | None] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkDelivery:
        """Enqueue many records, waiting for memory as needed."""
        return await self._bulk(values_job(self._core, topic, values, keys, partition, timestamp_ms))

    async def _bulk(self, job: BulkJob) -> BulkDelivery:
        while True:
            blocked = Blocked.NO_TOPIC if self._is_held_up(job.topic) else job.step()
            if blocked is None:
                return job.delivery()
            try:
                await self._wait(blocked, job.topic, self._deadline_s())
            except PenstockError as error:
                if not job.has_begun:
                    raise
                job.give_up(error)
                return job.delivery()

    def _deadline_s(self) -> float:
        return time.monotonic() + self._settings.max_block_ms / 1000

    async def _wait(self, blocked: Blocked, topic: str, deadline_s: float) -> None:
        """Wait for memory or metadata; raises if there is none in time."""
        if blocked is Blocked.NO_TOPIC:
            await self._learn_topic(topic, deadline_s)
            await self._earlier_appended(topic)
        elif not await self._wait_for_room(deadline_s):
            full = f"the producer's {self._settings.buffer_memory} bytes were full"
            raise BufferFull(f"{full} for {self._settings.max_block_ms:.0f} ms")

    async def _learn_topic(self, topic: str, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        await self._on_loop(self._core.learn_topic(topic, max(int(left_s * 1000), 1)), left_s)

    async def partitions_for(self, topic: str) -> frozenset[int]:
        """The partitions of a topic; waits up to max_block_ms if they are not known yet."""
        if self._core.partitions_of(topic) is None:
            await self._learn_topic(topic, self._deadline_s())
        return self._core.partitions_of(topic) or frozenset()

    # ------------------------------------------------------------------------------------------ transactions

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Get the producer id and epoch of the transactional_id. The first begin_transaction does it, if need be.

        Call it before you read what a transaction commits: a consumer waits while its offsets are in the open
        transaction of a producer that crashed, and this ends that transaction.

        Another producer with the same transactional_id is fenced, and its open transaction ends. After
        prepare_transaction it leaves the transaction to others: end that first, or it is aborted. This and the calls
        below take `timeout` in seconds, max_block_ms by default, and raise TimedOut after it.
        """
        await self._transact(self._transactional().initialize(timeout), timeout)

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction; records can be sent from now on."""
        transactions = self._transactional()
        if transactions.needs_initialization:
            await self.init_transactions(timeout)
        transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group_metadata: GroupMetadata | Consumer[Any, Any] | AsyncConsumer[Any, Any] | str,
        timeout: float | None = None,
    ) -> None:
        """Commit a group's offsets together with the records of the transaction.

        `offsets` are those of the next records to read, by (topic, partition). `group_metadata` is the consumer, or
        what its `group_metadata()` returned: a member that lost its partitions is then rejected. Raises
        AbortableTransactionError if they are.
        """
        transactions = self._transactional()
        checked, group = checked_offsets(offsets), checked_group(group_metadata)
        await self._transact(transactions.send_offsets(checked, group, timeout), timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Send what waits, and commit: all records and offsets of the transaction become visible at once.

        Raises AbortableTransactionError if a record failed: abort. Raises TransactionOutcomeUnknown if the commit was
        sent and not answered: call it again; abort_transaction is rejected then, since it may be committed. Raises
        TimedOut if it was not sent: call it again, or abort.
        """
        transactions = self._transactional()
        timeout = await self._all_appended(timeout)
        is_committed, timeout = self._commit_here(transactions, timeout)
        if not is_committed:
            await self._transact(transactions.commit(timeout), timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: no record of the transaction is seen by read_committed consumers, and no offset counts.

        Records that were not sent yet fail with TransactionAborted. Rewind the consumer whose records were processed:
        `consumer.rewind()`.
        """
        await self._transact(self._transactional().abort(timeout), timeout)

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTransaction:
        """Send what waits, and accept no more records; returns what `Admin.end_transaction` needs to commit or abort
        the transaction, from any process. Closing the producer leaves a prepared transaction as it is.

        It must be ended within transaction_timeout_ms of its first record, or with transaction_two_phase_commit at any
        time. This producer may end it, too, by commit_transaction or abort_transaction.
        """
        transactions = self._transactional()
        timeout = await self._all_appended(timeout)
        return await self._transact(transactions.prepare(timeout), timeout)

    async def _commit_processed(self, consumer: Any) -> None:
        """The end of a `transaction` block: commit, with what the consumer has handed out."""
        if self._transactional().is_prepared:
            return
        if consumer is not None and (offsets := consumer.consumed()):
            await self.send_offsets_to_transaction(offsets, consumer)
        await self.commit_transaction()

    async def _abort_processed(self, consumer: Any, error: BaseException) -> None:
        """A `transaction` block has raised: abort if there is something to abort, and rewind the consumer."""
        try:
            if self._core.transactional().may_abort:
                await self.abort_transaction(None if isinstance(error, Exception) else INTERRUPTED_CLOSE_S)
        except PenstockError as failure:
            _log.warning("the transaction was not aborted: error=%s", failure)
        finally:
            if consumer is not None:
                rewinding = consumer.rewind()
                if rewinding is not None:
                    await rewinding

    def _transactional(self) -> TransactionManager:
        self._core.check_open()
        self._check_started()
        return self._core.transactional()

    async def _transact(self, call: Coroutine[Any, Any, T], timeout: float | None) -> T:
        return await self._on_loop(call, self._settings.max_block_ms / 1000 if timeout is None else max(timeout, 0))

    # ------------------------------------------------------------------------------------------ metrics

    def metrics(self) -> Metrics:
        """Counters since this producer was created, and current values; may be called from any thread.

        `on_statistics` is called with the same dictionary every `statistics_interval_ms`, on the thread of the event
        loop, which it must not block.
        """
        return self._core.metrics()


# --------------------------------------------------------------------------------------------------- blocking


class _BlockingCalls(ProducerCalls[K, V]):
    """The primitives for threads that are not the loop's."""

    def __init__(self, core: ProducerCore, background: Background) -> None:
        self._core = core
        self._settings = core.settings
        self._background = background
        self._room = threading.Condition(core.lock)
        self._waiting_for_room = 0
        core.on_freed = self._freed

    async def _on_loop(self, work: Coroutine[Any, Any, T], limit_s: float) -> T:
        return self._background.run(work, limit_s + _CLOSE_GRACE_S)

    async def _wait_for_room(self, deadline_s: float) -> bool:
        if self._background.on_loop:
            raise BufferFull(
                "memory is full, and a delivery callback cannot wait for it",
                hint="Send from another thread, or raise buffer_memory",
            )
        left_s = deadline_s - time.monotonic()
        with self._room:
            self._waiting_for_room += 1
            try:
                return left_s > 0 and self._room.wait_for(self._may_have_room, left_s)
            finally:
                self._waiting_for_room -= 1

    def _commit_here(self, transactions: TransactionManager, timeout: float | None) -> tuple[bool, float | None]:
        direct = self._core.direct_sender
        if direct is None or self._background.on_loop:
            return False, timeout
        limit_s = self._settings.max_block_ms / 1000 if timeout is None else timeout
        deadline_s = time.monotonic() + limit_s
        if direct.is_driving:
            wait_for_all(self._core.hurry(is_driven=True), min(_DRIVEN_S, limit_s))
        is_committed = time.monotonic() < deadline_s and transactions.commit_here(direct, deadline_s)
        return is_committed, max(deadline_s - time.monotonic(), 0)

    def _may_have_room(self) -> bool:
        return self._core.is_closed or self._core.accumulator.has_room

    def _freed(self) -> None:
        if self._waiting_for_room:
            with self._room:
                self._room.notify_all()


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
        self._async: _BlockingCalls[K, V] = _BlockingCalls(self._core, self._background)
        self._settings = settings
        self._encodes = key is not None or value is not None
        self._fast = self._core.fast
        self._lanes = self._core.compiled
        self._moment = self._core.moment
        self._closing = threading.Lock()
        self._is_closed = False
        _open.add(self)

    # --- sending

    @lanes_first
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
            key, value, headers = self._core.encode(topic, key, value, headers)  # type: ignore[assignment]
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
        key, value = plain_bytes(key, topic, "key"), plain_bytes(value, topic, "value")
        encoded = self._core.encode_headers(headers) if headers else NO_HEADERS
        taken = self._core.append(topic, key, value, encoded, partition, timestamp_ms, on_delivery)
        if isinstance(taken, Blocked):
            record = Record(key, value, encoded, partition, timestamp_ms, on_delivery)
            return run_here(self._async._append_after(taken, topic, record))
        return taken

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
        return run_here(
            self._async.enqueue_many(topic, values, keys=keys, partition=partition, timestamp_ms=timestamp_ms)
        )

    def send_arrow(
        self, topic: str, table: pyarrow.Table | pyarrow.RecordBatch, *, partition: int | None = None
    ) -> BulkDelivery:
        """Enqueue the rows of a table: its columns `value` and, if present, `key`, `timestamp`, `headers` and
        `partition`. Serializers are not used. Interceptors see its batches, not its records."""
        return run_here(self._async._bulk(ColumnsJob(self._core, topic, table, partition)))

    # --- transactions

    _run = staticmethod(run_here)

    init_transactions = blocking(ProducerCalls[Any, Any].init_transactions)
    begin_transaction = blocking(ProducerCalls[Any, Any].begin_transaction)
    send_offsets_to_transaction = blocking(ProducerCalls[Any, Any].send_offsets_to_transaction)
    commit_transaction = blocking(ProducerCalls[Any, Any].commit_transaction)
    abort_transaction = blocking(ProducerCalls[Any, Any].abort_transaction)
    prepare_transaction = blocking(ProducerCalls[Any, Any].prepare_transaction)

    @contextmanager
    def transaction(self, *, consumer: Consumer[Any, Any] | None = None) -> Iterator[Producer[K, V]]:
        """Begin a transaction, and commit it at the end of the block; abort it if the block raises.

            for batch in consumer.batches():
                with producer.transaction(consumer=consumer):
                    for record in batch:
                        producer.send("results", handle(record))

        With `consumer`, what it has handed out counts as processed together with the records that were sent, and if the
        transaction does not succeed, the consumer continues at its committed offsets: everything since is handed out
        again. The consumer must be created with exactly_once=True. A transaction that was prepared in the block is left
        as it is. If the commit's outcome is unknown, TransactionOutcomeUnknown is raised and nothing is aborted.
        """
        check_consumer(consumer, is_async=False)
        self.begin_transaction()
        try:
            yield self
            run_here(self._async._commit_processed(consumer))
        except BaseException as error:
            run_here(self._async._abort_processed(consumer, error))
            raise

    # --- waiting

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is acknowledged or has failed, and the callbacks have run.

        Raises TimedOut after `timeout` seconds.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        batches = self._core.hurry(is_driven=not self._background.on_loop)
        if self._background.on_loop:
            raise ClosedError("flush() in a delivery callback would wait for itself")
        if not wait_for_all(batches, timeout):
            left = sum(not batch.is_done for batch in batches)
            raise TimedOut(f"{left} batches were not acknowledged within {timeout} s", hint="They are still being sent")
        if self._core.accumulator.usage.has_callbacks:
            # Callbacks run on the loop as soon as their batch is done, so they have run when this has.
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
            self._background.run(_turn(), left_s)

    partitions_for = blocking(ProducerCalls[Any, Any].partitions_for)

    def metrics(self) -> Metrics:
        return self._core.metrics()

    metrics.__doc__ = ProducerCalls.metrics.__doc__

    def close(self, timeout: float | None = None) -> None:
        """Send what waits, for at most `timeout` seconds, and close all connections. It may be called twice.

        Without a time-out it takes at most delivery_timeout_ms. Records that are not acknowledged by then fail with
        ClosedError. An open transaction is aborted; one that is prepared, or may be committed already, is not.
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

    task = asyncio.create_task(core.close(0))
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
        task = asyncio.create_task(finish())
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
            "producer not closed before the interpreter's exit: unsent_batches=%d timeout_s=%.0f",
            left,
            _EXIT_FLUSH_S,
        )
        try:
            producer.close(max(deadline_s - time.monotonic(), 0))
        except Exception:  # noqa: BLE001 - the interpreter ends anyway
            _log.exception("a producer could not be closed")


# Registered after Background's handler, so it runs before that one, while the loop is still there.
atexit.register(_at_exit)
