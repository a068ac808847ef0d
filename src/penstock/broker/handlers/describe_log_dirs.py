"""DescribeLogDirs: how much of which partition lies on which disk, and what is moving to it. Many are sliced."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.request import Answer, Request
from penstock.log.folders.manager import DirectoryDescription
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

SLICE_PARTITIONS: Final = 500


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    directories = broker.replicas.logs.describe()
    slices = _response(directories, request.message, answer)
    if sum(len(directory.sizes) for directory in directories) <= SLICE_PARTITIONS:
        for _ in slices:
            pass
    else:
        work = partial(broker.long_work.through, slices, request.channel)
        broker.long_work.start(request.channel, request.size, work)


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
