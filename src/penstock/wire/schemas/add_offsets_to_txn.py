"""AddOffsetsToTxn: a group's offsets join a transaction."""

from typing import ClassVar

from penstock.wire.types import Int16, Int32, Int64, Message, Schema


class AddOffsetsToTxnRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="3+")

    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


class AddOffsetsToTxnResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="3+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
