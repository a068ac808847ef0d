"""The APIs that this broker serves: versions and handlers, one row per API.

An advertised version is a served version; what is not built is not advertised. Produce is advertised from version 0
although Kafka 4 starts at 3: with a higher minimum, old librdkafka assumes that the broker supports no compression.

Requests that only the controller can serve may be sent to any broker of a cluster: it forwards them and passes on the
response. If the controller cannot be reached, the request is handled locally, which answers NOT_CONTROLLER, and the
client looks for the controller and retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.handlers import (
    api_versions,
    fetch,
    find_coordinator,
    groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from penstock.broker.request import Answer, Request
from penstock.cluster.broker_links import LinkLost
from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


Handler = Callable[["Broker", Request, Answer], None]


def _lazy(module: str) -> Handler:
    """The handler of a module that is imported with the first request for it: a start need not wait for it."""
    found: list[Handler] = []

    def handle(broker: Broker, request: Request, answer: Answer) -> None:
        if not found:
            found.append(import_module(f"penstock.broker.handlers.{module}").handle)
        found[0](broker, request, answer)

    return handle


class Api(NamedTuple):
    lowest: int
    highest: int
    handle: Handler


API_TABLE: dict[int, Api] = {
    ApiKey.PRODUCE: Api(0, 11, produce.handle),
    ApiKey.FETCH: Api(0, 17, fetch.handle),
    ApiKey.LIST_OFFSETS: Api(0, 7, list_offsets.handle),
    ApiKey.METADATA: Api(0, 12, metadata.handle),
    ApiKey.OFFSET_COMMIT: Api(0, 9, offset_commit.handle),
    ApiKey.OFFSET_FETCH: Api(0, 9, offset_fetch.handle),
    ApiKey.FIND_COORDINATOR: Api(0, 4, find_coordinator.handle),
    ApiKey.JOIN_GROUP: Api(0, 9, groups.handle_join_group),
    ApiKey.HEARTBEAT: Api(0, 4, groups.handle_heartbeat),
    ApiKey.LEAVE_GROUP: Api(0, 5, groups.handle_leave_group),
    ApiKey.SYNC_GROUP: Api(0, 5, groups.handle_sync_group),
    ApiKey.DESCRIBE_GROUPS: Api(0, 5, _lazy("describe_groups")),
    ApiKey.LIST_GROUPS: Api(0, 5, _lazy("list_groups")),
    ApiKey.API_VERSIONS: Api(0, 3, api_versions.handle),
    ApiKey.CREATE_TOPICS: Api(0, 7, _lazy("create_topics")),
    ApiKey.DELETE_TOPICS: Api(0, 6, _lazy("delete_topics")),
    ApiKey.DELETE_RECORDS: Api(0, 2, _lazy("delete_records")),
    ApiKey.INIT_PRODUCER_ID: Api(0, 4, _lazy("init_producer_id")),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(2, 4, _lazy("offset_for_leader_epoch")),
    ApiKey.DESCRIBE_CONFIGS: Api(1, 4, _lazy("describe_configs")),
    ApiKey.ALTER_CONFIGS: Api(0, 2, _lazy("alter_configs")),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(0, 2, _lazy("alter_replica_log_dirs")),
    ApiKey.DESCRIBE_LOG_DIRS: Api(0, 4, _lazy("describe_log_dirs")),
    ApiKey.CREATE_PARTITIONS: Api(0, 3, _lazy("create_partitions")),
    ApiKey.DELETE_GROUPS: Api(0, 2, _lazy("delete_groups")),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(0, 1, _lazy("incremental_alter_configs")),
    ApiKey.OFFSET_DELETE: Api(0, 0, _lazy("offset_delete")),
    ApiKey.DESCRIBE_CLUSTER: Api(0, 1, _lazy("describe_cluster")),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(0, 0, _lazy("describe_topic_partitions")),
    ApiKey.ELECT_LEADERS: Api(0, 2, _lazy("elect_leaders")),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(0, 1, _lazy("alter_partition_reassignments")),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(0, 0, _lazy("list_partition_reassignments")),
}


logger = logging.getLogger(__name__)

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    }
)
_TIMEOUT_MS: Final = 30_000


def forwarded(handle: Handler) -> Handler:
    """`handle` at the controller, wherever that is."""

    def forward(broker: Broker, request: Request, answer: Answer) -> None:
        if broker.membership.controller is not None:
            handle(broker, request, answer)
            return

        async def ask() -> None:
            try:
                message = await broker.membership.ask_controller(
                    request.api_key, request.version, request.message, _TIMEOUT_MS
                )
            except LinkLost as error:
                logger.warning("%s could not be forwarded: %s", ApiKey(request.api_key).name, error)
                handle(broker, request, answer)
            else:
                answer(message)

        broker.spawn(ask(), lambda _: handle(broker, request, answer))

    return forward
