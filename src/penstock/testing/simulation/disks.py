"""What a simulated disk takes in time, and work done beside the event loop.

Nouns: `DiskTiming`, which says how long each sync takes and which fails; `SimulatedWorkers`, threads without threads.

Rule: work happens at one instant, somewhere between being given and being answered, and the syncs in it decide how
long that takes. A sync that the event loop does itself keeps the whole process busy for as long. The same seed gives
the same times.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from random import Random as PythonRandom
from typing import Any, Final, TypeVar

from penstock.runtime.workers import Outcome, WorkersBusy, WorkersClosed
from penstock.testing.simulated_disk import RANDOM_LOSS
from penstock.testing.simulated_faults import Fault, Operation
from penstock.testing.simulation.loop import SimulatedLoop

T = TypeVar("T")

_SYNC_KINDS: Final = frozenset({"sync", "sync_folder"})
_LEAST_SYNC_S: Final = 0.0001
_SPREAD_S: Final = 0.0008
_TAIL_CHANCE: Final = 0.02
_TAIL_FACTOR: Final = 30.0
# Until the disk gets to it: what is lost meanwhile was written and not synced.
_START_SPREAD_S: Final = 0.001
_WAITING_MAX: Final = 10_000


class DiskTiming:
    """Asked by the files of one host before each operation (`OperationLog.hook`)."""

    def __init__(self, seed: int | str) -> None:
        self.slowness = 1.0
        """Every sync takes so many times as long as usual."""
        self.loop: SimulatedLoop | None = None
        """The process that uses the disk."""
        self.after_write: Callable[[], None] | None = None
        """Called once, at the next write to a log: who wants to come at the worst moment waits for it."""
        self.syncs = 0
        self._random = PythonRandom(f"{seed}/disk")
        self._errors = 0
        self._spent_s = 0.0
        self._is_beside = False

    def fail_syncs(self, count: int) -> None:
        """The next so many syncs of files fail (EIO), and what they were to save is lost in part."""
        self._errors = count

    def __call__(self, operation: Operation) -> Fault | None:
        if operation.kind not in _SYNC_KINDS:
            if self.after_write is not None and operation.kind == "write" and operation.path.endswith(".log"):
                call, self.after_write = self.after_write, None
                call()
            return None
        self.syncs += 1
        took_s = (_LEAST_SYNC_S + self._random.random() * _SPREAD_S) * self.slowness
        if self._random.random() < _TAIL_CHANCE:
            took_s *= _TAIL_FACTOR
        self._spent_s += took_s
        if not self._is_beside and self.loop is not None:
            self.loop.busy_for(took_s)
        if self._errors and operation.kind == "sync":
            self._errors -= 1
            return Fault(OSError(errno.EIO, os.strerror(errno.EIO), operation.path), loss=RANDOM_LOSS)
        return None

    def beside(self, work: Callable[[], T]) -> tuple[Outcome[T], float]:
        """Do it as a thread would: what came of it, and how long its syncs took."""
        before_s, self._is_beside = self._spent_s, True
        try:
            outcome: Outcome[T] = Outcome(work())
        except Exception as error:  # noqa: BLE001 - the one who gave the work decides what its failure means
            outcome = Outcome(None, error)
        finally:
            self._is_beside = False
        return outcome, self._spent_s - before_s

    def draw_s(self, spread_s: float) -> float:
        return self._random.random() * spread_s * self.slowness

    def stopwatch_s(self) -> float:
        """Virtual time, and what syncs have taken within this instant."""
        return self._spent_s + (0.0 if self.loop is None else self.loop.time())


class SimulatedWorkers:
    """As `ThreadWorkers`, on the process's own loop: they pause and die with it."""

    def __init__(self, loop: SimulatedLoop, timing: DiskTiming, threads: int) -> None:
        self._loop = loop
        self._timing = timing
        self._free = threads
        self._closed = False
        self._unfinished: dict[int, Callable[[], None]] = {}
        self._waiting: deque[tuple[int, Callable[[], Any], Callable[[Outcome[Any]], None]]] = deque()
        self._number = 0

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        if self._closed:
            raise WorkersClosed("the workers are closed")
        if len(self._unfinished) >= _WAITING_MAX:
            raise WorkersBusy(len(self._unfinished))
        self._number += 1
        self._waiting.append((self._number, work, done))
        self._unfinished[self._number] = lambda: done(self._timing.beside(work)[0])
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            number, work, done = self._waiting.popleft()
            self._loop.call_later(self._timing.draw_s(_START_SPREAD_S), self._work, number, work, done)

    def _work(self, number: int, work: Callable[[], Any], done: Callable[[Outcome[Any]], None]) -> None:
        if number not in self._unfinished:
            return
        outcome, took_s = self._timing.beside(work)
        self._unfinished[number] = lambda: done(outcome)
        self._loop.call_later(took_s, self._finish, number)

    def _finish(self, number: int) -> None:
        finish = self._unfinished.pop(number, None)
        if finish is not None:
            self._free += 1
            finish()
            self._start()

    def close(self) -> None:
        """Here time does not pass while it is waited for."""
        self._closed = True
        self._waiting.clear()
        while self._unfinished:
            self._unfinished.pop(next(iter(self._unfinished)))()
