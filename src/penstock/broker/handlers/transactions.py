"""Requests of transactions, translated for their coordinator: partitions and offsets that join, the end, descriptions.

AddPartitionsToTxn up to version 3 comes from clients and names one transaction; from version 4 on it comes from
brokers, which add or verify partitions for the producers that write to them (KIP-890).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from penstock.broker.broker_only import is_protected
from penstock.broker.errors import missing_partition_error
from penstock.broker.request import Answer, Request, Responses, Services
from penstock.cluster.broker_links import LinkLost
from penstock.cluster.errors import ClusterError
from penstock.coordination.coordinator_runtime import partition_for_key
from penstock.coordination.transactions.transaction import (
    NO_TIME,
    VERSION_1,
    VERSION_2,
    TopicPartition,
    Transaction,
    TransactionState,
    by_topic,
)
from penstock.coordination.transactions.transaction_shard import Add, Added, End, Ended
from penstock.log.producer_state import ProducerEntry
from penstock.security.patterns import Pattern, PatternError
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.schemas import describe_producers, describe_transactions, list_transactions
from penstock.wire.schemas.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.wire.schemas.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from penstock.wire.schemas.end_txn import EndTxnRequest, EndTxnResponse

logger = logging.getLogger(__name__)

# The first versions of all these APIs with PRODUCER_FENCED, of AddPartitionsToTxn for brokers, of EndTxn with an epoch.
_FIRST_WITH_FENCED: Final = 2
_FIRST_FOR_BROKERS: Final = 4
_FIRST_WITH_EPOCH: Final = 5
_BROKER_HOLD_MS: Final = 20
# Partitions, ids or producers that are described in one turn of the loop.
_AT_ONCE: Final = 1_000
_ALL_STATES: Final = {state.label: state for state in TransactionState}


def _known(code: ErrorCode, version: int) -> ErrorCode:
    """The code as clients of a version know it."""
    if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_WITH_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


# --- what joins a transaction


def handle_add_partitions(services: Services, request: Request, answer: Answer) -> None:
    message: AddPartitionsToTxnRequest = request.message
    if request.version >= _FIRST_FOR_BROKERS:
        _add_for_brokers(services, message, answer)
        return
    topics = message.v3_and_below_topics
    partitions = _partitions(topics)
    protected = {topic.name for topic in topics if is_protected(services, request.session, topic.name)}
    if protected:
        failed, rest = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.OPERATION_NOT_ATTEMPTED
        codes = {key: failed if key[0] in protected else rest for key in partitions}
        answer(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes)))
        return

    def done(added: Added) -> None:
        codes = _codes(added, partitions)
        if any(codes.values()) and not all(codes.values()):
            # All or none.
            codes = {key: code or ErrorCode.OPERATION_NOT_ATTEMPTED for key, code in codes.items()}
        results = _results(topics, {key: _known(code, request.version) for key, code in codes.items()})
        answer(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results))

    add = Add(
        message.v3_and_below_transactional_id,
        message.v3_and_below_producer_id,
        message.v3_and_below_producer_epoch,
        partitions,
        VERSION_1,
    )
    services.transactions.add(add, done)


def _add_for_brokers(services: Services, message: AddPartitionsToTxnRequest, answer: Answer) -> None:
    def done(results: list[AddPartitionsToTxnResult]) -> None:
        answer(AddPartitionsToTxnResponse(results_by_transaction=results))

    results = Responses(done)
    for transaction in message.transactions:
        _add_one(services, transaction, results.part())
    results.end()


def _add_one(services: Services, transaction: AddPartitionsToTxnTransaction, answer: Answer) -> None:
    partitions = _partitions(transaction.topics)

    def done(added: Added) -> None:
        results = _results(transaction.topics, _codes(added, partitions))
        answer(AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=results))

    add = Add(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        partitions,
        VERSION_2,
        transaction.verify_only,
    )
    services.transactions.add(add, done, _BROKER_HOLD_MS)


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> frozenset[TopicPartition]:
    return frozenset((topic.name, index) for topic in topics for index in topic.partitions)


def _codes(added: Added, partitions: frozenset[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    concerned = added.missing or partitions
    return {key: added.code if key in concerned else ErrorCode.NONE for key in partitions}


def _results(
    topics: list[AddPartitionsToTxnTopic], codes: dict[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def handle_add_offsets(services: Services, request: Request, answer: Answer) -> None:
    """The partition of the group's offsets joins the transaction. Its topic is created for the first group."""
    message: AddOffsetsToTxnRequest = request.message
    if not message.group_id:
        answer(AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID))
    elif OFFSETS_TOPIC in services.cluster.image.topics:
        _add_offsets(services, request, answer)
    else:
        # A producer asks here before it looks for the group's coordinator.
        not_available = AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)

        async def create() -> None:
            try:
                await services.topic_creation.create_internal_topic(OFFSETS_TOPIC)
            except (ClusterError, LinkLost) as error:
                logger.info("offsets cannot join a transaction: error=%s", error)
                answer(not_available)
                return
            _add_offsets(services, request, answer)

        services.spawn(create(), lambda _: answer(not_available))


