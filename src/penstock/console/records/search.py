"""Search through the records of a topic, with progress.

A search reads every record between two times or offsets; the brokers' time index says where that is. It reports what it
has looked at all the time, so "nothing found" always comes with how much was read. Batches are decompressed, and only
those that contain the bytes of the text are decoded: most are not, which makes the search fast. Where the bytes could
be spelled in another way (escapes in JSON), the batch is decoded. A search ends when its reader leaves.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import OffsetOutOfRange, PenstockError
from penstock.console.records.reading import (
    DECOMPRESSED_LIMIT,
    Batches,
    Isolation,
    Shown,
    ends_of,
    fetch,
    offsets_at,
    shown_records,
)
from penstock.records import BatchHeader, RecordError, payload_of

Where = Literal["anywhere", "key", "value", "header", "json"]
WHERE: Final[tuple[Where, ...]] = ("anywhere", "key", "value", "header", "json")

_FETCH_BYTES: Final = 32 * 1024 * 1024
_PARTITION_BYTES: Final = 8 * 1024 * 1024
_REPORT_S: Final = 0.25
_RETRY_S: Final = 0.05
_STEP: Final = re.compile(r"\.?([^.\[\]\s=]+)|\[(\d+)\]|\[\*\]")
_MAX_DEPTH: Final = 50


class InvalidSearch(ValueError):
    """A search that cannot be done; the text says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. With `where` "json", `path` is a path in the value, and `text` what is there."""

    text: str
    where: Where = "anywhere"
    path: str = ""
    is_exact: bool = False
    """The whole key, value, header or field, not a part of it."""
    ignores_case: bool = False
    hits: int = 100
    """The search pauses after as many."""

    def __post_init__(self) -> None:
        if self.where == "json":
            if not self.path:
                raise InvalidSearch("A search by JSON path needs a path, such as user.id or items[0].price.")
            parse_path(self.path)
        elif not self.text:
            raise InvalidSearch("Say what to search for.")


class Progress(NamedTuple):
    """Where a search is. `looked` and `total` are offsets; with compaction fewer are records."""

    looked: int
    total: int
    read_bytes: int
    matched: int
    took_s: float
    reached_ms: int
    """The newest timestamp that was seen; -1 for none."""

    @property
    def share(self) -> float:
        return self.looked / self.total if self.total else 1.0

    @property
    def bytes_per_s(self) -> float:
        return self.read_bytes / self.took_s if self.took_s > 0 else 0.0


class Step(NamedTuple):
    """A report: new hits, and how far the search is. `end` says why it ended: complete, paused or failed."""

    hits: list[Shown]
    progress: Progress
    positions: Mapping[int, int]
    end: Literal["", "complete", "paused", "failed"] = ""
    problem: str = ""


def _not_a_path(path: str) -> InvalidSearch:
    return InvalidSearch(f"{path!r} is not a JSON path: use names and indexes, such as user.id or items[0].price.")


def parse_path(path: str) -> tuple[str | int | None, ...]:
    """a.b[0].c -> ("a", "b", 0, "c"); None is every element. A leading `$` is allowed."""
    rest, steps, at = path.strip().removeprefix("$"), [], 0
    while at < len(rest):
        match = _STEP.match(rest, at)
        if match is None:
            raise _not_a_path(path)
        steps.append(match[1] if match[1] is not None else int(match[2]) if match[2] is not None else None)
        at = match.end()
    if not steps or len(steps) > _MAX_DEPTH:
        raise _not_a_path(path)
    return tuple(steps)


def at_path(value: Any, steps: tuple[str | int | None, ...]) -> list[Any]:
    """What is at a path in a JSON value; several with `[*]`."""
    found = [value]
    for step in steps:
        after: list[Any] = []
        for each in found:
            if step is None:
                after += each if isinstance(each, list) else each.values() if isinstance(each, dict) else ()
            elif isinstance(step, int):
                if isinstance(each, list) and step < len(each):
                    after.append(each[step])
            elif isinstance(each, dict) and step in each:
                after.append(each[step])
        found = after
    return found


class Matcher:
    """Decides about batches by their bytes, and about records."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._path = parse_path(query.path) if query.where == "json" else ()
        self._text = query.text.casefold() if query.ignores_case else query.text
        self._needle = query.text.encode("utf-8", "surrogatepass")
        # The case of letters beyond ASCII cannot be folded in bytes.
        self._is_ascii = query.text.isascii()
        # A number may be written in several ways: 1, 1.0, 1e0.
        self._prefilters = bool(self._needle) and not (query.where == "json" and not query.text.isalpha())
        self._prefilters = self._prefilters and (self._is_ascii or not query.ignores_case)
        self._lowered = self._needle.lower()

    def may_match(self, data: bytes | memoryview, start: int, end: int) -> bool:
        """Whether the decompressed records can contain a match."""
        if not self._prefilters:
            return True
        whole = data if isinstance(data, bytes | bytearray) else bytes(data[start:end])
        if not isinstance(data, bytes | bytearray):
            start, end = 0, len(whole)
        if self._query.ignores_case:
            if self._lowered in whole[start:end].lower():
                return True
        elif whole.find(self._needle, start, end) >= 0:
            return True
        return self._query.where == "json" and whole.find(b"\\", start, end) >= 0

    def matches(self, record: Shown) -> bool:
        if record.problem:
            return False
        where = self._query.where
        if where == "json":
            return self._matches_json(record.value)
        parts: list[bytes | None] = []
        if where in ("anywhere", "key"):
            parts.append(record.key)
        if where in ("anywhere", "value"):
            parts.append(record.value)
        if where in ("anywhere", "header"):
            for name, value in record.headers:
                parts += [name.encode(), value]
        return any(part is not None and self._in_bytes(part) for part in parts)

    def _in_bytes(self, data: bytes) -> bool:
        if self._query.ignores_case:
            return self._in_text(data.decode("utf-8", "replace"))
        return data == self._needle if self._query.is_exact else self._needle in data

    def _in_text(self, text: str) -> bool:
        if self._query.ignores_case:
            text = text.casefold()
        return text == self._text if self._query.is_exact else self._text in text

    def _matches_json(self, data: bytes | None) -> bool:
        if not data:
            return False
        if data[:1] == b"\0" and len(data) > 5:  # the id of a schema
            data = data[5:]
        try:
            found = at_path(msgspec.json.decode(data), self._path)
        except (msgspec.DecodeError, RecursionError):
            return False
        return any(not self._query.text or self._in_value(each) for each in found)

    def _in_value(self, value: Any) -> bool:
        if isinstance(value, str):
            return self._in_text(value)
        if isinstance(value, bool) or value is None:
            return self._in_text({True: "true", False: "false", None: "null"}[value])
        if isinstance(value, int | float):
            try:
                return float(self._query.text) == value
            except ValueError:
                return False
        return not self._query.is_exact and self._in_text(msgspec.json.encode(value).decode())


