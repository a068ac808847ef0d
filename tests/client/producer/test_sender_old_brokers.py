"""Brokers from before record batches: message sets of magic 0 and 1, no numbers, no headers."""

from __future__ import annotations

import logging

import pytest
from tests.broker.wire_client import make_topic
from tests.client.producer.producer_stories import Bench, settings_with
from tests.client.producer.reading import stored
from tests.timeouts import PATIENCE_S

from penstock.client.errors import SerializationError, UnsupportedVersion
from penstock.client.producer import Producer, core, sender
from penstock.client.producer.producer_batch import encoded
from penstock.client.producer.sender import check_codec
from penstock.records import Codec
from penstock.records.legacy import decode_message_set
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.mark.parametrize(("version", "timestamp"), [(0, -1), (1, -1), (2, 1)])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
def test_a_batch_becomes_the_message_set_that_the_version_takes(version: int, timestamp: int, codec: str) -> None:
    bench = Bench()
    bench.put_batch(b"a", b"b", b"c")
    (request,) = bench.plan()
    data = encoded(request.batches[0], version, settings_with(compression_type=codec))
    messages = decode_message_set(data, limit=10_000)
    assert [(message.value, message.timestamp) for message in messages] == [(v, timestamp) for v in (b"a", b"b", b"c")]


def test_bytes_are_encoded_again_for_a_broker_of_another_version() -> None:
    bench = Bench()
    bench.put_batch(b"a")
    (request,) = bench.plan()
    batch = request.batches[0]
    old, new = encoded(batch, 1, settings_with()), encoded(batch, 9, settings_with())
    assert old != new
    assert encoded(batch, 11, settings_with()) is new


def test_zstd_is_rejected_if_the_broker_does_not_know_it() -> None:
    check_codec("b:1", 7, Codec.ZSTD)
    with pytest.raises(UnsupportedVersion, match="zstd"):
        check_codec("b:1", 2, Codec.ZSTD)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_producer_talks_to_an_old_broker(
    broker: EmbeddedBroker,
    address: str,
    version: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(core, "HIGHEST_VERSION", version)
    monkeypatch.setattr(sender, "HIGHEST_VERSION", version)
    topic = make_topic(broker.broker)
    with caplog.at_level(logging.WARNING), Producer(address, compression_type="gzip") as producer:
        deliveries = [producer.send(topic, b"%d" % number, key="k") for number in range(500)]
        producer.flush(10)
        assert [delivery.result(0).offset for delivery in deliveries] == list(range(500))
        with pytest.raises(SerializationError, match="headers"):
            producer.send(topic, b"x", headers={"h": b"1"})
    assert "too old for idempotent producing" in caplog.text
    assert [record.value for record in stored(broker.port, topic)] == [b"%d" % number for number in range(500)]


def test_idempotence_that_was_asked_for_is_not_given_up_silently(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "HIGHEST_VERSION", 2)
    with pytest.raises(UnsupportedVersion, match="idempotent"):
        Producer(address, enable_idempotence=True)


def test_records_in_a_codec_that_the_broker_lacks_fail_at_once(
    broker: EmbeddedBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "HIGHEST_VERSION", 2)
    monkeypatch.setattr(sender, "HIGHEST_VERSION", 2)
    topic = make_topic(broker.broker, partitions=2)
    with Producer(address, compression_type="zstd", delivery_timeout_ms=60_000) as producer:
        failed = [producer.send(topic, b"x", partition=partition) for partition in (0, 1)]
        for delivery in failed:
            with pytest.raises(UnsupportedVersion, match="zstd"):
                delivery.result(PATIENCE_S)
        with pytest.raises(UnsupportedVersion):
            producer.send(topic, b"the next one too").result(PATIENCE_S)
