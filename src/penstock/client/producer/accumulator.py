"""Records that wait to be sent: by topic and partition, in batches, within a bound of memory.

Rule: what a record costs happens in the kernel (`TopicLanes.append`); here is what a batch costs, which is when one has
to be opened, closed, chosen or given up. Decisions only: time is an argument, what to do is the result.

A batch is due when it is full, when `linger_ms` has passed since it was opened, and when somebody waits for it or for
memory. One that is due is closed when a request has room for it, not before: until then it may
grow. Since all batches linger alike and live alike, those to look at next are always at the front of a queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from enum import Enum, auto
from typing import Any, Final, Protocol

from penstock.client.metrics import Latency, Metrics
from penstock.client.producer.batches import Driver, ProducerBatch
from penstock.client.producer.completion import OnDelivery
from penstock.client.producer.delivery import Delivery
from penstock.client.producer.interceptors import Headers
from penstock.client.producer.memory import MemoryBudget
from penstock.client.producer.partition_queue import Held, PartitionQueue, Usage
from penstock.client.producer.partitioners import next_sticky
from penstock.client.producer.plans import NEVER, OutgoingRequest, Plan, Slots
from penstock.client.producer.sequences import ProducerId
from penstock.client.producer.settings import ProducerSettings
from penstock.records.batch import HEADER_SIZE
from penstock.records.kernel import BatchBuilder, Moment, TopicLanes
from penstock.runtime.randomness import Random

WORTH_PACKING_BYTES: Final = 16 * 1024
_RECORD_OVERHEAD: Final = 26  # varints of lengths and deltas, attributes, header count: at most
_HEADER_OVERHEAD: Final = 10


class Blocked(Enum):
    """Why a record could not be taken."""

    NO_ROOM = auto()
    """Memory is full."""
    NO_TOPIC = auto()
    """The topic's partitions are not known."""


class Counters:
    """What became of records, batches and requests so far."""

    __slots__ = (
        "batches_failed", "batches_retried", "batches_sent", "bytes_sent", "latency", "records_failed", "records_sent",
        "requests_sent",
    )  # fmt: skip

    def __init__(self) -> None:
        self.records_sent = self.records_failed = 0
        self.batches_sent = self.batches_failed = self.batches_retried = 0
        self.bytes_sent = 0
        self.requests_sent = 0
        self.latency = Latency()

    def acknowledged(self, batch: ProducerBatch, now_ms: float) -> None:
        self.records_sent += batch.count
        self.batches_sent += 1
        self.bytes_sent += batch.size
        self.latency.add(now_ms - batch.created_ms)

    def failed(self, batch: ProducerBatch) -> None:
        self.records_failed += batch.count
        self.batches_failed += 1


class TopicQueues:
    """The partitions of a topic, and the kernel's way into them."""

    __slots__ = ("lanes", "name", "queues", "usable")

    def __init__(self, name: str, lanes: TopicLanes[Delivery], queues: list[PartitionQueue]) -> None:
        self.name = name
        self.lanes = lanes
        self.queues = queues
        self.usable: Sequence[int] = range(len(queues))  # partitions that records without a key may go to


