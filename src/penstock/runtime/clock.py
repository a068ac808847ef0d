"""Time as an argument. The wall clock stamps records and ages segments; the monotonic clock measures durations.

Nothing else in the project asks the operating system for the time, but the kernel's `lanes_first`, where a producer has
the `SystemClock`.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as records carry them; may jump."""

    def monotonic_ms(self) -> float:
        """Milliseconds from an arbitrary start; never goes back."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0


class ManualClock:
    """A clock that only `advance` moves, for tests."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._elapsed_ms

    def advance(self, ms: int) -> None:
        self._now_ms += ms
        self._elapsed_ms += ms
