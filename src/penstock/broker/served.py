"""What this broker serves: one table of APIs, their versions and their handlers.

Rule: an advertised version is a served version, and what is not built is not advertised. Produce is advertised from 0
although Kafka 4 begins at 3: with a higher minimum old librdkafka believes that the broker knows no compression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from penstock.broker.request import Answer, Request
from penstock.wire.api_keys import ApiKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Handle = Callable[["Broker", Request, Answer], None]


class Served(NamedTuple):
    lowest: int
    highest: int
    handle: Handle


SERVED: dict[int, Served] = {
    ApiKey.PRODUCE: Served(0, 11, produce.handle),
    ApiKey.FETCH: Served(0, 12, fetch.handle),
    ApiKey.LIST_OFFSETS: Served(0, 7, list_offsets.handle),
    ApiKey.METADATA: Served(0, 12, metadata.handle),
    ApiKey.OFFSET_COMMIT: Served(0, 9, offset_commit.handle),
    ApiKey.OFFSET_FETCH: Served(0, 9, offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: Served(0, 4, find_coordinator.handle),
    ApiKey.JOIN_GROUP: Served(0, 9, join_group.handle),
    ApiKey.HEARTBEAT: Served(0, 4, heartbeat.handle),
    ApiKey.LEAVE_GROUP: Served(0, 5, leave_group.handle),
    ApiKey.SYNC_GROUP: Served(0, 5, sync_group.handle),
    ApiKey.DESCRIBE_GROUPS: Served(0, 5, describe_groups.handle),
    ApiKey.LIST_GROUPS: Served(0, 5, list_groups.handle),
    ApiKey.API_VERSIONS: Served(0, 3, api_versions.handle),
    ApiKey.CREATE_TOPICS: Served(0, 7, create_topics.handle),
    ApiKey.DELETE_TOPICS: Served(0, 6, delete_topics.handle),
    ApiKey.DELETE_RECORDS: Served(0, 2, delete_records.handle),
    ApiKey.INIT_PRODUCER_ID: Served(0, 4, init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4, offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, describe_configs.handle),
    ApiKey.ALTER_CONFIGS: Served(0, 2, alter_configs.handle),
    ApiKey.DESCRIBE_LOG_DIRS: Served(0, 4, describe_log_dirs.handle),
    ApiKey.CREATE_PARTITIONS: Served(0, 3, create_partitions.handle),
    ApiKey.DELETE_GROUPS: Served(0, 2, delete_groups.handle),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, incremental_alter_configs.handle),
    ApiKey.OFFSET_DELETE: Served(0, 0, offset_delete.handle),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 1, describe_cluster.handle),
}
