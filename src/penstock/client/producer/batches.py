"""A batch of one partition on its way: open, closed, sent, perhaps sent again, and then done.

Rule: it owns its bytes until it is done and lets go of them then, so that a `Delivery` that a user keeps costs no
memory but its own. Numbers that it was given it keeps through retries; only a new epoch of its partition changes them,
and then its bytes are made anew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client.producer.completion import Callback, Completion
from penstock.client.producer.interceptors import BatchInfo
from penstock.client.producer.sequences import UNNUMBERED, Numbers
from penstock.client.producer.stamps import RunStamps, Stamps

if TYPE_CHECKING:
    from penstock.client.producer.partition_queue import PartitionQueue


class Builder(Protocol):
    """What holds the records of a batch: the kernel's BatchBuilder, or columns that were encoded at once."""

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
    """Who may send a batch in the thread that waits for it (`driving`)."""

    def drive(self, batch: ProducerBatch, timeout_s: float | None) -> float | None:
        """Called before a thread begins to wait; how much of the time is left to wait for."""

    def call_on_loop(self, call: Callback) -> bool:
        """Hands a call to the event loop; False if this is its thread, where it is made at once."""


class ProducerBatch(Completion):
    """The records of a partition that travel together. Times are of the monotonic clock."""

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
        self.order: tuple[int, ...] = ()  # its place in its partition; halves of a batch go one deeper
        self.is_due = False
        self.is_packing = False  # it is being compressed, off the event loop
        self.is_packed = False
        self.is_uncertain = False  # it was sent under its numbers, and no answer said whether it is stored
        self.is_recognisable = True  # whenever it was sent it was this very batch: a broker that has it knows it again
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
        """No record goes into it any more."""
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
        """Lets go of the bytes."""
        self.builder = None
        self.encoded = None

    def stamps_for(self, append_time_ms: int) -> Stamps | int:
        """The timestamps of its records, once stored: the broker's, if it stamped them, or their own."""
        if append_time_ms >= 0:
            return append_time_ms
        builder = self.builder
        if builder is None:
            return -1
        if self.count == 1:
            return builder.base_timestamp
        return RunStamps(builder.timestamp_runs())

    def info(self, now_ms: float) -> BatchInfo:
        """What interceptors see."""
        return BatchInfo(
            self.topic, self.partition, self.count, self.size, now_ms - self.created_ms, self.attempts, self.node
        )
