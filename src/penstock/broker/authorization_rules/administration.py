"""Settings, replicas, access control, users and quotas; and what brokers ask each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.broker.authorization_rules.rule import (
    CODES,
    OPEN,
    Access,
    ByElement,
    Rule,
    needs_cluster,
    partition_rows,
    reject_with_code,
    reject_with_code_and_text,
)
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import (
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    controlled_shutdown,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_configs,
    describe_log_dirs,
    describe_user_scram_credentials,
    elect_leaders,
    forward,
    incremental_alter_configs,
    list_partition_reassignments,
    push_image,
)
from penstock.wire.types import Message

_O, _R = Operation, ResourceType


def _configs(operation: Operation) -> Callable[[Access, Any], ErrorCode]:
    """The settings of a topic or group need its permission, those of brokers and their loggers the cluster's."""

    def check(access: Access, resource: Any) -> ErrorCode:
        kind = {2: _R.TOPIC, 4: _R.CLUSTER, 8: _R.CLUSTER, 16: _R.CLUSTER, 32: _R.GROUP}.get(resource.resource_type)
        if kind is None:
            return ErrorCode.NONE  # rejected by the handler
        name = CLUSTER_NAME if kind is _R.CLUSTER else resource.resource_name
        return ErrorCode.NONE if access.may(operation, kind, name) else CODES[kind]

    return check


def _config_row(row: Callable[..., Any]) -> Callable[[Any, ErrorCode], Any]:
    return lambda resource, code: row(
        error_code=code,
        error_message=code.meaning,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _no_elections(message: Any, code: ErrorCode, version: int) -> Message:
    results = [
        elect_leaders.ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                elect_leaders.PartitionResult(partition_id=index, error_code=code, error_message=code.meaning)
                for index in topic.partitions
            ],
        )
        for topic in message.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(
        error_code=code if version >= 1 else ErrorCode.NONE, replica_election_results=results
    )


def _no_moves_of_replicas(message: Any, code: ErrorCode, _: int) -> Message:
    return alter_replica_log_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_replica_log_dirs.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=partition_rows(
                    alter_replica_log_dirs.AlterReplicaLogDirPartitionResult, topic.partitions, code
                ),
            )
            for folder in message.dirs
            for topic in folder.topics
        ]
    )


def _no_quotas(message: Any, code: ErrorCode, _: int) -> Message:
    rows = [
        alter_client_quotas.EntryDataResult(error_code=code, error_message=code.meaning, entity=entry.entity)
        for entry in message.entries
    ]
    return alter_client_quotas.AlterClientQuotasResponse(entries=rows)


def _no_credentials(message: Any, code: ErrorCode, _: int) -> Message:
    users = dict.fromkeys(each.name for each in (*message.deletions, *message.upsertions))
    rows = [
        alter_user_scram_credentials.AlterUserScramCredentialsResult(
            user=user, error_code=code, error_message=code.meaning
        )
        for user in users
    ]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(results=rows)


def _no_acls_created(message: Any, code: ErrorCode, _: int) -> Message:
    rows = [create_acls.AclCreationResult(error_code=code, error_message=code.meaning) for _ in message.creations]
    return create_acls.CreateAclsResponse(results=rows)


def _no_acls_deleted(message: Any, code: ErrorCode, _: int) -> Message:
    rows = [delete_acls.DeleteAclsFilterResult(error_code=code, error_message=code.meaning) for _ in message.filters]
    return delete_acls.DeleteAclsResponse(filter_results=rows)


def _between_brokers(response: Callable[..., Message]) -> Rule:
    return Rule(needs=needs_cluster(_O.CLUSTER_ACTION), reject=reject_with_code(response))


ADMINISTRATION: Final[dict[int, Rule]] = {
    ApiKey.API_VERSIONS: OPEN,
    ApiKey.SASL_HANDSHAKE: OPEN,
    ApiKey.SASL_AUTHENTICATE: OPEN,
    ApiKey.DESCRIBE_CONFIGS: Rule(
        prepare=ByElement(
            "resources",
            "results",
            _configs(_O.DESCRIBE_CONFIGS),
            _config_row(describe_configs.DescribeConfigsResult),
        )
    ),
    ApiKey.ALTER_CONFIGS: Rule(
        prepare=ByElement(
            "resources",
            "responses",
            _configs(_O.ALTER_CONFIGS),
            _config_row(alter_configs.AlterConfigsResourceResponse),
        )
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Rule(
        prepare=ByElement(
            "resources",
            "responses",
            _configs(_O.ALTER_CONFIGS),
            _config_row(incremental_alter_configs.AlterConfigsResourceResponse),
        )
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Rule(needs=needs_cluster(_O.ALTER), reject=_no_moves_of_replicas),
    ApiKey.DESCRIBE_LOG_DIRS: Rule(
        needs=needs_cluster(_O.DESCRIBE), reject=reject_with_code(describe_log_dirs.DescribeLogDirsResponse)
    ),
    ApiKey.ELECT_LEADERS: Rule(needs=needs_cluster(_O.ALTER), reject=_no_elections),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Rule(
        needs=needs_cluster(_O.ALTER),
        reject=reject_with_code_and_text(alter_partition_reassignments.AlterPartitionReassignmentsResponse),
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Rule(
        needs=needs_cluster(_O.DESCRIBE),
        reject=reject_with_code_and_text(list_partition_reassignments.ListPartitionReassignmentsResponse),
    ),
    # Access control, users and quotas.
    ApiKey.DESCRIBE_ACLS: Rule(
        needs=needs_cluster(_O.DESCRIBE), reject=reject_with_code_and_text(describe_acls.DescribeAclsResponse)
    ),
    ApiKey.CREATE_ACLS: Rule(needs=needs_cluster(_O.ALTER), reject=_no_acls_created),
    ApiKey.DELETE_ACLS: Rule(needs=needs_cluster(_O.ALTER), reject=_no_acls_deleted),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Rule(
        needs=needs_cluster(_O.DESCRIBE_CONFIGS),
        reject=reject_with_code_and_text(describe_client_quotas.DescribeClientQuotasResponse),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Rule(needs=needs_cluster(_O.ALTER_CONFIGS), reject=_no_quotas),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Rule(
        needs=needs_cluster(_O.DESCRIBE),
        reject=reject_with_code_and_text(describe_user_scram_credentials.DescribeUserScramCredentialsResponse),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Rule(needs=needs_cluster(_O.ALTER), reject=_no_credentials),
    # Between brokers.
    ApiKey.ALTER_PARTITION: _between_brokers(alter_partition.AlterPartitionResponse),
    ApiKey.CONTROLLED_SHUTDOWN: _between_brokers(controlled_shutdown.ControlledShutdownResponse),
    ApiKey.PUSH_IMAGE: _between_brokers(push_image.PushImageResponse),
    ApiKey.FORWARD: _between_brokers(forward.ForwardResponse),
    # A peer that proves itself to be a broker has no other identity yet.
    ApiKey.AUTHENTICATE_BROKER: OPEN,
}
