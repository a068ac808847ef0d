"""The blocking producer against a real broker."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.broker.wire_client import make_topic
from tests.client.producer.reading import stored, stored_values
from tests.timeouts import PATIENCE_S, until

from penstock.client.errors import (
    BatchRejected,
    BootstrapError,
    ClosedError,
    ConfigError,
    InvalidRecord,
    InvalidTopic,
    RecordTooLarge,
    SerializationError,
)
from penstock.client.producer import (
    BatchInfo,
    Delivery,
    EnqueuedRecord,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
)
from penstock.client.serializers import Json, Text
from penstock.records.kernel import KERNEL, murmur2
from penstock.testing.embedded_broker import EmbeddedBroker


def test_a_record_is_stored_as_it_was_sent(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        delivery = producer.send(
            topic, "wert", key=b"k", headers={"src": b"web", "none": None, "text": "ü"}, timestamp_ms=1_700_000_000_123
        )
        metadata = delivery.result(PATIENCE_S)
    assert (metadata.topic, metadata.partition, metadata.offset) == (topic, 0, 0)
    assert metadata.timestamp == 1_700_000_000_123
    (record,) = stored(broker.port, topic)
    assert (record.key, record.value, record.timestamp) == (b"k", b"wert", 1_700_000_000_123)
    assert list(record.headers) == [("src", b"web"), ("none", None), ("text", "ü".encode())]


def test_a_tombstone_and_an_empty_value_are_different(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        producer.send(topic, None, key="k")
        producer.send(topic, b"", key="k")
    assert stored_values(broker.port, topic) == [None, b""]


def test_only_the_records_at_fault_are_reported_as_invalid(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, configs={"cleanup.policy": "compact"})
    reported: list[tuple[Exception | None, RecordMetadata]] = []
    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        deliveries = [producer.send(topic, b"v", key=None if number in (1, 3) else b"k") for number in range(4)]
        producer.send(topic, b"v", key=b"k", on_delivery=lambda error, metadata: reported.append((error, metadata)))
        producer.flush()
        errors = [delivery.exception(PATIENCE_S) for delivery in deliveries]
    assert [type(error) for error in errors] == [BatchRejected, InvalidRecord, BatchRejected, InvalidRecord]
    assert "key" in str(errors[1])
    assert "record 1" in str(errors[0])
    ((error, metadata),) = reported
    assert isinstance(error, BatchRejected)
    assert metadata.offset == -1
    assert stored_values(broker.port, topic) == []


def test_leaving_the_block_delivers_everything(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        deliveries = [producer.send(topic, b"%d" % number) for number in range(1_000)]
    assert [delivery.result(0).offset for delivery in deliveries] == list(range(1_000))
    assert stored_values(broker.port, topic) == [b"%d" % number for number in range(1_000)]


def test_each_record_has_its_own_timestamp(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, linger_ms=100) as producer:
        times_ms = [9_000, 9_000, 5, 5, 5, 9_000, 1_000, 8_999]
        deliveries = [producer.send(topic, b"x", timestamp_ms=time_ms) for time_ms in times_ms]
        producer.flush(10)
    assert [delivery.result(0).timestamp for delivery in deliveries] == times_ms


def test_a_topic_with_the_brokers_time_says_so(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, configs={"message.timestamp.type": "LogAppendTime"})
    with Producer(address) as producer:
        metadata = producer.send(topic, b"x", timestamp_ms=1_000).result(PATIENCE_S)
    assert metadata.timestamp == stored(broker.port, topic)[0].timestamp > 1_000


def test_keys_go_to_their_partitions(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, partitions=5)
    with Producer(address) as producer:
        for number in range(100):
            key = b"key-%d" % number
            assert producer.send(topic, b"x", key=key).result(PATIENCE_S).partition == murmur2(key) % 5
        assert producer.send(topic, b"x", key="key-1", partition=4).result(PATIENCE_S).partition == 4
        assert producer.partitions_for(topic) == {0, 1, 2, 3, 4}
        with pytest.raises(ValueError, match="partitions 0 to 4"):
            producer.send(topic, b"x", partition=5)


def test_records_without_a_key_stay_together_and_then_move_on(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, partitions=4)
    with Producer(address, batch_size=1_000, linger_ms=50) as producer:
        deliveries = [producer.send(topic, b"x" * 100) for _ in range(400)]
        producer.flush(10)
    places = [delivery.result(0).partition for delivery in deliveries]
    assert set(places) == {0, 1, 2, 3}
    moves = sum(before != after for before, after in pairwise(places))
    assert moves < 80


def test_a_partitioner_of_ones_own(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, partitions=3)
    with Producer(address, partitioner=lambda topic, key, count: len(key or b"") % count) as producer:
        assert producer.send(topic, b"x", key=b"four").result(PATIENCE_S).partition == 1
        assert producer.send(topic, b"x").result(PATIENCE_S).partition == 0
        assert producer.send_many(topic, [b"x"] * 3, keys=[b"", b"1", b"22"]).result(PATIENCE_S).count == 3
    assert [len(stored(broker.port, topic, partition)) for partition in range(3)] == [2, 2, 1]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_small_and_large(broker: EmbeddedBroker, address: str, codec: str) -> None:
    topic = make_topic(broker.broker)
    values = [b"%06d-" % number * 20 for number in range(3_000)]
    with Producer(address, compression_type=codec, batch_size=65_536) as producer:
        producer.send(topic, b"small").result(PATIENCE_S)
        deliveries = [producer.send(topic, value) for value in values]
        producer.flush(20)
        assert deliveries[-1].result(0).offset == 3_000
    assert stored_values(broker.port, topic) == [b"small", *values]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(broker: EmbeddedBroker, address: str, acks: int) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, acks=acks) as producer:  # type: ignore[arg-type]
        delivery = producer.send(topic, b"x")
        assert delivery.result(PATIENCE_S).offset == (-1 if acks == 0 else 0)
        producer.send_many(topic, [b"y"] * 10_000).result(PATIENCE_S)
    until(lambda: len(stored(broker.port, topic)) == 10_001, "all are stored")


def test_serializers_are_asked(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, value=Json()) as producer:
        producer.send(topic, {"a": 1}, key="k").result(PATIENCE_S)
        producer.send_many(topic, [{"a": 2}, {"a": 3}]).result(PATIENCE_S)
        with pytest.raises(SerializationError):
            producer.send(topic, object())
    assert stored_values(broker.port, topic) == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_a_value_that_is_neither_bytes_nor_text_is_rejected(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        for _ in range(2):  # when the topic is not known yet, and when it is
            with pytest.raises(SerializationError, match=r"value for topic .* is a int"):
                producer.send(topic, 5)  # type: ignore[arg-type]
            with pytest.raises(SerializationError, match="key"):
                producer.send(topic, b"x", key=1.5)  # type: ignore[arg-type]
            producer.send(topic, memoryview(b"fine"), key=bytearray(b"too")).result(PATIENCE_S)
    assert stored_values(broker.port, topic) == [b"fine", b"fine"]


def test_a_record_that_can_never_be_sent_is_rejected_at_once(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, max_request_size=10_000) as producer:
        with pytest.raises(RecordTooLarge, match="max_request_size"):
            producer.send(topic, b"x" * 10_001)
        producer.send(topic, b"x" * 9_000).result(PATIENCE_S)


def test_a_broker_that_takes_less_gets_the_batch_in_pieces(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, configs={"max.message.bytes": "2000"})
    with Producer(address, linger_ms=50) as producer:
        deliveries = [producer.send(topic, b"%04d" % number + b"." * 100) for number in range(100)]
        large = producer.send(topic, b"x" * 3_000)
        after = producer.send(topic, b"after")
        producer.flush(20)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(100))
        assert isinstance(large.exception(0), RecordTooLarge)
        assert after.result(0).offset == 100
    assert len(stored(broker.port, topic)) == 101


def test_a_topic_that_may_not_be_is_an_error_that_says_so(address: str) -> None:
    with Producer(address) as producer, pytest.raises(InvalidTopic, match="no/such"):
        producer.send("no/such", b"x")


def test_no_broker_is_an_error_with_the_reason() -> None:
    with pytest.raises(BootstrapError) as caught:
        Producer("127.0.0.1:1")
    assert "127.0.0.1:1" in str(caught.value)
    assert not _client_threads()


def test_a_topic_that_grows_gets_records_in_its_new_partitions(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, partitions=1)
    with Producer(address, metadata_max_age_ms=100) as producer:
        producer.send(topic, b"x").result(PATIENCE_S)
        _grow(broker, topic, 3)
        until(lambda: producer.partitions_for(topic) == {0, 1, 2}, "the producer has seen it")
        assert producer.send(topic, b"x", partition=2).result(PATIENCE_S).partition == 2


def _grow(broker: EmbeddedBroker, topic: str, count: int) -> None:
    from tests.broker.wire_client import WireClient

    from penstock.wire.protocol import ApiKey
    from penstock.wire.schemas.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic

    with WireClient(broker.port) as client:
        wanted = [CreatePartitionsTopic(name=topic, count=count, assignments=None)]
        answer = client.ask(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=wanted, timeout_ms=60_000), 2)
    assert answer.results[0].error_code == 0


def test_threads_share_a_producer_and_each_keeps_its_order(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, batch_size=4_096) as producer:

        def work(name: int) -> None:
            for number in range(3_000):
                producer.send(topic, b"%d %d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush(20)
    found = [(value or b"").split() for value in stored_values(broker.port, topic)]
    assert len(found) == 12_000
    for name in range(4):
        assert [int(number) for who, number in found if int(who) == name] == list(range(3_000))


def test_callbacks_may_send(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    echoed = threading.Event()
    with Producer(address) as producer:

        def echo(delivery: Delivery) -> None:
            producer.send(topic, b"echo").add_done_callback(lambda done: echoed.set())

        producer.send(topic, b"call").add_done_callback(echo)
        assert echoed.wait(PATIENCE_S)
    assert stored_values(broker.port, topic) == [b"call", b"echo"]


WAYS: dict[str, dict[str, Any]] = {
    "value": {"value": b"v"},
    "key": {"value": b"v", "key": b"k"},
    "partition": {"value": b"v", "partition": 0},
    "pairs": {"value": b"v", "headers": [("h", b"x"), ("text", "ü")]},
    "mapping": {"value": b"v", "headers": {"h": b"x", "none": None}},
    "text": {"value": "vü", "key": "kü"},
    "timestamp": {"value": b"v", "timestamp_ms": 1_700_000_000_000},
    "on_delivery": {"value": b"v", "on_delivery": lambda error, metadata: None},
    "all": {
        "value": "v", "key": "k", "partition": 0, "headers": {"h": b"x"}, "timestamp_ms": 1,
        "on_delivery": lambda error, metadata: None,
    },
}  # fmt: skip


@pytest.mark.parametrize("serializes", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_calling_send_goes_straight_into_the_open_batch(
    way: str, serializes: bool, broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a record costs is one call into the kernel, whatever the arguments: `append` of the core is for batches."""
    topic = make_topic(broker.broker)
    text: Any = Text() if serializes and isinstance(WAYS[way]["value"], str) else None
    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000, value=text) as producer:
        producer.send(topic, "first")

        def fail(*arguments: object) -> None:
            raise AssertionError(f"the record took the long way: {arguments}")

        with monkeypatch.context() as patched:
            patched.setattr(producer._core, "append", fail)
            for _ in range(20):
                producer.send(topic, **WAYS[way])
    assert len(stored(broker.port, topic)) == 21


