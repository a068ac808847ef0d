"""DescribeTransactions: state and partitions of transactional ids."""

from typing import ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema


class DescribeTransactionsRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    transactional_ids: list[str] = EMPTY


class TopicData(Message):
    topic: str = ""
    partitions: list[Int32] = EMPTY


class TransactionState(Message):
    error_code: Int16 = 0
    transactional_id: str = ""
    transaction_state: str = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = EMPTY


class DescribeTransactionsResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0", flexible="0+")

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState] = EMPTY
