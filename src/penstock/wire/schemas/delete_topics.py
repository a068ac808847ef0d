"""DeleteTopics: topics go by name, from version 6 by name or id."""

from typing import Annotated, ClassVar

from penstock.wire.types import (
    EMPTY,
    NO_UUID,
    Int16,
    Int32,
    Message,
    Schema,
    Uuid,
    ignorable,
    nullable,
    versions,
)


class DeleteTopicState(Message):
    name: str | None = None
    topic_id: Uuid = NO_UUID


class DeleteTopicsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="4+")

    topics: Annotated[list[DeleteTopicState], versions("6+")] = EMPTY
    topic_names: Annotated[list[str], versions("0-5"), ignorable] = EMPTY
    timeout_ms: Int32 = 0


class DeletableTopicResult(Message):
    name: Annotated[str | None, nullable("6+")] = ""
    topic_id: Annotated[Uuid, versions("6+"), ignorable] = NO_UUID
    error_code: Int16 = 0
    error_message: Annotated[str | None, versions("5+"), ignorable] = None


class DeleteTopicsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-6", flexible="4+")

    throttle_time_ms: Annotated[Int32, versions("1+"), ignorable] = 0
    responses: list[DeletableTopicResult] = EMPTY
