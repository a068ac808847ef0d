"""confluent-kafka, and with it librdkafka, unmodified, against a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
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
)
from tests.ports import free_port
from tests.timeouts import PATIENCE_S, until

from penstock.replication.partition import Partition
from penstock.testing.embedded_broker import EmbeddedBroker

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# The library writes of connections that come and go to standard error, which is none of a test's business.
QUIET = {"log_level": 0, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}


def settings_for(address: str, **more: Any) -> dict[str, Any]:
    """Settings by their names, with underscores for dots."""
    return {"bootstrap.servers": address, **QUIET, **{name.replace("_", "."): more[name] for name in more}}


def producer_of(address: str, **settings: Any) -> Producer:
    return Producer(settings_for(address, **settings))


class Sending:
    """Sends, and keeps what came of it, in the order of the answers."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.offsets: list[int] = []
        self.errors: list[int] = []

    def _done(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(error.code())
        else:
            offset = message.offset()
            self.offsets.append(-1 if offset is None else offset)

    def send(self, topic: str, value: bytes | None, **more: Any) -> None:
        self._producer.produce(topic, value, on_delivery=self._done, **more)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


def send_all(address: str, topic: str, values: list[bytes], partition: int = 0) -> None:
    sending = Sending(producer_of(address))
    for value in values:
        sending.send(topic, value, partition=partition)
    sending.flush()
    assert sending.errors == []


@contextmanager
def consuming(address: str, **settings: Any) -> Iterator[Consumer]:
    defaults = {"group_id": "nobody", "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = Consumer(settings_for(address, **{**defaults, **settings}))
    try:
        yield consumer
    finally:
        consumer.close()


@contextmanager
def member(address: str, topic: str, group: str, **settings: Any) -> Iterator[Consumer]:
    quick = {"session_timeout_ms": SESSION_TIMEOUT_MS, "heartbeat_interval_ms": HEARTBEAT_MS, **settings}
    with consuming(address, group_id=group, topic_metadata_refresh_interval_ms=500, **quick) as consumer:
        consumer.subscribe([topic])
        yield consumer


def take(consumer: Consumer, count: int) -> list[Message]:
    records: list[Message] = []

    def poll() -> bool:
        for message in consumer.consume(count, 0.2):
            error = message.error()
            if error is not None and not error.retriable():
                raise KafkaException(error)
            if error is None:
                records.append(message)
        return len(records) >= count

    until(poll, f"{count} records")
    return records


def read_partition(address: str, topic: str, count: int, partition: int = 0, **settings: Any) -> list[Message]:
    with consuming(address, **settings) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0)])
        return take(consumer, count)


def administering(address: str) -> AdminClient:
    return AdminClient(settings_for(address))


def outcome(futures: dict[Any, Any]) -> Any:
    """What became of a question about one thing."""
    (future,) = futures.values()
    return future.result(PATIENCE_S)


