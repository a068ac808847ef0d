"""Records on their way to a broker, and how many have arrived.

Nouns: `Counts`, of what a topic has; `Outbox`, what was handed to a producer and is not acknowledged yet.

Rule: what is counted is acknowledged. The outbox has a bound in bytes below the producer's own, so that a producer
never keeps its caller waiting: the outbox waits instead, and can be told to stop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.activity.site.encoding import Encoded
from penstock.runtime.clock import Clock

MOST_ON_THE_WAY_BYTES: Final = 24 * 1024 * 1024
PRODUCER_MEMORY_BYTES: Final = 96 * 1024 * 1024
"""Batches that are not full take their whole size of it."""
_LOOK_S: Final = 0.2
_TELL_AFTER_MS: Final = 3_000.0
_RECORD_BYTES: Final = 12


class Delivery(Protocol):
    """What a producer gives for records that it was handed."""

    def done(self) -> bool: ...

    def exception(self, timeout: float | None = None) -> Exception | None: ...

    def failures(self) -> Sequence[tuple[int, Exception]]: ...


class Sender(Protocol):
    """The part of a producer that is needed."""

    def send_arrow(self, topic: str, table: Any) -> Delivery: ...


@dataclass
class Counts:
    """What a topic has of what was generated."""

    good: int = 0
    malformed: int = 0
    failed: int = 0


class Outbox:
    """Records that are on their way."""

    def __init__(self, sender: Sender, clock: Clock, stop: threading.Event, told: Callable[[str], None]) -> None:
        self.counts: dict[str, Counts] = {}
        self._sender = sender
        self._clock = clock
        self._stop = stop
        self._told = told
        self._waiting: deque[tuple[Encoded, Delivery]] = deque()
        self._bytes = 0

    def put(self, batches: Sequence[Encoded]) -> None:
        """Hand records over, and wait until there is room for more; raises what made any fail."""
        for batch in batches:
            self._waiting.append((batch, self._sender.send_arrow(batch.topic, batch.records)))
            self._bytes += batch.size_bytes + len(batch) * _RECORD_BYTES
        self._settle()
        began_ms = self._clock.monotonic_ms()
        is_told = False
        while self._bytes > MOST_ON_THE_WAY_BYTES and not self._stop.is_set():
            self._wait_for_oldest(_LOOK_S)
            self._settle()
            if not is_told and self._clock.monotonic_ms() - began_ms > _TELL_AFTER_MS:
                self._told(f"The broker does not answer; {self.unacknowledged:,} events wait for it.")
                is_told = True
        if is_told and not self._stop.is_set():
            self._told("The broker answers again.")

    def drain(self, timeout_s: float | None) -> int:
        """Wait until all have arrived, at most for so long; how many have not."""
        deadline_ms = None if timeout_s is None else self._clock.monotonic_ms() + timeout_s * 1000
        while self._waiting and (deadline_ms is None or self._clock.monotonic_ms() < deadline_ms):
            if timeout_s is None and self._stop.is_set():
                break
            self._wait_for_oldest(_LOOK_S)
            self._settle()
        return self.unacknowledged

    @property
    def unacknowledged(self) -> int:
        return sum(len(batch) for batch, _ in self._waiting)

    @property
    def acknowledged(self) -> int:
        return sum(counts.good + counts.malformed for counts in self.counts.values())

    def _wait_for_oldest(self, timeout_s: float) -> None:
        if self._waiting:
            try:
                self._waiting[0][1].exception(timeout_s)
            except TimeoutError:
                return

    def _settle(self) -> None:
        error: Exception | None = None
        while self._waiting and self._waiting[0][1].done():
            batch, delivery = self._waiting.popleft()
            self._bytes -= batch.size_bytes + len(batch) * _RECORD_BYTES
            failures = delivery.failures()
            lost = {place for place, _ in failures}
            counts = self.counts.setdefault(batch.topic, Counts())
            counts.failed += len(lost)
            counts.malformed += len(batch.malformed - lost)
            counts.good += len(batch) - len(lost) - len(batch.malformed - lost)
            error = error or next((each for _, each in failures), None)
        if error is not None:
            raise error
