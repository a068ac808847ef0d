"""What happened in a run, in order.

Noun: a trace, lines of virtual time, place and event, and one hash over all of them.

Rule: two runs of one seed have the same hash, or the simulator is broken. The last lines are kept for whoever looks at
a failure; what is only told (`tell`: log lines of the code under test) is kept too, but is not part of the hash.
"""

from __future__ import annotations

from collections import Counter, deque
from hashlib import blake2b
from typing import Final

_LINES_KEPT: Final = 4_000
_LINES_HASHED: Final = 1_000

Line = tuple[float, str, str, tuple[str | int, ...]]
"""Virtual time, place, event and details of it."""


class Trace:
    """`now_s` is set by the scheduler as time goes on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self._hash = blake2b(digest_size=16)
        self._lines: deque[Line] = deque(maxlen=_LINES_KEPT)
        self._unhashed: list[Line] = []

    def note(self, place: str, event: str, *details: str | int) -> None:
        """Part of the run's identity. What is costly to format is given as `details`, and formatted if it is read."""
        self.events += 1
        line = (self.now_s, place, event, details)
        self._lines.append(line)
        self._unhashed.append(line)
        if len(self._unhashed) == _LINES_HASHED:
            self._digest()

    def _digest(self) -> None:
        if self._unhashed:
            self._hash.update(repr(self._unhashed).encode())
            self._unhashed.clear()

    def tell(self, place: str, text: str) -> None:
        """For readers only."""
        self._lines.append((self.now_s, place, text, ()))

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    @property
    def hash(self) -> str:
        self._digest()
        return self._hash.hexdigest()

    def last_lines(self, count: int) -> list[str]:
        lines = list(self._lines)[-count:]
        return [f"{at_s:12.6f} {place:<12} {' '.join([event, *map(str, more)])}" for at_s, place, event, more in lines]
