"""A scripted cluster with transactions: what its coordinators and partitions know is set by the test.

Each transactional id has a coordinator among the three brokers; each partition has its producers. Markers and fencing
change that state as a broker would. `before` lets a test act just before an answer, for what happens in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tests.cli.scripted_cluster import SERVED, Part, ScriptedCluster

from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas import (
    describe_producers,
    describe_transactions,
    find_coordinator,
    init_producer_id,
    list_transactions,
    write_txn_markers,
)
from penstock.wire.schemas.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.types import Message

STATE_TOPIC = "__transaction_state"
END = 100
"""Where every partition ends."""


@dataclass
class Known:
    """What a coordinator knows of a transactional id."""

    producer_id: int
    state: str = "Ongoing"
    epoch: int = 0
    partitions: list[tuple[str, int]] = field(default_factory=list)
    start_time_ms: int = 1_000
    coordinator: int = 0
    errors: list[int] = field(default_factory=list)
    """Error codes of the next answers about it."""


def writer(
    producer_id: int, start_offset: int = -1, *, epoch: int = 0, last_ms: int = 1_000, coordinator_epoch: int = -1
) -> describe_producers.ProducerState:
    """A producer that a partition knows; with a start offset, one with an open transaction."""
    return describe_producers.ProducerState(
        producer_id=producer_id,
        producer_epoch=epoch,
        last_sequence=0,
        last_timestamp=last_ms,
        coordinator_epoch=coordinator_epoch,
        current_txn_start_offset=start_offset,
    )


class ScriptedTransactions(ScriptedCluster):
    """`with ScriptedTransactions(ids, producers) as cluster`; topic "views" has three partitions, led by 0, 1 and 2."""

    served: ClassVar[tuple[ApiKey, ...]] = (
        *SERVED, ApiKey.FIND_COORDINATOR, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.DESCRIBE_PRODUCERS, ApiKey.INIT_PRODUCER_ID, ApiKey.WRITE_TXN_MARKERS,
    )  # fmt: skip

    def __init__(
        self,
        ids: dict[str, Known] | None = None,
        producers: dict[tuple[str, int], list[describe_producers.ProducerState]] | None = None,
        *,
        partitions: int = 3,
    ) -> None:
        super().__init__(
            {
                "views": [Part([(first + each) % 3 for each in range(3)]) for first in range(partitions)],
                STATE_TOPIC: [Part([0, 1, 2])],
            }
        )
        self.ids = ids or {}
        self.producers = producers or {}
        self.markers: list[write_txn_markers.WritableTxnMarker] = []
        self.marker_errors: list[int] = []
        """Error codes of the next markers."""
        self.asked: list[tuple[int, ApiKey, Any]] = []
        """Who was asked what, in order."""
        self.before: Callable[[ApiKey], None] = lambda _: None

    def _answer(self, broker: int, header: RequestHeader, message: Any) -> Message:
        self.asked.append((broker, header.api.key, message))
        self.before(header.api.key)
        return super()._answer(broker, header, message)

    def questions(self, key: ApiKey) -> list[tuple[int, Any]]:
        return [(broker, message) for broker, asked, message in self.asked if asked is key]

    # --- coordinators

    def _find_coordinator(self, _: int, asked: Any) -> Message:
        (name,) = asked.coordinator_keys
        node = self.ids[name].coordinator if name in self.ids else 0
        found = find_coordinator.Coordinator(key=name, node_id=node, host="127.0.0.1", port=self._servers[node].port)
        return find_coordinator.FindCoordinatorResponse(coordinators=[found])

    def _list_transactions(self, broker: int, asked: Any) -> Message:
        return list_transactions.ListTransactionsResponse(
            transaction_states=[
                list_transactions.TransactionState(
                    transactional_id=name, producer_id=known.producer_id, transaction_state=known.state
                )
                for name, known in self.ids.items()
                if known.coordinator == broker
                and (not asked.producer_id_filters or known.producer_id in asked.producer_id_filters)
                and (not asked.state_filters or known.state in asked.state_filters)
            ]
        )

    def _describe_transactions(self, broker: int, asked: Any) -> Message:
        (name,) = asked.transactional_ids
        known = self.ids.get(name)
        code = self._code(broker, known)
        if known is None or code:
            state = describe_transactions.TransactionState(transactional_id=name, error_code=code)
        else:
            state = describe_transactions.TransactionState(
                transactional_id=name,
                transaction_state=known.state,
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=known.start_time_ms,
                producer_id=known.producer_id,
                producer_epoch=known.epoch,
                topics=[
                    describe_transactions.TopicData(topic=topic, partitions=[index])
                    for topic, index in known.partitions
                ],
            )
        return describe_transactions.DescribeTransactionsResponse(transaction_states=[state])

    def _code(self, broker: int, known: Known | None) -> int:
        if known is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        if known.errors:
            return known.errors.pop(0)
        return ErrorCode.NONE if known.coordinator == broker else ErrorCode.NOT_COORDINATOR

    def _init_producer_id(self, broker: int, asked: Any) -> Message:
        known = self.ids.setdefault(asked.transactional_id, Known(len(self.ids), "Empty", -1))
        code = self._code(broker, known)
        if code:
            return init_producer_id.InitProducerIdResponse(error_code=code)
        known.epoch, known.state, known.partitions = known.epoch + 1, "Empty", []
        return init_producer_id.InitProducerIdResponse(producer_id=known.producer_id, producer_epoch=known.epoch)

    # --- partitions

    def _describe_producers(self, broker: int, asked: Any) -> Message:
        def one(topic: str, index: int) -> describe_producers.PartitionResponse:
            if broker not in self.topics[topic][index].in_sync:
                return describe_producers.PartitionResponse(partition_index=index, error_code=6)
            found = self.producers.get((topic, index), [])
            return describe_producers.PartitionResponse(partition_index=index, active_producers=list(found))

        return describe_producers.DescribeProducersResponse(
            topics=[
                describe_producers.TopicResponse(
                    name=topic.name, partitions=[one(topic.name, index) for index in topic.partition_indexes]
                )
                for topic in asked.topics
            ]
        )

    def _write_txn_markers(self, broker: int, asked: Any) -> Message:
        (marker,) = asked.markers
        ((topic, (index,)),) = [(each.name, each.partition_indexes) for each in marker.topics]
        code = self.marker_errors.pop(0) if self.marker_errors else 0
        if self.topics[topic][index].led_by != broker:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if not code:
            self.markers.append(marker)
            kept = [each for each in self.producers[topic, index] if each.producer_id != marker.producer_id]
            self.producers[topic, index] = [*kept, writer(marker.producer_id, epoch=marker.producer_epoch)]
        result = write_txn_markers.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
        topics = [write_txn_markers.WritableTxnMarkerTopicResult(name=topic, partitions=[result])]
        return write_txn_markers.WriteTxnMarkersResponse(
            markers=[write_txn_markers.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)]
        )

    def _list_offsets(self, _: int, asked: Any) -> Message:
        """Readers of committed records end at the first open transaction, the others at END."""

        def end(topic: str, index: int) -> int:
            starts = [each.current_txn_start_offset for each in self.producers.get((topic, index), [])]
            opened = [start for start in starts if start >= 0]
            return min([END, *opened]) if asked.isolation_level else END

        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=part.partition_index, offset=end(topic.name, part.partition_index)
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in asked.topics
            ]
        )
