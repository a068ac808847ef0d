"""Offsets in requests: who may commit, fetch and delete them, and what records and answers that makes.

A commit under a generation is the generation's own: of a member that belongs to it, and not while its partitions are
being shared out anew. A commit without one (generation -1) comes from a consumer that assigns itself, or from an
administrator, and is accepted only while the group has no members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.coordination.errors import Refused
from penstock.coordination.group_records import NO_EPOCH, NO_TIME, CommittedOffset, OffsetRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.offsets import CommittedOffsets
from penstock.coordination.refusals import NO_OFFSET
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas import offset_commit, offset_delete, offset_fetch, txn_offset_commit

_END_OF_TIME_MS: Final = 2**63 - 1
_KNOWS_GROUP_NOT_FOUND: Final = 9
_SEVERAL_GROUPS: Final = 8


def no_such_group(api_version: int) -> ErrorCode:
    """The answer to a member that commits to a group which is not there."""
    return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= _KNOWS_GROUP_NOT_FOUND else ErrorCode.ILLEGAL_GENERATION


def check_commit(
    group: Group, generation: int, member_id: str, instance_id: str | None, *, transactional: bool
) -> None:
    """Raises Refused unless the sender may commit for the group now."""
    if generation < 0 and group.state is GroupState.EMPTY:
        return
    if generation >= 0 or member_id or instance_id is not None:
        group.validate(member_id, instance_id)
        if generation != group.generation:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
    elif not transactional:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
    if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)


def plan_commit(
    request: offset_commit.OffsetCommitRequest, now_ms: int, metadata_max_bytes: int
) -> tuple[list[OffsetRecord], offset_commit.OffsetCommitResponse]:
    """The records of those partitions that are in order, and the answer once they are written."""
    expire_timestamp_ms = NO_TIME
    if request.retention_time_ms != NO_TIME:
        expire_timestamp_ms = min(now_ms + request.retention_time_ms, _END_OF_TIME_MS)
    records: list[OffsetRecord] = []
    response = offset_commit.OffsetCommitResponse()
    for topic in request.topics:
        answers = offset_commit.OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(answers)
        for partition in topic.partitions:
            code = _check_metadata(partition.committed_metadata, metadata_max_bytes)
            answers.partitions.append(
                offset_commit.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code)
            )
            if code is ErrorCode.NONE:
                stamp_ms = partition.commit_timestamp
                value = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch if expire_timestamp_ms == NO_TIME else NO_EPOCH,
                    partition.committed_metadata or "",
                    now_ms if stamp_ms == NO_TIME else stamp_ms,
                    expire_timestamp_ms,
                )
                records.append(OffsetRecord(request.group_id, topic.name, partition.partition_index, value))
    return records, response


def plan_txn_commit(
    request: txn_offset_commit.TxnOffsetCommitRequest, now_ms: int, metadata_max_bytes: int
) -> tuple[list[OffsetRecord], txn_offset_commit.TxnOffsetCommitResponse]:
    records: list[OffsetRecord] = []
    response = txn_offset_commit.TxnOffsetCommitResponse()
    for topic in request.topics:
        answers = txn_offset_commit.TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answers)
        for partition in topic.partitions:
            code = _check_metadata(partition.committed_metadata, metadata_max_bytes)
            answers.partitions.append(
                txn_offset_commit.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=code
                )
            )
            if code is ErrorCode.NONE:
                value = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                )
                records.append(OffsetRecord(request.group_id, topic.name, partition.partition_index, value))
    return records, response


def fetch(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequest, api_version: int
) -> offset_fetch.OffsetFetchResponse:
    """The answer to a request for one group, up to version 7, or for several."""
    require_stable = request.require_stable
    if api_version >= _SEVERAL_GROUPS:
        groups = [fetch_group(offsets, group, require_stable=require_stable) for group in request.groups]
        return offset_fetch.OffsetFetchResponse(groups=groups)
    topics = request.topics
    asked = offset_fetch.OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    if topics is not None:
        asked.topics = [
            offset_fetch.OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in topics
        ]
    found = fetch_group(offsets, asked, require_stable=require_stable)
    return offset_fetch.OffsetFetchResponse(
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                name=topic.name, partitions=[_as_of_one_group(partition) for partition in topic.partitions]
            )
            for topic in found.topics
        ]
    )


def fetch_group(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequestGroup, *, require_stable: bool
) -> offset_fetch.OffsetFetchResponseGroup:
    """What a group has committed: of the partitions asked for, or of all if there are none."""
    group_id = request.group_id
    response = offset_fetch.OffsetFetchResponseGroup(group_id=group_id)
    for topic, asked in _asked(offsets, request):
        answers = [
            _fetched(offsets, group_id, topic.name, partition, require_stable=require_stable) for partition in asked
        ]
        response.topics.append(
            offset_fetch.OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=answers)
        )
    return response


def check_offset_delete(group: Group) -> None:
    """Offsets of a group with members can be deleted if it is known which topics these read."""
    if group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
        raise Refused(ErrorCode.NON_EMPTY_GROUP)


def plan_offset_delete(
    group: Group, offsets: CommittedOffsets, request: offset_delete.OffsetDeleteRequest
) -> tuple[list[OffsetRecord], offset_delete.OffsetDeleteResponse]:
    records: list[OffsetRecord] = []
    response = offset_delete.OffsetDeleteResponse()
    present = set(offsets.all_of(request.group_id))
    for topic in request.topics:
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic.name) else ErrorCode.NONE
        answers = offset_delete.OffsetDeleteResponseTopic(name=topic.name)
        response.topics.append(answers)
        for partition in topic.partitions:
            index = partition.partition_index
            answers.partitions.append(
                offset_delete.OffsetDeleteResponsePartition(partition_index=index, error_code=code)
            )
            if code is ErrorCode.NONE and (topic.name, index) in present:
                records.append(OffsetRecord(request.group_id, topic.name, index, None))
    return records, response


def _check_metadata(metadata: str | None, limit: int) -> ErrorCode:
    # Characters, in spite of the setting's name: that is what Kafka counts.
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if metadata and len(metadata) > limit else ErrorCode.NONE


def _asked(
    offsets: CommittedOffsets, request: offset_fetch.OffsetFetchRequestGroup
) -> Iterator[tuple[offset_fetch.OffsetFetchRequestTopics, list[int]]]:
    if request.topics is not None:
        for topic in request.topics:
            yield topic, topic.partition_indexes
        return
    for name in offsets.topics(request.group_id):
        partitions = [partition for partition, _ in offsets.partitions(request.group_id, name)]
        yield offset_fetch.OffsetFetchRequestTopics(name=name), partitions


def _fetched(
    offsets: CommittedOffsets, group_id: str, topic: str, partition: int, *, require_stable: bool
) -> offset_fetch.OffsetFetchResponsePartitions:
    answer = offset_fetch.OffsetFetchResponsePartitions(partition_index=partition, committed_offset=NO_OFFSET)
    if require_stable and offsets.is_unsettled(group_id, topic, partition):
        answer.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return answer
    committed = offsets.get(group_id, topic, partition)
    if committed is not None:
        answer.committed_offset = committed.offset
        answer.committed_leader_epoch = committed.leader_epoch
        answer.metadata = committed.metadata
    return answer


def _as_of_one_group(
    partition: offset_fetch.OffsetFetchResponsePartitions,
) -> offset_fetch.OffsetFetchResponsePartition:
    return offset_fetch.OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )
