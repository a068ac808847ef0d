"""DescribeLogDirs: how much of which partition lies in which directory."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class DescribableLogDirTopic(Message):
    topic: str = ""
    partitions: list[Int32] = EMPTY


class DescribeLogDirsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="2+")

    topics: list[DescribableLogDirTopic] | None = EMPTY


class DescribeLogDirsPartition(Message):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: bool = False


class DescribeLogDirsTopic(Message):
    name: str = ""
    partitions: list[DescribeLogDirsPartition] = EMPTY


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: str = ""
    topics: list[DescribeLogDirsTopic] = EMPTY
    total_bytes: Annotated[Int64, versions("4+"), ignorable] = -1
    usable_bytes: Annotated[Int64, versions("4+"), ignorable] = -1
    is_cordoned: Annotated[bool, versions("5+"), ignorable] = False


class DescribeLogDirsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="2+")

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions("3+"), ignorable] = 0
    results: list[DescribeLogDirsResult] = EMPTY
