"""Writing to the target: batches by leader, and the transactions of a shard.

`TargetWriter` sends each batch once and never retries: the caller knows what a failure means. Batches of one partition
leave in the order of the calls, one per request, since brokers accept no more; requests are pipelined.

`ShardTransactions` writes as one transactional id per shard. `begin_epoch` fences the process that had the shard before
and ends its transaction, markers included. A transaction names its partitions first (version 1 of the protocol, which
every broker has), so a partition in which nothing is written gets a marker too: one offset that no consumer sees.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import BufferList
from penstock.client.errors import PenstockError, error_for
from penstock.client.producer.producer_batch import ProducerId
from penstock.client.transactions import (
    Ask,
    CoordinatorRequests,
    PreparedTransaction,
    Rejected,
    adding_partitions,
    end_of,
)
from penstock.mirror.batches import stamped
from penstock.mirror.errors import ShardLost
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from penstock.wire.types import Buffer

_log = logging.getLogger(__name__)
_LANE: Final = "mirror-produce"
_ALL_IN_SYNC: Final = -1
_LAST_PRODUCE_OF_VERSION_1: Final = 11
_INIT_VERSION: Final = 5
_NO_TRANSACTIONS_MS: Final = 2**31 - 1
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_REQUEST_BYTES: Final = 4 * 1024 * 1024
_REQUESTS_IN_FLIGHT: Final = 32


class _Waiting(NamedTuple):
    batch: BufferList
    done: asyncio.Future[int]


class _Leader:
    """What waits for one leader: batches by transactional id and partition."""

    def __init__(self) -> None:
        self.waiting: dict[tuple[str | None, TopicPartition], deque[_Waiting]] = {}
        self.in_flight = 0
        self.is_scheduled = False


class TargetWriter:
    """Sends batches to the leaders of their partitions. `append` returns a future of the base offset."""

    def __init__(self, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self._leaders: dict[int, _Leader] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def append(
        self, partition: TopicPartition, batch: BufferList, transactional_id: str | None = None
    ) -> asyncio.Future[int]:
        """Send a batch; the future has its base offset, or the error."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.add_done_callback(_seen)
        view = self.cluster.view.leader_of(*partition)
        if view is None or view.leader < 0:
            self.cluster.refresh_soon()
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if view is None else ErrorCode.LEADER_NOT_AVAILABLE
            done.set_exception(error_for(code, where=f"target {partition}"))
            return done
        leader = self._leaders.setdefault(view.leader, _Leader())
        leader.waiting.setdefault((transactional_id, partition), deque()).append(_Waiting(batch, done))
        self._schedule(view.leader, leader)
        return done

    def _schedule(self, node_id: int, leader: _Leader) -> None:
        """Send once the callers of this turn of the loop are done, so that their batches share requests."""
        if not leader.is_scheduled and leader.waiting and leader.in_flight < _REQUESTS_IN_FLIGHT:
            leader.is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start, node_id, leader)

    def _start(self, node_id: int, leader: _Leader) -> None:
        leader.is_scheduled = False
        transactional_id, taken = _taken(leader)
        if not taken:
            return
        leader.in_flight += 1
        task = asyncio.get_running_loop().create_task(self._send(node_id, leader, transactional_id, taken))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._schedule(node_id, leader)

    async def _send(
        self, node_id: int, leader: _Leader, transactional_id: str | None, taken: Mapping[TopicPartition, _Waiting]
    ) -> None:
        try:
            connection = await self.cluster.to(node_id, lane=_LANE)
            version = connection.version_of(ApiKey.PRODUCE, _LAST_PRODUCE_OF_VERSION_1)
            timeout_ms = self.cluster.request_timeout_ms
            response: ProduceResponse = await connection.request(
                ApiKey.PRODUCE,
                _produce_request(taken, transactional_id, timeout_ms),
                version=version,
                timeout_ms=timeout_ms,
            )
            _settle(response, taken)
        except PenstockError as error:
            self.cluster.refresh_soon()
            for each in taken.values():
                if not each.done.done():
                    each.done.set_exception(error)
        finally:
            leader.in_flight -= 1
            for partition, each in taken.items():
                if not each.done.done():
                    missing = "the broker's response leaves the partition out"
                    code = ErrorCode.UNKNOWN_SERVER_ERROR
                    each.done.set_exception(error_for(code, where=f"target {partition}", detail=missing))
            self._schedule(node_id, leader)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seen(done: asyncio.Future[int]) -> None:
    """A caller that was cancelled does not look at the outcome any more."""
    if not done.cancelled():
        done.exception()


def _taken(leader: _Leader) -> tuple[str | None, dict[TopicPartition, _Waiting]]:
    """The next request: one batch of each partition, all under the same transactional id."""
    taken: dict[TopicPartition, _Waiting] = {}
    size, transactional_id = 0, None
    for key in list(leader.waiting):
        if taken and (key[0] != transactional_id or size >= _REQUEST_BYTES):
            continue
        queue = leader.waiting.pop(key)
        transactional_id = key[0]
        taken[key[1]] = queue.popleft()
        size += taken[key[1]].batch.size
        if queue:
            leader.waiting[key] = queue  # at the end: partitions take turns
    return transactional_id, taken