def code_of(raised: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = raised.value.args[0].code()
    return code


# --- producing


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_of_every_codec_and_acks_come_back(address: str, topic: str, codec: str, acks: str) -> None:
    values = numbered(100)
    sending = Sending(producer_of(address, compression_type=codec, acks=acks, linger_ms=20))
    for value in values:
        sending.send(topic, value, partition=0)
    sending.flush()
    assert [record.value() for record in read_partition(address, topic, 100)] == values


@pytest.mark.long
@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_records_recompressed_by_the_broker_come_back_unchanged(address: str, topic: str, stored: str) -> None:
    admin = administering(address)
    outcome(admin.create_topics([NewTopic(topic, 1, 1, config={"compression.type": stored})]))
    samples = [(value, BEGIN_MS + number) for number, value in enumerate(numbered(5 * 20))]
    for place, codec in enumerate(CODECS):
        sending = Sending(producer_of(address, compression_type=codec, enable_idempotence=True, linger_ms=20))
        for value, timestamp in samples[20 * place : 20 * place + 20]:
            sending.send(topic, value, key=codec.encode(), headers=[("h", value)], timestamp=timestamp, partition=0)
        sending.flush()
        assert (sending.errors, sending.offsets) == ([], list(range(20 * place, 20 * place + 20)))
    records = read_partition(address, topic, len(samples), check_crcs=True)
    assert [(each.value(), each.timestamp()[1]) for each in records] == samples
    assert [each.headers() for each in records] == [[("h", value)] for value, _ in samples]
    assert [each.key() for each in records] == [codec.encode() for codec in CODECS for _ in range(20)]


def test_an_idempotent_producer_numbers_its_records(address: str, topic: str) -> None:
    values = numbered(50)
    sending = Sending(producer_of(address, enable_idempotence=True, batch_num_messages=5))
    for value in values:
        sending.send(topic, value, partition=1)
    sending.flush()
    assert sending.offsets == list(range(50))
    assert [record.value() for record in read_partition(address, topic, 50, 1)] == values


def test_a_producer_whose_first_batch_is_rejected_temporarily_stores_everything_once_and_in_order(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next batches are on their way already, and there are enough replicas for those (decision 011)."""
    send_all(address, topic, [b"made"])
    refused: set[int] = set()
    append = Partition.append

    def append_later(partition: Partition, records: Any, now_ms: int, **more: Any) -> Any:
        producer_id = records.found.headers[0].producer_id
        is_first = partition.topic == topic and producer_id >= 0 and producer_id not in refused
        enough = partition.min_insync_replicas
        if is_first:
            refused.add(producer_id)
            partition.min_insync_replicas = 2
        try:
            return append(partition, records, now_ms, **more)
        finally:
            partition.min_insync_replicas = enough

    monkeypatch.setattr(Partition, "append", append_later)
    sent: list[bytes] = []
    for number in range(10):
        sending = Sending(producer_of(address, enable_idempotence=True, batch_num_messages=1, linger_ms=0))
        values = [b"%d-%d" % (number, index) for index in range(8)]
        for value in values:
            sending.send(topic, value, partition=0)
        sending.flush()
        assert sending.errors == []
        sent += values
    assert len(refused) == 10
    assert [message.value() for message in read_partition(address, topic, 1 + len(sent))] == [b"made", *sent]
    admin, latest = administering(address), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    assert outcome(admin.list_offsets({TopicPartition(topic, 0): latest})).offset == 1 + len(sent)


def test_keys_nulls_headers_and_timestamps_come_back(address: str, topic: str) -> None:
    sending = Sending(producer_of(address))
    for sample in SAMPLES:
        sending.send(
            topic,
            sample.value,
            key=sample.key,
            headers=list(sample.headers),
            timestamp=sample.timestamp_ms,
            partition=0,
        )
    sending.flush()
    records = read_partition(address, topic, len(SAMPLES))
    got = [(each.key(), each.value(), each.headers() or [], each.timestamp()[1]) for each in records]
    assert got == [tuple(sample) for sample in SAMPLES]
    assert [record.offset() for record in records] == list(range(len(SAMPLES)))
    assert {record.timestamp()[0] for record in records} == {TIMESTAMP_CREATE_TIME}


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_record_just_below_the_limit_passes_and_one_beyond_it_is_rejected(
    address: str, topic: str, is_idempotent: bool
) -> None:
    sending = Sending(producer_of(address, message_max_bytes=4 * LIMIT_BYTES, enable_idempotence=is_idempotent))
    for value in (bytes(JUST_FITS_BYTES), bytes(LIMIT_BYTES), b"after"):
        sending.send(topic, value, partition=0)
        sending.flush()
    assert sending.errors == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert sending.offsets == [0, 1]
    # A reader whose own limit is smaller than the record gets it all the same.
    records = read_partition(address, topic, 2, fetch_message_max_bytes=1000)
    assert [len(record.value() or b"") for record in records] == [JUST_FITS_BYTES, 5]


# --- reading


def test_earliest_latest_and_times_are_found(address: str, topic: str) -> None:
    sending = Sending(producer_of(address))
    for number in range(10):
        sending.send(topic, b"%d" % number, partition=0, timestamp=BEGIN_MS + number * HOUR_MS)
    sending.flush()
    with consuming(address) as consumer:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (0, 10)
        asked = [TopicPartition(topic, 0, BEGIN_MS + 4 * HOUR_MS + 1)]
        assert [each.offset for each in consumer.offsets_for_times(asked, timeout=PATIENCE_S)] == [5]
        late = [TopicPartition(topic, 0, BEGIN_MS + 100 * HOUR_MS)]
        assert [each.offset for each in consumer.offsets_for_times(late, timeout=PATIENCE_S)] == [OFFSET_END]
        consumer.assign([TopicPartition(topic, 0, 5)])
        assert [record.value() for record in take(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]


def test_a_reader_at_the_end_is_woken_by_what_comes(address: str, topic: str) -> None:
    send_all(address, topic, [b"old"])
    with consuming(address, fetch_wait_max_ms=20_000) as consumer:
        consumer.assign([TopicPartition(topic, 0, 1)])
        assert consumer.consume(1, 0.5) == []
        send_all(address, topic, [b"new"])
        assert [record.value() for record in take(consumer, 1)] == [b"new"]


def test_a_reader_of_the_latest_sees_nothing_older(address: str, topic: str) -> None:
    send_all(address, topic, [b"old"])
    with consuming(address) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        got: list[Message] = []

        def something_came() -> bool:
            # Where the end is, the client finds out in its own time; so there is always something newer.
            send_all(address, topic, [b"new"])
            got.extend(consumer.consume(1, 0.2))
            return bool(got)

        until(something_came, "a new record")
        assert got[0].value() == b"new"


def test_an_offset_out_of_range_is_reset(address: str, topic: str) -> None:
    send_all(address, topic, [b"only"])
    with consuming(address) as consumer:
        consumer.assign([TopicPartition(topic, 0, 1000)])
        assert [record.value() for record in take(consumer, 1)] == [b"only"]


# --- groups


def test_a_group_reads_every_partition_and_resumes_where_it_committed(address: str, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        send_all(address, topic, numbered(10), partition)
    with member(address, topic, group) as consumer:
        assert len(take(consumer, 30)) == 30
        consumer.commit(asynchronous=False)
    send_all(address, topic, [b"later"], 2)
    with member(address, topic, group) as consumer:
        assert [(record.partition(), record.value()) for record in take(consumer, 1)] == [(2, b"later")]


def test_commits_keep_their_metadata(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(5))
    with consuming(address, group_id=group) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, 3, "a note")], asynchronous=False)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE_S)
        assert (committed.offset, committed.metadata) == (3, "a note")


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_partitions_as_they_join_and_leave(address: str, topic: str, group: str, strategy: str) -> None:
    send_all(address, topic, numbered(1))

    def held(consumer: Consumer) -> set[int]:
        consumer.poll(0.05)
        return {each.partition for each in consumer.assignment()}

    with member(address, topic, group, partition_assignment_strategy=strategy) as first:
        until(lambda: len(held(first)) == PARTITIONS, "all for one")
        with member(address, topic, group, partition_assignment_strategy=strategy) as second:

            def shared() -> bool:
                mine, yours = held(first), held(second)
                return bool(mine and yours) and not mine & yours and len(mine | yours) == PARTITIONS

            until(shared, "both have some")
            # A member leaves with the help of those who stay only under the cooperative strategy, and never waits.
            second.unsubscribe()
        until(lambda: len(held(first)) == PARTITIONS, "all again")


DYING = """
import sys
from confluent_kafka import Consumer
address, topic, group = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": address, "group.id": group, "session.timeout.ms": 2000,
                     "heartbeat.interval.ms": 200, "log_level": 0})
