"""Virtual time: a queue of callbacks for now and a heap for later, of all processes of a run; and the trace.

Ready callbacks run in the order in which they became ready, as on any event loop. Callbacks due at the same instant
become ready in an order drawn from the seed. When nothing is ready, time leaps to what is due next. A callback takes
no virtual time; 100,000 of them within one instant are taken for an endless loop and end the run, as does the first
unhandled exception.

The trace is one line per event with virtual time and place, and one hash over all lines: two runs of one seed have the
same hash, or the simulator is broken. Log lines of the code under test are kept in it, but are not hashed.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.testing.simulation.loop import SimulatedLoop


_LINES_KEPT: Final = 4_000
_LINES_HASHED: Final = 1_000

Line = tuple[float, str, str, tuple[str | int, ...]]
"""Virtual time, place, event and details of it."""


class Trace:
    """`now_s` is set by the scheduler."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self._hash = blake2b(digest_size=16)
        self._lines: deque[Line] = deque(maxlen=_LINES_KEPT)
        self._unhashed: list[Line] = []

    def note(self, place: str, event: str, *details: str | int) -> None:
        """An event that is part of the hash. `details` are formatted only when they are read."""
        self.events += 1
        line = (self.now_s, place, event, details)
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == _LINES_HASHED:
            self._digest()

    def _digest(self) -> None:
        if self._unhashed:
            self._hash.update(repr(self._unhashed).encode())
            self._unhashed.clear()

    def tell(self, place: str, text: str) -> None:
        """A line that is not part of the hash."""
        self._lines.append((self.now_s, place, text, ()))

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    @property
    def hash(self) -> str:
        self._digest()
        return self._hash.hexdigest()

    def last_lines(self, count: int) -> list[str]:
        lines = list(self._lines)[-count:]
        return [f"{at_s:12.6f} {place:<12} {' '.join([event, *map(str, more)])}" for at_s, place, event, more in lines]


_CALLBACKS_PER_INSTANT: Final = 100_000


class SimulationFailed(Exception):
    """A run that failed."""


class Stuck(SimulationFailed):
    """Nothing is scheduled, or everything happens within one instant."""


class Handle(asyncio.TimerHandle):
    """What is to run, in one process's loop. Without a `context` it runs in the scheduler's own.

    Nothing in a run has a context of its own but tasks, and those bring it.
    """

    __slots__ = ("args", "callback", "context", "is_cancelled", "owner", "when_s")

    def __init__(
        self,
        owner: SimulatedLoop,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        # Not asyncio's own, which does several times as much: a run makes tens of thousands of these.
        self.owner = owner
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<Handle of {self.owner.name} at {self.when_s:.6f} s{' cancelled' if self.is_cancelled else ''}>"

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = _nothing
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


def _nothing() -> None:
    """Replaces a cancelled callback, so that it is not kept alive."""


class Scheduler:
    """The callbacks of a run."""

    def __init__(self, seed: int | str, trace: Trace | None = None) -> None:
        self.now_s = 0.0
        self.trace = trace or Trace()
        self.callbacks = 0
        self.failure: BaseException | None = None
        self.kernel: SimulatedLoop | None = None
        self.ready: deque[Handle] = deque()
        self._heap: list[tuple[float, float, int, Handle]] = []
        self._draw = random.Random(f"{seed}/scheduler").random
        self._number = 0

    def at(self, when_s: float, handle: Handle) -> None:
        """Run a callback at that time, or as soon as possible."""
        self._number += 1
        heapq.heappush(self._heap, (when_s, self._draw(), self._number, handle))

    def fail(self, error: BaseException) -> None:
        """End the run. Only the first reason counts."""
        if self.failure is None:
            self.failure = error

    @property
    def waiting(self) -> int:
        """Scheduled callbacks, including cancelled ones."""
        return len(self._heap)

    def run_until(self, done: Callable[[], object] | None = None, *, limit_s: float, look_every_s: float = 0.0) -> bool:
        """Let things happen until `done` is true or virtual time is `limit_s`; whether it is true.

        It is looked at after each callback, or only every `look_every_s`: some of what is waited for is much to look
        at. Raises the exception that ended the run, if one did.
        """
        looked_s = -look_every_s
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            while True:
                if done is not None and self.now_s >= looked_s + look_every_s:
                    looked_s = self.now_s
                    if done():
                        return True
                if not self.ready and not self._leap(limit_s):
                    return done is not None and bool(done())
                self._run_ready(None if look_every_s else done)
        finally:
            asyncio._set_running_loop(before)

    def _leap(self, limit_s: float) -> bool:
        """On to the next instant; False if that would be after the limit."""
        heap = self._heap
        while heap and heap[0][3].is_cancelled:
            heapq.heappop(heap)
        if not heap or heap[0][0] > limit_s:
            self._set_now(max(self.now_s, limit_s))
            return False
        now_s = max(self.now_s, heap[0][0])
        self._set_now(now_s)
        ready, pop = self.ready, heapq.heappop
        while heap and heap[0][0] <= now_s:
            handle = pop(heap)[3]
            if not handle.is_cancelled:
                ready.append(handle)
        return True

    def _set_now(self, now_s: float) -> None:
        self.now_s = self.trace.now_s = now_s

    def _run_ready(self, done: Callable[[], object] | None) -> None:
        """All that is ready, and what becomes so meanwhile, until `done` or the end of this instant."""
        ready, enter = self.ready, asyncio._set_running_loop
        current: Any = None
        last = self.callbacks + _CALLBACKS_PER_INSTANT
        while ready:
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            loop = handle.owner
            if not loop.is_running_now:
                loop.hold(handle)
                continue
            if loop is not current:
                enter(loop)
                current = loop
            self.callbacks += 1
            try:
                if handle.context is None:
                    handle.callback(*handle.args)
                else:
                    handle.context.run(handle.callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as any loop does: whoever looks after it is told
                loop.call_exception_handler({"message": f"Exception in callback {handle.callback}", "exception": error})
            if self.failure is not None:
                raise self.failure
            if done is not None and done():
                return
            if self.callbacks > last:
                raise Stuck(f"more than {_CALLBACKS_PER_INSTANT} callbacks at {self.now_s:.6f} s: an endless loop")
