"""Fairness between connections: how much is done in one turn of the event loop, and for whom.

A turn of the loop serves every connection that has something to say, so with many of them, or with a few that send
many requests at once, a turn would be as long as they like. Here a turn has a budget of time. A connection that
comes when it is used up waits in line. The line is served first in the next turn, each connection for a few frames at a
time while there are others in it.

Time is looked at only when a turn has had more than a few frames: a server that is not crowded pays for a counter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.runtime.clock import Clock

TURN_MS: Final = 10
FREE_FRAMES: Final = 16
QUANTUM_FRAMES: Final = 8


class Turns:
    """One for a server. `frames` counts those of the turn; who hands out a frame adds to it."""

    __slots__ = ("_clock", "_is_marked", "_loop", "_until_ms", "frames", "line")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._is_marked = False
        self._until_ms = 0.0
        self.frames = 0
        self.line: deque[Callable[[], None]] = deque()

    def is_over(self) -> bool:
        """Whether the budget is used up; to be asked when there were more than FREE_FRAMES."""
        now_ms = self._clock.monotonic_ms()
        if not self._is_marked:
            self._is_marked = True
            self._until_ms = now_ms + TURN_MS
            self._loop.call_soon(self._next)
            return False
        return now_ms >= self._until_ms

    def wait(self, serve: Callable[[], None]) -> None:
        """Call `serve` when its turn has come."""
        self.line.append(serve)
        if not self._is_marked:
            self._is_marked = True
            self._until_ms = 0.0
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """A turn begins."""
        line = self.line
        if not line:
            self.frames = 0
            self._is_marked = False
            return
        self.frames = FREE_FRAMES  # in a crowd no frames are free
        now_ms = self._clock.monotonic_ms()
        self._until_ms = now_ms + TURN_MS
        # Those who come back to the line in this turn have had theirs.
        for _ in range(len(line)):
            line.popleft()()
            if self._clock.monotonic_ms() >= self._until_ms:
                break
        self._loop.call_soon(self._next)
