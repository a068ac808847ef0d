"""Producers that wait until their records are committed.

Noun: the waiters of one partition, by the offset up to which the high watermark has to move.

Rule: who waits for less is answered first. Everyone is answered exactly once: when the watermark is there, when his
time is over, or when it is clear that this leader cannot tell any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from penstock.log.errors import LogError
from penstock.replication.errors import CommitTimedOut

Done = Callable[[LogError | None], None]

NEVER_MS: Final = inf


class Waiter(NamedTuple):
    end_offset: int
    deadline_ms: float
    done: Done


class CommitWaiters:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, deadline_ms: float, done: Done) -> None:
        waiting = self._waiting
        waiting.append(Waiter(end_offset, deadline_ms, done))
        if len(waiting) > 1 and waiting[-2].end_offset > end_offset:
            # A retry of what was appended before others: rare.
            self._waiting = deque(sorted(waiting, key=lambda waiter: waiter.end_offset))

    def release(self, high_watermark: int) -> None:
        """Answer whose records are below."""
        # Whoever is answered may come back with more at once, so the row is looked up anew each time.
        while self._waiting and self._waiting[0].end_offset <= high_watermark:
            self._waiting.popleft().done(None)

    def refuse(self, error: LogError) -> None:
        """Answer all that wait now."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.done(error)

    def expire(self, now_ms: float) -> None:
        """Answer whose time is over."""
        if all(waiter.deadline_ms > now_ms for waiter in self._waiting):
            return
        late = [waiter for waiter in self._waiting if waiter.deadline_ms <= now_ms]
        self._waiting = deque(waiter for waiter in self._waiting if waiter.deadline_ms > now_ms)
        for waiter in late:
            waiter.done(CommitTimedOut(waiter.end_offset))
