"""IncrementalAlterConfigs: setting, deleting, extending or reducing single settings."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema


class AlterableConfig(Message):
    name: str = ""
    config_operation: Int8 = 0
    value: str | None = ""


class AlterConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[AlterableConfig] = EMPTY


class IncrementalAlterConfigsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    resources: list[AlterConfigsResource] = EMPTY
    validate_only: bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""


class IncrementalAlterConfigsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = EMPTY
