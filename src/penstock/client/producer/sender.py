"""Sends batches to their leaders and applies the responses. Runs on one event loop.

`run` is one turn: expire, plan, send, set the timer. It is called when records are waiting, a response has arrived,
the cluster has changed, or the timer fires; nothing runs in between. The accumulator is shared with the sending
threads: it is entered under the lock and left before callbacks are called.

A response acknowledges a batch, retries it after a backoff, splits it, or fails it (`decide`); batches of a silent
leader are sent again once another broker leads, and their sequence numbers keep that safe. A batch is encoded when it
is first sent and the bytes are kept for retries: message sets of magic 0 and 1 for Produce versions 0 to 2, record
batches from 3 on. Version 13 names topics by id only and is not used.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import ClusterView
from penstock.client.connection import Connection
from penstock.client.errors import (
    AuthenticationFailed,
    BatchRejected,
    DeliveryTimeout,
    PenstockError,
    UnsupportedVersion,
    error_for,
)
from penstock.client.producer.accumulator import NEVER, Accumulator, OutgoingRequest
from penstock.client.producer.interceptors import Interceptors
from penstock.client.producer.producer_batch import ProducerBatch, ProducerId, Timestamps, encoded, split
from penstock.client.producer.settings import ProducerSettings
from penstock.client.producer.transaction_manager import TransactionManager
from penstock.client.transactions import CONCURRENT_BACKOFF_MS
from penstock.records.compression import Codec
from penstock.runtime.backoff import backoff_ms
from penstock.runtime.clock import Clock
from penstock.runtime.randomness import Random
from penstock.wire.protocol import ApiKey, ErrorCode, error_code
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

HIGHEST_VERSION: Final = 12
FIRST_WITH_ZSTD: Final = 7

_log = logging.getLogger("penstock.producer")
_INIT_PRODUCER_ID_VERSION: Final = 5
_NO_TRANSACTIONS_MS: Final = 2**31 - 1
_PACKING_THREADS: Final = 2
_LOOK_AGAIN_S: Final = 0.005
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_FORGOTTEN: Final = frozenset(
    {ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
)
_LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
_BEFORE_APPEND: Final = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
)
"""Brokers answer these before they append. With other errors the batch may be stored: a leader that lost its role while
the batch was replicated answers NOT_LEADER_OR_FOLLOWER, and its successor may have it."""


class _NodeState:
    """Connection and requests of a node."""

    __slots__ = (
        "connection", "in_flight", "is_connecting", "last_error", "requests", "throttled_until_ms", "version",
    )  # fmt: skip

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.version = -1
        self.is_connecting = False
        self.in_flight = 0
        self.requests: set[OutgoingRequest] = set()  # those in flight
        self.throttled_until_ms = 0.0
        self.last_error: PenstockError | None = None


class Sender:
    """Sends the batches of a producer. Used on its event loop's thread only, except for `wake`."""

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: Accumulator,
        lock: AbstractContextManager[Any],
        interceptors: Interceptors,
        clock: Clock,
        random: Random,
        *,
        on_freed: Callable[[], None],
        transactions: TransactionManager | None = None,
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._settings = accumulator.settings
        self._lock = lock
        self._interceptors = interceptors
        self._clock = clock
        self._settlement = Settlement(accumulator, random)
        self._transactions = transactions
        self._on_freed = on_freed
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._nodes: dict[int, _NodeState] = {}
        self.producer: ProducerId | None = None
        self._asking_for_id: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = NEVER
        self._packer: ThreadPoolExecutor | None = None
        self._is_woken = False
        self._is_ended = False
        self._unfollow = cluster.on_change(self._cluster_changed)
        self._stop_looking = cluster.on_overdue(lambda node: self._abandon_moved())

    # --- leaders that move while a broker is silent

    def _cluster_changed(self, old: ClusterView, new: ClusterView) -> None:
        self._abandon_moved()
        self.wake_here()

    def _abandon_moved(self) -> None:
        """Abort silent connections to brokers whose partitions have another leader by now: batches are sent again, to
        the new one. Sequence numbers make that safe: a new leader recognises what it already has.
        """
        for node, state in self._nodes.items():
            connection = state.connection
            if connection is None or not connection.is_silent:
                continue
            if any(self.has_moved(batch) for request in state.requests for batch in request.batches):
                connection.abort(f"broker {node} does not answer, and its partitions have other leaders")

    def has_moved(self, batch: ProducerBatch) -> bool:
        """Whether its partition has another leader than the node that it was sent to."""
        return self.leader_of(batch.topic, batch.partition) not in (-1, batch.node)

    # --- when to run

    def wake(self) -> None:
        """Something is to be sent. May be called from any thread, often: the loop is woken once until it runs."""
        if self._thread == threading.get_ident():
            self.wake_here()
        elif not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self.run)
            except RuntimeError:  # the loop is closed: `end` fails the batches
                _log.debug("records were sent after the event loop had ended")

    def wake_here(self) -> None:
        """`wake` on the loop's own thread."""
        if not self._is_woken and not self._is_ended:
            self._is_woken = True
            self._loop.call_soon(self.run)

    def run(self) -> None:
        """One turn: expire, plan, send, set the timer."""
        self._is_woken = False
        if self._is_ended:
            return
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            late = self._accumulator.expired(now_ms)
            if not late and self._accumulator.has_nothing_due:
                self._set_timer(self._accumulator.next_deadline_ms(), now_ms)
                return
            expired = [(batch, self._too_late(batch)) for batch in late]
            if self._transactions is not None:
                # They do not count as unfinished any more: a thread that gets the lock must not commit without them.
                for batch, error in expired:
                    self._transactions.batch_failed(batch, error)
            plan = self._accumulator.plan(now_ms, self, self.producer)
        self._end(expired)
        for request in plan.requests:
            self._send(request, now_ms)
        for node in plan.to_connect:
            self._connect(node)
        for batch in plan.to_pack:
            self._pack(batch)
        if self._transactions is not None:
            self._transactions.add_partitions()
        elif plan.needs_producer_id:
            self._need_producer_id()
        if plan.leaderless:
            self._cluster.refresh_soon()
        self._set_timer(plan.wake_at_ms, now_ms)

    def _set_timer(self, at_ms: float, now_ms: float) -> None:
        """Run again at this time at the latest. An earlier timer stays: an extra turn costs less than a timer."""
        if at_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = self._loop.call_later(max(at_ms - now_ms, 0.0) / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer, self._timer_at_ms = None, NEVER
        self.run()

    # --- routes, for the accumulator

    def leader_of(self, topic: str, partition: int) -> int:
        view = self._cluster.view.leader_of(topic, partition)
        return view.leader if view is not None else -1

    def slots_of(self, node: int) -> int:
        state = self._nodes.get(node)
        if state is None:
            return -1
        if state.connection is None or state.connection.closed:
            return 0 if state.is_connecting else -1
        if state.throttled_until_ms > self._clock.monotonic_ms():
            return 0
        if self._settings.required_acks == 0 and _is_backed_up(state.connection):
            return 0  # without responses, nothing else bounds what the connection buffers
        return self._settings.max_in_flight - state.in_flight

    # --- connections and ids

    def _connect(self, node: int) -> None:
        state = self._nodes.setdefault(node, _NodeState())
        if not state.is_connecting:
            state.is_connecting = True
            self._start(self._open(node, state))

    async def _open(self, node: int, state: _NodeState) -> None:
        try:
            connection = await self._cluster.to(node)
            version = connection.version_of(ApiKey.PRODUCE, at_most=HIGHEST_VERSION)
            check_codec(connection.node, version, self._settings.codec)
            # Responses on the old connection still count down the old state.
            fresh = self._nodes[node] = _NodeState()
            fresh.connection, fresh.version = connection, version
        except PenstockError as error:
            state.last_error = error
            self._cluster.refresh_soon()
            if not error.retriable:
                _log.warning("cannot send to broker: broker=%d error=%s", node, error)
            if isinstance(error, UnsupportedVersion | AuthenticationFailed):
                # Retrying until delivery_timeout_ms makes neither the broker newer nor the password right.
                with self._lock:
                    rejected = self._accumulator.take_from(node, self)
                self._end([(batch, error) for batch in rejected])
            await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
        finally:
            state.is_connecting = False
        self.wake_here()

    def _need_producer_id(self) -> None:
        if self._asking_for_id is None:
            self._asking_for_id = self._start(self._ask_for_id())

    async def _ask_for_id(self) -> None:
        failures = 0
        try:
            while True:
                try:
                    self.producer = await init_producer_id(self._cluster, self._settings.request_timeout_ms)
                    break
                except PenstockError as error:
                    failures += 1
                    if not error.retriable:
                        _log.error("InitProducerId failed: error=%s", error)
                        with self._lock:
                            given_up = list(self._accumulator.take_all())
                        self._end([(batch, error) for batch in given_up])
                        return
                    _log.debug("InitProducerId failed, retrying: error=%s", error)
                wait_ms = self._settlement.backoff_ms(failures)
                await asyncio.sleep(wait_ms / 1000)
        finally:
            self._asking_for_id = None
        self.wake_here()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- compressing

    def _pack(self, batch: ProducerBatch) -> None:
        if self._packer is None:
            self._packer = ThreadPoolExecutor(_PACKING_THREADS, thread_name_prefix="penstock-compress")
        self._packer.submit(self._compress, batch).add_done_callback(partial(self._packed, batch))

    def _compress(self, batch: ProducerBatch) -> None:
        """`build` keeps what it compresses; sequence numbers are added later."""
        builder = batch.builder
        if builder is not None:
            builder.build(
                codec=self._settings.codec, level=self._settings.compression_level, producer_id=-1, producer_epoch=-1,
                base_sequence=-1, is_transactional=False,
            )  # fmt: skip

    def _packed(self, batch: ProducerBatch, done: Future[None]) -> None:
        # In the other thread. An error there occurs again, and is handled, when the batch is sent.
        batch.is_packed = True
        batch.is_packing = False
        self.wake()

    # --- requests and responses

    def _send(self, request: OutgoingRequest, now_ms: float) -> None:
        state = self._nodes[request.node]
        connection = state.connection
        if self._interceptors.sees_batches:
            for batch in request.batches:
                self._interceptors.sent(batch.info(now_ms))
        try:
            if connection is None:
                raise error_for(13, where=f"broker {request.node}")
            version = self.produce_version(state.version)
            message = produce_request(request.batches, version, self._settings)
            future = connection.send(
                ApiKey.PRODUCE, message, timeout_ms=self._settings.request_timeout_ms, version=version,
                expects_answer=self._settings.required_acks != 0,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the batches' deliveries raise it
            self._loop.call_soon(self._unanswered, request, state, error)
            return
        if future is None:  # acks=0: no response will wake the sender
            if _is_backed_up(connection):
                self._loop.call_later(_LOOK_AGAIN_S, self.wake_here)
            self._loop.call_soon(self._settle, request, {}, PartitionResponse())
            return
        state.in_flight += 1
        state.requests.add(request)
        future.add_done_callback(partial(self._answered, request, state))

    def _answered(self, request: OutgoingRequest, state: _NodeState, future: asyncio.Future[Any]) -> None:
        state.in_flight -= 1
        state.requests.discard(request)
        if self._is_ended:
            return
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._unanswered(request, state, error)
            return
        self._responded(request, state, future.result())

    def _responded(self, request: OutgoingRequest, state: _NodeState, response: ProduceResponse) -> None:
        if response.throttle_time_ms > 0:
            state.throttled_until_ms = self._clock.monotonic_ms() + response.throttle_time_ms
            self._loop.call_later(response.throttle_time_ms / 1000, self.wake_here)
        self._settle(request, partition_responses(response), None)

    def produce_version(self, highest: int) -> int:
        """The version of Produce to use with a broker that has this one."""
        return highest if self._transactions is None else self._transactions.produce_version(highest)

    # --- for batches that the direct sender sends

    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def overdue(self, node: int) -> None:
        """A directly sent batch has had no response for long."""
        self._cluster.overdue(node)

    def on_news(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function when leaders may have moved. Returns a function that stops it."""
        stops = self._cluster.on_change(lambda old, new: callback()), self._cluster.on_overdue(lambda node: callback())

        def stop() -> None:
            for each in stops:
                each()

        return stop

    def connection_to(self, node: int) -> tuple[Connection, int] | None:
        """The connection to a node and its version of Produce; None if there is none now."""
        state = self._nodes.get(node)
        if state is None or state.connection is None or state.connection.closed:
            return None
        return state.connection, state.version

    def acknowledge_alone(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> bool:
        """End the only batch of a request, in any thread, for a plain acknowledgement; False if the producer ends."""
        if self._is_ended:
            return False
        accumulator = self._accumulator
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            end = self._settlement.acknowledge(batch, base_offset, append_time_ms, now_ms)
        if end is not None:
            batch.acknowledge(*end)
            with self._lock:
                accumulator.counters.acknowledged(batch, now_ms)
                accumulator.finished(batch)
            self._on_freed()
            if self._transactions is not None:
                self._transactions.drop_after_failure()
        if not accumulator.has_nothing_due:
            self.wake()
        return True

    def settle_alone(self, request: OutgoingRequest, outcome: ProduceResponse | Exception) -> None:
        """Apply any outcome of such a request, on the loop."""
        if self._is_ended:
            return
        state = self._nodes.get(request.node) or _NodeState()
        if isinstance(outcome, Exception):
            self._unanswered(request, state, outcome)
        else:
            self._responded(request, state, outcome)

    def _unanswered(self, request: OutgoingRequest, state: _NodeState, error: BaseException) -> None:
        if isinstance(error, PenstockError):
            state.last_error = error
        self._settle(request, {}, error)

    def _settle(
        self,
        request: OutgoingRequest,
        answers: dict[tuple[str, int], PartitionResponse],
        all_alike: PartitionResponse | BaseException | None,
    ) -> None:
        """Apply the outcome of each batch of a request."""
        now_ms = self._clock.monotonic_ms()
        ended: list[tuple[ProducerBatch, Acknowledged | Exception]] = []
        must_refresh = False
        with self._lock:
            for batch in request.batches:
                answer = all_alike or answers.get((batch.topic, batch.partition)) or PartitionResponse.missing()
                end, refresh = self._settlement.settle(batch, answer, now_ms)
                must_refresh |= refresh
                if end is not None:
                    ended.append((batch, end))
                elif batch.is_divided:
                    self._accumulator.finished(batch)
        for (topic, partition), answer in answers.items():
            if answer.leader >= 0:
                self._cluster.update_leader(topic, partition, answer.leader, answer.leader_epoch)
        if must_refresh:
            self._cluster.refresh_soon()
        self._end(ended, now_ms)
        self.run()

    # --- the end of a batch

    def _end(self, ended: Sequence[tuple[ProducerBatch, Acknowledged | Exception]], now_ms: float = 0.0) -> None:
        """Complete batches, release their memory, call interceptors last. Called without the lock."""
        if not ended:
            return
        transactions = self._transactions
        if transactions is not None:
            with self._lock:  # first: a waiter for the batch must find that the transaction has failed
                for batch, end in ended:
                    if isinstance(end, Exception):
                        transactions.batch_failed(batch, end)
        for batch, end in ended:
            if isinstance(end, Exception):
                batch.fail(end)
            else:
                batch.acknowledge(end.base_offset, end.stamps)
        counters = self._accumulator.counters
        with self._lock:
            for batch, end in ended:
                if isinstance(end, Exception):
                    counters.failed(batch)
                else:
                    counters.acknowledged(batch, now_ms)
                self._accumulator.finished(batch)
        self._on_freed()
        if self._interceptors.sees_batches:
            for batch, end in ended:
                info = batch.info(self._clock.monotonic_ms())
                if isinstance(end, Exception):
                    self._interceptors.failed(info, end)
                else:
                    self._interceptors.acknowledged(info, end.base_offset)
        if transactions is not None:
            transactions.drop_after_failure()

    def drop_unsent(self, error: Exception) -> None:
        """Fail the batches that are not in flight."""
        with self._lock:
            dropped = self._accumulator.take_unsent()
        self._end([(batch, error) for batch in dropped])

    def _too_late(self, batch: ProducerBatch) -> DeliveryTimeout:
        timeout_ms = self._settings.delivery_timeout_ms
        why: Exception | None = batch.last_error
        if why is None:
            leader = self.leader_of(batch.topic, batch.partition)
            state = self._nodes.get(leader)
            why = state.last_error if state is not None else None
            if leader < 0:
                why = why or error_for(5, where=f"{batch.topic}-{batch.partition}")
        reason = f"; the last failure was: {why}" if why is not None else ""
        tries = f"sent {batch.attempts} times" if batch.attempts else "never sent"
        error = DeliveryTimeout(
            f"{batch.count} records for {batch.topic}-{batch.partition} were not acknowledged within "
            f"delivery_timeout_ms ({timeout_ms:.0f}), {tries}{reason}",
            hint="They may be in the log if they were sent. Check that the broker is up and keeps up",
        )
        error.__cause__ = why
        return error

    # --- ending

    async def end(self, error: Exception) -> None:
        """Fail all remaining batches with this error and stop all tasks."""
        if self._is_ended:
            return
        self._is_ended = True
        self._unfollow()
        self._stop_looking()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))
        with self._lock:
            left = list(self._accumulator.take_all())
        self._end([(batch, error) for batch in left])
        if self._packer is not None:
            self._packer.shutdown(wait=True, cancel_futures=True)


def _is_backed_up(connection: Connection) -> bool:
    """Whether the connection's write buffer is full."""
    return connection._paused


async def init_producer_id(cluster: ClusterClient, timeout_ms: int) -> ProducerId:
    """A new producer id, from any broker; raises PenstockError."""
    connection = await cluster.to_any()
    version = connection.version_of(ApiKey.INIT_PRODUCER_ID, at_most=_INIT_PRODUCER_ID_VERSION)
    response = await connection.request(
        ApiKey.INIT_PRODUCER_ID,
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTIONS_MS),
        timeout_ms=timeout_ms,
        version=version,
    )
    if response.error_code:
        raise error_for(response.error_code, where=f"a producer id from {connection.node}")
    return ProducerId(response.producer_id, response.producer_epoch)


# --------------------------------------------------------------------------------------------------- decisions


class Verdict(Enum):
    ACKNOWLEDGE = auto()
    AGAIN = auto()
    SPLIT = auto()
    FAIL = auto()


class Decision(NamedTuple):
    verdict: Verdict
    refresh: bool = False
    gap: bool = False
    is_settled: bool = False
    """The broker compared the batch's sequence numbers with its log: it is certain now whether it is stored."""
    is_uncertain: bool = False
    """The batch may be stored. It must be sent again under its numbers."""


def decide(
    code: ErrorCode, *, count: int, is_numbered: bool, is_oldest: bool, may_retry: bool, is_recognisable: bool = True
) -> Decision:
    """What a response with this code means for a batch of `count` records.

    `is_oldest`: no batch with numbers that is not settled stands before it in its partition. `is_recognisable`: a
    broker that has it would say so; otherwise it may have it and call it out of order.
    """
    if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        return Decision(Verdict.ACKNOWLEDGE, is_settled=True)
    if code in _TOO_LARGE:
        return Decision(Verdict.SPLIT) if count > 1 else Decision(Verdict.FAIL, gap=is_numbered)
    if is_numbered and may_retry:
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # With unsettled batches before it, it came too early, and waits its turn. As the oldest it should follow
            # what the broker has: the broker has lost records, or a batch before it has failed for good.
            if is_oldest and not is_recognisable:
                return Decision(Verdict.FAIL, gap=True)
            return Decision(Verdict.AGAIN, gap=is_oldest, is_settled=is_recognisable)
        if code in _FORGOTTEN and is_recognisable:
            return Decision(Verdict.AGAIN, gap=True, is_settled=True)
    if may_retry and (code.retriable or code in _LEADER_MOVED):
        return Decision(Verdict.AGAIN, refresh=code in _LEADER_MOVED, is_uncertain=code not in _BEFORE_APPEND)
    return Decision(Verdict.FAIL, refresh=code in _LEADER_MOVED, gap=is_numbered)


def decide_unanswered(*, is_retriable: bool, is_numbered: bool, may_retry: bool) -> Decision:
    """The same without a response: the connection broke or the request timed out, and the batch may be stored."""
    if may_retry and is_retriable:
        return Decision(Verdict.AGAIN, refresh=True, is_uncertain=True)
    return Decision(Verdict.FAIL, refresh=True, gap=is_numbered)


# --------------------------------------------------------------------------------------------------- outcomes


class Acknowledged(NamedTuple):
    base_offset: int
    stamps: Timestamps | int


class Settled(NamedTuple):
    """`end` is how the batch ends, None if it does not; `refresh`: its leader may have moved."""

    end: Acknowledged | Exception | None = None
    refresh: bool = False


_NOTHING_TO_DO = Settled()


_TOO_EARLY = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Settlement:
    """Applies responses to batches; called with the accumulator's lock held."""

    def __init__(self, accumulator: Accumulator, random: Random) -> None:
        self._accumulator = accumulator
        self._settings = accumulator.settings
        self._random = random

    def settle(self, batch: ProducerBatch, answer: PartitionResponse | BaseException, now_ms: float) -> Settled:
        """Apply the broker's response for a batch, or the error that took its place."""
        if isinstance(answer, PartitionResponse) and answer.code is ErrorCode.NONE:
            return Settled(self.acknowledge(batch, answer.base_offset, answer.append_time_ms, now_ms))
        batch.queue.answered(batch)
        self._accumulator.touch(batch.queue)
        if batch.is_done:
            return _NOTHING_TO_DO  # expired meanwhile; its partition waited for this
        decision = self._decide(batch, answer)
        transaction = self._accumulator.transaction
        is_stored = decision.verdict is Verdict.ACKNOWLEDGE
        if transaction is not None and not is_stored and (decision.gap or not transaction.may_retry):
            # Within a transaction there is no next epoch: a gap can only be closed by aborting.
            decision = decision._replace(verdict=Verdict.FAIL, gap=batch.is_numbered)
        if decision.gap:
            batch.queue.sequences.mark_gap()
        if decision.is_settled:
            batch.is_uncertain = False
        elif decision.is_uncertain:
            batch.is_uncertain = batch.is_numbered
        if isinstance(answer, PartitionResponse) and decision.verdict is Verdict.ACKNOWLEDGE:
            return Settled(self._stored(batch, answer.base_offset, answer.append_time_ms, now_ms))
        error = batch.last_error = _error_of(batch, answer)
        if decision.verdict is Verdict.AGAIN:
            # A batch that came too early waits for its turn, not for a backoff.
            is_early = isinstance(answer, PartitionResponse) and answer.code is _TOO_EARLY and not decision.gap
            wait_ms = 0.0 if is_early else self.backoff_ms(batch.attempts)
            if isinstance(answer, PartitionResponse) and answer.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                wait_ms = min(wait_ms, CONCURRENT_BACKOFF_MS)
            self._accumulator.again(batch, now_ms + wait_ms)
            _log.debug(
                "produce failed, retrying: partition=%s-%d attempt=%d error=%s",
                batch.topic, batch.partition, batch.attempts, error,
            )  # fmt: skip
        elif decision.verdict is Verdict.SPLIT:
            self._accumulator.replace(batch, split(batch))
        else:
            return Settled(error, decision.refresh)
        return Settled(None, decision.refresh)

    def acknowledge(
        self, batch: ProducerBatch, base_offset: int, append_time_ms: int, now_ms: float
    ) -> Acknowledged | None:
        """The broker has stored a batch; None if it is done already."""
        batch.queue.answered(batch)
        self._accumulator.touch(batch.queue)
        if batch.is_done:
            return None
        batch.is_uncertain = False
        return self._stored(batch, base_offset, append_time_ms, now_ms)

    @staticmethod
    def _stored(batch: ProducerBatch, base_offset: int, append_time_ms: int, now_ms: float) -> Acknowledged:
        batch.queue.sequences.stored(batch.numbers, now_ms)
        return Acknowledged(base_offset, batch.stamps_for(append_time_ms))

    def backoff_ms(self, failures: int) -> float:
        """The wait after this many failures in a row."""
        settings = self._settings
        return backoff_ms(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms, self._random)

    def _decide(self, batch: ProducerBatch, answer: PartitionResponse | BaseException) -> Decision:
        may_retry = batch.attempts <= self._settings.retries
        if isinstance(answer, PartitionResponse):
            is_oldest = batch.queue.is_oldest(batch)
            return decide(
                answer.code,
                count=batch.count,
                is_numbered=batch.is_numbered,
                is_oldest=is_oldest,
                may_retry=may_retry,
                is_recognisable=batch.is_recognisable,
            )
        retriable = isinstance(answer, PenstockError) and answer.retriable
        return decide_unanswered(is_retriable=retriable, is_numbered=batch.is_numbered, may_retry=may_retry)


def _error_of(batch: ProducerBatch, answer: PartitionResponse | BaseException) -> Exception:
    if isinstance(answer, PartitionResponse):
        where = f"{batch.topic}-{batch.partition} on broker {batch.node}"
        if answer.record_errors:
            return BatchRejected(answer.code, answer.record_errors, where=where)
        return error_for(answer.code, where=where, detail=answer.message)
    if isinstance(answer, Exception):
        return answer
    return PenstockError(f"the request with {batch.topic}-{batch.partition} was cancelled")


# --------------------------------------------------------------------------------------------------- messages


def produce_request(batches: Sequence[ProducerBatch], version: int, settings: ProducerSettings) -> ProduceRequest:
    """A Produce request for batches of different partitions."""
    topics: dict[str, TopicProduceData] = {}
    for batch in batches:
        topic = topics.get(batch.topic)
        if topic is None:
            topic = topics[batch.topic] = TopicProduceData(name=batch.topic, partition_data=[])
        topic.partition_data.append(
            PartitionProduceData(index=batch.partition, records=encoded(batch, version, settings))
        )
    return ProduceRequest(
        transactional_id=settings.transactional_id,
        acks=settings.required_acks,
        timeout_ms=settings.request_timeout_ms,
        topic_data=list(topics.values()),
    )


def check_codec(node: str, version: int, codec: Codec) -> None:
    """Raises UnsupportedVersion if brokers with this version of Produce do not know the codec."""
    if codec is Codec.ZSTD and version < FIRST_WITH_ZSTD:
        raise UnsupportedVersion(node, "zstd (Produce)", (FIRST_WITH_ZSTD, HIGHEST_VERSION), (0, version))


class PartitionResponse(NamedTuple):
    """The response for one batch. The default is assumed for acks=0, which has no response."""

    code: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    append_time_ms: int = -1
    message: str | None = None
    leader: int = -1
    leader_epoch: int = -1
    record_errors: Mapping[int, str] | None = None
    """The reason for each invalid record of the batch, if the broker sent any."""

    @staticmethod
    def missing() -> PartitionResponse:
        """For a response without a partition of the request."""
        return PartitionResponse(ErrorCode.UNKNOWN_SERVER_ERROR, message="the response does not contain the partition")


def partition_responses(response: ProduceResponse) -> dict[tuple[str, int], PartitionResponse]:
    """The responses by topic and partition."""
    return {
        (topic.name, each.index): _partition_response(each)
        for topic in response.responses
        for each in topic.partition_responses
    }


def _partition_response(each: PartitionProduceResponse) -> PartitionResponse:
    message = each.error_message
    record_errors = None
    if each.record_errors:
        record_errors = {
            record.batch_index: record.batch_index_error_message or message or "rejected"
            for record in each.record_errors
        }
    leader = each.current_leader
    return PartitionResponse(
        error_code(each.error_code),
        each.base_offset,
        each.log_append_time_ms,
        message,
        leader.leader_id,
        leader.leader_epoch,
        record_errors,
    )
