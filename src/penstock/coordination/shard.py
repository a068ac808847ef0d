"""All groups and committed offsets of one partition of `__consumer_offsets`: what its leader decides, without I/O.

    shard.replay(key, value)             for every record of the log, then shard.loaded(now_ms)
    outcome = shard.handle_...(request, context, now_ms)
    send outcome.replies; append outcome.records as one batch, and then
    outcome = shard.appended(outcome.write_id, now_ms)    or shard.append_failed(...), and so on

Requests come as typed messages, and may name only groups of this partition. Three rules hold it together:

1. What must survive (`saved` groups, offsets) changes only by replaying records that are in the log.
2. Batches are appended in the order in which they are handed out, and reported in that order.
3. `now_ms` is wall-clock time, since it is stored in records; the caller sees to it that it never goes back.
   `tick` is to be called when `next_deadline_ms` has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.coordination import commits
from penstock.coordination.errors import Refused
from penstock.coordination.events import Outcome, Producer, RequestContext, Turn
from penstock.coordination.group_records import GroupRecord, OffsetRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.groups.joining import join
from penstock.coordination.groups.leaving import leave
from penstock.coordination.groups.members import NO_MEMBER_ID
from penstock.coordination.groups.syncing import heartbeat, sync
from penstock.coordination.inquiries import describe
from penstock.coordination.refusals import refuse
from penstock.coordination.shard_core import ShardCore
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.schemas.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.schemas.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.schemas.join_group import JoinGroupRequest
from penstock.wire.schemas.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from penstock.wire.schemas.offset_commit import OffsetCommitRequest
from penstock.wire.schemas.offset_delete import OffsetDeleteRequest
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest
from penstock.wire.schemas.sync_group import SyncGroupRequest
from penstock.wire.schemas.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.types import Message

_LONGEST_INSTANCE_ID: Final = 249
_SEVERAL_LEAVE: Final = 3
_NAMES_PROTOCOL: Final = 5


class GroupCoordinatorShard(ShardCore):
    # Membership

    def handle_join_group(self, request: JoinGroupRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._join, request, context, now_ms)

    def handle_sync_group(self, request: SyncGroupRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._sync, request, context, now_ms)

    def handle_heartbeat(self, request: HeartbeatRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._heartbeat, request, context, now_ms)

    def handle_leave_group(self, request: LeaveGroupRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._leave, request, context, now_ms)

    def _join(self, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
        settings = self._settings
        _check_group_id(request.group_id)
        if not settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms:
            raise Refused(ErrorCode.INVALID_SESSION_TIMEOUT)
        instance_id = request.group_instance_id
        if instance_id is not None and not 0 < len(instance_id) <= _LONGEST_INSTANCE_ID:
            raise Refused(ErrorCode.INVALID_REQUEST)
        group = self._groups.find(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups.ensure(request.group_id)
        self._touch(group)
        join(group, request, context, turn, self._random)

    def _sync(self, request: SyncGroupRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        if context.api_version >= _NAMES_PROTOCOL and (request.protocol_type is None or request.protocol_name is None):
            raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        sync(self._group_of_member(request.group_id), request, context, turn)

    def _heartbeat(self, request: HeartbeatRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        group = self._group_of_member(request.group_id)
        code = heartbeat(group, request.generation_id, request.member_id, request.group_instance_id, turn)
        turn.reply(context, HeartbeatResponse(error_code=code))

    def _leave(self, request: LeaveGroupRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        several = context.api_version >= _SEVERAL_LEAVE
        leavers = request.members if several else [MemberIdentity(member_id=request.member_id)]
        group = self._groups.find(request.group_id)
        if group is None:
            answers = [_not_a_member(identity) for identity in leavers]
        else:
            self._touch(group)
            answers = leave(group, leavers, turn)
        response = (
            LeaveGroupResponse(members=answers) if several else LeaveGroupResponse(error_code=answers[0].error_code)
        )
        turn.reply_when_written(context, response, _refusal(request, context))

    # Offsets

    def handle_offset_commit(self, request: OffsetCommitRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._commit, request, context, now_ms)

    def handle_txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext, now_ms: int
    ) -> Outcome:
        """The batch is the producer's; the caller has seen to it that the transaction holds this partition."""
        return self._serve(self._txn_commit, request, context, now_ms)

    def handle_offset_fetch(self, request: OffsetFetchRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._fetch, request, context, now_ms)

    def handle_offset_delete(self, request: OffsetDeleteRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._delete_offsets, request, context, now_ms)

    def forget_topics(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Topics were deleted; offsets in them would be taken for offsets in topics of the same name."""
        turn = self._turn(now_ms)
        gone = set(topics)
        for group in self._groups:
            for topic, partition in self._offsets.all_of(group.group_id):
                if topic in gone:
                    turn.write(OffsetRecord(group.group_id, topic, partition, None))
                    self._touch(group)
        return self._finish(turn)

    def _commit(self, request: OffsetCommitRequest, context: RequestContext, turn: Turn) -> None:
        generation = request.generation_id_or_member_epoch
        group = self._groups.find(request.group_id)
        if group is not None:
            member_id = request.member_id
            commits.check_commit(group, generation, member_id, request.group_instance_id, transactional=False)
            self._touch(group)
            if member_id in group.members:
                group.renew(group.members[member_id], turn.now_ms)
        elif generation >= 0:
            raise Refused(commits.no_such_group(context.api_version))
        limit = self._settings.offset_metadata_max_bytes
        records, response = commits.plan_commit(request, turn.now_ms, limit)
        self._write_offsets(records, turn)
        turn.reply_when_written(context, response, _refusal(request, context))

    def _txn_commit(self, request: TxnOffsetCommitRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        group = self._groups.find(request.group_id)
        generation = request.generation_id
        if group is not None:
            instance_id = request.group_instance_id
            commits.check_commit(group, generation, request.member_id, instance_id, transactional=True)
            self._touch(group)
        elif generation >= 0:
            raise Refused(ErrorCode.ILLEGAL_GENERATION)
        limit = self._settings.offset_metadata_max_bytes
        records, response = commits.plan_txn_commit(request, turn.now_ms, limit)
        turn.producer = Producer(request.producer_id, request.producer_epoch)
        self._write_offsets(records, turn)
        turn.reply_when_written(context, response, _refusal(request, context))

    def _write_offsets(self, records: list[OffsetRecord], turn: Turn) -> None:
        if not records:
            return
        for record in records:
            turn.write(record)
        self._offsets.on_their_way(records)
        turn.when_written(lambda _: self._offsets.arrived(records), lambda _, code: self._offsets.arrived(records))

    def _fetch(self, request: OffsetFetchRequest, context: RequestContext, turn: Turn) -> None:
        turn.reply(context, commits.fetch(self._offsets, request, context.api_version))

    def _delete_offsets(self, request: OffsetDeleteRequest, context: RequestContext, turn: Turn) -> None:
        group = self._groups.find(request.group_id)
        if group is None:
            raise Refused(ErrorCode.GROUP_ID_NOT_FOUND)
        commits.check_offset_delete(group)
        self._touch(group)
        records, response = commits.plan_offset_delete(group, self._offsets, request)
        for record in records:
            turn.write(record)
        turn.reply_when_written(context, response, _refusal(request, context))

    # Groups as a whole

    def handle_delete_groups(self, request: DeleteGroupsRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._delete, request, context, now_ms)

    def handle_describe_groups(self, request: DescribeGroupsRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._describe, request, context, now_ms)

    def _delete(self, request: DeleteGroupsRequest, context: RequestContext, turn: Turn) -> None:
        results: list[DeletableGroupResult] = []
        for group_id in dict.fromkeys(request.groups_names):
            group = self._groups.find(group_id)
            code = ErrorCode.NONE
            if group is None:
                code = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                code = ErrorCode.NON_EMPTY_GROUP
            else:
                self._touch(group)
                for topic, partition in self._offsets.all_of(group_id):
                    turn.write(OffsetRecord(group_id, topic, partition, None))
                turn.write(GroupRecord(group_id, None))
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
        turn.reply_when_written(context, DeleteGroupsResponse(results=results), _refusal(request, context))

    def _describe(self, request: DescribeGroupsRequest, context: RequestContext, turn: Turn) -> None:
        groups = [describe(name, self._groups.find(name), context.api_version) for name in request.groups]
        turn.reply(context, DescribeGroupsResponse(groups=groups))

    def _group_of_member(self, group_id: str) -> Group:
        group = self._groups.find(group_id)
        if group is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        self._touch(group)
        return group


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise Refused(ErrorCode.INVALID_GROUP_ID)


def _refusal(request: Message, context: RequestContext) -> Callable[[ErrorCode], Message]:
    return lambda code: refuse(request, code, context.api_version)


def _not_a_member(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
    )
