"""FindCoordinator: who looks after a group: whoever leads its partition of the topic of committed offsets.

That topic is made when the first one asks. Transactions and share groups are not served: who looks for their
coordinator is answered at once with an error that clients do not retry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.request import Answer, Request
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.errors import ClusterError
from penstock.coordination.group_coordinator import OFFSETS_TOPIC, partition_for_group
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SEVERAL: Final = 4


class _Found(NamedTuple):
    code: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1

    text: str | None = None

    @property
    def reason(self) -> str | None:
        return self.text or (None if self.code == ErrorCode.NONE else self.code.meaning)


_NOBODY: Final = _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
# Clients take any other error for one that passes, and ask for ever.
_NO_TRANSACTIONS: Final = _Found(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text="this broker does not serve transactions"
)


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: FindCoordinatorRequest = request.message
    if message.key_type != _GROUP or OFFSETS_TOPIC in broker.cluster.image.topics:
        answer(_response(broker, request))
        return

    async def create() -> None:
        try:
            await broker.create_offsets_topic()
        except (ClusterError, LinkLost) as error:
            logger.info("a group finds no coordinator yet: %s", error)
        answer(_response(broker, request))

    broker.spawn(create(), lambda _: answer(_response(broker, request)))


def _response(broker: Broker, request: Request) -> FindCoordinatorResponse:
    message: FindCoordinatorRequest = request.message
    if request.version < _SEVERAL:
        found = _find(broker, message.key, message.key_type)
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
            for found in (_find(broker, key, message.key_type),)
        ]
    )


def _find(broker: Broker, key: str, key_type: int) -> _Found:
    topic = broker.cluster.image.topics.get(OFFSETS_TOPIC)
    if key_type == _TRANSACTION:
        return _NO_TRANSACTIONS
    if key_type != _GROUP:
        return _Found(ErrorCode.INVALID_REQUEST, text=f"there are no coordinators of type {key_type}")
    if topic is None:
        return _NOBODY
    leader = topic.partitions[partition_for_group(key, len(topic.partitions))].leader
    node = next((node for node in broker.live_brokers() if node.id == leader), None)
    return _NOBODY if node is None else _Found(ErrorCode.NONE, node.id, node.host, node.port)
