"""The batches of one partition, in order: one that is open, those that wait, those that are on their way.

Rule: a partition's batches are stored in the order in which they were opened, or not at all.

- Batches that come back stand before those that were never sent, in their old order.
- With numbers (idempotent), several may be on their way at once: the broker refuses what does not follow, once it knows
  the producer. One that came back goes out only when all before it are settled, and alone; new ones follow it again
  when nothing is left to repeat.
- Without numbers, order is kept only where one request may be on its way at a time.
- After a gap (see `sequences`) nothing new goes out before all that is on its way is answered. Then those whose fate is
  not known (the connection broke) go out once more under their old numbers, so that the broker says whether it has
  them; only when nothing is uncertain does the partition start anew in the next epoch.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING

from penstock.client.producer.sequences import UNNUMBERED, PartitionSequences, ProducerId

if TYPE_CHECKING:
    from penstock.client.producer.batches import Driver, ProducerBatch
    from penstock.client.producer.delivery import Delivery
    from penstock.records.kernel import Lane


class Held(Enum):
    """Why a partition has nothing to send at the moment."""

    EMPTY = auto()
    BACKING_OFF = auto()
    IN_ORDER = auto()
    """Something has to be answered first."""
    PACKING = auto()
    """Its next batch is being compressed."""
    NO_PRODUCER_ID = auto()


class Usage:
    """What the users of a producer have made use of so far."""

    __slots__ = ("has_callbacks",)

    def __init__(self) -> None:
        self.has_callbacks = False


class PartitionQueue:
    """One partition of a topic. Times are of the monotonic clock."""

    __slots__ = (
        "_next_order",
        "driver",
        "in_flight",
        "is_driven",
        "is_muted_by_order",
        "lane",
        "not_before_ms",
        "open",
        "partition",
        "sequences",
        "topic",
        "usage",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        lane: Lane[Delivery],
        *,
        is_muted_by_order: bool,
        driver: Driver | None = None,
        usage: Usage | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.lane = lane
        self.is_muted_by_order = is_muted_by_order
        self.driver = driver
        self.usage = Usage() if usage is None else usage
        self.is_driven = False  # what is on its way goes by a connection of its own: nothing may overtake it
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.sequences = PartitionSequences()
        self.not_before_ms = 0.0
        self._next_order = 0

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.topic}-{self.partition}: {len(self.waiting)} wait, {len(self.in_flight)} out>"

    def close_open(self) -> ProducerBatch | None:
        """Closes the open batch, which waits from then on; None if none is open."""
        batch = self.open
        if batch is None:
            return None
        self.lane.close()
        self.open = None
        batch.close()
        self.append(batch)
        return batch

    def append(self, batch: ProducerBatch) -> None:
        """A closed batch that was never sent."""
        batch.order = (self._next_order,)
        self._next_order += 1
        self.waiting.append(batch)

    def requeue(self, batch: ProducerBatch) -> None:
        """A batch that has to be sent again, back to its place."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].order <= batch.order:
            at += 1
        self.waiting.insert(at, batch)

    def forget(self, batch: ProducerBatch) -> None:
        """Takes a batch out of what waits."""
        if batch is self.open:
            self.lane.close()
            self.open = None
            batch.close()
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def sent(self, batch: ProducerBatch, node: int) -> None:
        """It is on its way."""
        self.waiting.remove(batch)
        self.in_flight.append(batch)
        batch.attempts += 1
        batch.node = node

    def answered(self, batch: ProducerBatch) -> None:
        """It is no longer on its way, whatever the answer; again is harmless."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        self.is_driven = False

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Whether no batch with numbers stands before it, waiting or on its way."""
        before = (other for group in (self.in_flight, self.waiting) for other in group)
        return not any(other.order < batch.order and other.is_numbered and not other.is_done for other in before)

    def may_take_more(self, now_ms: float, most_in_flight: int) -> bool:
        """Whether a batch that was never sent could be sent now."""
        is_free = len(self.in_flight) < self._limit(now_ms, most_in_flight)
        return is_free and now_ms >= self.not_before_ms and not self.sequences.needs_reset

    def _limit(self, now_ms: float, most_in_flight: int) -> int:
        return 1 if self.is_muted_by_order or self.is_driven or self.sequences.is_strange(now_ms) else most_in_flight

    def next_to_send(
        self, now_ms: float, most_in_flight: int, producer: ProducerId | None, *, is_numbering: bool
    ) -> ProducerBatch | Held:
        """The batch to send now, numbered if batches are; or why there is none."""
        if now_ms < self.not_before_ms:
            return Held.BACKING_OFF
        if is_numbering and self.sequences.needs_reset:
            held = self._settle(producer)
            if held is not None:
                return held
        if not self.waiting:
            return Held.EMPTY
        batch = self.waiting[0]
        if batch.is_packing:
            return Held.PACKING
        if len(self.in_flight) >= self._limit(now_ms, most_in_flight):
            return Held.IN_ORDER
        if not is_numbering:
            return batch
        if batch.is_numbered:
            is_early = any(other.order < batch.order for other in self.in_flight)
            return Held.IN_ORDER if is_early else batch
        if self.sequences.owner is None:
            if producer is None:
                return Held.NO_PRODUCER_ID
            self.sequences.adopt(producer)
        batch.numbers = self.sequences.take(batch.count)
        return batch

    def _settle(self, producer: ProducerId | None) -> ProducerBatch | Held | None:
        """After a gap: what is left to do before the partition has started anew; None if it has."""
        if self.in_flight:
            return Held.IN_ORDER
        for batch in self.waiting:
            if batch.is_uncertain and batch.is_numbered:
                return batch
        if not self.sequences.reset():
            owner = self.sequences.owner
            if producer is None or (owner is not None and producer.id == owner.id):
                return Held.NO_PRODUCER_ID
            self.sequences.adopt(producer)
        for batch in self.waiting:
            batch.numbers = UNNUMBERED
        return None
