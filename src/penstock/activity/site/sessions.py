"""Who is on the site, and in which session.

Noun: `Visitors`, the members that are there at a moment.

Rule: time is cut into slots, for each cohort of members in another length and from another moment on. In a slot chance
says which members of the cohort are there, the active ones more often, and a member's stay in a slot is a session. So
who is there follows from the seed and the time alone, and sessions come in many lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from penstock.activity.site.chance import Ints, Purpose, draws, shares
from penstock.activity.site.population import Population
from penstock.activity.site.rhythm import Rhythm

SECONDS_A_VIEW: Final = 12.0
"""How often a member that is there looks at a page."""
_SLOTS_S: Final = (60, 60, 90, 90, 120, 120, 120, 180, 180, 180, 240, 240, 300, 300, 420, 600)
_COHORTS: Final = len(_SLOTS_S)
_PLANTED_SLOT_MS: Final = 600_000
_ACTIVE_TAIL: Final = 1.6
_MOST_THERE: Final = 0.5


@dataclass(frozen=True)
class Visitors:
    """Members and their sessions, side by side."""

    members: Ints
    sessions: Ints

    def drawn(self, rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
        """Some of them, with what they are in."""
        chosen = rng.integers(0, len(self.members), count)
        return self.members[chosen], self.sessions[chosen]


class Sessions:
    """Who is there when, for a mean number of views a second."""

    def __init__(self, population: Population, views_a_second: float, rhythm: Rhythm) -> None:
        self._population = population
        self._rhythm = rhythm
        there = min(views_a_second * SECONDS_A_VIEW, population.ordinary_members * _MOST_THERE)
        self._in_a_cohort = max(there / _COHORTS, 2.0)
        phases = shares(population.seed, 12, np.arange(_COHORTS))
        self._lengths_ms = [seconds * 1000 for seconds in _SLOTS_S]
        self._phases_ms = [int(phase * length) for phase, length in zip(phases, self._lengths_ms, strict=True)]
        self._there = lru_cache(maxsize=4)(self._gathered)
        self._cohort = lru_cache(maxsize=4 * _COHORTS)(self._drawn)

    def at(self, time_ms: int) -> Visitors:
        """Who is there."""
        slots = [
            (time_ms + phase) // length for phase, length in zip(self._phases_ms, self._lengths_ms, strict=True)
        ]  # fmt: skip
        return self._there(tuple(slots))

    def of_planted(self, members: Ints, time_ms: int) -> Ints:
        """The sessions of members that are always there."""
        return self._session(members, time_ms // _PLANTED_SLOT_MS)

    def _gathered(self, slots: tuple[int, ...]) -> Visitors:
        cohorts = [self._cohort(cohort, slot) for cohort, slot in enumerate(slots)]
        return Visitors(
            np.concatenate([each.members for each in cohorts]), np.concatenate([each.sessions for each in cohorts])
        )

    def _drawn(self, cohort: int, slot: int) -> Visitors:
        population = self._population
        rng = draws(population.seed, Purpose.SESSIONS, slot, cohort)
        begin_ms = slot * self._lengths_ms[cohort] - self._phases_ms[cohort]
        count = max(1, round(self._in_a_cohort * self._rhythm.factor(begin_ms)))
        ranks_in_cohort = population.ordinary_members // _COHORTS
        within = np.unique((ranks_in_cohort * rng.random(count) ** _ACTIVE_TAIL).astype(np.int64))
        members = population.member_id(within * _COHORTS + cohort)
        return Visitors(members, self._session(members, slot))

    def _session(self, members: Ints, slot: int) -> Ints:
        sessions: Ints = slot * (self._population.sizes.members + 1) + members
        return sessions
