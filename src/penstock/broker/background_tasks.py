"""Periodic tasks: retention, flushes, checkpoints, expiry, compaction.

Each task runs on the event loop in small steps, at its own interval. An error in one stops neither the others nor its
own next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Timer(Protocol):
    def cancel(self) -> None: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


class BackgroundTasks:
    """Tasks that repeat until closed."""

    def __init__(self, call_later: CallLater) -> None:
        self._call_later = call_later
        self._timers: dict[str, Timer] = {}
        self._closed = False

    def every(self, name: str, interval_ms: int, task: Callable[[], object]) -> None:
        def run() -> None:
            if self._closed:
                return
            try:
                task()
            except Exception:
                logger.exception("upkeep: %s failed; it is tried again in %d ms", name, interval_ms)
            self._timers[name] = self._call_later(interval_ms / 1000, run)

        self._timers[name] = self._call_later(interval_ms / 1000, run)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
