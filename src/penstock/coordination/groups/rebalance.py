"""From one generation to the next: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and timeouts.

A rebalance waits until all known members have joined, at most the longest rebalance timeout: dynamic members that did
not join are dropped, static ones stay until their session ends. The first rebalance of an empty group waits
`group.initial.rebalance.delay.ms`, again while members keep arriving, up to the rebalance timeout. Members that do not
sync within the rebalance timeout are dropped.

A dynamic member without an id gets one and must rejoin with it (from version 4), so that a client that gives up leaves
no ghost member. A static member takes the place of its previous process; in a stable group the other members do not
notice. The leader's assignment counts from the moment it is in the log, because a later coordinator must know it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.coordination.errors import Rejected
from penstock.coordination.group_records import GroupRecord
from penstock.coordination.groups.group import (
    NEVER,
    NO_MEMBER_ID,
    Group,
    GroupState,
    Member,
    new_member,
    new_member_id,
    offered_protocols,
    rebalance_timeout_ms,
    size_of,
)
from penstock.coordination.responses import RequestContext, Turn, join_error_response
from penstock.runtime.randomness import Random
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from penstock.wire.schemas.leave_group import MemberIdentity, MemberResponse
from penstock.wire.schemas.sync_group import SyncGroupRequest, SyncGroupResponse

# A client may set a timeout of zero; checking all the time would keep the broker busy.
_MIN_WAIT_MS: Final = 1_000
# The first versions of JoinGroup with this.
_MEMBER_ID_REQUIRED_VERSION: Final = 4
_SKIP_ASSIGNMENT_VERSION: Final = 9


# --- from one generation to the next


def rebalance(group: Group, turn: Turn) -> None:
    """The members changed: start a rebalance, or complete the one under way if possible."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(group, turn)
    else:
        prepare(group, turn)


def prepare(group: Group, turn: Turn) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
        answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
    for member in group.members.values():
        member.must_sync = False
    group.sync_deadline_ms = NEVER
    group.is_initial = group.state is GroupState.EMPTY
    group.enter(GroupState.PREPARING_REBALANCE, turn.now_ms)
    delay_ms = group.settings.initial_rebalance_delay_ms
    if group.is_initial and delay_ms > 0:
        group.has_grown = False
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        _wait_for_joins(group, turn.now_ms + delay_ms)
    elif group.is_initial or group.all_joined:
        complete_join(group, turn)
    else:
        _wait_for_joins(group, turn.now_ms + group.rebalance_timeout_ms)


def complete_if_all_joined(group: Group, turn: Turn) -> None:
    if group.state is GroupState.PREPARING_REBALANCE and not group.is_initial and group.all_joined:
        complete_join(group, turn)


def complete_join(group: Group, turn: Turn) -> None:
    """The members that have joined become the next generation."""
    group.join_deadline_ms = NEVER
    for member in [member for member in group.members.values() if member.joining is None]:
        if member.instance_id is None:
            group.remove(member.member_id, turn)
    if group.members and not _leader_has_joined(group):
        # Only static members are left, and they are away: their membership ends with their sessions.
        _wait_for_joins(group, turn.now_ms + max(group.rebalance_timeout_ms, _MIN_WAIT_MS))
        return
    group.is_initial = False
    group.next_generation(turn.now_ms)
    if group.state is GroupState.EMPTY:
        turn.write(GroupRecord(group.group_id, group.saved(turn.now_ms, {})))
        return
    for member in group.members.values():
        group.answer_join(member, joined(group, member), turn)
        group.renew(member, turn.now_ms)
        member.is_new = False
        member.must_sync = True
    group.sync_deadline_ms = turn.now_ms + group.rebalance_timeout_ms
    group.due(group.sync_deadline_ms)


def joined(group: Group, member: Member) -> JoinGroupResponse:
    """The response that makes a member part of the current generation; the leader gets the list of members."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol or "",
        leader=group.leader or "",
        member_id=member.member_id,
        members=member_list(group) if group.leader == member.member_id else [],
    )


def member_list(group: Group) -> list[JoinGroupResponseMember]:
    protocol = group.protocol or ""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.protocols.get(protocol, b""),
        )
        for member in group.members.values()
    ]


def answer_syncs(group: Group, code: ErrorCode, turn: Turn) -> None:
    """Members that wait for the leader's assignment get theirs, or `code`; their sessions are renewed."""
    for member in group.members.values():
        if member.syncing is not None:
            group.answer_sync(member, sync_response(group, member, code), turn)
            group.renew(member, turn.now_ms)


