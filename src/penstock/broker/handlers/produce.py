"""Produce: appending record batches to partitions.

Each partition succeeds or fails by itself. With acks=0 nothing is answered (the connection ends if records are
refused), with 1 as soon as the records are in the leader's log, with all when they are durable on as many replicas as
the topic demands; with any of them, what fills `flush.messages` waits for its sync. The answer waits for the slowest
partition, and the connection goes on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.error_mapping import EXPECTED, error_code_of
from penstock.broker.request import Answer, EndConnection, Request
from penstock.broker.whereabouts import SENT_AWAY, leader_of, nodes, why_missing
from penstock.log.errors import LogError
from penstock.log.partition_log import Appended
from penstock.records import Buffer, Codec, UnsupportedCodec
from penstock.records.conversion import upconvert
from penstock.replication.partition import Partition
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

ALL: Final = -1
_MAGIC_POSITION = 16
_ATTRIBUTES_POSITION = 22
_TELLS_LEADERS = 10


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: ProduceRequest = request.message
    acks = message.acks
    response = ProduceResponse()
    waiting = _Waiting(broker, request, response, answer)
    for topic in message.topic_data:
        outcomes = TopicProduceResponse(name=topic.name)
        response.responses.append(outcomes)
        for data in topic.partition_data:
            outcome = PartitionProduceResponse(index=data.index)
            outcomes.partition_responses.append(outcome)
            if acks not in (0, 1, ALL):
                reason = f"acks={acks} is not 0, 1 or -1 (all)"
                waiting.refuse(outcome, ErrorCode.INVALID_REQUIRED_ACKS, reason)
                continue
            partition = broker.replicas.get(topic.name, data.index)
            if partition is None:
                waiting.refuse(outcome, why_missing(broker, topic.name, data.index), None)
                continue
            try:
                appended, size = _append(partition, data, acks, request)
            except EXPECTED as error:
                waiting.refuse(outcome, error_code_of(error), str(error))
                continue
            if not appended.is_duplicate:
                records = appended.last_offset - appended.base_offset + 1
                broker.topic_figures(topic.name).produced(size, records)
            outcome.base_offset = appended.base_offset
            outcome.log_append_time_ms = appended.append_time_ms
            outcome.log_start_offset = partition.log.log_start_offset
            end = appended.last_offset + 1
            if acks == ALL:
                broker.replicas.when_committed(partition, end, message.timeout_ms, waiting.one_more(outcome))
            elif partition.log.flush_count_reached:
                broker.replicas.when_durable(partition, end, waiting.one_more(outcome))
    if acks == 0:
        _end_if_refused(response)
        answer(None)
    else:
        waiting.release()


def _end_if_refused(response: ProduceResponse) -> None:
    """Who wants no answer notices only this way that its records go nowhere, and asks again who leads."""
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if outcome.error_code != ErrorCode.NONE:
                where = f"{topic.name}-{outcome.index}"
                raise EndConnection(f"records for {where} with acks=0 refused: {outcome.error_message or 'unknown'}")


def _append(partition: Partition, data: PartitionProduceData, acks: int, request: Request) -> tuple[Appended, int]:
    records = _as_batches(data, partition, request.version)
    return partition.append(records, request.now_ms, is_waited_for=acks == ALL), len(records)


def _as_batches(data: PartitionProduceData, partition: Partition, version: int) -> Buffer:
    """The records as magic 2: as they came, but for those of old clients."""
    records = data.records
    if records is None or not isinstance(records, (bytes, bytearray, memoryview)):
        return b""
    if len(records) > _ATTRIBUTES_POSITION:
        if records[_MAGIC_POSITION] < 2:
            # What it grows to is bounded by what the log would take.
            limit = max(partition.log.settings.max_message_bytes, len(records)) * 16
            return bytearray(upconvert(records, limit=limit))
        if version < 7 and records[_ATTRIBUTES_POSITION] & 7 == Codec.ZSTD:
            raise UnsupportedCodec("zstd needs Produce version 7 or higher")
    return records


class _Waiting:
    """An answer that leaves when every partition is committed or has failed."""

    __slots__ = ("_answer", "_broker", "_has_refusals", "_left", "_request", "_response")

    def __init__(self, broker: Broker, request: Request, response: ProduceResponse, answer: Answer) -> None:
        self._broker = broker
        self._request = request
        self._response = response
        self._answer = answer
        self._has_refusals = False
        self._left = 1  # the handler itself, until all partitions are appended

    def one_more(self, outcome: PartitionProduceResponse) -> _Part:
        """One more to wait for: what to call when it is committed, or cannot be."""
        self._left += 1
        return _Part(self, outcome)

    def refuse(self, outcome: PartitionProduceResponse, code: ErrorCode, reason: str | None) -> None:
        self._has_refusals = True
        outcome.error_code = code
        outcome.base_offset = -1
        outcome.error_message = reason

    def release(self) -> None:
        self._left -= 1
        if self._left == 0:
            if self._has_refusals and self._request.version >= _TELLS_LEADERS:
                _tell_leaders(self._broker, self._response)
            self._answer(self._response)


class _Part:
    """One partition's part in the waiting."""

    __slots__ = ("_outcome", "_waiting")

    def __init__(self, waiting: _Waiting, outcome: PartitionProduceResponse) -> None:
        self._waiting = waiting
        self._outcome = outcome

    def __call__(self, error: LogError | None) -> None:
        if error is not None:
            self._waiting.refuse(self._outcome, error_code_of(error), str(error))
        self._waiting.release()


def _tell_leaders(broker: Broker, response: ProduceResponse) -> None:
    leaders: set[int] = set()
    for topic in response.responses:
        for outcome in topic.partition_responses:
            if outcome.error_code in SENT_AWAY and (leader := leader_of(broker, topic.name, outcome.index)) is not None:
                outcome.current_leader = LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    response.node_endpoints = [
        NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack) for node in nodes(broker, leaders)
    ]
