"""Requests, results and error responses of the group coordinator.

A request comes with a `RequestContext`, whose token stands for the connection. Handling a request or a timeout is a
`Turn`: replies that can be sent at once, and records to append as one batch, with continuations for when the outcome of
that batch is known. The shard returns it as an `Outcome`. Every token is answered exactly once.

`error_response` answers any group request with one error code, in every version; brokers that are not the coordinator
use it too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.coordination.coordinator_record import CoordinatorRecord
from penstock.coordination.group_records import Record
from penstock.wire.protocol import ErrorCode
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

Token: TypeAlias = object
NO_PRODUCER_ID: Final = -1
NO_OFFSET: Final = -1

# The first versions of JoinGroup and OffsetFetch with this.
_NULLABLE_PROTOCOL_NAME: Final = 7
_TOP_LEVEL_ERROR: Final = 2
_SEVERAL_GROUPS: Final = 8


class RequestContext(NamedTuple):
    token: Token
    api_version: int
    client_id: str = ""
    client_host: str = ""


class Reply(NamedTuple):
    token: Token
    message: Message


class Producer(NamedTuple):
    """The producer whose transaction a batch belongs to."""

    producer_id: int
    producer_epoch: int


class Outcome(NamedTuple):
    """What the caller does: send `replies`, append `records` as one batch, and report that under `write_id`.

    With a `producer` the batch is part of its transaction.
    """

    replies: list[Reply]
    records: list[CoordinatorRecord]
    write_id: int | None
    producer: Producer | None = None


class Continuation(NamedTuple):
    """Called once records are committed, or once it is known that they never will be."""

    done: Callable[[Turn], None]
    failed: Callable[[Turn, ErrorCode], None]


class Turn:
    """The handling of one event: its time and its results."""

    __slots__ = ("continuations", "now_ms", "producer", "records", "replies")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.replies: list[Reply] = []
        self.records: list[Record] = []
        self.continuations: list[Continuation] = []
        self.producer: Producer | None = None

    def reply(self, to: RequestContext, message: Message) -> None:
        self.replies.append(Reply(to.token, message))

    def write(self, record: Record) -> None:
        self.records.append(record)

    def when_written(self, done: Callable[[Turn], None], failed: Callable[[Turn, ErrorCode], None]) -> None:
        self.continuations.append(Continuation(done, failed))

    def reply_when_written(self, to: RequestContext, message: Message, error: Callable[[ErrorCode], Message]) -> None:
        """Reply when the records of this turn are committed; at once if there are none."""
        if not self.records:
            self.reply(to, message)
            return
        self.when_written(
            lambda turn: turn.reply(to, message),
            lambda turn, code: turn.reply(to, error(code)),
        )


# --- error responses


def error_response(request: Message, code: ErrorCode, api_version: int) -> Message:
    """The response with this error code for everything in `request`."""
    return _ERROR_RESPONSES[type(request)](request, code, api_version)


def join_error_response(code: ErrorCode, api_version: int, member_id: str = "") -> join_group.JoinGroupResponse:
    return join_group.JoinGroupResponse(
        error_code=code,
        member_id=member_id,
        protocol_name=None if api_version >= _NULLABLE_PROTOCOL_NAME else "",
    )


def _join(request: join_group.JoinGroupRequest, code: ErrorCode, api_version: int) -> Message:
    return join_error_response(code, api_version, request.member_id)


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
    if api_version >= _TOP_LEVEL_ERROR:
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


_ERROR_RESPONSES: Final[dict[type[Message], Callable[[Any, ErrorCode, int], Message]]] = {
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
