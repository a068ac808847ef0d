"""JoinGroup: a member enters a group and waits for the others; the leader's answer lists them all."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, nullable, versions


class JoinGroupRequestProtocol(Message):
    name: str = ""
    metadata: bytes = b""


class JoinGroupRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-9", flexible="6+")

    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, versions("1+"), ignorable] = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("5+")] = None
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = EMPTY
    reason: Annotated[str | None, versions("8+"), ignorable] = None


class JoinGroupResponseMember(Message):
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("5+"), ignorable] = None
    metadata: bytes = b""


class JoinGroupResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-9", flexible="6+")

    throttle_time_ms: Annotated[Int32, versions("2+"), ignorable] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[str | None, versions("7+"), ignorable] = None
    protocol_name: Annotated[str | None, nullable("7+")] = ""
    leader: str = ""
    skip_assignment: Annotated[bool, versions("9+")] = False
    member_id: str = ""
    members: list[JoinGroupResponseMember] = EMPTY
