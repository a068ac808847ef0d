"""DescribeGroups and ListGroups: what groups look like from outside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.coordination.groups.group import Group, GroupState
from penstock.coordination.groups.members import Member
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.describe_groups import DescribedGroup, DescribedGroupMember
from penstock.wire.schemas.list_groups import ListedGroup, ListGroupsRequest

CLASSIC: Final = "classic"
_SAYS_NOT_FOUND: Final = 6


def describe(group_id: str, group: Group | None, api_version: int) -> DescribedGroup:
    if not group_id:
        return DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    if group is None:
        absent = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        if api_version >= _SAYS_NOT_FOUND:
            absent.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            absent.error_message = f"There is no group {group_id}."
        return absent
    # Until a generation is complete, what members offer and own is about to change.
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[_described(member, protocol) for member in group.members.values()],
    )


def listed(groups: Iterable[Group], request: ListGroupsRequest) -> list[ListedGroup]:
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
