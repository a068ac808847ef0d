"""A thread that waits for a lone record, or commits a transaction, exchanges it itself, over a connection of its own.

A program that sends one record, waits, and repeats would pay two thread switches per record, each as expensive as a
nearby broker's response. After three such waits the loop is no longer woken: the waiting thread sends the batch and
receives the response. For responses under 1 ms it sleeps for half the usual time and then polls for at most 0.3 ms,
unless other programs want the processor: then it sleeps until the response is there. With linger_ms only a flush is
such a wait.

Requests and plain acknowledgements of a partition differ in a few bytes, so they are not encoded and decoded each time
(`BatchExchange`). A broker that polls for the next request sees it in time only if the client takes little between two.

Nothing depends on that thread. A batch is sent directly only if its partition has nothing else to send, and nothing
else of the partition is sent before its response. A thread that stops waiting leaves the connection to the loop,
which also handles everything but a plain acknowledgement. A record without a waiting thread is sent at the loop's next
tick (10 ms), and direct sending ends; so does a record whose flush was interrupted, after 50 ms.

`hold`, `ask` and `release` exchange one other request, if the connection is free (`TransactionManager.commit_here`). A
connection whose response was not received is closed: the caller repeats the request on the loop.

Not used with TLS, SASL, acks=0 or batch interceptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from struct import Struct
from typing import Any, Final

from penstock.client.connection import OVERDUE_MS, Connection
from penstock.client.errors import NotConnected, PenstockError, ProtocolViolation, RequestTimedOut
from penstock.client.producer.accumulator import Accumulator, OutgoingRequest, PartitionQueue
from penstock.client.producer.producer_batch import Callback, ProducerBatch, encoded
from penstock.client.producer.sender import HIGHEST_VERSION, Sender, produce_request
from penstock.wire.errors import Frame, WireError
from penstock.wire.framing import FrameReceiver, decode_response, encode_request
from penstock.wire.primitives import uvarint
from penstock.wire.protocol import ApiKey, response_codec
from penstock.wire.schemas.produce import ProduceRequest, ProduceResponse
from penstock.wire.types import Buffer, Message

Ended = Callable[[ProduceResponse | PenstockError], None]

_log = logging.getLogger("penstock.producer")
# How long a record may lie if no thread comes to send it. Shorter ticks cost every record: at 2 ms the loop's thread
# competes with the broker so often that an exchange takes half as long again.
_TICK_MS: Final = 10.0
_LYING_MS: Final = 1.0
_MOST_IDLE_TICKS: Final = 5
_CONVINCING_WAITS: Final = 3
_MOST_BYTES: Final = 16 * 1024  # what a socket accepts at once
_PATIENCE_S: Final = 0.05
_OPEN_TIMEOUT_MS: Final = 1_000.0
_REOPEN_S: Final = 1.0
_KEEP_S: Final = 10.0
# For the response to `ask`; the loop has more, and finds out meanwhile whether the broker is still in charge.
_ASK_PATIENCE_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.5

_MOST_ANSWER_BYTES: Final = 1024 * 1024
_MAX_CORRELATION: Final = 2**31 - 1
_AWAKE_S: Final = 300e-6
_WORTH_S: Final = 1e-3  # for slower responses, the wake-up is a small part of the time
_SLOW_S: Final = 2e-3
_WAKING_S: Final = 60e-6
_MEMORY: Final = 8  # responses in the moving average
# A processor that is given up for as long as this has work for others: a nearby broker's request takes a fraction.
_CROWDED_S: Final = 200e-6
_LEAST_ASLEEP: Final = 16  # responses that are not polled for after that; twice as many the next time
_MOST_ASLEEP: Final = 1024
_EMPTY: Final = b""
_PREFIX: Final = Struct(">ihhi")  # of a request: its size, API, version, correlation id
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")
_MARK: Final = bytes(range(200, 216))  # in the place of a batch
# With one processor the broker cannot answer while this thread polls.
_MAY_STAY_AWAKE: Final = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1
_yield_processor: Final[Callable[[], object]] = getattr(os, "sched_yield", partial(time.sleep, 0))


class DirectSender:
    """Created, ticked and ended on the producer's event loop; `drive` is called by threads that wait."""

    def __init__(self, sender: Sender, accumulator: Accumulator, lock: AbstractContextManager[Any]) -> None:
        self._sender = sender
        self._accumulator = accumulator
        self._settings = accumulator.settings
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._process_id = os.getpid()
        self._links: dict[int, DirectConnection] = {}
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[int, float] = {}
        self._left_over: dict[DirectConnection, OutgoingRequest] = {}  # whose responses the loop waits for
        self._exchanges: dict[PartitionQueue, BatchExchange] = {}
        self._stop_listening = sender.on_news(self._abandon_moved)
        self._is_on = False  # the links belong to the threads
        self._is_driving = False  # and lone batches are expected to be sent by them
        self._is_ended = False
        self._waits = 0  # in a row, each for the only batch
        self._asks = 0  # in a row, without a connection
        self._driven = 0
        self._driven_before = 0
        self._idle_ticks = 0

    # --- the threads

    def is_expected(self, batch: ProducerBatch) -> bool:
        """Whether a thread is likely to send this batch, so that the loop need not be woken."""
        return self._is_driving and self._accumulator.is_all(batch)

    @property
    def is_driving(self) -> bool:
        """Whether threads send the batches that they wait for."""
        return self._is_driving

    def drive(self, batch: ProducerBatch, timeout_s: float | None) -> float | None:
        """Send a batch that the calling thread is about to wait for, and receive the response, if possible.

        Returns how much of the time is left.
        """
        if threading.get_ident() == self._loop_thread or self._process_id != os.getpid():
            return timeout_s
        if self._settings.linger_ms > 0 and not batch.is_due:
            self._sender.wake()  # for the timer that `is_expected` may have saved
            return timeout_s
        if not self._is_driving:
            self._look_at(batch)
            return timeout_s
        taken = self._take(batch)
        if taken is None:
            self._sender.wake()
            return timeout_s
        began_s = time.monotonic()
        self._exchange(*taken, batch, _PATIENCE_S if timeout_s is None else min(timeout_s, _PATIENCE_S))
        return None if timeout_s is None else timeout_s - (time.monotonic() - began_s)

    def call_on_loop(self, call: Callback) -> bool:
        if threading.get_ident() == self._loop_thread:
            return False
        self._post(call)
        return True

    def _look_at(self, batch: ProducerBatch) -> None:
        """Count a wait; after several for lone records, prepare for sending the next ones directly."""
        self._waits = self._waits + 1 if self._accumulator.is_all(batch) else 0
        if self._waits == _CONVINCING_WAITS:
            self._waits = 0
            self._post(self._begin, self._sender.leader_of(batch.topic, batch.partition))

    def _take(self, batch: ProducerBatch) -> tuple[DirectConnection, int] | None:
        """The connection to send a batch on, which it is in flight on from here on, and its node; None if not here."""
        sender, queue = self._sender, batch.queue
        with self._lock:
            builder = batch.builder
            if not self._is_driving or batch.is_done or builder is None or builder.size > _MOST_BYTES:
                return None
            node = sender.leader_of(queue.topic, queue.partition)
            link = self._links.get(node)
            if link is None:
                self._post(self._begin, node)
                return None
            if link.is_busy or sender.slots_of(node) <= 0:
                return None
            if not self._accumulator.take_alone(batch, sender.now_ms(), node, sender.producer):
                return None
            link.hold()
            self._driven += 1
            return link, node

    def _exchange(self, link: DirectConnection, node: int, batch: ProducerBatch, patience_s: float) -> None:
        outcome: ProduceResponse | Exception | None
        # Until it is certainly sent, there is no response to wait for.
        outcome = NotConnected(link.node, "the sending was interrupted")
        is_acknowledged = False
        try:
            exchange = self._exchange_of(batch, self._sender.produce_version(link.highest_version), link.client_id)
            link.send_batch(exchange, encoded(batch, exchange.version, self._settings))
            outcome = None
            frame = link.receive(patience_s)
            if frame is not None:
                stored = exchange.stored(frame, link.correlation_id)
                if stored is None:
                    outcome = response = link.decoded(frame)
                    stored = exchange.learn(frame, response)
                is_acknowledged = stored is not None and self._sender.acknowledge_alone(batch, *stored)
        except Exception as failure:  # noqa: BLE001 - the batch's delivery raises it
            outcome = failure
        finally:  # after Ctrl-C, too, the loop takes over
            link.let_go()
            if is_acknowledged:
                link.is_busy = False
            else:
                request = OutgoingRequest(node)
                request.add(batch)
                self._post(self._go_on, link, request, outcome)

    def _exchange_of(self, batch: ProducerBatch, version: int, client_id: str | None) -> BatchExchange:
        exchange = self._exchanges.get(batch.queue)
        if exchange is None or exchange.version != version:
            message = produce_request([batch], version, self._settings)
            exchange = self._exchanges[batch.queue] = BatchExchange(version, client_id, message)
        return exchange

    def hold(self, node: int, connection: Connection) -> DirectConnection | None:
        """The connection to a broker, for one `ask`; None if there is none yet or it is in use.

        `connection` is the loop's to that broker. After three calls in a row a direct one is opened.
        """
        if threading.get_ident() == self._loop_thread or self._process_id != os.getpid():
            return None
        with self._lock:
            link = self._links.get(node) if self._is_on else None
            if link is None:
                self._asks += 1
                if self._asks >= _CONVINCING_WAITS:
                    self._asks = 0
                    self._post(self._begin, node, connection)
            elif not link.is_busy:
                link.hold()
                self._driven += 1
                return link
        return None

    def ask(
        self, node: int, link: DirectConnection, api_key: ApiKey, message: Message, version: int, deadline_s: float
    ) -> Any:
        """The response to a request; None if there was none, and the request may have been carried out.

        The deadline is of the monotonic clock. The caller releases the connection.
        """
        try:
            link.send(api_key, message, version)
            return link.answer(min(_ASK_PATIENCE_S, deadline_s - time.monotonic()))
        except PenstockError as error:
            _log.debug("direct request failed: api=%s broker=%d error=%s", api_key.name, node, error)
            return None

    def release(self, node: int, link: DirectConnection | None, *, is_reusable: bool) -> None:
        """End what `hold` began; the connection is closed unless `is_reusable`. It may be called twice.

        Ctrl-C may come before the thread knows the connection that it holds: without `link`, it is looked up.
        """
        with self._lock:
            held = link or self._links.get(node)
            if held is None or not held.is_held_here:
                return
            if is_reusable:
                held.is_busy = False
            else:
                self._post(self._drop, node, held)
            held.let_go()

    def _post(self, fn: Callable[..., object], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, *arguments)
        except RuntimeError:  # the loop is closed: the sender's end fails the batch
            _log.debug("the event loop had ended while a thread was sending")

    # --- the loop: what threads leave behind

    def _go_on(
        self, link: DirectConnection, request: OutgoingRequest, outcome: ProduceResponse | Exception | None
    ) -> None:
        if outcome is not None or self._is_ended:
            self._ended(link, request, outcome)
        else:
            self._sender.wake_here()  # for the batch's deadline
            self._left_over[link] = request
            self._loop.call_later(OVERDUE_MS / 1000, self._look_at_left_over, link, request)
            link.watch(self._loop, self._settings.request_timeout_ms, partial(self._ended, link, request))

    def _look_at_left_over(self, link: DirectConnection, request: OutgoingRequest) -> None:
        if self._left_over.get(link) is request and not self._is_ended:
            self._loop.call_later(_LOOK_AGAIN_S, self._look_at_left_over, link, request)
            self._sender.overdue(request.node)

    def _abandon_moved(self) -> None:
        """Close silent connections to brokers whose partitions have another leader by now."""
        for link, request in list(self._left_over.items()):
            if any(map(self._sender.has_moved, request.batches)):
                link.unwatch(self._loop)
                reason = "the broker does not answer, and others lead in its place"
                self._ended(link, request, NotConnected(link.node, reason))

    def _ended(
        self, link: DirectConnection, request: OutgoingRequest, outcome: ProduceResponse | Exception | None
    ) -> None:
        self._left_over.pop(link, None)
        link.is_busy = False
        if not isinstance(outcome, ProduceResponse) or self._is_ended:
            self._drop(request.node, link)
        if outcome is not None:
            self._sender.settle_alone(request, outcome)

    def _drop(self, node: int, link: DirectConnection) -> None:
        link.close(self._loop)
        if self._links.get(node) is link:
            with self._lock:
                del self._links[node]
            self._not_before[node] = self._loop.time() + _REOPEN_S

    # --- the loop: when direct sending pays

    def _begin(self, node: int, connection: Connection | None = None) -> None:
        """Leave the links to the threads. With `connection`, only for `ask`: the loop goes on sending batches."""
        if self._is_ended or node < 0:
            return
        if node not in self._links:
            if node not in self._opening and self._loop.time() >= self._not_before.get(node, 0.0):
                self._opening[node] = self._loop.create_task(self._open(node, connection))
            return
        self._is_driving = self._is_driving or connection is None
        if not self._is_on:
            for link in self._links.values():
                if not link.is_busy:
                    link.unwatch(self._loop)
            self._idle_ticks = 0
            self._is_on = True
            self._loop.call_later(_TICK_MS / 1000, self._tick)

    async def _open(self, node: int, connection: Connection | None) -> None:
        try:
            way = self._sender.connection_to(node)
            if connection is not None:
                way = connection, connection.version_of(ApiKey.PRODUCE, at_most=HIGHEST_VERSION)
            link = None if way is None else await open_direct_connection(*way, _OPEN_TIMEOUT_MS)
        except PenstockError as error:
            _log.debug("direct connection failed: error=%s", error)
            link = None
        finally:
            del self._opening[node]
        if link is None:
            self._not_before[node] = self._loop.time() + _REOPEN_S
        elif self._is_ended:
            link.close(self._loop)
        else:
            with self._lock:
                self._links[node] = link
            self._begin(node, connection)

    def _tick(self) -> None:
        """Continue as long as threads send directly."""
        if self._is_ended:
            return
        with self._lock:
            is_lying = self._accumulator.next_linger_ms() <= self._sender.now_ms() - _LYING_MS
            is_used = self._driven != self._driven_before or any(link.is_busy for link in self._links.values())
            self._driven_before = self._driven
            self._idle_ticks = 0 if is_used else self._idle_ticks + 1
            self._is_on = self._idle_ticks < _MOST_IDLE_TICKS
            was_driving, self._is_driving = self._is_driving, self._is_driving and self._is_on and not is_lying
        if was_driving and not self._is_driving:
            self._sender.wake_here()
        if self._is_on:
            self._loop.call_later(_TICK_MS / 1000, self._tick)
        else:
            self._rest()

    def _rest(self) -> None:
        """No thread sends now: the loop notices closed connections, and closes all after a while."""
        for node, link in self._links.items():
            if not link.is_busy:
                link.watch(self._loop, _KEEP_S * 1000, partial(self._unused, node, link))

    def _unused(self, node: int, link: DirectConnection, why: object) -> None:
        self._drop(node, link)
        self._not_before.pop(node, None)

    async def end(self) -> None:
        """Close all connections; threads that wait for a response get an error."""
        self._is_ended = True
        self._stop_listening()
        with self._lock:
            self._is_on = self._is_driving = False
            links, self._links = self._links, {}
        for task in list(self._opening.values()):
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        for link in links.values():
            link.close(self._loop)


