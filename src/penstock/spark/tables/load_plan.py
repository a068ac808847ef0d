"""Which offsets a load takes, from the state of the log, the state of the table, and the request.

A `Span` is the offsets [start, end) of one partition. A table covers one span per partition, without a hole. New
records extend it. A backfill lies inside of it or touches it; one that would leave a hole, or remove rows that the log
can no longer provide, is rejected.

    log 0:[40, 900)   table 0:[0, 700)   no request         ->  load 0:[700, 900)
                                         since offset 500   ->  replace 0:[500, 700), then load 0:[700, 900)
                                         offsets 500-600    ->  replace 0:[500, 600)
                                         since offset 750   ->  rejected: 0:[700, 750) would be missing
                                         offsets 20-600     ->  rejected: 0:[20, 40) is no longer in the log

Everything is pure except the functions that ask the cluster for its offsets (`log_state`, `offsets_at`,
`stored_bytes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.client.errors import PenstockError
from penstock.spark.errors import DataLost, RangeError, TableDamaged, TopicRecreated

if TYPE_CHECKING:
    from penstock.client.admin import Admin


_RANGE = re.compile(r"(\d{1,9}):(\d{1,18})(?:-(\d{1,18}))?")

# ---------------------------------------------------------------------------------------------- spans


class Span(NamedTuple):
    """The offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    def holds(self, other: Span) -> bool:
        return self.partition == other.partition and self.start <= other.start and other.end <= self.end

    def meets(self, other: Span) -> bool:
        """Whether an offset is in both."""
        return self.partition == other.partition and self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.partition}:{self.start}-{self.end}"


def union(spans: Iterable[Span]) -> list[Span]:
    """The same offsets in as few spans as possible, in order, without empty ones."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.size):
        last = joined[-1] if joined else None
        if last is not None and last.partition == span.partition and span.start <= last.end:
            joined[-1] = Span(last.partition, last.start, max(last.end, span.end))
        else:
            joined.append(span)
    return joined


def difference(spans: Iterable[Span], without: Iterable[Span]) -> list[Span]:
    """The offsets that are in the first and not in the second."""
    left = union(spans)
    for gone in union(without):
        kept: list[Span] = []
        for span in left:
            if not span.meets(gone):
                kept.append(span)
                continue
            kept += [Span(span.partition, span.start, gone.start), Span(span.partition, gone.end, span.end)]
        left = [span for span in kept if span.size]
    return left


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The offsets that are in both."""
    first = union(spans)
    return difference(first, difference(first, others))


def covered_twice(spans: Iterable[Span]) -> list[Span]:
    """The offsets that are in more than one of these spans."""
    seen: list[Span] = []
    twice: list[Span] = []
    for span in spans:
        twice += overlap([span], seen)
        seen = union([*seen, span])
    return union(twice)


def total(spans: Iterable[Span]) -> int:
    return sum(span.size for span in spans)


