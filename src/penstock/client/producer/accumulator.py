"""Records waiting to be sent: by partition, in batches, within `buffer_memory`. Decides without I/O.

The kernel appends records (`TopicLanes.append`); this module opens, closes, orders, plans and expires batches. A
batch is due when it is full, when `linger_ms` has passed, or when a caller waits for it or for memory. It is closed
when a request has room for it, so it can grow until then.

Order: the batches of a partition are stored in the order in which they were opened, or not at all. A batch that comes
back is sent before new ones, and alone; without sequence numbers order holds only with one request in flight. After a
gap nothing new is sent until everything in flight is answered; batches of unknown fate are sent again under their
old numbers first.

Memory: an open batch reserves what it may grow to, at most an even share of half the budget (of 16 MiB, the eighth
batch: `batch_size`, the thousandth: 8 KiB). Partitions: the caller's, else the user's partitioner, else murmur2 of the
key as in Java's client, else one partition until its batch is closed ("sticky").
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.client.errors import ConfigError
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.interceptors import Headers
from penstock.client.producer.producer_batch import (
    UNNUMBERED,
    Driver,
    OnDelivery,
    PartitionSequences,
    ProducerBatch,
    ProducerId,
)
from penstock.client.producer.settings import ProducerSettings
from penstock.client.producer.transaction_state import TransactionState
from penstock.client.settings import Metrics
from penstock.records.kernel import BatchBuilder, Moment, TopicLanes, murmur2
from penstock.records.types import HEADER_SIZE
from penstock.runtime.randomness import Random, SeededRandom

if TYPE_CHECKING:
    from penstock.records.kernel import Lane

NEVER: Final = float("inf")
SMALLEST_BATCH_BYTES: Final = 4096
WORTH_PACKING_BYTES: Final = 16 * 1024
_HALF: Final = 2  # the other half is for closed batches and those in flight
_RECORD_OVERHEAD: Final = 26  # varints of lengths and deltas, attributes, header count: at most
_HEADER_OVERHEAD: Final = 10


class Blocked(Enum):
    """Why a record could not be accepted."""

    NO_ROOM = auto()
    """Memory is full."""
    NO_TOPIC = auto()
    """The topic's partitions are not known."""


class Routes(Protocol):
    """What the accumulator needs to know about the cluster."""

    def leader_of(self, topic: str, partition: int) -> int:
        """The leader's node id, or -1."""

    def slots_of(self, node: int) -> int:
        """How many more requests the node may get now."""


