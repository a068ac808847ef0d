"""DescribeClientQuotas: the quotas that match a filter on user, client id or address."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int8, Int16, Int32, Message, Schema


class ComponentData(Message):
    entity_type: str = ""
    match_type: Int8 = 0
    match: str | None = ""


class DescribeClientQuotasRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    components: list[ComponentData] = EMPTY
    strict: bool = False


class EntityData(Message):
    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Message):
    key: str = ""
    value: float = 0.0


class EntryData(Message):
    entity: list[EntityData] = EMPTY
    values: list[ValueData] = EMPTY


class DescribeClientQuotasResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = EMPTY
