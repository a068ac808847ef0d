"""DeleteRecords: moves the log start of partitions forward.

The response is sent when the new start is durable on every live replica. Dead replicas take it over when they return.
If a live replica is not done in time, the partition is answered with REQUEST_TIMED_OUT; the replica still deletes the
records later. A topic that is only compacted rejects the request.

    replicas 1 2 3, leader 1, delete below 10; 3 is dead      the log of 1 starts at 10
    2 fetches with a log that starts at 10                    response: 10
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.broker.broker_only import is_protected
from penstock.broker.errors import EXPECTED, error_code_of, missing_partition_error
from penstock.broker.request import Answer, Request, Services
from penstock.log.errors import LogError
from penstock.replication.partition import Partition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK: Final = -1
_NONE = -1


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteRecordsRequest = request.message
    found = (
        services.replicas.get(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions
    )
    here = [partition for partition in found if partition is not None]
    services.replicas.when_settled(here, lambda: _delete(services, request, answer))


def _delete(services: Services, request: Request, answer: Answer) -> None:
    message: DeleteRecordsRequest = request.message
    response = DeleteRecordsResponse()
    begun: list[tuple[Partition, int, DeleteRecordsPartitionResult]] = []
    for topic in message.topics:
        results = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(results)
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=_NONE)
            results.partitions.append(result)
            if is_protected(services, request.session, topic.name):
                result.error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
                continue
            partition = services.replicas.get(topic.name, wanted.partition_index)
            if partition is None:
                result.error_code = missing_partition_error(services, topic.name, wanted.partition_index)
                continue
            try:
                offset, result.error_code = _begin(services, partition, wanted.offset)
            except EXPECTED as error:
                result.error_code = error_code_of(error)
                continue
            if not result.error_code:
                begun.append((partition, offset, result))
    if begun:
        services.sessions.invalidate()
    _await_others(services, begun, message.timeout_ms, lambda: answer(response))


def _begin(services: Services, partition: Partition, wanted: int) -> tuple[int, ErrorCode]:
    """Move the start of the local log; the offset, or an error. LogError."""
    if not partition.is_leader:
        return _NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not partition.log.settings.deletes:
        return _NONE, ErrorCode.POLICY_VIOLATION
    if wanted < HIGH_WATERMARK:
        return _NONE, ErrorCode.OFFSET_OUT_OF_RANGE
    offset = partition.log.high_watermark if wanted == HIGH_WATERMARK else wanted
    services.replicas.logs.advance_start(partition.topic, partition.index, offset)
    return offset, ErrorCode.NONE


def _await_others(
    services: Services,
    begun: list[tuple[Partition, int, DeleteRecordsPartitionResult]],
    timeout_ms: int,
    done: Callable[[], None],
) -> None:
    """Fill in the results when the other replicas are done or the time is up."""
    left = len(begun)
    if not left:
        done()
        return

    def one_done(partition: Partition, result: DeleteRecordsPartitionResult, error: LogError | None) -> None:
        nonlocal left
        if error is not None:
            result.error_code = error_code_of(error)
        if partition.is_leader:
            result.low_watermark = partition.lowest_start(services.replicas.online(partition))
        left -= 1
        if left == 0:
            done()

    for partition, offset, result in begun:
        services.replicas.when_deleted(partition, offset, timeout_ms, partial(one_done, partition, result))
