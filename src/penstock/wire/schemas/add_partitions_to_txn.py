"""AddPartitionsToTxn: partitions join a transaction before anything is written to them.

Up to version 3 a client asks for one transaction, from 4 brokers ask for several at once.
"""

from typing import Annotated, ClassVar

from penstock.wire.types import EMPTY, Int16, Int32, Int64, Message, Schema, ignorable, versions


class AddPartitionsToTxnTopic(Message):
    name: str = ""
    partitions: list[Int32] = EMPTY


class AddPartitionsToTxnTransaction(Message):
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: bool = False
    topics: list[AddPartitionsToTxnTopic] = EMPTY


class AddPartitionsToTxnRequest(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    transactions: Annotated[list[AddPartitionsToTxnTransaction], versions("4+")] = EMPTY
    v3_and_below_transactional_id: Annotated[str, versions("0-3")] = ""
    v3_and_below_producer_id: Annotated[Int64, versions("0-3")] = 0
    v3_and_below_producer_epoch: Annotated[Int16, versions("0-3")] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], versions("0-3")] = EMPTY


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    name: str = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = EMPTY


class AddPartitionsToTxnResult(Message):
    transactional_id: str = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = EMPTY


class AddPartitionsToTxnResponse(Message):
    SCHEMA: ClassVar[Schema] = Schema("0-5", flexible="3+")

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, versions("4+"), ignorable] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], versions("4+")] = EMPTY
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], versions("0-3")] = EMPTY
