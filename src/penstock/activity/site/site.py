"""The site: a population on a time line, tick by tick, and the truth about what is planted.

A tick is a tenth of a second of event time, numbered from 1970. Its events are a function of the site and its number,
so any tick can be generated again, alone and in any order. Truth records are keyed for a compacted topic; an actor
that is planted for as long as the site runs has no end (null).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.activity.events import KINDS, TIME, Kind
from penstock.activity.site import vocabulary
from penstock.activity.site.behaviour import (
    IDS_IN_A_TICK,
    TICK_MS,
    TURN_MS,
    VIEWS_SHARE,
    Columns,
    IncidentSchedule,
    MachineActivity,
    Piece,
    PlantedActivity,
    Reading,
    assembled,
)
from penstock.activity.site.population import Population, Rhythm, Sessions, Sizes
from penstock.activity.site.vocabulary import KEYWORDS

INCIDENT_AFTER_MS: Final = 60_000

# ---------------------------------------------------------------------------------------------- the site


class Site:
    """A population on a time line that starts at `origin_ms`, at a mean rate in events/s."""

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
            raise ValueError(
                f"the incident starts {incident_after_ms} ms after the origin; it must be between 0 and {TURN_MS // 2}"
            )
        rhythm = Rhythm(rhythm)
        self.rate = rate
        self.population = Population(seed, Sizes.for_rate(rate) if sizes is None else sizes)
        self.first_tick = -(-origin_ms // TICK_MS)
        self.origin_ms = self.first_tick * TICK_MS
        """The origin, rounded up to a tick."""
        views_per_s = rate * VIEWS_SHARE
        self.schedule = IncidentSchedule(self.population, self.origin_ms, incident_after_ms, views_per_s)
        sessions = Sessions(self.population, views_per_s, rhythm)
        self._sources = (
            Reading(self.population, sessions, rate, rhythm, self.first_tick),
            MachineActivity(self.population, self.schedule, rate, rhythm),
            PlantedActivity(self.population, sessions, self.schedule, self.origin_ms),
        )
        self._words = _words(self.population)

    def tick(self, number: int) -> dict[str, Columns]:
        """The events of a tick by topic, without empty topics. Raises ValueError before the first tick."""
        if number < self.first_tick:
            raise ValueError(f"tick {number} is before the site's first tick {self.first_tick}")
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
            raise ValueError(f"more than {IDS_IN_A_TICK} events of a kind in a tick: lower the rate")
        return made

    def truth(self, until_ms: int) -> list[Truth]:
        """What is planted and starts before a time."""
        return [
            *planted_actors(self.population, self.origin_ms),
            *planted_incidents(self.population, self.schedule, self.origin_ms, until_ms),
        ]


def rows_between(site: Site, since_ms: int, until_ms: int) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """All events of the ticks between two times, row by row."""
    for number in range(max(-(-since_ms // TICK_MS), site.first_tick), until_ms // TICK_MS):
        for columns in site.tick(number).values():
            for row in columns.rows():
                yield columns.kind, row


def _words(population: Population) -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """The vocabularies of text columns, by topic."""
    return {
        "views": {"referrer": vocabulary.REFERRERS},
        "impressions": {"action": vocabulary.SHOWN},
        "searches": {"keyword": vocabulary.KEYWORDS, "user_group": vocabulary.GROUPS},
        "follows": {"action": vocabulary.FOLLOWING},
        "api_calls": {"client": population.client_names, "endpoint": vocabulary.ENDPOINTS},
        "servers": {"server": population.server_names},
        "requests": {
            "server": population.server_names, "path": vocabulary.PATHS, "level": vocabulary.LEVELS,
            "message": vocabulary.MESSAGES,
        },
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is planted


@dataclass(frozen=True)
class Truth:
    """A planted actor, incident or trend."""

    kind: str
    """crawler, spammer, abuser, trending or incident."""
    subject: dict[str, Any]
    """Its subject: id, item (and keyword) or server."""
    start_ms: int
    end_ms: int | None

    @property
    def key(self) -> str:
        name = next(iter(self.subject.values()))
        return f"{self.kind}:{name}" if self.end_ms is None else f"{self.kind}:{name}:{self.start_ms}"

    @property
    def value(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.subject, "start_ms": self.start_ms, "end_ms": self.end_ms}


def planted_actors(population: Population, origin_ms: int) -> Iterator[Truth]:
    """The planted actors, which are active as long as the site."""
    planted = population.planted
    for kind, ids in (("crawler", planted.crawlers.tolist()), ("spammer", planted.spammers.tolist())):
        for member in ids:
            yield Truth(kind, {"id": member}, origin_ms, None)
    for client in planted.abusers.tolist():
        yield Truth("abuser", {"id": population.client_names[client]}, origin_ms, None)


def planted_incidents(
    population: Population, schedule: IncidentSchedule, origin_ms: int, until_ms: int
) -> Iterator[Truth]:
    """Incidents and trends that start before a time."""
    for turn in range(max(0, (until_ms - origin_ms) // TURN_MS + 1)):
        trend, incident = schedule.trend(turn), schedule.incident(turn)
        if trend.start_ms < until_ms:
            subject = {"item": trend.item + 1, "keyword": KEYWORDS[trend.keyword]}
            yield Truth("trending", subject, trend.start_ms, trend.end_ms)
        if incident.start_ms < until_ms:
            subject = {"server": population.server_names[incident.server]}
            yield Truth("incident", subject, incident.start_ms, incident.end_ms)
