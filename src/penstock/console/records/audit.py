"""The audit log in a topic, read from its end back: who did what, and whether it was allowed.

Each broker writes to its own partitions, so they are read side by side. A line is shown once every other partition has
been read back to its time; so pages follow each other without a gap, whatever the brokers' shares are. A page is a
bounded amount of work, and says how much it has looked at.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.console.records.reading import Shown, ends_of, offsets_at, read_page

OUTCOMES: Final = ("allowed", "denied", "failed")
_CHUNK: Final = 500
_LEAST_CHUNK: Final = 20
_MOST_LOOKED_AT: Final = 20_000
_PAGE_S: Final = 3.0


class AuditLine(msgspec.Struct, frozen=True):
    """An event; what a line does not have is empty."""

    time: str = ""
    broker: int = -1
    event: str = ""
    outcome: str = ""
    action: str = ""
    principal: str = ""
    host: str = ""
    listener: str = ""
    client_id: str = ""
    resources: list[str] = []
    more_resources: int = 0
    errors: list[str] = []
    suppressed: int = 0
    """Events of the same kind in the same second that were not written."""


class AuditFilter(NamedTuple):
    """What is looked for: parts of names, in any case. Times are of the log."""

    principal: str = ""
    action: str = ""
    resource: str = ""
    outcome: str = ""
    from_ms: int | None = None
    to_ms: int | None = None

    def matches(self, line: AuditLine) -> bool:
        return (
            self.principal.lower() in line.principal.lower()
            and self.action.lower() in line.action.lower()
            and (not self.outcome or self.outcome == line.outcome)
            and (not self.resource or any(self.resource.lower() in each.lower() for each in line.resources))
        )


class AuditRecord(NamedTuple):
    partition: int
    offset: int
    time_ms: int
    line: AuditLine


class AuditPage(NamedTuple):
    """Lines, the newest first. `older` has the offsets before which the next page reads; empty at the start."""

    records: list[AuditRecord]
    looked: int
    total: int
    unreadable: int
    older: Mapping[int, int]


@dataclass(slots=True)
class _Part:
    """A partition that is read back: what of it was looked at."""

    start: int
    position: int
    oldest_ms: float = float("inf")
    seen: list[tuple[int, int]] = field(default_factory=list)
    """Offset and time of each record."""

    @property
    def is_done(self) -> bool:
        return self.position <= self.start


async def read_audit(
    admin: AsyncAdmin,
    topic: str,
    partitions: Iterable[int],
    wanted: AuditFilter,
    *,
    before: Mapping[int, int] | None = None,
    limit: int = 100,
) -> AuditPage:
    """The newest lines that match, or those before these offsets."""
    parts, total = await _parts(admin, topic, partitions, wanted, before or {})
    matched: list[AuditRecord] = []
    looked = unreadable = 0
    chunk = min(_CHUNK, max(_LEAST_CHUNK, _MOST_LOOKED_AT // max(1, len(parts))))
    deadline = time.monotonic() + _PAGE_S
    # No line can be shown before each partition was read once: no bound ends this pass, or a page would lead to itself.
    unread = [index for index, part in parts.items() if not part.is_done]
    while open_ := [index for index, part in parts.items() if not part.is_done]:
        edge_ms = max(parts[index].oldest_ms for index in open_)
        if sum(record.time_ms >= edge_ms for record in matched) >= limit:
            break
        if not unread and (looked >= _MOST_LOOKED_AT or time.monotonic() > deadline):
            break
        behind = unread.pop() if unread else max(open_, key=lambda index: parts[index].oldest_ms)
        for record in await _chunk(admin, topic, behind, parts[behind], chunk):
            looked += 1
            line = line_of(record.value)
            if line is None:
                unreadable += 1
            elif wanted.matches(line):
                matched.append(AuditRecord(behind, record.offset, record.timestamp, line))
    last_ms = _last_shown_ms(matched, parts, limit)
    shown = [record for record in matched if record.time_ms >= last_ms]
    shown.sort(key=lambda record: (-record.time_ms, record.partition, -record.offset))
    return AuditPage(shown, looked, total, unreadable, _older(parts, last_ms))


async def _parts(
    admin: AsyncAdmin, topic: str, partitions: Iterable[int], wanted: AuditFilter, before: Mapping[int, int]
) -> tuple[dict[int, _Part], int]:
    keys = [TopicPartition(topic, index) for index in partitions]
    starts, ends = await ends_of(admin, keys, "read_committed")
    whole = dict(ends)
    if wanted.from_ms is not None and keys:
        starts = await offsets_at(admin, ends, wanted.from_ms)
    if wanted.to_ms is not None and keys:
        ends = await offsets_at(admin, whole, wanted.to_ms + 1)
    parts = {
        key.partition: _Part(start, max(start, min(ends[key], before.get(key.partition, ends[key]))))
        for key, start in starts.items()
    }
    return parts, sum(part.position - part.start for part in parts.values())


async def _chunk(admin: AsyncAdmin, topic: str, index: int, part: _Part, size: int) -> list[Shown]:
    """The records of the `size` offsets before the position, which moves back."""
    high, at = part.position, max(part.start, part.position - size)
    part.position = at
    found: list[Shown] = []
    while at < high:
        page = await read_page(admin, topic, [index], limit=size, start={index: at})
        found += [record for record in page.records if at <= record.offset < high and not record.problem]
        after = page.next.get(index, high)
        if after <= at:
            break
        at = after
    part.seen += [(record.offset, record.timestamp) for record in found]
    part.oldest_ms = min((record.timestamp for record in found), default=part.oldest_ms)
    return found


def _last_shown_ms(matched: list[AuditRecord], parts: Mapping[int, _Part], limit: int) -> float:
    """The oldest time on the page: lines of one time stay together, and no partition is unread from there on."""
    edge_ms = max((part.oldest_ms for part in parts.values() if not part.is_done), default=float("-inf"))
    times = sorted((record.time_ms for record in matched if record.time_ms >= edge_ms), reverse=True)
    return times[limit - 1] if len(times) > limit else edge_ms


def _older(parts: Mapping[int, _Part], last_ms: float) -> dict[int, int]:
    """Where the next page goes on: before everything that is as new as the last line of this one."""
    older = {}
    for index, part in parts.items():
        newer = [offset for offset, time_ms in part.seen if time_ms >= last_ms]
        if len(newer) == len(part.seen):
            older[index] = part.position
        else:
            older[index] = min(newer, default=max(offset for offset, _ in part.seen) + 1)
    return older if any(older[index] > part.start for index, part in parts.items()) else {}


def line_of(value: bytes | None) -> AuditLine | None:
    """The event of a record; None if it is not a line of an audit log."""
    try:
        found = msgspec.json.decode(value or b"", type=AuditLine)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.event else None
