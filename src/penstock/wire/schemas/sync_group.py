"""SyncGroup: the leader of a group hands in the assignment, everyone gets their share."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, versions


class SyncGroupRequestAssignment(Message):
    member_id: str = ""
    assignment: bytes = b""


class SyncGroupRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="4+")

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("3+")] = None
    protocol_type: Annotated[str | None, versions("5+"), ignorable] = None
    protocol_name: Annotated[str | None, versions("5+"), ignorable] = None
    assignments: list[SyncGroupRequestAssignment] = EMPTY


class SyncGroupResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="4+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[str | None, versions("5+"), ignorable] = None
    protocol_name: Annotated[str | None, versions("5+"), ignorable] = None
    assignment: bytes = b""