class Hits(NamedTuple):
    """The matches in batches, the newest timestamp that was seen, and where to go on."""

    records: list[Shown]
    newest_ms: int
    next_offset: int


def hits_in(matcher: Matcher, partition: int, batches: Batches, position: int, room: int) -> Hits:
    """The matches in batches from a position on, at most `room`. CPU only: it runs in a thread."""
    found: list[Shown] = []
    newest = -1
    for header in batches.headers:
        newest = max(newest, header.max_timestamp)
        found += _hits_in_batch(matcher, partition, batches, header, position)
        if len(found) >= room:
            del found[room:]
            return Hits(found, newest, found[-1].offset + 1 if found else position)
    return Hits(found, newest, batches.next_offset)


def _hits_in_batch(
    matcher: Matcher, partition: int, batches: Batches, header: BatchHeader, position: int
) -> Iterable[Shown]:
    try:
        plain, start, end = payload_of(batches.buffer, header, DECOMPRESSED_LIMIT)
    except RecordError as error:
        return [Shown(partition, header.base_offset, header.max_timestamp, None, None, (), str(error))]
    if not matcher.may_match(plain, start, end):  # type: ignore[arg-type]
        return ()
    records = shown_records(partition, batches._replace(headers=[header]), position, header.record_count)
    return [record for record in records if record.problem or matcher.matches(record)]


