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


class Trace:
    """`now_s` is set by the scheduler as time goes on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self._hash = blake2b(digest_size=16)
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=_LINES_KEPT)

    def note(self, place: str, event: str) -> None:
        """Part of the run's identity."""
        self.events += 1
        self._hash.update(f"{self.now_s!r} {place} {event}\n".encode())
        self._lines.append((self.now_s, place, event))

    def tell(self, place: str, text: str) -> None:
        """For readers only."""
        self._lines.append((self.now_s, place, text))

    def count(self, kind: str) -> None:
        self.counts[kind] += 1

    @property
    def hash(self) -> str:
        return self._hash.hexdigest()

    def last_lines(self, count: int) -> list[str]:
        lines = list(self._lines)[-count:]
        return [f"{at_s:12.6f} {place:<12} {event}" for at_s, place, event in lines]