def _add_offsets(services: Services, request: Request, answer: Answer) -> None:
    message: AddOffsetsToTxnRequest = request.message
    topic = services.cluster.image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        answer(AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    index = partition_for_key(message.group_id, len(topic.partitions))
    add = Add(
        message.transactional_id,
        message.producer_id,
        message.producer_epoch,
        frozenset({(OFFSETS_TOPIC, index)}),
        VERSION_1,
    )
    services.transactions.add(
        add, lambda added: answer(AddOffsetsToTxnResponse(error_code=_known(added.code, request.version)))
    )


# --- the end


def handle_end(services: Services, request: Request, answer: Answer) -> None:
    message: EndTxnRequest = request.message

    def done(ended: Ended) -> None:
        code = _known(ended.code, request.version)
        answer(EndTxnResponse(error_code=code, producer_id=ended.producer_id, producer_epoch=ended.epoch))

    version = VERSION_2 if request.version >= _FIRST_WITH_EPOCH else VERSION_1
    end = End(message.transactional_id, message.producer_id, message.producer_epoch, message.committed, version)
    services.transactions.end(end, done)


# --- descriptions


def handle_list(services: Services, request: Request, answer: Answer) -> None:
    message: list_transactions.ListTransactionsRequest = request.message
    response = list_transactions.ListTransactionsResponse()
    response.unknown_state_filters = [name for name in message.state_filters if name not in _ALL_STATES]
    if services.transactions.is_loading:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answer(response)
        return
    try:
        pattern = Pattern(message.transactional_id_pattern) if message.transactional_id_pattern else None
    except PatternError as error:
        logger.info("transactions not listed: pattern=%r error=%s", message.transactional_id_pattern, error)
        response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
        answer(response)
        return
    wanted = _filter(services, message)

    async def collect() -> None:
        for shard in services.transactions.shards:
            for number, (transactional_id, transaction) in enumerate(list(shard.each())):
                if number % 1_000 == 999:
                    await services.long_requests.pause(request.channel)
                if not wanted(transaction):
                    continue
                if pattern is None or await services.long_requests.through(
                    pattern.steps(transactional_id), request.channel
                ):
                    response.transaction_states.append(
                        list_transactions.TransactionState(
                            transactional_id=transactional_id,
                            producer_id=transaction.producer_id,
                            transaction_state=transaction.state.label,
                        )
                    )
        answer(response)

    services.long_requests.start(request.channel, request.size, collect)


def _filter(services: Services, message: list_transactions.ListTransactionsRequest) -> Callable[[Transaction], bool]:
    states = {_ALL_STATES[name] for name in message.state_filters if name in _ALL_STATES}
    producer_ids = frozenset(message.producer_id_filters)
    now_ms, duration_ms = services.transactions.now_ms(), message.duration_filter

    def wanted(transaction: Transaction) -> bool:
        if message.state_filters and transaction.state not in states:
            return False
        if producer_ids and transaction.producer_id not in producer_ids:
            return False
        return duration_ms < 0 or (transaction.start_ms != NO_TIME and now_ms - transaction.start_ms > duration_ms)

    return wanted


def handle_describe(services: Services, request: Request, answer: Answer) -> None:
    message: describe_transactions.DescribeTransactionsRequest = request.message
    response = describe_transactions.DescribeTransactionsResponse()

    def describe() -> Iterator[int]:
        for name in message.transactional_ids:
            state = _described(services, name)
            response.transaction_states.append(state)
            yield 1 + sum(len(topic.partitions) for topic in state.topics)

    _in_slices(services, request, describe(), lambda: answer(response))


def _in_slices(services: Services, request: Request, work: Iterator[int], done: Callable[[], None]) -> None:
    """Do the work, which yields how much it did, at once if it is little; otherwise others are served in between."""
    if _is_done(work):
        done()
        return

    async def rest() -> None:
        while not _is_done(work):
            await services.long_requests.pause(request.channel)
        done()

    services.long_requests.start(request.channel, request.size, rest)


def _is_done(work: Iterator[int]) -> bool:
    """Work until nothing is left to do, or the slice is used up."""
    amount = 0
    for each in work:
        amount += each
        if amount >= _AT_ONCE:
            return False
    return True


def _described(services: Services, transactional_id: str) -> describe_transactions.TransactionState:
    found = services.transactions.describe(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST
    if isinstance(found, ErrorCode):
        return describe_transactions.TransactionState(transactional_id=transactional_id, error_code=found)
    topics = [
        describe_transactions.TopicData(topic=topic, partitions=indexes)
        for topic, indexes in by_topic(found.partitions).items()
    ]
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=topics,
    )


def handle_describe_producers(services: Services, request: Request, answer: Answer) -> None:
    message: describe_producers.DescribeProducersRequest = request.message
    response = describe_producers.DescribeProducersResponse()

    def describe() -> Iterator[int]:
        for topic in message.topics:
            described = describe_producers.TopicResponse(name=topic.name)
            response.topics.append(described)
            for index in topic.partition_indexes:
                found = describe_producers.PartitionResponse(partition_index=index)
                described.partitions.append(found)
                yield from _describe_producers(services, topic.name, found)

    _in_slices(services, request, describe(), lambda: answer(response))


def _describe_producers(services: Services, topic: str, found: describe_producers.PartitionResponse) -> Iterator[int]:
    partition = services.replicas.get(topic, found.partition_index)
    if partition is None or not partition.is_leader:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition is None:
            code = missing_partition_error(services, topic, found.partition_index)
        found.error_code, found.error_message = code, code.meaning
        yield 1
        return
    entries = partition.log.producers.entries()
    for begin in range(0, max(1, len(entries)), _AT_ONCE):
        found.active_producers += [_producer(entry) for entry in entries[begin : begin + _AT_ONCE]]
        yield _AT_ONCE if entries else 1


def _producer(entry: ProducerEntry) -> describe_producers.ProducerState:
    return describe_producers.ProducerState(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.last_sequence,
        last_timestamp=entry.last_timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.transaction_first_offset,
    )
