"""What brokers ask each other for transactions: markers from partition leaders, partitions from coordinators.

`MarkerSender` has the decisions of this broker's coordinators written by the leaders of their partitions. It tries
until every partition has its marker or is deleted; a new leader is found in the image. Decisions for one broker that
pile up while a request is on its way go together in the next.

`TransactionClient` asks the coordinator of a transactional id, on this broker or another, to add a partition to its
transaction or to verify that it is there. Partition leaders do so before a transactional write.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol, cast

from penstock.cluster.broker_links import Link, LinkLost, Links
from penstock.cluster.image import ClusterImage
from penstock.coordination.coordinator_runtime import CallLater, Shard, partition_for_key
from penstock.coordination.transactions.transaction import TopicPartition, by_topic
from penstock.coordination.transactions.transaction_shard import Add, Added, Markers, TransactionShard
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ApiKey, ErrorCode, error_code
from penstock.wire.schemas import add_partitions_to_txn as add_wire
from penstock.wire.schemas import write_txn_markers as marker_wire
from penstock.wire.types import Message

logger = logging.getLogger(__name__)

_MARKERS_VERSION: Final = 2
_ADD_VERSION: Final = 5
_MAX_MARKERS: Final = 500
_MAX_APPENDED: Final = 50  # 0.6 ms each, if their files must be opened
_REQUEST_TIMEOUT_MS: Final = 30_000
_ADD_TIMEOUT_MS: Final = 5_000
_BACKOFF_S: Final = 0.1

Codes = dict[TopicPartition, ErrorCode]
AppendMarkers = Callable[[Markers, int, Callable[[Codes], None]], None]
"""Appends markers to partitions that this broker leads, for a coordinator's epoch, and reports a code for each."""

# The partition is done: it has the marker, or a later epoch of the producer, or will not have it from this coordinator.
_FINAL: Final = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})


