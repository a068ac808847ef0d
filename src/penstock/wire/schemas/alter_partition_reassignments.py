"""AlterPartitionReassignments: starting or, with null replicas, cancelling moves of partitions between
brokers.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, versions


class ReassignablePartition(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Message):
    name: str = ""
    partitions: list[ReassignablePartition] = EMPTY


class AlterPartitionReassignmentsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[bool, versions("1+")] = True
    topics: list[ReassignableTopic] = EMPTY


class ReassignablePartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class ReassignableTopicResponse(Message):
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = EMPTY


class AlterPartitionReassignmentsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="0+")

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, versions("1+"), ignorable] = True
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = EMPTY
