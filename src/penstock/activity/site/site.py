"""The site: what happens on it, tick by tick.

Noun: `Site`, a population on a time line.

Rule: a tick is a tenth of a second of event time, numbered from 1970 on. Its events are a function of the site and the
tick's number: any tick can be made again, alone and in any order, and is the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from penstock.activity.events import KINDS, TIME, Kind
from penstock.activity.site import words
from penstock.activity.site.columns import IDS_IN_A_TICK, TICK_MS, Columns, Piece, assembled
from penstock.activity.site.incidents import TURN_MS, Happenings
from penstock.activity.site.machines import Machines
from penstock.activity.site.planted import PlantedActivity
from penstock.activity.site.population import Population, Sizes
from penstock.activity.site.reading import VIEWS_SHARE, Reading
from penstock.activity.site.rhythm import Rhythm
from penstock.activity.site.sessions import Sessions
from penstock.activity.site.truth import Truth, actors, happenings

INCIDENT_AFTER_MS: Final = 60_000


class Site:
    """A population on a time line that begins at `origin_ms`, at a mean rate of events a second."""

    def __init__(
        self,
        *,
        seed: int = 1,
        rate: float = 2_000,
        origin_ms: int,
        sizes: Sizes | None = None,
        rhythm: Rhythm | str = Rhythm.DAILY,
        incident_after_ms: int = INCIDENT_AFTER_MS,
    ) -> None:
        if not 0 <= incident_after_ms <= TURN_MS // 2:
            raise ValueError(f"an incident {incident_after_ms} ms after the origin: it is from 0 to {TURN_MS // 2} ms")
        rhythm = Rhythm(rhythm)
        self.rate = rate
        self.population = Population(seed, Sizes.for_rate(rate) if sizes is None else sizes)
        self.first_tick = -(-origin_ms // TICK_MS)
        self.origin_ms = self.first_tick * TICK_MS
        """The origin, on the next tick."""
        views_a_second = rate * VIEWS_SHARE
        self.happenings = Happenings(self.population, self.origin_ms, incident_after_ms, views_a_second)
        sessions = Sessions(self.population, views_a_second, rhythm)
        self._sources = (
            Reading(self.population, sessions, rate, rhythm, self.first_tick),
            Machines(self.population, self.happenings, rate, rhythm),
            PlantedActivity(self.population, sessions, self.happenings, self.origin_ms),
        )
        self._words = _words(self.population)

    def tick(self, number: int) -> dict[str, Columns]:
        """The events of a tick, by topic; a topic without events is left out. ValueError before the first tick."""
        if number < self.first_tick:
            raise ValueError(f"tick {number} is before the site's first, {self.first_tick}")
        pieces: dict[str, list[Piece]] = defaultdict(list)
        for source in self._sources:
            for kind, piece in source.of(number):
                if len(piece[TIME]):
                    pieces[kind.topic].append(piece)
        made = {
            kind.topic: assembled(kind, number, pieces[kind.topic], self._words.get(kind.topic, {}))
            for kind in KINDS
            if kind.topic in pieces
        }
        if any(len(columns) > IDS_IN_A_TICK for columns in made.values()):
            raise ValueError(f"a tick has more than {IDS_IN_A_TICK} events of a kind: lower the rate")
        return made

    def truth(self, until_ms: int) -> list[Truth]:
        """What is planted, as far as it begins before a time."""
        return [
            *actors(self.population, self.origin_ms),
            *happenings(self.population, self.happenings, self.origin_ms, until_ms),
        ]


def rows_between(site: Site, since_ms: int, until_ms: int) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """All events of the ticks from a time to another, a row at a time."""
    for number in range(max(-(-since_ms // TICK_MS), site.first_tick), until_ms // TICK_MS):
        for columns in site.tick(number).values():
            for row in columns.rows():
                yield columns.kind, row


def _words(population: Population) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The texts of columns that hold one of few, by topic."""
    return {
        "views": {"referrer": words.REFERRERS},
        "impressions": {"action": words.SHOWN},
        "searches": {"keyword": words.KEYWORDS, "user_group": words.GROUPS},
        "follows": {"action": words.FOLLOWING},
        "api_calls": {"client": population.client_names, "endpoint": words.ENDPOINTS},
        "servers": {"server": population.server_names},
        "requests": {
            "server": population.server_names, "path": words.PATHS, "level": words.LEVELS, "message": words.MESSAGES
        },
    }  # fmt: skip
