"""FindCoordinator: which broker looks after a group or a transactional id.

Up to version 3 one key and one answer, from 4 many.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, ignorable, versions


class FindCoordinatorRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="3+")

    key: Annotated[str, versions("0-3")] = ""
    key_type: Annotated[Int8, versions("1+")] = 0
    coordinator_keys: Annotated[list[str], versions("4+")] = EMPTY


class Coordinator(Message):
    key: str = ""
    node_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


class FindCoordinatorResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="3+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    error_code: Annotated[Int16, versions("0-3")] = 0
    error_message: Annotated[str | None, versions("1-3"), ignorable] = ""
    node_id: Annotated[Int32, versions("0-3")] = 0
    host: Annotated[str, versions("0-3")] = ""
    port: Annotated[Int32, versions("0-3")] = 0
    coordinators: Annotated[list[Coordinator], versions("4+")] = EMPTY
