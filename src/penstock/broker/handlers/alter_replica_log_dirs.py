"""AlterReplicaLogDirs: moves replicas to other data folders of this broker while they are in use (KIP-113).

A partition is answered when its move has begun; DescribeLogDirs reports the progress. A replica that is not on this
broker yet is answered with REPLICA_NOT_AVAILABLE, and created in the named folder if it is assigned later.
"""

from __future__ import annotations

from penstock.broker.request import Answer, Request, Services
from penstock.log.errors import LogError, UnknownDirectory, UnknownPartition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: AlterReplicaLogDirsRequest = request.message
    wanted = {
        (topic.name, index): directory.path
        for directory in message.dirs
        for topic in directory.topics
        for index in topic.partitions
    }
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for (topic, index), path in wanted.items():
        if topic not in topics:
            topics[topic] = AlterReplicaLogDirTopicResult(topic_name=topic)
        code = _move(services, topic, index, path)
        topics[topic].partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    answer(AlterReplicaLogDirsResponse(results=list(topics.values())))


def _move(services: Services, topic: str, index: int, path: str) -> ErrorCode:
    if services.cluster.image.partition(topic, index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        services.replicas.logs.move(topic, index, path, services.clock.now_ms())
    except UnknownDirectory:
        return ErrorCode.LOG_DIR_NOT_FOUND
    except UnknownPartition:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    except LogError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE
