"""InitProducerId: an id and epoch for an idempotent or transactional producer.

Without a transactional id: a producer that sends its id and epoch gets the next epoch, any other a new id. With one,
the transaction coordinator decides; it fences the producer that had the id before.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.request import Answer, Request, Services
from penstock.coordination.transactions.transaction import LAST_EPOCH
from penstock.coordination.transactions.transaction_shard import Init, Initialized
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

_FIRST_VERSION_WITH_FENCED: Final = 4


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: InitProducerIdRequest = request.message
    if message.transactional_id is not None:
        _init_transactional(services, request, message.transactional_id, answer)
        return
    if message.producer_id >= 0 and 0 <= message.producer_epoch < LAST_EPOCH:
        answer(InitProducerIdResponse(producer_id=message.producer_id, producer_epoch=message.producer_epoch + 1))
        return

    async def allocate() -> None:
        producer_id = await services.cluster.allocate_producer_id()
        answer(InitProducerIdResponse(producer_id=producer_id, producer_epoch=0))

    services.spawn(
        allocate(), lambda error: answer(InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    )


def _init_transactional(services: Services, request: Request, transactional_id: str, answer: Answer) -> None:
    message: InitProducerIdRequest = request.message
    if not transactional_id:
        answer(InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST))
        return

    def done(result: Initialized) -> None:
        code = result.code
        if code is ErrorCode.PRODUCER_FENCED and request.version < _FIRST_VERSION_WITH_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        answer(
            InitProducerIdResponse(
                error_code=code,
                producer_id=result.producer_id,
                producer_epoch=result.epoch,
                ongoing_txn_producer_id=result.ongoing_producer_id,
                ongoing_txn_producer_epoch=result.ongoing_epoch,
            )
        )

    init = Init(
        transactional_id,
        message.transaction_timeout_ms,
        message.producer_id,
        message.producer_epoch,
        message.enable2_pc,
        message.keep_prepared_txn,
    )
    services.transactions.init(init, done)