# --------------------------------------------------------------------------------------------------- connections


class DirectConnection:
    """Opened by `open_direct_connection`. Every failure raises a PenstockError; the connection is unusable then."""

    def __init__(self, sock: socket.socket, node: str, version: int, client_id: str | None) -> None:
        self.node = node
        self.highest_version = version  # of Produce
        self._api_key, self._version = ApiKey.PRODUCE, version  # of the request in flight
        self.is_busy = False  # a request is in flight
        self._holder = 0  # the thread that holds it
        self._is_closing = False
        self._sock = sock
        self.client_id = client_id
        self._receiver = FrameReceiver(_MOST_ANSWER_BYTES)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self.correlation_id = 0  # of the last request
        self._usual_s = 0.0
        self._asleep = 0  # responses that are not polled for
        self._asleep_next = _LEAST_ASLEEP
        self._timer: asyncio.TimerHandle | None = None

    # --- the thread that waits

    def hold(self) -> None:
        """Before a request: the calling thread owns the connection until `let_go`."""
        self._holder = threading.get_ident()
        self.is_busy = True

    @property
    def is_held_here(self) -> bool:
        """Whether the calling thread owns it."""
        return self._holder == threading.get_ident()

    def let_go(self) -> None:
        """The calling thread is done; if the connection was closed meanwhile, the socket is closed now."""
        self._holder = 0
        if self._is_closing:
            self._sock.close()

    def send(self, api_key: ApiKey, message: Message, version: int) -> None:
        """Send a request; it is in flight when this returns."""
        self._api_key, self._version = api_key, version
        self.correlation_id = self.correlation_id % _MAX_CORRELATION + 1
        chunks = encode_request(api_key, version, self.correlation_id, self.client_id, message)
        self._send(_EMPTY.join(chunks))  # type: ignore[arg-type]

    def send_batch(self, exchange: BatchExchange, records: Buffer) -> None:
        """The same for a request with this batch."""
        self._api_key, self._version = ApiKey.PRODUCE, exchange.version
        self.correlation_id = self.correlation_id % _MAX_CORRELATION + 1
        self._send(exchange.request(self.correlation_id, records))

    def _send(self, data: bytes) -> None:
        try:
            sent = self._sock.send(data)
        except OSError as error:
            raise NotConnected(self.node, f"the connection broke: {error}") from error
        if sent < len(data):
            raise NotConnected(self.node, "its send buffer is full")

    def answer(self, patience_s: float) -> Any:
        """The response; None if it does not arrive in time, but may arrive later."""
        frame = self.receive(patience_s)
        return None if frame is None else self.decoded(frame)

    def receive(self, patience_s: float) -> Frame | None:
        """The bytes of the response; None if it does not arrive in time, but may arrive later."""
        began_s = time.perf_counter()
        awake_until_s = self._doze(began_s) if patience_s > _WORTH_S else began_s
        receiver, receive = self._receiver, self._sock.recv_into
        looked_s = time.perf_counter()
        while True:
            try:
                count = receive(receiver.get_buffer())
            except BlockingIOError:
                now_s = time.perf_counter()
                if awake_until_s > began_s and now_s - looked_s > _CROWDED_S:
                    awake_until_s = self._sleep_from_now_on()
                looked_s = now_s
                if now_s < awake_until_s:
                    _yield_processor()  # the broker may be waiting for this processor
                    continue
                left_s = began_s + patience_s - now_s
                if left_s <= 0 or not self._poll.poll(left_s * 1000):
                    self._usual_s = _SLOW_S
                    return None
                awake_until_s = began_s  # awake no more
                continue
            except OSError as error:
                raise NotConnected(self.node, f"the connection broke: {error}") from error
            if not count:
                raise NotConnected(self.node, "the broker closed the connection")
            try:
                frames = receiver.received(count)
            except WireError as error:
                raise self._violation(error) from error
            if frames:
                now_s = time.perf_counter()
                if awake_until_s > began_s and now_s - looked_s > _CROWDED_S:
                    self._sleep_from_now_on()
                self._usual_s += (min(now_s - began_s, _SLOW_S) - self._usual_s) / _MEMORY
                if len(frames) > 1:
                    raise self._violation(WireError(f"{len(frames)} responses to one request"))
                return frames[0]

    def _doze(self, now_s: float) -> float:
        """Sleep for half of the usual response time; returns until when to poll after that."""
        usual_s = self._usual_s
        if usual_s >= _WORTH_S or not _MAY_STAY_AWAKE:
            return now_s
        if self._asleep:
            self._asleep -= 1
            return now_s
        self._asleep_next = max(self._asleep_next - 1, _LEAST_ASLEEP)
        nap_s = usual_s / 2 - _WAKING_S
        if nap_s <= _WAKING_S:
            return now_s + _AWAKE_S
        time.sleep(nap_s)
        woken_s = time.perf_counter()
        if woken_s - now_s - nap_s > _CROWDED_S:
            return self._sleep_from_now_on()
        return woken_s + _AWAKE_S

    def _sleep_from_now_on(self) -> float:
        """Others had the processor for long. A thread that sleeps gets it back as soon as there is a response; one that
        polls has used its share, and waits for the others to use theirs."""
        self._asleep, self._asleep_next = self._asleep_next, min(self._asleep_next * 2, _MOST_ASLEEP)
        return 0.0

    def decoded(self, frame: Frame) -> Any:
        """The message of a response."""
        try:
            header, position = decode_response(self._api_key, self._version, frame)
            if header.correlation_id != self.correlation_id:
                raise WireError(f"correlation id {header.correlation_id}, expected {self.correlation_id}")
            return response_codec(self._api_key, self._version).decode(frame, position)[0]
        except WireError as error:
            raise self._violation(error) from error

    def _violation(self, error: WireError) -> ProtocolViolation:
        return ProtocolViolation(self.node, f"in response to {self._api_key.name}: {error}")

    # --- the event loop

    def watch(self, loop: asyncio.AbstractEventLoop, timeout_ms: float, on_end: Ended) -> None:
        """Wait for the response on the loop: `on_end` is called with it, or with the error."""

        def look() -> None:
            try:
                response = self.answer(0)
            except PenstockError as error:
                end(error)
            else:
                if response is not None:
                    end(response)

        def late() -> None:
            end(RequestTimedOut(self.node, f"Produce v{self._version}", timeout_ms))

        def end(outcome: ProduceResponse | PenstockError) -> None:
            self.unwatch(loop)
            on_end(outcome)

        self._timer = loop.call_later(timeout_ms / 1000, late)
        loop.add_reader(self._sock, look)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Stop waiting: a thread may use the connection again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sock.fileno() >= 0:
            loop.remove_reader(self._sock)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop. A thread that waits for a response gets NotConnected. It may be called twice."""
        self.unwatch(loop)
        if self._sock.fileno() < 0:
            return
        with contextlib.suppress(OSError):  # the broker has closed it
            self._sock.shutdown(socket.SHUT_RDWR)
        self._is_closing = True  # first, so that of two threads at least one sees it
        if not self._holder:
            self._sock.close()


class BatchExchange:
    """Produce requests with one batch of a partition, and their plain acknowledgements, as bytes.

    Of a request, the correlation id, the batch and their sizes differ from one to the next; of a response, the
    correlation id and the base offset. What is around them is taken from what the codec has written, and read, before.
    """

    __slots__ = ("_after", "_before", "_head", "_is_flexible", "_partition", "_place", "_tail", "_topic", "version")

    def __init__(self, version: int, client_id: str | None, message: ProduceRequest) -> None:
        """`message` has one batch of this partition."""
        self.version = version
        (topic,) = message.topic_data
        (partition,) = topic.partition_data
        self._topic, self._partition = topic.name, partition.index
        partition.records = _MARK
        whole = _EMPTY.join(encode_request(ApiKey.PRODUCE, version, 0, client_id, message))  # type: ignore[arg-type]
        head, _, self._tail = whole.rpartition(_MARK)  # what follows the batch is of fixed size
        length = _INT32.pack(len(_MARK))
        self._is_flexible = not head.endswith(length)
        self._head = head[_PREFIX.size : -1 if self._is_flexible else -len(length)]
        self._place = 0  # of the base offset; 0 before the first plain response
        self._before = self._after = _EMPTY

    def request(self, correlation_id: int, records: Buffer) -> bytes:
        """The request with a batch."""
        count = len(records)
        length = uvarint(count + 1) if self._is_flexible else _INT32.pack(count)
        size = _PREFIX.size - _INT32.size + len(self._head) + len(length) + count + len(self._tail)
        prefix = _PREFIX.pack(size, ApiKey.PRODUCE, self.version, correlation_id)
        return _EMPTY.join((prefix, self._head, length, records, self._tail))

    def stored(self, response: Frame, correlation_id: int) -> tuple[int, int] | None:
        """Base offset and append time (-1: the records') of a response that is as the last plain one; else None."""
        place = self._place
        if not place or response[_INT32.size : place] != self._before or response[place + _INT64.size :] != self._after:
            return None
        if _INT32.unpack_from(response)[0] != correlation_id:
            return None
        return _INT64.unpack_from(response, place)[0], -1

    def learn(self, response: Frame, message: ProduceResponse) -> tuple[int, int] | None:
        """The same for a response that was decoded; None if it is not a plain acknowledgement."""
        answers = [(topic.name, each) for topic in message.responses for each in topic.partition_responses]
        if message.throttle_time_ms or len(answers) != 1:
            return None
        ((topic, answer),) = answers
        is_here = topic == self._topic and answer.index == self._partition
        if answer.error_code or answer.current_leader.leader_id >= 0 or not is_here:
            return None
        data, wanted = bytes(response), _INT64.pack(answer.base_offset)
        place = data.find(wanted, _INT32.size)
        # Another field may have the same value: a later response tells them apart.
        is_certain = answer.log_append_time_ms < 0 and data.find(wanted, place + 1) < 0
        self._place = place if is_certain else 0
        self._before, self._after = data[_INT32.size : place], data[place + _INT64.size :]
        return answer.base_offset, answer.log_append_time_ms


async def open_direct_connection(connection: Connection, version: int, timeout_ms: float) -> DirectConnection | None:
    """A second connection to the same broker; None if it needs TLS or SASL. Raises NotConnected."""
    peer = connection.plain_peer
    if peer is None:
        return None
    family, address = peer
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except OSError as error:  # a TimeoutError is one too
        sock.close()
        raise NotConnected(connection.node, f"no second connection: {str(error) or 'not in time'}") from error
    except BaseException:
        sock.close()
        raise
    return DirectConnection(sock, connection.node, version, connection.client_id)
