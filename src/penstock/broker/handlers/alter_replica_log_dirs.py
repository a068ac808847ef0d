"""AlterReplicaLogDirs: moves replicas to other data folders of this broker while they are in use (KIP-113).

A partition is answered when its move has begun; DescribeLogDirs reports the progress. A replica that is not on this
broker yet is answered with REPLICA_NOT_AVAILABLE, and created in the named folder if it is assigned later.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from penstock.broker.request import PART_ELEMENTS, Answer, Request, Services
from penstock.cluster.controller.transaction import TopicPartition
from penstock.log.errors import LogError, UnknownDirectory, UnknownPartition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)

# Each may make a folder.
_AT_ONCE: Final = 20


def handle(services: Services, request: Request, answer: Answer) -> None:
    services.long_requests.finish(request.channel, _move_all(services, request.message, answer))


def _move_all(services: Services, message: AlterReplicaLogDirsRequest, answer: Answer) -> Generator[None, None, None]:
    """Of a replica that is named twice, the last folder counts."""
    named = (
        ((topic.name, index), directory.path)
        for directory in message.dirs
        for topic in directory.topics
        for index in topic.partitions
    )
    wanted: dict[TopicPartition, str] = {}
    for number, (key, path) in enumerate(named, 1):
        wanted[key] = path
        if not number % PART_ELEMENTS:
            yield
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    held = 0
    for number, ((name, index), path) in enumerate(wanted.items(), 1):
        if name not in topics:
            topics[name] = AlterReplicaLogDirTopicResult(topic_name=name)
        code = _move(services, name, index, path)
        topics[name].partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
        held += code == ErrorCode.NONE
        if held >= _AT_ONCE or not number % PART_ELEMENTS:
            held = 0
            yield
    answer(AlterReplicaLogDirsResponse(results=list(topics.values())))


def _move(services: Services, topic: str, index: int, path: str) -> ErrorCode:
    partition = services.cluster.image.partition(topic, index)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if services.node_id in partition.replicas and services.replicas.logs.is_offline(topic, index):
        return ErrorCode.KAFKA_STORAGE_ERROR  # a failed folder has it, or may have it
    try:
        services.replicas.logs.move(topic, index, path, services.clock.now_ms())
    except UnknownDirectory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    except UnknownPartition:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    except LogError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE
