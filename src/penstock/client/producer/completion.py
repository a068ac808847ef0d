"""The end of a batch, which all of its records share: known once, waited for by any number of threads and tasks.

A record costs nothing here until somebody asks about it; a batch costs one small object. Whoever completes it calls the
callbacks, in the order in which they were added, and wakes the threads and tasks that wait. A callback that raises is
logged; the others are called all the same.

Callbacks come in three kinds, told apart by the argument that they were added with: None for one that takes nothing,
the record's index for an `on_delivery(error, metadata)`, a `Delivery` for one of `add_done_callback`.

A batch may end as several smaller ones (the broker found it too large), and a record may wait for its topic to become
known before it belongs to a batch. Both are a `Completion` that ends when its `parts` have ended, and asks them.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from penstock.client.errors import BatchRejected
from penstock.client.producer.stamps import Stamps
from penstock.records.kernel import Callbacks

_log = logging.getLogger("penstock.producer")

Callback = Callable[[], None]
_new_metadata: Final[Any] = tuple.__new__


class RecordMetadata(NamedTuple):
    """Where a record is. `offset` is -1 if the broker did not say (acks=0); `timestamp` is in milliseconds."""

    topic: str
    partition: int
    offset: int
    timestamp: int


OnDelivery = Callable[[Exception | None, RecordMetadata], object]
"""What `send` takes as `on_delivery`: the error or None, and where the record is; its offset is -1 if it failed."""


class Completion:
    """Pending, then acknowledged, failed or answered by its parts; never anything else after that."""

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
        self.stamps: Stamps | int = -1
        self._parts: Sequence[tuple[Completion, int]] | None = None
        self._starts: list[int] = []
        self._parts_left = 0

    # --- ending

    def acknowledge(self, base_offset: int, stamps: Stamps | int) -> None:
        """The broker has the records, from `base_offset` on (-1: it did not say)."""
        self.base_offset = base_offset
        self.stamps = stamps
        self._end(None)

    def fail(self, error: Exception) -> None:
        self._end(error)

    def divide(self, parts: Sequence[tuple[int, Completion, int]]) -> None:
        """From now on the records from index `first` on are those of `part` from its index `at` on."""
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
        # Whoever waits is woken before the callbacks are called: what they do may take time.
        for wake in waiters or ():
            wake()
        if callbacks and not is_handed_over:
            self._call_back(callbacks)

    def _hand_over(self, callbacks: list[Any]) -> bool:
        """Whether another thread calls the callbacks."""
        return False

    def _call_back(self, callbacks: list[Any]) -> None:
        pairs = iter(callbacks)
        topic, partition, base, stamps = self.topic, self.partition, self.base_offset, self.stamps
        is_stored = self.error is None and self._parts is None and base >= 0
        stamp, first, end = (stamps, 0, sys.maxsize) if isinstance(stamps, int) else (-1, 0, 0)
        for argument, callback in zip(pairs, pairs, strict=True):
            try:
                if type(argument) is int:
                    if is_stored:
                        if not first <= argument < end:  # neighbours mostly share their timestamp
                            stamp, first, end = cast(Stamps, stamps).run_at(argument)
                        callback(None, _new_metadata(RecordMetadata, (topic, partition, base + argument, stamp)))
                    else:
                        callback(*self._report(argument))
                elif argument is None:
                    callback()
                else:
                    callback(argument)
            except (Exception, SystemExit):  # noqa: BLE001 - the users' own code: it must not keep the others from being called
                _log.exception("a delivery callback raised")

    def _report(self, index: int) -> tuple[Exception | None, RecordMetadata]:
        """What an `on_delivery` is called with."""
        outcome = self.outcome_of(index)
        if isinstance(outcome, Exception):
            return outcome, RecordMetadata(self.topic, self.partition, -1, -1)
        return None, outcome

    # --- asking

    @property
    def is_divided(self) -> bool:
        """Whether its records are to be asked for one by one, since they did not stay together."""
        return self._parts is not None

    def outcome_of(self, index: int) -> RecordMetadata | Exception:
        """What became of a record; only of a completion that is done."""
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
        """Calls `callback` when this ends, in the thread that ends it; at once if it has ended."""
        self.add_callback(None, callback)

    def add_callback(self, argument: object, callback: Callable[..., object]) -> None:
        """Calls a callback of any kind when this ends; at once if it has ended."""
        if not self.callbacks.add(argument, callback):
            self._call_back([argument, callback])

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks the calling thread until this ends; False if it did not in time."""
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
        """Suspends the calling task until this ends; of any event loop."""
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
                _log.debug("an event loop was closed while it waited for a delivery to %s", self.topic)

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
    """Whether all of them end in time."""
    if timeout_s is None:
        return all(completion.wait() for completion in completions)
    deadline = time.monotonic() + timeout_s
    return all(completion.is_done or completion.wait(deadline - time.monotonic()) for completion in completions)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
