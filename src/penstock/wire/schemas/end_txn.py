"""EndTxn: commit or abort. From version 5 the answer carries the next epoch to use."""

from typing import Annotated, ClassVar

from penstock.wire.types import Int16, Int32, Int64, Message, Schema, ignorable, versions


class EndTxnRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


class EndTxnResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, versions("5+"), ignorable] = -1
    producer_epoch: Annotated[Int16, versions("5+"), ignorable] = -1
