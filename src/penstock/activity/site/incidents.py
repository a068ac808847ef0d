"""What happens on the site now and then: incidents on servers, items that everybody wants to see.

Nouns: `Incident`, `Trend`; `Happenings`, all of them, for ever.

Rule: functions of the seed, the sizes and the time line's origin; they come in turns of ten minutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.activity.site.chance import Purpose, draws
from penstock.activity.site.population import Population
from penstock.activity.site.words import KEYWORDS

TURN_MS: Final = 600_000
INCIDENT_MS: Final = 45_000
SLOWER: Final = 8.0
FAILING: Final = 0.15
TREND_AFTER_MS: Final = 15_000
TREND_MS: Final = 240_000
RISE_MS: Final = 45_000
RISES_TO: Final = 20.0
_LEAST_VIEWS: Final = 0.4
_MIDDLING: Final = (0.3, 0.6)


@dataclass(frozen=True)
class Incident:
    """A server that is slow and fails."""

    server: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Trend:
    """An item that is looked at ever more often, and what those search for that look for it."""

    item: int
    keyword: int
    start_ms: int
    end_ms: int
    views_before: float
    """A second."""

    def more_views(self, time_ms: int) -> float:
        """Views a second beyond what the item has of itself."""
        if not self.start_ms <= time_ms < self.end_ms:
            return 0.0
        risen = min((time_ms - self.start_ms) / RISE_MS, 1.0)
        return self.views_before * (math.pow(RISES_TO, risen) - 1.0)


class Happenings:
    """Incidents and trends by the turn they are in."""

    def __init__(self, population: Population, origin_ms: int, incident_after_ms: int, views_a_second: float) -> None:
        rng = draws(population.seed, Purpose.POPULATION, 3)
        self._origin_ms = origin_ms
        self._incident_after_ms = incident_after_ms
        self._views_a_second = views_a_second
        self._odds = population.items.odds
        self._servers = rng.permutation(population.sizes.servers)
        by_odds = np.argsort(-self._odds)
        low, high = (int(share * len(by_odds)) for share in _MIDDLING)
        self._items = rng.permutation(by_odds[low:high])

    def incident(self, turn: int) -> Incident:
        start_ms = self._origin_ms + turn * TURN_MS + self._incident_after_ms
        return Incident(int(self._servers[turn % len(self._servers)]), start_ms, start_ms + INCIDENT_MS)

    def trend(self, turn: int) -> Trend:
        start_ms = self._origin_ms + turn * TURN_MS + TREND_AFTER_MS
        item = int(self._items[turn % len(self._items)])
        views = max(float(self._odds[item]) * self._views_a_second, _LEAST_VIEWS)
        return Trend(item, item % len(KEYWORDS), start_ms, start_ms + TREND_MS, views)

    def incident_at(self, time_ms: int) -> Incident | None:
        turn = (time_ms - self._origin_ms - self._incident_after_ms) // TURN_MS
        found = self.incident(turn) if turn >= 0 else None
        return found if found is not None and time_ms < found.end_ms else None

    def trend_at(self, time_ms: int) -> Trend:
        """The trend of the turn, whether it has begun or not."""
        return self.trend(max((time_ms - self._origin_ms) // TURN_MS, 0))
