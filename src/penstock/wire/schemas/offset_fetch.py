"""OffsetFetch: the offsets a group has committed.

Up to version 7 for a single group at the top level, from 8 for several in `groups`; from 10 topics go by
id.
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
    nullable,
    versions,
)


class OffsetFetchRequestTopic(Message):
    name: str = ""
    partition_indexes: list[Int32] = EMPTY


class OffsetFetchRequestTopics(Message):
    name: Annotated[str, versions("8-9"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    partition_indexes: list[Int32] = EMPTY


class OffsetFetchRequestGroup(Message):
    group_id: str = ""
    member_id: Annotated[str | None, versions("9+"), ignorable] = None
    member_epoch: Annotated[Int32, versions("9+"), ignorable] = -1
    topics: list[OffsetFetchRequestTopics] | None = EMPTY


class OffsetFetchRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-10", flexible="6+")

    group_id: Annotated[str, versions("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, versions("0-7"), nullable("2-7")] = EMPTY
    groups: Annotated[list[OffsetFetchRequestGroup], versions("8+")] = EMPTY
    require_stable: Annotated[bool, versions("7+")] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, versions("5-7"), ignorable] = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: str = ""
    partitions: list[OffsetFetchResponsePartition] = EMPTY


class OffsetFetchResponsePartitions(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: str | None = ""
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[str, versions("8-9"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("10+"), ignorable] = NO_UUID
    partitions: list[OffsetFetchResponsePartitions] = EMPTY


class OffsetFetchResponseGroup(Message):
    group_id: str = ""
    topics: list[OffsetFetchResponseTopics] = EMPTY
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-10", flexible="6+")

    throttle_time_ms: Annotated[Int32, versions("3+"), ignorable] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], versions("0-7")] = EMPTY
    error_code: Annotated[Int16, versions("2-7"), ignorable] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], versions("8+")] = EMPTY
