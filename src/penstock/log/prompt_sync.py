"""When to sync here and now instead of on another thread.

Noun: the choice of where a flush runs. To hand it to a thread and be woken by it costs as much as a fast disk's sync.

Rule: here and now only if nobody else can be kept waiting by it: the flush is for one waiter, its client has been the
only one for a while, and the disk has been fast every time lately. One slow sync sends the next ones to the threads, so
a disk that begins to stall holds up the one who waits for it anyway, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.runtime.workers import Workers

FAST_MS: Final = 1.0
FAST_IN_A_ROW: Final = 64


class PromptSync:
    """`is_alone` says whether one client is all there is; `later` runs something at the end of this turn.

    `here` does the work where it is given.
    """

    def __init__(
        self,
        here: Workers,
        is_alone: Callable[[], bool],
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        self.here = here
        self._is_alone = is_alone
        self.later = later
        self._fast = 0

    def may(self) -> bool:
        return self._fast >= FAST_IN_A_ROW and self._is_alone()

    def took(self, milliseconds: float) -> None:
        """How long a sync took, wherever it ran."""
        self._fast = self._fast + 1 if milliseconds < FAST_MS else 0
