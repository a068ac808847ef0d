"""DescribeLogDirs: how much of which partition lies on which disk, and what is moving to it."""

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
        rows = [
            (key, DescribeLogDirsPartition(partition_index=key[1], partition_size=size))
            for key, size in directory.sizes.items()
        ]
        rows += [
            (
                future.key,
                DescribeLogDirsPartition(
                    partition_index=future.key[1],
                    partition_size=future.size,
                    offset_lag=future.offset_lag,
                    is_future_key=True,
                ),
            )
            for future in directory.futures
        ]
        for (topic, partition), row in rows:
            if wanted is not None and partition not in wanted.get(topic, ()):
                continue
            if topic not in topics:
                topics[topic] = DescribeLogDirsTopic(name=topic)
                result.topics.append(topics[topic])
            topics[topic].partitions.append(row)
    answer(response)
