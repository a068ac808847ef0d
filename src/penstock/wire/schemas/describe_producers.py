"""DescribeProducers: the producers whose state a partition holds."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema


class TopicRequest(Message):
    name: str = ""
    partition_indexes: list[Int32] = EMPTY


class DescribeProducersRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    topics: list[TopicRequest] = EMPTY


class ProducerState(Message):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = EMPTY


class TopicResponse(Message):
    name: str = ""
    partitions: list[PartitionResponse] = EMPTY


class DescribeProducersResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = EMPTY
