"""InitProducerId: an id and epoch for an idempotent or transactional producer; earlier holders are fenced
off.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import Int16, Int32, Int64, Message, Schema, versions


class InitProducerIdRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="2+")

    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, versions("3+")] = -1
    producer_epoch: Annotated[Int16, versions("3+")] = -1
    enable2_pc: Annotated[bool, versions("6+")] = False
    keep_prepared_txn: Annotated[bool, versions("6+")] = False


class InitProducerIdResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="2+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, versions("6+")] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, versions("6+")] = -1
