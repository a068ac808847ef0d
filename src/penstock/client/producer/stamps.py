"""The timestamps of a stored batch's records, without its bytes.

Rule: neighbours mostly share their millisecond, so runs of the same one are kept: a few pairs of numbers for thousands
of records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol


class Stamps(Protocol):
    """A timestamp for each record, in milliseconds."""

    def __getitem__(self, index: int, /) -> int: ...


class RunStamps:
    """Timestamps as runs (first record, its time): a run lasts up to the next one."""

    __slots__ = ("_firsts", "_times_ms")

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self._firsts = [first for first, _ in runs]
        self._times_ms = [time_ms for _, time_ms in runs]

    def __getitem__(self, index: int, /) -> int:
        return self._times_ms[bisect_right(self._firsts, index) - 1]
