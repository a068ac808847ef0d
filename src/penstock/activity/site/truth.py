"""What is planted, as it is told to those who judge what was found.

Noun: `Truth`, a planted actor or happening, from when to when.

Rule: the topic of truth is compacted by `key`; a value is one JSON object. Whoever is planted for as long as the site
runs has no end (null).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.activity.site.incidents import TURN_MS, Happenings
from penstock.activity.site.population import Population
from penstock.activity.site.words import KEYWORDS


@dataclass(frozen=True)
class Truth:
    """One of what is planted."""

    kind: str
    """crawler, spammer, abuser, trending or incident."""
    subject: dict[str, Any]
    """Whom it is about: id, item (and keyword) or server."""
    start_ms: int
    end_ms: int | None

    @property
    def key(self) -> str:
        name = next(iter(self.subject.values()))
        return f"{self.kind}:{name}" if self.end_ms is None else f"{self.kind}:{name}:{self.start_ms}"

    @property
    def value(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.subject, "start_ms": self.start_ms, "end_ms": self.end_ms}


def actors(population: Population, origin_ms: int) -> Iterator[Truth]:
    """Those that are there as long as the site."""
    planted = population.planted
    for kind, ids in (("crawler", planted.crawlers.tolist()), ("spammer", planted.spammers.tolist())):
        for member in ids:
            yield Truth(kind, {"id": member}, origin_ms, None)
    for client in planted.abusers.tolist():
        yield Truth("abuser", {"id": population.client_names[client]}, origin_ms, None)


def happenings(population: Population, all_of_them: Happenings, origin_ms: int, until_ms: int) -> Iterator[Truth]:
    """Those of the time line that begin before a time."""
    for turn in range(max(0, (until_ms - origin_ms) // TURN_MS + 1)):
        trend, incident = all_of_them.trend(turn), all_of_them.incident(turn)
        if trend.start_ms < until_ms:
            subject = {"item": trend.item + 1, "keyword": KEYWORDS[trend.keyword]}
            yield Truth("trending", subject, trend.start_ms, trend.end_ms)
        if incident.start_ms < until_ms:
            subject = {"server": population.server_names[incident.server]}
            yield Truth("incident", subject, incident.start_ms, incident.end_ms)
