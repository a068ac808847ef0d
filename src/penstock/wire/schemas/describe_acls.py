"""DescribeAcls: the access rules that match a filter."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, versions


class DescribeAclsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Annotated[Int8, versions("1+")] = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


class DescribeAclsResource(Message):
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Annotated[Int8, versions("1+")] = 3
    acls: list[AclDescription] = EMPTY


class DescribeAclsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-3", flexible="2+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    resources: list[DescribeAclsResource] = EMPTY