@pytest.mark.skipif(KERNEL != "compiled", reason="the plain-Python kernel runs Python")
@pytest.mark.parametrize("way", WAYS)
def test_send_runs_no_python_for_a_record_in_the_open_batch(way: str, broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.send(topic, "first")
        sys.setprofile(note)
        try:
            for _ in range(20):
                producer.send(topic, **WAYS[way])
        finally:
            sys.setprofile(None)
    assert called == []
    assert len(stored(broker.port, topic)) == 21


def test_on_delivery_is_called_for_each_record_in_order_before_flush_returns(
    broker: EmbeddedBroker, address: str
) -> None:
    topic = make_topic(broker.broker)
    seen: list[tuple[int, Exception | None, RecordMetadata, str]] = []

    def note(number: int, error: Exception | None, metadata: RecordMetadata) -> None:
        seen.append((number, error, metadata, threading.current_thread().name))

    with Producer(address, batch_size=2_000) as producer:
        for count in (500, 1_000):
            while len(seen) < count:
                for number in range(len(seen), count):
                    producer.send(topic, b"v", timestamp_ms=number, on_delivery=partial(note, number))
                producer.flush(PATIENCE_S)
                assert len(seen) == count
        producer.send(topic, b"v", timestamp_ms=1_000, on_delivery=partial(note, 1_000))
    assert [number for number, _, _, _ in seen] == list(range(1_001))
    assert [metadata for _, _, metadata, _ in seen] == [RecordMetadata(topic, 0, n, n) for n in range(1_001)]
    assert {(error, thread) for _, error, _, thread in seen} == {(None, "penstock-client")}


def test_on_delivery_of_a_record_that_fails_gets_the_error(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, configs={"max.message.bytes": "300"})
    seen: list[tuple[Exception | None, RecordMetadata]] = []
    with Producer(address) as producer:
        producer.send(topic, b"v" * 1_000, on_delivery=lambda error, metadata: seen.append((error, metadata)))
        producer.flush(PATIENCE_S)
        ((error, metadata),) = seen
        assert isinstance(error, RecordTooLarge)
        assert metadata == RecordMetadata(topic, 0, -1, -1)


def test_a_split_batch_reports_every_record(broker: EmbeddedBroker, address: str) -> None:
    """The broker finds the batch of all too large; the halves of halves are stored."""
    topic = make_topic(broker.broker, configs={"max.message.bytes": "2000"})
    seen: list[tuple[Exception | None, int]] = []
    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for _ in range(40):
            producer.send(topic, b"v" * 200, on_delivery=lambda error, metadata: seen.append((error, metadata.offset)))
        producer.flush(PATIENCE_S)
        assert seen == [(None, offset) for offset in range(40)]


@pytest.mark.parametrize("raised", [ValueError, SystemExit])
def test_what_a_callback_raises_is_logged_and_the_others_are_called(
    raised: type[BaseException], broker: EmbeddedBroker, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(broker.broker)
    seen: list[int] = []

    def fail(error: Exception | None, metadata: RecordMetadata) -> None:
        raise raised("mine")

    with Producer(address, linger_ms=60_000, delivery_timeout_ms=120_000) as producer:
        for _ in range(3):
            producer.send(topic, b"v", on_delivery=fail)
            producer.send(topic, b"v", on_delivery=lambda error, metadata: seen.append(metadata.offset))
        producer.flush(PATIENCE_S)
        assert seen == [1, 3, 5]
        last = producer.send(topic, b"v")
        producer.flush(PATIENCE_S)
        assert last.result(0).offset == 6
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "a delivery callback raised"
    ] * 3


def test_wrong_arguments_of_send_are_named(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"value": 5}, SerializationError, "the value for topic .* is a int"),
        ({"value": "\ud800"}, SerializationError, "the value for topic .* is not text"),
        ({"key": 1.5}, SerializationError, "the key for topic .* is a float"),
        ({"partition": 7}, ConfigError, "the partition is 7"),
        ({"partition": 10**30}, ConfigError, "the partition is 1000"),
        ({"on_delivery": 7}, TypeError, "on_delivery must be callable, not int"),
        ({"headers": {"h": 1}}, TypeError, "header value must be bytes or None, not int"),
    ]
    with Producer(address) as producer:
        for _ in range(2):  # before the topic is known and after
            for arguments, kind, message in wrong:
                with pytest.raises(kind, match=message):
                    producer.send(topic, **arguments)
            producer.send(topic, b"v")
    assert len(stored(broker.port, topic)) == 2


