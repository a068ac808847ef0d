"""OffsetForLeaderEpoch: where a leader epoch ended, from which a reader learns how far its log still
agrees.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class OffsetForLeaderPartition(Message):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, versions("2+"), ignorable] = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Message):
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = EMPTY


class OffsetForLeaderEpochRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    replica_id: Annotated[Int32, versions("3+"), ignorable] = -2
    topics: list[OffsetForLeaderTopic] = EMPTY


class EpochEndOffset(Message):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Annotated[Int32, versions("1+"), ignorable] = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: str = ""
    partitions: list[EpochEndOffset] = EMPTY


class OffsetForLeaderEpochResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    throttle_time_ms: Annotated[Int32, versions("2+"), ignorable] = 0
    topics: list[OffsetForLeaderTopicResult] = EMPTY
