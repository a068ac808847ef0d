"""OffsetDelete: removing committed offsets of topics that a group no longer reads."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = EMPTY


class OffsetDeleteRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0")

    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = EMPTY


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = EMPTY


class OffsetDeleteResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0")

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = EMPTY
