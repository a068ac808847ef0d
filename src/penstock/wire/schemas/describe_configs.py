"""DescribeConfigs: settings of topics and brokers, with where each value comes from.

Version 0 says only whether a value is the default, later ones name its source.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema, ignorable, versions


class DescribeConfigsResource(Message):
    resource_type: Int8 = 0
    resource_name: str = ""
    configuration_keys: list[str] | None = EMPTY


class DescribeConfigsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    resources: list[DescribeConfigsResource] = EMPTY
    include_synonyms: Annotated[bool, versions("1+")] = False
    include_documentation: Annotated[bool, versions("3+")] = False


class DescribeConfigsSynonym(Message):
    name: str = ""
    value: str | None = ""
    source: Int8 = 0


class DescribeConfigsResourceResult(Message):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Annotated[Int8, versions("1+"), ignorable] = -1
    is_default: Annotated[bool, versions("0")] = False
    is_sensitive: bool = False
    synonyms: Annotated[list[DescribeConfigsSynonym], versions("1+"), ignorable] = EMPTY
    config_type: Annotated[Int8, versions("3+"), ignorable] = 0
    documentation: Annotated[str | None, versions("3+"), ignorable] = ""


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    configs: list[DescribeConfigsResourceResult] = EMPTY


class DescribeConfigsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-4", flexible="4+")

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = EMPTY
