"""JoinGroup: who may enter, under which id, and whether that means a rebalance.

A dynamic member without an id is given one and must come back with it (from version 4), so that a client that gives up
waiting leaves a name behind instead of one ghost after another. A static member, known by its instance id, takes the
place of its former self, and in a stable group nobody else notices.
"""

from __future__ import annotations

from typing import Final

from penstock.coordination.errors import Refused
from penstock.coordination.events import RequestContext, Turn
from penstock.coordination.group_records import GroupRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.groups.members import (
    NO_MEMBER_ID,
    Member,
    new_member,
    new_member_id,
    offered_protocols,
    rebalance_timeout_ms,
    size_of,
)
from penstock.coordination.groups.rebalance import complete_if_all_joined, joined, prepare, rebalance, roster
from penstock.coordination.refusals import refuse_join
from penstock.runtime.randomness import Random
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.join_group import JoinGroupRequest, JoinGroupResponse

_ID_REQUIRED: Final = 4
_SKIPS_ASSIGNMENT: Final = 9


def join(group: Group, request: JoinGroupRequest, context: RequestContext, turn: Turn, random: Random) -> None:
    """Raises Refused, or answers now or when the rebalance is complete."""
    offered = offered_protocols(request)
    if size_of(offered) > group.settings.max_member_bytes:
        raise Refused(ErrorCode.INVALID_REQUEST)
    if not group.has_room_for(request.member_id, offered):
        turn.reply(context, refuse_join(ErrorCode.GROUP_MAX_SIZE_REACHED, context.api_version, request.member_id))
    elif not _has_room(group, request.member_id):
        group.remove(request.member_id, turn)
        complete_if_all_joined(group, turn)
        turn.reply(context, refuse_join(ErrorCode.GROUP_MAX_SIZE_REACHED, context.api_version))
    elif not group.supports(request.protocol_type, (protocol.name for protocol in request.protocols)):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif request.member_id == NO_MEMBER_ID:
        _join_anew(group, request, context, turn, random)
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
        # Who has joined counts, not who is a member: a limit that was lowered turns the last to rejoin away.
        return (member is not None and member.joining is not None) or group.awaiting_join < group.settings.max_size
    return member is not None or len(group.members) < group.settings.max_size


def _join_anew(group: Group, request: JoinGroupRequest, context: RequestContext, turn: Turn, random: Random) -> None:
    instance_id = request.group_instance_id
    member_id = new_member_id(context, instance_id, random)
    if instance_id is not None and instance_id in group.static:
        _take_over(group, group.static[instance_id], member_id, request, context, turn)
    elif instance_id is None and context.api_version >= _ID_REQUIRED:
        deadline_ms = turn.now_ms + request.session_timeout_ms
        group.promise(member_id, deadline_ms)
        turn.reply(context, refuse_join(ErrorCode.MEMBER_ID_REQUIRED, context.api_version, member_id))
    else:
        _add(group, member_id, request, context, turn)


def _add(group: Group, member_id: str, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    if group.is_initial:
        group.has_grown = True
    group.add(new_member(member_id, request, context), request.protocol_type, context, turn.now_ms)
    rebalance(group, turn)


def _join_again(group: Group, member: Member, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    changed = member.protocols != offered_protocols(request)
    # A leader that joins has seen something that only leaders look at, such as new partitions.
    leads = group.state is GroupState.STABLE and group.leader == member.member_id
    if group.state is GroupState.PREPARING_REBALANCE or changed or leads:
        _update(group, member, request, context, turn)
        rebalance(group, turn)
    else:
        # The answer was lost on its way, and nothing has happened since.
        group.renew(member, turn.now_ms)
        turn.reply(context, joined(group, member))


def _update(group: Group, member: Member, request: JoinGroupRequest, context: RequestContext, turn: Turn) -> None:
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = rebalance_timeout_ms(request)
    group.update(member, offered_protocols(request), context, turn)


def _take_over(
    group: Group, old_id: str, new_id: str, request: JoinGroupRequest, context: RequestContext, turn: Turn
) -> None:
    old_leader = group.leader
    member = group.replace_static(old_id, new_id, context, turn)
    _update(group, member, request, context, turn)
    group.renew(member, turn.now_ms)
    if group.state is GroupState.STABLE and group.chosen_protocol() == group.protocol:
        _take_over_quietly(group, member, old_leader, context, turn)
    elif group.state is GroupState.PREPARING_REBALANCE:
        complete_if_all_joined(group, turn)
    else:
        # In CompletingRebalance too: the leader may already be assigning to the old id.
        prepare(group, turn)


def _take_over_quietly(
    group: Group, member: Member, old_leader: str | None, context: RequestContext, turn: Turn
) -> None:
    """The generation goes on; only the new id has to outlive us before it is used."""
    generation = group.generation
    assignments = {each.member_id: each.assignment for each in group.members.values()}
    turn.write(GroupRecord(group.group_id, group.saved(turn.now_ms, assignments)))

    def done(later: Turn) -> None:
        # Otherwise a rebalance has begun, and the member counts as joined in that.
        if member.joining is context and group.state is GroupState.STABLE and group.generation == generation:
            group.answer_join(member, _resumed(group, member, old_leader, context.api_version), later)
            group.renew(member, later.now_ms)

    def failed(later: Turn, code: ErrorCode) -> None:
        if member.joining is context and group.state is GroupState.STABLE:
            group.answer_join(member, refuse_join(code, context.api_version), later)
            group.renew(member, later.now_ms)

    turn.when_written(done, failed)


def _resumed(group: Group, member: Member, old_leader: str | None, api_version: int) -> JoinGroupResponse:
    response = joined(group, member)
    if group.leader != member.member_id:
        return response
    if api_version >= _SKIPS_ASSIGNMENT:
        response.skip_assignment = True
        response.members = roster(group)
    else:
        # Told that it leads, it would assign anew, which nobody waits for; so it is shown its former self.
        response.leader = old_leader or ""
        response.members = []
    return response