def test_metrics_count_what_became_of_records(broker: EmbeddedBroker, address: str) -> None:
    topic, narrow = make_topic(broker.broker), make_topic(broker.broker, configs={"max.message.bytes": "300"})
    reported: list[dict[str, float]] = []
    threads: list[str] = []

    def note(metrics: dict[str, float]) -> None:
        threads.append(threading.current_thread().name)
        reported.append(metrics)
        raise ValueError("it is logged")

    with Producer(address, on_statistics=note, statistics_interval_ms=1) as producer:
        fresh = producer.metrics()
        assert (fresh["records_sent"], fresh["buffer_bytes"]) == (0, 0)
        for _ in range(3):
            producer.send_many(topic, [b"x" * 10] * 5).result(PATIENCE_S)
        with pytest.raises(RecordTooLarge):
            producer.send(narrow, b"x" * 1_000).result(PATIENCE_S)
        producer.flush(PATIENCE_S)
        until(lambda: producer.metrics()["records_failed"], "the failure is counted")
        metrics = producer.metrics()
        assert (metrics["records_sent"], metrics["records_failed"], metrics["batches_failed"]) == (15, 1, 1)
        assert (metrics["batches_sent"], metrics["batches_retried"]) == (3, 0)
        assert metrics["bytes_sent"] > 150
        assert metrics["requests_sent"] == 4
        assert 0 < metrics["latency_ms_mean"] <= metrics["latency_ms_max"]
        assert (metrics["batches_in_flight"], metrics["batches_waiting"]) == (0, 0)
        assert (metrics["buffer_bytes"], metrics["buffer_bytes_limit"]) == (0, 16 * 1024 * 1024)
        assert metrics["connections"] >= 1
        until(lambda: reported and reported[-1]["records_failed"] == 1, "the callback was called")
        assert reported[-1].keys() == metrics.keys()
    assert set(threads) == {"penstock-client"}
    count = len(reported)
    with Producer(address) as other:
        other.send(topic, b"x").result(PATIENCE_S)
    assert len(reported) == count


