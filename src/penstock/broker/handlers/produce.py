"""Produce: appending record batches to partitions.

Each partition succeeds or fails by itself. With acks=0 there is no response, and the connection is closed if records
are rejected. With acks=1 the response is sent when the records are in the leader's log, with acks=all when they are
durable on as many replicas as the topic demands; a batch that reaches `flush.messages` always waits for its sync. The
response waits for the slowest partition, while the connection's next requests are served.

Records are validated before they are appended (`log.validation`), small ones at once. A batch that would stall the
event loop is validated on another thread. The partitions after it in the request and the connection's next requests
wait: records are appended in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.broker.errors import (
    EXPECTED,
    NOT_LEADER_ERRORS,
    current_leader,
    error_code_of,
    missing_partition_error,
    nodes_with_ids,
)
from penstock.broker.request import Answer, CloseConnection, Request, Services
from penstock.log.errors import InvalidBatch, LogError
from penstock.log.settings import LogSettings
from penstock.log.validation import Budget, LongValidation, Validated, validate
from penstock.records import Buffer, Codec, TooLarge, UnsupportedCodec
from penstock.records.legacy import upconvert
from penstock.replication.errors import NotLeaderError
from penstock.replication.partition import ACKS_ALL, Partition
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
# Messages of old clients are converted one by one: 3 us each, at least 26 bytes long.
_LOOP_CONVERTED_BYTES = 16 * 1024


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: ProduceRequest = request.message
    produce = _Produce(services, request, answer)
    if message.acks not in (0, 1, ACKS_ALL):
        produce.reject_all(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={message.acks} is not 0, 1 or -1 (all)")
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
    )  # fmt: skip

    def __init__(self, services: Services, request: Request, answer: Answer) -> None:
        self._services = services
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
            partition = services.replicas.get(topic, data.index)
            if partition is None:
                self.reject(outcome, missing_partition_error(services, topic, data.index), None)
                continue
            try:
                if partition.leadership is None:
                    raise NotLeaderError(topic, data.index)
                prepared = _prepared(data, request, partition.log.settings, self._budget, on_loop=True)
                self._append(topic, partition, prepared, outcome)
            except EXPECTED as error:
                self._reject_for(outcome, error)
            except LongValidation:
                if self._defer(topic, partition, data, outcome):
                    return
        self._finish()

    def _append(self, topic: str, partition: Partition, prepared: Validated, outcome: PartitionProduceResponse) -> None:
        services, message = self._services, self._request.message
        if _is_transactional(prepared):
            self.reject(outcome, ErrorCode.INVALID_TXN_STATE, "transactions are not supported by this broker")
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

    # --- long validation

    def _defer(
        self, topic: str, partition: Partition, data: PartitionProduceData, outcome: PartitionProduceResponse
    ) -> bool:
        """Validate on another thread, and continue there; False if that is impossible."""
        if not self._is_deferred:
            self._is_deferred = True
            if self._request.channel is not None:
                self._request.channel.mute()
        work = partial(_prepared, data, self._request, partition.log.settings, self._budget, on_loop=False)
        try:
            self._services.validators.run(work, partial(self._validated, topic, partition, outcome))
        except WorkersError as error:
            self.reject(outcome, ErrorCode.REQUEST_TIMED_OUT, f"the records could not be validated: {error}")
            return False
        return True

    def _validated(
        self, topic: str, partition: Partition, outcome: PartitionProduceResponse, validated: Outcome[Validated]
    ) -> None:
        try:
            try:
                self._append(topic, partition, validated.result(), outcome)
            except EXPECTED as error:
                self._reject_for(outcome, error)
            self.run()
        except Exception as error:  # noqa: BLE001 - the workers ignore it, and the next requests must not hang
            if self._request.channel is not None:
                self._request.channel.end(error)
                self._request.channel.unmute()

    def _finish(self) -> None:
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
                _add_current_leaders(self._services, self._response)
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


def _prepared(
    data: PartitionProduceData, request: Request, settings: LogSettings, budget: Budget, *, on_loop: bool
) -> Validated:
    """The records as the log takes them, on any thread. LongValidation if `on_loop` and it would take long."""
    records = _as_batches(data, settings, request.version, on_loop=on_loop)
    return validate(settings, records, request.now_ms, budget, on_loop=on_loop)


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


def _is_transactional(prepared: Validated) -> bool:
    """Such a batch holds the last stable offset until its transaction ends, and there is no coordinator to end it."""
    headers = prepared.found.headers
    if len(headers) == 1:
        return bool(headers[0].attributes & _TRANSACTIONAL_BIT)
    return any(header.is_transactional for header in headers)


def _add_current_leaders(services: Services, response: ProduceResponse) -> None:
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
        for node in nodes_with_ids(services, leaders)
    ]
