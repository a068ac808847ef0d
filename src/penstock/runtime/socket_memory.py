"""The memory that requests take, over all connections of a server.

Counted are the frames that are being received, by their announced length, and those that are not answered. A frame that
fits into the receive buffer always passes: there is at most one of them per connection beyond the limit. A larger one
is admitted as a whole before its first byte is kept, in the order of arrival; until then its connection is not read.
So whatever was admitted can be finished, and nobody waits for somebody who waits. One frame is admitted even if it
alone is above the limit.

A peer that announces much and sends little would keep the others waiting. While somebody waits, a frame that arrives at
less than `MIN_BYTES_PER_S` ends its connection, after a grace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple, Protocol

from penstock.runtime.clock import Clock

GRACE_MS: Final = 5_000
MIN_BYTES_PER_S: Final = 128 * 1024
_LOOK_MS: Final = 1_000


class Receiver(Protocol):
    """A connection that receives, or waits to receive, a large frame."""

    @property
    def arrived_bytes(self) -> int:
        """What has come of the frame."""

    def admitted(self) -> None:
        """Its frame may come now."""

    def too_slow(self) -> None:
        """Others wait for the memory that it keeps: close it."""


class _Waiting(NamedTuple):
    receiver: Receiver
    size: int


class RequestMemory:
    """One for a server. `held` is what is in use; small frames add to it and take from it directly, unless others are
    in `line`: those that are not read until there is room."""

    __slots__ = ("_clock", "_large", "_loop", "_receiving", "_timer", "held", "limit", "line")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, limit_bytes: int) -> None:
        self._loop = loop
        self._clock = clock
        self.limit = limit_bytes
        self.held = 0
        self._large = 0
        self._receiving: dict[Receiver, float] = {}
        self.line: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, receiver: Receiver, size: int) -> bool:
        """Whether a large frame may be received now; if not, `receiver` is told when it may."""
        if self.line or not self._fits(size):
            self.line.append(_Waiting(receiver, size))
            self._watch()
            return False
        self._take(receiver, size)
        return True

    def received(self, receiver: Receiver) -> None:
        """A large frame is complete; it counts until it is answered."""
        self._receiving.pop(receiver, None)

    def release(self, size: int, *, large: bool) -> None:
        """A frame was answered, or will never be."""
        self.held -= size
        if large:
            self._large -= 1
        if self.line:
            self._grant()

    def forget(self, receiver: Receiver) -> None:
        """A connection is closed: it waits no more, and its frame is not received any more."""
        self._receiving.pop(receiver, None)
        for waiting in self.line:
            if waiting.receiver is receiver:
                self.line.remove(waiting)
                self._grant()
                return

    def _fits(self, size: int) -> bool:
        return not self._large or self.held + size <= self.limit

    def _take(self, receiver: Receiver, size: int) -> None:
        self.held += size
        self._large += 1
        self._receiving[receiver] = self._clock.monotonic_ms()

    def _grant(self) -> None:
        while self.line and self._fits(self.line[0].size):
            receiver, size = self.line.popleft()
            self._take(receiver, size)
            receiver.admitted()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_MS / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        self.close_slow()
        if self.line:
            self._watch()

    def close_slow(self) -> int:
        """Close the connections whose frames others wait for, and that do not come; how many."""
        if not self.line:
            return 0
        now_ms = self._clock.monotonic_ms()
        slow = [
            receiver
            for receiver, begun_ms in self._receiving.items()
            if now_ms - begun_ms > GRACE_MS and receiver.arrived_bytes * 1000 < (now_ms - begun_ms) * MIN_BYTES_PER_S
        ]
        for receiver in slow:
            receiver.too_slow()
        return len(slow)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
