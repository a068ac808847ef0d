"""AlterReplicaLogDirs: moving replicas between the directories of a broker."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class AlterReplicaLogDirTopic(Message):
    name: str = ""
    partitions: list[Int32] = EMPTY


class AlterReplicaLogDir(Message):
    path: str = ""
    topics: list[AlterReplicaLogDirTopic] = EMPTY


class AlterReplicaLogDirsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    dirs: list[AlterReplicaLogDir] = EMPTY


class AlterReplicaLogDirPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Message):
    topic_name: str = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = EMPTY


class AlterReplicaLogDirsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = EMPTY
