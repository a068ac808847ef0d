"""A batch of one partition: its sequence numbers, its bytes, and its completion.

Sequences: within a producer id and epoch the batches of a partition carry sequence numbers without a gap, so a broker
rejects whatever does not follow. A batch keeps its numbers through all retries and is never stored twice. After a
certain gap (a numbered batch failed for good, or the broker has forgotten the producer) the partition starts again in
the next epoch at sequence 0, but only once none of its batches is in flight. As long as nothing is known to be stored
under an id and epoch, one batch is in flight at a time: a broker that does not know the producer accepts any first
sequence.

    sent 0-9, 10-19, 20-29; the first fails for good   -> the others are out of order and come back
    all answered: epoch 1; what were 10-19 and 20-29 are sent as 0-9 and 10-19

Completion: all records of a batch share one. Threads and tasks wait for it; callbacks run in the order in which they
were added, and one that raises is logged. A batch that the broker finds too large is split in two halves that share
its numbers, and is complete when both are. A finished batch releases its bytes, so a kept `Delivery` costs two words.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.client.errors import BatchRejected
from penstock.client.producer.interceptors import BatchInfo
from penstock.client.producer.settings import ProducerSettings
from penstock.records import CREATE_TIME
from penstock.records.batch import decode_batch
from penstock.records.compression import Codec
from penstock.records.kernel import BatchBuilder, Callbacks, run_callbacks
from penstock.records.legacy import LegacyMessage, encode_message_set

if TYPE_CHECKING:
    from penstock.client.producer.accumulator import PartitionQueue

SEQUENCES: Final = 2**31
MAX_EPOCH: Final = 2**15 - 1
NO_SEQUENCE: Final = -1
FIRST_WITH_BATCHES: Final = 3
"""The first version of Produce with record batches instead of message sets."""
Callback = Callable[[], None]

_log = logging.getLogger("penstock.producer")
_FIRST_WITH_TIMESTAMPS: Final = 2
_KNOWN_FOR_MS: Final = 3_600_000.0
"""Brokers forget an idle producer, after a day by default."""


# --------------------------------------------------------------------------------------------------- sequence numbers


class ProducerId(NamedTuple):
    """Id and epoch of a producer: the result of InitProducerId."""

    id: int
    epoch: int


class Numbers(NamedTuple):
    """The producer id, epoch and first sequence number of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


UNNUMBERED: Final = Numbers(-1, -1, NO_SEQUENCE)


def advance(sequence: int, count: int) -> int:
    """The sequence `count` records further on: advance(2**31 - 1, 1) is 0."""
    return (sequence + count) % SEQUENCES


class PartitionSequences:
    """The sequence numbers of one partition."""

    __slots__ = ("_known_until_ms", "needs_reset", "next_sequence", "owner")

    def __init__(self) -> None:
        self.owner: ProducerId | None = None
        self.next_sequence = 0
        self.needs_reset = False
        self._known_until_ms = 0.0

    def adopt(self, producer: ProducerId) -> None:
        """Start at sequence 0 under an id that this partition has not used yet."""
        self.owner = producer
        self.next_sequence = 0
        self.needs_reset = False
        self._known_until_ms = 0.0

    def move_to(self, producer: ProducerId) -> None:
        """Start at sequence 0 in the next epoch of a transactional producer, unless it has the same id and epoch.

        A broker that knew the id in the last epoch rejects any other first sequence.
        """
        owner, known_until_ms = self.owner, self._known_until_ms
        if owner == producer and not self.needs_reset:
            return
        self.adopt(producer)
        if owner is not None and owner.id == producer.id:
            self._known_until_ms = known_until_ms

    def may_be_unknown(self, now_ms: float) -> bool:
        """Whether the broker may not know this producer id and epoch."""
        return self.owner is not None and now_ms >= self._known_until_ms

    def stored(self, numbers: Numbers, now_ms: float) -> None:
        """The batch with these numbers is stored."""
        if self.owner == (numbers.producer_id, numbers.producer_epoch):
            self._known_until_ms = now_ms + _KNOWN_FOR_MS

    def take(self, count: int) -> Numbers:
        """The numbers of the next batch of `count` records."""
        if self.owner is None:
            raise ValueError("sequence numbers need a producer id")
        numbers = Numbers(self.owner.id, self.owner.epoch, self.next_sequence)
        self.next_sequence = advance(self.next_sequence, count)
        return numbers

    def mark_gap(self) -> None:
        """Some numbers will never be stored; nothing new may be sent before a reset."""
        self.needs_reset = self.owner is not None

    def reset(self) -> bool:
        """Start over in the next epoch; False if there is none left: a new producer id must be adopted."""
        if self.owner is None or self.owner.epoch >= MAX_EPOCH:
            return False
        self.adopt(ProducerId(self.owner.id, self.owner.epoch + 1))
        return True


