"""DeleteRecords: moving the start of a partition forward, durably, before it is answered.

Rule: what a topic's policy never deletes (it is compacted and nothing else) is not deleted for a client either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.error_mapping import EXPECTED, error_code_of
from penstock.broker.request import Answer, Request
from penstock.broker.whereabouts import why_missing
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

HIGH_WATERMARK: Final = -1
_NONE = -1


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: DeleteRecordsRequest = request.message
    found = (
        broker.replicas.get(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions
    )
    here = [partition for partition in found if partition is not None]
    broker.replicas.when_vouched_for(here, lambda: _delete(broker, request, answer))


def _delete(broker: Broker, request: Request, answer: Answer) -> None:
    message: DeleteRecordsRequest = request.message
    response = DeleteRecordsResponse()
    for topic in message.topics:
        results = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(results)
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=_NONE)
            results.partitions.append(result)
            partition = broker.replicas.get(topic.name, wanted.partition_index)
            if partition is None:
                result.error_code = why_missing(broker, topic.name, wanted.partition_index)
                continue
            if not partition.is_leader:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            if not partition.log.settings.deletes:
                result.error_code = ErrorCode.POLICY_VIOLATION
                continue
            if wanted.offset < HIGH_WATERMARK:
                result.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
                continue
            offset = partition.log.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
            try:
                broker.replicas.logs.advance_start(topic.name, wanted.partition_index, offset)
            except EXPECTED as error:
                result.error_code = error_code_of(error)
                continue
            result.low_watermark = partition.log.log_start_offset
            broker.sessions.disturb()
    answer(response)
