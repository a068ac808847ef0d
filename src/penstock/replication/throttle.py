"""How fast partitions that are being moved may be copied (`follower.` and `leader.replication.throttled.rate`).

Noun: a `Throttle`, a debt in bytes that time pays off. A broker has two: of what comes to it, and of what it sends.

Rule: what came is counted after it came, for a fetch is answered with at least one batch, however large. While there is
a debt of more than one second's worth of bytes in advance, nobody who is throttled asks, or is given anything. Replicas
in sync always ask, and are given (else the throttle would throw them out of the ISR), but what they fetch counts, too:
the rate is of all together.

    rate 1000 a second; 3000 bytes come at 0 s: there is a second's worth in hand, so the next may ask at 2 s
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

UNLIMITED: Final = float("inf")
_SECOND_MS: Final = 1000.0


class Throttle:
    """One for all fetchers of a broker, one for all that it leads. `now_ms` is a monotonic time throughout."""

    def __init__(self, rate_bytes_s: float, is_throttled: Callable[[str, int], bool]) -> None:
        _require_rate(rate_bytes_s)
        self._rate_bytes_s = rate_bytes_s
        self._is_throttled = is_throttled
        self._debt_bytes = 0.0
        self._counted_ms = 0.0

    @property
    def rate_bytes_s(self) -> float:
        return self._rate_bytes_s

    def set_rate(self, rate_bytes_s: float, now_ms: float) -> None:
        """Another rate, from now on."""
        _require_rate(rate_bytes_s)
        self._pay(now_ms)
        self._rate_bytes_s = rate_bytes_s

    def applies_to(self, topic: str, index: int) -> bool:
        """Whether a partition is throttled (`follower.` or `leader.replication.throttled.replicas`)."""
        return self._rate_bytes_s != UNLIMITED and self._is_throttled(topic, index)

    def came(self, size: int, now_ms: float) -> None:
        """So many bytes of throttled partitions came, or went."""
        self._pay(now_ms)
        if self._rate_bytes_s != UNLIMITED:
            self._debt_bytes += size

    def delay_ms(self, now_ms: float) -> float:
        """How long a throttled partition has to wait; 0 if it need not."""
        self._pay(now_ms)
        excess_bytes = self._debt_bytes - self._rate_bytes_s
        return excess_bytes / self._rate_bytes_s * _SECOND_MS if excess_bytes > 0 else 0.0

    def _pay(self, now_ms: float) -> None:
        if self._rate_bytes_s == UNLIMITED:
            self._debt_bytes = 0.0
        else:
            paid_bytes = (now_ms - self._counted_ms) / _SECOND_MS * self._rate_bytes_s
            self._debt_bytes = max(0.0, self._debt_bytes - max(0.0, paid_bytes))
        self._counted_ms = max(self._counted_ms, now_ms)


def _require_rate(rate_bytes_s: float) -> None:
    if not rate_bytes_s > 0:
        raise ValueError(f"a throttled rate of {rate_bytes_s} bytes a second lets nothing through; give a positive one")
