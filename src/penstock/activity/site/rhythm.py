"""How busy the site is by the time of the day and of the week.

Rule: factors around 1 whose mean over a week is 1, so that a rate is the mean of what comes. Times are UTC.
"""

from __future__ import annotations

from enum import Enum
from math import cos, tau
from typing import Final

_DAY_MS: Final = 86_400_000
_THURSDAY: Final = 3  # 1 January 1970
_PEAK_HOUR: Final = 18.5
_DAILY: Final = 0.35
_SECOND: Final = 0.08
_BY_WEEKDAY: Final = (1.02, 1.04, 1.04, 1.03, 0.99, 0.92, 0.96)


class Rhythm(Enum):
    """Whether there is one."""

    DAILY = "daily"
    FLAT = "flat"

    def factor(self, time_ms: int) -> float:
        """1.0 is the mean; about 0.7 in the early morning, 1.4 in the evening."""
        if self is Rhythm.FLAT:
            return 1.0
        day, within_ms = divmod(time_ms, _DAY_MS)
        turn = tau * (within_ms / _DAY_MS - _PEAK_HOUR / 24)
        return _BY_WEEKDAY[(day + _THURSDAY) % 7] * (1 + _DAILY * cos(turn) + _SECOND * cos(2 * turn))
