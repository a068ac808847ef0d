"""The same work for many things at once, on several threads.

Noun: a row of items, and the `Outcome` of each.

Rule: the work on one item touches nothing of another, so it may run anywhere; what comes of it is taken by the thread
that asked, one item at a time. With one thread there is none beside: everything happens where and when it is asked for,
and in order, as a simulated disk needs it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from penstock.runtime.workers import Outcome

K = TypeVar("K")
T = TypeVar("T")


def in_parallel(
    work: Callable[[K], T], items: Sequence[K], threads: int
) -> Generator[tuple[K, Outcome[T]], None, None]:
    """Each item with what came of its work, as it is finished. Whoever stops asking ends it: no more is begun."""
    if threads <= 1 or len(items) <= 1:
        for item in items:
            yield item, outcome_of(partial(work, item))
        return
    waiting = deque(items)
    finished: SimpleQueue[tuple[K, Outcome[T]] | None] = SimpleQueue()
    ended = threading.Event()

    def serve() -> None:
        try:
            with contextlib.suppress(IndexError):  # none is left
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


def outcome_of(work: Callable[[], T]) -> Outcome[T]:
    """What comes of work that is done here and now."""
    try:
        return Outcome(work())
    except Exception as error:  # noqa: BLE001 - whoever asked decides what it means
        return Outcome(None, error)
