"""Records produced against records landed, hour by hour, with an SVG chart.

An hour is a range of offsets: the log's time index says where it starts and ends in each partition. So both counts are
of the same offsets, whatever the event times. Every offset is in the table, a dead letter, dropped by policy, waiting,
or without a record (transaction marker, compacted). Anything else is missing; what is there twice is surplus.

    complete until: the end of the last hour before which nothing waits, is missing or surplus

Files inside one hour are counted by their statistics; others are opened for two columns. The log is read only for
hours whose sums differ, and offsets are compared one by one only where there seem to be too many rows: compaction
removes records from the log after they were loaded.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from penstock.spark.options import ReaderOptions
from penstock.spark.tables.delta import LiveFile, Store
from penstock.spark.tables.load_plan import LogState, Span, TableState, offsets_at_all, overlap, split, total
from penstock.spark.tables.loader import Loader

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.spark.tables.runner import Runner


HOUR_MS: Final = 3_600_000
COUNTS: Final = ("produced", "landed", "dead", "dropped", "waiting", "empty", "missing", "surplus")
"""What an audit counts in each hour."""
_TASK_RECORDS = 1_000_000
_WIDTH: Final = 960
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 64, 52
_PARTS: Final = (
    ("landed", "#2e8b57", "landed"),
    ("empty", "#b7d7c3", "no record"),
    ("dead", "#e0a030", "dead"),
    ("dropped", "#f0cf8a", "dropped"),
    ("waiting", "#c4c9d0", "waiting"),
    ("missing", "#c0392b", "missing"),
    ("surplus", "#7b241c", "duplicate"),
)
_MOST_LABELS: Final = 12

# ---------------------------------------------------------------------------------------------- the audit


@dataclass(frozen=True)
class Hour:
    """Counts of the offsets of one hour of the log, from `start_ms`."""

    start_ms: int
    produced: int = 0
    landed: int = 0
    dead: int = 0
    dropped: int = 0
    waiting: int = 0
    empty: int = 0
    """Offsets without a record."""
    removed: int = 0
    """Of those, records that the table has: they were compacted away after the load."""

    @property
    def difference(self) -> int:
        """Positive: missing. Negative: surplus."""
        return self.produced - self.landed - self.dead - self.dropped - self.waiting - self.empty + self.removed

    @property
    def missing(self) -> int:
        return max(0, self.difference)

    @property
    def surplus(self) -> int:
        return max(0, -self.difference)

    @property
    def is_complete(self) -> bool:
        return not self.waiting and not self.difference


@dataclass(frozen=True)
class Audit:
    """The hours of a time range. `complete_until_ms` is None if the first hour is incomplete."""

    table: str
    topic: str
    hours: tuple[Hour, ...]
    now_ms: int

    @property
    def complete_until_ms(self) -> int | None:
        until: int | None = None
        for hour in self.hours:
            if not hour.is_complete:
                return until
            until = min(hour.start_ms + HOUR_MS, self.now_ms)
        return until

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing or duplicate; records may be waiting."""
        return all(not hour.difference for hour in self.hours)

    def total(self, name: str) -> int:
        return sum(getattr(hour, name) for hour in self.hours)

    def document(self) -> dict[str, object]:
        """The audit as JSON."""
        return {
            "table": self.table,
            "topic": self.topic,
            "completeUntil": self.complete_until_ms,
            "sound": self.is_sound,
            "hours": [
                {"start": hour.start_ms, **{name: getattr(hour, name) for name in COUNTS}, "complete": hour.is_complete}
                for hour in self.hours
            ],
        }


def audit_table(loader: Loader, admin: Admin, runner: Runner, since_ms: int, now_ms: int) -> Audit:
    """Audits a table hour by hour from `since_ms` to now."""
    loader.settle()
    opened, table = loader.opened, loader.opened.table
    if table.retention_ms:
        since_ms = max(since_ms, now_ms - table.retention_ms)
    state = loader.state()
    coverage = opened.coverage(state.bounds)
    starts = hour_starts(since_ms, now_ms)
    offsets = offsets_at_all(admin, state, starts)
    spans = hour_spans(offsets, state, coverage, len(starts))
    landed = _landed(opened.store, offsets, len(starts))
    dead, dropped = _dead(opened.dead, offsets, len(starts))
    hours: list[Hour] = []
    for number, start_ms in enumerate(starts):
        waits = offsets_not_loaded(spans[number], coverage)
        here = landed[number]
        if table.mode == "upsert":
            # Rows are the newest of their keys: all loaded offsets count as merged unless they are dead letters.
            here = total(spans[number]) - waits - dead[number] - dropped[number]
        hour = Hour(start_ms, total(spans[number]), here, dead[number], dropped[number], waits)
        hours.append(hour if not hour.difference else _verified(loader, runner, hour, spans[number]))
    return Audit(table.name, table.topic, tuple(hours), now_ms)


