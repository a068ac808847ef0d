"""Produce over a socket: what is accepted, what is rejected and how, and when the response is sent."""

from __future__ import annotations

import pytest
from tests.broker.wire_client import (
    ALL,
    BEGIN_MS,
    WireClient,
    batch_of,
    call,
    log_of,
    make_topic,
    produce_request,
    records_in,
    values_in,
)

from penstock.broker.broker import Broker
from penstock.records import CREATE_TIME, Codec
from penstock.records.legacy import LegacyMessage, encode_message_set
from penstock.wire.protocol import ApiKey, ErrorCode


def legacy(*values: bytes, timestamp: int) -> list[LegacyMessage]:
    return [LegacyMessage(i, timestamp, CREATE_TIME, b"key", value) for i, value in enumerate(values)]


# --- errors


def test_a_flipped_bit_is_a_corrupt_message_and_nothing_is_appended(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    damaged = batch_of(b"value")
    damaged[-1] ^= 1
    outcome = client.produce(topic, damaged)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
    assert log_of(broker, topic).log_end_offset == 0


@pytest.mark.parametrize("cut", [1, 16, 60, 61])
def test_a_batch_that_is_cut_off_is_a_corrupt_message(broker: Broker, client: WireClient, cut: int) -> None:
    topic = make_topic(broker)
    outcome = client.produce(topic, batch_of(b"value")[:cut])
    assert outcome.error_code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    assert log_of(broker, topic).log_end_offset == 0


def test_a_batch_beyond_the_topics_limit_is_too_large(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"max.message.bytes": "1000"})
    assert client.produce(topic, batch_of(bytes(1000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic, batch_of(bytes(800))).error_code == ErrorCode.NONE


@pytest.mark.parametrize("partition", [1, -1, 2**31 - 1])
def test_a_partition_that_is_not_there_is_unknown(broker: Broker, client: WireClient, partition: int) -> None:
    topic = make_topic(broker)
    outcome = client.produce(topic, batch_of(b"value"), partition=partition)
    assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_not_there_is_unknown_and_is_not_made(broker: Broker, client: WireClient) -> None:
    outcome = client.produce("nowhere", batch_of(b"value"))
    assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "nowhere" not in broker.cluster.image.topics


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_invalid_acks_are_rejected(broker: Broker, client: WireClient, acks: int) -> None:
    topic = make_topic(broker)
    assert client.produce(topic, batch_of(b"value"), acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert log_of(broker, topic).log_end_offset == 0


def test_min_insync_replicas_of_2_rejects_only_acks_all_on_one_broker(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    partition = broker.replicas.get(topic, 0)
    assert partition is not None
    call(broker, lambda: partition.set_min_insync_replicas(2))
    assert client.produce(topic, batch_of(b"value")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert log_of(broker, topic).log_end_offset == 0
    assert client.produce(topic, batch_of(b"value"), acks=1).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 6])
def test_zstd_is_rejected_below_version_7(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    packed = batch_of(b"value" * 100, codec=Codec.ZSTD)
    assert client.produce(topic, packed, version=version).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(topic, packed, version=7).error_code == ErrorCode.NONE


# --- taken


def test_with_a_flush_policy_of_its_own_a_topic_syncs_as_that_says(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, configs={"flush.messages": "3"})
    for acks, durable in ((ALL, 0), (1, 0), (1, 3), (ALL, 3), (ALL, 3), (ALL, 6)):
        client.produce(topic, batch_of(b"a"), acks=acks)
        assert log_of(broker, topic).flushed_offset == durable


def test_acks_all_is_answered_when_the_records_are_durable(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    outcome = client.produce(topic, batch_of(b"a", b"b", b"c"))
    assert (outcome.error_code, outcome.base_offset, outcome.log_start_offset) == (ErrorCode.NONE, 0, 0)
    assert log_of(broker, topic).flushed_offset == 3


def test_acks_1_is_answered_without_a_sync(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    assert client.produce(topic, batch_of(b"a", b"b"), acks=1).base_offset == 0
    assert client.produce(topic, batch_of(b"c"), acks=1).base_offset == 2
    assert log_of(broker, topic).log_end_offset == 3


def test_acks_0_is_not_answered_and_the_next_request_is(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.send(ApiKey.PRODUCE, produce_request({(topic, 0): batch_of(b"silent")}, acks=0), 9)
    assert client.produce(topic, batch_of(b"loud")).base_offset == 1
    assert values_in(client.fetch(topic).records) == [b"silent", b"loud"]


def test_rejected_records_with_acks_0_close_the_connection(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    mixed = {(topic, 0): batch_of(b"taken"), ("nowhere", 0): batch_of(b"rejected")}
    client.send(ApiKey.PRODUCE, produce_request(mixed, acks=0), 9)
    assert client.is_ended()
    assert log_of(broker, topic).log_end_offset == 1


@pytest.mark.parametrize("version", range(12))
def test_every_version_appends(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    records = batch_of(b"value")
    if version < 3:
        records = bytearray(encode_message_set(legacy(b"value", timestamp=-1), 0))
    assert client.produce(topic, records, version=version).error_code == ErrorCode.NONE
    assert values_in(client.fetch(topic).records) == [b"value"]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_clients_become_batches(
    broker: Broker, client: WireClient, magic: int, codec: Codec
) -> None:
    topic = make_topic(broker)
    stamp = BEGIN_MS if magic else -1
    messages = encode_message_set(legacy(b"one", b"two", timestamp=stamp), magic, codec=codec)
    outcome = client.produce(topic, messages, version=2 if magic else 0)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.NONE, 0)
    records = records_in(client.fetch(topic).records)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in records] == [
        (0, stamp, b"key", b"one"),
        (1, stamp, b"key", b"two"),
    ]


def test_a_damaged_message_set_is_a_corrupt_message(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    messages = bytearray(encode_message_set(legacy(b"one", b"two", timestamp=BEGIN_MS), 1))
    messages[-1] ^= 1
    assert client.produce(topic, messages, version=2).error_code == ErrorCode.CORRUPT_MESSAGE
    assert log_of(broker, topic).log_end_offset == 0


def test_partitions_of_one_request_succeed_and_fail_by_themselves(broker: Broker, client: WireClient) -> None:
    topic, small = make_topic(broker, partitions=2), make_topic(broker, configs={"max.message.bytes": "100"})
    damaged = batch_of(b"value")
    damaged[-1] ^= 1
    request = produce_request(
        {
            (topic, 0): batch_of(b"good"),
            ("nowhere", 0): batch_of(b"lost"),
            (small, 0): batch_of(bytes(200)),
            (topic, 1): damaged,
        }
    )
    answer = client.ask(ApiKey.PRODUCE, request, 9)
    assert [(t.name, p.index, p.error_code) for t in answer.responses for p in t.partition_responses] == [
        (topic, 0, ErrorCode.NONE),
        ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (small, 0, ErrorCode.MESSAGE_TOO_LARGE),
        (topic, 1, ErrorCode.CORRUPT_MESSAGE),
    ]
    assert log_of(broker, topic).flushed_offset == 1


def test_pipelined_requests_are_answered_in_order(broker: Broker, client: WireClient) -> None:
    topics = [make_topic(broker), make_topic(broker)]
    sent = [
        client.send(
            ApiKey.PRODUCE,
            produce_request({(topics[i % 2], 0): batch_of(b"%d" % i)}, acks=ALL if i % 3 else 1),
            9,
        )
        for i in range(60)
    ]
    answers = [client.receive(ApiKey.PRODUCE, 9) for _ in sent]
    assert [number for number, _ in answers] == sent
    assert [a.responses[0].partition_responses[0].base_offset for _, a in answers] == [i // 2 for i in range(60)]


# --- idempotent producers


def test_a_repeated_batch_is_answered_with_its_first_offset(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"another's"))
    sent = [batch_of(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=s) for s in (0, 2, 4)]
    first = [client.produce(topic, batch).base_offset for batch in sent]
    again = [client.produce(topic, batch) for batch in sent]
    assert first == [1, 3, 5]
    assert [(a.error_code, a.base_offset) for a in again] == [(ErrorCode.NONE, offset) for offset in first]
    assert call(broker, lambda: log_of(broker, topic).log_end_offset) == 7


def test_a_gap_in_the_sequence_is_out_of_order(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0))
    outcome = client.produce(topic, batch_of(b"c", producer_id=7, producer_epoch=0, base_sequence=2))
    assert outcome.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log_of(broker, topic).log_end_offset == 1


def test_an_older_epoch_of_a_producer_is_fenced(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", producer_id=7, producer_epoch=3, base_sequence=0))
    outcome = client.produce(topic, batch_of(b"b", producer_id=7, producer_epoch=2, base_sequence=0))
    assert outcome.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
