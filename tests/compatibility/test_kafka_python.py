"""kafka-python, unmodified, against a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.errors import (
    GroupIdNotFoundError,
    InvalidPartitionsError,
    MessageSizeTooLargeError,
    NonEmptyGroupError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata
from tests.compatibility.client_stories import (
    BEGIN_MS,
    BROKER_SETTINGS,
    HEARTBEAT_MS,
    HOUR_MS,
    JUST_FITS_BYTES,
    LIMIT_BYTES,
    PARTITIONS,
    SAMPLES,
    SESSION_TIMEOUT_MS,
    DoomedProcess,
    numbered,
    unique,
)
from tests.ports import free_port
from tests.timeouts import until

from penstock.testing.embedded_broker import EmbeddedBroker

# This client loses an assignment that arrives when the poll that joined has run out of time: long polls for members.
POLL_MS = 1_000
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def producing(address: str, **settings: Any) -> Any:
    return closing(KafkaProducer(bootstrap_servers=address, **settings))


@contextmanager
def consuming(address: str, *topics: str, **settings: Any) -> Iterator[Any]:
    consumer = KafkaConsumer(*topics, bootstrap_servers=address, auto_offset_reset="earliest", **settings)
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def member(address: str, topic: str, group: str, **settings: Any) -> Iterator[Any]:
    quick = {"session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": HEARTBEAT_MS, **settings}
    with consuming(address, group_id=group, metadata_max_age_ms=500, **quick) as consumer:
        # A member that learns of the topic after it has joined must join again; see POLL_MS.
        until(lambda: bool(consumer.partitions_for_topic(topic)), "the topic is known")
        consumer.subscribe([topic])
        yield consumer


def administering(address: str) -> Any:
    return closing(KafkaAdminClient(bootstrap_servers=address))


def take(consumer: Any, count: int) -> list[Any]:
    """The next `count` records, or more if they come together."""
    records: list[Any] = []

    def poll() -> bool:
        for batch in consumer.poll(timeout_ms=POLL_MS).values():
            records.extend(batch)
        return len(records) >= count

    until(poll, f"{count} records")
    return records


def read_partition(address: str, topic: str, count: int, partition: int = 0, **settings: Any) -> list[Any]:
    with consuming(address, **settings) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        return take(consumer, count)


def send_all(address: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    with producing(address) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()


# --- producing


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_of_every_codec_and_acks_come_back(address: str, topic: str, codec: str | None, acks: Any) -> None:
    values = numbered(100)
    with producing(
        address, compression_type=codec, acks=acks, linger_ms=20, enable_idempotence=acks == "all"
    ) as producer:
        producer.partitions_for(topic)
        for value in values:
            producer.send(topic, value, partition=0)
        producer.flush()
    assert [record.value for record in read_partition(address, topic, 100)] == values


def test_an_idempotent_producer_numbers_its_records(address: str, topic: str) -> None:
    values = numbered(50)
    with producing(address, enable_idempotence=True, batch_size=500) as producer:
        offsets = [future.get(10).offset for future in [producer.send(topic, v, partition=1) for v in values]]
    assert offsets == list(range(50))
    assert [record.value for record in read_partition(address, topic, 50, 1)] == values


def test_keys_nulls_headers_and_timestamps_come_back(address: str, topic: str) -> None:
    with producing(address) as producer:
        for sample in SAMPLES:
            producer.send(
                topic,
                sample.value,
                key=sample.key,
                headers=sample.headers,
                timestamp_ms=sample.timestamp_ms,
                partition=0,
            )
    records = read_partition(address, topic, len(SAMPLES))
    got = [(record.key, record.value, list(record.headers), record.timestamp) for record in records]
    assert got == [tuple(sample) for sample in SAMPLES]
    assert [record.offset for record in records] == list(range(len(SAMPLES)))


def test_records_of_one_key_share_a_partition(address: str, topic: str) -> None:
    with producing(address) as producer:
        used = {producer.send(topic, b"v", key=b"same").get(10).partition for _ in range(10)}
    assert len(used) == 1


def test_a_record_just_below_the_limit_passes_and_one_beyond_it_is_rejected(address: str, topic: str) -> None:
    # This client ends an idempotent producer at the first refusal.
    with producing(address, max_request_size=4 * LIMIT_BYTES, enable_idempotence=False) as producer:
        assert producer.send(topic, bytes(JUST_FITS_BYTES), partition=0).get(10).offset == 0
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, bytes(LIMIT_BYTES), partition=0).get(10)
        assert producer.send(topic, b"after", partition=0).get(10).offset == 1
    # A reader whose own limit is smaller than the record gets it all the same.
    sizes = [len(r.value) for r in read_partition(address, topic, 2, max_partition_fetch_bytes=1000)]
    assert sizes == [JUST_FITS_BYTES, 5]


# --- reading


def test_earliest_latest_and_times_are_found(address: str, topic: str) -> None:
    with producing(address) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=BEGIN_MS + number * HOUR_MS)
    where = TopicPartition(topic, 0)
    with consuming(address) as consumer:
        consumer.assign([where])
        assert consumer.beginning_offsets([where]) == {where: 0}
        assert consumer.end_offsets([where]) == {where: 10}
        found = consumer.offsets_for_times({where: BEGIN_MS + 4 * HOUR_MS + 1})[where]
        assert (found.offset, found.timestamp) == (5, BEGIN_MS + 5 * HOUR_MS)
        assert consumer.offsets_for_times({where: BEGIN_MS + 100 * HOUR_MS}) == {where: None}
        consumer.seek(where, found.offset)
        assert [record.value for record in take(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]


def test_a_reader_at_the_end_is_woken_by_what_comes(address: str, topic: str) -> None:
    send_all(address, topic, [b"old"])
    where = TopicPartition(topic, 0)
    with consuming(address, fetch_max_wait_ms=20_000) as consumer:
        consumer.assign([where])
        consumer.seek_to_end(where)
        assert consumer.position(where) == 1
        assert consumer.poll(timeout_ms=50) == {}
        send_all(address, topic, [b"new"])
        assert [record.value for record in take(consumer, 1)] == [b"new"]


def test_an_offset_out_of_range_is_reset(address: str, topic: str) -> None:
    send_all(address, topic, [b"only"])
    with consuming(address) as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 1000)
        assert [record.value for record in take(consumer, 1)] == [b"only"]


# --- groups


def test_a_group_reads_every_partition_and_resumes_where_it_committed(address: str, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        send_all(address, topic, numbered(10), partition)
    with member(address, topic, group, enable_auto_commit=False) as consumer:
        assert len(take(consumer, 30)) == 30
        consumer.commit()
    send_all(address, topic, [b"later"], 2)
    with member(address, topic, group) as consumer:
        assert [(record.partition, record.value) for record in take(consumer, 1)] == [(2, b"later")]


def test_commits_keep_their_metadata(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(5))
    where = TopicPartition(topic, 0)
    with consuming(address, group_id=group, enable_auto_commit=False) as consumer:
        consumer.assign([where])
        consumer.commit({where: OffsetAndMetadata(3, "a note", -1)})
        assert consumer.committed(where) == 3
        assert consumer.committed(where, metadata=True).metadata == "a note"
    with administering(address) as admin:
        assert admin.list_group_offsets({group: [where]})[group][where].offset == 3


@pytest.mark.long
def test_members_share_partitions_as_they_join_and_leave(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(1))
    with member(address, topic, group) as first:
        until(
            lambda: first.poll(timeout_ms=POLL_MS) is not None and len(first.assignment()) == PARTITIONS, "all for one"
        )
        with member(address, topic, group) as second:

            def shared() -> bool:
                first.poll(timeout_ms=POLL_MS)
                second.poll(timeout_ms=POLL_MS)
                mine, yours = first.assignment(), second.assignment()
                return bool(mine and yours) and not mine & yours and len(mine | yours) == PARTITIONS

            until(shared, "both have some")
        until(lambda: first.poll(timeout_ms=POLL_MS) is not None and len(first.assignment()) == PARTITIONS, "all again")


DYING = """
import sys
from kafka import KafkaConsumer
address, topic, group = sys.argv[1:]
consumer = KafkaConsumer(bootstrap_servers=address, group_id=group, session_timeout_ms=2000,
                         heartbeat_interval_ms=200)
