"""The memory that records may take while they wait: `buffer_memory`, shared by all batches of a producer.

Rule: an open batch holds as much as it may grow to, a closed one what it has; the sum never exceeds the limit. So that
many open batches do not use it up half empty, a new batch may grow to an even share of half of it only: the tenth of
64 MiB to `batch_size`, the thousandth to 32 KiB.
"""

from __future__ import annotations

from typing import Final

SMALLEST_BATCH_BYTES: Final = 4096
_HALF: Final = 2  # the other half is for what is closed and on its way


class MemoryBudget:
    """Bytes taken and given back; the caller keeps it from being used by two threads at once."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def free(self) -> int:
        return self.limit - self.used

    def take(self, size: int) -> bool:
        """Whether `size` bytes were to be had; if so they are taken."""
        if size > self.limit - self.used:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        self.used -= size

    def share_of(self, open_batches: int, batch_size: int) -> int:
        """What one more batch may grow to, when `open_batches` are open already."""
        fair = self.limit // _HALF // (open_batches + 1)
        return max(min(batch_size, fair), min(SMALLEST_BATCH_BYTES, batch_size))
