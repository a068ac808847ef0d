"""SyncGroup and Heartbeat: members of a generation fetch their share, and say that they are alive.

The leader's assignment counts from the moment at which it is in the log, not before: whoever acts on it could otherwise
own partitions that the next coordinator knows nothing about.
"""

from __future__ import annotations

from penstock.coordination.errors import Refused
from penstock.coordination.events import RequestContext, Turn
from penstock.coordination.group_records import GroupRecord
from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.groups.rebalance import answer_syncs, prepare, share
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.sync_group import SyncGroupRequest


def sync(group: Group, request: SyncGroupRequest, context: RequestContext, turn: Turn) -> None:
    """Raises Refused, or answers now or when the leader's assignment is in the log."""
    member = group.validate(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.state is GroupState.PREPARING_REBALANCE:
        raise Refused(ErrorCode.REBALANCE_IN_PROGRESS)
    if group.state is GroupState.COMPLETING_REBALANCE:
        group.wait_for_sync(member, context, turn)
        if group.leader == member.member_id:
            _assign(group, request, turn)
    else:
        member.must_sync = False
        group.renew(member, turn.now_ms)
        turn.reply(context, share(group, member))


def heartbeat(group: Group, generation: int, member_id: str, instance_id: str | None, turn: Turn) -> ErrorCode:
    """Raises Refused where the sender is no member of the generation."""
    member = group.validate(member_id, instance_id)
    if generation != group.generation:
        raise Refused(ErrorCode.ILLEGAL_GENERATION)
    group.renew(member, turn.now_ms)
    preparing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual


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