while not consumer.partitions_for_topic(topic):
    pass
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(timeout_ms=1000)
print(len(consumer.assignment()), flush=True)
while True:
    consumer.poll(timeout_ms=100)
"""


@pytest.mark.long
def test_the_partitions_of_a_member_that_dies_go_to_the_others(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(1))
    with DoomedProcess(DYING, address, topic, group) as doomed:
        assert doomed.wait_for_its_line() == b"3"
        with member(address, topic, group) as survivor:
            until(lambda: survivor.poll(timeout_ms=POLL_MS) is not None and bool(survivor.assignment()), "a share")
            doomed.kill()
            until(
                lambda: survivor.poll(timeout_ms=POLL_MS) is not None and len(survivor.assignment()) == PARTITIONS,
                "what the dead one had",
            )


def test_a_static_member_comes_back_to_its_partitions(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(3))
    with member(address, topic, group, group_instance_id="the one") as consumer:
        take(consumer, 3)
        consumer.commit()
    send_all(address, topic, [b"later"])
    with member(address, topic, group, group_instance_id="the one") as consumer:
        assert [record.value for record in take(consumer, 1)] == [b"later"]


def test_records_and_commits_outlive_a_restart_of_the_broker(tmp_path: Any, topic: str, group: str) -> None:
    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        send_all(broker.address, topic, numbered(10))
        with member(broker.address, topic, group, enable_auto_commit=False) as consumer:
            take(consumer, 10)
            consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, "", -1)})
    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        send_all(broker.address, topic, [b"after"])
        with member(broker.address, topic, group) as consumer:
            assert [record.offset for record in take(consumer, 4)] == [7, 8, 9, 10]


# In a process of its own: the client forgets to close the sockets with which it tried while there was no broker.
LASTING = """
import sys
from kafka import KafkaProducer
address, topic = sys.argv[1:]
producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
while True:
    print(producer.send(topic, b"v", partition=0).get(30).offset, flush=True)
    sys.stdin.readline()