class Tasks:
    """Coroutines that run beside the requests, and end with the broker."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task that is cancelled before its first turn never awaits the coroutine.
        task.add_done_callback(lambda _: work.close())

    def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()


class _Connections:
    """One link to each broker, opened when it is needed and kept until it is lost."""

    def __init__(self, links: Links | None) -> None:
        self._links = links
        self._open: dict[int, Link] = {}

    async def ask(self, broker: int, api_key: int, version: int, message: Message, timeout_ms: float) -> Message:
        """The response; LinkLost."""
        if self._links is None:
            raise LinkLost(f"broker {broker}: this broker stands alone")
        link = self._open.get(broker)
        if link is None:
            link = self._open[broker] = self._links.to(broker)
        try:
            return await link.ask(api_key, version, message, timeout_ms)
        except LinkLost:
            if self._open.get(broker) is link:
                del self._open[broker]
            link.close()
            raise

    def close(self) -> None:
        for link in self._open.values():
            link.close()
        self._open.clear()


class _Decision(NamedTuple):
    """A decision, with the partitions of one leader that have no marker yet."""

    shard: Shard[TransactionShard]
    markers: Markers
    partitions: frozenset[TopicPartition]


class MarkerSender:
    def __init__(
        self,
        me: int,
        image: Callable[[], ClusterImage],
        append: AppendMarkers,
        links: Links | None,
        call_later: CallLater,
        now_ms: Callable[[], int],
    ) -> None:
        """`links` is None for a broker that stands alone."""
        self._me = me
        self._image = image
        self._append = append
        self._connections = _Connections(links)
        self._call_later = call_later
        self._now_ms = now_ms
        self._queues: dict[int, list[_Decision]] = {}
        self._tasks = Tasks()
        self._closed = False

    def send(self, shard: Shard[TransactionShard], markers: Markers) -> None:
        self._send(_Decision(shard, markers, markers.partitions))

    def close(self) -> None:
        self._closed = True
        self._tasks.close()
        self._connections.close()

    def _send(self, decision: _Decision) -> None:
        if decision.shard.is_closed or self._closed:
            return
        image = self._image()
        by_leader: defaultdict[int, set[TopicPartition]] = defaultdict(set)
        gone: set[TopicPartition] = set()
        for topic, index in decision.partitions:
            state = image.partition(topic, index)
            if state is None or topic in image.deleting:
                # It was known when it joined the transaction, so it was deleted.
                gone.add((topic, index))
            else:
                by_leader[image.live_leader(state)].add((topic, index))
        self._done(decision, gone)
        for leader, partitions in by_leader.items():
            part = decision._replace(partitions=frozenset(partitions))
            if leader == self._me:
                self._append_here(part)
            elif leader < 0:
                self._retry(part)
            else:
                self._enqueue(leader, part)

    def _append_here(self, decision: _Decision) -> None:
        """Append to partitions that this broker leads, some now and the others in later turns of the loop."""
        if decision.shard.is_closed or self._closed:
            return
        listed = list(decision.partitions)
        now = decision._replace(partitions=frozenset(listed[:_MAX_APPENDED]))
        if len(listed) > _MAX_APPENDED:
            later = decision._replace(partitions=frozenset(listed[_MAX_APPENDED:]))
            self._call_later(0, lambda: self._append_here(later))
        markers = now.markers._replace(partitions=now.partitions)
        self._append(markers, now.shard.leader_epoch, lambda codes: self._answered(now, codes))

    def _answered(self, decision: _Decision, codes: Codes) -> None:
        written: set[TopicPartition] = set()
        for partition in decision.partitions:
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                logger.info("marker not written, another broker coordinates: %s", _described(decision, partition))
                return  # the other broker's coordinator sends its own
            if code in _FINAL:
                written.add(partition)
                if code is not ErrorCode.NONE:
                    logger.warning("marker not needed: %s error=%s", _described(decision, partition), code.name)
        self._done(decision, written)
        left = decision.partitions - written
        if left:
            self._retry(decision._replace(partitions=left))

    def _done(self, decision: _Decision, partitions: Iterable[TopicPartition]) -> None:
        shard, markers = decision.shard, decision.markers
        if partitions and not shard.is_closed:
            marked = shard.machine.marked(markers.transactional_id, markers.epoch, partitions, self._now_ms())
            shard.carry_out(marked)

    def _retry(self, decision: _Decision) -> None:
        self._call_later(_BACKOFF_S, lambda: self._send(decision))

    # --- other brokers

    def _enqueue(self, leader: int, decision: _Decision) -> None:
        queue = self._queues.get(leader)
        if queue is not None:
            queue.append(decision)
            return
        self._queues[leader] = [decision]
        self._tasks.start(self._drain(leader))

    async def _drain(self, leader: int) -> None:
        """Send what is queued for a broker, one request at a time."""
        queue = self._queues[leader]
        try:
            while queue:
                batch, queue[:] = queue[:_MAX_MARKERS], queue[_MAX_MARKERS:]
                try:
                    response = await self._connections.ask(
                        leader, ApiKey.WRITE_TXN_MARKERS, _MARKERS_VERSION, _marker_request(batch), _REQUEST_TIMEOUT_MS
                    )
                    answers = _marker_codes(cast(Any, response), len(batch))
                except LinkLost as error:
                    logger.info("markers not sent: broker=%d decisions=%d error=%s", leader, len(batch), error)
                    answers = [{} for _ in batch]
                for decision, codes in zip(batch, answers, strict=True):
                    self._answered(decision, codes)
        finally:
            del self._queues[leader]


def _described(decision: _Decision, partition: TopicPartition) -> str:
    markers = decision.markers
    return (
        f"transactional_id={markers.transactional_id} partition={partition[0]}-{partition[1]} "
        f"producer={markers.producer_id} epoch={markers.epoch}"
    )


def _marker_request(batch: list[_Decision]) -> Message:
    return marker_wire.WriteTxnMarkersRequest(
        markers=[
            marker_wire.WritableTxnMarker(
                producer_id=markers.producer_id,
                producer_epoch=markers.epoch,
                transaction_result=markers.is_commit,
                coordinator_epoch=shard.leader_epoch,
                transaction_version=markers.version,
                topics=[
                    marker_wire.WritableTxnMarkerTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(partitions).items()
                ],
            )
            for shard, markers, partitions in batch
        ]
    )


def _marker_codes(response: marker_wire.WriteTxnMarkersResponse, count: int) -> list[Codes]:
    """The codes of each decision, in the order of the request; a decision without an answer has none."""
    codes: list[Codes] = [
        {
            (topic.name, each.partition_index): error_code(each.error_code)
            for topic in marker.topics
            for each in topic.partitions
        }
        for marker in response.markers[:count]
    ]
    return codes + [{} for _ in range(count - len(codes))]


# --- coordinators


class LocalCoordinator(Protocol):
    def add(self, request: Add, answer: Callable[[Added], None]) -> None: ...


class TransactionClient:
    """Asks the coordinators of transactions."""

    def __init__(
        self, me: int, image: Callable[[], ClusterImage], local: LocalCoordinator, links: Links | None
    ) -> None:
        self._me = me
        self._image = image
        self._local = local
        self._connections = _Connections(links)
        self._tasks = Tasks()

    def add(self, request: Add, answer: Callable[[Added], None]) -> None:
        """Add partitions to a transaction, or verify that they are in it. Retriable errors are those of a coordinator
        that moves or is busy.
        """
        image = self._image()
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            answer(Added(ErrorCode.INVALID_PRODUCER_ID_MAPPING if not image.deleting else ErrorCode.NOT_COORDINATOR))
            return
        state = topic.partitions[partition_for_key(request.transactional_id, len(topic.partitions))]
        leader = image.live_leader(state)
        if leader == self._me:
            self._local.add(request, answer)
        elif leader < 0:
            answer(Added(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            self._tasks.start(self._ask(leader, request, answer))

    async def _ask(self, leader: int, request: Add, answer: Callable[[Added], None]) -> None:
        try:
            response = await self._connections.ask(
                leader, ApiKey.ADD_PARTITIONS_TO_TXN, _ADD_VERSION, _add_request(request), _ADD_TIMEOUT_MS
            )
            added = _added(cast(Any, response), request)
        except LinkLost as error:
            logger.info("transaction coordinator not reached: broker=%d error=%s", leader, error)
            added = Added(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        answer(added)

    def close(self) -> None:
        self._tasks.close()
        self._connections.close()


def _add_request(request: Add) -> Message:
    topics = [
        add_wire.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in by_topic(request.partitions).items()
    ]
    return add_wire.AddPartitionsToTxnRequest(
        transactions=[
            add_wire.AddPartitionsToTxnTransaction(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.epoch,
                verify_only=request.verify_only,
                topics=topics,
            )
        ]
    )


def _added(response: add_wire.AddPartitionsToTxnResponse, request: Add) -> Added:
    """The answer for the only transaction of a request: one code, and the partitions that have it."""
    if response.error_code:
        return Added(error_code(response.error_code))
    codes = {
        (topic.name, each.partition_index): error_code(each.partition_error_code)
        for result in response.results_by_transaction
        for topic in result.topic_results
        for each in topic.results_by_partition
    }
    failed = {partition: code for partition, code in codes.items() if code}
    if request.partitions - codes.keys():
        return Added(ErrorCode.UNKNOWN_SERVER_ERROR)
    if not failed:
        return Added(ErrorCode.NONE)
    code = next(iter(failed.values()))
    missing = frozenset(failed) if len(failed) < len(codes) else frozenset[TopicPartition]()
    return Added(code, missing)
