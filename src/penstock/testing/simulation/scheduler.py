"""Virtual time and the trace of a run.

The scheduler has the callbacks of all processes, in a ready queue and a timer heap. Ready callbacks run in the order
in which they became ready, as on any event loop. Callbacks due at the same instant become ready in an order drawn from
the seed. When nothing is ready, time advances to the next timer. A callback takes no virtual time. 100,000 callbacks
within one instant count as an endless loop and end the run, as does the first unhandled exception.

The trace has one line per event, with virtual time and host, and one hash over all lines. Two runs of one seed have
the same hash, or the simulator is broken. The trace also keeps log lines of the code under test, which are not hashed.
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
"""Virtual time, host, event and its details."""


class Trace:
    """The events of a run and their hash. The scheduler sets `now_s`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self._hash = blake2b(digest_size=16)
        self._lines: deque[Line] = deque(maxlen=_LINES_KEPT)
        self._unhashed: list[Line] = []

    def note(self, host: str, event: str, *details: str | int) -> None:
        """Add an event to the trace and the hash. `details` are formatted only when the trace is read."""
        self.events += 1
        line = (self.now_s, host, event, details)
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == _LINES_HASHED:
            self._digest()

    def _digest(self) -> None:
        if self._unhashed:
            self._hash.update(repr(self._unhashed).encode())
            self._unhashed.clear()

    def log(self, host: str, text: str) -> None:
        """Add a line that is not hashed."""
        self._lines.append((self.now_s, host, text, ()))

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    @property
    def hash(self) -> str:
        self._digest()
        return self._hash.hexdigest()

    def last_lines(self, count: int) -> list[str]:
        lines = list(self._lines)[-count:]
        return [f"{at_s:12.6f} {host:<12} {' '.join([event, *map(str, more)])}" for at_s, host, event, more in lines]


_CALLBACKS_PER_INSTANT: Final = 100_000


class SimulationFailed(Exception):
    """A run that failed."""


class Stuck(SimulationFailed):
    """Nothing is scheduled, or the callbacks of one instant do not end."""


class Handle(asyncio.TimerHandle):
    """A callback of one process's loop. Without a `context` it runs in the scheduler's own.

    Only tasks have a context of their own, and they pass it.
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
        # asyncio's own __init__ does several times as much work, and a run creates tens of thousands of handles.
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
        self.callback = _cancelled
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


def _cancelled() -> None:
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

    def schedule(self, when_s: float, handle: Handle) -> None:
        """Run a callback at that time, or as soon as possible after it."""
        self._number += 1
        heapq.heappush(self._heap, (when_s, self._draw(), self._number, handle))

    def fail(self, error: BaseException) -> None:
        """End the run. Only the first error counts."""
        if self.failure is None:
            self.failure = error

    @property
    def waiting(self) -> int:
        """Scheduled callbacks, including cancelled ones."""
        return len(self._heap)

    def run_until(
        self, done: Callable[[], object] | None = None, *, limit_s: float, check_every_s: float = 0.0
    ) -> bool:
        """Run until `done` is true or virtual time reaches `limit_s`. Returns whether `done` is true.

        `done` is called after each callback, or only every `check_every_s` if it is expensive. Raises the exception
        that ended the run, if one did.
        """
        checked_s = -check_every_s
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            while True:
                if done is not None and self.now_s >= checked_s + check_every_s:
                    checked_s = self.now_s
                    if done():
                        return True
                if not self.ready and not self._advance(limit_s):
                    return done is not None and bool(done())
                self._run_ready(None if check_every_s else done)
        finally:
            asyncio._set_running_loop(before)

    def _advance(self, limit_s: float) -> bool:
        """Advance time to the next timer. False if that is after the limit."""
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
        """Run the ready callbacks, and those that become ready meanwhile, until `done` or the end of this instant."""
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
            except BaseException as error:  # noqa: BLE001 - as in asyncio, it goes to the handler
                loop.call_exception_handler({"message": f"Exception in callback {handle.callback}", "exception": error})
            if self.failure is not None:
                raise self.failure
            if done is not None and done():
                return
            if self.callbacks > last:
                raise Stuck(f"more than {_CALLBACKS_PER_INSTANT} callbacks at {self.now_s:.6f} s: an endless loop")