@dataclass(slots=True)
class _Course:
    """The positions of a search, and its sums."""

    positions: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    total: int
    started: float = field(default_factory=time.monotonic)
    read_bytes: int = 0
    matched: int = 0
    reached_ms: int = -1

    @property
    def open(self) -> dict[TopicPartition, int]:
        return {each: at for each, at in self.positions.items() if at < self.ends[each]}

    def progress(self) -> Progress:
        left = sum(self.ends[each] - at for each, at in self.open.items())
        took = time.monotonic() - self.started
        return Progress(self.total - left, self.total, self.read_bytes, self.matched, took, self.reached_ms)


async def search(
    admin: AsyncAdmin,
    topic: str,
    partitions: Iterable[int],
    query: Query,
    *,
    isolation: Isolation = "read_committed",
    from_ms: int | None = None,
    to_ms: int | None = None,
    start: Mapping[int, int] | None = None,
) -> AsyncIterator[Step]:
    """The steps of a search from a time, or from offsets, to another time or to the present end."""
    matcher = Matcher(query)
    try:
        course = await _course(admin, topic, partitions, isolation, from_ms, to_ms, start)
    except PenstockError as error:
        yield Step([], Progress(0, 0, 0, 0, 0.0, -1), {}, "failed", error.message)
        return
    yield Step([], course.progress(), {})
    waiting: list[Shown] = []
    reported = time.monotonic()
    while course.open:
        try:
            waiting += await _round(admin, course, matcher, isolation, query.hits)
        except PenstockError as error:
            yield Step(waiting, course.progress(), _numbers(course), "failed", error.message)
            return
        if course.matched >= query.hits:
            end: Literal["", "complete", "paused"] = "paused" if course.open else "complete"
            yield Step(waiting, course.progress(), _numbers(course), end)
            return
        if waiting or time.monotonic() - reported > _REPORT_S:
            yield Step(waiting, course.progress(), _numbers(course))
            waiting, reported = [], time.monotonic()
    yield Step(waiting, course.progress(), _numbers(course), "complete")


def _numbers(course: _Course) -> dict[int, int]:
    return {each.partition: at for each, at in course.positions.items()}


async def _course(
    admin: AsyncAdmin,
    topic: str,
    partitions: Iterable[int],
    isolation: Isolation,
    from_ms: int | None,
    to_ms: int | None,
    start: Mapping[int, int] | None,
) -> _Course:
    starts, ends = await ends_of(admin, [TopicPartition(topic, index) for index in partitions], isolation)
    positions = dict(starts)
    if start is not None:
        positions = {each: max(at, min(start.get(each.partition, at), ends[each])) for each, at in starts.items()}
    elif from_ms is not None and ends:
        positions = await offsets_at(admin, ends, from_ms)
    if to_ms is not None and ends:
        ends = await offsets_at(admin, ends, to_ms + 1)
    total = sum(max(0, ends[each] - at) for each, at in positions.items())
    return _Course(positions, ends, total)


async def _round(admin: AsyncAdmin, course: _Course, matcher: Matcher, isolation: Isolation, most: int) -> list[Shown]:
    """One fetch of all open partitions, and the hits in it until there are `most` in all."""
    open_ = course.open
    answers = await fetch(admin, open_, isolation=isolation, partition_bytes=_PARTITION_BYTES, max_bytes=_FETCH_BYTES)
    hits: list[Shown] = []
    empty = 0
    for each, answer in answers.items():
        at, end, room = open_[each], course.ends[each], most - course.matched
        if room <= 0:
            break
        if isinstance(answer, OffsetOutOfRange):
            course.positions[each] = end  # deleted meanwhile
            continue
        if isinstance(answer, PenstockError):
            raise answer
        found = await asyncio.to_thread(hits_in, matcher, each.partition, answer, at, room)
        records = [record for record in found.records if record.offset < end]
        course.read_bytes += len(answer.buffer)
        course.matched += len(records)
        course.reached_ms = max(course.reached_ms, found.newest_ms)
        hits += records
        if answer.problem:
            hits.append(Shown(each.partition, at, -1, None, None, (), answer.problem))
            course.positions[each] = end
        elif found.next_offset > at:
            course.positions[each] = found.next_offset
        elif at >= answer.end:
            course.positions[each] = end
        else:
            empty += 1  # the response had no room for it; it is the first of the next one
    if empty == len(open_):
        await asyncio.sleep(_RETRY_S)
    return hits