def limited(spans: Iterable[Span], most: int) -> list[Span]:
    """About `most` offsets from the starts of these spans, in proportion to their sizes.

    No span gets less than one, so a large backlog in one partition does not stop the others.
    """
    wanted = [span for span in spans if span.size]
    whole = total(wanted)
    if whole <= most:
        return wanted
    return [Span(p, start, start + max(1, (end - start) * most // whole)) for p, start, end in wanted]


def split(spans: Iterable[Span], most: int) -> list[Span]:
    """The same offsets in spans of at most `most`, of about equal size."""
    pieces: list[Span] = []
    for span in spans:
        parts = -(-span.size // max(1, most))
        bounds = [span.start + span.size * number // parts for number in range(parts + 1)] if parts else []
        pieces += [Span(span.partition, low, high) for low, high in pairwise(bounds)]
    return pieces


def spans_to_json(spans: Iterable[Span]) -> dict[str, list[list[int]]]:
    """{"0": [[0, 100]], "1": [[0, 40], [60, 80]]}"""
    by_partition: dict[str, list[list[int]]] = {}
    for span in union(spans):
        by_partition.setdefault(str(span.partition), []).append([span.start, span.end])
    return by_partition


def spans_from_json(document: Mapping[str, Iterable[Iterable[int]]]) -> list[Span]:
    return union(Span(int(partition), *pair) for partition, pairs in document.items() for pair in pairs)


# ---------------------------------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class LogState:
    """The log of a topic. `bounds` is [begin, end) by partition; `topic_id` is hexadecimal, "" if unknown."""

    topic: str
    topic_id: str
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class TableState:
    """What the table covers: [first, next) by partition, without partitions that were never loaded."""

    covered: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def spans(self) -> list[Span]:
        return union(Span(partition, first, after) for partition, (first, after) in self.covered.items())


def check_same_topic(state: LogState, known_id: str, name: str) -> None:
    """Raises TopicRecreated if the topic is not the one of the table."""
    if known_id and state.topic_id and known_id != state.topic_id:
        raise TopicRecreated(
            f"topic {state.topic} was deleted and recreated after table {name} was created; its offsets refer to other "
            "records",
            hint=f"Create a new table, or drop and recreate this one (penstock table drop {name})",
        )


def new_spans(state: LogState, coverage: TableState, *, skip_lost: bool = False) -> tuple[list[Span], list[Span]]:
    """New offsets, and offsets that were lost before they were loaded. Raises DataLost unless `skip_lost`."""
    spans: list[Span] = []
    lost: list[Span] = []
    for partition, (begin, end) in sorted(state.bounds.items()):
        _, position = coverage.covered.get(partition, (begin, begin))
        if position > end:
            raise DataLost(
                f"{state.topic}-{partition} ends at offset {end}, but the table covers it up to {position}",
                hint="The log was truncated or the topic recreated. Check `penstock offsets`, then create a new table",
            )
        if position < begin:
            gone = Span(partition, position, begin)
            if not skip_lost and partition in coverage.covered:
                raise DataLost(
                    f"{state.topic}-{partition}: the records {position} to {begin} were removed from the log before "
                    "they were loaded",
                    hint='Set on_data_loss = "skip" to continue without them; load more often or raise retention.ms to '
                    "avoid it",
                )
            if partition in coverage.covered:
                lost.append(gone)
            position = begin
        spans.append(Span(partition, position, end))
    return [span for span in spans if span.size], lost


def backfill_spans(state: LogState, coverage: TableState, asked: Sequence[Span]) -> list[Span]:
    """The part of the request that the table covers or that ends where it starts.

    What lies after the table's end is for an ordinary load. Raises RangeError.
    """
    spans: list[Span] = []
    for span in union(asked):
        if span.partition not in state.bounds:
            raise RangeError(
                f"topic {state.topic} has no partition {span.partition}",
                hint=f"It has 0 to {len(state.bounds) - 1}",
            )
        begin, end = state.bounds[span.partition]
        if span.end > end:
            raise RangeError(f"{state.topic}-{span.partition} ends at offset {end}, before {span.end}",
                             hint="Remove the end to load everything")  # fmt: skip
        if span.start < begin:
            raise RangeError(
                f"{state.topic}-{span.partition} starts at offset {begin}: records from {span.start} are no longer in "
                "the log, and their rows could not be loaded again",
                hint=f"Start at {begin}",
            )
        covered = coverage.covered.get(span.partition)
        if covered is None:
            continue
        first, after = covered
        if span.start > after:
            raise RangeError(
                f"{state.topic}-{span.partition} is loaded up to offset {after}: starting at {span.start} would leave "
                "a gap",
                hint="Run the load without a start first",
            )
        if span.end < first:
            raise RangeError(
                f"{state.topic}-{span.partition} is loaded from offset {first}: ending at {span.end} would leave a gap",
                hint=f"End at {first} or later",
            )
        spans.append(Span(span.partition, span.start, min(span.end, after)))
    return union(spans)


def requested_starts(asked: Sequence[Span]) -> dict[int, int]:
    """The start of each partition in a request."""
    return {span.partition: span.start for span in reversed(union(asked))}


def requested_ends(asked: Sequence[Span]) -> dict[int, int]:
    return {span.partition: span.end for span in union(asked)}


def clipped(spans: Sequence[Span], ends: Mapping[int, int]) -> list[Span]:
    """The spans cut at these ends, without partitions that have none."""
    cut = [Span(p, start, min(end, ends[p])) for p, start, end in spans if p in ends]
    return [span for span in cut if span.size]


def parse_offsets(text: str, bounds: Mapping[int, tuple[int, int]]) -> list[Span]:
    """Parses `0:100-200,1:50`. Without an end, a span reaches to the end of the log. Raises RangeError."""
    spans: list[Span] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise RangeError(
                f"{part.strip()!r} is not an offset range", hint="Write PARTITION:START-END, as 0:100-200,1:50"
            )
        partition, start = int(found.group(1)), int(found.group(2))
        end = int(found.group(3)) if found.group(3) else max(start, bounds.get(partition, (0, start))[1])
        if end < start:
            raise RangeError(f"{part.strip()!r} ends before it begins", hint="Write PARTITION:START-END, as 0:100-200")
        spans.append(Span(partition, start, end))
    return spans


def check_exact(asked: Sequence[Span], done: Sequence[Span]) -> None:
    """Raises TableDamaged unless `done` has exactly the offsets of `asked`, each once."""
    twice = covered_twice(done)
    missing = difference(asked, done)
    more = difference(done, asked)
    for word, spans in (("missing", missing), ("duplicated", twice), ("unexpected", more)):
        if spans:
            raise TableDamaged(
                f"internal error: offsets {spans[0]} are {word}; nothing was committed", hint="Please report this bug"
            )


def only_advanced(before: TableState, now: TableState) -> bool:
    """Whether only later records were added: the same starts, and no earlier end."""
    return before.covered.keys() == now.covered.keys() and all(
        now.covered[partition][0] == first and now.covered[partition][1] >= after
        for partition, (first, after) in before.covered.items()
    )


def table_state_after(coverage: TableState, spans: Sequence[Span]) -> dict[int, tuple[int, int]]:
    """The coverage of the partitions in these spans once they are loaded.

    covered 0:[10, 100), spans 0:[0, 40) -> 0:[0, 100)
    """
    after: dict[int, tuple[int, int]] = {}
    for span in union(spans):
        first, end = after.get(span.partition) or coverage.covered.get(span.partition, (span.start, span.start))
        after[span.partition] = (min(first, span.start), max(end, span.end))
    return after


# ---------------------------------------------------------------------------------------------- the cluster


def log_state(admin: Admin, topic: str, isolation: str) -> LogState:
    """Asks the cluster for the start and end of every partition. Raises UnknownTopic and other client errors."""
    described = admin.describe_topic(topic)
    partitions = [(topic, part.index) for part in described.partitions]
    begins = _listed_offsets(admin, dict.fromkeys(partitions, "earliest"), "read_uncommitted")
    ends = _listed_offsets(admin, dict.fromkeys(partitions, "latest"), isolation)
    return LogState(
        topic,
        described.topic_id.hex() if described.topic_id else "",
        {index: (begins[index], ends[index]) for _, index in partitions},
    )


def offsets_at(admin: Admin, state: LogState, time_ms: int) -> dict[int, int]:
    """The first offset at or after a time, by partition; always within the log.

    A partition without such a record has the end of its log.
    """
    found = _listed_offsets(admin, {(state.topic, index): time_ms for index in state.bounds}, "read_uncommitted")
    offsets: dict[int, int] = {}
    for index, (begin, end) in state.bounds.items():
        offset = found[index]
        offsets[index] = end if offset < 0 else min(end, max(begin, offset))
    return offsets


def offsets_at_all(admin: Admin, state: LogState, times_ms: Iterable[int]) -> dict[int, list[int]]:
    """`offsets_at` for ascending times; offsets are made ascending even if timestamps are not."""
    columns: dict[int, list[int]] = {index: [] for index in state.bounds}
    for time_ms in times_ms:
        for index, offset in offsets_at(admin, state, time_ms).items():
            before = columns[index][-1] if columns[index] else offset
            columns[index].append(max(before, offset))
    return columns


def stored_bytes(admin: Admin, state: LogState, spans: Sequence[Span]) -> int:
    """The approximate size of these offsets in the log, by the mean of their partitions; 0 if unknown."""
    try:
        answers = admin.describe_log_dirs()
    except PenstockError:
        return 0
    sizes: dict[int, int] = {}
    for folders in answers.values():
        if isinstance(folders, PenstockError):
            continue
        for folder in folders:
            for (topic, index), size in folder.sizes.items():
                if topic == state.topic:
                    sizes[index] = max(size, sizes.get(index, 0))
    means = {index: sizes.get(index, 0) / max(1, end - begin) for index, (begin, end) in state.bounds.items()}
    return round(sum(span.size * means.get(span.partition, 0.0) for span in spans))


def _listed_offsets(admin: Admin, wanted: Mapping[tuple[str, int], Any], isolation: str) -> dict[int, int]:
    answers: dict[int, int] = {}
    for partition, answer in admin.list_offsets(wanted, isolation_level=isolation).items():
        if isinstance(answer, PenstockError):
            raise answer
        answers[partition.partition] = answer.offset
    return answers
