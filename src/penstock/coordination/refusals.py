"""A request to the group coordinator answered with one error code, whatever API and version it is.

Who has no shard to ask (not the coordinator, still loading, not allowed) uses the same answers as the shard itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
    txn_offset_commit,
)
from penstock.wire.types import Message

NO_OFFSET: Final = -1
_NULLABLE_PROTOCOL_NAME: Final = 7
_ERROR_OF_THE_WHOLE: Final = 2
_SEVERAL_GROUPS: Final = 8


def refuse(request: Message, code: ErrorCode, api_version: int) -> Message:
    """The response that says `code` to all of `request`."""
    return _REFUSALS[type(request)](request, code, api_version)


def refuse_join(code: ErrorCode, api_version: int, member_id: str = "") -> join_group.JoinGroupResponse:
    return join_group.JoinGroupResponse(
        error_code=code,
        member_id=member_id,
        protocol_name=None if api_version >= _NULLABLE_PROTOCOL_NAME else "",
    )


def _join(request: join_group.JoinGroupRequest, code: ErrorCode, api_version: int) -> Message:
    return refuse_join(code, api_version, request.member_id)


def _sync(request: sync_group.SyncGroupRequest, code: ErrorCode, api_version: int) -> Message:
    return sync_group.SyncGroupResponse(error_code=code)


def _heartbeat(request: heartbeat.HeartbeatRequest, code: ErrorCode, api_version: int) -> Message:
    return heartbeat.HeartbeatResponse(error_code=code)


def _leave(request: leave_group.LeaveGroupRequest, code: ErrorCode, api_version: int) -> Message:
    return leave_group.LeaveGroupResponse(error_code=code)


def _commit(request: offset_commit.OffsetCommitRequest, code: ErrorCode, api_version: int) -> Message:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _txn_commit(request: txn_offset_commit.TxnOffsetCommitRequest, code: ErrorCode, api_version: int) -> Message:
    return txn_offset_commit.TxnOffsetCommitResponse(
        topics=[
            txn_offset_commit.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    txn_offset_commit.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _fetch(request: offset_fetch.OffsetFetchRequest, code: ErrorCode, api_version: int) -> Message:
    if api_version >= _SEVERAL_GROUPS:
        groups = [
            offset_fetch.OffsetFetchResponseGroup(group_id=group.group_id, error_code=code) for group in request.groups
        ]
        return offset_fetch.OffsetFetchResponse(groups=groups)
    if api_version >= _ERROR_OF_THE_WHOLE:
        return offset_fetch.OffsetFetchResponse(error_code=code)
    return offset_fetch.OffsetFetchResponse(
        topics=[
            offset_fetch.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    offset_fetch.OffsetFetchResponsePartition(
                        partition_index=partition, committed_offset=NO_OFFSET, error_code=code
                    )
                    for partition in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )


def _delete_offsets(request: offset_delete.OffsetDeleteRequest, code: ErrorCode, api_version: int) -> Message:
    return offset_delete.OffsetDeleteResponse(error_code=code)


def _delete_groups(request: delete_groups.DeleteGroupsRequest, code: ErrorCode, api_version: int) -> Message:
    results = [delete_groups.DeletableGroupResult(group_id=name, error_code=code) for name in request.groups_names]
    return delete_groups.DeleteGroupsResponse(results=results)


def _describe(request: describe_groups.DescribeGroupsRequest, code: ErrorCode, api_version: int) -> Message:
    groups = [describe_groups.DescribedGroup(group_id=name, error_code=code) for name in request.groups]
    return describe_groups.DescribeGroupsResponse(groups=groups)


_REFUSALS: Final[dict[type[Message], Callable[[Any, ErrorCode, int], Message]]] = {
    join_group.JoinGroupRequest: _join,
    sync_group.SyncGroupRequest: _sync,
    heartbeat.HeartbeatRequest: _heartbeat,
    leave_group.LeaveGroupRequest: _leave,
    offset_commit.OffsetCommitRequest: _commit,
    txn_offset_commit.TxnOffsetCommitRequest: _txn_commit,
    offset_fetch.OffsetFetchRequest: _fetch,
    offset_delete.OffsetDeleteRequest: _delete_offsets,
    delete_groups.DeleteGroupsRequest: _delete_groups,
    describe_groups.DescribeGroupsRequest: _describe,
}