def _produce_request(
    taken: Mapping[TopicPartition, _Waiting], transactional_id: str | None, timeout_ms: int
) -> ProduceRequest:
    topics: dict[str, TopicProduceData] = {}
    for partition, each in taken.items():
        topic = topics.setdefault(partition.topic, TopicProduceData(name=partition.topic, partition_data=[]))
        topic.partition_data.append(PartitionProduceData(index=partition.partition, records=each.batch))
    return ProduceRequest(
        transactional_id=transactional_id, acks=_ALL_IN_SYNC, timeout_ms=timeout_ms, topic_data=list(topics.values())
    )


def _settle(response: ProduceResponse, taken: Mapping[TopicPartition, _Waiting]) -> None:
    for topic in response.responses:
        for answer in topic.partition_responses:
            partition = TopicPartition(topic.name, answer.index)
            each = taken.get(partition)
            if each is None or each.done.done():
                continue
            if answer.error_code:
                detail = answer.error_message
                each.done.set_exception(error_for(answer.error_code, where=f"target {partition}", detail=detail))
            else:
                each.done.set_result(answer.base_offset)


async def new_producer_id(cluster: ClusterClient) -> ProducerId:
    """An id for batches outside of transactions; no other producer gets it."""
    connection = await cluster.to_any()
    version = connection.version_of(ApiKey.INIT_PRODUCER_ID, _INIT_VERSION)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_NO_TRANSACTIONS_MS)
    response: InitProducerIdResponse = await connection.request(
        ApiKey.INIT_PRODUCER_ID, request, version=version, timeout_ms=cluster.request_timeout_ms
    )
    if response.error_code:
        raise error_for(response.error_code, where="a producer id for the mirror")
    return ProducerId(response.producer_id, response.producer_epoch)


# --------------------------------------------------------------------------------------------------- transactions


class ShardTransactions:
    """The transactions of a shard, one at a time. After any failure the shard begins a new epoch."""

    def __init__(self, writer: TargetWriter, transactional_id: str) -> None:
        self.id = transactional_id
        self._writer = writer
        self._requests = CoordinatorRequests(writer.cluster)
        self._producer: ProducerId | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._lock = asyncio.Lock()
        self._is_lost = asyncio.Event()
        self._why_lost = ""

    @property
    def _timeout_ms(self) -> float:
        return self._writer.cluster.request_timeout_ms

    async def begin_epoch(self) -> None:
        """Fence every earlier user of the id. Its transaction is over, with its markers, when this returns."""
        ask = Ask(
            ApiKey.INIT_PRODUCER_ID,
            f"a producer id for transactional id {self.id}",
            lambda version: InitProducerIdRequest(
                transactional_id=self.id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS
            ),
            highest=_INIT_VERSION,
        )
        try:
            response: InitProducerIdResponse = await self._requests.send(ask, self.id, self._timeout_ms)
        except Rejected as rejected:
            raise rejected.error from None
        self._producer = ProducerId(response.producer_id, response.producer_epoch)
        self._sequences = {}
        self._is_lost.clear()

    async def until_lost(self) -> None:
        """Raises ShardLost once a transaction of this epoch failed, whichever task had asked for it."""
        await self._is_lost.wait()
        raise ShardLost(self._why_lost)

    def _lose(self, why: str) -> ShardLost:
        self._producer = None
        self._why_lost = why
        self._is_lost.set()
        return ShardLost(why)

    async def commit(
        self,
        batches: Sequence[tuple[TopicPartition, Buffer, int]],
        finish: Callable[[list[int]], tuple[TopicPartition, Buffer, int] | None] | None = None,
        *,
        also: Iterable[TopicPartition] = (),
    ) -> None:
        """One transaction: batches (partition, bytes, records), then one that `finish` makes of their base offsets.

        `also` are partitions that get a marker only. Raises ShardLost if it failed or its outcome is unknown: the shard
        must begin a new epoch and read its state.
        """
        async with self._lock:
            try:
                await self._commit(batches, finish, also)
            except PenstockError as error:
                reason = error.error if isinstance(error, Rejected) else error
                raise self._lose(f"a transaction of {self.id} failed: {reason}") from reason
            except BaseException:
                self._lose(f"a transaction of {self.id} was interrupted")
                raise

    async def _commit(
        self,
        batches: Sequence[tuple[TopicPartition, Buffer, int]],
        finish: Callable[[list[int]], tuple[TopicPartition, Buffer, int] | None] | None,
        also: Iterable[TopicPartition],
    ) -> None:
        if self._producer is None:
            raise ShardLost(f"the shard of {self.id} has no epoch")
        added = {partition for partition, _, _ in batches}.union(also)
        await self._add(added)
        sent = [self._append(*each) for each in batches]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        last = finish([each for each in outcomes if isinstance(each, int)]) if finish is not None else None
        if last is not None:
            if last[0] not in added:
                await self._add({last[0]})
            await self._append(*last)
        prepared = PreparedTransaction(self.id, *self._producer, version=1)
        await self._requests.send(end_of(prepared, commit=True), self.id, self._timeout_ms)

    def _append(self, partition: TopicPartition, batch: Buffer, count: int) -> asyncio.Future[int]:
        if self._producer is None:
            raise ShardLost(f"the shard of {self.id} has no epoch")
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        return self._writer.append(partition, stamped(batch, *self._producer, sequence, transactional=True), self.id)

    async def _add(self, partitions: set[TopicPartition]) -> None:
        if not partitions or self._producer is None:
            return
        ask = adding_partitions(self.id, *self._producer, partitions)
        await self._requests.send(ask, self.id, self._timeout_ms)
