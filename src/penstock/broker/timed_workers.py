"""Workers whose work is timed: how long the syncs of logs take.

Rule: the time is that of the work itself, on whichever thread does it, without the wait for its turn; it is told
where the outcome is handed over, on the thread that gave the work.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

from penstock.runtime.workers import Outcome, Workers

T = TypeVar("T")


class TimedWorkers:
    """Hands work on to `workers`, and the seconds it took to `took`; failed work took its time as well."""

    def __init__(
        self, workers: Workers, took: Callable[[float], None], seconds: Callable[[], float] = perf_counter
    ) -> None:
        self._workers = workers
        self._took = took
        self._seconds = seconds

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        took_s = 0.0

        def timed() -> T:
            nonlocal took_s
            begin_s = self._seconds()
            try:
                return work()
            finally:
                took_s = self._seconds() - begin_s

        def finished(outcome: Outcome[T]) -> None:
            self._took(took_s)
            done(outcome)

        self._workers.run(timed, finished)

    def close(self) -> None:
        self._workers.close()
