"""Stories of confluent-kafka, and with it librdkafka, beyond the contract of all clients."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]
from tests.compatibility.client_interface import Record, Rejected, read_partition, send_all, take
from tests.compatibility.client_stories import BEGIN_MS, BROKER_SETTINGS, numbered
from tests.compatibility.clients import CONFLUENT
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.replication.partition import Partition
from penstock.testing.embedded_broker import EmbeddedBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.long
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_records_recompressed_by_the_broker_come_back_unchanged(address: str, topic: str, stored: str) -> None:
    with CONFLUENT.administering(address) as admin:
        admin.create_topic(topic, 1, {"compression.type": stored})
    samples = [
        Record(value, CODECS[offset // 20].encode(), (("h", value),), BEGIN_MS + offset, 0, offset)
        for offset, value in enumerate(numbered(5 * 20))
    ]
    for codec in CODECS:
        with CONFLUENT.producing(address, codec=codec, idempotent=True) as producer:
            mine = [sample for sample in samples if sample.key == codec.encode()]
            for sample in mine:
                producer.send(topic, sample)
            assert [(sent.error, sent.offset) for sent in producer.settle()] == [(None, each.offset) for each in mine]
    assert read_partition(CONFLUENT, address, topic, len(samples)) == samples


def test_a_producer_whose_first_batch_is_rejected_temporarily_stores_everything_once_and_in_order(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next batches are already in flight, and there are enough replicas for those (decision 011)."""
    send_all(CONFLUENT, address, topic, [b"made"])
    rejected: set[int] = set()
    append = Partition.append

    def append_later(partition: Partition, records: Any, *more: Any, **options: Any) -> Any:
        if partition.topic != topic:
            return append(partition, records, *more, **options)
        producer_id = records.found.headers[0].producer_id
        is_first = producer_id >= 0 and producer_id not in rejected
        enough = partition.min_insync_replicas
        if is_first:
            rejected.add(producer_id)
            partition.min_insync_replicas = 2
        try:
            return append(partition, records, *more, **options)
        finally:
            partition.min_insync_replicas = enough

    monkeypatch.setattr(Partition, "append", append_later)
    sent: list[bytes] = []
    for number in range(10):
        with CONFLUENT.producing(address, idempotent=True, batch_records=1, linger_ms=0) as producer:
            values = [b"%d-%d" % (number, index) for index in range(8)]
            for value in values:
                producer.send(topic, Record(value))
            assert [each.error for each in producer.settle()] == [None] * 8
        sent += values
    assert len(rejected) == 10
    assert [record.value for record in read_partition(CONFLUENT, address, topic, 1 + len(sent))] == [b"made", *sent]
    with CONFLUENT.administering(address) as admin:
        latest = {TopicPartition(topic, 0): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        assert admin.result(admin.client.list_offsets(latest)).offset == 1 + len(sent)


def test_many_producers_at_once_lose_nothing(address: str, topic: str) -> None:
    def produce(number: int) -> None:
        send_all(CONFLUENT, address, topic, numbered(100, first=number * 100))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_partition(CONFLUENT, address, topic, 400)
    assert sorted(record.value or b"" for record in records) == sorted(numbered(400))
    assert [record.offset for record in records] == list(range(400))


def test_a_static_member_keeps_its_name_while_it_is_offline(address: str, topic: str, group: str) -> None:
    send_all(CONFLUENT, address, topic, numbered(3))
    with CONFLUENT.consuming(address, topic=topic, group=group, instance="the one") as consumer:
        take(consumer, 3)
    with CONFLUENT.administering(address) as admin:
        described = admin.result(admin.client.describe_consumer_groups([group]))
        assert [each.group_instance_id for each in described.members] == ["the one"]


def test_a_member_and_a_producer_continue_through_a_restart_of_the_broker(
    tmp_path: Path, topic: str, group: str
) -> None:
    port = free_port()
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        address = broker.address
        with CONFLUENT.producing(address, idempotent=True) as producer:
            producer.send(topic, Record(b"before"))
            assert [each.offset for each in producer.settle()] == [0]
            with CONFLUENT.consuming(address, topic=topic, group=group) as consumer:
                assert [record.value for record in take(consumer, 1)] == [b"before"]
                broker.stop()
                producer.send(topic, Record(b"while it is down"))
                with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS):
                    assert [each.offset for each in producer.settle()] == [1]
                    assert [record.value for record in take(consumer, 1)] == [b"while it is down"]


def test_a_topic_that_is_only_validated_is_not_created(address: str, topic: str) -> None:
    with CONFLUENT.administering(address) as admin:
        admin.result(admin.client.create_topics([NewTopic(topic, 4, 1)], validate_only=True))
        assert topic not in admin.client.list_topics(timeout=PATIENCE_S).topics
        with pytest.raises(Rejected, match="INVALID_REPLICATION_FACTOR"):
            admin.result(admin.client.create_topics([NewTopic(topic, 1, 7)]))


def test_a_setting_can_be_appended_to_and_an_invalid_value_is_rejected(address: str, topic: str) -> None:
    with CONFLUENT.administering(address) as admin:
        admin.create_topic(topic, 1, {"cleanup.policy": "compact"})
        admin.alter(topic, "cleanup.policy", "delete", "APPEND")
        assert admin.setting(topic, "cleanup.policy") == "compact,delete"
        with pytest.raises(Rejected, match="INVALID_CONFIG"):
            admin.alter_setting(topic, "retention.ms", "for ever")
