"""What any Kafka client can rely on: the same stories with confluent-kafka, kafka-python and aiokafka, unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compatibility.client_interface import END, Client, Record, Rejected, held, read_partition, send_all, take
from tests.compatibility.client_stories import (
    BEGIN_MS,
    BROKER_SETTINGS,
    HOUR_MS,
    JUST_FITS_BYTES,
    LIMIT_BYTES,
    PARTITIONS,
    SAMPLES,
    DoomedProcess,
    numbered,
)
from tests.compatibility.clients import AIOKAFKA, CLIENTS, CONFLUENT, KAFKA_PYTHON
from tests.timeouts import until

from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ErrorCode

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.features.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


def has(client: Client, feature: str) -> bool:
    return feature not in client.features.lacks


def needs(client: Client, feature: str) -> None:
    if not has(client, feature):
        pytest.skip(f"{client.features.name} lacks {feature}")


# --- producing


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_of_every_codec_and_acks_come_back(
    client: Client, address: str, topic: str, codec: str, acks: str
) -> None:
    values = numbered(100)
    with client.administering(address) as admin:
        admin.create_topic(topic)
    with client.producing(address, codec=codec, acks=acks) as producer:
        for value in values:
            producer.send(topic, Record(value))
        producer.settle()
    assert [record.value for record in read_partition(client, address, topic, 100)] == values


def test_an_idempotent_producer_stores_its_records_in_order(client: Client, address: str, topic: str) -> None:
    values = numbered(50)
    with client.producing(address, idempotent=True, batch_records=5) as producer:
        for value in values:
            producer.send(topic, Record(value, partition=1))
        assert [sent.offset for sent in producer.settle()] == list(range(50))
    assert [record.value for record in read_partition(client, address, topic, 50, 1)] == values


def test_keys_nulls_headers_and_timestamps_come_back(client: Client, address: str, topic: str) -> None:
    samples = [
        Record(each.value, each.key, tuple(each.headers), each.timestamp_ms, 0, offset)
        for offset, each in enumerate(SAMPLES)
    ]
    with client.producing(address) as producer:
        for sample in samples:
            producer.send(topic, sample)
            producer.settle()
    assert read_partition(client, address, topic, len(samples)) == samples


def test_records_of_one_key_share_a_partition(client: Client, address: str, topic: str) -> None:
    with client.producing(address) as producer:
        for _ in range(10):
            producer.send(topic, Record(b"v", b"same", partition=None))
        assert len({sent.partition for sent in producer.settle()}) == 1


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_record_just_below_the_limit_is_stored_and_one_beyond_it_is_rejected(
    client: Client, address: str, topic: str, idempotent: bool
) -> None:
    if idempotent:
        needs(client, "idempotence after an error")
    with client.producing(address, request_bytes=4 * LIMIT_BYTES, idempotent=idempotent) as producer:
        sent = []
        for value in (bytes(JUST_FITS_BYTES), bytes(LIMIT_BYTES), b"after"):
            producer.send(topic, Record(value))
            sent += producer.settle()
    assert [each.error for each in sent] == [None, ErrorCode.MESSAGE_TOO_LARGE, None]
    assert (sent[0].offset, sent[2].offset) == (0, 1)
    # A reader whose own limit is smaller than the record gets it all the same.
    with client.consuming(address, fetch_bytes=1000) as consumer:
        consumer.assign(topic, 0)
        assert [len(record.value or b"") for record in take(consumer, 2)] == [JUST_FITS_BYTES, 5]


# --- reading


def test_earliest_latest_and_times_are_found(client: Client, address: str, topic: str) -> None:
    with client.producing(address) as producer:
        for number in range(10):
            producer.send(topic, Record(b"%d" % number, timestamp_ms=BEGIN_MS + number * HOUR_MS))
        producer.settle()
    with client.consuming(address) as consumer:
        consumer.assign(topic, 0)
        assert consumer.ends(topic, 0) == (0, 10)
        assert consumer.offset_at(topic, 0, BEGIN_MS + 4 * HOUR_MS + 1) == 5
        assert consumer.offset_at(topic, 0, BEGIN_MS + 100 * HOUR_MS) is None
        consumer.assign(topic, 0, 5)
        assert [record.value for record in take(consumer, 5)] == [b"5", b"6", b"7", b"8", b"9"]


def test_a_reader_at_the_end_is_woken_by_a_new_record(client: Client, address: str, topic: str) -> None:
    send_all(client, address, topic, [b"old"])
    with client.consuming(address, fetch_wait_ms=20_000) as consumer:
        consumer.assign(topic, 0, 1)
        assert consumer.poll() == []
        send_all(client, address, topic, [b"new"])
        assert [record.value for record in take(consumer, 1)] == [b"new"]


def test_a_reader_of_the_latest_sees_no_older_record(client: Client, address: str, topic: str) -> None:
    send_all(client, address, topic, [b"old"])
    with client.consuming(address) as consumer:
        consumer.assign(topic, 0, END)
        got: list[Record] = []

        def has_one() -> bool:
            # A client may look up the end later, so there is always a newer record.
            send_all(client, address, topic, [b"new"])
            got.extend(consumer.poll())
            return bool(got)

        until(has_one, "a new record")
        assert got[0].value == b"new"


def test_an_offset_out_of_range_is_reset(client: Client, address: str, topic: str) -> None:
    send_all(client, address, topic, [b"only"])
    with client.consuming(address) as consumer:
        consumer.assign(topic, 0, 1000)
        assert [record.value for record in take(consumer, 1)] == [b"only"]


# --- groups


def test_a_group_reads_every_partition_and_resumes_where_it_committed(
    client: Client, address: str, topic: str, group: str
) -> None:
    for partition in range(PARTITIONS):
        send_all(client, address, topic, numbered(10), partition)
    with client.consuming(address, topic=topic, group=group) as consumer:
        assert len(take(consumer, 30)) == 30
        consumer.commit()
    send_all(client, address, topic, [b"later"], 2)
    with client.consuming(address, topic=topic, group=group) as consumer:
        assert [(record.partition, record.value) for record in take(consumer, 1)] == [(2, b"later")]


def test_commits_keep_their_metadata_and_are_seen_by_others(
    client: Client, address: str, topic: str, group: str
) -> None:
    send_all(client, address, topic, numbered(5))
    with client.consuming(address, group=group) as consumer:
        consumer.assign(topic, 0)
        assert consumer.committed(topic, 0) is None
        consumer.commit({(topic, 0): (3, "a note")})
        assert consumer.committed(topic, 0) == 3
    with client.administering(address) as admin:
        assert admin.group_offset(group, topic, 0) == (3, "a note")


@pytest.mark.parametrize(
    ("client", "strategy"),
    [
        pytest.param(each, strategy, id=f"{each.features.name}-{strategy or 'default'}",
                     marks=[pytest.mark.long] if each is KAFKA_PYTHON else [])
        for each in CLIENTS
        for strategy in each.features.strategies
    ],
)  # fmt: skip
def test_members_share_partitions_as_they_join_and_leave(
    client: Client, strategy: str | None, address: str, topic: str, group: str
) -> None:
    send_all(client, address, topic, numbered(1))
    options = {"topic": topic, "group": group, "strategy": strategy}
    with client.consuming(address, **options) as first:
        until(lambda: len(held(first)) == PARTITIONS, "all for one")
        with client.consuming(address, **options) as second:

            def is_shared() -> bool:
                mine, yours = held(first), held(second)
                return bool(mine and yours) and not mine & yours and len(mine | yours) == PARTITIONS

            until(is_shared, "both have some")
            second.leave()
        until(lambda: len(held(first)) == PARTITIONS, "all again")


@pytest.mark.parametrize(
    "client", [CONFLUENT, pytest.param(KAFKA_PYTHON, marks=pytest.mark.long), AIOKAFKA],
    ids=lambda client: client.features.name,
)  # fmt: skip
def test_the_partitions_of_a_member_that_dies_go_to_the_others(
    client: Client, address: str, topic: str, group: str
) -> None:
    send_all(client, address, topic, numbered(1))
    with DoomedProcess(client.features.dying_member, address, topic, group) as doomed:
        assert doomed.wait_for_its_line() == b"3"
        with client.consuming(address, topic=topic, group=group) as survivor:
            until(lambda: len(held(survivor)) >= 1, "a share")
            doomed.kill()
            until(lambda: len(held(survivor)) == PARTITIONS, "the partitions of the dead member")


def test_a_static_member_comes_back_to_its_partitions(client: Client, address: str, topic: str, group: str) -> None:
    needs(client, "static members")
    send_all(client, address, topic, numbered(3))
    options = {"topic": topic, "group": group, "instance": "the one"}
    with client.consuming(address, **options) as consumer:
        take(consumer, 3)
        consumer.commit()
    send_all(client, address, topic, [b"later"])
    with client.consuming(address, **options) as consumer:
        assert [record.value for record in take(consumer, 1)] == [b"later"]


def test_records_and_commits_survive_a_restart_of_the_broker(
    client: Client, tmp_path: Path, topic: str, group: str
) -> None:
    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        send_all(client, broker.address, topic, numbered(10))
        with client.consuming(broker.address, topic=topic, group=group) as consumer:
            take(consumer, 10)
            consumer.commit({(topic, 0): (7, "")})
    with EmbeddedBroker(str(tmp_path), settings=BROKER_SETTINGS) as broker:
        send_all(client, broker.address, topic, [b"after"])
        with client.consuming(broker.address, topic=topic, group=group) as consumer:
            assert [record.offset for record in take(consumer, 4)] == [7, 8, 9, 10]


# --- administering


def test_topics_are_created_described_and_deleted(client: Client, address: str, topic: str) -> None:
    with client.administering(address) as admin:
        admin.create_topic(topic, 4, {"retention.ms": "1000000"})
        assert topic in admin.topics()
        assert admin.partitions(topic) == [0, 1, 2, 3]
        with pytest.raises(Rejected, match="TOPIC_ALREADY_EXISTS"):
            admin.create_topic(topic, 4)
        admin.delete_topic(topic)
        assert topic not in admin.topics()
        with pytest.raises(Rejected, match="UNKNOWN_TOPIC_OR_PARTITION"):
            admin.delete_topic(topic)


def test_a_topic_that_was_deleted_and_created_again_is_empty(client: Client, address: str, topic: str) -> None:
    with client.administering(address) as admin:
        admin.create_topic(topic)
        send_all(client, address, topic, numbered(5))
        admin.delete_topic(topic)
        admin.create_topic(topic)
    send_all(client, address, topic, [b"fresh"])
    assert [(record.offset, record.value) for record in read_partition(client, address, topic, 1)] == [(0, b"fresh")]


def test_partitions_are_added_never_removed(client: Client, address: str, topic: str) -> None:
    with client.administering(address) as admin:
        admin.create_topic(topic, 2)
        admin.add_partitions(topic, 5)
        assert admin.partitions(topic) == [0, 1, 2, 3, 4]
        with pytest.raises(Rejected, match="INVALID_PARTITIONS"):
            admin.add_partitions(topic, 3)
    send_all(client, address, topic, [b"in the new one"], 4)
    assert [record.value for record in read_partition(client, address, topic, 1, 4)] == [b"in the new one"]


def test_settings_of_a_topic_are_shown_changed_and_reset(client: Client, address: str, topic: str) -> None:
    with client.administering(address) as admin:
        admin.create_topic(topic, 1, {"cleanup.policy": "compact"})
        assert admin.setting(topic, "cleanup.policy") == "compact"
        before = admin.setting(topic, "max.message.bytes")
        admin.alter_setting(topic, "max.message.bytes", "2000")
        assert admin.setting(topic, "max.message.bytes") == "2000"
        with client.producing(address) as producer:
            producer.send(topic, Record(bytes(3000), b"k"))
            assert [sent.error for sent in producer.settle()] == [ErrorCode.MESSAGE_TOO_LARGE]
        if has(client, "resetting settings"):
            assert admin.setting(topic, "cleanup.policy") == "compact", "only what was altered changes"
            admin.reset_setting(topic, "max.message.bytes")
            assert admin.setting(topic, "max.message.bytes") == before


def test_settings_of_the_broker_are_shown(client: Client, address: str) -> None:
    needs(client, "broker settings")
    with client.administering(address) as admin:
        assert admin.broker_setting("num.partitions") == str(PARTITIONS)


def test_groups_are_listed_described_and_deleted_when_empty(
    client: Client, address: str, topic: str, group: str
) -> None:
    send_all(client, address, topic, numbered(3))
    with client.administering(address) as admin:
        with client.consuming(address, topic=topic, group=group) as consumer:
            take(consumer, 3)
            consumer.commit()
            assert group in admin.groups()
            assert admin.group_state(group) == "Stable"
            if has(client, "deleting groups"):
                with pytest.raises(Rejected, match="NON_EMPTY_GROUP"):
                    admin.delete_group(group)
        assert admin.group_state(group) == "Empty"
        if has(client, "deleting groups"):
            admin.delete_group(group)
            assert group not in admin.groups()
            with pytest.raises(Rejected, match="GROUP_ID_NOT_FOUND"):
                admin.delete_group(group)


def test_records_are_deleted_up_to_an_offset(client: Client, address: str, topic: str) -> None:
    send_all(client, address, topic, numbered(10))
    with client.administering(address) as admin:
        assert admin.delete_records(topic, 0, 6) == 6
    with client.consuming(address) as consumer:
        consumer.assign(topic, 0)
        assert consumer.ends(topic, 0) == (6, 10)
    assert [record.offset for record in read_partition(client, address, topic, 4)] == [6, 7, 8, 9]
