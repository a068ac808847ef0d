"""DescribeLogDirs: how much of which partition lies on which disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.request import Answer, Request
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: DescribeLogDirsRequest = request.message
    wanted = None if message.topics is None else {entry.topic: set(entry.partitions) for entry in message.topics}
    response = DescribeLogDirsResponse()
    for directory in broker.replicas.logs.describe():
        result = DescribeLogDirsResult(log_dir=directory.path)
        response.results.append(result)
        if directory.error is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        result.total_bytes, result.usable_bytes = directory.total_bytes, directory.free_bytes
        topics: dict[str, DescribeLogDirsTopic] = {}
        for (topic, partition), size in directory.sizes.items():
            if wanted is not None and partition not in wanted.get(topic, ()):
                continue
            if topic not in topics:
                topics[topic] = DescribeLogDirsTopic(name=topic)
                result.topics.append(topics[topic])
            topics[topic].partitions.append(DescribeLogDirsPartition(partition_index=partition, partition_size=size))
    answer(response)
