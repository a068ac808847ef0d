"""CreateAcls: new access rules."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, versions


class AclCreation(Message):
    resource_type: Int8 = 0
    resource_name: str = ""
    resource_pattern_type: Annotated[Int8, versions("1+")] = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class CreateAclsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    creations: list[AclCreation] = EMPTY


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: str | None = ""


class CreateAclsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = EMPTY
