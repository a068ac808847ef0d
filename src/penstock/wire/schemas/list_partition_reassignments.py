"""ListPartitionReassignments: the moves of partitions that are under way."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class ListPartitionReassignmentsTopics(Message):
    name: str = ""
    partition_indexes: list[Int32] = EMPTY


class ListPartitionReassignmentsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] = EMPTY
    adding_replicas: list[Int32] = EMPTY
    removing_replicas: list[Int32] = EMPTY


class OngoingTopicReassignment(Message):
    name: str = ""
    partitions: list[OngoingPartitionReassignment] = EMPTY


class ListPartitionReassignmentsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    topics: list[OngoingTopicReassignment] = EMPTY
