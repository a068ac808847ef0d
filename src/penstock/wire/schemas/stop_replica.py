"""StopReplica: the controller tells a broker to stop, and perhaps delete, replicas.

Three shapes: flat partitions in version 0, partition indexes by topic in 1 and 2, states by topic from 3.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class StopReplicaPartitionV0(Message):
    topic_name: str = ""
    partition_index: Int32 = 0


class StopReplicaTopicV1(Message):
    name: str = ""
    partition_indexes: list[Int32] = EMPTY


class StopReplicaPartitionState(Message):
    partition_index: Int32 = 0
    leader_epoch: Int32 = -1
    delete_partition: bool = False


class StopReplicaTopicState(Message):
    topic_name: str = ""
    partition_states: list[StopReplicaPartitionState] = EMPTY


class StopReplicaRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="2+")

    controller_id: Int32 = 0
    is_kraft_controller: Annotated[bool, versions("4+")] = False
    controller_epoch: Int32 = 0
    broker_epoch: Annotated[Int64, versions("1+"), ignorable] = -1
    delete_partitions: Annotated[bool, versions("0-2")] = False
    ungrouped_partitions: Annotated[list[StopReplicaPartitionV0], versions("0")] = EMPTY
    topics: Annotated[list[StopReplicaTopicV1], versions("1-2")] = EMPTY
    topic_states: Annotated[list[StopReplicaTopicState], versions("3+")] = EMPTY


class StopReplicaPartitionError(Message):
    topic_name: str = ""
    partition_index: Int32 = 0
    error_code: Int16 = 0


class StopReplicaResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="2+")

    error_code: Int16 = 0
    partition_errors: list[StopReplicaPartitionError] = EMPTY
