"""TxnOffsetCommit: a group's offsets that become visible when the transaction commits."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, versions("2+"), ignorable] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Message):
    name: str = ""
    partitions: list[TxnOffsetCommitRequestPartition] = EMPTY


class TxnOffsetCommitRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, versions("3+")] = -1
    member_id: Annotated[str, versions("3+")] = ""
    group_instance_id: Annotated[str | None, versions("3+")] = None
    topics: list[TxnOffsetCommitRequestTopic] = EMPTY


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: str = ""
    partitions: list[TxnOffsetCommitResponsePartition] = EMPTY


class TxnOffsetCommitResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = EMPTY
