"""The APIs that this broker serves, one row per API: versions, handler, and how the router treats its requests.

An advertised version is a served version; what is not built is not advertised. Produce is advertised from version 0
although Kafka 4 starts at 3: with a higher minimum, old librdkafka assumes that the broker supports no compression.

Requests that only the controller can serve may be sent to any broker of a cluster: the router forwards them and passes
on the response.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from penstock.broker import broker_only
from penstock.broker.broker_only import Restriction
from penstock.broker.handlers import (
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from penstock.broker.handlers.groups import by_group
from penstock.broker.request import LONG_BYTES, MAX_CHANGES, MAX_ELEMENTS, Handler, Split
from penstock.coordination.shard import GroupCoordinatorShard
from penstock.wire.protocol import ApiKey

PRIVATE: Final = 30_000
"""APIs from this key on are used between Penstock brokers and never advertised."""


class ServedBy(Enum):
    ANY = "any broker"
    CONTROLLER = "the controller; other brokers of a cluster forward to it"
    IN_CLUSTER = "a broker in a cluster; unknown to one that stands alone"


class Counts(Enum):
    """How the error codes of responses are counted."""

    ERRORS = "every code in the response"
    PRODUCE = "every code, and requests, failures and rejected bytes by topic"
    BY_HANDLER = "by the handler itself"


class Api(NamedTuple):
    min_version: int
    max_version: int
    handler: Handler | str
    """A name ("module.function" in `handlers`) is imported with the first request, so that the broker starts faster."""
    by: ServedBy = ServedBy.ANY
    splits: tuple[Split, ...] = ()
    is_short: bool | Callable[[Any], bool] = False
    """Whether a response is encoded at once, without slices, unless the request was long."""
    max_elements: int = MAX_ELEMENTS
    while_joining: bool = False
    """Whether it is served before the first image of the cluster."""
    counts: Counts = Counts.ERRORS
    restricted: Restriction | None = None
    """What of it only brokers of this cluster may ask for; None if nothing. Every private API is restricted."""


_BY_PARTITION: Final = Split(("topics", "partitions"), ("topics", "partitions"))
# A producer chooses how long it waits for replicas: other long requests do not wait with it.
_BY_RECORDS: Final = Split(
    ("topic_data", "partition_data"), ("responses", "partition_responses"), min_bytes=LONG_BYTES, is_awaited=False
)

API_TABLE: Final[dict[int, Api]] = {
    ApiKey.PRODUCE: Api(0, 12, produce.handle, splits=(_BY_RECORDS,), is_short=True, counts=Counts.PRODUCE),
    # A fetch asks one broker for what it leads.
    ApiKey.FETCH: Api(
        0,
        17,
        fetch.handle,
        is_short=fetch.has_few_partitions,
        max_elements=50_000,
        counts=Counts.BY_HANDLER,
        restricted=broker_only.fetched_by_replicas,
    ),
    # Each partition may read an index and a batch.
    ApiKey.LIST_OFFSETS: Api(
        0, 7, list_offsets.handle, splits=(_BY_PARTITION._replace(max_elements=100),), is_short=True
    ),
    ApiKey.METADATA: Api(
        0, 12, metadata.handle, splits=(Split(("topics",), ("topics",), identity=metadata.identity_of),)
    ),
    ApiKey.OFFSET_COMMIT: Api(0, 9, offset_commit.handle, splits=(_BY_PARTITION,), is_short=True),
    ApiKey.OFFSET_FETCH: Api(0, 9, offset_fetch.handle, splits=offset_fetch.SPLITS),
    ApiKey.FIND_COORDINATOR: Api(
        0, 5, find_coordinator.handle, splits=(Split(("coordinator_keys",), ("coordinators",)),)
    ),
    ApiKey.JOIN_GROUP: Api(0, 9, by_group(GroupCoordinatorShard.handle_join_group)),
    ApiKey.HEARTBEAT: Api(0, 4, by_group(GroupCoordinatorShard.handle_heartbeat), is_short=True),
    ApiKey.LEAVE_GROUP: Api(
        0, 5, by_group(GroupCoordinatorShard.handle_leave_group), splits=(Split(("members",), ("members",), 100),)
    ),
    ApiKey.SYNC_GROUP: Api(0, 5, by_group(GroupCoordinatorShard.handle_sync_group), is_short=True),
    ApiKey.DESCRIBE_GROUPS: Api(0, 5, "describe_groups.handle", splits=(Split(("groups",), ("groups",), 100),)),
    ApiKey.LIST_GROUPS: Api(0, 5, "list_groups.handle"),
    ApiKey.API_VERSIONS: Api(0, 4, "api_versions.handle", is_short=True, while_joining=True),
    ApiKey.SASL_HANDSHAKE: Api(0, 1, "sasl.handle_handshake", is_short=True, while_joining=True),
    ApiKey.SASL_AUTHENTICATE: Api(0, 2, "sasl.handle_authenticate", is_short=True, while_joining=True),
    # Each change of metadata is kept in several objects until all are made.
    ApiKey.CREATE_TOPICS: Api(0, 7, "create_topics.handle", ServedBy.CONTROLLER, max_elements=50_000),
    ApiKey.DELETE_TOPICS: Api(0, 6, "delete_topics.handle", ServedBy.CONTROLLER, max_elements=MAX_CHANGES),
    ApiKey.DELETE_RECORDS: Api(0, 2, "delete_records.handle", splits=(_BY_PARTITION,)),
    ApiKey.INIT_PRODUCER_ID: Api(0, 6, "init_producer_id.handle", is_short=True),
    # The partitions of a transaction are not split: all or none are promised.
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(
        0,
        5,
        "transactions.handle_add_partitions",
        splits=(Split(("transactions",), ("results_by_transaction",), 50, since=4),),
        is_short=True,
        max_elements=10_000,
        restricted=broker_only.added_by_brokers,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(0, 4, "transactions.handle_add_offsets", is_short=True),
    ApiKey.END_TXN: Api(0, 5, "transactions.handle_end", is_short=True),
    ApiKey.WRITE_TXN_MARKERS: Api(
        1,
        2,
        "write_txn_markers.handle",
        splits=(Split(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"), 50),),
        is_short=True,
        restricted=broker_only.committing_markers,
    ),
    ApiKey.TXN_OFFSET_COMMIT: Api(0, 5, "txn_offset_commit.handle", is_short=True, max_elements=10_000),
    ApiKey.DESCRIBE_PRODUCERS: Api(0, 0, "transactions.handle_describe_producers"),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(0, 0, "transactions.handle_describe"),
    ApiKey.LIST_TRANSACTIONS: Api(0, 2, "transactions.handle_list"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        2,
        4,
        "offset_for_leader_epoch.handle",
        splits=(_BY_PARTITION,),
        restricted=broker_only.epochs_for_replicas,
    ),
    # Each resource has sixty settings.
    ApiKey.DESCRIBE_CONFIGS: Api(1, 4, "configs.handle_describe", splits=(Split(("resources",), ("results",), 20),)),
    ApiKey.ALTER_CONFIGS: Api(0, 2, "configs.handle_alter", ServedBy.CONTROLLER, max_elements=MAX_CHANGES),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(0, 2, "alter_replica_log_dirs.handle"),
    ApiKey.DESCRIBE_LOG_DIRS: Api(0, 4, "describe_log_dirs.handle"),
    ApiKey.CREATE_PARTITIONS: Api(0, 3, "create_partitions.handle", ServedBy.CONTROLLER, max_elements=MAX_CHANGES),
    ApiKey.DELETE_GROUPS: Api(0, 2, "delete_groups.handle", splits=(Split(("groups_names",), ("results",), 100),)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(
        0, 1, "configs.handle_incremental_alter", ServedBy.CONTROLLER, max_elements=MAX_CHANGES
    ),
    ApiKey.OFFSET_DELETE: Api(0, 0, by_group(GroupCoordinatorShard.handle_offset_delete), splits=(_BY_PARTITION,)),
    ApiKey.DESCRIBE_ACLS: Api(1, 3, "acls.handle_describe"),
    ApiKey.CREATE_ACLS: Api(1, 3, "acls.handle_create", ServedBy.CONTROLLER, max_elements=10_000),
    ApiKey.DELETE_ACLS: Api(1, 3, "acls.handle_delete", ServedBy.CONTROLLER, max_elements=10_000),
    ApiKey.DESCRIBE_CLUSTER: Api(0, 1, "describe_cluster.handle"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(0, 0, "describe_topic_partitions.handle"),
    ApiKey.ELECT_LEADERS: Api(0, 2, "elect_leaders.handle", ServedBy.CONTROLLER),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(0, 1, "alter_partition_reassignments.handle", ServedBy.CONTROLLER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(0, 0, "list_partition_reassignments.handle"),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(0, 1, "client_quotas.handle_describe"),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(0, 1, "client_quotas.handle_alter", ServedBy.CONTROLLER, max_elements=MAX_CHANGES),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(0, 0, "scram_credentials.handle_describe", max_elements=10_000),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(
        0, 0, "scram_credentials.handle_alter", ServedBy.CONTROLLER, max_elements=10_000
    ),
    ApiKey.ALTER_PARTITION: Api(3, 3, "alter_partition.handle", ServedBy.IN_CLUSTER, restricted=broker_only.everything),
    ApiKey.CONTROLLED_SHUTDOWN: Api(
        3, 3, "controlled_shutdown.handle", ServedBy.IN_CLUSTER, restricted=broker_only.everything
    ),
    ApiKey.PUSH_IMAGE: Api(
        0, 0, "push_image.handle", ServedBy.IN_CLUSTER, while_joining=True, restricted=broker_only.everything
    ),
    # The one private API for peers that are not yet known to be brokers.
    ApiKey.AUTHENTICATE_BROKER: Api(0, 0, "authenticate_broker.handle", is_short=True, while_joining=True),
    ApiKey.FORWARD: Api(0, 0, "forward.handle", ServedBy.IN_CLUSTER, restricted=broker_only.everything),
}


def apis_of(*, in_cluster: bool) -> dict[int, Api]:
    """The rows that a broker serves: all, without those of a cluster if it stands alone."""
    return {key: api for key, api in API_TABLE.items() if in_cluster or api.by is not ServedBy.IN_CLUSTER}
