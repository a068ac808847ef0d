"""Ticks as records of topics.

Noun: `Batches`, which turns some ticks in a row into the records of each topic.

Rule: how ticks are put together has no influence on the bytes of any record.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.activity.events import KINDS
from penstock.activity.site.columns import Columns, joined
from penstock.activity.site.encoding import Encoded, encoder, records_of
from penstock.activity.site.malformed import Spoiler
from penstock.activity.site.site import Site


class Batches:
    """The records of a site's ticks, in a format, with a share of malformed values."""

    def __init__(self, site: Site, value_format: str = "json", malformed: float = 0.0) -> None:
        self._site = site
        self._encode = encoder(value_format)
        self._spoiler = Spoiler(malformed, value_format, site.population.seed)

    def of(self, ticks: Iterable[int], most: int | None = None) -> list[Encoded]:
        """The records of the ticks, by topic; with `most` the last tick is cut so that there are no more of them."""
        parts: dict[str, list[tuple[int, Columns]]] = {}
        room = most
        for tick in ticks:
            for topic, columns in self._site.tick(tick).items():
                taken = columns if room is None or len(columns) <= room else columns.first(room)
                if len(taken):
                    parts.setdefault(topic, []).append((tick, taken))
                if room is not None:
                    room -= len(taken)
        return [self._records(kind.topic, parts[kind.topic]) for kind in KINDS if kind.topic in parts]

    def _records(self, topic: str, parts: list[tuple[int, Columns]]) -> Encoded:
        columns = joined([part for _, part in parts])
        values = self._encode(columns)
        values, malformed = self._spoiler.spoil(topic, values, [(tick, len(part)) for tick, part in parts])
        return records_of(columns, values, malformed)
