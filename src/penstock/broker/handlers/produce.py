"""Produce: appending record batches to partitions.

Each partition succeeds or fails by itself. With acks=0 there is no response, and the connection is closed if records
are rejected. With acks=1 the response is sent when the records are in the leader's log, with acks=all when they are
durable on as many replicas as the topic demands; a batch that reaches `flush.messages` always waits for its sync. The
response waits for the slowest partition, while the connection's next requests are served.

A transactional write to a partition that is not yet part of its transaction is verified with the transaction's
coordinator first (KIP-890); from version 12 on the partition joins the transaction that way. Until then the
connection's next requests wait.

Records are validated before they are appended (`log.validation`), small ones at once. A batch that would stall the
event loop, or has schema ids that a registry must be asked about (`schema_ids`), is validated on another thread. The
partitions after it in the request and the connection's next requests wait: records are appended in the order in which
they were sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial

from penstock.broker.broker_only import INTERNAL_TOPIC_REASON, is_protected
from penstock.broker.errors import (
    EXPECTED,
    NOT_LEADER_ERRORS,
    current_leader,
    error_code_of,
    missing_partition_error,
    nodes_with_ids,
)
from penstock.broker.request import Answer, CloseConnection, Request, Services
from penstock.coordination.transactions.transaction import VERSION_1, VERSION_2, TopicPartition
from penstock.coordination.transactions.transaction_shard import Add, Added
from penstock.log.errors import InvalidBatch, LogError
from penstock.log.settings import LogSettings
from penstock.log.validation import Budget, LongValidation, Validated, validate
from penstock.records import Buffer, Codec, TooLarge, UnsupportedCodec
from penstock.records.legacy import upconvert
from penstock.replication.errors import NotLeaderError
from penstock.replication.partition import ACKS_ALL, Partition, Verification
from penstock.runtime.threads import Outcome, WorkersError
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

_MAGIC_POSITION = 16
_ATTRIBUTES_POSITION = 22
_FIRST_VERSION_WITH_LEADERS = 10
_TRANSACTIONAL_BIT = 16
_PRODUCER = struct.Struct(">qh")
_PRODUCER_POSITION = 43
_BATCH_HEADER_BYTES = 61
# The first versions of clients that know TRANSACTION_ABORTABLE, and whose partitions join a transaction with a write.
_FIRST_VERSION_WITH_ABORTABLE = 11
_FIRST_VERSION_THAT_ADDS = 12
# The coordinator is moving or busy: NOT_ENOUGH_REPLICAS, which says that nothing was written, makes clients retry.
_COORDINATOR_MOVES = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
# Messages of old clients are converted one by one: 3 us each, at least 26 bytes long.
_LOOP_CONVERTED_BYTES = 16 * 1024


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ProduceRequest = request.message
    produce = _Produce(services, request, answer)
    if message.acks not in (0, 1, ACKS_ALL):
        produce.reject_all(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={message.acks} is not 0, 1 or -1 (all)")
    elif message.transactional_id is not None:
        produce.verify()
        return
    produce.run()


class _Produce:
    """One request. Its partitions are appended in order; the response is sent when all are committed or failed."""

    __slots__ = (
        "_answer",
        "_budget",
        "_has_errors",
        "_is_deferred",
        "_left",
        "_parts",
        "_request",
        "_response",
        "_services",
        "_unverified",
        "_verifications",
    )  # fmt: skip

    def __init__(self, services: Services, request: Request, answer: Answer) -> None:
        self._services = services
        self._verifications: dict[TopicPartition, tuple[Partition, int, Verification]] = {}
        self._unverified: dict[TopicPartition, ErrorCode] = {}
        self._request = request
        self._response = ProduceResponse()
        self._answer = answer
        self._budget = Budget()
        self._parts = _parts(request.message, self._response)
        self._has_errors = False
        self._is_deferred = False  # whether the connection's next requests wait for this one
        self._left = 1  # partitions that are not committed yet, and the request itself until all are appended

    def run(self) -> None:
        """Append partitions, until one must be validated on another thread; then this is called again."""
        services, request = self._services, self._request
        for topic, data, outcome in self._parts:
            if is_protected(services, request.session, topic):
                self.reject(outcome, ErrorCode.INVALID_TOPIC_EXCEPTION, INTERNAL_TOPIC_REASON)
                continue
            partition = services.replicas.get(topic, data.index)
            if partition is None:
                self.reject(outcome, missing_partition_error(services, topic, data.index), None)
                continue
            try:
                if partition.leadership is None:
                    raise NotLeaderError(topic, data.index)
                prepared = self._prepared(topic, data, partition.log.settings, on_loop=True)
                self._append(topic, partition, prepared, outcome)
            except EXPECTED as error:
                self._reject_for(outcome, error)
            except LongValidation:
                if self._defer(topic, partition, data, outcome):
                    return
        self._finish()

    def _prepared(self, topic: str, data: PartitionProduceData, settings: LogSettings, *, on_loop: bool) -> Validated:
        """The records as the log takes them, on any thread. LongValidation if `on_loop` and it would take long."""
        records = _as_batches(data, settings, self._request.version, on_loop=on_loop)
        validated = validate(settings, records, self._request.now_ms, self._budget, on_loop=on_loop)
        if settings.validates_schemas:
            self._services.schema_ids.check(topic, settings, validated, self._budget, on_loop=on_loop)
        return validated

    def _append(self, topic: str, partition: Partition, prepared: Validated, outcome: PartitionProduceResponse) -> None:
        services, message = self._services, self._request.message
        if _is_transactional(prepared) and not self._may_append(partition, prepared, outcome):
            return
        self._left += 1
        try:
            appended = partition.append(
                prepared, self._request.now_ms, message.acks, _Part(self, outcome), timeout_ms=message.timeout_ms
            )
        except EXPECTED:
            self._left -= 1
            raise
        if not appended.is_duplicate:
            metrics = services.metrics.topic(topic)
            metrics.bytes_in.add(prepared.found.end)
            metrics.messages_in.add(appended.last_offset - appended.base_offset + 1)
        if not outcome.error_code:  # the disk may have failed already
            outcome.base_offset = appended.base_offset
            outcome.log_append_time_ms = appended.append_time_ms
            outcome.log_start_offset = partition.log.log_start_offset

    # --- transactions

    def verify(self) -> None:
        """Ask the coordinator about the partitions that are not yet in the producer's transaction, then `run`."""
        services, message = self._services, self._request.message
        producer: tuple[int, int] | None = None
        for topic in message.topic_data:
            for data in topic.partition_data:
                partition = services.replicas.get(topic.name, data.index)
                found = _transactional_producer(data)
                if found is None or partition is None or not partition.is_leader:
                    continue  # rejected when it is appended
                if is_protected(services, self._request.session, topic.name):
                    continue
                producer = producer or found
                if found != producer:
                    self._unverified[topic.name, data.index] = ErrorCode.INVALID_PRODUCER_ID_MAPPING
                    continue
                verification = partition.begin_verification(*found)
                if verification is not None:
                    self._verifications[topic.name, data.index] = partition, found[0], verification
        adds = self._request.version >= _FIRST_VERSION_THAT_ADDS
        if (
            producer is None
            or not self._verifications
            or not (adds or services.settings.transactions.verify_partitions)
        ):
            self.run()
            return
        self._mute()
        add = Add(
            message.transactional_id,
            *producer,
            frozenset(self._verifications),
            VERSION_2 if adds else VERSION_1,
            verify_only=not adds,
        )
        services.transaction_client.add(add, self._verified)

    def _verified(self, added: Added) -> None:
        if added.code:
            code = added.code
            if code in _COORDINATOR_MOVES:
                code = ErrorCode.NOT_ENOUGH_REPLICAS
            elif code is ErrorCode.PRODUCER_FENCED:
                code = ErrorCode.INVALID_PRODUCER_EPOCH
            elif code is ErrorCode.TRANSACTION_ABORTABLE and self._request.version < _FIRST_VERSION_WITH_ABORTABLE:
                code = ErrorCode.INVALID_TXN_STATE
            self._unverified.update(dict.fromkeys(added.missing or self._verifications, code))
        self._continue()

    def _may_append(self, partition: Partition, prepared: Validated, outcome: PartitionProduceResponse) -> bool:
        """Whether a transactional write is part of an open transaction; if not, it is rejected."""
        header = prepared.found.headers[0]
        key = (partition.topic, partition.index)
        if self._request.message.transactional_id is None:
            reason = "the batch is transactional, but the request has no transactional id"
            self.reject(outcome, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, reason)
            return False
        code = self._unverified.get(key)
        if code is not None:
            reason = f"the coordinator of the transaction rejected the write: {code.meaning}"
            self.reject(outcome, code, reason)
            return False
        known = self._verifications.get(key)
        is_verified = partition.is_verified(header.producer_id, header.producer_epoch, known and known[2])
        if is_verified or not self._services.settings.transactions.verify_partitions:
            return True
        is_known = self._request.version >= _FIRST_VERSION_WITH_ABORTABLE
        code = ErrorCode.TRANSACTION_ABORTABLE if is_known else ErrorCode.INVALID_TXN_STATE
        self.reject(outcome, code, "the transaction ended before the write")
        return False

    # --- waiting

    def _mute(self) -> None:
        """Let the connection's next requests wait until this one is appended."""
        if not self._is_deferred:
            self._is_deferred = True
            if self._request.channel is not None:
                self._request.channel.mute()

    def _continue(self) -> None:
        """Continue a request that waited."""
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - callbacks must not raise, and the next requests must not hang
            if self._request.channel is not None:
                self._request.channel.end(error)
                self._request.channel.unmute()

    # --- long validation

    def _defer(
        self, topic: str, partition: Partition, data: PartitionProduceData, outcome: PartitionProduceResponse
    ) -> bool:
        """Validate on another thread, and continue there; False if that is impossible."""
        self._mute()
        settings, services = partition.log.settings, self._services
        work = partial(self._prepared, topic, data, settings, on_loop=False)
        workers = services.schema_workers if settings.validates_schemas else services.validators
        try:
            workers.run(work, partial(self._validated, topic, partition, outcome))
        except WorkersError as error:
            self.reject(outcome, ErrorCode.REQUEST_TIMED_OUT, f"the records could not be validated: {error}")
            return False
        return True

    def _validated(
        self, topic: str, partition: Partition, outcome: PartitionProduceResponse, validated: Outcome[Validated]
    ) -> None:
        try:
            self._append(topic, partition, validated.result(), outcome)
        except EXPECTED as error:
            self._reject_for(outcome, error)
        except Exception as error:  # noqa: BLE001 - the workers ignore it, and the next requests must not hang
            if self._request.channel is not None:
                self._request.channel.end(error)
                self._request.channel.unmute()
            return
        self._continue()

    def _finish(self) -> None:
        for partition, producer_id, verification in self._verifications.values():
            partition.end_verification(producer_id, verification)
        if self._request.message.acks == 0:
            self._close_if_rejected()
            self._answer(None)
        else:
            self.release()
        if self._is_deferred and self._request.channel is not None:
            self._request.channel.unmute()

    def _close_if_rejected(self) -> None:
        """Without a response, only a closed connection makes the client refresh its metadata."""
        if not self._has_errors:
            return
        for topic in self._response.responses:
            for outcome in topic.partition_responses:
                if outcome.error_code != ErrorCode.NONE:
                    where, why = f"{topic.name}-{outcome.index}", outcome.error_message or "unknown"
                    error = CloseConnection(f"records for {where} with acks=0 were rejected: {why}")
                    if not self._is_deferred:
                        raise error
                    if self._request.channel is not None:
                        self._request.channel.end(error)
                    return

    # --- the response

    def reject_all(self, code: ErrorCode, reason: str) -> None:
        for _, _, outcome in self._parts:
            self.reject(outcome, code, reason)

    def reject(self, outcome: PartitionProduceResponse, code: ErrorCode, reason: str | None) -> None:
        self._has_errors = True
        outcome.error_code = code
        outcome.base_offset = -1
        outcome.error_message = reason

    def _reject_for(self, outcome: PartitionProduceResponse, error: BaseException) -> None:
        self.reject(outcome, error_code_of(error), str(error))
        if isinstance(error, InvalidBatch) and error.record_errors:
            outcome.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=reason)
                for index, reason in error.record_errors
            ]

    def release(self) -> None:
        self._left -= 1
        if self._left == 0:
            if self._has_errors and self._request.version >= _FIRST_VERSION_WITH_LEADERS:
                _add_current_leaders(self._services, self._request.session.listener, self._response)
            self._answer(self._response)


class _Part:
    """The callback of one partition."""

    __slots__ = ("_outcome", "_produce")

    def __init__(self, produce: _Produce, outcome: PartitionProduceResponse) -> None:
        self._produce = produce
        self._outcome = outcome

    def __call__(self, error: LogError | None) -> None:
        if error is not None:
            self._produce.reject(self._outcome, error_code_of(error), str(error))
        self._produce.release()


def _parts(
    message: ProduceRequest, response: ProduceResponse
) -> Iterator[tuple[str, PartitionProduceData, PartitionProduceResponse]]:
    """The partitions of a request, each with its place in the response."""
    for topic in message.topic_data:
        outcomes = TopicProduceResponse(name=topic.name)
        response.responses.append(outcomes)
        for data in topic.partition_data:
            outcome = PartitionProduceResponse(index=data.index)
            outcomes.partition_responses.append(outcome)
            yield topic.name, data, outcome


def _as_batches(data: PartitionProduceData, settings: LogSettings, version: int, *, on_loop: bool) -> Buffer:
    """The records in magic 2; those of old clients are converted."""
    records = data.records
    if records is None or not isinstance(records, (bytes, bytearray, memoryview)):
        return b""
    if len(records) > _ATTRIBUTES_POSITION:
        if records[_MAGIC_POSITION] < 2:
            return _converted(records, settings, on_loop=on_loop)
        if version < 7 and records[_ATTRIBUTES_POSITION] & 7 == Codec.ZSTD:
            raise UnsupportedCodec("zstd needs Produce version 7 or higher")
    return records


