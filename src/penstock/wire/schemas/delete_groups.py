"""DeleteGroups: removing empty groups and their offsets."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class DeleteGroupsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    groups_names: list[str] = EMPTY


class DeletableGroupResult(Message):
    group_id: str = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = EMPTY
