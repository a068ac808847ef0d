"""WriteTxnMarkers: the leader of a partition writes the end of a transaction, as its coordinator decided.

Each partition succeeds or fails by itself; its answer waits until the marker is committed. Offsets that were committed
in the transaction become visible, or are dropped, with the marker in `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.errors import EXPECTED, error_code_of, missing_partition_error
from penstock.broker.request import Answer, Request, Responses, Services
from penstock.coordination.transactions.broker_requests import Codes
from penstock.coordination.transactions.transaction import TopicPartition
from penstock.coordination.transactions.transaction_shard import Markers
from penstock.log.errors import LogError
from penstock.records.batch import EndMarker
from penstock.wire.protocol import OFFSETS_TOPIC, ErrorCode
from penstock.wire.schemas.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_FIRST_VERSION_WITH_TRANSACTION_VERSION = 2


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: WriteTxnMarkersRequest = request.message

    def done(results: list[WritableTxnMarkerResult]) -> None:
        answer(WriteTxnMarkersResponse(markers=results))

    results = Responses(done)
    for marker in message.markers:
        version = marker.transaction_version if request.version >= _FIRST_VERSION_WITH_TRANSACTION_VERSION else 1
        _write(services, marker, version, request.session.is_broker, results.part())
    results.end()


def _write(services: Services, marker: WritableTxnMarker, version: int, by_broker: bool, answer: Answer) -> None:
    partitions = frozenset((topic.name, index) for topic in marker.topics for index in topic.partition_indexes)
    coordinator_epoch, rejected = marker.coordinator_epoch, Codes()
    if not by_broker:
        coordinator_epoch, rejected = _checked(services, marker, partitions)
        partitions -= rejected.keys()
    markers = Markers(
        "", marker.producer_id, marker.producer_epoch, marker.transaction_result, version, partitions
    )  # fmt: skip

    def done(codes: Codes) -> None:
        codes |= rejected
        topics = [
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[topic.name, index])
                    for index in topic.partition_indexes
                ],
            )
            for topic in marker.topics
        ]
        answer(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))

    append_markers(services, markers, coordinator_epoch, done)


def _checked(services: Services, marker: WritableTxnMarker, partitions: frozenset[TopicPartition]) -> tuple[int, Codes]:
    """Check a client's marker: the coordinator epoch to write, and the partitions that reject it.

    A partition adopts the epochs of a marker. One that is too high would shut out the producer, or the coordinator,
    permanently; so a client may only name what the partition knows already.
    """
    known = 0
    rejected: Codes = {}
    for topic, index in partitions:
        partition = services.replicas.get(topic, index)
        if partition is None:
            continue
        entry = partition.log.producers.get(marker.producer_id)
        if entry is None or marker.producer_epoch > entry.epoch:
            rejected[topic, index] = ErrorCode.INVALID_PRODUCER_EPOCH
        else:
            known = max(known, entry.coordinator_epoch)
    return min(marker.coordinator_epoch, known), rejected


def append_markers(services: Services, markers: Markers, coordinator_epoch: int, done: Callable[[Codes], None]) -> None:
    """Append the end of a transaction to partitions that this broker leads; `done` gets a code for each."""
    codes: Codes = {}
    left = len(markers.partitions) + 1

    def one_done(partition: TopicPartition | None, code: ErrorCode) -> None:
        nonlocal left
        left -= 1
        if partition is not None:
            codes[partition] = code
        if not left:
            done(codes)

    end = EndMarker(markers.is_commit, coordinator_epoch)
    for topic, index in markers.partitions:
        partition = services.replicas.get(topic, index)
        if partition is None:
            one_done((topic, index), missing_partition_error(services, topic, index))
            continue

        offsets_end = (
            services.groups.end_of_transaction(index, markers.producer_id, committed=markers.is_commit)
            if topic == OFFSETS_TOPIC
            else None
        )

        def committed(
            error: LogError | None,
            key: TopicPartition = (topic, index),
            offsets_end: Callable[[], None] | None = offsets_end,
        ) -> None:
            if error is None and offsets_end is not None:
                offsets_end()
            one_done(key, ErrorCode.NONE if error is None else error_code_of(error))

        try:
            partition.append_marker(
                end, markers.producer_id, markers.epoch, markers.version, services.clock.now_ms(), committed
            )
        except EXPECTED as error:
            one_done((topic, index), error_code_of(error))
    one_done(None, ErrorCode.NONE)
