"""AlterPartition: a leader proposes a new set of in-sync replicas.

From version 2 topics go by id; from 3 each replica comes with the epoch of its broker.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Schema,
    Uuid,
    ignorable,
    versions,
)


class BrokerState(Message):
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


class PartitionData(Message):
    partition_index: Int32 = 0
    leader_epoch: Int32 = 0
    new_isr: Annotated[list[Int32], versions("0-2")] = EMPTY
    new_isr_with_epochs: Annotated[list[BrokerState], versions("3+")] = EMPTY
    leader_recovery_state: Annotated[Int8, versions("1+")] = 0
    partition_epoch: Int32 = 0


class TopicData(Message):
    topic_name: Annotated[str, versions("0-1"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("2+"), ignorable] = NO_UUID
    partitions: list[PartitionData] = EMPTY


class AlterPartitionRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="0+")

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    topics: list[TopicData] = EMPTY


class PartitionDataResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = EMPTY
    leader_recovery_state: Annotated[Int8, versions("1+"), ignorable] = 0
    partition_epoch: Int32 = 0


class TopicDataResult(Message):
    topic_name: Annotated[str, versions("0-1"), ignorable] = ""
    topic_id: Annotated[Uuid, versions("2+"), ignorable] = NO_UUID
    partitions: list[PartitionDataResult] = EMPTY


class AlterPartitionResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicDataResult] = EMPTY
