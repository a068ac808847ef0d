"""When to sync here and now instead of on another thread.

Noun: the choice of where a flush runs. To hand it to a thread and be woken by it costs as much as a fast disk's sync,
and as much of the processor.

Rule: here and now only while there is little to do: few bytes, for one waiter, as it was for the last ones too, on a
disk that has been fast every time lately. Then whoever else comes meanwhile waits no longer than one such sync, as he
would for the flush before his own. As soon as several wait together the threads do it, and the loop goes on with the
next requests. One slow sync sends the next ones to the threads, so a disk that begins to stall holds the loop up once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.runtime.workers import Workers

FAST_MS: Final = 2.0
FAST_IN_A_ROW: Final = 64
ALONE_IN_A_ROW: Final = 4
FEW_BYTES: Final = 64 * 1024


class PromptSync:
    """`later` runs something at the end of this turn, `here` does the work where it is given."""

    def __init__(self, here: Workers, later: Callable[[Callable[[], None]], object]) -> None:
        self.here = here
        self.later = later
        self._fast = 0
        self._alone = 0

    def may(self, unflushed_bytes: int) -> bool:
        return self._fast >= FAST_IN_A_ROW and self._alone >= ALONE_IN_A_ROW and unflushed_bytes <= FEW_BYTES

    def took(self, milliseconds: float) -> None:
        """How long a sync took, wherever it ran."""
        self._fast = self._fast + 1 if milliseconds < FAST_MS else 0

    def served(self, waiters: int) -> None:
        """How many a flush was for."""
        self._alone = self._alone + 1 if waiters <= 1 else 0
