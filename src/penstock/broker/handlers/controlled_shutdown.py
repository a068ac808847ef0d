"""ControlledShutdown: the controller moves the leaderships of a broker that is about to stop."""

from __future__ import annotations

from penstock.broker.errors import api_error_of
from penstock.broker.request import Answer, Request, Services
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ControlledShutdownRequest = request.message
    controller = services.membership.controller
    if controller is None:
        answer(ControlledShutdownResponse(error_code=ErrorCode.NOT_CONTROLLER))
        return

    async def hand_over() -> None:
        remaining = await controller.shut_down(message.broker_id, message.broker_epoch)
        left = [RemainingPartition(topic_name=topic, partition_index=index) for topic, index in remaining]
        answer(ControlledShutdownResponse(remaining_partitions=left))

    services.spawn(hand_over(), lambda error: answer(ControlledShutdownResponse(error_code=api_error_of(error).code)))
