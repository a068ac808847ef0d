"""InitProducerId: allocates a unique id for an idempotent producer.

A producer that sends its id and epoch gets the next epoch. Transactions are not supported, so a transactional id is
rejected; an empty one is an invalid request.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.request import Answer, Request, Services
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_LAST_EPOCH: Final = 2**15 - 2


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: InitProducerIdRequest = request.message
    if message.transactional_id == "":
        answer(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return
    if message.transactional_id is not None:
        answer(InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        return
    if message.producer_id >= 0 and 0 <= message.producer_epoch < _LAST_EPOCH:
        answer(InitProducerIdResponse(producer_id=message.producer_id, producer_epoch=message.producer_epoch + 1))
        return

    async def allocate() -> None:
        producer_id = await services.cluster.allocate_producer_id()
        answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    services.spawn(
        allocate(), lambda error: answer(InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    )
