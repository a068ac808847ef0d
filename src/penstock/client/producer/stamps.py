"""The timestamps of a stored batch's records, without its bytes.

Rule: neighbours mostly share their millisecond, so runs of the same one are kept: a few pairs of numbers for thousands
of records.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol


class Stamps(Protocol):
    """A timestamp for each record, in milliseconds."""

    def __getitem__(self, index: int, /) -> int: ...

    def run_at(self, index: int) -> tuple[int, int, int]:
        """The timestamp of a record, and from which record on up to which, not including it, it is the same."""


class RunStamps:
    """Timestamps as runs (first record, its time): a run lasts up to the next one."""

    __slots__ = ("_firsts", "_times_ms")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self._firsts = [first for first, _ in runs]
        self._times_ms = [time_ms for _, time_ms in runs]

    def __getitem__(self, index: int, /) -> int:
        return self._times_ms[bisect_right(self._firsts, index) - 1]

    def run_at(self, index: int) -> tuple[int, int, int]:
        number = bisect_right(self._firsts, index)
        end = self._firsts[number] if number < len(self._firsts) else sys.maxsize
        return self._times_ms[number - 1], self._firsts[number - 1], end
