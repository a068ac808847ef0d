"""LeaderAndIsr: the controller tells a broker which partitions it leads or follows.

Partitions lie flat up to version 1 and below their topic from 2.
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


class LeaderAndIsrPartitionState(Message):
    topic_name: Annotated[str, versions("0-1"), ignorable] = ""
    partition_index: Int32 = 0
    controller_epoch: Int32 = 0
    leader: Int32 = 0
    leader_epoch: Int32 = 0
    isr: list[Int32] = EMPTY
    partition_epoch: Int32 = 0
    replicas: list[Int32] = EMPTY
    adding_replicas: Annotated[list[Int32], versions("3+"), ignorable] = EMPTY
    removing_replicas: Annotated[list[Int32], versions("3+"), ignorable] = EMPTY
    is_new: Annotated[bool, versions("1+"), ignorable] = False
    leader_recovery_state: Annotated[Int8, versions("6+")] = 0


class LeaderAndIsrTopicState(Message):
    topic_name: str = ""
    topic_id: Annotated[Uuid, versions("5+"), ignorable] = NO_UUID
    partition_states: list[LeaderAndIsrPartitionState] = EMPTY


class LeaderAndIsrLiveLeader(Message):
    broker_id: Int32 = 0
    host_name: str = ""
    port: Int32 = 0


class LeaderAndIsrRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-7", flexible="4+")

    controller_id: Int32 = 0
    is_kraft_controller: Annotated[bool, versions("7+")] = False
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, versions("2+"), ignorable] = -1
    type: Annotated[Int8, versions("5+")] = 0
    ungrouped_partition_states: Annotated[list[LeaderAndIsrPartitionState], versions("0-1")] = EMPTY
    topic_states: Annotated[list[LeaderAndIsrTopicState], versions("2+")] = EMPTY
    live_leaders: list[LeaderAndIsrLiveLeader] = EMPTY


class LeaderAndIsrPartitionError(Message):
    topic_name: Annotated[str, versions("0-4"), ignorable] = ""
    partition_index: Int32 = 0
    error_code: Int16 = 0


class LeaderAndIsrTopicError(Message):
    topic_id: Uuid = NO_UUID
    partition_errors: list[LeaderAndIsrPartitionError] = EMPTY


class LeaderAndIsrResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-7", flexible="4+")

    error_code: Int16 = 0
    partition_errors: Annotated[list[LeaderAndIsrPartitionError], versions("0-4")] = EMPTY
    topics: Annotated[list[LeaderAndIsrTopicError], versions("5+")] = EMPTY
