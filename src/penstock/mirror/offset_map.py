"""Where source offsets are in the target: runs of records that are consecutive on both sides. Pure.

A run (source, target, count) says that records source..source+count-1 are at target..target+count-1. Newer runs are all
kept; older ones are thinned out, the further back the more. A translation is exact within a run that is kept and right
behind it. Elsewhere it is the end of the run before: a group reads some records again and never misses one.

    runs (0, 0, 10) (10, 11, 5)        offset 4 -> 4, offset 10 -> 11, offset 15 -> 16, offset 99 -> 16
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

_NEWEST: Final = 32
_MOST: Final = 64


class Run(NamedTuple):
    """Records that are consecutive in source and target."""

    source: int
    target: int
    count: int  # type: ignore[assignment]


class OffsetMap:
    """The runs of one source partition, in ascending order."""

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        self._runs = [Run(*each) for each in runs]

    def add(self, source: int, target: int, count: int) -> None:
        """Records were appended: they continue the last run, or begin one."""
        if self._runs:
            last = self._runs[-1]
            if last.source + last.count == source and last.target + last.count == target:
                self._runs[-1] = last._replace(count=last.count + count)
                return
        self._runs.append(Run(source, target, count))
        if len(self._runs) > _MOST:
            old, new = self._runs[:-_NEWEST], self._runs[-_NEWEST:]
            self._runs = old[::2] + new

    def translate(self, offset: int) -> int | None:
        """The offset in the target from which a group continues; None if nothing is known that far back."""
        index = bisect_right(self._runs, offset, key=lambda run: run.source) - 1
        if index < 0:
            return None
        run = self._runs[index]
        return run.target + min(offset - run.source, run.count)

    @property
    def runs(self) -> list[Run]:
        return list(self._runs)
