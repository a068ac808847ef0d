"""CreateTopics: new topics, by number of partitions or by explicit assignment."""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int8,
    Int16,
    Int32,
    Message,
    Schema,
    Uuid,
    ignorable,
    tagged,
    versions,
)


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = EMPTY


class CreatableTopicConfig(Message):
    name: str = ""
    value: str | None = ""


class CreatableTopic(Message):
    name: str = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = EMPTY
    configs: list[CreatableTopicConfig] = EMPTY


class CreateTopicsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-7", flexible="5+")

    topics: list[CreatableTopic] = EMPTY
    timeout_ms: Int32 = 60000
    validate_only: Annotated[bool, versions("1+")] = False


class CreatableTopicConfigs(Message):
    name: str = ""
    value: str | None = ""
    read_only: bool = False
    config_source: Int8 = -1
    is_sensitive: bool = False


class CreatableTopicResult(Message):
    name: str = ""
    topic_id: Annotated[Uuid, versions("7+"), ignorable] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[str | None, versions("1+"), ignorable] = ""
    topic_config_error_code: Annotated[Int16, tagged(0, "5+"), ignorable] = 0
    num_partitions: Annotated[Int32, versions("5+"), ignorable] = -1
    replication_factor: Annotated[Int16, versions("5+"), ignorable] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, versions("5+"), ignorable] = EMPTY


class CreateTopicsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-7", flexible="5+")

    throttle_time_ms: Annotated[Int32, versions("2+"), ignorable] = 0
    topics: list[CreatableTopicResult] = EMPTY
