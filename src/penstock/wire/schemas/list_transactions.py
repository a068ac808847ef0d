"""ListTransactions: the transactions a broker coordinates, by state, producer, age or pattern."""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, versions


class ListTransactionsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="0+")

    state_filters: list[str] = EMPTY
    producer_id_filters: list[Int64] = EMPTY
    duration_filter: Annotated[Int64, versions("1+")] = -1
    transactional_id_pattern: Annotated[str | None, versions("2+")] = None


class TransactionState(Message):
    transactional_id: str = ""
    producer_id: Int64 = 0
    transaction_state: str = ""


class ListTransactionsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-2", flexible="0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[str] = EMPTY
    transaction_states: list[TransactionState] = EMPTY
