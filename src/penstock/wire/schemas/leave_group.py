"""LeaveGroup: members go without waiting for their session to end.

Up to version 2 one member by its id, from 3 several, also by instance id.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, versions


class MemberIdentity(Message):
    member_id: str = ""
    group_instance_id: str | None = None
    reason: Annotated[str | None, versions("5+"), ignorable] = None


class LeaveGroupRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="4+")

    group_id: str = ""
    member_id: Annotated[str, versions("0-2")] = ""
    members: Annotated[list[MemberIdentity], versions("3+")] = EMPTY


class MemberResponse(Message):
    member_id: str = ""
    group_instance_id: str | None = ""
    error_code: Int16 = 0


class LeaveGroupResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="4+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], versions("3+")] = EMPTY
