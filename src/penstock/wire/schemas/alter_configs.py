"""AlterConfigs: replacing all settings of a resource at once."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema


class AlterableConfig(Message):
    name: str = ""
    value: str | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = EMPTY


class AlterConfigsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    resources: list[AlterConfigsResource] = EMPTY
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class AlterConfigsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="2+")

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = EMPTY
