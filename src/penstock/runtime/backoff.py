"""Exponential backoff, with jitter if there is a source of randomness.

The wait doubles from `initial_ms` to `max_ms`. With jitter it is drawn from 80 % to 120 % of that, so that clients that
fail together do not retry together.
"""

from __future__ import annotations

from penstock.runtime.randomness import Random

_JITTER = 0.2
_MAX_DOUBLINGS = 32


def backoff_ms(failures: int, initial_ms: float, max_ms: float, random: Random | None = None) -> float:
    """The wait after this many failures in a row; 0 after none."""
    if failures <= 0:
        return 0.0
    doublings = 1 << min(failures - 1, _MAX_DOUBLINGS)
    wait_ms = min(initial_ms * doublings, max(initial_ms, max_ms))
    return wait_ms if random is None else wait_ms * random.uniform(1 - _JITTER, 1 + _JITTER)


class Backoff:
    """Counts failures in a row, and says when to retry."""

    __slots__ = ("_initial_ms", "_max_ms", "_random", "failures", "not_before_ms")

    def __init__(self, initial_ms: float, max_ms: float, random: Random) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._random = random
        self.failures = 0
        self.not_before_ms = 0.0

    def failed(self, now_ms: float) -> float:
        """Count a failure; returns the wait in milliseconds."""
        self.failures += 1
        wait_ms = backoff_ms(self.failures, self._initial_ms, self._max_ms, self._random)
        self.not_before_ms = now_ms + wait_ms
        return wait_ms

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before_ms = 0.0

    def remaining_ms(self, now_ms: float) -> float:
        return max(0.0, self.not_before_ms - now_ms) if self.failures else 0.0
