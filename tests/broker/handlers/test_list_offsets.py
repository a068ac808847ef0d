"""Offsets by time and by name, and the small questions about logs: their starts, their epochs, their sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.wire_client import BEGIN_MS, WireClient, batch_of, call, make_topic, values_in

from penstock.broker.broker import Broker
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.wire.schemas.describe_cluster import DescribeClusterRequest
from penstock.wire.schemas.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.schemas.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def offset_at(
    client: WireClient, topic: str, timestamp: int, version: int = 7, *, partition: int = 0, epoch: int = -1
) -> ListOffsetsPartitionResponse:
    wanted = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch, max_num_offsets=10
    )
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    if version:
        wanted.max_num_offsets = 1
    answer = client.ask(ApiKey.LIST_OFFSETS, request, version)
    found: ListOffsetsPartitionResponse = answer.topics[0].partitions[0]
    return found


def delete_below(client: WireClient, topic: str, offset: int, version: int = 2) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
    answer = client.ask(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), version)
    found: DeleteRecordsPartitionResult = answer.topics[0].partitions[0]
    return found


def end_of_epoch(client: WireClient, topic: str, epoch: int, *, current: int = -1, version: int = 4) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])])
    found: EpochEndOffset = client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, request, version).topics[0].partitions[0]
    return found


@pytest.mark.parametrize("version", range(8))
def test_what_is_not_there_is_unknown_in_every_version(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offset_at(client, "nowhere", LATEST, version).error_code == unknown
    assert offset_at(client, topic, LATEST, version, partition=1).error_code == unknown


@pytest.mark.parametrize("version", range(1, 8))
def test_both_ends_and_a_time_in_between(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", b"b"))
    client.produce(topic, batch_of(b"c", b"d", begin_ms=BEGIN_MS + 1000))
    delete_below(client, topic, 1)
    assert offset_at(client, topic, EARLIEST, version).offset == 1
    assert offset_at(client, topic, LATEST, version).offset == 4
    found = offset_at(client, topic, BEGIN_MS + 2, version)
    assert (found.error_code, found.offset, found.timestamp) == (0, 2, BEGIN_MS + 1000)
    too_late = offset_at(client, topic, BEGIN_MS + 1002, version)
    assert (too_late.error_code, too_late.offset, too_late.timestamp) == (0, -1, -1)
    assert found.leader_epoch == (broker_epoch(broker, topic) if version >= 4 else -1)


def broker_epoch(broker: Broker, topic: str) -> int:
    partition = broker.replicas.get(topic, 0)
    if partition is None:
        raise LookupError(topic)
    return partition.leader_epoch


def test_the_end_includes_writes_that_did_not_wait_for_the_disk(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    for number in range(20):
        client.produce(topic, batch_of(b"%d" % number), acks=1)
        assert offset_at(client, topic, -1, version=7).offset == number + 1


def test_version_0_answers_with_a_list(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    assert offset_at(client, topic, LATEST, 0).old_style_offsets == [0]
    client.produce(topic, batch_of(b"a", b"b"))
    assert offset_at(client, topic, LATEST, 0).old_style_offsets == [2, 0]
    assert offset_at(client, topic, EARLIEST, 0).old_style_offsets == [0]


def test_the_largest_timestamp_need_not_be_the_last(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    assert offset_at(client, topic, MAX_TIMESTAMP).offset == -1
    for begin_ms in (BEGIN_MS, BEGIN_MS + 5000, BEGIN_MS + 1000):
        client.produce(topic, batch_of(b"a", b"b", begin_ms=begin_ms))
    found = offset_at(client, topic, MAX_TIMESTAMP)
    assert (found.offset, found.timestamp) == (3, BEGIN_MS + 5001)


def test_another_leader_epoch_is_rejected(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    epoch = broker_epoch(broker, topic)
    assert offset_at(client, topic, LATEST, epoch=epoch).error_code == ErrorCode.NONE
    assert offset_at(client, topic, LATEST, epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- deleting records


@pytest.mark.parametrize("version", range(3))
def test_deleted_records_are_not_read_any_more(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    for value in (b"a", b"b", b"c"):
        client.produce(topic, batch_of(value))
    outcome = delete_below(client, topic, 2, version)
    assert (outcome.error_code, outcome.low_watermark) == (ErrorCode.NONE, 2)
    assert client.fetch(topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_in(client.fetch(topic, 2).records) == [b"c"]
    assert delete_below(client, topic, -1, version).low_watermark == 3


@pytest.mark.parametrize("offset", [2, -2, 2**63 - 1])
def test_what_was_not_written_cannot_be_deleted(broker: Broker, client: WireClient, offset: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a"))
    assert delete_below(client, topic, offset).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert values_in(client.fetch(topic).records) == [b"a"]


def test_records_of_no_topic_cannot_be_deleted(client: WireClient) -> None:
    assert delete_below(client, "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- epochs, folders, cluster


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_where_the_log_does(broker: Broker, client: WireClient, version: int) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a", b"b"))
    epoch = broker_epoch(broker, topic)
    found = end_of_epoch(client, topic, epoch, current=epoch, version=version)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (ErrorCode.NONE, epoch, 2)


def test_epochs_that_never_were_have_no_end(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker)
    client.produce(topic, batch_of(b"a"))
    epoch = broker_epoch(broker, topic)
    later = end_of_epoch(client, topic, epoch + 1)
    assert (later.error_code, later.leader_epoch, later.end_offset) == (ErrorCode.NONE, -1, -1)
    assert end_of_epoch(client, topic, epoch, current=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert end_of_epoch(client, "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(5))
def test_log_dirs_show_the_size_of_partitions(
    embedded: EmbeddedBroker, broker: Broker, client: WireClient, version: int
) -> None:
    topic = make_topic(broker, partitions=2)
    batch = batch_of(bytes(1000))
    client.produce(topic, batch, partition=1)
    wanted = DescribableLogDirTopic(topic=topic, partitions=[0, 1, 5])
    answer = client.ask(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=[wanted]), version)
    (result,) = answer.results
    assert (result.error_code, result.log_dir) == (ErrorCode.NONE, embedded.data_dir)
    sizes = {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}
    assert sizes == {(topic, 0): 0, (topic, 1): len(batch)}
    if version >= 4:
        assert result.total_bytes >= result.usable_bytes > 0


@pytest.mark.parametrize("version", range(2))
def test_the_cluster_is_this_broker(embedded: EmbeddedBroker, broker: Broker, client: WireClient, version: int) -> None:
    answer = client.ask(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(), version)
    assert [(node.host, node.port) for node in answer.brokers] == [("127.0.0.1", embedded.port)]
    assert answer.cluster_id == call(broker, lambda: broker.cluster.image.cluster_id)
    assert answer.controller_id == answer.brokers[0].broker_id


# --- producer ids


def test_producer_ids_are_never_given_twice_not_even_after_a_restart(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        with EmbeddedBroker(str(tmp_path)) as embedded, WireClient(embedded.port) as client:
            for version in range(5):
                answer = client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), version)
                assert (answer.error_code, answer.producer_epoch) == (ErrorCode.NONE, 0)
                given.append(answer.producer_id)
    assert len(set(given)) == len(given) == 15


def test_a_returning_producer_gets_its_next_epoch(client: WireClient) -> None:
    first = client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None), 4)
    request = InitProducerIdRequest(transactional_id=None, producer_id=first.producer_id, producer_epoch=0)
    again = client.ask(ApiKey.INIT_PRODUCER_ID, request, 4)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)


@pytest.mark.parametrize("version", range(5))
def test_a_transactional_id_that_is_empty_is_a_mistake(client: WireClient, version: int) -> None:
    answer = client.ask(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=""), version)
    assert (answer.error_code, answer.producer_id) == (ErrorCode.INVALID_REQUEST, -1)


# --- deletions that a topic's policy forbids


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("compact", ErrorCode.POLICY_VIOLATION),
        ("delete", ErrorCode.NONE),
        ("compact,delete", ErrorCode.NONE),
    ],
)
def test_records_are_deleted_only_where_the_topic_deletes(
    broker: Broker, client: WireClient, policy: str, code: ErrorCode
) -> None:
    topic = make_topic(broker, configs={"cleanup.policy": policy})
    client.produce(topic, batch_of(b"a", b"b"))
    result = delete_below(client, topic, 1)
    assert (result.error_code, result.low_watermark) == (code, -1 if code else 1)
    assert delete_below(client, topic, -5).error_code == (code or ErrorCode.OFFSET_OUT_OF_RANGE)
