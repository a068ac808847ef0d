"""Scores what was found against what was planted. Pure.

A verdict is right if exactly that actor was planted as exactly that. Precision is the share of found actors that were
planted, recall the share of planted actors that were found. The delay of an incident or trend runs from its start to
the publication of the first record about it; one that began too late to be found in time is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

ACTORS: Final = ("crawler", "spammer", "abuser")
TRENDING: Final = "trending"
INCIDENT: Final = "incident"
IN_TIME_MS: Final = 15_000
_WINDOW_MS: Final = 5_000
_AFTERWARDS_MS: Final = 60_000
_SUBJECTS: Final = ("id", "server", "item")


class PublishedRecord(NamedTuple):
    """A record of an output topic; no value is a tombstone."""

    key: str
    value: Mapping[str, Any] | None
    time_ms: int


@dataclass(frozen=True)
class Planted:
    """An actor, incident or trend that the site planted."""

    kind: str
    subject: str
    start_ms: int
    end_ms: int | None = None
    keyword: str = ""

    def is_about(self, time_ms: int) -> bool:
        """Whether a window that starts at this time may contain a part of it."""
        return self.start_ms - _WINDOW_MS < time_ms and (self.end_ms is None or time_ms < self.end_ms)


@dataclass(frozen=True)
class Score:
    """Planted, found and rightly found actors of a verdict."""

    verdict: str
    planted: int
    found: int
    right: int
    missed: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else float(not self.planted)

    @property
    def recall(self) -> float:
        return self.right / self.planted if self.planted else 1.0


@dataclass(frozen=True)
class Detection:
    """When something that started at `start_ms` was published; `after_ms` is None if it never was."""

    subject: str
    start_ms: int
    after_ms: int | None
    is_judged: bool
    detail: str = ""
    rank: int | None = None
    """The best rank of a trending item."""


def planted_of(records: Iterable[PublishedRecord], since_ms: int | None, until_ms: int) -> list[Planted]:
    """What was planted from `since_ms` (default: the start of the latest site) until `until_ms`."""
    newest: dict[str, Planted] = {}
    for record in records:
        one = None if record.value is None else _planted(record.value)
        if one is None:
            newest.pop(record.key, None)
        else:
            newest[record.key] = one
    every = list(newest.values())
    if since_ms is None:
        since_ms = max((one.start_ms for one in every if one.end_ms is None), default=0)
    return [one for one in every if since_ms <= one.start_ms < until_ms]


def _planted(value: Mapping[str, Any]) -> Planted | None:
    subject = next((value[name] for name in _SUBJECTS if name in value), None)
    if subject is None or not isinstance(value.get("start_ms"), int):
        return None
    return Planted(
        str(value.get("kind")), str(subject), value["start_ms"], value.get("end_ms"), str(value.get("keyword", ""))
    )


def verdict_scores(planted: Sequence[Planted], suspects: Iterable[tuple[str, str]]) -> list[Score]:
    """A score per verdict. Suspects are (verdict, actor)."""
    named = list(suspects)
    scores: list[Score] = []
    for verdict in ACTORS:
        wanted = {one.subject for one in planted if one.kind == verdict}
        found = {actor for each, actor in named if each == verdict}
        scores.append(
            Score(verdict, len(wanted), len(found), len(wanted & found), _few(wanted - found), _few(found - wanted))
        )
    return scores


def incident_detections(
    planted: Sequence[Planted], alerts: Sequence[PublishedRecord], until_ms: int
) -> list[Detection]:
    """The first alert about each server's windows from the start of its incident on."""
    found: list[Detection] = []
    for one in sorted((each for each in planted if each.kind == INCIDENT), key=lambda each: each.start_ms):
        first = min(
            (
                alert
                for alert in alerts
                if alert.value is not None
                and alert.value.get("server") == one.subject
                and alert.value.get("state") != "closed"
                and alert.time_ms >= one.start_ms
                and one.is_about(int(alert.value.get("start", 0)))
            ),
            key=lambda alert: alert.time_ms,
            default=None,
        )
        detail = "" if first is None or first.value is None else str(first.value.get("message", ""))
        found.append(
            Detection(
                one.subject, one.start_ms, None if first is None else first.time_ms - one.start_ms,
                one.start_ms + IN_TIME_MS <= until_ms, detail,
            )
        )  # fmt: skip
    return found


def false_alarms(planted: Sequence[Planted], alerts: Iterable[PublishedRecord], since_ms: int) -> list[str]:
    """Incidents that were opened where none was planted."""
    real = [one for one in planted if one.kind == INCIDENT]
    opened: dict[tuple[str, str, int], None] = {}
    for alert in alerts:
        value = alert.value
        if value is None or value.get("state") != "opened" or int(value.get("start", 0)) < since_ms:
            continue
        start_ms, server = int(value["start"]), str(value.get("server"))
        if not any(one.subject == server and one.is_about(start_ms) for one in real):
            opened[server, str(value.get("kind")), start_ms] = None
    return [f"{server}: {kind}" for server, kind, _ in opened]


def trend_detections(planted: Sequence[Planted], ranking: Sequence[PublishedRecord], until_ms: int) -> list[Detection]:
    """The first time each trending item was ranked as rising, and its best rank from then on."""
    found: list[Detection] = []
    for one in sorted((each for each in planted if each.kind == TRENDING), key=lambda each: each.start_ms):
        last_ms = _AFTERWARDS_MS + (until_ms if one.end_ms is None else one.end_ms)
        rising = [
            record
            for record in ranking
            if record.value is not None
            and str(record.value.get("item")) == one.subject
            and record.value.get("rising")
            and one.start_ms <= record.time_ms <= last_ms
        ]
        first_ms = min((record.time_ms for record in rising), default=None)
        rank = min((int(record.value["rank"]) for record in rising if record.value), default=None)
        after_ms = None if first_ms is None else first_ms - one.start_ms
        judged = one.start_ms + _AFTERWARDS_MS <= until_ms
        found.append(Detection(one.subject, one.start_ms, after_ms, judged, one.keyword, rank))
    return found


def published_record(key: bytes | None, value: bytes | None, time_ms: int) -> PublishedRecord:
    """Decodes a record; a value that is not a JSON object counts as none."""
    name = (key or b"").decode("utf-8", "replace")
    try:
        document = None if value is None else json.loads(value)
    except ValueError:
        document = None
    return PublishedRecord(name, document if isinstance(document, dict) else None, time_ms)


def _few(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (len(name), name)))[:20]
