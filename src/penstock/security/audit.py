"""Audit events, and which of them are written when there are too many. Pure.

An event says who did what, from where, and whether it was allowed: a login, a request that was denied, or one that
changes something. It names resources and settings and never carries a value, so there is nothing secret in it.

A client that is denied may try again a thousand times a second. Of one kind of event (who, from where, what, outcome)
at most `burst` are written per second. The rest are counted; the count is written when the second is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from penstock.security.principal import Session

WINDOW_MS: Final = 1_000
MAX_KINDS: Final = 10_000
"""Kinds of events that are counted at the same time. Beyond it, events are counted together."""
MAX_RESOURCES: Final = 20
_MAX_CHARACTERS: Final = 300


class Outcome(Enum):
    ALLOWED = "allowed"
    DENIED = "denied"
    FAILED = "failed"
    """Allowed, but it could not be done; or a login with wrong credentials."""


class AuditEvent(NamedTuple):
    event: str
    """`login` or `request`."""
    outcome: Outcome
    session: Session
    action: str
    """The API, or the mechanism of a login."""
    client_id: str | None = None
    resources: tuple[str, ...] = ()
    """What it is about: `Topic views`, `Write Topic views`."""
    omitted: int = 0
    """Resources that are not listed."""
    errors: tuple[str, ...] = ()

    @property
    def kind(self) -> tuple[object, ...]:
        session = self.session
        return (self.event, self.outcome, session.principal, session.host, self.action)


_Record = Mapping[str, Any]


class _Window:
    """The events of one kind in one second."""

    __slots__ = ("event", "since_ms", "suppressed", "written")

    def __init__(self, event: AuditEvent, since_ms: int) -> None:
        self.event = event
        self.since_ms = since_ms
        self.written = 0
        self.suppressed = 0


class AuditLimiter:
    """Decides which events become lines. `burst` is per kind and second, `burst_of_all` over all kinds."""

    def __init__(self, broker_id: int, burst: int = 20, burst_of_all: int = 2_000) -> None:
        self._broker_id = broker_id
        self._burst = burst
        self._burst_of_all = burst_of_all
        self._windows: dict[tuple[object, ...], _Window] = {}
        self._since_ms = 0
        self._written = 0
        self._lost = 0

    def admit(self, event: AuditEvent, now_ms: int) -> list[_Record]:
        """The records to write now: the event, or none; and counts that are due."""
        records: list[_Record] = []
        if not self._since_ms <= now_ms < self._since_ms + WINDOW_MS:
            records += self.due(now_ms)
            self._since_ms, self._written = now_ms, 0
        key = event.kind
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= MAX_KINDS:
                self._lost += 1
                return records
            window = self._windows[key] = _Window(event, now_ms)
        if window.written >= self._burst or self._written >= self._burst_of_all:
            window.suppressed += 1
            return records
        window.written += 1
        self._written += 1
        records.append(record_of(event, now_ms, self._broker_id))
        return records

    def due(self, now_ms: int) -> list[_Record]:
        """The counts of kinds whose second is over; call it when nothing happens any more."""
        records: list[_Record] = []
        for key, window in list(self._windows.items()):
            if window.since_ms <= now_ms < window.since_ms + WINDOW_MS:
                continue
            del self._windows[key]
            if window.suppressed:
                about = window.event._replace(resources=(), omitted=0, errors=())
                records.append({**record_of(about, now_ms, self._broker_id), "suppressed": window.suppressed})
        if self._lost:
            records.append({**_head(now_ms, self._broker_id), "event": "suppressed", "suppressed": self._lost})
            self._lost = 0
        return records

    @property
    def is_waiting(self) -> bool:
        """Whether something was counted that is not written yet."""
        return self._lost > 0 or any(window.suppressed for window in self._windows.values())


def record_of(event: AuditEvent, now_ms: int, broker_id: int) -> dict[str, Any]:
    session = event.session
    record: dict[str, Any] = {
        **_head(now_ms, broker_id),
        "event": event.event,
        "outcome": event.outcome.value,
        "action": event.action,
        "principal": _cut(str(session.principal)),
        "host": session.host,
        "listener": session.listener,
    }
    if session.groups:
        record["groups"] = [_cut(str(each)) for each in sorted(session.groups)][:MAX_RESOURCES]
    if event.client_id:
        record["client_id"] = _cut(event.client_id)
    if event.resources:
        record["resources"] = [_cut(each) for each in event.resources]
    if event.omitted:
        record["more_resources"] = event.omitted
    if event.errors:
        record["errors"] = list(event.errors)
    return record


def _head(now_ms: int, broker_id: int) -> dict[str, Any]:
    time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"time": time.replace("+00:00", "Z"), "broker": broker_id}


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."


def lines_of(records: list[_Record]) -> Iterator[bytes]:
    """As JSON lines; a name cannot begin a line of its own, because JSON escapes line ends."""
    for record in records:
        yield msgspec.json.encode(record) + b"\n"
