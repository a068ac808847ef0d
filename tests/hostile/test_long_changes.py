"""Requests that change very much at once: they are examined, made and answered in slices, or rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from tests.broker.wire_client import Disconnected, WireClient, make_topic
from tests.hostile.loop_meter import GENEROUS_S, LoopMeter

from penstock.broker.api_table import API_TABLE
from penstock.broker.broker import Broker
from penstock.broker.request import PART_ELEMENTS
from penstock.cluster.controller.configs import MAX_SETTINGS
from penstock.cluster.controller.transaction import GROUPED_OPERATIONS
from penstock.cluster.image import ClusterImage
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    describe_user_scram_credentials,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
)
from penstock.wire.types import Message

TOPIC, BROKER = 2, 4
MANY = 20_000
DECODED_AT_ONCE = 1024
NAMES = [f"nothing-{number}" for number in range(MANY)]


class Change(NamedTuple):
    """A request for many things that do not exist; `rows` are the elements of its response."""

    api: ApiKey
    version: int
    make: Callable[[Sequence[str]], Message]
    rows: Callable[[Any], Sequence[Any]]
    passes: int
    """How often at least the broker goes through all of them in slices, besides decoding and encoding."""
    code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_controller: bool = True


def _alter_configs(names: Sequence[str]) -> Message:
    rows = [alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name) for name in names]
    return alter_configs.AlterConfigsRequest(resources=rows)


def _edit_configs(names: Sequence[str]) -> Message:
    rows = [incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name) for name in names]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources=rows)


def _delete_by_id(names: Sequence[str]) -> Message:
    rows = [delete_topics.DeleteTopicState(topic_id=b"%016d" % number) for number in range(1, len(names) + 1)]
    return delete_topics.DeleteTopicsRequest(topics=rows)


def _create_topics(names: Sequence[str]) -> Message:
    rows = [create_topics.CreatableTopic(name=f"/{name}", num_partitions=1, replication_factor=1) for name in names]
    return create_topics.CreateTopicsRequest(topics=rows)


def _create_partitions(names: Sequence[str]) -> Message:
    rows = [create_partitions.CreatePartitionsTopic(name=name, count=2, assignments=None) for name in names]
    return create_partitions.CreatePartitionsRequest(topics=rows)


def _move_replicas(names: Sequence[str]) -> Message:
    topics = [alter_replica_log_dirs.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in names]
    directory = alter_replica_log_dirs.AlterReplicaLogDir(path="/nowhere", topics=topics)
    return alter_replica_log_dirs.AlterReplicaLogDirsRequest(dirs=[directory])


def _elect(names: Sequence[str]) -> Message:
    rows = [elect_leaders.TopicPartitions(topic=name, partitions=[0]) for name in names]
    return elect_leaders.ElectLeadersRequest(topic_partitions=rows)


def _reassign(names: Sequence[str]) -> Message:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=0, replicas=None)
    rows = [alter_partition_reassignments.ReassignableTopic(name=name, partitions=[partition]) for name in names]
    return alter_partition_reassignments.AlterPartitionReassignmentsRequest(topics=rows)


def _list_moves(names: Sequence[str]) -> Message:
    rows = [
        list_partition_reassignments.ListPartitionReassignmentsTopics(name=name, partition_indexes=[0])
        for name in names
    ]
    return list_partition_reassignments.ListPartitionReassignmentsRequest(topics=rows)


def _quotas(names: Sequence[str]) -> Message:
    rows = [
        alter_client_quotas.EntryData(
            entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=name)],
            ops=[alter_client_quotas.OpData(key="no_such_quota", value=1.0)],
        )
        for name in names
    ]
    return alter_client_quotas.AlterClientQuotasRequest(entries=rows)


def _log_dir_rows(answer: Any) -> Sequence[Any]:
    return [row for topic in answer.results for row in topic.partitions]


def _elected_rows(answer: Any) -> Sequence[Any]:
    return [row for topic in answer.replica_election_results for row in topic.partition_result]


def _reassigned_rows(answer: Any) -> Sequence[Any]:
    return [row for topic in answer.responses for row in topic.partitions]


CHANGES = {
    "AlterConfigs": Change(ApiKey.ALTER_CONFIGS, 1, _alter_configs, lambda answer: answer.responses, 2),
    "IncrementalAlterConfigs": Change(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, _edit_configs, lambda answer: answer.responses, 2
    ),
    "DeleteTopics by name": Change(
        ApiKey.DELETE_TOPICS,
        5,
        lambda names: delete_topics.DeleteTopicsRequest(topic_names=list(names)),
        lambda answer: answer.responses,
        2,
    ),
    "DeleteTopics by id": Change(
        ApiKey.DELETE_TOPICS, 6, _delete_by_id, lambda answer: answer.responses, 2, ErrorCode.UNKNOWN_TOPIC_ID
    ),
    "CreateTopics": Change(
        ApiKey.CREATE_TOPICS, 7, _create_topics, lambda answer: answer.topics, 3, ErrorCode.INVALID_TOPIC_EXCEPTION
    ),
    "CreatePartitions": Change(ApiKey.CREATE_PARTITIONS, 3, _create_partitions, lambda answer: answer.results, 4),
    "AlterReplicaLogDirs": Change(
        ApiKey.ALTER_REPLICA_LOG_DIRS, 2, _move_replicas, _log_dir_rows, 2, by_controller=False
    ),
    "ElectLeaders": Change(
        ApiKey.ELECT_LEADERS, 2, _elect, _elected_rows, 1, ErrorCode.ELECTION_NOT_NEEDED, by_controller=False
    ),
    "AlterPartitionReassignments": Change(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, _reassign, _reassigned_rows, 2, by_controller=False
    ),
    "AlterClientQuotas": Change(
        ApiKey.ALTER_CLIENT_QUOTAS, 1, _quotas, lambda answer: answer.entries, 2, ErrorCode.INVALID_REQUEST,
        by_controller=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_request_for_very_many_changes_is_examined_made_and_answered_in_slices(
    name: str, embedded: EmbeddedBroker, broker: Broker, client: WireClient
) -> None:
    change = CHANGES[name]
    client.ask(change.api, change.make(NAMES[:1]), change.version)  # the codecs are compiled
    errors = _errors(broker, change)
    before = broker.services.long_requests.slices
    with LoopMeter(broker, f"{name} of {MANY} that do not exist") as meter:
        answer = client.ask(change.api, change.make(NAMES), change.version)
    assert Counter(row.error_code for row in change.rows(answer)) == {change.code: MANY}
    slices = broker.services.long_requests.slices - before
    assert slices >= 2 * (MANY // DECODED_AT_ONCE) + change.passes * (MANY // PART_ELEMENTS)
    if change.by_controller:
        assert meter.turns - slices >= MANY // GROUPED_OPERATIONS
    assert meter.longest_s < GENEROUS_S
    assert _errors(broker, change) - errors == MANY


def _errors(broker: Broker, change: Change) -> float:
    counters = broker.services.metrics.api(change.api)._counters
    return counters[change.code].value if change.code in counters else 0.0


def test_moves_of_very_many_topics_are_listed_in_slices(broker: Broker, client: WireClient) -> None:
    api = ApiKey.LIST_PARTITION_REASSIGNMENTS
    client.ask(api, _list_moves(NAMES[:1]), 0)
    before = broker.services.long_requests.slices
    with LoopMeter(broker, f"ListPartitionReassignments of {MANY}") as meter:
        assert client.ask(api, _list_moves(NAMES), 0).topics == []
    slices = broker.services.long_requests.slices - before
    assert slices >= MANY // DECODED_AT_ONCE + MANY // PART_ELEMENTS
    assert meter.longest_s < GENEROUS_S


def _delete_users(names: Sequence[str]) -> Message:
    rows = [alter_user_scram_credentials.ScramCredentialDeletion(name=name, mechanism=1) for name in names]
    return alter_user_scram_credentials.AlterUserScramCredentialsRequest(deletions=rows)


def _describe_users(names: Sequence[str]) -> Message:
    rows = [describe_user_scram_credentials.UserName(name=name) for name in names]
    return describe_user_scram_credentials.DescribeUserScramCredentialsRequest(users=rows)


@pytest.mark.parametrize(
    ("api", "make"),
    [
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _delete_users),
        (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, _describe_users),
    ],
)
def test_as_many_users_as_one_request_may_name_do_not_hold_the_loop(
    api: ApiKey, make: Callable[[Sequence[str]], Message], broker: Broker, client: WireClient
) -> None:
    most = API_TABLE[api].max_elements
    client.ask(api, make(NAMES[:1]), 0)
    with LoopMeter(broker, f"{api.name} of {most} users") as meter:
        answer = client.ask(api, make(NAMES[:most]), 0)
    assert Counter(row.error_code for row in answer.results) == {ErrorCode.RESOURCE_NOT_FOUND: most}
    assert meter.longest_s < GENEROUS_S
    with pytest.raises(Disconnected):
        client.ask(api, make(NAMES[: most + 1]), 0)


def test_settings_of_many_topics_are_changed_without_copying_those_of_all_for_each(
    broker: Broker, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [make_topic(broker) for _ in range(60)]
    copies = 0
    original = ClusterImage.with_topic_config

    def counted(image: ClusterImage, *settings: Any) -> ClusterImage:
        nonlocal copies
        copies += 1
        return original(image, *settings)

    monkeypatch.setattr(ClusterImage, "with_topic_config", counted)
    config = alter_configs.AlterableConfig(name="retention.ms", value="5000")
    request = alter_configs.AlterConfigsRequest(
        resources=[
            alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=[config])
            for topic in topics
        ]
    )
    answer = client.ask(ApiKey.ALTER_CONFIGS, request, 1)
    assert {row.error_code for row in answer.responses} == {ErrorCode.NONE}
    assert copies == 0
    for topic in (topics[0], topics[-1]):
        resource = describe_configs.DescribeConfigsResource(
            resource_type=TOPIC, resource_name=topic, configuration_keys=["retention.ms"]
        )
        asked = describe_configs.DescribeConfigsRequest(resources=[resource])
        [found] = client.ask(ApiKey.DESCRIBE_CONFIGS, asked, 4).results
        assert found.configs[0].value == "5000"


@pytest.mark.parametrize(
    ("kind", "code"), [(TOPIC, ErrorCode.INVALID_CONFIG), (BROKER, ErrorCode.INVALID_REQUEST)], ids=["topic", "broker"]
)
def test_a_change_of_more_settings_than_a_resource_may_have_is_rejected(
    kind: int, code: ErrorCode, broker: Broker, client: WireClient
) -> None:
    name = make_topic(broker) if kind == TOPIC else str(broker.services.node_id)
    replacement = [
        alter_configs.AlterableConfig(name=f"unknown.{number}", value="1") for number in range(MAX_SETTINGS + 1)
    ]
    edits = [
        incremental_alter_configs.AlterableConfig(name=f"unknown.{number}", value="1")
        for number in range(MAX_SETTINGS + 1)
    ]
    whole = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=replacement)
    part = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=edits)
    for api, request in (
        (ApiKey.ALTER_CONFIGS, alter_configs.AlterConfigsRequest(resources=[whole])),
        (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[part]),
        ),
    ):
        [row] = client.ask(api, request, 1).responses
        assert row.error_code == code
        assert f"{MAX_SETTINGS + 1} settings of one resource are too many" in row.error_message


def test_a_topic_with_more_settings_than_one_may_have_is_not_created(client: WireClient) -> None:
    configs = [
        create_topics.CreatableTopicConfig(name=f"unknown.{number}", value="1") for number in range(MAX_SETTINGS + 1)
    ]
    topic = create_topics.CreatableTopic(name="wide", num_partitions=1, replication_factor=1, configs=configs)
    [row] = client.ask(ApiKey.CREATE_TOPICS, create_topics.CreateTopicsRequest(topics=[topic]), 7).topics
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert "too many" in row.error_message
