"""The queue of events: when a batch is handed over, to which handler, and what happens when that fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.client.contract.contract import new_name
from tests.client.producer.reading import stored, stored_values
from tests.timeouts import NEVER_MS, PATIENCE_S

from penstock import Event, EventHandler, Json, Producer, QueuedProducer, Text
from penstock.client.errors import BufferFull, ClosedError, ConfigError, TimedOut
from penstock.testing.embedded_broker import EmbeddedBroker


class Recording(EventHandler):
    """Notes the batches; holds the queue's thread while `held`."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []
        self.handled = threading.Semaphore(0)
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_closed = False

    def handle(self, events: Sequence[Event], producer: Producer[Any, Any]) -> None:
        self.batches.append(list(events))
        self.handled.release()
        assert self.may_go_on.wait(PATIENCE_S)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = new_name("t")
    broker.create_topic(name, 1)
    return name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"event_handler": Recording}, "event_handler is <class"),
        ({"event_handler": print}, "event_handler is <built-in"),
        ({"queue_time_ms": -1}, "queue_time_ms is -1; it must be 0 or more"),
        ({"queue_size": 0}, "queue_size is 0; it must be 1 or more"),
        ({"batch_messages": "2"}, "batch_messages is '2'; it must be 1 or more"),
        ({"linger": 5}, "has no option linger"),
    ],
)
def test_options_that_make_no_sense_are_rejected(address: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QueuedProducer(address, **options)


def test_the_default_handler_serializes_and_sends(broker: EmbeddedBroker, topic: str) -> None:
    with QueuedProducer(broker.address, value=Json(), key=Text()) as producer:
        producer.send(topic, {"page": 1}, "m1", {"source": b"web"}, timestamp_ms=5)
        producer.flush(PATIENCE_S)
        assert producer.metrics()["events_handled"] == 1
        producer.send(topic, None, "m1")
    first, second = stored(broker.port, topic)
    assert (first.key, first.value, first.timestamp) == (b"m1", b'{"page":1}', 5)
    assert dict(first.headers) == {"source": b"web"}
    assert second.value is None


def test_a_handler_of_yours_filters_splits_and_reroutes(broker: EmbeddedBroker, topic: str) -> None:
    class Splitting(EventHandler):
        def handle(self, events: Sequence[Event], producer: Producer[Any, Any]) -> None:
            words = [word for event in events for word in event.value.split() if word != "robot"]
            super().handle([Event(topic, word) for word in words], producer)

    with QueuedProducer(broker.address, event_handler=Splitting()) as producer:
        producer.send("another-topic", "a b robot")
        producer.send("another-topic", "c")
    assert stored_values(broker.port, topic) == [b"a", b"b", b"c"]


def test_a_batch_is_handed_over_when_it_is_full(address: str) -> None:
    handler = Recording()
    with QueuedProducer(address, event_handler=handler, batch_messages=3, queue_time_ms=NEVER_MS) as producer:
        for number in range(7):
            producer.send("t", number)
        for _ in range(2):
            assert handler.handled.acquire(timeout=PATIENCE_S)
        assert [[event.value for event in batch] for batch in handler.batches] == [[0, 1, 2], [3, 4, 5]]
    assert [event.value for event in handler.batches[2]] == [6]  # close hands over what is left
    assert handler.is_closed


def test_a_batch_is_handed_over_when_its_oldest_event_is_old_enough(address: str) -> None:
    handler = Recording()
    with QueuedProducer(address, event_handler=handler, queue_time_ms=1) as producer:
        producer.send("t", "alone")
        assert handler.handled.acquire(timeout=PATIENCE_S)


def test_a_full_queue_waits_and_then_rejects(address: str) -> None:
    handler = Recording()
    handler.may_go_on.clear()
    producer = QueuedProducer(address, event_handler=handler, queue_size=2, queue_time_ms=0, enqueue_timeout_ms=20)
    producer.send("t", 0)
    assert handler.handled.acquire(timeout=PATIENCE_S)
    producer.send("t", 1)
    producer.send("t", 2)
    with pytest.raises(BufferFull, match="the queue has 2 events"):
        producer.send("t", 3)
    with pytest.raises(TimedOut, match="3 events were not handled"):
        producer.flush(0.01)
    handler.may_go_on.set()
    producer.close()
    assert [event.value for batch in handler.batches for event in batch] == [0, 1, 2]


def test_a_handler_that_raises_loses_its_batch_and_no_other(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(EventHandler):
        def handle(self, events: Sequence[Event], producer: Producer[Any, Any]) -> None:
            if events[0].value == "bad":
                raise RuntimeError("cannot be enriched")
            super().handle(events, producer)

    with QueuedProducer(broker.address, event_handler=Failing(), batch_messages=1) as producer:
        for value in ("a", "bad", "b"):
            producer.send(topic, value)
        producer.flush(PATIENCE_S)
        metrics = producer.metrics()
    assert (metrics["events_handled"], metrics["events_failed"], metrics["events_waiting"]) == (2, 1, 0)
    assert "handler=Failing events=1" in caplog.text
    assert stored_values(broker.port, topic) == [b"a", b"b"]


def test_nothing_is_accepted_after_close(address: str) -> None:
    producer = QueuedProducer(address)
    producer.close()
    producer.close()
    with pytest.raises(ClosedError, match="the producer is closed"):
        producer.send("t", "late")
