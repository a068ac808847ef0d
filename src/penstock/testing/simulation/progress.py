"""How far a campaign of seeds has come.

Noun: a `Progress`, of so many seeds since a moment.

Rule: it is told now and then, more rarely when it takes long anyway. What is left is reckoned from what was done so
far: seeds take about as long as one another. Time is an argument.
"""

from __future__ import annotations

import time
from typing import Final

_MANY: Final = 200
_SOON_S: Final = 2.0
_RARELY_S: Final = 10.0


class Progress:
    """`now_s` is of a clock that never jumps, everywhere."""

    def __init__(self, total: int, now_s: float) -> None:
        self._total = total
        self._began_s = self._told_s = now_s
        self._every_s = _RARELY_S if total > _MANY else _SOON_S

    def took_s(self, now_s: float) -> float:
        return now_s - self._began_s

    def line(self, done: int, failed: int, now_s: float, wall_s: float) -> str | None:
        """What to tell now, or None: `done` seeds, `failed` of them; `wall_s` is the time of day, for the end."""
        if done < 1 or now_s - self._told_s < self._every_s:
            return None
        self._told_s = now_s
        seeds_per_s = done / max(self.took_s(now_s), 1e-9)
        left_s = (self._total - done) / seeds_per_s
        end = time.strftime("%H:%M:%S", time.localtime(wall_s + left_s))
        return (
            f"{done} of {self._total} seeds, {failed} failed, {_duration(self.took_s(now_s))}: "
            f"{seeds_per_s:.2f} seeds/s, {_duration(left_s)} left, until about {end}"
        )


def _duration(seconds: float) -> str:
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"
