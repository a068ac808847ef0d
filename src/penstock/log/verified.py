"""Which bytes of a file this process has seen to be sound.

Noun: a few disjoint ranges, ascending. Rule: what was appended here or checked against its checksum once is not
checked again; everything else is, before it is served.
"""

from __future__ import annotations

from bisect import bisect_right


class VerifiedRanges:
    """A set of positions as [start, end) ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        return start >= end or self.end_of(start) >= end

    def end_of(self, start: int) -> int:
        """Up to where all from `start` on is covered; `start` itself if it is not.

        With [10, 20) and [30, 40): end_of(12) is 20, end_of(25) is 25.
        """
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def add(self, start: int, end: int) -> None:
        """Cover [start, end), joining what it touches.

        [10, 20), [30, 40) and add(20, 35): [10, 40).
        """
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if ends and starts[-1] <= start <= ends[-1]:  # an append, or a reader that goes on
            ends[-1] = max(ends[-1], end)
            return
        first = bisect_right(ends, start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def cut(self, end: int) -> None:
        """Forget everything from `end` on."""
        keep = bisect_right(self._starts, end - 1)
        del self._starts[keep:], self._ends[keep:]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)
