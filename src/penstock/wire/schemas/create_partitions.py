"""CreatePartitions: raising the number of partitions of topics."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = EMPTY


class CreatePartitionsTopic(Message):
    name: str = ""
    count: Int32 = 0
    assignments: list[CreatePartitionsAssignment] | None = EMPTY


class CreatePartitionsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    topics: list[CreatePartitionsTopic] = EMPTY
    timeout_ms: Int32 = 0
    validate_only: bool = False


class CreatePartitionsTopicResult(Message):
    name: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


class CreatePartitionsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = EMPTY
