"""OffsetCommit: a group stores how far it has read.

Version 0 went to the registry instead of the group's coordinator; the retention time was the client's
choice in 2 to 4; from 10 topics go by id.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int16,
    Int32,
    Int64,
    Message,
    Schema,
    Uuid,
    ignorable,
    versions,
)


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, versions("6+"), ignorable] = -1
    commit_timestamp: Annotated[Int64, versions("1")] = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[str, versions("0-9"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    partitions: list[OffsetCommitRequestPartition] = EMPTY


class OffsetCommitRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-10", flexible="8+")

    group_id: str = ""
    generation_id_or_member_epoch: Annotated[Int32, versions("1+"), ignorable] = -1
    member_id: Annotated[str, versions("1+"), ignorable] = ""
    group_instance_id: Annotated[str | None, versions("7+")] = None
    retention_time_ms: Annotated[Int64, versions("2-4"), ignorable] = -1
    topics: list[OffsetCommitRequestTopic] = EMPTY


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[str, versions("0-9"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    partitions: list[OffsetCommitResponsePartition] = EMPTY


class OffsetCommitResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-10", flexible="8+")

    throttle_time_ms: Annotated[Int32, versions("3+"), ignorable] = 0
    topics: list[OffsetCommitResponseTopic] = EMPTY
