"""What a broker that stands alone answers to requests that are mostly asked of clusters, over a socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.broker.group_client import commit, committed, find_coordinator
from tests.broker.wire_client import WireClient, batch_of, call, make_topic, values_in
from tests.timeouts import until

from penstock import Admin, ConfigResource, TopicPartition, TopicSpec
from penstock.broker.broker import Broker
from penstock.client.errors import InvalidSetting, UnknownTopic
from penstock.coordination.coordinator_runtime import partition_for_key
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import OFFSETS_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.schemas.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.wire.schemas.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.wire.schemas.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest
from penstock.wire.schemas.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.wire.schemas.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, str]:
    return {"offsets.topic.num.partitions": "1"}


# --- offsets


def commit_request(group: str, *offsets: tuple[str, int, int]) -> OffsetCommitRequest:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for topic, partition, offset in offsets:
        entry = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, partitions=[]))
        entry.partitions.append(OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset))
    return OffsetCommitRequest(group_id=group, topics=list(topics.values()))


@pytest.mark.parametrize("version", [2, 8])
def test_offsets_of_partitions_that_do_not_exist_are_rejected_and_the_others_are_kept(
    broker: Broker, client: WireClient, version: int
) -> None:
    group = f"readers-{version}"
    find_coordinator(client, group)
    topic = make_topic(broker, partitions=2)
    asked = commit_request(group, ("no-such-topic", 0, 5), (topic, 2, 6), (topic, 0, 7), (topic, -1, 8))
    answer = client.ask(ApiKey.OFFSET_COMMIT, asked, version)
    found = {(each.name, part.partition_index): part.error_code for each in answer.topics for part in each.partitions}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found == {("no-such-topic", 0): unknown, (topic, 2): unknown, (topic, -1): unknown, (topic, 0): 0}
    assert len(answer.topics) == 2
    assert committed(client, group, topic) == 7
    assert committed(client, group, "no-such-topic") == -1


def test_a_commit_of_nothing_that_exists_needs_no_coordinator(client: WireClient) -> None:
    answer = client.ask(ApiKey.OFFSET_COMMIT, commit_request("never-seen", ("gone", 3, 1)), 8)
    assert [each.error_code for each in answer.topics[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# --- coordinators


def test_committed_offsets_are_in_fifty_compacted_partitions_by_hash_of_the_group() -> None:
    groups = ("feed", "search", "audit")
    with EmbeddedBroker() as own, WireClient(own.port) as client:
        topic = make_topic(own.broker)
        for group in groups:
            find_coordinator(client, group)
            assert commit(client, group, topic, 7) == ErrorCode.NONE
        with Admin(own.address) as admin:
            assert len(admin.describe_topic(OFFSETS_TOPIC).partitions) == 50
        logs = {partition.index: partition.log for partition in own.broker.replicas if partition.topic == OFFSETS_TOPIC}
        assert sorted(logs) == list(range(50))
        assert {log.settings.cleanup_policy for log in logs.values()} == {frozenset({"compact"})}
        expected = {partition_for_key(group, 50) for group in groups}
        assert {index for index, log in logs.items() if log.log_end_offset} == expected


@pytest.mark.parametrize("version", [1, 3, 4])
def test_the_only_broker_coordinates_every_transaction(client: WireClient, version: int) -> None:
    asked = FindCoordinatorRequest(key_type=1)
    if version < 4:
        asked.key = "payments"
    else:
        asked.coordinator_keys = ["payments", "orders"]
    answer = client.ask(ApiKey.FIND_COORDINATOR, asked, version)
    found = [answer] if version < 4 else answer.coordinators
    assert len(found) == (1 if version < 4 else 2)
    for each in found:
        assert each.error_code == ErrorCode.NONE
        assert each.node_id == 0


def test_an_empty_transactional_id_has_no_coordinator(client: WireClient) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=1, coordinator_keys=[""]), 4)
    assert [each.error_code for each in answer.coordinators] == [ErrorCode.INVALID_REQUEST]


def test_a_coordinator_of_an_unknown_type_is_an_invalid_request(client: WireClient) -> None:
    answer = client.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=9, coordinator_keys=["x"]), 4)
    assert [each.error_code for each in answer.coordinators] == [ErrorCode.INVALID_REQUEST]


# --- replicas in sync


def test_more_replicas_in_sync_than_there_are_is_rejected_for_a_topic(broker: Broker, client: WireClient) -> None:
    with Admin(f"127.0.0.1:{broker.advertised[0].port}") as admin:
        with pytest.raises(InvalidSetting, match=r"min\.insync\.replicas=2 needs more than 1 replica") as caught:
            admin.create_topic(TopicSpec("tight", 1, config={"min.insync.replicas": 2}))
        assert "acks=all" in str(caught.value)
        assert "tight" not in broker.cluster.image.topics
        topic = make_topic(broker, configs={"min.insync.replicas": "1"})
        with pytest.raises(InvalidSetting, match=r"min\.insync\.replicas=2 needs more than 1 replica"):
            admin.alter_config(ConfigResource.topic(topic), {"min.insync.replicas": 2})
        admin.alter_config(ConfigResource.topic(topic), {"min.insync.replicas": 1, "retention.ms": 5})


def test_a_broker_that_demands_more_replicas_than_itself_says_so_and_honours_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    demanding = {"min.insync.replicas": "2", "offsets.topic.num.partitions": "1"}
    with EmbeddedBroker(settings=demanding, http_port=0) as embedded, WireClient(embedded.port) as client:
        assert "this broker stands alone: min.insync.replicas=2" in caplog.text
        asked = CreateTopicsRequest(
            topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("strict", "loose")]
        )
        asked.topics[1].configs = [CreatableTopicConfig(name="min.insync.replicas", value="1")]
        answer = client.ask(ApiKey.CREATE_TOPICS, asked, 5)
        assert [each.error_code for each in answer.topics] == [ErrorCode.NONE, ErrorCode.NONE]
        assert "topic=strict replicas=1 min.insync.replicas=2" in caplog.text
        assert "topic=loose" not in caplog.text
        for acks, code in ((-1, ErrorCode.NOT_ENOUGH_REPLICAS), (1, ErrorCode.NONE)):
            assert client.produce("strict", batch_of(b"x"), acks=acks).error_code == code
        assert client.produce("loose", batch_of(b"x")).error_code == ErrorCode.NONE
        # Groups store their offsets all the same.
        find_coordinator(client, "readers")
        assert client.ask(ApiKey.OFFSET_COMMIT, commit_request("readers", ("loose", 0, 1)), 8)
        assert committed(client, "readers", "loose") == 1
        metrics = b"".join(call(embedded.broker, lambda: list(embedded.broker.services.metrics.registry.render())))
        assert b"kafka_server_under_min_isr_partitions 1\n" in metrics


# --- moves between data folders


def dirs_of(client: WireClient, topic: str) -> dict[str, list[tuple[int, bool]]]:
    """Data folder: the partitions of a topic in it, and whether they are copies that are being made."""
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic=topic, partitions=[0, 1])])
    return {
        Path(result.log_dir).name: [(each.partition_index, each.is_future_key) for each in found.partitions]
        for result in client.ask(ApiKey.DESCRIBE_LOG_DIRS, asked, 4).results
        for found in result.topics
    }


def move(client: WireClient, path: str, topic: str, *partitions: int, version: int = 2) -> list[int]:
    topics = [AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))]
    asked = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])
    (answer,) = client.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, asked, version).results
    return [each.error_code for each in answer.partitions]


def test_a_replica_moves_to_another_disk_while_it_is_written_and_read(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("one", "two")]
    settings = {"log.dirs": ",".join(folders), "log.segment.bytes": "1000000"}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        embedded.create_topic("views", 2)
        written = 0

        def write(count: int) -> None:
            nonlocal written
            for _ in range(count):
                values = [b"%d" % number + bytes(10_000) for number in range(written, written + 20)]
                assert client.produce("views", batch_of(*values)).error_code == ErrorCode.NONE
                written += 20

        write(30)
        before = dirs_of(client, "views")
        here, there = ("one", "two") if (0, False) in before["one"] else ("two", "one")
        for path, code in ((str(tmp_path / "three"), ErrorCode.LOG_DIR_NOT_FOUND), (str(tmp_path / here), 0)):
            assert move(client, path, "views", 0, version=1) == [code]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(client, str(tmp_path / there), "views", 0, 7) == [ErrorCode.NONE, unknown]

        def has_moved() -> bool:
            write(1)
            return (0, False) in dirs_of(client, "views").get(there, [])

        until(has_moved, "the replica is in the other data folder")
        assert dirs_of(client, "views").get(here, []) in ([], [(1, False)])
        write(1)
        assert not (tmp_path / here / "views-0").exists()
        found: list[bytes | None] = []
        while len(found) < written:
            found += values_in(client.fetch("views", len(found)).records)
        assert [int((value or b"").split(b"\0")[0]) for value in found] == list(range(written))
        with Admin(embedded.address) as admin:
            back = {("views", 0): str(tmp_path / here), ("views", 9): str(tmp_path / here)}
            outcomes = admin.alter_replica_log_dirs(0, back)
            assert outcomes[TopicPartition("views", 0)] is None
            assert isinstance(outcomes[TopicPartition("views", 9)], UnknownTopic)
            until(lambda: (0, False) in dirs_of(client, "views").get(here, []), "it is back")
            directories = admin.describe_log_dirs()[0]
            assert isinstance(directories, tuple)
            assert [each.moving for each in directories] == [{}, {}]
            assert admin.alter_replica_log_dirs(0, {("views", 0): str(tmp_path / there)}) == {("views", 0): None}
            until(lambda: (0, False) in dirs_of(client, "views").get(there, []), "it has moved again")
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        assert (0, False) in dirs_of(client, "views")[there]
        assert values_in(client.fetch("views", written - 1).records)[-1] is not None


# --- moves between brokers


def test_reassignments_are_answered_partition_by_partition(broker: Broker, client: WireClient) -> None:
    topic = make_topic(broker, partitions=4)
    wanted: list[list[int] | None] = [[0], [1], None, []]
    asked = AlterPartitionReassignmentsRequest(
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas in enumerate(wanted)
                ],
            ),
            ReassignableTopic(name="gone", partitions=[ReassignablePartition(partition_index=0, replicas=[0])]),
        ]
    )
    answer = client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, asked, 0)
    assert (answer.error_code, answer.error_message) == (ErrorCode.NONE, None)
    found = [[each.error_code for each in item.partitions] for item in answer.responses]
    assert found == [
        [
            ErrorCode.NONE,  # where it is already
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,  # there is no other broker
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    listed = client.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(topics=None), 0)
    assert (listed.error_code, listed.topics) == (ErrorCode.NONE, [])
