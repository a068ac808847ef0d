"""How fast the cleaner may use a disk.

Noun: a debt. Bytes that were read or written are owed, and paid by waiting, so that over any stretch of time no more
than the limit goes through, whatever the size of the pieces.

Rule: waiting happens where the work is done, never on the event loop, and in short naps: whoever is told to stop does
so soon, however slow the limit is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.runtime.clock import Clock

_NAP_MS: Final = 100.0


class Throttle:
    """At most `bytes_per_second`, on average. `sleep` takes seconds, and blocks the thread that calls it."""

    def __init__(self, bytes_per_second: float, clock: Clock, sleep: Callable[[float], None]) -> None:
        if not bytes_per_second > 0:
            raise ValueError(f"a limit of {bytes_per_second} bytes a second lets nothing through")
        self._bytes_per_ms = bytes_per_second / 1000
        self._clock = clock
        self._sleep = sleep
        self._paid_at_ms = float("-inf")

    def charge(self, size_bytes: float) -> None:
        """These bytes went through; `wait` pays for them."""
        now_ms = self._clock.monotonic_ms()
        self._paid_at_ms = max(self._paid_at_ms, now_ms) + size_bytes / self._bytes_per_ms

    def wait(self, is_stopped: Callable[[], bool]) -> None:
        """Return when everything is paid for, or soon after it does not matter any more."""
        while (left_ms := self._paid_at_ms - self._clock.monotonic_ms()) > 0 and not is_stopped():
            self._sleep(min(left_ms, _NAP_MS) / 1000)
