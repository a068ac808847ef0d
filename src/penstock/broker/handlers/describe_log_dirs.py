"""DescribeLogDirs: the size of partitions by data folder, and replicas that are moving. Many are handled in slices."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import Final

from penstock.broker.request import Answer, Request, Services
from penstock.log.log_dirs.log_manager import DirectoryDescription
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

SLICE_PARTITIONS: Final = 500


def handle(services: Services, request: Request, answer: Answer) -> None:
    directories = services.replicas.logs.describe()
    slices = _response(directories, request.message, answer)
    if sum(len(directory.sizes) for directory in directories) <= SLICE_PARTITIONS:
        for _ in slices:
            pass
    else:
        work = partial(services.long_requests.through, slices, request.channel)
        services.long_requests.start(request.channel, request.size, work)


def _response(
    directories: list[DirectoryDescription], message: DescribeLogDirsRequest, answer: Answer
) -> Generator[None, None, None]:
    wanted = None if message.topics is None else {entry.topic: set(entry.partitions) for entry in message.topics}
    response = DescribeLogDirsResponse()
    for directory in directories:
        result = DescribeLogDirsResult(log_dir=directory.path)
        response.results.append(result)
        if directory.error is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        result.total_bytes, result.usable_bytes = directory.total_bytes, directory.free_bytes
        topics: dict[str, DescribeLogDirsTopic] = {}
        for number, (topic, row) in enumerate(_rows(directory), 1):
            if wanted is None or row.partition_index in wanted.get(topic, ()):
                if topic not in topics:
                    topics[topic] = DescribeLogDirsTopic(name=topic)
                    result.topics.append(topics[topic])
                topics[topic].partitions.append(row)
            if number % SLICE_PARTITIONS == 0:
                yield
    answer(response)


def _rows(directory: DirectoryDescription) -> Iterator[tuple[str, DescribeLogDirsPartition]]:
    for (topic, partition), size in directory.sizes.items():
        yield topic, DescribeLogDirsPartition(partition_index=partition, partition_size=size)
    for future in directory.futures:
        topic, partition = future.key
        row = DescribeLogDirsPartition(
            partition_index=partition, partition_size=future.size, offset_lag=future.offset_lag, is_future_key=True
        )
        yield topic, row
