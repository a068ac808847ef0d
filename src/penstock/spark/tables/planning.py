"""Which offsets a load takes: decided from what the log has, where the table stands, and what was asked for. Pure.

Noun: `LogState`, where each partition begins and ends; `Standing`, from where to where a table has it.

Rule: what a table has of a partition is one span without a hole. New records go on where it ends. A backfill lies
inside of it or touches it; one that would leave a hole is refused, and so is one that would remove rows which the log
cannot give again.

    log 0:[40, 900)   table 0:[0, 700)   nothing asked      ->  load 0:[700, 900)
                                         since offset 500   ->  replace 0:[500, 700), then load 0:[700, 900)
                                         offsets 500-600    ->  replace 0:[500, 600)
                                         since offset 750   ->  refused: 0:[700, 750) would be missing
                                         offsets 20-600     ->  refused: 0:[20, 40) is gone from the log
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.spark.errors import DataLost, TopicRecreated
from penstock.spark.tables.errors import RangeError, TableDamaged
from penstock.spark.tables.ranges import Span, difference, doubled, union

_RANGE = re.compile(r"(\d{1,9}):(\d{1,18})(?:-(\d{1,18}))?")


@dataclass(frozen=True)
class LogState:
    """`bounds` is [begin, end) by partition; `topic_id` is hexadecimal, "" where a broker does not say."""

    topic: str
    topic_id: str
    bounds: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Standing:
    """What the table has: [first, next) by partition; a partition that was never loaded is not there."""

    covered: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def spans(self) -> list[Span]:
        return union(Span(partition, first, after) for partition, (first, after) in self.covered.items())


def check_same_topic(state: LogState, known_id: str, name: str) -> None:
    """Raises TopicRecreated."""
    if known_id and state.topic_id and known_id != state.topic_id:
        raise TopicRecreated(
            f"topic {state.topic} was deleted and made again since the table {name} was made: its offsets mean other "
            "records now",
            hint=f"Make a new table for it, or drop this one and create it again (penstock table drop {name})",
        )


def new_spans(state: LogState, standing: Standing, *, skip_lost: bool = False) -> tuple[list[Span], list[Span]]:
    """What is new, and what was lost before it could be loaded. Raises DataLost unless that is accepted."""
    spans: list[Span] = []
    lost: list[Span] = []
    for partition, (begin, end) in sorted(state.bounds.items()):
        _, position = standing.covered.get(partition, (begin, begin))
        if position > end:
            raise DataLost(
                f"{state.topic}-{partition} ends at offset {end}, and the table has it up to {position}",
                hint="The log was cut, or the topic made again: see `penstock offsets`, then make a new table",
            )
        if position < begin:
            gone = Span(partition, position, begin)
            if not skip_lost and partition in standing.covered:
                raise DataLost(
                    f"{state.topic}-{partition}: the records {position} to {begin} were removed from the log before "
                    "they were loaded",
                    hint='on_data_loss = "skip" in the declaration goes on without them; load more often, or raise '
                    "retention.ms of the topic",
                )
            if partition in standing.covered:
                lost.append(gone)
            position = begin
        spans.append(Span(partition, position, end))
    return [span for span in spans if span.size], lost


def backfill_spans(state: LogState, standing: Standing, asked: Sequence[Span]) -> list[Span]:
    """The part of what was asked for that the table has already, or that comes right before it; checked.

    What lies behind the table's end is for an ordinary load. Raises RangeError.
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
                             hint="Leave the end out to load all there is")  # fmt: skip
        if span.start < begin:
            raise RangeError(
                f"{state.topic}-{span.partition} begins at offset {begin}: what was there from {span.start} on is gone "
                "from the log, and the table's rows of it could not be loaded again",
                hint=f"Begin at {begin}",
            )
        covered = standing.covered.get(span.partition)
        if covered is None:
            continue
        first, after = covered
        if span.start > after:
            raise RangeError(
                f"{state.topic}-{span.partition} is loaded up to offset {after}: beginning at {span.start} would leave "
                "a hole",
                hint="Run the load without a beginning first",
            )
        if span.end < first:
            raise RangeError(
                f"{state.topic}-{span.partition} is loaded from offset {first} on: ending at {span.end} would leave a "
                "hole",
                hint=f"End at {first} or later",
            )
        spans.append(Span(span.partition, span.start, min(span.end, after)))
    return union(spans)


def starts_asked(asked: Sequence[Span]) -> dict[int, int]:
    """Where partitions that were never loaded begin, if something was asked for."""
    return {span.partition: span.start for span in reversed(union(asked))}


def ends_asked(asked: Sequence[Span]) -> dict[int, int]:
    return {span.partition: span.end for span in union(asked)}


def up_to(spans: Sequence[Span], ends: Mapping[int, int]) -> list[Span]:
    """Those spans, not beyond these ends; partitions without one are left out."""
    cut = [Span(p, start, min(end, ends[p])) for p, start, end in spans if p in ends]
    return [span for span in cut if span.size]


def parse_offsets(text: str, bounds: Mapping[int, tuple[int, int]]) -> list[Span]:
    """`0:100-200,1:50` as spans; without an end, up to the end of the log. Raises RangeError."""
    spans: list[Span] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise RangeError(
                f"{part.strip()!r} is no range of offsets", hint="Write PARTITION:START-END, as 0:100-200,1:50"
            )
        partition, start = int(found.group(1)), int(found.group(2))
        end = int(found.group(3)) if found.group(3) else max(start, bounds.get(partition, (0, start))[1])
        if end < start:
            raise RangeError(f"{part.strip()!r} ends before it begins", hint="Write PARTITION:START-END, as 0:100-200")
        spans.append(Span(partition, start, end))
    return spans


def check_exact(asked: Sequence[Span], done: Sequence[Span]) -> None:
    """Raises TableDamaged unless what was done is what was asked for: no gap, nothing twice, nothing else."""
    twice = doubled(done)
    missing = difference(asked, done)
    more = difference(done, asked)
    for word, spans in (("missing", missing), ("done twice", twice), ("done and not asked for", more)):
        if spans:
            raise TableDamaged(f"offsets {spans[0]} are {word}; nothing was committed", hint="Please report it")


def went_on(before: Standing, now: Standing) -> bool:
    """Whether all that happened is that later records came: the same beginnings, and no end that is earlier."""
    return before.covered.keys() == now.covered.keys() and all(
        now.covered[partition][0] == first and now.covered[partition][1] >= after
        for partition, (first, after) in before.covered.items()
    )


def moved(standing: Standing, spans: Sequence[Span]) -> dict[int, tuple[int, int]]:
    """Where the table stands once these spans are in it, for the partitions that they change.

    covered 0:[10, 100), spans 0:[0, 40) -> 0:[0, 100)
    """
    after: dict[int, tuple[int, int]] = {}
    for span in union(spans):
        first, end = after.get(span.partition) or standing.covered.get(span.partition, (span.start, span.start))
        after[span.partition] = (min(first, span.start), max(end, span.end))
    return after
