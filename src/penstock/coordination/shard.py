"""All groups and committed offsets of one partition of `__consumer_offsets`, without I/O.

    shard.replay(key, value)             for every record of the log, then shard.loaded(now_ms)
    outcome = shard.handle_...(request, context, now_ms)
    send outcome.replies; append outcome.records as one batch, and then
    outcome = shard.appended(outcome.write_id, now_ms)    or shard.append_failed(...), and so on

Requests are typed messages and name only groups of this partition.

1. Durable state (saved groups, offsets) changes only by replaying records that are in the log.
2. Batches are appended and reported in the order in which they are handed out.
3. `now_ms` is wall-clock time, because it is stored in records; it never goes back. `tick` is called at
   `next_deadline_ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from penstock.coordination import offsets
from penstock.coordination.errors import Rejected, ShardActive, ShardNotActive, WriteOutOfOrder
from penstock.coordination.group_records import (
    GroupRecord,
    OffsetRecord,
    Record,
    SavedGroup,
    UnknownRecord,
    decode_record,
    encode_record,
)
from penstock.coordination.groups.group import (
    NO_MEMBER_ID,
    Group,
    GroupSettings,
    GroupState,
    GroupTable,
    Member,
    MemberMemory,
)
from penstock.coordination.groups.rebalance import expire, heartbeat, join, leave, prepare, sync
from penstock.coordination.offsets import CommittedOffsets, ExpiryRounds, expired
from penstock.coordination.responses import (
    NO_PRODUCER_ID,
    Continuation,
    Outcome,
    Producer,
    RequestContext,
    Turn,
    error_response,
)
from penstock.runtime.randomness import Random
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.schemas.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from penstock.wire.schemas.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.schemas.join_group import JoinGroupRequest
from penstock.wire.schemas.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from penstock.wire.schemas.list_groups import ListedGroup, ListGroupsRequest
from penstock.wire.schemas.offset_commit import OffsetCommitRequest
from penstock.wire.schemas.offset_delete import OffsetDeleteRequest
from penstock.wire.schemas.offset_fetch import OffsetFetchRequest
from penstock.wire.schemas.sync_group import SyncGroupRequest
from penstock.wire.schemas.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.types import Buffer, Message

CLASSIC: Final = "classic"

_R = TypeVar("_R", bound=Message)

_MAX_INSTANCE_ID_LENGTH: Final = 249
# The first versions of DescribeGroups, LeaveGroup and SyncGroup with this.
_GROUP_NOT_FOUND_VERSION: Final = 6
_SEVERAL_LEAVE_VERSION: Final = 3
_PROTOCOL_NAME_VERSION: Final = 5

_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""The response to a request whose records could not be appended."""
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


# --- describing groups


def describe_group(group_id: str, group: Group | None, api_version: int) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    if group is None:
        absent = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= _GROUP_NOT_FOUND_VERSION:
            absent.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            absent.error_message = f"Group {group_id} does not exist."
        return absent
    # Until a generation is complete, protocols and assignments are about to change.
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_described(member, protocol) for member in group.members.values()],
    )


def list_groups(groups: Iterable[Group], request: ListGroupsRequest) -> list[ListedGroup]:
    states = {state.strip().lower() for state in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    if types and CLASSIC not in types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in groups
        if not states or group.state.value.lower() in states
    ]


def _described(member: Member, protocol: str | None) -> DescribedGroupMember:
    described = DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
    )
    if protocol is not None:
        described.member_metadata = member.protocols.get(protocol, b"")
        described.member_assignment = member.assignment
    return described


# --- loading, writes, time


class _Phase(Enum):
    LOADING = 0
    ACTIVE = 1
    UNLOADED = 2


class _Write(NamedTuple):
    """A batch that is being appended."""

    records: list[Record]
    continuations: list[Continuation]
    groups: list[Group]
    producer: Producer | None