def _verified(loader: Loader, runner: Runner, hour: Hour, spans: Sequence[Span]) -> Hour:
    """The hour with its empty offsets, counted by reading the log."""
    coverage = loader.opened.coverage({span.partition for span in spans})
    reread = split(loaded_spans(spans, coverage), _TASK_RECORDS)
    table = loader.opened.table
    made = [
        pickle.dumps(CountTask(loader.bootstrap, loader.reader, table.topic, span, table.isolation)) for span in reread
    ]
    records = sum(pickle.loads(answer) for answer in runner.run(count_pickled, made))
    counted = replace(hour, empty=total(reread) - records)
    if not counted.surplus or table.mode == "upsert":
        return counted
    in_log = zip(reread, runner.run(offsets_pickled, made), strict=True)
    return replace(counted, removed=sum(_removed(loader, span, answer) for span, answer in in_log))


def _removed(loader: Loader, span: Span, in_log: bytes) -> int:
    """How many offsets of the span are in the table or its dead letters, but not in the log."""
    import numpy

    kept = numpy.unique(
        numpy.concatenate([_offsets(store, span) for store in (loader.opened.store, loader.opened.dead)])
    )
    return int(numpy.setdiff1d(kept, numpy.frombuffer(in_log, dtype="int64"), assume_unique=True).size)


def _offsets(store: Store, span: Span) -> Any:
    import numpy

    found = [numpy.empty(0, dtype="int64")]
    for file in store.files():
        if file.may_overlap(span):
            rows = _where(store, file)
            offsets = rows.column("_offset").to_numpy()
            mine = (rows.column("_partition").to_numpy() == span.partition) & (offsets >= span.start)
            found.append(offsets[mine & (offsets < span.end)])
    return numpy.concatenate(found)


# ---------------------------------------------------------------------------------------------- hours as offsets


def hour_starts(since_ms: int, now_ms: int) -> list[int]:
    """The starts of the hours from that of `since_ms` to that of `now_ms`."""
    return list(range(since_ms - since_ms % HOUR_MS, now_ms + 1, HOUR_MS))


def hour_spans(
    starts: Mapping[int, Sequence[int]], state: LogState, coverage: TableState, count: int
) -> list[list[Span]]:
    """The offsets of each hour, without those before the table's first.

    `starts` has the first offset of each hour by partition. The last hour reaches to the end of the log.
    """
    hours: list[list[Span]] = [[] for _ in range(count)]
    for partition, offsets in starts.items():
        begin, end = state.bounds[partition]
        first = coverage.covered.get(partition, (begin, begin))[0]
        bounds = [*offsets, end]
        for number in range(count):
            low, high = max(bounds[number], first), max(bounds[number + 1], first)
            hours[number].append(Span(partition, low, high))
    return hours


def offsets_not_loaded(spans: Sequence[Span], coverage: TableState) -> int:
    """How many of these offsets are not loaded yet."""
    return total(spans) - total(overlap(spans, coverage.spans))


def loaded_spans(spans: Sequence[Span], coverage: TableState) -> list[Span]:
    return overlap(spans, coverage.spans)


# ---------------------------------------------------------------------------------------------- records of the log


@dataclass(frozen=True)
class CountTask:
    """Offsets whose records are counted. It is sent to an executor."""

    bootstrap: str
    reader: ReaderOptions
    topic: str
    span: Span
    isolation: str


def count_pickled(task: bytes) -> bytes:
    return pickle.dumps(_count(pickle.loads(task)))


def offsets_pickled(task: bytes) -> bytes:
    """The offsets that have a record, as 64-bit integers in bytes."""
    batches = _read(pickle.loads(task))
    return b"".join(batch.column("offset").to_numpy().astype("int64").tobytes() for batch in batches)


def _count(task: CountTask) -> int:
    return sum(batch.num_rows for batch in _read(task))


