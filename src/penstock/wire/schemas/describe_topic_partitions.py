"""DescribeTopicPartitions: topics page by page, with a cursor, and the replicas still eligible to lead."""

from typing import ClassVar

from penstock.wire.types import EMPTY, NO_UUID, Int16, Int32, Message, Schema, Uuid


class TopicRequest(Message):
    name: str = ""


class Cursor(Message):
    topic_name: str = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    topics: list[TopicRequest] = EMPTY
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = EMPTY
    isr_nodes: list[Int32] = EMPTY
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = EMPTY


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Int16 = 0
    name: str | None = ""
    topic_id: Uuid = NO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = EMPTY
    topic_authorized_operations: Int32 = -2147483648


class DescribeTopicPartitionsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = EMPTY
    next_cursor: Cursor | None = None
