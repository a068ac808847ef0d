"""Producer ids and transactions."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from penstock.broker.authorization_rules.rule import (
    SLICE,
    TOPIC_FAILED,
    WRITES_TRANSACTION,
    Access,
    ByElement,
    Prepared,
    Rule,
    by_topic_partition,
    needs_all,
    on_name,
    on_topic,
    partition_rows,
    reject_with_code,
    visible_of,
)
from penstock.security.acls import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    txn_offset_commit,
    write_txn_markers,
)
from penstock.wire.types import Message

_O, _R = Operation, ResourceType


def _init_producer_id(access: Access, message: init_producer_id.InitProducerIdRequest, _: int) -> ErrorCode:
    name = message.transactional_id
    if name is None:
        # A principal that may write to some topic may do so idempotently.
        if access.sees(_O.IDEMPOTENT_WRITE, _R.CLUSTER, CLUSTER_NAME) or access.may_any(_O.WRITE, _R.TOPIC):
            return ErrorCode.NONE
        access.on_cluster(_O.IDEMPOTENT_WRITE)
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not access.may(_O.WRITE, _R.TRANSACTIONAL_ID, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if message.enable2_pc and not access.may(_O.TWO_PHASE_COMMIT, _R.TRANSACTIONAL_ID, name):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _add_partitions(
    access: Access, message: add_partitions_to_txn.AddPartitionsToTxnRequest, version: int
) -> ErrorCode:
    if version >= 4:
        return ErrorCode.NONE if access.on_cluster(_O.CLUSTER_ACTION) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if access.may(_O.WRITE, _R.TRANSACTIONAL_ID, message.v3_and_below_transactional_id):
        return ErrorCode.NONE
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _write_markers(access: Access, message: Any, _: int) -> ErrorCode:
    if access.sees(_O.ALTER, _R.CLUSTER, CLUSTER_NAME) or access.on_cluster(_O.CLUSTER_ACTION):
        return ErrorCode.NONE
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _add_partitions_topics(
    access: Access, message: add_partitions_to_txn.AddPartitionsToTxnRequest, version: int
) -> Generator[None, None, Prepared]:
    """All or none: what is permitted is not attempted if something else is denied."""
    if version >= 4:
        return Prepared(message)
    topics = message.v3_and_below_topics
    denied = set()
    for number, topic in enumerate(topics, 1):
        if not access.may(_O.WRITE, _R.TOPIC, topic.name):
            denied.add(topic.name)
        if not number % SLICE:
            yield
    if not denied:
        return Prepared(message)
    results = [
        _added(topic, TOPIC_FAILED if topic.name in denied else ErrorCode.OPERATION_NOT_ATTEMPTED) for topic in topics
    ]
    return Prepared(None, "results_by_topic_v3_and_below", results)


def _added(topic: Any, code: ErrorCode) -> add_partitions_to_txn.AddPartitionsToTxnTopicResult:
    return add_partitions_to_txn.AddPartitionsToTxnTopicResult(
        name=topic.name,
        results_by_partition=[
            add_partitions_to_txn.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index in topic.partitions
        ],
    )


def _transactions_listed(access: Access, message: Any, response: Any, _: int) -> Generator[None, None, None]:
    response.transaction_states = yield from visible_of(
        access, response.transaction_states, _O.DESCRIBE, _R.TRANSACTIONAL_ID, "transactional_id"
    )


def _transactions_described(access: Access, message: Any, response: Any, _: int) -> Generator[None, None, None]:
    for state in response.transaction_states:
        state.topics = yield from visible_of(access, state.topics, _O.DESCRIBE, _R.TOPIC, "topic")
        yield


def _no_markers(message: Any, code: ErrorCode, _: int) -> Message:
    rows = [
        write_txn_markers.WritableTxnMarkerResult(
            producer_id=marker.producer_id,
            topics=[
                write_txn_markers.WritableTxnMarkerTopicResult(
                    name=topic.name,
                    partitions=partition_rows(
                        write_txn_markers.WritableTxnMarkerPartitionResult, topic.partition_indexes, code
                    ),
                )
                for topic in marker.topics
            ],
        )
        for marker in message.markers
    ]
    return write_txn_markers.WriteTxnMarkersResponse(markers=rows)


def _no_partitions_added(message: Any, code: ErrorCode, version: int) -> Message:
    if version >= 4:
        return add_partitions_to_txn.AddPartitionsToTxnResponse(error_code=code)
    results = [_added(topic, code) for topic in message.v3_and_below_topics]
    return add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _no_producer_id(_: Any, code: ErrorCode, __: int) -> Message:
    return init_producer_id.InitProducerIdResponse(error_code=code, producer_epoch=-1)


TRANSACTIONS: Final[dict[int, Rule]] = {
    ApiKey.INIT_PRODUCER_ID: Rule(needs=_init_producer_id, reject=_no_producer_id),
    ApiKey.ADD_PARTITIONS_TO_TXN: Rule(
        needs=_add_partitions, reject=_no_partitions_added, prepare=_add_partitions_topics
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Rule(
        needs=needs_all(WRITES_TRANSACTION, (_O.READ, _R.GROUP, lambda message: message.group_id)),
        reject=reject_with_code(add_offsets_to_txn.AddOffsetsToTxnResponse),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Rule(
        needs=needs_all(WRITES_TRANSACTION, (_O.READ, _R.GROUP, lambda message: message.group_id)),
        prepare=by_topic_partition(
            _O.READ, txn_offset_commit.TxnOffsetCommitResponseTopic, txn_offset_commit.TxnOffsetCommitResponsePartition
        ),
    ),
    ApiKey.END_TXN: Rule(needs=needs_all(WRITES_TRANSACTION), reject=reject_with_code(end_txn.EndTxnResponse)),
    ApiKey.WRITE_TXN_MARKERS: Rule(needs=_write_markers, reject=_no_markers),
    ApiKey.DESCRIBE_PRODUCERS: Rule(
        prepare=ByElement(
            "topics",
            "topics",
            on_topic(_O.READ),
            lambda topic, code: describe_producers.TopicResponse(
                name=topic.name,
                partitions=partition_rows(describe_producers.PartitionResponse, topic.partition_indexes, code),
            ),
        )
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Rule(
        prepare=ByElement(
            "transactional_ids",
            "transaction_states",
            on_name(_O.DESCRIBE, _R.TRANSACTIONAL_ID),
            lambda name, code: describe_transactions.TransactionState(transactional_id=name, error_code=code),
        ),
        complete=_transactions_described,
    ),
    ApiKey.LIST_TRANSACTIONS: Rule(complete=_transactions_listed),
}
