"""Staying awake between the questions of a peer that asks, waits for the answer, and asks again.

Noun: the moment after an answer in which the event loop looks for more instead of going to sleep. Waking a processor
that sleeps costs tens of microseconds, on virtual machines more than the whole work of a small request.

Rule: it is done only where it pays. Small questions that came soon after an answer, so many in a row, earn the next
wait; one that does not come in time, or a large transfer, forfeits it, and it must be earned again. Whoever else wants
the processor gets it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import Final

SMALL_BYTES: Final = 4096
IN_A_ROW: Final = 16


class BusyPoll:
    """One for a server; `window_us` is how long to stay awake, 0 is never."""

    __slots__ = ("_answered_s", "_awake", "_earned", "_loop", "_now_s", "_window_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, window_us: int, now_s: Callable[[], float] = perf_counter
    ) -> None:
        self._loop = loop
        self._now_s = now_s
        self._window_s = window_us / 1e6
        self._answered_s = float("-inf")
        self._earned = 0
        self._awake = False

    def asked(self) -> None:
        """A small question came."""
        if self._now_s() - self._answered_s < self._window_s:
            self._earned += 1
        else:
            self._earned = 0

    def answered(self) -> None:
        """A small answer left."""
        self._answered_s = self._now_s()
        if self._earned >= IN_A_ROW and not self._awake:
            self._awake = True
            self._loop.call_soon(self._look)

    def large(self) -> None:
        """Much came or went: what comes next will take its time."""
        self._earned = 0

    def _look(self) -> None:
        if self._earned and self._now_s() - self._answered_s < self._window_s:
            os.sched_yield()
            # A turn of the loop with something to do does not wait for its sockets.
            self._loop.call_soon(self._look)
        else:
            self._awake = False
            self._earned = 0
