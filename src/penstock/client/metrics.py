"""Client metrics and the statistics callback.

Counting costs a few additions per batch or request and nothing per record. `metrics()` returns one flat dictionary:
counters since the client was created, and current values. `StatisticsReporter` passes the same dictionary to the
user's callback at an interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.client.errors import ConfigError

_log = logging.getLogger("penstock.metrics")

Metrics = dict[str, float]
OnStatistics = Callable[[Metrics], object]


class StatisticsReporter:
    """Calls `on_statistics(metrics)` every `interval_ms` on an event loop; what it raises is logged."""

    def __init__(self, collect: Callable[[], Metrics], on_statistics: OnStatistics | None, interval_ms: float) -> None:
        self._collect = collect
        self._on_statistics = on_statistics
        self._interval_ms = interval_ms
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """On the loop."""
        if self._on_statistics is not None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_ms / 1000, self._report)

    def _report(self) -> None:
        self.start()
        try:
            if self._on_statistics is not None:
                self._on_statistics(self._collect())
        except (Exception, SystemExit):  # noqa: BLE001 - the users' own code: it must not end the client's loop
            _log.exception("a statistics callback raised")

    def stop(self) -> None:
        """On the loop; again is harmless."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def check_statistics(on_statistics: object, interval_ms: object) -> None:
    """Raises ConfigError for what cannot be called, or not at such intervals."""
    if on_statistics is not None and not callable(on_statistics):
        raise ConfigError(f"on_statistics is {on_statistics!r}", hint="Give a function of a dictionary of metrics")
    if isinstance(interval_ms, bool) or not isinstance(interval_ms, (int, float)) or not interval_ms >= 1:
        raise ConfigError(f"statistics_interval_ms is {interval_ms!r}; it must be a number of at least 1")