class Accumulator:
    """All unfinished batches of a producer. The caller makes sure that one thread uses it at a time."""

    def __init__(
        self,
        settings: ProducerSettings,
        moment: Moment,
        random: Random,
        *,
        is_numbering: bool,
        on_closed: Callable[[ProducerBatch], None] | None = None,
    ) -> None:
        self.settings = settings
        self._on_closed = on_closed
        self.is_numbering = is_numbering
        self.transaction: TransactionState | None = None
        """Decides which partitions may be sent, for a transactional producer."""
        self.driver: Driver | None = None
        self.usage = Usage()
        self.topics: dict[str, TopicQueues] = {}
        self.memory = MemoryBudget(settings.buffer_memory)
        self._moment = moment
        self._random = SeededRandom(random.below(2**32))  # drawn from with each batch, without a system call
        self.counters = Counters()
        self._open_count = 0
        self._active: dict[PartitionQueue, None] = {}
        self._lingering: deque[ProducerBatch] = deque()
        self._undone: deque[ProducerBatch] = deque()

    # --- topics

    def add_topic(
        self, name: str, partition_count: int, guard: AbstractContextManager[Any] | None = None
    ) -> TopicQueues:
        """Add a topic, or more partitions to it; waiting batches stay."""
        known = self.topics.get(name)
        if known is not None and len(known.queues) >= partition_count:
            return known
        queues = known.queues if known is not None else []
        for queue in queues:
            self.close_open(queue)
        lanes: TopicLanes[Delivery] = TopicLanes(Delivery, partition_count, self._moment, guard)
        muted = self.settings.max_in_flight == 1
        for partition, lane in enumerate(lanes.lanes):
            if partition < len(queues):
                queues[partition].lane = lane
            else:
                queues.append(
                    PartitionQueue(name, partition, lane, is_muted_by_order=muted, driver=self.driver, usage=self.usage)
                )
        topic = self.topics[name] = TopicQueues(name, lanes, queues)
        if known is not None:
            topic.batch_limit = known.batch_limit
        return topic

    def stick(self, topic: TopicQueues) -> PartitionQueue:
        """Send records without a key to another partition from now on."""
        topic.lanes.sticky = next_sticky(topic.lanes.sticky, topic.usable, self._random)
        return topic.queues[topic.lanes.sticky]

    def set_usable(self, name: str, with_leader: Sequence[int]) -> None:
        """Send records without a key to partitions with a leader, if there are any."""
        topic = self.topics.get(name)
        if topic is not None:
            topic.usable = [each for each in with_leader if each < len(topic.queues)] or range(len(topic.queues))

    # --- accepting records

    def open(
        self,
        queue: PartitionQueue,
        now_ms: float,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery | Blocked:
        """Open a batch for a record; the open batch of the partition is closed."""
        self.close_open(queue)
        limit = self.reserve(self.topics[queue.topic], record_size(key, value, headers) + HEADER_SIZE)
        if isinstance(limit, Blocked):
            return limit
        builder = BatchBuilder(limit)
        try:
            builder.append(timestamp_ms, key, value, headers)
        except BaseException:
            self.memory.give_back(limit)
            raise
        return Delivery(self.adopt(queue, builder, limit, now_ms, on_delivery), 0)

    def reserve(self, topic: TopicQueues, at_least: int = 0) -> int | Blocked:
        """Reserve memory for one more batch; returns how large it may grow."""
        largest = min(self.settings.batch_size, topic.batch_limit)
        limit = max(self.memory.share_of(self._open_count, largest), at_least)
        if self.memory.take(limit):
            return limit
        self.make_all_due()
        return Blocked.NO_ROOM

    def adopt(
        self,
        queue: PartitionQueue,
        builder: BatchBuilder,
        reserved: int,
        now_ms: float,
        on_delivery: OnDelivery | None = None,
    ) -> ProducerBatch:
        """Open a batch that has records already; none may be open in its partition.

        `on_delivery` is the first record's.
        """
        if builder.size > reserved:  # a first record may be larger than estimated
            self.memory.used += builder.size - reserved
            reserved = builder.size
        batch = ProducerBatch(queue, builder, reserved, now_ms, now_ms + self.settings.delivery_timeout_ms)
        self._undone.append(batch)
        queue.open = batch
        if on_delivery is not None:
            batch.callbacks.add(0, on_delivery)  # first, so that callbacks run in the order of the records
        queue.lane.open(builder, batch, batch.callbacks)
        self._open_count += 1
        self._lingering.append(batch)
        return batch

    def close_open(self, queue: PartitionQueue) -> ProducerBatch | None:
        """Close the open batch of a partition and release the memory that it did not use."""
        batch = queue.close_open()
        if batch is not None:
            self._closed(batch)
        return batch

    def _closed(self, batch: ProducerBatch) -> None:
        self._open_count -= 1
        unused = batch.reserved - batch.size
        if unused > 0:
            self.memory.give_back(unused)
            batch.reserved = batch.size
        self._active[batch.queue] = None
        if self._on_closed is not None:
            self._on_closed(batch)

    @property
    def has_room(self) -> bool:
        """Whether one more batch can be opened."""
        return self.memory.free >= self.memory.share_of(self._open_count, self.settings.batch_size)

    @property
    def has_nothing_due(self) -> bool:
        """Whether a plan would be empty at any time."""
        return not self._active and not self._lingering

    @property
    def wants_attention(self) -> bool:
        """Whether something may be sent at once, or a timer has to be set."""
        return bool(self._active) or self.settings.linger_ms <= 0 or len(self._lingering) <= 1

    def next_linger_ms(self) -> float:
        """When the oldest open batch is due."""
        while self._lingering and self._lingering[0].order:
            self._lingering.popleft()  # closed early
        return self._lingering[0].created_ms + self.settings.linger_ms if self._lingering else NEVER

    def make_all_due(self) -> None:
        """Make all open batches due: a caller waits for them."""
        for batch in self._lingering:
            self._due(batch)
        self._lingering.clear()

    def undone(self) -> list[ProducerBatch]:
        """All unfinished batches, the oldest first."""
        return [batch for batch in self._undone if not batch.is_done]

    def metrics(self) -> Metrics:
        """Counters and current values."""
        counters, undone = self.counters, self.undone()
        in_flight = sum(batch in batch.queue.in_flight for batch in undone)
        return {
            "records_sent": counters.records_sent,
            "records_failed": counters.records_failed,
            "bytes_sent": counters.bytes_sent,
            "batches_sent": counters.batches_sent,
            "batches_failed": counters.batches_failed,
            "batches_retried": counters.batches_retried,
            "requests_sent": counters.requests_sent,
            "latency_ms_mean": counters.latency_total_ms / max(1, counters.batches_sent),
            "latency_ms_max": counters.latency_max_ms,
            "batches_in_flight": in_flight,
            "batches_waiting": len(undone) - in_flight,
            "buffer_bytes": self.memory.used,
            "buffer_bytes_limit": self.memory.limit,
        }

    # --- planning

    def plan(self, now_ms: float, routes: Routes, producer: ProducerId | None) -> Plan:
        """The batches to send now, with sequence numbers, gathered into requests.

        They count as on their way from here on.
        """
        plan = Plan()
        while self.next_linger_ms() <= now_ms:
            self._due(self._lingering.popleft())
        plan.wake_at_ms = min(self.next_linger_ms(), self.next_deadline_ms())
        by_node: dict[int, NodeSlots] = {}
        for queue in list(self._active):
            node = routes.leader_of(queue.topic, queue.partition)
            if node < 0:
                plan.leaderless.add(queue.topic)
                continue
            if not self._is_admitted(queue):
                continue
            slots = by_node.get(node)
            if slots is None:
                slots = by_node[node] = NodeSlots(node, routes.slots_of(node))
                if slots.free < 0:
                    plan.to_connect.add(node)
            before = len(queue.in_flight)
            held = self._plan_partition(queue, now_ms, slots, producer, plan)
            if held is Held.EMPTY:
                del self._active[queue]
            elif len(queue.in_flight) > before:
                del self._active[queue]
                self._active[queue] = None  # behind the others
            if held is Held.BACKING_OFF:
                plan.wake_at_ms = min(plan.wake_at_ms, queue.not_before_ms)
            elif held is Held.NO_PRODUCER_ID:
                plan.needs_producer_id = True
        self.counters.requests_sent += len(plan.requests)
        return plan

    def _is_admitted(self, queue: PartitionQueue) -> bool:
        """Whether the transaction, if there is one, lets the partition send; one that has nothing to send may."""
        if self.transaction is None or not (queue.waiting or (queue.open is not None and queue.open.is_due)):
            return True
        return self.transaction.admits(queue.topic, queue.partition)

    def _plan_partition(
        self, queue: PartitionQueue, now_ms: float, slots: NodeSlots, producer: ProducerId | None, plan: Plan
    ) -> Held | None:
        """Add what a partition can send to its node's requests. Returns why it sends no more; None if all are full."""
        most_in_flight = self.settings.max_in_flight
        place = 0  # batches of a partition go into different requests: the next one from this one on
        while place < len(slots.requests) or slots.free > 0:
            is_due = queue.open is not None and queue.open.is_due
            if is_due and not queue.waiting and queue.may_take_more(now_ms, most_in_flight):
                self.close_open(queue)
            self._pack(queue, plan)
            size = queue.waiting[0].size if queue.waiting else 0
            while place < len(slots.requests) and slots.requests[place].size + size > self.settings.max_request_size:
                place += 1
            if place == len(slots.requests) and slots.free <= 0:
                return None
            batch = queue.next_to_send(now_ms, most_in_flight, producer, is_numbering=self.is_numbering)
            if batch is Held.EMPTY and is_due and queue.open is not None:
                if queue.may_take_more(now_ms, most_in_flight):
                    continue  # it has just started a new epoch
                return Held.IN_ORDER
            if isinstance(batch, Held):
                return batch
            if place == len(slots.requests):
                slots.requests.append(OutgoingRequest(slots.node))
                plan.requests.append(slots.requests[-1])
                slots.free -= 1
            slots.requests[place].add(batch)
            place += 1
            queue.sent(batch, slots.node)
        return None

    def take_alone(self, batch: ProducerBatch, now_ms: float, node: int, producer: ProducerId | None) -> bool:
        """Whether the thread that waits for an open batch may send it; if so, it counts as in flight to that node.

        Only if its partition has nothing else to send, and then nothing else of it is sent before the answer.
        """
        queue = batch.queue
        has_others = bool(queue.waiting or queue.in_flight)
        if queue.open is not batch or has_others or not queue.may_take_more(now_ms, self.settings.max_in_flight):
            return False
        if self.is_numbering and producer is None and queue.sequences.owner is None:
            return False
        if self.transaction is not None and not self.transaction.admits(queue.topic, queue.partition):
            return False
        self.close_open(queue)
        if queue.next_to_send(now_ms, self.settings.max_in_flight, producer, is_numbering=self.is_numbering) is batch:
            queue.sent(batch, node)
            queue.is_driven = True
            self.counters.requests_sent += 1
            del self._active[queue]
        self.next_linger_ms()  # removes the batch
        return queue.is_driven

    def is_all(self, batch: ProducerBatch) -> bool:
        """Whether this is the only batch to send or in flight."""
        return len(self._undone) == 1 and self._undone[0] is batch

    def _pack(self, queue: PartitionQueue, plan: Plan) -> None:
        """Large batches are compressed on other threads before they are sent."""
        if self.settings.codec:
            for batch in queue.waiting:
                if not batch.is_packed and not batch.is_packing and batch.size >= WORTH_PACKING_BYTES:
                    batch.is_packing = True
                    plan.to_pack.append(batch)

    def _due(self, batch: ProducerBatch) -> None:
        batch.is_due = True
        self._active[batch.queue] = None

    # --- outcomes

    def again(self, batch: ProducerBatch, not_before_ms: float) -> None:
        """Send it again, not before this time; its partition waits for it."""
        self.counters.batches_retried += 1
        batch.queue.requeue(batch)
        batch.queue.not_before_ms = max(batch.queue.not_before_ms, not_before_ms)
        self._active[batch.queue] = None

    def replace(self, batch: ProducerBatch, halves: list[ProducerBatch]) -> None:
        """Its halves replace it, and its topic gets no larger batches from now on: the broker rejects them."""
        topic = self.topics[batch.topic]
        topic.batch_limit = min(topic.batch_limit, max(batch.size // 2, SMALLEST_BATCH_BYTES))
        for half in halves:
            self.memory.used += half.size
            half.reserved = half.size
            batch.queue.requeue(half)
        self._undone.extendleft(reversed(halves))
        self._active[batch.queue] = None

    def touch(self, queue: PartitionQueue) -> None:
        """The partition has changed: consider it in the next plan if it has anything to send."""
        if queue.waiting or (queue.open is not None and queue.open.is_due):
            self._active[queue] = None

    def finished(self, batch: ProducerBatch) -> None:
        """Release its memory."""
        self.memory.give_back(batch.reserved)
        batch.reserved = 0
        batch.release()
        self.touch(batch.queue)
        while self._undone and self._undone[0].is_done:
            self._undone.popleft()

    def next_deadline_ms(self) -> float:
        while self._undone and self._undone[0].is_done:
            self._undone.popleft()
        return self._undone[0].deadline_ms if self._undone else NEVER

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Remove and return expired batches; those in flight stay until their response."""
        late: list[ProducerBatch] = []
        while self.next_deadline_ms() <= now_ms:
            batch = self._undone.popleft()
            if batch.queue.open is batch:
                self.close_open(batch.queue)
            batch.queue.forget(batch)
            if batch.is_numbered:
                batch.queue.sequences.mark_gap()
            late.append(batch)
        return late

    def take_from(self, node: int, routes: Routes) -> list[ProducerBatch]:
        """Remove and return the waiting batches for a broker that cannot accept them; those in flight stay."""
        taken: list[ProducerBatch] = []
        for batch in self.undone():
            if routes.leader_of(batch.topic, batch.partition) != node or batch in batch.queue.in_flight:
                continue
            if batch.queue.open is batch:
                self.close_open(batch.queue)
            batch.queue.forget(batch)
            if batch.is_numbered:
                batch.queue.sequences.mark_gap()
            taken.append(batch)
        return taken

    def take_unsent(self) -> list[ProducerBatch]:
        """Remove and return all batches that are not in flight: their transaction is aborted."""
        taken = [batch for batch in self.undone() if batch not in batch.queue.in_flight]
        for batch in taken:
            if batch.queue.open is batch:
                self.close_open(batch.queue)
            batch.queue.forget(batch)
        return taken

    def take_all(self) -> Iterable[ProducerBatch]:
        """Remove and return all unfinished batches: the producer ends."""
        for batch in self.undone():
            if batch.queue.open is batch:
                self.close_open(batch.queue)
            batch.queue.forget(batch)
            yield batch


# --------------------------------------------------------------------------------------------------- partitions


class TopicQueues:
    """The partitions of a topic, and the kernel's lanes into them."""

    __slots__ = ("batch_limit", "lanes", "name", "queues", "usable")

    def __init__(self, name: str, lanes: TopicLanes[Delivery], queues: list[PartitionQueue]) -> None:
        self.name = name
        self.lanes = lanes
        self.queues = queues
        self.usable: Sequence[int] = range(len(queues))  # partitions that records without a key may go to
        self.batch_limit = sys.maxsize  # bytes; batches of twice that were too large for a broker


class PartitionQueue:
    """The batches of one partition. Times are of the monotonic clock."""

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
        self.is_driven = False  # a batch in flight was sent directly: nothing may overtake it
        self.open: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.sequences = PartitionSequences()
        self.not_before_ms = 0.0
        self._next_order = 0

    def __repr__(self) -> str:
        counts = f"{len(self.waiting)} waiting, {len(self.in_flight)} in flight"
        return f"<PartitionQueue {self.topic}-{self.partition}: {counts}>"

    def close_open(self) -> ProducerBatch | None:
        """Close the open batch, which waits from then on; None if none is open."""
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
        """Put a batch that has to be sent again back to its place."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].order <= batch.order:
            at += 1
        self.waiting.insert(at, batch)

    def forget(self, batch: ProducerBatch) -> None:
        """Remove a waiting batch."""
        if batch is self.open:
            self.lane.close()
            self.open = None
            batch.close()
        elif batch in self.waiting:
            self.waiting.remove(batch)

    def sent(self, batch: ProducerBatch, node: int) -> None:
        """It is in flight."""
        self.waiting.remove(batch)
        self.in_flight.append(batch)
        batch.attempts += 1
        batch.node = node

    def answered(self, batch: ProducerBatch) -> None:
        """It is no longer in flight. It may be called twice."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        self.is_driven = False

    def is_oldest(self, batch: ProducerBatch) -> bool:
        """Whether no numbered batch is before it, waiting or in flight."""
        before = (other for group in (self.in_flight, self.waiting) for other in group)
        return not any(other.order < batch.order and other.is_numbered and not other.is_done for other in before)

    def may_take_more(self, now_ms: float, most_in_flight: int) -> bool:
        """Whether a batch that was never sent could be sent now."""
        is_free = len(self.in_flight) < self._limit(now_ms, most_in_flight)
        return is_free and now_ms >= self.not_before_ms and not self.sequences.needs_reset

    def _limit(self, now_ms: float, most_in_flight: int) -> int:
        return (
            1 if self.is_muted_by_order or self.is_driven or self.sequences.may_be_unknown(now_ms) else most_in_flight
        )

    def next_to_send(
        self, now_ms: float, most_in_flight: int, producer: ProducerId | None, *, is_numbering: bool
    ) -> ProducerBatch | Held:
        """The batch to send now, with sequence numbers if those are used; or why there is none."""
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
        """After a gap: what is left to do before the partition can start a new epoch; None if it has."""
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


class Held(Enum):
    """Why a partition has nothing to send now."""

    EMPTY = auto()
    BACKING_OFF = auto()
    IN_ORDER = auto()
    """A response has to arrive first."""
    PACKING = auto()
    """Its next batch is being compressed."""
    NO_PRODUCER_ID = auto()


class Usage:
    """Which features of the producer were used so far."""

    __slots__ = ("has_callbacks",)

    def __init__(self) -> None:
        self.has_callbacks = False


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key according to Java's default partitioner."""
    return murmur2(key) % partition_count


def next_sticky(current: int, candidates: Sequence[int], random: Random) -> int:
    """Where records without a key go next: a candidate other than the current one, if there is any."""
    count = len(candidates)
    if current not in candidates:
        return candidates[random.below(count)]
    if count == 1:
        return current
    place = random.below(count - 1)
    return candidates[place if candidates[place] != current else count - 1]


def checked(partition: object, partition_count: int, chosen_by: str, topic: str) -> int:
    """A partition given by the caller; raises ConfigError if the topic does not have it."""
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise TypeError(f"{chosen_by} must be an int, not {type(partition).__name__}")
    if not 0 <= partition < partition_count:
        raise ConfigError(f"{chosen_by} is {partition}; topic {topic} has partitions 0 to {partition_count - 1}")
    return partition


# --------------------------------------------------------------------------------------------------- plans


class Plan:
    """What to do now: send `requests` in this order; plan again at `wake_at_ms` at the latest."""

    __slots__ = ("leaderless", "needs_producer_id", "requests", "to_connect", "to_pack", "wake_at_ms")

    def __init__(self) -> None:
        self.requests: list[OutgoingRequest] = []
        self.leaderless: set[str] = set()
        self.to_connect: set[int] = set()
        self.to_pack: list[ProducerBatch] = []
        self.needs_producer_id = False
        self.wake_at_ms = NEVER


class OutgoingRequest:
    """Batches for one request to a node: at most one of each partition."""

    __slots__ = ("batches", "node", "size")

    def __init__(self, node: int) -> None:
        self.node = node
        self.batches: list[ProducerBatch] = []
        self.size = 0

    def add(self, batch: ProducerBatch) -> None:
        self.batches.append(batch)
        self.size += batch.size


class NodeSlots:
    """How many more requests a node may get, and those of this plan."""

    __slots__ = ("free", "node", "requests")

    def __init__(self, node: int, free: int) -> None:
        self.node = node
        self.free = free
        self.requests: list[OutgoingRequest] = []


# --------------------------------------------------------------------------------------------------- memory, counters


class MemoryBudget:
    """The memory budget. The caller makes sure that one thread uses it at a time."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Take `size` bytes; False if there are not enough."""
        if size > self.limit - self.used:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size

    def share_of(self, open_batches: int, batch_size: int) -> int:
        """What one more batch may grow to when `open_batches` are open."""
        fair = self.limit // _HALF // (open_batches + 1)
        return max(min(batch_size, fair), min(SMALLEST_BATCH_BYTES, batch_size))


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The most that a record takes in a batch, in bytes."""
    size = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name) * 4 + (len(content) if content else 0)
    return size


class Counters:
    """Counters of records, batches and requests."""

    __slots__ = (
        "batches_failed", "batches_retried", "batches_sent", "bytes_sent", "latency_max_ms", "latency_total_ms",
        "records_failed", "records_sent", "requests_sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.records_sent = self.records_failed = 0
        self.batches_sent = self.batches_failed = self.batches_retried = 0
        self.bytes_sent = 0
        self.requests_sent = 0
        self.latency_total_ms = self.latency_max_ms = 0.0

    def acknowledged(self, batch: ProducerBatch, now_ms: float) -> None:
        self.records_sent += batch.count
        self.batches_sent += 1
        self.bytes_sent += batch.size
        latency_ms = now_ms - batch.created_ms
        self.latency_total_ms += latency_ms
        self.latency_max_ms = max(self.latency_max_ms, latency_ms)

    def failed(self, batch: ProducerBatch) -> None:
        self.records_failed += batch.count
        self.batches_failed += 1