class Watching(ProducerInterceptor):
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.records: list[EnqueuedRecord] = []

    def enqueued(self, record: EnqueuedRecord) -> None:
        self.seen.append("enqueued")
        self.records.append(record)

    def batched(self, batch: BatchInfo) -> None:
        self.seen.append(f"batched {batch.record_count}")

    def sent(self, batch: BatchInfo) -> None:
        self.seen.append(f"sent {batch.attempt}")

    def acknowledged(self, batch: BatchInfo, base_offset: int) -> None:
        self.seen.append(f"acknowledged {base_offset}")

    def failed(self, batch: BatchInfo, error: Exception) -> None:
        self.seen.append(f"failed {type(error).__name__}")


class Raising(ProducerInterceptor):
    def enqueued(self, record: EnqueuedRecord) -> None:
        raise RuntimeError("enqueued")

    def sent(self, batch: BatchInfo) -> None:
        raise RuntimeError("sent")

    def acknowledged(self, batch: BatchInfo, base_offset: int) -> None:
        raise RuntimeError("acknowledged")


def test_interceptors_see_every_stage(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, configs={"max.message.bytes": "500"})
    watching = Watching()
    with Producer(address, interceptors=[watching], linger_ms=30) as producer:
        producer.send(topic, b"a", key=b"k")
        producer.send(topic, b"b")
        producer.flush(10)
        assert watching.seen == ["enqueued", "enqueued", "batched 2", "sent 1", "acknowledged 0"]
        assert watching.records[0][:4] == (topic, 0, b"k", b"a")
        watching.seen.clear()
        producer.send(topic, b"x" * 1_000)
        producer.flush(10)
        assert watching.seen == ["enqueued", "batched 1", "sent 1", "failed RecordTooLarge"]


