"""A thread that waits for what it sent sends it itself: it is quick, and nothing else is different."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.wire_client import make_topic
from tests.client.producer.reading import stored, stored_values
from tests.client.producer.test_producer_faults import behind_a_proxy, value
from tests.timeouts import PATIENCE_S, until

from penstock.client.errors import ClosedError
from penstock.client.producer import Delivery, Producer, direct_sender
from penstock.client.producer.direct_sender import BatchExchange, DirectConnection, DirectSender
from penstock.client.producer.sender import HIGHEST_VERSION
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.framing import encode_request, encode_response
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)


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
@pytest.mark.parametrize("moment", ["send_batch", "receive"])
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


@pytest.mark.usefixtures("_only_threads_send")
@pytest.mark.parametrize("stamped_by", ["CreateTime", "LogAppendTime"])
def test_a_driven_record_has_the_offset_and_time_that_the_broker_stored(
    stamped_by: str, broker: EmbeddedBroker, address: str
) -> None:
    """Whether the response is decoded or recognised by its bytes, also for offsets that other fields have."""
    topic = make_topic(broker.broker, partitions=2, configs={"message.timestamp.type": stamped_by})
    with Producer(address) as producer:
        send_until_direct(producer, topic)
        driven = direct_sender_of(producer)._driven
        results = [
            (number, producer.send(topic, value(number), partition=number % 2, timestamp_ms=number).result(PATIENCE_S))
            for number in range(600)
        ]
        assert direct_sender_of(producer)._driven - driven > 300
    found = {partition: stored(broker.port, topic, partition) for partition in (0, 1)}
    for number, where in results:
        record = found[number % 2][where.offset]
        assert (record.value, where.partition) == (value(number), number % 2)
        assert (where.timestamp == number) is (stamped_by == "CreateTime")


@pytest.mark.usefixtures("_only_threads_send")
def test_a_thread_sleeps_for_its_response_when_others_use_the_processor(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic(broker.broker)
    yielded: list[int] = []

    def give_up_for_long() -> None:
        yielded.append(number)
        time.sleep(0.001)

    monkeypatch.setattr(direct_sender, "_MAY_STAY_AWAKE", True)
    monkeypatch.setattr(direct_sender, "_yield_processor", give_up_for_long)
    number = -1
    with Producer(address) as producer:
        send_until_direct(producer, topic)
        (link,) = direct_sender_of(producer)._links.values()
        for number in range(250):
            link._usual_s = 0.0  # as if this machine were fast
            producer.send(topic, value(number)).result(PATIENCE_S)
    assert yielded, "the thread stayed awake at first"
    assert len(yielded) <= 6, "and slept for 16, 32, 64 and 128 responses in between"


# --- the bytes of an exchange


def acknowledgement(topic: str, partition: int, base_offset: int, **more: Any) -> ProduceResponse:
    throttle_time_ms = more.pop("throttle_time_ms", 0)
    answer = PartitionProduceResponse(
        index=partition, **{"error_code": 0, "base_offset": base_offset, "log_append_time_ms": -1, **more}
    )
    responses = [TopicProduceResponse(name=topic, partition_responses=[answer])]
    return ProduceResponse(responses=responses, throttle_time_ms=throttle_time_ms)


def framed(version: int, correlation_id: int, message: ProduceResponse) -> bytes:
    return b"".join(encode_response(ApiKey.PRODUCE, version, correlation_id, message))[4:]  # type: ignore[arg-type]


def produce_request(topic: str, partition: int, records: bytes, transactional_id: str | None) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )  # fmt: skip


versions = st.integers(0, HIGHEST_VERSION)
names = st.text(min_size=1, max_size=20)
offsets = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(
    version=versions, client_id=st.one_of(st.none(), names), transactional_id=st.one_of(st.none(), names), topic=names,
    partition=st.integers(0, 1000), correlation_id=st.integers(1, 2**31 - 1),
    size=st.one_of(st.sampled_from([0, 126, 127, 16_382, 16_383]), st.integers(0, 20_000)),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_a_request_made_of_bytes_is_what_the_codec_writes(
    version: int, client_id: str | None, transactional_id: str | None, topic: str, partition: int, size: int,
    correlation_id: int,
) -> None:  # fmt: skip
    transactional_id = transactional_id if version >= 3 else None
    exchange = BatchExchange(version, client_id, produce_request(topic, partition, b"first", transactional_id))
    records = bytes(number % 251 for number in range(size))
    message = produce_request(topic, partition, records, transactional_id)
    wanted = b"".join(encode_request(ApiKey.PRODUCE, version, correlation_id, client_id, message))  # type: ignore[arg-type]
    assert exchange.request(correlation_id, bytearray(records)) == wanted


@given(version=versions, known=st.lists(offsets, min_size=1, max_size=4), base_offset=offsets, start=offsets)
@settings(max_examples=150, deadline=None)
def test_a_plain_acknowledgement_is_recognised_and_its_offset_is_never_another_field(
    version: int, known: list[int], base_offset: int, start: int
) -> None:
    exchange = BatchExchange(version, "client", produce_request("views", 3, b"first", None))
    for number in [*known, base_offset]:
        message = acknowledgement("views", 3, number, log_start_offset=start if version >= 5 else -1)
        frame = framed(version, 7, message)
        found = exchange.stored(frame, 7)
        assert found in (None, (number, -1))
        assert found or exchange.learn(frame, message) == (number, -1)
    if base_offset > 2**40 and base_offset != start:
        assert exchange.stored(frame, 7) == (base_offset, -1)
        assert exchange.stored(frame, 8) is None, "another correlation id"


@pytest.mark.parametrize(
    "more",
    [
        {"error_code": 6},
        {"throttle_time_ms": 5},
        {"log_append_time_ms": 12},
        {"current_leader": LeaderIdAndEpoch(leader_id=2, leader_epoch=4)},
        {"error_message": "odd"},
    ],
)
def test_a_response_that_differs_in_more_than_the_offset_is_decoded(more: dict[str, Any]) -> None:
    version = 10
    exchange = BatchExchange(version, "client", produce_request("views", 3, b"first", None))
    plain = acknowledgement("views", 3, 123_456_789)
    assert exchange.learn(framed(version, 1, plain), plain) == (123_456_789, -1)
    assert exchange.stored(framed(version, 1, acknowledgement("views", 3, 5)), 1) == (5, -1)
    other = acknowledgement("views", 3, 987_654_321, **more)
    assert exchange.stored(framed(version, 1, other), 1) is None
    is_stored = {"log_append_time_ms", "error_message"} & more.keys()
    wanted = (987_654_321, more.get("log_append_time_ms", -1)) if is_stored else None
    assert exchange.learn(framed(version, 1, other), other) == wanted
    for elsewhere in (acknowledgement("views", 4, 7), acknowledgement("clicks", 3, 7), ProduceResponse(responses=[])):
        assert exchange.stored(framed(version, 1, elsewhere), 1) is None
        assert exchange.learn(framed(version, 1, elsewhere), elsewhere) is None