# --------------------------------------------------------------------------------------------------- completion


class Timestamps(Protocol):
    """A timestamp for each record, in milliseconds."""

    def __getitem__(self, index: int, /) -> int: ...

    def run_at(self, index: int) -> tuple[int, int, int]:
        """The timestamp of a record, and the range of records [first, end) that share it."""


class TimestampRuns:
    """Timestamps as runs of (first record, timestamp); a run ends where the next one starts."""

    __slots__ = ("_firsts", "_times_ms")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self._firsts = [first for first, _ in runs]
        self._times_ms = [time_ms for _, time_ms in runs]

    def __getitem__(self, index: int, /) -> int:
        return self._times_ms[bisect_right(self._firsts, index) - 1]

    def run_at(self, index: int) -> tuple[int, int, int]:
        number = bisect_right(self._firsts, index)
        end = self._firsts[number] if number < len(self._firsts) else sys.maxsize
        return self._times_ms[number - 1], self._firsts[number - 1], end


class RecordMetadata(NamedTuple):
    """Where a record is stored. `offset` is -1 if it is unknown (acks=0); `timestamp` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery = Callable[[Exception | None, RecordMetadata], object]
"""`on_delivery` of `send`: called with the error or None, and the metadata, whose offset is -1 after an error."""


class Completion:
    """Pending at first; then acknowledged, failed, or divided into parts, and final."""

    __slots__ = (
        "_lock",
        "_parts",
        "_parts_left",
        "_starts",
        "_waiters",
        "base_offset",
        "callbacks",
        "error",
        "is_done",
        "partition",
        "stamps",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int) -> None:
        self._lock = threading.Lock()
        self.callbacks = Callbacks(self._lock)
        self._waiters: list[Callback] | None = None
        self.topic = topic
        self.partition = partition
        self.is_done = False
        self.error: Exception | None = None
        self.base_offset = -1
        self.stamps: Timestamps | int = -1
        self._parts: Sequence[tuple[Completion, int]] | None = None
        self._starts: list[int] = []
        self._parts_left = 0

    # --- ending

    def acknowledge(self, base_offset: int, stamps: Timestamps | int) -> None:
        """The records are stored from `base_offset` on (-1: unknown)."""
        self.base_offset = base_offset
        self.stamps = stamps
        self._end(None)

    def fail(self, error: Exception) -> None:
        self._end(error)

    def divide(self, parts: Sequence[tuple[int, Completion, int]]) -> None:
        """From now on, the records from index `first` on are those of `part` from index `at` on."""
        self._starts = [first for first, _, _ in parts]
        self._parts = [(part, at) for _, part, at in parts]
        self._parts_left = len(parts)
        for _, part, _ in parts:
            part.when_done(self._part_ended)

    def _part_ended(self) -> None:
        with self._lock:
            self._parts_left -= 1
            left = self._parts_left
        if not left:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            if self.is_done:
                return
            self.error = error
            self.is_done = True
            waiters, self._waiters = self._waiters, None
        callbacks = self.callbacks.take()
        is_handed_over = bool(callbacks) and self._hand_over(callbacks)
        # Waiting threads are woken before the callbacks run, which may take time.
        for wake in waiters or ():
            wake()
        if callbacks and not is_handed_over:
            self._call_back(callbacks)

    def _hand_over(self, callbacks: list[Any]) -> bool:
        """Whether the callbacks run on another thread."""
        return False

    def _call_back(self, callbacks: list[Any]) -> None:
        is_stored = self.error is None and self._parts is None and self.base_offset >= 0
        stored = (RecordMetadata, self.topic, self.partition, self.base_offset, self.stamps) if is_stored else None
        # The application's code must not keep the others' from running.
        run_callbacks(callbacks, stored, self._report, _log_what_was_raised)

    def _report(self, index: int) -> tuple[Exception | None, RecordMetadata]:
        """The arguments of an `on_delivery` callback."""
        outcome = self.outcome_of(index)
        if isinstance(outcome, Exception):
            return outcome, RecordMetadata(self.topic, self.partition, -1, -1)
        return None, outcome

    # --- asking

    @property
    def is_divided(self) -> bool:
        """Whether its records were divided, so that each has its own outcome."""
        return self._parts is not None

    def outcome_of(self, index: int) -> RecordMetadata | Exception:
        """The outcome of a record; only if this is done."""
        if self._parts is not None:
            which = bisect_right(self._starts, index) - 1
            part, at = self._parts[which]
            return part.outcome_of(at + index - self._starts[which])
        error = self.error
        if error is not None:
            return error.of(index) if isinstance(error, BatchRejected) else error
        stamps = self.stamps
        timestamp = stamps if isinstance(stamps, int) else stamps[index]
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, timestamp)

    def when_done(self, callback: Callback) -> None:
        """Call `callback` when this ends, on the thread that ends it; at once if it has ended."""
        self.add_callback(None, callback)

    def add_callback(self, argument: object, callback: Callable[..., object]) -> None:
        """Call a function without arguments when this ends; at once if it has ended."""
        if not self.callbacks.add(argument, callback):
            self._call_back([argument, callback])

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the calling thread until this ends; False if it does not in time."""
        if self.is_done:
            return True
        gate = threading.Lock()
        gate.acquire()
        if not self._add_waiter(gate.release):
            return True
        if timeout_s is None:
            return gate.acquire()
        return gate.acquire(timeout=min(max(timeout_s, 0), threading.TIMEOUT_MAX)) or self.is_done

    async def ended(self) -> None:
        """Suspend the calling task until this ends, on any event loop."""
        if self.is_done:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            if _running_loop() is loop:
                finish()
                return
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                _log.debug("an event loop was closed while it waited for a delivery: topic=%s", self.topic)

        if self._add_waiter(wake):
            await future

    def _add_waiter(self, wake: Callback) -> bool:
        with self._lock:
            if self.is_done:
                return False
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(wake)
            return True


