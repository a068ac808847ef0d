"""ListGroups: the groups a broker coordinates, filtered by state from version 4 and by type from 5."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema, ignorable, versions


class ListGroupsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    states_filter: Annotated[list[str], versions("4+")] = EMPTY
    types_filter: Annotated[list[str], versions("5+")] = EMPTY


class ListedGroup(Message):
    group_id: str = ""
    protocol_type: str = ""
    group_state: Annotated[str, versions("4+"), ignorable] = ""
    group_type: Annotated[str, versions("5+"), ignorable] = ""


class ListGroupsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = EMPTY