def test_an_interceptor_that_raises_never_stops_records(
    broker: EmbeddedBroker, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(broker.broker)
    watching = Watching()
    with caplog.at_level(logging.ERROR), Producer(address, interceptors=[Raising(), watching]) as producer:
        producer.send(topic, b"a").result(PATIENCE_S)
        producer.flush(10)
    assert watching.seen == ["enqueued", "batched 1", "sent 1", "acknowledged 0"]
    for stage in ("enqueued", "sent", "acknowledged"):
        assert f"interceptor failed: interceptor=Raising method={stage}" in caplog.text


def test_send_many_takes_values_keys_and_records(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker, partitions=3)
    with Producer(address, batch_size=2_000) as producer:
        plain = producer.send_many(topic, (b"%d" % number for number in range(5_000)))
        assert plain.result(PATIENCE_S).count == 5_000
        keys = [b"key-%d" % (number % 17) for number in range(1_000)]
        keyed = producer.send_many(topic, [str(number) for number in range(1_000)], keys=keys)
        assert sum(part.count for part in keyed.result(PATIENCE_S).stored) == 1_000
        records = [
            ProducerRecord(b"r", key=b"k", partition=2, timestamp_ms=5, headers={"h": b"1"}),
            ProducerRecord("s"),
        ]
        assert producer.send_many(topic, records).result(PATIENCE_S).count == 2
        assert producer.send_many(topic, []).result(0).count == 0
        with pytest.raises(TypeError, match="many values"):
            producer.send_many(topic, b"abc")  # type: ignore[arg-type]
    found = [record for partition in range(3) for record in stored(broker.port, topic, partition)]
    assert len(found) == 6_002
    for partition in range(3):
        rows = [record for record in stored(broker.port, topic, partition) if record.key and record.key != b"k"]
        assert all(murmur2(record.key or b"") % 3 == partition for record in rows)
        numbers = [int(record.value or b"") for record in rows]
        assert numbers == sorted(numbers)
    (special,) = [record for record in found if record.key == b"k"]
    assert (special.timestamp, list(special.headers)) == (5, [("h", b"1")])


def test_send_many_under_back_pressure_keeps_everything_in_order(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    values = [b"%06d" % number + b"." * 100 for number in range(20_000)]
    with Producer(address, buffer_memory=65_536, max_request_size=16_384, batch_size=4_096) as producer:
        assert producer.send_many(topic, values).result(PATIENCE_S).stored[0].count == 20_000
    assert stored_values(broker.port, topic) == values


def test_one_record_too_large_among_many_fails_alone(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address, max_request_size=10_000) as producer:
        delivery = producer.send_many(topic, [b"a", b"x" * 20_000, b"b"])
        assert isinstance(delivery.exception(PATIENCE_S), RecordTooLarge)
        assert [place for place, _ in delivery.failures()] == [1]
    assert stored_values(broker.port, topic) == [b"a", b"b"]


def test_a_table_of_arrow_goes_in_by_columns(broker: EmbeddedBroker, address: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    topic = make_topic(broker.broker, partitions=3)
    table = pyarrow.table(
        {
            "value": pyarrow.array([b"%d" % number for number in range(1_000)], pyarrow.binary()),
            "key": pyarrow.array([None if number % 5 == 0 else f"k{number % 7}" for number in range(1_000)]),
            "timestamp": pyarrow.array(range(1_000), pyarrow.timestamp("ms")),
        }
    )
    with Producer(address, batch_size=1_000) as producer:
        assert producer.send_arrow(topic, table).result(PATIENCE_S).count == 1_000
        batch = table.select(["value"]).to_batches()[0]
        assert producer.send_arrow(topic, batch, partition=1).result(PATIENCE_S).stored[-1].partition == 1
        where = pyarrow.table({"value": ["a", "b"], "partition": [2, 0]})
        assert {part.partition for part in producer.send_arrow(topic, where).result(PATIENCE_S).stored} == {0, 2}
        with pytest.raises(ValueError, match="no column value"):
            producer.send_arrow(topic, table.select(["key"]))
    first = [record for partition in range(3) for record in stored(broker.port, topic, partition)]
    timed = {int(record.value or b""): record for record in first if record.value and record.timestamp < 1_000}
    assert len(timed) == 1_000
    assert all(record.timestamp == number for number, record in timed.items())
    assert timed[8].key == b"k1"
    assert timed[5].key is None


def test_flush_waits_for_what_was_sent_and_close_is_harmless_again(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    producer = Producer(address, linger_ms=10_000)
    delivery = producer.send(topic, b"x")
    assert not delivery.done()
    producer.flush(10)
    assert delivery.done()
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(topic, b"x")
    with pytest.raises(ClosedError):
        producer.send_many(topic, [b"x"])


def _client_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name in ("penstock-client", "penstock-compress_0")
    ]


def test_nothing_is_left_of_a_closed_producer(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        producer.send(topic, b"x").result(PATIENCE_S)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Producer(address, compression_type="lz4") as producer:
            producer.send_many(topic, [b"x" * 100] * 5_000).result(PATIENCE_S)
    until(lambda: not _client_threads(), "its threads end")
    gc.collect()
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, "its files are closed")


def test_a_producer_that_is_dropped_still_delivers_and_warns(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    held = [Producer(address, linger_ms=5_000)]
    delivery = held[0].send(topic, b"x")
    with pytest.warns(ResourceWarning, match="not closed"):
        held.clear()
    assert delivery.result(PATIENCE_S).offset == 0
    until(lambda: not _client_threads(), "its threads end")


def test_the_interpreters_exit_flushes_and_warns(broker: EmbeddedBroker, address: str, tmp_path: Path) -> None:
    topic = make_topic(broker.broker)
    script = tmp_path / "forgetful.py"
    script.write_text(
        "from penstock.client.producer import Producer\n"
        f"producer = Producer({address!r}, linger_ms=60_000)\n"
        f"for number in range(100): producer.send({topic!r}, b'%d' % number)\n"
    )
    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "not closed" in ended.stderr
    assert stored_values(broker.port, topic) == [b"%d" % number for number in range(100)]


def test_one_acknowledged_record_after_the_other_gets_the_next_offset(broker: EmbeddedBroker, address: str) -> None:
    topic = make_topic(broker.broker)
    with Producer(address) as producer:
        assert [producer.send(topic, b"x").result(PATIENCE_S).offset for _ in range(50)] == list(range(50))