def sync_response(group: Group, member: Member, code: ErrorCode = ErrorCode.NONE) -> SyncGroupResponse:
    if code is not ErrorCode.NONE:
        return SyncGroupResponse(error_code=code)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def expire(group: Group, turn: Turn) -> None:
    """Handle every deadline that has passed."""
    now_ms = turn.now_ms
    lapsed = [member_id for member_id, deadline_ms in group.pending.items() if deadline_ms <= now_ms]
    for member_id in lapsed:
        group.remove(member_id, turn)
    silent = [m.member_id for m in group.members.values() if m.deadline_ms <= now_ms and m.can_expire]
    if silent:
        drop(group, silent, turn)
    elif lapsed:
        complete_if_all_joined(group, turn)
    if group.join_deadline_ms <= now_ms:
        _end_waiting_for_joins(group, turn)
    if group.sync_deadline_ms <= now_ms:
        _end_waiting_for_syncs(group, turn)
    group.find_earliest()


def drop(group: Group, member_ids: Iterable[str], turn: Turn) -> None:
    """Remove members and rebalance the others."""
    for member_id in member_ids:
        group.remove(member_id, turn)
    rebalance(group, turn)


def _wait_for_joins(group: Group, deadline_ms: int) -> None:
    group.join_deadline_ms = deadline_ms
    group.due(deadline_ms)


def _leader_has_joined(group: Group) -> bool:
    """A leader that has not joined is replaced by the first member that has; False if none has."""
    leader = group.members.get(group.leader or "")
    if leader is None or leader.joining is None:
        joined = next((member for member in group.members.values() if member.joining is not None), None)
        if joined is None:
            return False
        group.leader = joined.member_id
    return True


def _end_waiting_for_joins(group: Group, turn: Turn) -> None:
    if group.is_initial and group.has_grown and group.delay_left_ms > 0:
        delay_ms = min(group.settings.initial_rebalance_delay_ms, group.delay_left_ms)
        group.has_grown = False
        group.delay_left_ms -= delay_ms
        _wait_for_joins(group, turn.now_ms + delay_ms)
    else:
        complete_join(group, turn)


def _end_waiting_for_syncs(group: Group, turn: Turn) -> None:
    group.sync_deadline_ms = NEVER
    absent = [member.member_id for member in group.members.values() if member.must_sync]
    if absent:
        drop(group, absent, turn)


# --- JoinGroup


def join(group: Group, request: JoinGroupRequest, context: RequestContext, turn: Turn, random: Random) -> None:
    """Answered now, or when the rebalance is complete. Rejected."""
    offered = offered_protocols(request)
    if size_of(offered) > group.settings.max_member_bytes:
        raise Rejected(ErrorCode.INVALID_REQUEST)
    if not group.has_room_for(request.member_id, offered):
        turn.reply(
            context, join_error_response(ErrorCode.GROUP_MAX_SIZE_REACHED, context.api_version, request.member_id)
        )
    elif not _has_room(group, request.member_id):
        group.remove(request.member_id, turn)
        complete_if_all_joined(group, turn)
        turn.reply(context, join_error_response(ErrorCode.GROUP_MAX_SIZE_REACHED, context.api_version))
    elif not group.supports(request.protocol_type, (protocol.name for protocol in request.protocols)):
        raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif request.member_id == NO_MEMBER_ID:
        _join_first(group, request, context, turn, random)
    elif request.member_id in group.pending and request.group_instance_id is None:
        _add(group, request.member_id, request, context, turn)
    else:
        member = group.validate(request.member_id, request.group_instance_id)
        _join_again(group, member, request, context, turn)


def _has_room(group: Group, member_id: str) -> bool:
    member = group.members.get(member_id)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # Members that have joined count, not all members: after a lower limit the last to rejoin are rejected.
        return (member is not None and member.joining is not None) or group.awaiting_join < group.settings.max_size
    return member is not None or len(group.members) < group.settings.max_size


def _join_first(group: Group, request: JoinGroupRequest, context: RequestContext, turn: Turn, random: Random) -> None:
    instance_id = request.group_instance_id
    member_id = new_member_id(context, instance_id, random)
    if instance_id is not None and instance_id in group.static:
        _replace_static_member(group, group.static[instance_id], member_id, request, context, turn)
    elif instance_id is None and context.api_version >= _MEMBER_ID_REQUIRED_VERSION:
        deadline_ms = turn.now_ms + request.session_timeout_ms
        group.add_pending_member(member_id, deadline_ms)
        turn.reply(context, join_error_response(ErrorCode.MEMBER_ID_REQUIRED, context.api_version, member_id))
    else:
        _add(group, member_id, request, context, turn)


