"""What this broker serves: one table of APIs, their versions and their handlers.

Rule: an advertised version is a served version, and what is not built is not advertised. Produce is advertised from 0
although Kafka 4 begins at 3: with a higher minimum old librdkafka believes that the broker knows no compression.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.handlers import (
    api_versions,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
    sync_group,
)
from penstock.broker.request import Answer, Request
from penstock.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Handle = Callable[["Broker", Request, Answer], None]


def _when_used(module: str) -> Handle:
    """The handler of a module that is imported with the first request for it: a start need not wait for it."""
    found: list[Handle] = []

    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        if not found:
            found.append(import_module(f"penstock.broker.handlers.{module}").handle)
        found[0](broker, request, answer)

    return handle


class Served(NamedTuple):
    lowest: int
    highest: int
    handle: Handle


SERVED: dict[int, Served] = {
    ApiKey.PRODUCE: Served(0, 11, produce.handle),
    ApiKey.FETCH: Served(0, 17, fetch.handle),
    ApiKey.LIST_OFFSETS: Served(0, 7, list_offsets.handle),
    ApiKey.METADATA: Served(0, 12, metadata.handle),
    ApiKey.OFFSET_COMMIT: Served(0, 9, offset_commit.handle),
    ApiKey.OFFSET_FETCH: Served(0, 9, offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: Served(0, 4, find_coordinator.handle),
    ApiKey.JOIN_GROUP: Served(0, 9, join_group.handle),
    ApiKey.HEARTBEAT: Served(0, 4, heartbeat.handle),
    ApiKey.LEAVE_GROUP: Served(0, 5, leave_group.handle),
    ApiKey.SYNC_GROUP: Served(0, 5, sync_group.handle),
    ApiKey.DESCRIBE_GROUPS: Served(0, 5, _when_used("describe_groups")),
    ApiKey.LIST_GROUPS: Served(0, 5, _when_used("list_groups")),
    ApiKey.API_VERSIONS: Served(0, 3, api_versions.handle),
    ApiKey.CREATE_TOPICS: Served(0, 7, _when_used("create_topics")),
    ApiKey.DELETE_TOPICS: Served(0, 6, _when_used("delete_topics")),
    ApiKey.DELETE_RECORDS: Served(0, 2, _when_used("delete_records")),
    ApiKey.INIT_PRODUCER_ID: Served(0, 4, _when_used("init_producer_id")),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, _when_used("offset_for_leader_epoch")),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, _when_used("describe_configs")),
    ApiKey.ALTER_CONFIGS: Served(0, 2, _when_used("alter_configs")),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Served(0, 2, _when_used("alter_replica_log_dirs")),
    ApiKey.DESCRIBE_LOG_DIRS: Served(0, 4, _when_used("describe_log_dirs")),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, _when_used("create_partitions")),
    ApiKey.DELETE_GROUPS: Served(0, 2, _when_used("delete_groups")),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, _when_used("incremental_alter_configs")),
    ApiKey.OFFSET_DELETE: Served(0, 0, _when_used("offset_delete")),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 1, _when_used("describe_cluster")),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0, _when_used("describe_topic_partitions")),
    ApiKey.ELECT_LEADERS: Served(0, 2, _when_used("elect_leaders")),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(0, 1, _when_used("alter_partition_reassignments")),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(0, 0, _when_used("list_partition_reassignments")),
}
