"""A network and a broker that fail under load: nothing is lost, stored twice or reordered; every call ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire_client import make_topic
from tests.client.producer.proxy import Proxy
from tests.client.producer.reading import stored_values
from tests.ports import free_port
from tests.timeouts import NEVER_MS, PATIENCE_MS, PATIENCE_S, until

from penstock.client.errors import BufferFull, ClosedError, DeliveryTimeout, PenstockError, TimedOut
from penstock.client.producer import Delivery, Producer
from penstock.testing.embedded_broker import EmbeddedBroker


@contextmanager
def behind_a_proxy() -> Iterator[tuple[EmbeddedBroker, Proxy, int]]:
    port = free_port()
    with Proxy(port) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with EmbeddedBroker(port=port, settings=advertised) as broker:
            yield broker, proxy, port


def value(number: int) -> bytes:
    return b"%08d" % number + b"." * 92


def fill(producer: Producer, topic: str) -> None:
    for _ in range(10_000):
        producer.send(topic, b"x" * 100)


def assert_all_in_order(port: int, topic: str, deliveries: list[Delivery]) -> None:
    assert [delivery.result(PATIENCE_S).offset for delivery in deliveries] == list(range(len(deliveries)))
    assert stored_values(port, topic) == [value(number) for number in range(len(deliveries))]


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_connections_cut_in_the_middle_of_a_frame_lose_and_repeat_nothing(direction: str) -> None:
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        step = 150_000 if direction == "to_broker" else 70
        with Producer(proxy.address, batch_size=8_192, retry_backoff_ms=5) as producer:
            deliveries: list[Delivery] = []
            for _ in range(8):
                proxy.cut_after(**{direction: step})
                before = proxy.cuts
                for _ in range(4_000):
                    deliveries.append(producer.send(topic, value(len(deliveries))))
                until(lambda before=before: proxy.cuts > before, "the connection is cut")  # type: ignore[misc]
            producer.flush(PATIENCE_S)
        assert proxy.cuts >= 8
        assert_all_in_order(port, topic, deliveries)


def test_a_broker_restarted_under_load_has_everything_once_and_in_order(tmp_path: Path) -> None:
    port = free_port()
    broker = EmbeddedBroker(str(tmp_path), port=port).start()
    topic = make_topic(broker.broker)
    stop = threading.Event()
    deliveries: list[Delivery] = []
    try:
        with Producer(f"127.0.0.1:{port}", batch_size=8_192, retry_backoff_ms=20) as producer:

            def load() -> None:
                while not stop.is_set():
                    for _ in range(50):
                        deliveries.append(producer.send(topic, value(len(deliveries))))
                    time.sleep(0.001)

            sending = threading.Thread(target=load)
            sending.start()
            for _ in range(3):
                reached = len(deliveries)
                until(lambda reached=reached: len(deliveries) > reached + 1_000, "records are sent")  # type: ignore[misc]
                broker.stop()
                reached = len(deliveries)
                until(lambda reached=reached: len(deliveries) > reached + 1_000, "more while it is down")  # type: ignore[misc]
                broker = EmbeddedBroker(str(tmp_path), port=port).start()
            stop.set()
            sending.join(PATIENCE_S)
            producer.flush(PATIENCE_S)
        assert_all_in_order(port, topic, deliveries)
    finally:
        stop.set()
        broker.stop()


def test_a_slow_broker_slows_the_sender_down_and_loses_nothing() -> None:
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        proxy.delay_s = 0.002
        with Producer(proxy.address, batch_size=8_192, buffer_memory=65_536, max_request_size=16_384) as producer:
            deliveries = [producer.send(topic, value(number)) for number in range(5_000)]
            producer.flush(PATIENCE_S)
        assert_all_in_order(port, topic, deliveries)


def test_answers_that_do_not_come_in_time_are_asked_for_again_without_duplicates() -> None:
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        with Producer(
            proxy.address, batch_size=2_048, request_timeout_ms=300, retry_backoff_ms=5, delivery_timeout_ms=PATIENCE_MS
        ) as producer:
            deliveries = [producer.send(topic, value(0))]
            deliveries[0].result(PATIENCE_S)
            for _ in range(3):
                proxy.hold()
                before = proxy.connections
                for _ in range(200):
                    deliveries.append(producer.send(topic, value(len(deliveries))))
                until(lambda before=before: proxy.connections > before, "it asks again, on another connection")  # type: ignore[misc]
                proxy.let_go()
            producer.flush(PATIENCE_S)
        assert_all_in_order(port, topic, deliveries)


def test_every_call_ends_when_the_broker_is_gone(tmp_path: Path) -> None:
    broker = EmbeddedBroker(str(tmp_path)).start()
    topic = make_topic(broker.broker)
    limits: dict[str, Any] = {
        "max_block_ms": 200, "request_timeout_ms": 300, "linger_ms": 0, "buffer_memory": 65_536,
        "max_request_size": 16_384, "retry_backoff_ms": 10,
    }  # fmt: skip
    patient = Producer(broker.address, **limits, delivery_timeout_ms=NEVER_MS)
    hasty = Producer(broker.address, **limits, delivery_timeout_ms=700)
    for producer in (patient, hasty):
        producer.send(topic, b"x").result(PATIENCE_S)
    broker.stop()
    waiting, lost = patient.send(topic, b"lost"), hasty.send(topic, b"lost")
    with pytest.raises(TimedOut):
        patient.flush(0.1)
    with pytest.raises(TimeoutError):
        waiting.result(0.05)
    with pytest.raises(BufferFull):
        fill(patient, topic)
    with pytest.raises(PenstockError):
        patient.send("never-seen", b"x")
    error = lost.exception(PATIENCE_S)
    assert isinstance(error, DeliveryTimeout)
    assert "delivery_timeout_ms" in str(error)
    assert f"{topic}-0" in str(error)
    patient.close(0.2)
    hasty.close(0.2)


def test_close_with_a_time_out_gives_up_what_is_left_and_says_so(tmp_path: Path) -> None:
    port = free_port()
    broker = EmbeddedBroker(str(tmp_path), port=port).start()
    topic = make_topic(broker.broker)
    producer = Producer(f"127.0.0.1:{port}", delivery_timeout_ms=NEVER_MS)
    producer.send(topic, b"x").result(PATIENCE_S)
    broker.stop()
    waiting = [producer.send(topic, b"x") for _ in range(10)]
    producer.close(0.2)
    assert all(isinstance(delivery.exception(0), ClosedError) for delivery in waiting)
    with pytest.raises(ClosedError):
        producer.send(topic, b"x")
    producer.close()


def test_ctrl_c_does_not_wait_for_a_broker_that_is_gone(tmp_path: Path) -> None:
    port = free_port()
    broker = EmbeddedBroker(str(tmp_path), port=port).start()
    topic = make_topic(broker.broker)
    with pytest.raises(KeyboardInterrupt):
        interrupted(broker, topic)


def interrupted(broker: EmbeddedBroker, topic: str) -> None:
    with Producer(broker.address, delivery_timeout_ms=NEVER_MS) as producer:
        producer.send(topic, b"x").result(PATIENCE_S)
        broker.stop()
        producer.send(topic, b"lost")
        raise KeyboardInterrupt


def test_a_callers_buffer_may_be_used_again_at_once() -> None:
    """CVE-2026-35554, the caller's side: `send` copies what it was given."""
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        buffer = bytearray(100)
        with Producer(proxy.address, linger_ms=50) as producer:
            waiting = [producer.send(topic, value(0))]
            waiting[0].result(PATIENCE_S)
            proxy.hold()
            for number in range(1, 100):
                buffer[:] = value(number)
                waiting.append(producer.send(topic, memoryview(buffer)))
            proxy.let_go()
            assert_all_in_order(port, topic, waiting)


def test_the_partition_continues_after_a_batch_in_flight_has_expired(tmp_path: Path) -> None:
    """The numbers of the lost batch leave a gap; the next ones start a new epoch, and order is kept."""
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        with Producer(
            proxy.address, batch_size=1_024, request_timeout_ms=3_000, delivery_timeout_ms=3_000, retry_backoff_ms=5
        ) as producer:
            producer.send(topic, value(0)).result(PATIENCE_S)
            proxy.hold()
            lost = [producer.send(topic, value(number)) for number in range(1, 100)]
            assert isinstance(lost[0].exception(PATIENCE_S), DeliveryTimeout)
            proxy.let_go()
            until(lambda: all(delivery.done() for delivery in lost), "all of them are given up")
            later = [producer.send(topic, value(number)) for number in range(100, 200)]
            assert [delivery.exception(PATIENCE_S) for delivery in later] == [None] * 100
        kept = stored_values(port, topic)
        assert kept == sorted(set(kept), key=lambda each: each or b"")
        assert kept[-100:] == [value(number) for number in range(100, 200)]
