"""FindCoordinator: who looks after a group. The topic of committed offsets is made when the first one asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.request import Answer, Request
from penstock.coordination.service import OFFSETS_TOPIC
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_GROUP: Final = 0


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: FindCoordinatorRequest = request.message
    if message.key_type != _GROUP:
        answer(_coordinators(broker, request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    if OFFSETS_TOPIC in broker.cluster.image.topics:
        answer(_coordinators(broker, request, ErrorCode.NONE))
        return

    async def create() -> None:
        await broker.create_offsets_topic()
        answer(_coordinators(broker, request, ErrorCode.NONE))

    broker.spawn(create(), lambda error: answer(_coordinators(broker, request, ErrorCode.COORDINATOR_NOT_AVAILABLE)))


def _coordinators(broker: Broker, request: Request, code: ErrorCode) -> FindCoordinatorResponse:
    node = broker.live_brokers()[0]
    good = code == ErrorCode.NONE
    node_id, host, port = (node.id, node.host, node.port) if good else (-1, "", -1)
    reason = None if good else code.meaning
    if request.version < 4:
        return FindCoordinatorResponse(error_code=code, error_message=reason, node_id=node_id, host=host, port=port)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=reason)
            for key in request.message.coordinator_keys
        ]
    )