def _converted(records: Buffer, settings: LogSettings, *, on_loop: bool) -> bytearray:
    if not on_loop:
        # Bounded by what the log would accept.
        return bytearray(upconvert(records, limit=max(settings.max_message_bytes, len(records)) * 16))
    if len(records) > _LOOP_CONVERTED_BYTES:
        raise LongValidation
    try:
        return bytearray(upconvert(records, limit=4 * _LOOP_CONVERTED_BYTES))
    except TooLarge:
        raise LongValidation from None


def _transactional_producer(data: PartitionProduceData) -> tuple[int, int] | None:
    """Producer id and epoch of a transactional batch, which is validated later; None for any other."""
    records = data.records
    if not isinstance(records, (bytes, bytearray, memoryview)) or len(records) < _BATCH_HEADER_BYTES:
        return None
    if records[_MAGIC_POSITION] < 2 or not records[_ATTRIBUTES_POSITION] & _TRANSACTIONAL_BIT:
        return None
    producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
    return (producer_id, epoch) if producer_id >= 0 else None


def _is_transactional(prepared: Validated) -> bool:
    headers = prepared.found.headers
    if len(headers) == 1:
        return bool(headers[0].attributes & _TRANSACTIONAL_BIT)
    return any(header.is_transactional for header in headers)


def _add_current_leaders(services: Services, listener: str, response: ProduceResponse) -> None:
    leaders: set[int] = set()
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if (
                outcome.error_code in NOT_LEADER_ERRORS
                and (leader := current_leader(services, topic.name, outcome.index)) is not None
            ):
                outcome.current_leader = LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    response.node_endpoints = [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
        for node in nodes_with_ids(services, listener, leaders)
    ]
