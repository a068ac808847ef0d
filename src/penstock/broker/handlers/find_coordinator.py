"""FindCoordinator: a group's coordinator is the leader of its partition of __consumer_offsets.

The topic is created by the first request. Transactions and share groups are not supported: their requests get an error
that clients do not retry.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.errors import ClusterError
from penstock.coordination.group_coordinator import partition_for_group
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.schemas.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

logger = logging.getLogger(__name__)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_VERSION_WITH_KEYS: Final = 4


class _Found(NamedTuple):
    code: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1

    text: str | None = None

    @property
    def reason(self) -> str | None:
        return self.text or (None if self.code == ErrorCode.NONE else self.code.meaning)


_NOT_AVAILABLE: Final = _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
# Clients retry any other error forever.
_NO_TRANSACTIONS: Final = _Found(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text="transactions are not supported by this broker"
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: FindCoordinatorRequest = request.message
    if message.key_type != _GROUP or OFFSETS_TOPIC in services.cluster.image.topics:
        answer(_response(services, request))
        return

    async def create() -> None:
        try:
            await services.topic_creation.create_offsets_topic()
        except (ClusterError, LinkLost) as error:
            logger.info("coordinator not available: %s", error)
        answer(_response(services, request))

    services.spawn(create(), lambda _: answer(_response(services, request)))


def _response(services: Services, request: Request) -> FindCoordinatorResponse:
    message: FindCoordinatorRequest = request.message
    if request.version < _FIRST_VERSION_WITH_KEYS:
        found = _find(services, message.key, message.key_type)
        return FindCoordinatorResponse(
            error_code=found.code,
            error_message=found.reason,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=found.node_id,
                host=found.host,
                port=found.port,
                error_code=found.code,
                error_message=found.reason,
            )
            for key in message.coordinator_keys
            for found in (_find(services, key, message.key_type),)
        ]
    )


def _find(services: Services, key: str, key_type: int) -> _Found:
    topic = services.cluster.image.topics.get(OFFSETS_TOPIC)
    if key_type == _TRANSACTION:
        return _NO_TRANSACTIONS
    if key_type != _GROUP:
        return _Found(
            ErrorCode.INVALID_REQUEST, text=f"coordinators of type {key_type} are not supported: expected 0 (group)"
        )
    if topic is None:
        return _NOT_AVAILABLE
    leader = topic.partitions[partition_for_group(key, len(topic.partitions))].leader
    node = next((node for node in services.live_brokers() if node.id == leader), None)
    return _NOT_AVAILABLE if node is None else _Found(ErrorCode.NONE, node.id, node.host, node.port)
