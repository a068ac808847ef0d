"""Blocking work off the event loop: workers, and the same work for many items in parallel.

Work runs on any thread; callbacks run only on the thread that submitted it, so only the work itself must be
thread-safe. Accepted work completes exactly once; work is rejected when too much is queued. `in_parallel` with one
thread uses no thread at all and runs in order, as a simulated disk needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar, cast

K = TypeVar("K")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_WAITING_MAX: Final = 10_000


class WorkersError(RuntimeError):
    """Work was not accepted or not finished."""


class WorkersClosed(WorkersError):
    """Work was submitted after `close`."""


class WorkersBusy(WorkersError):
    """Too much work is unfinished, or it was not finished in time."""

    def __init__(self, unfinished: int) -> None:
        super().__init__(f"{unfinished} tasks are not finished")
        self.unfinished = unfinished


class Outcome(Generic[T_co]):
    """The result of work: its value, or the exception that it raised."""

    __slots__ = ("_value", "error")

    def __init__(self, value: T_co | None, error: BaseException | None = None) -> None:
        self._value = value
        self.error = error

    def result(self) -> T_co:
        """The value; raises what the work raised."""
        if self.error is not None:
            raise self.error
        return cast(T_co, self._value)


def outcome_of(work: Callable[[], T]) -> Outcome[T]:
    """The outcome of work that runs on this thread."""
    try:
        return Outcome(work())
    except Exception as error:  # noqa: BLE001 - the caller decides what it means
        return Outcome(None, error)


class Workers(Protocol):
    """Runs blocking work."""

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """Run `work`, then call `done` with its outcome. WorkersError if it is not accepted.

        `done` may be called before this returns (`InlineWorkers`): update your own state first.
        """

    def close(self) -> None:
        """Accept no further work, and return when all accepted work is done and its callbacks were called."""


class ThreadWorkers:
    """Threads next to an event loop, started as they are needed.

    `run` and `close` are called on the loop's thread. The threads are daemons, so a disk that hangs in a sync does not
    keep the process from exiting.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, *, waiting_max: int = _WAITING_MAX) -> None:
        if threads < 1 or waiting_max < 1:
            raise ValueError(f"threads={threads} and waiting_max={waiting_max} must be positive")
        self._loop = loop
        self._threads_max = threads
        self._waiting_max = waiting_max
        self._threads: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False
        self._queue: SimpleQueue[tuple[Callable[[], Any], Callable[[Outcome[Any]], None]] | None] = SimpleQueue()
        self._finished: deque[tuple[Callable[[Outcome[Any]], None], Outcome[Any]]] = deque()
        self._wakeup_sent = False

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self._closed:
            raise WorkersClosed("the workers are closed")
        if self._unfinished >= self._waiting_max:
            raise WorkersBusy(self._unfinished)
        self._unfinished += 1
        if len(self._threads) < min(self._unfinished, self._threads_max):
            self._start_thread()
        self._queue.put((work, done))

    def close(self, timeout_ms: int | None = None) -> None:
        """Finish accepted work, call its callbacks, and end the threads.

        WorkersBusy if `timeout_ms` passes first: the threads then end by themselves.
        """
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        end_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        for thread in self._threads:
            thread.join(None if end_s is None else max(0.0, end_s - time.monotonic()))
        self._deliver()
        if self._unfinished:
            raise WorkersBusy(self._unfinished)

    def _start_thread(self) -> None:
        name = f"penstock-worker-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            try:
                outcome = Outcome(work())
            except BaseException as error:  # noqa: BLE001 - the callback gets it, whatever it is
                outcome = Outcome(None, error)
            self._finished.append((done, outcome))
            # References held while the thread waits would keep files open.
            del item, work, done, outcome
            self._wake_loop()

    def _wake_loop(self) -> None:
        # `_deliver` clears the flag before it looks: what is appended later is either seen or wakes it again.
        if self._wakeup_sent:
            return
        self._wakeup_sent = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            # The loop is closed; `close` delivers what is left.
            self._wakeup_sent = False

    def _deliver(self) -> None:
        self._wakeup_sent = False
        while self._finished:
            done, outcome = self._finished.popleft()
            self._unfinished -= 1
            try:
                done(outcome)
            except Exception as error:  # noqa: BLE001 - one failing callback must not affect the others
                self._loop.call_exception_handler(
                    {"message": f"callback {done!r} of finished work failed", "exception": error}
                )


class InlineWorkers:
    """Runs work immediately, on the calling thread."""

    def __init__(self) -> None:
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self._closed:
            raise WorkersClosed("the workers are closed")
        done(outcome_of(work))

    def close(self) -> None:
        self._closed = True


class ManualWorkers:
    """Runs work on request, for tests of what happens meanwhile."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self._closed:
            raise WorkersClosed("the workers are closed")
        self._waiting.append(lambda: done(outcome_of(work)))

    def run_next(self) -> None:
        """Run the oldest task; IndexError if none waits."""
        self._waiting.popleft()()

    def run_all(self) -> None:
        """Run all waiting tasks, including those submitted meanwhile."""
        while self._waiting:
            self.run_next()

    def close(self) -> None:
        self.run_all()
        self._closed = True


def in_parallel(
    work: Callable[[K], T], items: Sequence[K], threads: int
) -> Generator[tuple[K, Outcome[T]], None, None]:
    """Each item with the outcome of its work, as it finishes. Closing the generator stops it: no more work starts."""
    if threads <= 1 or len(items) <= 1:
        for item in items:
            yield item, outcome_of(partial(work, item))
        return
    waiting = deque(items)
    finished: SimpleQueue[tuple[K, Outcome[T]] | None] = SimpleQueue()
    ended = threading.Event()

    def serve() -> None:
        try:
            with contextlib.suppress(IndexError):  # no item is left
                while not ended.is_set():
                    item = waiting.popleft()
                    finished.put((item, outcome_of(partial(work, item))))
        finally:
            finished.put(None)

    pool = [threading.Thread(target=serve, name=f"penstock-logs-{n}", daemon=True) for n in range(threads)]
    for thread in pool:
        thread.start()
    running = len(pool)
    try:
        while running:
            done = finished.get()
            if done is None:
                running -= 1
            else:
                yield done
    finally:
        ended.set()
        for thread in pool:
            thread.join()
