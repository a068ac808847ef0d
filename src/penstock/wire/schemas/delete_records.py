"""DeleteRecords: moving the start of a partition forward; -1 means up to the high watermark."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema


class DeleteRecordsPartition(Message):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Message):
    name: str = ""
    partitions: list[DeleteRecordsPartition] = EMPTY


class DeleteRecordsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    topics: list[DeleteRecordsTopic] = EMPTY
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = EMPTY


class DeleteRecordsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = EMPTY