class Routes(Protocol):
    """What the accumulator has to know of the cluster to choose batches."""

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads the partition, or -1."""

    def slots_of(self, node: int) -> int:
        """How many more requests the node may be given now."""


class Accumulator:
    """All batches of a producer that are not done. The caller sees to it that one thread is in here at a time."""

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
        self.driver: Driver | None = None
        self.usage = Usage()
        self.topics: dict[str, TopicQueues] = {}
        self.memory = MemoryBudget(settings.buffer_memory)
        self._moment = moment
        self._random = random
        self.counters = Counters()
        self._open_count = 0
        self._active: dict[PartitionQueue, None] = {}
        self._lingering: deque[ProducerBatch] = deque()
        self._undone: deque[ProducerBatch] = deque()

    # --- topics

    def add_topic(
        self, name: str, partition_count: int, guard: AbstractContextManager[Any] | None = None
    ) -> TopicQueues:
        """Begins with a topic, or takes note that it has grown; batches that wait stay as they are."""
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
        return topic

    def stick(self, topic: TopicQueues) -> PartitionQueue:
        """Moves records without a key on to another partition."""
        topic.lanes.sticky = next_sticky(topic.lanes.sticky, topic.usable, self._random)
        return topic.queues[topic.lanes.sticky]

    def set_usable(self, name: str, with_leader: Sequence[int]) -> None:
        """Records without a key go to partitions that have a leader, as long as there is one."""
        topic = self.topics.get(name)
        if topic is not None:
            topic.usable = [each for each in with_leader if each < len(topic.queues)] or range(len(topic.queues))

    # --- taking records

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
        """Opens a batch for a record that found no way in; whatever was open there is closed."""
        self.close_open(queue)
        limit = self.reserve(record_size(key, value, headers) + HEADER_SIZE)
        if isinstance(limit, Blocked):
            return limit
        builder = BatchBuilder(limit)
        try:
            builder.append(timestamp_ms, key, value, headers)
        except BaseException:
            self.memory.give_back(limit)
            raise
        return Delivery(self.adopt(queue, builder, limit, now_ms, on_delivery), 0)

    def reserve(self, at_least: int = 0) -> int | Blocked:
        """Memory for one more open batch: how large it may grow."""
        limit = max(self.memory.share_of(self._open_count, self.settings.batch_size), at_least)
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
        """Lets more records into a batch that has some; nothing may be open in its partition.

        `on_delivery` is the first record's.
        """
        if builder.size > reserved:  # a first record may be larger than it was thought
            self.memory.used += builder.size - reserved
            reserved = builder.size
        batch = ProducerBatch(queue, builder, reserved, now_ms, now_ms + self.settings.delivery_timeout_ms)
        self._undone.append(batch)
        queue.open = batch
        if on_delivery is not None:
            batch.callbacks.add(0, on_delivery)  # first, so that callbacks come in the records' order
        queue.lane.open(builder, batch, batch.callbacks)
        self._open_count += 1
        self._lingering.append(batch)
        return batch

    def close_open(self, queue: PartitionQueue) -> ProducerBatch | None:
        """Closes what is open in a partition; what it had reserved and did not use is free again."""
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
        """Whether a plan made now would be empty whatever the time."""
        return not self._active and not self._lingering

    @property
    def wants_attention(self) -> bool:
        """Whether something may be sent at once, or a time to look again has to be set."""
        return bool(self._active) or self.settings.linger_ms <= 0 or len(self._lingering) <= 1

    def next_linger_ms(self) -> float:
        """When the oldest open batch is due."""
        while self._lingering and self._lingering[0].order:
            self._lingering.popleft()  # closed before its time
        return self._lingering[0].created_ms + self.settings.linger_ms if self._lingering else NEVER

    def make_all_due(self) -> None:
        """Whatever is open may be sent as soon as a broker has room: somebody waits for it."""
        for batch in self._lingering:
            self._due(batch)
        self._lingering.clear()

    def undone(self) -> list[ProducerBatch]:
        """All batches that are not done, the oldest first."""
        return [batch for batch in self._undone if not batch.is_done]

    def metrics(self) -> Metrics:
        """What was counted, and what is so at the moment."""
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
            "latency_ms_mean": counters.latency.mean_ms,
            "latency_ms_max": counters.latency.most_ms,
            "batches_in_flight": in_flight,
            "batches_waiting": len(undone) - in_flight,
            "buffer_bytes": self.memory.used,
            "buffer_bytes_limit": self.memory.limit,
        }

    # --- choosing

    def plan(self, now_ms: float, routes: Routes, producer: ProducerId | None) -> Plan:
        """The batches to send now, with numbers, gathered into requests.

        They count as on their way from here on.
        """
        plan = Plan()
        while self.next_linger_ms() <= now_ms:
            self._due(self._lingering.popleft())
        plan.wake_at_ms = min(self.next_linger_ms(), self.next_deadline_ms())
        by_node: dict[int, Slots] = {}
        for queue in list(self._active):
            node = routes.leader_of(queue.topic, queue.partition)
            if node < 0:
                plan.leaderless.add(queue.topic)
                continue
            slots = by_node.get(node)
            if slots is None:
                slots = by_node[node] = Slots(node, routes.slots_of(node))
                if slots.free < 0:
                    plan.to_connect.add(node)
            before = len(queue.in_flight)
            held = self._plan_partition(queue, now_ms, slots, producer, plan)
            if held is Held.EMPTY:
                del self._active[queue]
            elif len(queue.in_flight) > before:
                del self._active[queue]
                self._active[queue] = None  # behind the others, whose turn is next
            if held is Held.BACKING_OFF:
                plan.wake_at_ms = min(plan.wake_at_ms, queue.not_before_ms)
            elif held is Held.NO_PRODUCER_ID:
                plan.needs_producer_id = True
        self.counters.requests_sent += len(plan.requests)
        return plan

    def _plan_partition(
        self, queue: PartitionQueue, now_ms: float, slots: Slots, producer: ProducerId | None, plan: Plan
    ) -> Held | None:
        """Puts what a partition can send into requests to its node; why it can send no more, None if those are full."""
        most_in_flight = self.settings.max_in_flight
        place = 0  # a partition's batches go into different requests: the next one into a request from here on
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
                    continue  # it has just started anew
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
        """Whether an open batch may be sent by whoever waits for it; if so it counts as on its way to that node.

        Only if its partition has nothing else to send, and then nothing else of it is sent before the answer.
        """
        queue = batch.queue
        has_others = bool(queue.waiting or queue.in_flight)
        if queue.open is not batch or has_others or not queue.may_take_more(now_ms, self.settings.max_in_flight):
            return False
        if self.is_numbering and producer is None and queue.sequences.owner is None:
            return False
        self.close_open(queue)
        if queue.next_to_send(now_ms, self.settings.max_in_flight, producer, is_numbering=self.is_numbering) is batch:
            queue.sent(batch, node)
            queue.is_driven = True
            self.counters.requests_sent += 1
            del self._active[queue]
        self.next_linger_ms()  # forgets the batch
        return queue.is_driven

    def is_all(self, batch: ProducerBatch) -> bool:
        """Whether nothing but this batch is to be sent or answered."""
        return len(self._undone) == 1 and self._undone[0] is batch

    def _pack(self, queue: PartitionQueue, plan: Plan) -> None:
        """Large batches are compressed elsewhere before they are sent, several at a time."""
        if self.settings.codec:
            for batch in queue.waiting:
                if not batch.is_packed and not batch.is_packing and batch.size >= WORTH_PACKING_BYTES:
                    batch.is_packing = True
                    plan.to_pack.append(batch)

    def _due(self, batch: ProducerBatch) -> None:
        batch.is_due = True
        self._active[batch.queue] = None

    # --- what became of them

    def again(self, batch: ProducerBatch, not_before_ms: float) -> None:
        """It has to be sent again, not before that time; its partition waits with it."""
        self.counters.batches_retried += 1
        batch.queue.requeue(batch)
        batch.queue.not_before_ms = max(batch.queue.not_before_ms, not_before_ms)
        self._active[batch.queue] = None

    def replace(self, batch: ProducerBatch, halves: list[ProducerBatch]) -> None:
        """Its halves take its place."""
        for half in halves:
            self.memory.used += half.size
            half.reserved = half.size
            batch.queue.requeue(half)
        self._undone.extendleft(reversed(halves))
        self._active[batch.queue] = None

    def touch(self, queue: PartitionQueue) -> None:
        """Something about the partition has changed: look at it in the next plan, if it has anything to send."""
        if queue.waiting or (queue.open is not None and queue.open.is_due):
            self._active[queue] = None

    def finished(self, batch: ProducerBatch) -> None:
        """Its memory is free again."""
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
        """Batches whose time is over, taken out of what waits; those on their way stay until they are answered."""
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
        """What waits for a broker that will never take it, given up; what is on its way stays until it is answered."""
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

    def take_all(self) -> Iterable[ProducerBatch]:
        """Everything that is not done, given up: the producer ends."""
        for batch in self.undone():
            if batch.queue.open is batch:
                self.close_open(batch.queue)
            batch.queue.forget(batch)
            yield batch


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """What a record takes in a batch, at most."""
    size = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += _HEADER_OVERHEAD + len(name) * 4 + (len(content) if content else 0)
    return size