def _read(task: CountTask) -> Iterator[Any]:
    from penstock.spark.fetch import read_range

    return read_range(
        task.bootstrap, replace(task.reader, include_headers=False), task.topic, task.span.partition, task.span.start,
        task.span.end, isolation=task.isolation,  # type: ignore[arg-type]
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- rows of the table


def _landed(store: Store, starts: Mapping[int, Sequence[int]], count: int) -> list[int]:
    hours = [0] * count
    for file in store.files():
        _add_file(store, file, starts, hours)
    return hours


def _dead(store: Store, starts: Mapping[int, Sequence[int]], count: int) -> tuple[list[int], list[int]]:
    dead, dropped = [0] * count, [0] * count
    rows = store.read(["_partition", "_offset", "dropped"])
    columns = [rows.column(name).to_pylist() for name in rows.column_names]
    for partition, offset, is_dropped in zip(*columns, strict=True):
        number = _hour_of(starts.get(partition, ()), offset)
        if number is not None:
            (dropped if is_dropped else dead)[number] += 1
    return dead, dropped


def _add_file(store: Store, file: LiveFile, starts: Mapping[int, Sequence[int]], hours: list[int]) -> None:
    span = file.span
    if span is not None and file.rows is not None:
        bounds = starts.get(span.partition, ())
        first, last = _hour_of(bounds, span.start), _hour_of(bounds, span.end - 1)
        if first == last:
            if first is not None:
                hours[first] += file.rows
            return
    _add_rows(_where(store, file), starts, hours)


def _where(store: Store, file: LiveFile) -> Any:
    """The partition and offset of each row of a file."""
    filesystem, root = store.storage.filesystem()
    return pq.read_table(
        f"{root}/{file.path}", filesystem=filesystem, columns=["_partition", "_offset"], partitioning=None
    )


def _add_rows(rows: Any, starts: Mapping[int, Sequence[int]], hours: list[int]) -> None:
    import numpy

    partitions = rows.column("_partition").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    for partition, bounds in starts.items():
        mine = offsets[partitions == partition]
        numbers = numpy.searchsorted(numpy.asarray(bounds), mine, side="right") - 1
        for number, found in enumerate(numpy.bincount(numbers[numbers >= 0], minlength=len(hours))):
            hours[number] += int(found)


def _hour_of(bounds: Sequence[int], offset: int) -> int | None:
    """The last hour that starts at or before the offset; an hour without records starts where the next does."""
    from bisect import bisect_right

    number = bisect_right(bounds, offset) - 1
    return None if number < 0 else number


# ---------------------------------------------------------------------------------------------- the chart


def audit_svg(audit: Audit) -> str:
    """A chart of an audit as SVG."""
    most = max([hour.produced + hour.surplus for hour in audit.hours], default=0) or 1
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    slot = inner_width / max(1, len(audit.hours))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="11" role="img">',
        f"<title>{escape(_title(audit))}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold" fill="#222222">{escape(_title(audit))}</text>',
        *_legend(),
    ]
    for share in (0.0, 0.5, 1.0):
        y = _TOP + inner_height * (1 - share)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{most * share:,.0f}</text>'
        )
    every = max(1, -(-len(audit.hours) // _MOST_LABELS))
    for number, hour in enumerate(audit.hours):
        x = _LEFT + number * slot
        parts += _bar(hour, x, slot, most, inner_height)
        if number % every == 0:
            parts.append(
                f'<text x="{x + slot / 2:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" fill="#555555">'
                f"{_time(hour.start_ms)}</text>"
            )
    parts += _watermark(audit, slot)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _title(audit: Audit) -> str:
    return f"{audit.table}: produced to topic {audit.topic} against landed, by hour (UTC)"


def _legend() -> list[str]:
    parts: list[str] = []
    for number, (_, colour, word) in enumerate(_PARTS):
        x = _LEFT + number * 92
        parts.append(f'<rect x="{x}" y="34" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="43" fill="#333333">{word}</text>')
    return parts


def _bar(hour: Hour, x: float, slot: float, most: int, inner_height: float) -> list[str]:
    parts: list[str] = []
    width = max(1.0, slot * 0.8)
    y = _TOP + inner_height
    words = ", ".join(f"{getattr(hour, name):,} {word}" for name, _, word in _PARTS if getattr(hour, name))
    for name, colour, _ in _PARTS:
        count = getattr(hour, name)
        if not count:
            continue
        height = max(1.0, inner_height * count / most)
        y -= height
        parts.append(
            f'<rect x="{x + slot * 0.1:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
            f"<title>{_time(hour.start_ms)}: {hour.produced:,} produced; {escape(words)}</title></rect>"
        )
    return parts


def _watermark(audit: Audit, slot: float) -> list[str]:
    until = audit.complete_until_ms
    if until is None or not audit.hours:
        return [f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#c0392b">no complete hour</text>']
    x = _LEFT + slot * (until - audit.hours[0].start_ms) / HOUR_MS
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_HEIGHT - _BOTTOM}" stroke="#1f4e79" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}" fill="#1f4e79">complete until {_time(until, date=True)}</text>',
    ]


def _time(time_ms: int, *, date: bool = False) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ") if date else moment.strftime("%d. %H:%M")
