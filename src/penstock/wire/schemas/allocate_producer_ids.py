"""AllocateProducerIds: a broker gets a block of producer ids to give away."""

from typing import ClassVar

from penstock.wire.types import Int16, Int32, Int64, Message, Schema


class AllocateProducerIdsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class AllocateProducerIdsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
