"""compression.type over a socket: what is stored, whatever producers send."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.broker.wire_client import (
    BEGIN_MS,
    WireClient,
    batch_of,
    call,
    make_topic,
    on_loop,
    records_in,
    values_in,
)

from penstock.broker.broker import Broker
from penstock.cluster.controller.configs import ResourceKind
from penstock.cluster.controller.controller import ConfigChange
from penstock.records import CREATE_TIME, HEADER_SIZE, Codec, scan
from penstock.records.compression import compress
from penstock.records.kernel import write_header
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode

TYPES: Mapping[str, Codec] = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


def codecs_of(client: WireClient, topic: str) -> list[int]:
    data = client.fetch(topic)
    return [header.codec for header in scan(bytes(data.records)).headers]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", TYPES)
def test_every_batch_is_stored_with_the_compression_of_its_topic(broker: Broker, client: WireClient, kind: str) -> None:
    topic = make_topic(broker, configs={"compression.type": kind})
    values = [b"value %d " % number * 20 for number in range(len(Codec))]
    for codec, value in zip(Codec, values, strict=True):
        assert client.produce(topic, batch_of(value, codec=codec)).error_code == ErrorCode.NONE
    assert codecs_of(client, topic) == [TYPES[kind]] * len(Codec)
    assert values_in(client.fetch(topic).records) == values


def test_a_change_applies_to_later_writes(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a" * 100, codec=Codec.GZIP))
    change = ConfigChange(ResourceKind.TOPIC, topic, replacement={"compression.type": "zstd"})
    (outcome,) = on_loop(broker, broker.cluster.require_controller().alter_configs([change]))
    assert outcome.error is None
    client.produce(topic, batch_of(b"b" * 100, codec=Codec.GZIP))
    assert codecs_of(client, topic) == [Codec.GZIP, Codec.ZSTD]


@pytest.mark.parametrize("kind", ["uncompressed", "lz4"])
def test_what_does_not_decompress_is_an_invalid_record(broker: Broker, client: WireClient, kind: str) -> None:
    topic = make_topic(broker, configs={"compression.type": kind})
    for payload in (b"no gzip at all", compress(Codec.GZIP, b"x" * 500)[:-9]):
        batch = bytearray(HEADER_SIZE) + payload
        write_header(batch, 0, -1, Codec.GZIP, 0, BEGIN_MS, BEGIN_MS, -1, -1, -1, 1)
        assert client.produce(topic, batch).error_code == ErrorCode.INVALID_RECORD
    partition = broker.replicas.get(topic, 0)
    assert partition is not None
    assert call(broker, lambda: partition.log.log_end_offset) == 0


def test_a_batch_that_grows_beyond_the_topics_limit_is_too_large(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"compression.type": "uncompressed", "max.message.bytes": "2000"})
    packed = batch_of(bytes(5000), codec=Codec.GZIP)
    assert len(packed) < 2000
    assert client.produce(topic, packed).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic, batch_of(bytes(1500), codec=Codec.GZIP)).error_code == ErrorCode.NONE


def test_records_of_the_oldest_clients_are_compressed_too(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"compression.type": "zstd"})
    messages = [LegacyMessage(0, BEGIN_MS, CREATE_TIME, b"key", b"value" * 30)]
    assert client.produce(topic, encode_message_set(messages, magic=1), version=2).error_code == ErrorCode.NONE
    assert codecs_of(client, topic) == [Codec.ZSTD]
    (record,) = records_in(client.fetch(topic).records)
    assert (record.key, record.value, record.timestamp) == (b"key", b"value" * 30, BEGIN_MS)


def test_the_brokers_setting_counts_for_topics_without_one_and_not_for_committed_offsets() -> None:
    with EmbeddedBroker(settings={"compression.type": "lz4"}) as own, WireClient(own.port) as client:
        topic, other = make_topic(own.broker), make_topic(own.broker, configs={"compression.type": "producer"})
        for name in (topic, other):
            client.produce(name, batch_of(b"a" * 100, codec=Codec.GZIP))
        assert (codecs_of(client, topic), codecs_of(client, other)) == ([Codec.LZ4], [Codec.GZIP])
        on_loop(own.broker, own.broker.services.topic_creation.create_internal_topic(OFFSETS_TOPIC))
        offsets = own.broker.replicas.get("__consumer_offsets", 0)
        assert offsets is not None
        assert offsets.log.settings.compression_codec is None
