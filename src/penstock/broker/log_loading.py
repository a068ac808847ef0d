"""Opening the logs at the start of a broker, beside its event loop.

Noun: a loading: so many logs of so many are open, and so many bytes had to be walked for that.

Rule: the loop stays free, so that whoever asks over HTTP hears how far it is, and whoever watches the log is told every
few seconds. Whoever stops the start waits for the logs that are being opened just now, and for no more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from penstock.log.folders.directory import Progress
from penstock.log.folders.manager import LogManager
from penstock.log.settings import LogSettings
from penstock.runtime.clock import Clock
from penstock.runtime.workers import Outcome, Workers

logger = logging.getLogger(__name__)

TOLD_EVERY_S = 3.0


class LoadingStopped(Exception):
    """The start was given up."""


class LogLoading:
    """One start's loading of all logs."""

    def __init__(self, logs: LogManager, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._guard = threading.Lock()
        self._stopped = False
        self._settings: dict[str, LogSettings] = {}
        self.total = logs.unread
        self.done = 0
        self.walked_bytes = 0

    async def run(
        self,
        workers: Workers,
        settings_for: Callable[[str], LogSettings],
        threads: int,
    ) -> None:
        """Open all logs; raises what LogManager.load raises."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        began_ms, now_ms = self._clock.monotonic_ms(), self._clock.now_ms()

        def settings_of(topic: str) -> LogSettings:
            # Working them out costs as much as opening a log, and a topic may have thousands.
            settings = self._settings.get(topic)
            if settings is None:
                settings = self._settings[topic] = settings_for(topic)
            return settings

        def done(outcome: Outcome[None]) -> None:
            if outcome.error is None:
                finished.set_result(None)
            else:
                finished.set_exception(outcome.error)

        workers.run(lambda: self._logs.read_all(settings_of, now_ms, self._note, threads), done)
        try:
            while not (await asyncio.wait({finished}, timeout=TOLD_EVERY_S))[0]:
                logger.info("opening logs: %s", self._so_far(began_ms))
        except asyncio.CancelledError:
            self._stopped = True
            await asyncio.wait({finished})
            finished.exception()
            raise
        finished.result()
        self._logs.loaded(now_ms)
        if self.total:
            logger.info("logs are open: %s", self._so_far(began_ms))

    def _note(self, step: Progress) -> None:
        """In any thread."""
        with self._guard:
            self.done += 1
            if step.opened is not None:
                self.walked_bytes += step.opened.walked_bytes
        if self._stopped:
            raise LoadingStopped

    def _so_far(self, began_ms: float) -> str:
        took_s = (self._clock.monotonic_ms() - began_ms) / 1000
        return f"{self.done} of {self.total}, {self.walked_bytes / 1e6:.0f} MB walked, {took_s:.1f} s"
