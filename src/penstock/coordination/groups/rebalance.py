"""How a group gets from one generation to the next, and what time does to it.

A rebalance waits until all members that the group knows have joined, and no longer than the longest rebalance timeout
among them: dynamic members that did not come are then dropped, static ones stay until their session ends. The first
rebalance of an empty group waits for members that nobody knows yet: a fixed delay, again and again as long as members
keep arriving, up to the rebalance timeout.

Then the generation's leader assigns; who does not ask for its share within the rebalance timeout is dropped as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.coordination.events import Turn
from penstock.coordination.group_records import GroupRecord
from penstock.coordination.groups.group import NEVER, Group, GroupState
from penstock.coordination.groups.members import Member
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.join_group import JoinGroupResponse, JoinGroupResponseMember
from penstock.wire.schemas.sync_group import SyncGroupResponse

# A client may have chosen a timeout of zero; looking again and again would keep the broker busy.
_LEAST_WAIT_MS: Final = 1_000


def rebalance(group: Group, turn: Turn) -> None:
    """Something changed about the members: a new generation is due, unless one is on its way."""
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
        group.patience_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
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
        # Only static members that are away: their sessions, not our patience, end their membership.
        _wait_for_joins(group, turn.now_ms + max(group.rebalance_timeout_ms, _LEAST_WAIT_MS))
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
    """The answer that makes a member part of the current generation; its leader is told of everyone."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol or "",
        leader=group.leader or "",
        member_id=member.member_id,
        members=roster(group) if group.leader == member.member_id else [],
    )


def roster(group: Group) -> list[JoinGroupResponseMember]:
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
    """Everyone who waits for the leader's assignment gets its share, or `code`; their sessions begin anew."""
    for member in group.members.values():
        if member.syncing is not None:
            group.answer_sync(member, share(group, member, code), turn)
            group.renew(member, turn.now_ms)


def share(group: Group, member: Member, code: ErrorCode = ErrorCode.NONE) -> SyncGroupResponse:
    if code is not ErrorCode.NONE:
        return SyncGroupResponse(error_code=code)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def expire(group: Group, turn: Turn) -> None:
    """Deals with every deadline that has come."""
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
    """Members are gone for good, and the others share their work."""
    for member_id in member_ids:
        group.remove(member_id, turn)
    rebalance(group, turn)


def _wait_for_joins(group: Group, deadline_ms: int) -> None:
    group.join_deadline_ms = deadline_ms
    group.due(deadline_ms)


def _leader_has_joined(group: Group) -> bool:
    """A leader that stayed away is replaced by the first who came; False if nobody did."""
    leader = group.members.get(group.leader or "")
    if leader is None or leader.joining is None:
        came = next((member for member in group.members.values() if member.joining is not None), None)
        if came is None:
            return False
        group.leader = came.member_id
    return True


def _end_waiting_for_joins(group: Group, turn: Turn) -> None:
    if group.is_initial and group.has_grown and group.patience_ms > 0:
        delay_ms = min(group.settings.initial_rebalance_delay_ms, group.patience_ms)
        group.has_grown = False
        group.patience_ms -= delay_ms
        _wait_for_joins(group, turn.now_ms + delay_ms)
    else:
        complete_join(group, turn)


def _end_waiting_for_syncs(group: Group, turn: Turn) -> None:
    group.sync_deadline_ms = NEVER
    absent = [member.member_id for member in group.members.values() if member.must_sync]
    if absent:
        drop(group, absent, turn)
