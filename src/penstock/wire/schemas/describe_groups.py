"""DescribeGroups: state and members of classic groups."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, versions


class DescribeGroupsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="5+")

    groups: list[str] = EMPTY
    include_authorized_operations: Annotated[bool, versions("3+")] = False


class DescribedGroupMember(Message):
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("4+"), ignorable] = None
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[str | None, versions("6+")] = None
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = EMPTY
    authorized_operations: Annotated[Int32, versions("3+")] = -2147483648


class DescribeGroupsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="5+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    groups: list[DescribedGroup] = EMPTY