def wait_for_all(completions: Sequence[Completion], timeout_s: float | None) -> bool:
    """Wait for all; False if one does not end in time."""
    if timeout_s is None:
        return all(completion.wait() for completion in completions)
    deadline = time.monotonic() + timeout_s
    return all(completion.is_done or completion.wait(deadline - time.monotonic()) for completion in completions)


def _log_what_was_raised() -> None:
    _log.exception("a delivery callback raised")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# --------------------------------------------------------------------------------------------------- batches


class Builder(Protocol):
    """The records of a batch: the kernel's BatchBuilder, or columns that were encoded at once."""

    @property
    def count(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def base_timestamp(self) -> int: ...

    def timestamp_runs(self) -> list[tuple[int, int]]: ...

    def build(
        self, *, codec: int, level: int | None, producer_id: int, producer_epoch: int, base_sequence: int,
        is_transactional: bool,
    ) -> bytearray: ...  # fmt: skip


class Driver(Protocol):
    """Sends a batch on the thread that waits for it: the direct sender."""

    def drive(self, batch: ProducerBatch, timeout_s: float | None) -> float | None:
        """Called before a thread starts to wait; returns how much of the time is left."""

    def call_on_loop(self, call: Callback) -> bool:
        """Run a function on the event loop; False if this is its thread, where the caller runs it."""


class ProducerBatch(Completion):
    """Records of one partition that are sent together. Times are of the monotonic clock."""

    __slots__ = (
        "attempts", "builder", "count", "created_ms", "deadline_ms", "encoded", "encoded_as", "is_due", "is_packed",
        "is_packing", "is_recognisable", "is_uncertain",
        "last_error", "node", "numbers", "order", "queue", "reserved", "size",
    )  # fmt: skip

    def __init__(
        self, queue: PartitionQueue, builder: Builder, reserved: int, created_ms: float, deadline_ms: float
    ) -> None:
        super().__init__(queue.topic, queue.partition)
        self.queue = queue
        self.builder: Builder | None = builder
        self.reserved = reserved
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.count = 0
        self.size = 0
        self.order: tuple[int, ...] = ()  # its place in its partition; halves of a batch are one level deeper
        self.is_due = False
        self.is_packing = False  # it is being compressed on another thread
        self.is_packed = False
        self.is_uncertain = False  # it was sent under its numbers, and it is unknown whether it is stored
        self.is_recognisable = True  # it was always sent as this batch, so a broker that has it recognises it
        self.attempts = 0
        self.node = -1
        self.numbers: Numbers = UNNUMBERED
        self.encoded: bytes | bytearray | None = None
        self.encoded_as: object = None
        self.last_error: Exception | None = None

    @property
    def is_numbered(self) -> bool:
        return self.numbers.base_sequence >= 0

    def close(self) -> None:
        """Accept no more records."""
        if self.builder is not None:
            self.count = self.builder.count
            self.size = self.builder.size

    def wait(self, timeout_s: float | None = None) -> bool:
        driver = self.queue.driver
        if driver is not None and not self.is_done:
            timeout_s = driver.drive(self, timeout_s)
        return super().wait(timeout_s)

    def _hand_over(self, callbacks: list[Any]) -> bool:
        self.queue.usage.has_callbacks = True
        driver = self.queue.driver
        return driver is not None and driver.call_on_loop(partial(self._call_back, callbacks))

    def release(self) -> None:
        """Release the bytes."""
        self.builder = None
        self.encoded = None

    def stamps_for(self, append_time_ms: int) -> Timestamps | int:
        """The timestamps of its stored records: the broker's, if it set them, or their own."""
        if append_time_ms >= 0:
            return append_time_ms
        builder = self.builder
        if builder is None:
            return -1
        if self.count == 1:
            return builder.base_timestamp
        return TimestampRuns(builder.timestamp_runs())

    def info(self, now_ms: float) -> BatchInfo:
        """The batch as interceptors see it."""
        return BatchInfo(
            self.topic, self.partition, self.count, self.size, now_ms - self.created_ms, self.attempts, self.node
        )


def split(batch: ProducerBatch) -> list[ProducerBatch]:
    """The two halves of a closed batch of at least two records, closed. The batch is done when both are."""
    builder = batch.builder
    if builder is None or batch.count < 2:
        raise ValueError(f"a batch of {batch.count} records cannot be split")
    plain = builder.build(
        codec=0, level=None, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False
    )
    records = decode_batch(plain, verify=False)
    middle = len(records) // 2
    parts: list[tuple[int, ProducerBatch, int]] = []
    for number, (first, some) in enumerate(((0, records[:middle]), (middle, records[middle:]))):
        half = BatchBuilder(max(len(plain), 61))
        for record in some:
            half.append(record.timestamp, record.key, record.value, record.headers)
        part = ProducerBatch(batch.queue, half, 0, batch.created_ms, batch.deadline_ms)
        part.close()
        part.order = (*batch.order, number)
        part.attempts = batch.attempts
        # If it is stored after all, then as a whole, in which the broker does not recognise a half.
        part.is_recognisable = batch.is_recognisable and not batch.is_uncertain
        part.is_uncertain = batch.is_uncertain
        if batch.is_numbered:
            sequence = advance(batch.numbers.base_sequence, first)
            part.numbers = batch.numbers._replace(base_sequence=sequence)
        parts.append((first, part, 0))
    batch.divide(parts)
    return [part for _, part, _ in parts]


def encoded(batch: ProducerBatch, version: int, settings: ProducerSettings) -> bytes | bytearray:
    """The bytes of a closed batch for a version of Produce."""
    made_as = (batch.numbers, min(version, FIRST_WITH_BATCHES))
    if batch.encoded is None or batch.encoded_as != made_as:
        if batch.builder is None:
            raise ValueError(f"the batch for {batch.topic}-{batch.partition} is done")
        if version >= FIRST_WITH_BATCHES:
            batch.encoded = batch.builder.build(
                codec=settings.codec, level=settings.compression_level, producer_id=batch.numbers.producer_id,
                producer_epoch=batch.numbers.producer_epoch, base_sequence=batch.numbers.base_sequence,
                is_transactional=settings.transactional_id is not None,
            )  # fmt: skip
        else:
            batch.encoded = _message_set(batch, version, settings)
        batch.encoded_as = made_as
    return batch.encoded


def _message_set(batch: ProducerBatch, version: int, settings: ProducerSettings) -> bytes:
    if batch.builder is None:
        raise ValueError(f"the batch for {batch.topic}-{batch.partition} is done")
    plain = batch.builder.build(
        codec=Codec.NONE, level=None, producer_id=-1, producer_epoch=-1, base_sequence=-1, is_transactional=False
    )
    messages = [
        LegacyMessage(record.offset, record.timestamp, CREATE_TIME, record.key, record.value)
        for record in decode_batch(plain, verify=False)
    ]
    magic = 1 if version >= _FIRST_WITH_TIMESTAMPS else 0
    return encode_message_set(messages, magic, codec=settings.codec, level=settings.compression_level)
