"""A producer with a queue of events before it, and an event handler that can be replaced.

`send` puts an event, not yet serialized, into a bounded queue. A thread takes up to `batch_messages` events, when there
are as many or the oldest is `queue_time_ms` old, and passes them to the event handler with a `Producer`. The default
handler sends each event. One of yours can filter, enrich, merge, split or reroute them, or keep them elsewhere while
brokers are away:

    class WithoutRobots(EventHandler):
        def handle(self, events, producer):
            super().handle([each for each in events if not is_robot(each.value)], producer)

    with QueuedProducer("localhost:9092", event_handler=WithoutRobots()) as producer:
        producer.send("views", view)

This is Kafka 0.7's asynchronous producer (`producer.type=async`, `event.handler`, `queue.time`). `Producer` alone is
faster, and reports the outcome of each record; use this if events must be handled before they are serialized.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from penstock.client.addresses import Addresses
from penstock.client.errors import BufferFull, ClosedError, ConfigError, TimedOut
from penstock.client.producer.core import AnyHeaders
from penstock.client.producer.producer import Producer
from penstock.client.producer.producer_batch import RecordMetadata
from penstock.client.settings import Metrics

_log = logging.getLogger("penstock.producer")
_CLOSE_S: Final = 30.0


class Event(NamedTuple):
    """What was passed to `send`, before it is serialized."""

    topic: str
    value: Any
    key: Any = None
    headers: AnyHeaders | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class EventHandler:
    """Takes events from the queue to the brokers. Override `handle`; call the inherited one to send."""

    def handle(self, events: Sequence[Event], producer: Producer[Any, Any]) -> None:
        """Send a batch of events. It runs on the queue's thread, one batch at a time.

        What it raises is logged with the number of events in the batch, and the next batch follows.
        """
        for event in events:
            producer.send(
                event.topic,
                event.value,
                event.key,
                event.headers,
                event.partition,
                event.timestamp_ms,
                on_delivery=log_failure,
            )

    def close(self) -> None:
        """The last batch was handled."""


def log_failure(error: Exception | None, metadata: RecordMetadata) -> None:
    """An `on_delivery` callback: no caller waits for these records, so the log has those that failed."""
    if error is not None:
        _log.error("event not delivered: topic=%s partition=%d error=%s", metadata.topic, metadata.partition, error)


class QueuedProducer:
    """Queues events for an event handler; thread-safe.

    `options` are those of `Producer`, with its serializers. `queue_size` bounds the queue: `send` waits up to
    `enqueue_timeout_ms` for room, forever with None, and then raises BufferFull.
    """

    def __init__(
        self,
        bootstrap_servers: Addresses,
        *,
        event_handler: EventHandler | None = None,
        queue_time_ms: float = 5_000,
        batch_messages: int = 200,
        queue_size: int = 10_000,
        enqueue_timeout_ms: float | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        """Connect; raises BootstrapError if no broker can be reached, ConfigError for an invalid option."""
        handler = EventHandler() if event_handler is None else event_handler
        _check(handler, queue_time_ms, batch_messages, queue_size)
        self._handler = handler
        self._queue_time_s = queue_time_ms / 1000
        self._batch_messages = min(batch_messages, queue_size)
        self._queue_size = queue_size
        self._enqueue_timeout_s = None if enqueue_timeout_ms is None else enqueue_timeout_ms / 1000
        self._now_s = monotonic_s
        self._events: deque[tuple[float, Event]] = deque()
        self._changed = threading.Condition()
        self._accepted = self._done = self._failed = 0
        self._hurry_until = 0
        self._is_closed = False
        self.producer: Producer[Any, Any] = Producer(bootstrap_servers, **options)
        self._thread = threading.Thread(target=self._run, name="penstock-events", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        headers: AnyHeaders | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Queue an event. Raises BufferFull if the queue stays full, ClosedError after `close`."""
        event = Event(topic, value, key, headers, partition, timestamp_ms)
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._is_closed or len(self._events) < self._queue_size, self._enqueue_timeout_s
            )
            if self._is_closed:
                raise ClosedError("the producer is closed", hint="Send before close(), or create a new producer")
            if not has_room:
                raise BufferFull(
                    f"the queue has {self._queue_size} events and the event handler is behind",
                    hint="Send slower, or raise queue_size or enqueue_timeout_ms",
                )
            self._events.append((self._now_s(), event))
            self._accepted += 1
            if len(self._events) in (1, self._batch_messages):
                self._changed.notify_all()

    def flush(self, timeout: float | None = None) -> None:
        """Hand over what is queued and wait until it is acknowledged or has failed. Raises TimedOut."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            upto = self._hurry_until = self._accepted
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._done >= upto, timeout):
                raise TimedOut(
                    f"{upto - self._done} events were not handled within {timeout} s", hint="They are still queued"
                )
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        self.producer.flush(left_s)

    def close(self, timeout: float | None = _CLOSE_S) -> None:
        """Hand over what is queued, close the handler and the producer. What is left after `timeout` is lost."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            _log.warning("events lost at close, the event handler is still busy: events=%d", len(self._events))
        else:
            self._close_handler()
        self.producer.close(timeout)

    def metrics(self) -> Metrics:
        """Events so far and events waiting, and the metrics of the producer."""
        with self._changed:
            events = {
                "events_accepted": self._accepted,
                "events_handled": self._done - self._failed,
                "events_failed": self._failed,
                "events_waiting": len(self._events),
            }
        return {**self.producer.metrics(), **events}

    def __enter__(self) -> QueuedProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the queue's thread

    def _run(self) -> None:
        while batch := self._next_batch():
            failed = 0
            try:
                self._handler.handle(batch, self.producer)
            except Exception:  # noqa: BLE001 - the application's code; the next batch must be handled
                failed = len(batch)
                _log.exception("event handler failed: handler=%s events=%d", type(self._handler).__name__, failed)
            with self._changed:
                self._done += len(batch)
                self._failed += failed
                self._changed.notify_all()

    def _next_batch(self) -> list[Event]:
        """Wait for a batch that is due; empty when the queue is closed and empty."""
        with self._changed:
            while True:
                left_s = self._due_in_s()
                if left_s is not None and left_s <= 0:
                    break
                if self._is_closed:
                    return []
                self._changed.wait(left_s)
            size = min(len(self._events), self._batch_messages)
            batch = [self._events.popleft()[1] for _ in range(size)]
            self._changed.notify_all()  # there is room again
            return batch

    def _due_in_s(self) -> float | None:
        """Time until a batch is due; None while the queue is empty."""
        if not self._events:
            return None
        is_urgent = self._is_closed or self._done < self._hurry_until
        if is_urgent or len(self._events) >= self._batch_messages:
            return 0
        return self._events[0][0] + self._queue_time_s - self._now_s()

    def _close_handler(self) -> None:
        try:
            self._handler.close()
        except Exception:  # noqa: BLE001 - the application's code; the producer must be closed
            _log.exception("event handler not closed: handler=%s", type(self._handler).__name__)


def _check(handler: object, queue_time_ms: object, batch_messages: object, queue_size: object) -> None:
    if isinstance(handler, type) or not callable(getattr(handler, "handle", None)):
        raise ConfigError(f"event_handler is {handler!r}", hint="Give an instance of a subclass of EventHandler")
    for name, number, least in (
        ("queue_time_ms", queue_time_ms, 0), ("batch_messages", batch_messages, 1), ("queue_size", queue_size, 1),
    ):  # fmt: skip
        if not isinstance(number, int | float) or isinstance(number, bool) or not number >= least:
            raise ConfigError(f"{name} is {number!r}; it must be {least} or more")
