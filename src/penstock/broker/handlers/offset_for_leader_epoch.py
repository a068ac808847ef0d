"""OffsetForLeaderEpoch: the end of an epoch in this log, by which a reader detects truncation."""

from __future__ import annotations

from penstock.broker.errors import missing_partition_error
from penstock.broker.request import Answer, Request, Services
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: OffsetForLeaderEpochRequest = request.message
    response = OffsetForLeaderEpochResponse()
    for topic in message.topics:
        results = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(results)
        for wanted in topic.partitions:
            result = EpochEndOffset(partition=wanted.partition)
            results.partitions.append(result)
            partition = services.replicas.get(topic.topic, wanted.partition)
            if partition is None:
                result.error_code = missing_partition_error(services, topic.topic, wanted.partition)
                continue
            if not partition.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            result.error_code = partition.check_epoch(wanted.current_leader_epoch)
            if result.error_code:
                continue
            end = partition.log.epochs.end_offset_for(wanted.leader_epoch, partition.log.log_end_offset)
            result.leader_epoch, result.end_offset = end.epoch, end.end_offset
    answer(response)