"""


def test_a_producer_goes_on_through_a_restart_of_the_broker(tmp_path: Any, topic: str) -> None:
    port = free_port()
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        address = broker.address
        lasting = DoomedProcess(LASTING, address, topic)
        assert lasting.wait_for_its_line() == b"0"
    with lasting, EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS):
        lasting.go_on()
        assert lasting.wait_for_its_line() == b"1"


# --- administering


def test_topics_are_made_described_and_deleted(address: str, topic: str) -> None:
    with administering(address) as admin:
        admin.create_topics({topic: {"num_partitions": 4, "configs": {"retention.ms": "1000000"}}})
        assert topic in admin.list_topics()
        (described,) = admin.describe_topics([topic])
        assert sorted(each["partition_index"] for each in described["partitions"]) == [0, 1, 2, 3]
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([topic])
        admin.delete_topics([topic])
        assert topic not in admin.list_topics()
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([topic])


def test_a_topic_that_was_deleted_and_made_again_is_empty(address: str, topic: str) -> None:
    with administering(address) as admin:
        admin.create_topics([topic])
        send_all(address, topic, numbered(5))
        admin.delete_topics([topic])
        admin.create_topics([topic])
    send_all(address, topic, [b"fresh"])
    assert [(r.offset, r.value) for r in read_partition(address, topic, 1)] == [(0, b"fresh")]


def test_partitions_are_added_never_taken(address: str, topic: str) -> None:
    with administering(address) as admin:
        admin.create_topics({topic: {"num_partitions": 2}})
        admin.create_partitions({topic: 5})
        assert len(admin.describe_topics([topic])[0]["partitions"]) == 5
        with pytest.raises(InvalidPartitionsError):
            admin.create_partitions({topic: 3})
    send_all(address, topic, [b"in the new one"], 4)
    assert [record.value for record in read_partition(address, topic, 1, 4)] == [b"in the new one"]


def test_a_topics_settings_are_shown_changed_and_reset(address: str, topic: str) -> None:
    def shown(admin: Any, key: str) -> Any:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        return admin.describe_configs([resource], config_filter="all")["topic"][topic][key]["value"]

    with administering(address) as admin:
        admin.create_topics({topic: {"configs": {"cleanup.policy": "compact"}}})
        assert shown(admin, "cleanup.policy") == "compact"
        before = shown(admin, "max.message.bytes")
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "2000"})])
        assert shown(admin, "max.message.bytes") == "2000"
        assert shown(admin, "cleanup.policy") == "compact"
        with producing(address) as producer, pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, bytes(3000), key=b"k").get(10)
        admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])])
        assert shown(admin, "max.message.bytes") == before


def test_the_brokers_settings_are_shown(address: str) -> None:
    with administering(address) as admin:
        node = admin.describe_cluster()["brokers"][0]["broker_id"]
        resource = ConfigResource(ConfigResourceType.BROKER, str(node))
        shown = admin.describe_configs([resource], config_filter="all")["broker"][str(node)]
        assert shown["num.partitions"]["value"] == str(PARTITIONS)


def test_groups_are_listed_described_and_deleted_when_empty(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(3))
    with administering(address) as admin:
        with member(address, topic, group) as consumer:
            take(consumer, 3)
            consumer.commit()
            assert group in [each["group_id"] for each in admin.list_groups()]
            described = admin.describe_groups([group])[group]
            assert described["group_state"] == "Stable"
            assert len(described["members"]) == 1
            assert admin.delete_groups([group]) == {group: NonEmptyGroupError.__name__}
        assert admin.describe_groups([group])[group]["group_state"] == "Empty"
        assert admin.delete_groups([group]) == {group: "OK"}
        assert admin.delete_groups([group]) == {group: GroupIdNotFoundError.__name__}
        assert group not in [each["group_id"] for each in admin.list_groups()]


def test_records_are_deleted_up_to_an_offset(address: str) -> None:
    topic = unique("topic")
    send_all(address, topic, numbered(10))
    where = TopicPartition(topic, 0)
    with administering(address) as admin:
        assert admin.delete_records({where: 6})[where]["low_watermark"] == 6
    assert [record.offset for record in read_partition(address, topic, 4)] == [6, 7, 8, 9]
