"""ListOffsets: start and end of partitions, and offsets by timestamp.

Version 0 returns a list of offsets, newest first; later versions one offset and its timestamp. With read_committed the
end is the last stable offset. Records without another replica that were written without waiting for the disk are
synced first: the returned end includes what its client wrote before.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.errors import EXPECTED, error_code_of, missing_partition_error
from penstock.broker.request import Answer, Request, Services
from penstock.log.partition_log import PartitionLog, latest_timestamp, offset_for_time
from penstock.replication.partition import Partition
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
_READ_COMMITTED = 1
_KIP_207_VERSION = 5


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ListOffsetsRequest = request.message
    found = (
        services.replicas.get(topic.name, each.partition_index) for topic in message.topics for each in topic.partitions
    )
    here = [partition for partition in found if partition is not None]
    services.replicas.when_settled(here, lambda: _answer(services, request, answer))


def _answer(services: Services, request: Request, answer: Answer) -> None:
    message: ListOffsetsRequest = request.message
    response = ListOffsetsResponse()
    for topic in message.topics:
        outcomes = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(outcomes)
        for wanted in topic.partitions:
            outcome = ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
            outcomes.partitions.append(outcome)
            partition = services.replicas.get(topic.name, wanted.partition_index)
            if partition is None:
                outcome.error_code = missing_partition_error(services, topic.name, wanted.partition_index)
                continue
            try:
                _look_up(partition, wanted, outcome, request)
            except EXPECTED as error:
                outcome.error_code = error_code_of(error)
    answer(response)


def _look_up(
    partition: Partition, wanted: ListOffsetsPartition, outcome: ListOffsetsPartitionResponse, request: Request
) -> None:
    outcome.error_code = _error(partition, wanted, request.version)
    if outcome.error_code:
        return
    log = partition.log
    committed_only = request.message.isolation_level == _READ_COMMITTED
    end = log.last_stable_offset if committed_only else log.high_watermark
    if request.version == 0:
        outcome.old_style_offsets = _old_style(log, wanted.timestamp, max(0, wanted.max_num_offsets), end)
        return
    timestamp, offset = _offset_at(log, wanted.timestamp, end)
    outcome.timestamp, outcome.offset = timestamp, offset
    if offset >= 0 and request.version >= 4:
        outcome.leader_epoch = log.epochs.epoch_for_offset(offset)


def _error(partition: Partition, wanted: ListOffsetsPartition, version: int) -> ErrorCode:
    if not partition.is_leader:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    code = partition.check_epoch(wanted.current_leader_epoch)
    if code or partition.is_settled or wanted.timestamp == EARLIEST:
        return code
    # A new leader may not know its predecessor's high watermark yet, and the end must not move back (KIP-207).
    return ErrorCode.OFFSET_NOT_AVAILABLE if version >= _KIP_207_VERSION else ErrorCode.LEADER_NOT_AVAILABLE


def _offset_at(log: PartitionLog, timestamp: int, end: int) -> tuple[int, int]:
    """(timestamp, offset); both -1 if no record below `end` is that new."""
    if timestamp == LATEST:
        return -1, end
    if timestamp == EARLIEST:
        return -1, log.log_start_offset
    found = latest_timestamp(log) if timestamp == MAX_TIMESTAMP else offset_for_time(log, timestamp)
    if found is None or found.offset >= end:
        return -1, -1
    return found.timestamp, found.offset


def _old_style(log: PartitionLog, timestamp: int, most: int, end: int) -> list[int]:
    """Base offsets of the segments that existed before a time, newest first, and the end of the log."""
    if timestamp == EARLIEST:
        return [log.log_start_offset][:most]
    bases = [*log.stamped_table().bases, log.active.base_offset]
    offsets = [max(base, log.log_start_offset) for base in bases if base <= end]
    if timestamp != LATEST:
        found = offset_for_time(log, timestamp)
        limit = end if found is None else found.offset
        offsets = [offset for offset in offsets if offset <= limit]
    elif log.active.size:
        offsets.append(end)
    return sorted(set(offsets), reverse=True)[:most]
