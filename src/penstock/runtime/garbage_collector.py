"""Python's garbage collector in a process that has many objects and must not stop for long.

A full collection looks at every object that could be part of a reference cycle, and no thread runs Python meanwhile:
about 0.5 µs for each, 0.25 s for a broker with 10,000 partitions. `BoundedCollector` sets aside what survives. As soon
as `SET_ASIDE_AT` objects have survived a full collection they are frozen, and later collections skip them. With its
thresholds no automatic collection looks at more than `MOST_EXAMINED` objects, however many there are.

An object that was set aside is still freed with its last reference. Only a cycle of such objects is not found. So
everything is collected when the process is quiet and has grown by a quarter since the last time, or, quiet or not,
when it has grown so much that it is a leak or a far larger cluster.

Where Python's own collections are incremental, none is full, and only `set_aside` and `collect_all` do anything.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from types import TracebackType
from typing import Any, Final

logger = logging.getLogger(__name__)

SET_ASIDE_AT: Final = 20_000
THRESHOLDS: Final = (700, 10, 3)
"""The youngest objects are collected after more than 700 new ones, the middle generation after more than 10 of these
collections, all that is not set aside after more than 3 of those."""
MOST_EXAMINED: Final = SET_ASIDE_AT + 4 * 11 * 701

_QUIET: Final = 0.05  # of one core
_GROWTH_WHEN_QUIET: Final = 1.25
_GROWTH: Final = 4
_GROWTH_BLOCKS: Final = 5_000_000  # of memory: about 50,000 partitions


class BoundedCollector:
    """A context: collections are bounded inside, and as before outside. One per process, on the thread of its loop."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._blocks = 0  # allocated after everything was collected
        self._sets_aside_all = False
        self._has_set_aside = False
        self._looked: tuple[float, float] | None = None

    def __enter__(self) -> BoundedCollector:
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def set_aside(self) -> None:
        """After the start: what there is now stays for long, and is not looked at again until everything is."""
        gc.freeze()
        # Python waits with the next full collection until as many are new as a quarter of what the last one found.
        gc.collect()
        self._blocks = sys.getallocatedblocks()
        self._has_set_aside = False

    def tick(self, now_s: float, cpu_s: float) -> bool:
        """Called regularly with the time and the processor time of the process. Whether everything was collected."""
        looked, self._looked = self._looked, (now_s, cpu_s)
        if looked is None or not self._has_set_aside:
            return False
        is_quiet = cpu_s - looked[1] < _QUIET * (now_s - looked[0])
        blocks = sys.getallocatedblocks()
        if blocks <= (self._blocks * _GROWTH_WHEN_QUIET if is_quiet else self._blocks * _GROWTH + _GROWTH_BLOCKS):
            return False
        self.collect_all()
        return True

    def collect_all(self) -> None:
        """Collect everything, which takes as long as there are objects, and set it aside again."""
        begun_s = time.thread_time()
        gc.unfreeze()
        self._sets_aside_all = True
        try:
            found = gc.collect()
        finally:
            self._sets_aside_all = False
        self.set_aside()
        logger.info(
            "all garbage collected: objects=%d cpu_ms=%d memory_blocks=%d",
            found,
            (time.thread_time() - begun_s) * 1000,
            self._blocks,
        )

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """Called by Python before and after each collection, on the thread on which it runs."""
        if phase != "stop" or info["generation"] != 2:
            return
        if self._sets_aside_all or len(gc.get_objects(generation=2)) >= SET_ASIDE_AT:
            gc.freeze()
            self._has_set_aside = True