consumer.subscribe([topic])
while not consumer.assignment():
    consumer.poll(0.1)
print(len(consumer.assignment()), flush=True)
while True:
    consumer.poll(0.1)
"""


def test_the_partitions_of_a_member_that_dies_go_to_the_others(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(1))
    with DoomedProcess(DYING, address, topic, group) as doomed:
        assert doomed.wait_for_its_line() == b"3"
        with member(address, topic, group) as survivor:

            def has(count: int) -> bool:
                survivor.poll(0.05)
                return len(survivor.assignment()) >= count

            until(lambda: has(1), "a share")
            doomed.kill()
            until(lambda: has(PARTITIONS), "what the dead one had")


def test_a_static_member_comes_back_without_a_rebalance(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(3))
    patient = {"session_timeout_ms": 20_000, "group_instance_id": "the one"}
    with member(address, topic, group, **patient) as consumer:
        take(consumer, 3)
        consumer.commit(asynchronous=False)
    admin = administering(address)
    described = outcome(admin.describe_consumer_groups([group]))
    assert [each.group_instance_id for each in described.members] == ["the one"]
    send_all(address, topic, [b"later"])
    with member(address, topic, group, **patient) as consumer:
        assert [record.value() for record in take(consumer, 1)] == [b"later"]


def test_records_and_commits_outlive_a_restart_of_the_broker(tmp_path: Any, topic: str, group: str) -> None:
    port = free_port()
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        sending = Sending(producer_of(broker.address, enable_idempotence=True))
        for value in numbered(10):
            sending.send(topic, value, partition=0)
        sending.flush()
        with member(broker.address, topic, group) as consumer:
            take(consumer, 10)
            consumer.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        sending.send(topic, b"after", partition=0)
        sending.flush()
        assert sending.offsets == list(range(11))
        with member(broker.address, topic, group) as consumer:
            assert [record.offset() for record in take(consumer, 4)] == [7, 8, 9, 10]


def test_a_member_and_a_producer_go_on_through_a_restart_of_the_broker(tmp_path: Any, topic: str, group: str) -> None:
    port = free_port()
    with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS) as broker:
        address = broker.address
        producer = producer_of(address, enable_idempotence=True)
        producer.produce(topic, b"before", partition=0)
        producer.flush(PATIENCE_S)
        with member(address, topic, group, session_timeout_ms=10_000) as consumer:
            assert [record.value() for record in take(consumer, 1)] == [b"before"]
            broker.stop()
            producer.produce(topic, b"while it is down", partition=0)
            with EmbeddedBroker(str(tmp_path), port=port, settings=BROKER_SETTINGS):
                assert producer.flush(PATIENCE_S) == 0
                assert [record.value() for record in take(consumer, 1)] == [b"while it is down"]


# --- administering


def test_topics_are_made_described_and_deleted(address: str, topic: str) -> None:
    admin = administering(address)
    outcome(admin.create_topics([NewTopic(topic, 4, 1, config={"retention.ms": "1000000"})]))
    described = outcome(admin.describe_topics(TopicCollection([topic])))
    assert [each.id for each in described.partitions] == [0, 1, 2, 3]
    with pytest.raises(KafkaException) as raised:
        outcome(admin.create_topics([NewTopic(topic, 4, 1)]))
    assert code_of(raised) == KafkaError.TOPIC_ALREADY_EXISTS
    outcome(admin.delete_topics([topic]))
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    with pytest.raises(KafkaException) as raised:
        outcome(admin.delete_topics([topic]))
    assert code_of(raised) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_that_is_only_validated_is_not_made(address: str, topic: str) -> None:
    admin = administering(address)
    outcome(admin.create_topics([NewTopic(topic, 4, 1)], validate_only=True))
    assert topic not in admin.list_topics(timeout=PATIENCE_S).topics
    with pytest.raises(KafkaException) as raised:
        outcome(admin.create_topics([NewTopic(topic, 1, 7)]))
    assert code_of(raised) == KafkaError.INVALID_REPLICATION_FACTOR


def test_partitions_are_added_never_taken(address: str, topic: str) -> None:
    admin = administering(address)
    outcome(admin.create_topics([NewTopic(topic, 2, 1)]))
    outcome(admin.create_partitions([NewPartitions(topic, 5)]))
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 5
    with pytest.raises(KafkaException) as raised:
        outcome(admin.create_partitions([NewPartitions(topic, 3)]))
    assert code_of(raised) == KafkaError.INVALID_PARTITIONS
    send_all(address, topic, [b"in the new one"], 4)
    assert [record.value() for record in read_partition(address, topic, 1, 4)] == [b"in the new one"]


def test_a_topics_settings_are_shown_changed_and_reset(address: str, topic: str) -> None:
    admin = administering(address)

    def shown(key: str) -> Any:
        return outcome(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))[key].value

    def alter(key: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(key, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        outcome(admin.incremental_alter_configs([resource]))

    outcome(admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "compact"})]))
    before = shown("max.message.bytes")
    alter("max.message.bytes", "2000", AlterConfigOpType.SET)
    assert (shown("max.message.bytes"), shown("cleanup.policy")) == ("2000", "compact")
    alter("cleanup.policy", "delete", AlterConfigOpType.APPEND)
    assert shown("cleanup.policy") == "compact,delete"
    sending = Sending(producer_of(address))
    sending.send(topic, bytes(3000), key=b"k")
    sending.flush()
    assert sending.errors == [KafkaError.MSG_SIZE_TOO_LARGE]
    alter("max.message.bytes", None, AlterConfigOpType.DELETE)
    assert shown("max.message.bytes") == before
    with pytest.raises(KafkaException) as raised:
        alter("retention.ms", "for ever", AlterConfigOpType.SET)
    assert code_of(raised) == KafkaError.INVALID_CONFIG


def test_the_brokers_settings_are_shown(address: str) -> None:
    admin = administering(address)
    (node,) = admin.list_topics(timeout=PATIENCE_S).brokers
    shown = outcome(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node))]))
    assert shown["num.partitions"].value == str(PARTITIONS)


def test_groups_are_listed_described_and_deleted_when_empty(address: str, topic: str, group: str) -> None:
    send_all(address, topic, numbered(3))
    admin = administering(address)

    def listed() -> bool:
        return group in [each.group_id for each in admin.list_consumer_groups().result(PATIENCE_S).valid]

    with member(address, topic, group) as consumer:
        take(consumer, 3)
        consumer.commit(asynchronous=False)
        assert listed()
        described = outcome(admin.describe_consumer_groups([group]))
        assert described.state == ConsumerGroupState.STABLE
        assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException) as raised:
            outcome(admin.delete_consumer_groups([group]))
        assert code_of(raised) == KafkaError.NON_EMPTY_GROUP
    assert outcome(admin.describe_consumer_groups([group])).state == ConsumerGroupState.EMPTY
    outcome(admin.delete_consumer_groups([group]))
    assert not listed()
    with pytest.raises(KafkaException) as raised:
        outcome(admin.delete_consumer_groups([group]))
    assert code_of(raised) == KafkaError.GROUP_ID_NOT_FOUND


def test_records_are_deleted_up_to_an_offset(address: str, topic: str) -> None:
    send_all(address, topic, numbered(10))
    admin = administering(address)
    assert outcome(admin.delete_records([TopicPartition(topic, 0, 6)])).low_watermark == 6
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    assert outcome(admin.list_offsets({TopicPartition(topic, 0): earliest})).offset == 6
    assert [record.offset() for record in read_partition(address, topic, 4, auto_offset_reset="earliest")] == [
        6,
        7,
        8,
        9,
    ]


def test_many_producers_at_once_lose_nothing(address: str, topic: str) -> None:
    def produce(number: int) -> None:
        send_all(address, topic, numbered(100, first=number * 100))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = read_partition(address, topic, 400)
    assert sorted(record.value() or b"" for record in records) == sorted(numbered(400))
    assert [record.offset() for record in records] == list(range(400))