def _add(group: Group, member_id: str, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    if group.is_initial:
        group.has_grown = True
    group.add(new_member(member_id, request, context), request.protocol_type, context, turn.now_ms)
    rebalance(group, turn)


def _join_again(group: Group, member: Member, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    changed = member.protocols != offered_protocols(request)
    # A leader that joins again has seen a change that only leaders watch, such as new partitions.
    leads = group.state is GroupState.STABLE and group.leader == member.member_id
    if group.state is GroupState.PREPARING_REBALANCE or changed or leads:
        _update(group, member, request, context, turn)
        rebalance(group, turn)
    else:
        # The response was lost, and nothing has happened since.
        group.renew(member, turn.now_ms)
        turn.reply(context, joined(group, member))


def _update(group: Group, member: Member, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    group.update(member, offered_protocols(request), context, turn)


def _replace_static_member(
    group: Group, old_id: str, new_id: str, request: JoinGroupRequest, context: RequestContext, turn: Turn
) -> None:
    old_leader = group.leader
    member = group.replace_static(old_id, new_id, context, turn)
    _update(group, member, request, context, turn)
    group.renew(member, turn.now_ms)
    if group.state is GroupState.STABLE and group.chosen_protocol() == group.protocol:
        _replace_without_rebalance(group, member, old_leader, context, turn)
    elif group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(group, turn)
    else:
        # Also in CompletingRebalance: the leader may be assigning to the old id.
        prepare(group, turn)


def _replace_without_rebalance(
    group: Group, member: Member, old_leader: str | None, context: RequestContext, turn: Turn
) -> None:
    """The generation continues; only the new id must be stored before it is used."""
    generation = group.generation
    assignments = {each.member_id: each.assignment for each in group.members.values()}
    turn.write(GroupRecord(group.group_id, group.saved(turn.now_ms, assignments)))

    def done(later: Turn) -> None:
        # Otherwise a rebalance has started, in which the member counts as joined.
        if member.joining is context and group.state is GroupState.STABLE and group.generation == generation:
            group.answer_join(member, _resumed(group, member, old_leader, context.api_version), later)
            group.renew(member, later.now_ms)

    def failed(later: Turn, code: ErrorCode) -> None:
        if member.joining is context and group.state is GroupState.STABLE:
            group.answer_join(member, join_error_response(code, context.api_version), later)
            group.renew(member, later.now_ms)

    turn.when_written(done, failed)


def _resumed(group: Group, member: Member, old_leader: str | None, api_version: int) -> JoinGroupResponse:
    response = joined(group, member)
    if group.leader != member.member_id:
        return response
    if api_version >= _SKIP_ASSIGNMENT_VERSION:
        response.skip_assignment = True
        response.members = member_list(group)
    else:
        # An old client that leads would assign again, so it gets the previous leader's id.
        response.leader = old_leader or ""
        response.members = []
    return response


# --- SyncGroup and Heartbeat


def sync(group: Group, request: SyncGroupRequest, context: RequestContext, turn: Turn) -> None:
    """Answered now, or when the leader's assignment is committed. Rejected."""
    member = group.validate(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise Rejected(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
        raise Rejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is GroupState.PREPARING_REBALANCE:
        raise Rejected(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state is GroupState.COMPLETING_REBALANCE:
        group.wait_for_sync(member, context, turn)
        if group.leader == member.member_id:
            _assign(group, request, turn)
    else:
        member.must_sync = False
        group.renew(member, turn.now_ms)
        turn.reply(context, sync_response(group, member))


def heartbeat(group: Group, generation: int, member_id: str, instance_id: str | None, turn: Turn) -> ErrorCode:
    """Rejected if the sender is not a member of the generation."""
    member = group.validate(member_id, instance_id)
    if generation != group.generation:
        raise Rejected(ErrorCode.ILLEGAL_GENERATION)
    group.renew(member, turn.now_ms)
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differs(requested: str | None, actual: str | None) -> bool:
    return requested is not None and actual is not None and requested != actual


def _assign(group: Group, request: SyncGroupRequest, turn: Turn) -> None:
    assignments = {each.member_id: each.assignment for each in request.assignments}
    generation = group.generation
    turn.write(GroupRecord(group.group_id, group.saved(turn.now_ms, assignments)))

    def still_awaited() -> bool:
        return group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation

    def done(later: Turn) -> None:
        if still_awaited():
            for member in group.members.values():
                member.assignment = assignments.get(member.member_id, b"")
            answer_syncs(group, ErrorCode.NONE, later)
            group.enter(GroupState.STABLE, later.now_ms)

    def failed(later: Turn, code: ErrorCode) -> None:
        if still_awaited():
            answer_syncs(group, code, later)
            prepare(group, later)

    turn.when_written(done, failed)


# --- LeaveGroup


def leave(group: Group, leaving: Iterable[MemberIdentity], turn: Turn) -> list[MemberResponse]:
    """One response for each; the members are removed, and the others rebalance once."""
    before = len(group.members)
    answers: list[MemberResponse] = []
    for identity in leaving:
        code = ErrorCode.NONE
        try:
            group.remove(_found(group, identity), turn)
        except Rejected as rejected:
            code = rejected.code
        answers.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if len(group.members) < before:
        rebalance(group, turn)
    else:
        # A pending member may have left for which the others were waiting.
        complete_if_all_joined(group, turn)
    return answers


def _found(group: Group, identity: MemberIdentity) -> str:
    if identity.member_id == NO_MEMBER_ID and identity.group_instance_id is not None:
        member_id = group.static.get(identity.group_instance_id)
        if member_id is None:
            raise Rejected(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id
    if identity.member_id in group.pending and identity.group_instance_id is None:
        return identity.member_id
    return group.validate(identity.member_id, identity.group_instance_id).member_id
