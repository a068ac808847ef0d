"""Producers against any broker."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.client.contract.contract import (
    BEGIN_MS,
    Capabilities,
    MakeTopic,
    new_name,
    read_all,
    read_by_librdkafka,
    texts,
    values,
)
from tests.timeouts import PATIENCE_S

from penstock import AsyncProducer, Producer, ProducerRecord, errors

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_read_by_us_and_by_others(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic, codec: str
) -> None:
    capabilities.need_codec(codec)
    topic = make_topic()
    with Producer(bootstrap, compression_type=codec, linger_ms=20) as producer:
        sent = [producer.send(topic, text) for text in texts(500)]
        assert [delivery.result(PATIENCE_S).offset for delivery in sent] == list(range(500))
    assert values(read_all(bootstrap, topic, 500)) == texts(500)
    assert [each.value() for each in read_by_librdkafka(bootstrap, capabilities, topic, 500)] == texts(500)


def test_a_codec_that_a_broker_does_not_know_is_rejected(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    if "zstd" in capabilities.codecs:
        pytest.skip(f"{capabilities.name} knows all codecs")
    topic = make_topic()
    with Producer(bootstrap, compression_type="zstd") as producer:
        failed = producer.send(topic, b"x")
        with pytest.raises(errors.UnsupportedVersion, match="zstd"):
            failed.result(PATIENCE_S)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement_is_had(bootstrap: str, make_topic: MakeTopic, acks: Any) -> None:
    topic = make_topic()
    with Producer(bootstrap, acks=acks) as producer:
        sent = [producer.send(topic, text) for text in texts(50)]
        offsets = [delivery.result(PATIENCE_S).offset for delivery in sent]
    assert offsets == ([-1] * 50 if acks == 0 else list(range(50)))
    assert values(read_all(bootstrap, topic, 50)) == texts(50)


def test_order_is_kept_with_many_small_batches_in_flight(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Producer(bootstrap, batch_size=200, max_in_flight_requests_per_connection=5) as producer:
        sent = [producer.send(topic, text) for text in texts(3_000)]
        assert [delivery.result(PATIENCE_S).offset for delivery in sent] == list(range(3_000))
    assert values(read_all(bootstrap, topic, 3_000)) == texts(3_000)


def test_idempotence_is_available_or_its_absence_is_reported(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    if capabilities.batches:
        with caplog.at_level(logging.WARNING), Producer(bootstrap, enable_idempotence=True) as producer:
            assert producer.send(make_topic(), b"x").result(PATIENCE_S).offset == 0
        assert "idempotent" not in caplog.text
    else:
        with pytest.raises(errors.UnsupportedVersion, match="idempotent"):
            Producer(bootstrap, enable_idempotence=True)
        with caplog.at_level(logging.WARNING), Producer(bootstrap):
            pass
        assert "too old for idempotent producing" in caplog.text


def test_a_key_goes_where_other_clients_send_it(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    topic = make_topic(7)
    keys = [b"", *(b"key-%d" % number * (number % 5 + 1) for number in range(200))]
    with Producer(bootstrap) as producer:
        sent = [producer.send(topic, b"x", key=key) for key in keys]
        ours = [delivery.result(PATIENCE_S).partition for delivery in sent]
    theirs: dict[bytes, int] = {}
    # Its murmur2 is Java's; "random" is what it does without a key, and an empty one counts as none.
    other = confluent.Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2", **capabilities.librdkafka})
    for key in keys:
        other.produce(
            topic, b"x", key, on_delivery=lambda _, message: theirs.update({message.key(): message.partition()})
        )
    assert other.flush(PATIENCE_S) == 0
    assert dict(zip(keys[1:], ours[1:], strict=True)) == {key: theirs[key] for key in keys[1:]}
    assert set(ours) == set(range(7))


def test_headers_timestamps_and_nulls_come_back(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    capabilities.need("batches")
    topic = make_topic()
    with Producer(bootstrap) as producer:
        producer.send(topic, "v", key="k", headers={"a": b"1", "b": None}, timestamp_ms=BEGIN_MS)
        producer.send(topic, None, key=b"gone", headers=[("a", b"1"), ("a", b"2")], timestamp_ms=BEGIN_MS + 1)
        stored = producer.send(topic, b"", timestamp_ms=0).result(PATIENCE_S)
    assert (stored.offset, stored.timestamp) == (2, 0)
    one, two, three = read_all(bootstrap, topic, 3)
    assert (one.key, one.value, one.headers, one.timestamp) == (b"k", b"v", (("a", b"1"), ("b", None)), BEGIN_MS)
    assert (two.key, two.value, two.headers) == (b"gone", None, (("a", b"1"), ("a", b"2")))
    assert (three.key, three.value, three.headers, three.timestamp) == (None, b"", (), 0)
    theirs = read_by_librdkafka(bootstrap, capabilities, topic, 3)
    assert [each.headers() for each in theirs] == [[("a", b"1"), ("b", None)], [("a", b"1"), ("a", b"2")], None]
    assert [each.timestamp()[1] for each in theirs] == [BEGIN_MS, BEGIN_MS + 1, 0]


def test_keys_and_nulls_come_back_from_any_broker(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    pairs = [(b"k", b"v"), (None, b"no key"), (b"gone", None), (b"", b"")]
    with Producer(bootstrap) as producer:
        for key, value in pairs:
            producer.send(topic, value, key=key, partition=0)
    assert [(each.key, each.value) for each in read_all(bootstrap, topic, 4)] == pairs


def test_headers_are_rejected_if_the_broker_would_lose_them(
    bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    if capabilities.batches:
        pytest.skip(f"{capabilities.name} has headers")
    topic = make_topic()
    with Producer(bootstrap) as producer, pytest.raises(errors.SerializationError, match="headers"):
        producer.send(topic, b"x", headers={"h": b"1"})


def test_many_records_at_once(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    with Producer(bootstrap, compression_type="gzip") as producer:
        keyed = producer.send_many(topic, texts(3_000), keys=texts(3_000)).result(PATIENCE_S)
        records = [ProducerRecord(b"r%d" % n, key=b"r", partition=1) for n in range(10)]
        explicit = producer.send_many(topic, records).result(PATIENCE_S)
    assert sum(part.count for part in keyed.stored) == 3_000
    assert [(part.partition, part.count) for part in explicit.stored] == [(1, 10)]
    found: list[bytes] = []
    for partition in range(3):
        count = sum(part.count for part in (*keyed.stored, *explicit.stored) if part.partition == partition)
        found += values(read_all(bootstrap, topic, count, partition=partition))
    assert sorted(found) == sorted([*texts(3_000), *(b"r%d" % n for n in range(10))])


def test_rows_of_arrow_arrive_as_records(bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic) -> None:
    pa = pytest.importorskip("pyarrow")
    topic = make_topic()
    columns: dict[str, Any] = {"key": pa.array([b"a", None, b"c"]), "value": pa.array(["x", "y", None])}
    times = [datetime(2024, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(3)]
    if capabilities.batches:
        columns["timestamp"] = pa.array(times, pa.timestamp("ms", "UTC"))
    with Producer(bootstrap) as producer:
        assert producer.send_arrow(topic, pa.table(columns)).result(PATIENCE_S).count == 3
    found = read_all(bootstrap, topic, 3)
    assert [(each.key, each.value) for each in found] == [(b"a", b"x"), (None, b"y"), (b"c", None)]
    if capabilities.batches:
        assert [each.timestamp for each in found] == [int(when.timestamp() * 1000) for when in times]


def test_a_record_that_the_broker_finds_too_large_fails_alone(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"max.message.bytes": "2000"})
    with Producer(bootstrap, linger_ms=50) as producer:
        before = [producer.send(topic, b"%03d" % n * 100) for n in range(20)]  # together more than the limit
        large = producer.send(topic, b"x" * 5_000)
        after = producer.send(topic, b"after")
        with pytest.raises(errors.RecordTooLarge):
            large.result(PATIENCE_S)
        assert [each.result(PATIENCE_S).offset for each in before] == list(range(20))
        assert after.result(PATIENCE_S).offset == 20
    assert values(read_all(bootstrap, topic, 21)) == [*(b"%03d" % n * 100 for n in range(20)), b"after"]


def test_a_record_above_max_request_size_is_rejected_at_once(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    with Producer(bootstrap, max_request_size=10_000) as producer:
        with pytest.raises(errors.RecordTooLarge, match="max_request_size"):
            producer.send(topic, b"x" * 20_000)
        assert producer.send(topic, b"x").result(PATIENCE_S).offset == 0


def test_flush_waits_for_everything_and_close_sends_the_rest(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = Producer(bootstrap, linger_ms=60_000, delivery_timeout_ms=120_000)
    sent = [producer.send(topic, text) for text in texts(10)]
    assert not any(delivery.done() for delivery in sent)
    producer.flush(PATIENCE_S)
    assert all(delivery.done() for delivery in sent)
    last = producer.send(topic, b"last")
    producer.close(PATIENCE_S)
    producer.close()
    assert last.result(0).offset == 10
    with pytest.raises(errors.ClosedError):
        producer.send(topic, b"too late")


def test_a_topic_that_makes_itself_takes_the_first_record(bootstrap: str) -> None:
    topic = new_name("fresh")
    with Producer(bootstrap) as producer:
        assert producer.send(topic, b"first").result(PATIENCE_S).offset == 0
    assert values(read_all(bootstrap, topic, 1)) == [b"first"]


def test_awaiting_a_send_is_its_acknowledgement(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic()

    async def story() -> list[int]:
        async with AsyncProducer(bootstrap) as producer:
            first = await producer.send(topic, b"0")
            others = [producer.send_nowait(topic, text) for text in texts(9, 1)]
            return [first.offset, *[(await each).offset for each in others]]

    assert asyncio.run(story()) == list(range(10))
    assert values(read_all(bootstrap, topic, 10)) == texts(10)


def test_in_a_single_partition_many_records_keep_their_order_with_keys_and_without(
    bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    keys = [b"k" if number % 3 else None for number in range(30)]
    with Producer(bootstrap) as producer:
        producer.send_many(topic, texts(30), keys=keys).result(PATIENCE_S)
    assert [(each.key, each.value) for each in read_all(bootstrap, topic, 30)] == list(
        zip(keys, texts(30), strict=True)
    )
