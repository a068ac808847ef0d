"""FindCoordinator: the leader of a group's partition of __consumer_offsets, of a transactional id's partition of
__transaction_state.

The topics are created by the first request. Share groups are not supported: their requests get an error that clients do
not retry.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from penstock.broker.request import Answer, Request, Services
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.errors import ClusterError
from penstock.coordination.coordinator_runtime import partition_for_key
from penstock.wire.protocol import OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, ErrorCode
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
_TOPICS: Final = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_STATE_TOPIC}


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: FindCoordinatorRequest = request.message
    topic = _TOPICS.get(message.key_type)
    if topic is None or topic in services.cluster.image.topics:
        answer(_response(services, request))
        return

    async def create() -> None:
        try:
            await services.topic_creation.create_internal_topic(topic)
        except (ClusterError, LinkLost) as error:
            logger.info("coordinator not available: topic=%s error=%s", topic, error)
        answer(_response(services, request))

    services.spawn(create(), lambda _: answer(_response(services, request)))


def _response(services: Services, request: Request) -> FindCoordinatorResponse:
    message: FindCoordinatorRequest = request.message
    if request.version < _FIRST_VERSION_WITH_KEYS:
        found = _find(services, request, message.key)
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
            for found in (_find(services, request, key),)
        ]
    )


def _find(services: Services, request: Request, key: str) -> _Found:
    key_type: int = request.message.key_type
    if key_type not in _TOPICS:
        return _Found(
            ErrorCode.INVALID_REQUEST,
            text=f"coordinators of type {key_type} are not supported: expected 0 (group) or 1 (transaction)",
        )
    if key_type == _TRANSACTION and not key:
        return _Found(ErrorCode.INVALID_REQUEST, text="the transactional id is empty")
    topic = services.cluster.image.topics.get(_TOPICS[key_type])
    if topic is None:
        return _NOT_AVAILABLE
    leader = topic.partitions[partition_for_key(key, len(topic.partitions))].leader
    node = next((node for node in services.live_brokers(request.session.listener) if node.id == leader), None)
    return _NOT_AVAILABLE if node is None else _Found(ErrorCode.NONE, node.id, node.host, node.port)
