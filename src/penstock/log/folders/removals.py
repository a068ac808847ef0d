"""Files and folders that are out of use, waiting to be removed.

Noun: a path that was renamed out of the way, and the time from which its bytes may go.

Rule: whatever waits here is named so that the next start would remove it too; so nothing is lost by forgetting the
list, and removing what is gone already is no error. Removing large files takes the disk's time: `remove_all` touches
nothing but the files, so it may run beside the event loop.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable
from typing import NamedTuple

from penstock.runtime.files import Files


class Removal(NamedTuple):
    due_ms: int
    path: str
    is_folder: bool


class PendingRemovals:
    """What waits, the earliest due first."""

    def __init__(self) -> None:
        self._heap: list[Removal] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, removals: Iterable[Removal]) -> None:
        for removal in removals:
            heapq.heappush(self._heap, removal)

    def take_due(self, now_ms: int) -> list[Removal]:
        """Those whose time has come; they wait no longer."""
        due: list[Removal] = []
        while self._heap and self._heap[0].due_ms <= now_ms:
            due.append(heapq.heappop(self._heap))
        return due

    def take_all(self) -> list[Removal]:
        taken, self._heap = self._heap, []
        return taken


def remove_all(files: Files, removals: Iterable[Removal]) -> int:
    """Remove them; how many were there to be removed."""
    count = 0
    for removal in removals:
        with contextlib.suppress(FileNotFoundError):
            if removal.is_folder:
                files.remove_folder(removal.path)
            else:
                files.remove(removal.path)
            count += 1
    return count