class ShardCore:
    """State, loading, writes and timeouts of a shard; `GroupCoordinatorShard` adds the requests."""

    def __init__(self, settings: GroupSettings, random: Random, memory: MemberMemory | None = None) -> None:
        """`memory` is shared by all shards of a broker."""
        self._settings = settings
        self._random = random
        self._phase = _Phase.LOADING
        self._saved: dict[str, SavedGroup] = {}
        self._offsets = CommittedOffsets()
        self._groups = GroupTable(settings, memory or MemberMemory())
        self._writes: dict[int, _Write] = {}
        self._last_write_id = 0
        self._touched: dict[str, Group] = {}
        self._expiry = ExpiryRounds(settings.offsets_retention_check_interval_ms, settings.expiry_batch_records, 0)

    # State.

    @property
    def groups(self) -> list[Group]:
        return list(self._groups)

    @property
    def saved_groups(self) -> dict[str, SavedGroup]:
        return dict(self._saved)

    @property
    def offsets(self) -> CommittedOffsets:
        return self._offsets

    def states(self) -> list[str]:
        """The state of every group."""
        return [group.state.value for group in self._groups]

    @property
    def next_deadline_ms(self) -> int:
        """When to call `tick`; it may be early, never late. It may change with every call."""
        expiry_ms = self._expiry.due_ms
        deadline_ms = self._groups.next_deadline_ms
        return deadline_ms if expiry_ms is None else min(deadline_ms, expiry_ms)

    def replay(
        self, key: Buffer | None, value: Buffer | None, producer_id: int = NO_PRODUCER_ID
    ) -> Record | UnknownRecord:
        """Apply a record of the log, with the producer's id if it is part of a transaction.

        Records of unknown versions change nothing and are returned. BadGroupRecord for damaged ones.
        """
        if self._phase is not _Phase.LOADING:
            raise ShardActive("records must be replayed before the shard is loaded")
        record = decode_record(key, value)
        if not isinstance(record, UnknownRecord):
            self._apply(record, producer_id)
        return record

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """The end of a transaction is in the log: its offsets are committed or dropped."""
        for group_id in self._offsets.end_transaction(producer_id, committed=committed):
            if self._phase is _Phase.ACTIVE:
                self._settle(self._groups.ensure(group_id))

    def loaded(self, now_ms: int) -> None:
        """All records are replayed; requests can be served. Members have a session timeout to show up."""
        if self._phase is not _Phase.LOADING:
            raise ShardActive("the shard is already loaded")
        self._phase = _Phase.ACTIVE
        settings = self._settings
        self._expiry = ExpiryRounds(settings.offsets_retention_check_interval_ms, settings.expiry_batch_records, now_ms)
        for group_id in self._offsets.group_ids():
            self._groups.ensure(group_id)
        for group_id, saved in self._saved.items():
            group = self._groups.ensure(group_id)
            group.load(saved, now_ms)
            if len(group.members) > settings.max_size:
                prepare(group, Turn(now_ms))
            self._groups.schedule(group)

    def unload(self) -> Outcome:
        """Another broker coordinates these groups now: waiting requests get NOT_COORDINATOR."""
        turn = Turn(0)
        self._phase = _Phase.UNLOADED
        for group in self._groups:
            group.abandon(ErrorCode.NOT_COORDINATOR, turn)
        for write in self._writes.values():
            for continuation in write.continuations:
                continuation.failed(turn, ErrorCode.NOT_COORDINATOR)
        self._writes.clear()
        return Outcome(turn.replies, [], None)

    # Writes.

    def appended(self, write_id: int, now_ms: int) -> Outcome:
        """The batch with this id is committed."""
        write = self._take_write(write_id)
        if write is None:
            return Outcome([], [], None)
        turn = Turn(now_ms)
        producer_id = NO_PRODUCER_ID if write.producer is None else write.producer.producer_id
        for record in write.records:
            self._apply(record, producer_id)
        for continuation in write.continuations:
            continuation.done(turn)
        return self._finish(turn)

    def append_failed(self, write_id: int, code: ErrorCode, now_ms: int) -> Outcome:
        """The batch with this id is not in the log and never will be; earlier ones may still be in flight.

        If that is not certain, unload the shard and load it again from the log.
        """
        write = self._take_write(write_id, in_order=False)
        if write is None:
            return Outcome([], [], None)
        turn = Turn(now_ms)
        answer = _APPEND_ERRORS.get(code, code)
        if code in _TOO_LARGE:
            commit = all(isinstance(record, OffsetRecord) for record in write.records)
            answer = ErrorCode.INVALID_COMMIT_OFFSET_SIZE if commit else ErrorCode.UNKNOWN_SERVER_ERROR
        for continuation in write.continuations:
            continuation.failed(turn, answer)
        return self._finish(turn)

    def tick(self, now_ms: int) -> Outcome:
        """Handle the deadlines that have passed."""
        turn = self._turn(now_ms)
        for group in self._groups.take_due(now_ms):
            expire(group, turn)
            self._touch(group)
        self._expire_offsets(turn)
        return self._finish(turn)

    # Parts.

    def _serve(
        self,
        handler: Callable[[_R, RequestContext, Turn], None],
        request: _R,
        context: RequestContext,
        now_ms: int,
    ) -> Outcome:
        turn = self._turn(now_ms)
        try:
            handler(request, context, turn)
        except Rejected as rejected:
            turn.reply(context, error_response(request, rejected.code, context.api_version))
        return self._finish(turn)

    def _turn(self, now_ms: int) -> Turn:
        if self._phase is not _Phase.ACTIVE:
            raise ShardNotActive(f"the shard is {self._phase.name.lower()}")
        return Turn(now_ms)

    def _touch(self, group: Group) -> None:
        self._touched[group.group_id] = group

    def _finish(self, turn: Turn) -> Outcome:
        groups = list(self._touched.values())
        self._touched.clear()
        if not turn.records:
            for group in groups:
                self._settle(group)
            return Outcome(turn.replies, [], None)
        self._last_write_id += 1
        for group in groups:
            group.writes_in_flight += 1
            self._settle(group)
        write = _Write(turn.records, turn.continuations, groups, turn.producer)
        self._writes[self._last_write_id] = write
        records = [encode_record(record) for record in turn.records]
        return Outcome(turn.replies, records, self._last_write_id, turn.producer)

    def _take_write(self, write_id: int, *, in_order: bool = True) -> _Write | None:
        if self._phase is _Phase.UNLOADED:
            return None
        oldest = next(iter(self._writes), None)
        if write_id != oldest and (in_order or write_id not in self._writes):
            raise WriteOutOfOrder(write_id, oldest)
        write = self._writes.pop(write_id)
        for group in write.groups:
            group.writes_in_flight -= 1
            self._touch(group)
        return write

    def _settle(self, group: Group) -> None:
        """After a change of a group: forget it if nothing is left of it, otherwise schedule its next deadline."""
        if group.is_idle and group.group_id not in self._saved and not self._offsets.has_group(group.group_id):
            self._groups.forget(group)
        else:
            self._groups.schedule(group)

    def _apply(self, record: Record, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self._offsets.replay(record, producer_id)
        elif record.value is None:
            self._saved.pop(record.group_id, None)
        else:
            self._saved[record.group_id] = record.value
        if self._phase is _Phase.ACTIVE:
            self._touch(self._groups.ensure(record.group_id))

    def _expire_offsets(self, turn: Turn) -> None:
        offsets, retention_ms = self._offsets, self._settings.offsets_retention_ms

        def tombstones(group_id: str) -> Iterator[OffsetRecord]:
            group = self._groups.find(group_id)
            return iter(()) if group is None else expired(group, offsets, turn.now_ms, retention_ms)

        before = len(turn.records)
        for group_id, records in self._expiry.visit(self._groups.ids, tombstones, turn.now_ms).items():
            group = self._groups.find(group_id)
            if group is None:
                continue
            for record in records:
                turn.write(record)
            nothing_left = group.is_idle and len(records) == len(offsets.all_of(group_id))
            if nothing_left and group_id in self._saved:
                turn.write(GroupRecord(group_id, None))
            self._touch(group)
        if len(turn.records) > before:
            self._expiry.is_writing = True
            turn.when_written(lambda _: self._expiry.wrote(), lambda _, code: self._expiry.gave_up())


# --- requests


class GroupCoordinatorShard(ShardCore):
    """All groups and committed offsets of one partition of `__consumer_offsets`."""

    # Membership.

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
            raise Rejected(ErrorCode.INVALID_SESSION_TIMEOUT)
        instance_id = request.group_instance_id
        if instance_id is not None and not 0 < len(instance_id) <= _MAX_INSTANCE_ID_LENGTH:
            raise Rejected(ErrorCode.INVALID_REQUEST)
        group = self._groups.find(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups.ensure(request.group_id)
        self._touch(group)
        join(group, request, context, turn, self._random)

    def _sync(self, request: SyncGroupRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        if context.api_version >= _PROTOCOL_NAME_VERSION and (
            request.protocol_type is None or request.protocol_name is None
        ):
            raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        sync(self._group_of_member(request.group_id), request, context, turn)

    def _heartbeat(self, request: HeartbeatRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        group = self._group_of_member(request.group_id)
        code = heartbeat(group, request.generation_id, request.member_id, request.group_instance_id, turn)
        turn.reply(context, HeartbeatResponse(error_code=code))

    def _leave(self, request: LeaveGroupRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        several = context.api_version >= _SEVERAL_LEAVE_VERSION
        leaving = request.members if several else [MemberIdentity(member_id=request.member_id)]
        group = self._groups.find(request.group_id)
        if group is None:
            answers = [_not_a_member(identity) for identity in leaving]
        else:
            self._touch(group)
            answers = leave(group, leaving, turn)
        response = (
            LeaveGroupResponse(members=answers) if several else LeaveGroupResponse(error_code=answers[0].error_code)
        )
        turn.reply_when_written(context, response, _error_response_to(request, context))

    # Offsets.

    def handle_offset_commit(self, request: OffsetCommitRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._commit, request, context, now_ms)

    def handle_txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext, now_ms: int
    ) -> Outcome:
        """The batch is part of the producer's transaction, to which the caller has added this partition."""
        return self._serve(self._txn_commit, request, context, now_ms)

    def handle_offset_fetch(self, request: OffsetFetchRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._fetch, request, context, now_ms)

    def handle_offset_delete(self, request: OffsetDeleteRequest, context: RequestContext, now_ms: int) -> Outcome:
        return self._serve(self._delete_offsets, request, context, now_ms)

    def forget_topics(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Topics were deleted: their offsets must not apply to later topics of the same name."""
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
            offsets.check_commit(group, generation, member_id, request.group_instance_id, transactional=False)
            self._touch(group)
            if member_id in group.members:
                group.renew(group.members[member_id], turn.now_ms)
        elif generation >= 0:
            raise Rejected(offsets.no_such_group(context.api_version))
        limit = self._settings.offset_metadata_max_bytes
        records, response = offsets.plan_commit(request, turn.now_ms, limit)
        self._write_offsets(records, turn)
        turn.reply_when_written(context, response, _error_response_to(request, context))

    def _txn_commit(self, request: TxnOffsetCommitRequest, context: RequestContext, turn: Turn) -> None:
        _check_group_id(request.group_id)
        group = self._groups.find(request.group_id)
        generation = request.generation_id
        if group is not None:
            instance_id = request.group_instance_id
            offsets.check_commit(group, generation, request.member_id, instance_id, transactional=True)
            self._touch(group)
        elif generation >= 0:
            raise Rejected(ErrorCode.ILLEGAL_GENERATION)
        limit = self._settings.offset_metadata_max_bytes
        records, response = offsets.plan_txn_commit(request, turn.now_ms, limit)
        turn.producer = Producer(request.producer_id, request.producer_epoch)
        self._write_offsets(records, turn)
        turn.reply_when_written(context, response, _error_response_to(request, context))

    def _write_offsets(self, records: list[OffsetRecord], turn: Turn) -> None:
        if not records:
            return
        for record in records:
            turn.write(record)
        self._offsets.in_flight(records)
        turn.when_written(lambda _: self._offsets.arrived(records), lambda _, code: self._offsets.arrived(records))

    def _fetch(self, request: OffsetFetchRequest, context: RequestContext, turn: Turn) -> None:
        turn.reply(context, offsets.fetch_offsets(self._offsets, request, context.api_version))

    def _delete_offsets(self, request: OffsetDeleteRequest, context: RequestContext, turn: Turn) -> None:
        group = self._groups.find(request.group_id)
        if group is None:
            raise Rejected(ErrorCode.GROUP_ID_NOT_FOUND)
        offsets.check_offset_delete(group)
        self._touch(group)
        records, response = offsets.plan_offset_delete(group, self._offsets, request)
        for record in records:
            turn.write(record)
        turn.reply_when_written(context, response, _error_response_to(request, context))

    # Whole groups.

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
        turn.reply_when_written(context, DeleteGroupsResponse(results=results), _error_response_to(request, context))

    def _describe(self, request: DescribeGroupsRequest, context: RequestContext, turn: Turn) -> None:
        groups = [describe_group(name, self._groups.find(name), context.api_version) for name in request.groups]
        turn.reply(context, DescribeGroupsResponse(groups=groups))

    def _group_of_member(self, group_id: str) -> Group:
        group = self._groups.find(group_id)
        if group is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        self._touch(group)
        return group


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise Rejected(ErrorCode.INVALID_GROUP_ID)


def _error_response_to(request: Message, context: RequestContext) -> Callable[[ErrorCode], Message]:
    return lambda code: error_response(request, code, context.api_version)


def _not_a_member(identity: MemberIdentity) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=ErrorCode.UNKNOWN_MEMBER_ID,
    )
