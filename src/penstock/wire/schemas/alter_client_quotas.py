"""AlterClientQuotas: setting and removing quotas."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Message, Schema


class EntityData(Message):
    entity_type: str = ""
    entity_name: str | None = ""


class OpData(Message):
    key: str = ""
    value: float = 0.0
    remove: bool = False


class EntryData(Message):
    entity: list[EntityData] = EMPTY
    ops: list[OpData] = EMPTY


class AlterClientQuotasRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    entries: list[EntryData] = EMPTY
    validate_only: bool = False


class EntryDataResult(Message):
    error_code: Int16 = 0
    error_message: str | None = ""
    entity: list[EntityData] = EMPTY


class AlterClientQuotasResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-1", flexible="1+")

    throttle_time_ms: Int32 = 0
    entries: list[EntryDataResult] = EMPTY
