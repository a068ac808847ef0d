"""LeaveGroup: members go of their own accord, or an administrator removes static ones by instance id."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.coordination.errors import Refused
from penstock.coordination.events import Turn
from penstock.coordination.groups.group import Group
from penstock.coordination.groups.members import NO_MEMBER_ID
from penstock.coordination.groups.rebalance import complete_if_all_joined, rebalance
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.leave_group import MemberIdentity, MemberResponse


def leave(group: Group, leavers: Iterable[MemberIdentity], turn: Turn) -> list[MemberResponse]:
    """One answer for each; those who were there are gone, and the rest rebalances once."""
    before = len(group.members)
    answers: list[MemberResponse] = []
    for identity in leavers:
        code = ErrorCode.NONE
        try:
            group.remove(_found(group, identity), turn)
        except Refused as refused:
            code = refused.code
        answers.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if len(group.members) < before:
        rebalance(group, turn)
    else:
        # Of those with an id only, which others may have been waiting for.
        complete_if_all_joined(group, turn)
    return answers


def _found(group: Group, identity: MemberIdentity) -> str:
    if identity.member_id == NO_MEMBER_ID and identity.group_instance_id is not None:
        member_id = group.static.get(identity.group_instance_id)
        if member_id is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID)
        return member_id
    if identity.member_id in group.pending and identity.group_instance_id is None:
        return identity.member_id
    return group.validate(identity.member_id, identity.group_instance_id).member_id
