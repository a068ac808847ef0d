"""Readers that wait for a partition to grow.

Noun: `Watchers`, the consumers and followers who wait, and the bytes that they wait for.

Rule: a follower is told of records as they are appended, and of the high watermark; a consumer of records when the
watermark has passed them, and of how many bytes that made readable. When the partition is no longer what it was, all
are told and forgotten: who still cares comes again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.replication.partition import Partition

_MOST_SIZES: Final = 1024


class Watcher(Protocol):
    """Somebody who waits for records that may be read."""

    def grown(self, partition: Partition, size: int) -> None:
        """`size` more bytes may be read from `partition`."""

    def gone(self, partition: Partition) -> None:
        """The partition is no longer here, or no longer what it was."""


class EndWatcher(Watcher, Protocol):
    """Somebody who waits for records to copy: for a follower `grown` tells of the log's end."""

    def moved(self, partition: Partition) -> None:
        """The high watermark has moved, or the log's start."""


class Watchers:
    """Of one partition."""

    __slots__ = ("_at_end", "_at_watermark", "_sizes")

    def __init__(self) -> None:
        self._at_watermark: dict[Watcher, None] = {}
        self._at_end: dict[EndWatcher, None] = {}
        # End offset and bytes of appends above the watermark; of very many, the last are taken together.
        self._sizes: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._at_watermark) + len(self._at_end)

    def add(self, watcher: Watcher) -> None:
        self._at_watermark[watcher] = None

    def add_at_end(self, watcher: EndWatcher) -> None:
        self._at_end[watcher] = None

    def remove(self, watcher: Watcher) -> None:
        """Of whichever kind it is."""
        self._at_watermark.pop(watcher, None)
        self._at_end.pop(watcher, None)  # type: ignore[call-overload]

    def appended(self, end_offset: int, size: int) -> None:
        """Note bytes that become readable when the watermark is at their end."""
        sizes = self._sizes
        if len(sizes) >= _MOST_SIZES:
            size += sizes.pop()[1]
        sizes.append((end_offset, size))

    def forget_sizes(self) -> None:
        """What was noted is not in the log any more, or nobody knows."""
        self._sizes.clear()

    def tell_end(self, partition: Partition, size: int) -> None:
        """There is more to copy."""
        for watcher in tuple(self._at_end):
            watcher.grown(partition, size)

    def tell_watermark(self, partition: Partition, high_watermark: int) -> None:
        """There is more to read."""
        sizes, size = self._sizes, 0
        while sizes and sizes[0][0] <= high_watermark:
            size += sizes.popleft()[1]
        for watcher in tuple(self._at_watermark):
            watcher.grown(partition, size)
        self.tell_moved(partition)

    def tell_moved(self, partition: Partition) -> None:
        """There is an offset to tell followers, if nothing else."""
        for follower in tuple(self._at_end):
            follower.moved(partition)

    def tell_gone(self, partition: Partition) -> None:
        watchers, self._at_watermark = self._at_watermark, {}
        for watcher in watchers:
            watcher.gone(partition)
        self.tell_followers_gone(partition)

    def tell_followers_gone(self, partition: Partition) -> None:
        watchers, self._at_end = self._at_end, {}
        for watcher in watchers:
            watcher.gone(partition)
