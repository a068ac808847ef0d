"""Heartbeat: a member is alive, and learns from the answer's error code that the group moves on."""

from typing import Annotated, ClassVar

from penstock.wire.types import Int16, Int32, Message, Schema, ignorable, versions


class HeartbeatRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: Annotated[str | None, versions("3+")] = None


class HeartbeatResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Int16 = 0
