"""Bounds over all connections of a server: idle time, request memory, and time per turn of the event loop.

Idle connections: a timing wheel of 16 ticks; activity costs one assignment, and a pause of the process does not
expire connections that had no chance to be active.

Memory: frames being received (by announced length) and unanswered ones count. A frame that fits the receive buffer
always passes; a larger one is admitted as a whole, in order of arrival, so what was admitted can finish. While others
wait, a frame slower than 128 KiB/s closes its connection after 5 s.

Fairness: a turn has a budget of 10 ms. Connections beyond it queue, and the queues are served first in the next turn.
Connections that were served and have more to say wait in `line` and get 8 frames each; those that have just sent
something are served before them, one frame each, so that a client that sends one request at a time does not wait for
everything that others send at once. Each queue has half of the budget. The clock is read after 16 frames in a turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.runtime.clock import Clock

GRACE_MS: Final = 5_000
MIN_BYTES_PER_S: Final = 128 * 1024
TURN_MS: Final = 10
FREE_FRAMES: Final = 16
QUANTUM_FRAMES: Final = 8
_FRESH_FRAMES: Final = 1

_TICKS: Final = 16
_NO_SLOT: Final = -1
_CHECK_MS: Final = 1_000


class Member(Protocol):
    """A member of the wheel. Activity sets `active_tick` to the wheel's tick."""

    active_tick: int
    wheel_slot: int

    @property
    def busy(self) -> bool:
        """Whether it waits for the server, and so counts as active."""


M = TypeVar("M", bound=Member)


class IdleTimingWheel(Generic[M]):
    """Finds members that were idle for `idle_ms`; 0: never."""

    __slots__ = ("_clock", "_next_ms", "_slots", "tick", "tick_ms")

    def __init__(self, clock: Clock, idle_ms: int) -> None:
        self._clock = clock
        self.tick_ms = max(1.0, idle_ms / _TICKS) if idle_ms else 0.0
        self._slots: dict[int, set[M]] = {}
        self._next_ms = clock.monotonic_ms() + self.tick_ms
        self.tick = 0

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())

    def add(self, member: M) -> None:
        member.active_tick = self.tick
        member.wheel_slot = _NO_SLOT
        if self.tick_ms:
            self._place(member)

    def remove(self, member: M) -> None:
        slot = self._slots.get(member.wheel_slot)
        member.wheel_slot = _NO_SLOT
        if slot is not None:
            slot.discard(member)

    def turn(self) -> list[M]:
        """Advance by a tick if it is time. Returns the idle members, which leave the wheel."""
        now_ms = self._clock.monotonic_ms()
        if not self.tick_ms or now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + self.tick_ms
        self.tick = tick = self.tick + 1
        due: list[M] = []
        for member in self._slots.pop(tick, ()):
            if member.busy:
                member.active_tick = tick
            if self._due_tick(member) <= tick:
                member.wheel_slot = _NO_SLOT
                due.append(member)
            else:
                self._place(member)
        return due

    def _due_tick(self, member: M) -> int:
        # Activity in a tick may have happened right before the next one.
        return member.active_tick + _TICKS + 1

    def _place(self, member: M) -> None:
        member.wheel_slot = self._due_tick(member)
        self._slots.setdefault(member.wheel_slot, set()).add(member)


class Receiver(Protocol):
    """A connection that receives, or waits to receive, a large frame."""

    @property
    def arrived_bytes(self) -> int:
        """Bytes of the frame that have arrived."""

    def admitted(self) -> None:
        """Its frame may be received now."""

    def too_slow(self) -> None:
        """It holds memory that others wait for: close it."""


class _Waiting(NamedTuple):
    receiver: Receiver
    size: int


class RequestMemory:
    """The request memory of a server. `held` is in use. `line` are connections that are not read until there is room.
    Small frames change `held` directly, unless there is a line."""

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
        """Whether a large frame may be received now. If not, `receiver.admitted` is called later."""
        if self.line or not self._fits(size):
            self.line.append(_Waiting(receiver, size))
            self._watch()
            return False
        self._take(receiver, size)
        return True

    def received(self, receiver: Receiver) -> None:
        """A large frame is complete. It counts until it is answered."""
        self._receiving.pop(receiver, None)

    def release(self, size: int, *, large: bool) -> None:
        """A frame was answered, or never will be."""
        self.held -= size
        if large:
            self._large -= 1
        if self.line:
            self._grant()

    def forget(self, receiver: Receiver) -> None:
        """A connection was closed: it no longer waits or receives."""
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
            self._timer = self._loop.call_later(_CHECK_MS / 1000, self._check)

    def _check(self) -> None:
        self._timer = None
        self.close_slow()
        if self.line:
            self._watch()

    def close_slow(self) -> int:
        """Close connections whose large frames arrive too slowly while others wait; how many."""
        if not self.line:
            return 0
        now_ms = self._clock.monotonic_ms()
        slow = [
            receiver
            for receiver, start_ms in self._receiving.items()
            if now_ms - start_ms > GRACE_MS and receiver.arrived_bytes * 1000 < (now_ms - start_ms) * MIN_BYTES_PER_S
        ]
        for receiver in slow:
            receiver.too_slow()
        return len(slow)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class FairScheduler:
    """Time per turn of a server. `frames` counts those of the turn; connections add to it."""

    __slots__ = ("_clock", "_is_marked", "_loop", "_until_ms", "frames", "fresh", "line", "quantum")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._is_marked = False
        self._until_ms = 0.0
        self.frames = 0
        self.fresh: deque[Callable[[], None]] = deque()
        self.line: deque[Callable[[], None]] = deque()
        self.quantum = QUANTUM_FRAMES
        """Frames of one connection while others wait."""

    def is_over(self) -> bool:
        """Whether the budget is used up. Called after more than FREE_FRAMES."""
        now_ms = self._clock.monotonic_ms()
        if not self._is_marked:
            self._is_marked = True
            self._until_ms = now_ms + TURN_MS
            self._loop.call_soon(self._next)
            return False
        return now_ms >= self._until_ms

    def wait(self, serve: Callable[[], None], *, fresh: bool) -> None:
        """Call `serve` when its turn has come. `fresh` ones have not been served since they last had nothing to say."""
        (self.fresh if fresh else self.line).append(serve)
        if not self._is_marked:
            self._is_marked = True
            self._until_ms = 0.0
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        """Start a turn."""
        if not self.line and not self.fresh:
            self.frames = 0
            self._is_marked = False
            return
        self.frames = FREE_FRAMES  # with a queue no frames are free
        # Each queue has half of the budget, and the line also what the other one left.
        now_ms = self._clock.monotonic_ms()
        end_ms = now_ms + TURN_MS
        if self.fresh:
            self._until_ms = now_ms + TURN_MS / 2
            self.quantum = _FRESH_FRAMES
            self._serve(self.fresh)
            self.quantum = QUANTUM_FRAMES
            now_ms = self._clock.monotonic_ms()
        self._until_ms = max(end_ms, now_ms + TURN_MS / 2)
        self._serve(self.line)
        self._loop.call_soon(self._next)

    def _serve(self, queue: deque[Callable[[], None]]) -> None:
        """Serve one, and others while there is time."""
        # Connections that queue again in this turn have had theirs.
        for _ in range(len(queue)):
            queue.popleft()()
            if self._clock.monotonic_ms() >= self._until_ms:
                break
