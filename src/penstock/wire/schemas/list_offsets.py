"""ListOffsets: the offset that belongs to a timestamp, or to one of the negative numbers that stand for
both ends.

Version 0 answers with a list of offsets, later ones with a single offset and its timestamp.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Int64, Message, Schema, ignorable, versions


class ListOffsetsPartition(Message):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, versions("4+"), ignorable] = -1
    timestamp: Int64 = 0
    max_num_offsets: Annotated[Int32, versions("0")] = 1


class ListOffsetsTopic(Message):
    name: str = ""
    partitions: list[ListOffsetsPartition] = EMPTY


class ListOffsetsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-11", flexible="6+")

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, versions("2+")] = 0
    topics: list[ListOffsetsTopic] = EMPTY
    timeout_ms: Annotated[Int32, versions("10+"), ignorable] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    old_style_offsets: Annotated[list[Int64], versions("0")] = EMPTY
    timestamp: Annotated[Int64, versions("1+")] = -1
    offset: Annotated[Int64, versions("1+")] = -1
    leader_epoch: Annotated[Int32, versions("4+")] = -1


class ListOffsetsTopicResponse(Message):
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = EMPTY


class ListOffsetsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-11", flexible="6+")

    throttle_time_ms: Annotated[Int32, versions("2+"), ignorable] = 0
    topics: list[ListOffsetsTopicResponse] = EMPTY
