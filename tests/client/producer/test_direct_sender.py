"""A thread that waits for what it sent sends it itself: it is quick, and nothing else is different."""

from __future__ import annotations

import threading

import pytest
from tests.broker.wire_client import make_topic
from tests.client.producer.reading import stored_values
from tests.client.producer.test_producer_faults import behind_a_proxy, value
from tests.timeouts import PATIENCE_S, until

from penstock.client.errors import ClosedError
from penstock.client.producer import Delivery, Producer, direct_sender
from penstock.client.producer.direct_sender import DirectConnection, DirectSender
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
def _only_threads_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the loop does not give up expecting the thread that waits."""
    monkeypatch.setattr(direct_sender, "_MOST_IDLE_TICKS", 10**6)
    monkeypatch.setattr(direct_sender, "_LYING_MS", 1e9)


def direct_sender_of(producer: Producer) -> DirectSender:
    found = producer._core.direct_sender
    assert found is not None
    return found


def send_until_direct(producer: Producer, topic: str) -> int:
    """Sends one record after the other until a thread has sent one itself; how many that took."""
    threads = direct_sender_of(producer)
    for sent in range(5_000):
        if threads._driven:
            return sent
        producer.send(topic, value(sent)).result(PATIENCE_S)
    raise AssertionError("no thread ever sent a record itself")


@pytest.mark.usefixtures("_only_threads_send")
def test_a_thread_that_waits_for_each_record_sends_it(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        first = send_until_direct(producer, topic)
        offsets = [producer.send(topic, value(first + n)).result(PATIENCE_S).offset for n in range(200)]
        assert direct_sender_of(producer)._driven > 100
    assert offsets == list(range(first, first + 200))
    assert stored_values(broker.port, topic) == [value(number) for number in range(first + 200)]


def test_a_record_without_a_waiting_thread_is_still_sent(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        send_until_direct(producer, topic)
        done, threads = threading.Event(), set[str]()

        def note(_: Delivery) -> None:
            threads.add(threading.current_thread().name)
            done.set()

        producer.send(topic, b"alone").add_done_callback(note)
        assert done.wait(PATIENCE_S)
    assert threads == {"penstock-client"}


@pytest.mark.usefixtures("_only_threads_send")
def test_callbacks_of_a_driven_record_run_on_the_loop(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        send_until_direct(producer, topic)
        done, threads = threading.Event(), set[str]()

        def note(_: Delivery) -> None:
            threads.add(threading.current_thread().name)
            done.set()

        delivery = producer.send(topic, b"x")
        delivery.add_done_callback(note)
        delivery.result(PATIENCE_S)
        assert done.wait(PATIENCE_S)
    assert threads == {"penstock-client"}


@pytest.mark.usefixtures("_only_threads_send")
def test_flush_returns_after_the_callbacks_of_a_driven_record(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        send_until_direct(producer, topic)
        called: list[str] = []
        for number in range(20):
            producer.send(
                topic, b"x", on_delivery=lambda error, metadata: called.append(threading.current_thread().name)
            )
            producer.flush(PATIENCE_S)
            assert called == ["penstock-client"] * (number + 1)


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_links_cut_in_the_middle_of_a_frame_lose_and_repeat_nothing(direction: str) -> None:
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        with Producer(proxy.address, retry_backoff_ms=5) as producer:
            sent = send_until_direct(producer, topic)
            for _ in range(6):
                direct_sender_of(producer)._not_before.clear()
                before = proxy.cuts
                proxy.cut_after(**{direction: 1_000 if direction == "to_broker" else 250})
                while proxy.cuts == before:
                    assert producer.send(topic, value(sent)).result(PATIENCE_S).offset == sent
                    sent += 1
        assert proxy.cuts >= 6
        assert stored_values(port, topic) == [value(number) for number in range(sent)]


@pytest.mark.usefixtures("_only_threads_send")
def test_a_thread_that_stops_waiting_leaves_the_response_to_the_loop() -> None:
    with behind_a_proxy() as (broker, proxy, port):
        topic = make_topic(broker.broker)
        with Producer(proxy.address) as producer:
            sent = send_until_direct(producer, topic)
            proxy.hold()
            driven = direct_sender_of(producer)._driven
            delivery = producer.send(topic, value(sent))
            with pytest.raises(TimeoutError):
                delivery.result(0.01)
            assert direct_sender_of(producer)._driven == driven + 1
            after = producer.send(topic, value(sent + 1))
            proxy.let_go()
            assert (delivery.result(PATIENCE_S).offset, after.result(PATIENCE_S).offset) == (sent, sent + 1)
        assert stored_values(port, topic) == [value(number) for number in range(sent + 2)]


@pytest.mark.usefixtures("_only_threads_send")
def test_closing_ends_the_wait_of_a_thread_that_drives() -> None:
    with behind_a_proxy() as (broker, proxy, _):
        topic = make_topic(broker.broker)
        producer = Producer(proxy.address)
        send_until_direct(producer, topic)
        driven = direct_sender_of(producer)._driven
        proxy.hold()
        delivery = producer.send(topic, b"x")
        failures: list[Exception | None] = []
        waiter = threading.Thread(target=lambda: failures.append(delivery.exception(PATIENCE_S)))
        waiter.start()
        until(lambda: direct_sender_of(producer)._driven > driven, "the thread sends")
        producer.close(0)
        waiter.join(PATIENCE_S)
        assert [type(failure) for failure in failures] == [ClosedError]


def test_threads_that_all_wait_keep_their_own_order(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        sent = send_until_direct(producer, topic)

        def work(name: int) -> None:
            for number in range(100):
                producer.send(topic, b"%d:%d" % (name, number)).result(PATIENCE_S)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    values = [each for each in stored_values(broker.port, topic)[sent:] if each is not None]
    for name in range(4):
        assert [each for each in values if each.startswith(b"%d:" % name)] == [b"%d:%d" % (name, n) for n in range(100)]


@pytest.mark.usefixtures("_only_threads_send")
@pytest.mark.parametrize("moment", ["send", "answer"])
def test_ctrl_c_ends_the_wait_and_the_loop_continues(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Before the record left, and while its answer is waited for: it is stored once, soon, and so are later ones."""
    topic = make_topic(broker.broker)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Producer(address) as producer:
        first = send_until_direct(producer, topic)
        with monkeypatch.context() as patched:
            patched.setattr(DirectConnection, moment, interrupted)
            delivery = producer.send(topic, value(first))
            with pytest.raises(KeyboardInterrupt):
                delivery.result(PATIENCE_S)
        assert delivery.result(PATIENCE_S).offset == first
        assert producer.send(topic, value(first + 1)).result(PATIENCE_S).offset == first + 1
    assert stored_values(broker.port, topic) == [value(number) for number in range(first + 2)]
