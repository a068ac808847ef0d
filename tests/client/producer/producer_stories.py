"""A producer's decisions without a network: an accumulator, its settlement, and a broker that is one list.

The broker checks sequence numbers as a real one does: within an epoch nothing but the next sequence, of the last
five batches duplicates are recognised, a higher epoch begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.producer.accumulator import Accumulator, Blocked, OutgoingRequest
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.producer_batch import Numbers, ProducerBatch, ProducerId
from penstock.client.producer.sender import Acknowledged, PartitionResponse, Settlement
from penstock.client.producer.settings import ProducerSettings
from penstock.records import decode_batch, scan
from penstock.records.kernel import Moment
from penstock.runtime.randomness import SeededRandom
from penstock.wire.protocol import ErrorCode

TOPIC = "views"
PRODUCER = ProducerId(7, 0)
_DEFAULTS: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": None,
    "compression_type": None,
    "compression_level": None,
    "batch_size": 16_384,
    "linger_ms": 0,
    "buffer_memory": 1_048_576,
    "max_block_ms": 1_000,
    "max_request_size": 262_144,
    "max_in_flight_requests_per_connection": 5,
    "retries": 2**31 - 1,
    "retry_backoff_ms": 0,
    "retry_backoff_max_ms": 0,
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 10_000,
}


def settings_with(**changes: Any) -> ProducerSettings:
    return ProducerSettings(**{**_DEFAULTS, **changes})


class OneNode:
    """Every partition is led by node 0."""

    def __init__(self, slots: int = 5) -> None:
        self.slots = slots
        self.leaderless: set[int] = set()

    def leader_of(self, topic: str, partition: int) -> int:
        return -1 if partition in self.leaderless else 0

    def slots_of(self, node: int) -> int:
        return self.slots


class Bench:
    """A producer's insides, driven by hand; `now_ms` stands still until it is changed."""

    def __init__(self, partitions: int = 1, slots: int = 5, **changes: Any) -> None:
        settings = settings_with(**changes)
        self.accumulator = Accumulator(settings, Moment(), SeededRandom(1), is_numbering=settings.is_idempotent)
        self.topic = self.accumulator.add_topic(TOPIC, partitions)
        self.settlement = Settlement(self.accumulator, SeededRandom(2))
        self.routes = OneNode(slots)
        self.now_ms = 0.0

    def introduced(self) -> Bench:
        """The broker knows the producer in every partition already: several batches may be on their way."""
        for queue in self.topic.queues:
            queue.sequences.adopt(PRODUCER)
            queue.sequences.stored(Numbers(*PRODUCER, 0), self.now_ms)
        return self

    def put(self, value: bytes, partition: int = 0) -> Delivery | Blocked:
        queue = self.topic.queues[partition]
        found = queue.lane.append(value, None, 1)
        return found or self.accumulator.open(queue, self.now_ms, 1, None, value, ())

    def put_batch(self, *values: bytes, partition: int = 0) -> list[Delivery]:
        """Records that make a batch of their own."""
        made = [self.put(value, partition) for value in values]
        self.accumulator.close_open(self.topic.queues[partition])
        return [each for each in made if isinstance(each, Delivery)]

    def plan(self) -> list[OutgoingRequest]:
        requests = self.accumulator.plan(self.now_ms, self.routes, PRODUCER).requests
        self.routes.slots -= len(requests)
        for request in requests:
            for batch in request.batches:
                encoded(batch)  # what is sent is built, and closed by that
        return requests

    def answer(self, request: OutgoingRequest, answer: PartitionResponse | BaseException) -> None:
        """All batches of a request are answered alike."""
        self.routes.slots += 1
        for batch in request.batches:
            self.settle(batch, answer)

    def settle(self, batch: ProducerBatch, answer: PartitionResponse | BaseException) -> None:
        end = self.settlement.settle(batch, answer, self.now_ms).end
        if end is None:
            if batch.is_divided:
                self.accumulator.finished(batch)
            return
        if isinstance(end, Acknowledged):
            batch.acknowledge(end.base_offset, end.stamps)
        else:
            batch.fail(end)
        self.accumulator.finished(batch)

    def expire(self) -> list[ProducerBatch]:
        late = self.accumulator.expired(self.now_ms)
        for batch in late:
            batch.fail(TimeoutError("too late"))
            self.accumulator.finished(batch)
        return late


def encoded(batch: ProducerBatch) -> bytes:
    if batch.builder is None:
        raise ValueError("the batch is done")
    producer_id, epoch, sequence = batch.numbers
    return bytes(
        batch.builder.build(
            codec=0, level=None, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            is_transactional=False,
        )
    )  # fmt: skip


class ModelBroker:
    """One partition of a broker: what it has stored, and what it remembers of producers."""

    def __init__(self, max_batch_bytes: int = 2**31) -> None:
        self.values: list[bytes | None] = []
        self.max_batch_bytes = max_batch_bytes
        self._epoch = -1
        self._next = 0
        self._recent: list[tuple[int, int, int]] = []

    def forget_producers(self) -> None:
        self._epoch, self._next, self._recent = -1, 0, []

    def produce(self, data: bytes) -> PartitionResponse:
        header = scan(data).headers[0]
        if len(data) > self.max_batch_bytes:
            return PartitionResponse(ErrorCode.MESSAGE_TOO_LARGE)
        epoch, sequence, count = header.producer_epoch, header.base_sequence, header.record_count
        if header.producer_id >= 0:
            if epoch < self._epoch:
                return PartitionResponse(ErrorCode.INVALID_PRODUCER_EPOCH)
            if epoch == self._epoch:
                for first, many, offset in self._recent:
                    if (first, many) == (sequence, count):
                        return PartitionResponse(ErrorCode.NONE, offset)
            if sequence != (self._next if epoch == self._epoch else 0):
                return PartitionResponse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            if epoch > self._epoch:
                self._epoch, self._recent = epoch, []
            self._next = sequence + count
            self._recent = [*self._recent, (sequence, count, len(self.values))][-5:]
        offset = len(self.values)
        self.values += [record.value for record in decode_batch(data)]
        return PartitionResponse(ErrorCode.NONE, offset)


def values_of(numbers: Iterable[int]) -> list[bytes]:
    return [b"%06d" % number for number in numbers]
