"""Offset ranges as arithmetic: what a load takes, what a table has.

Noun: `Span`, the offsets [start, end) of one partition.

Rule: ranges of a partition are joined where they touch, and whoever commits says exactly which offsets it covers. So
"no gap, no duplicate" is a sum that can be checked: what a table covers is one span a partition, and what a commit
adds begins where that ends.

    covered 0:[0, 100)   commit 0:[100, 250)   ->   covered 0:[0, 250)
    covered 0:[0, 100)   commit 0:[120, 250)   ->   a gap 0:[100, 120)
    covered 0:[0, 100)   commit 0:[90, 250)    ->   an overlap 0:[90, 100)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple


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
    """The same offsets in as few spans as there can be, in order; empty ones are left out."""
    joined: list[Span] = []
    for span in sorted(span for span in spans if span.size):
        last = joined[-1] if joined else None
        if last is not None and last.partition == span.partition and span.start <= last.end:
            joined[-1] = Span(last.partition, last.start, max(last.end, span.end))
        else:
            joined.append(span)
    return joined


def difference(spans: Iterable[Span], without: Iterable[Span]) -> list[Span]:
    """What is in the first and not in the second."""
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
    """What is in both."""
    first = union(spans)
    return difference(first, difference(first, others))


def doubled(spans: Iterable[Span]) -> list[Span]:
    """What is in more than one of these spans."""
    seen: list[Span] = []
    twice: list[Span] = []
    for span in spans:
        twice += overlap([span], seen)
        seen = union([*seen, span])
    return union(twice)


def total(spans: Iterable[Span]) -> int:
    return sum(span.size for span in spans)


def limited(spans: Iterable[Span], most: int) -> list[Span]:
    """At most about `most` offsets from the beginnings of these spans, shared out by what each has to give.

    No span gets less than one, so a large backlog in one partition does not stop the others.
    """
    wanted = [span for span in spans if span.size]
    whole = total(wanted)
    if whole <= most:
        return wanted
    return [Span(p, start, start + max(1, (end - start) * most // whole)) for p, start, end in wanted]


def split(spans: Iterable[Span], most: int) -> list[Span]:
    """The same offsets in spans of at most `most`, alike in length."""
    pieces: list[Span] = []
    for span in spans:
        parts = -(-span.size // max(1, most))
        bounds = [span.start + span.size * number // parts for number in range(parts + 1)] if parts else []
        pieces += [Span(span.partition, low, high) for low, high in pairwise(bounds)]
    return pieces


def to_json(spans: Iterable[Span]) -> dict[str, list[list[int]]]:
    """{"0": [[0, 100]], "1": [[0, 40], [60, 80]]}"""
    by_partition: dict[str, list[list[int]]] = {}
    for span in union(spans):
        by_partition.setdefault(str(span.partition), []).append([span.start, span.end])
    return by_partition


def from_json(document: Mapping[str, Iterable[Iterable[int]]]) -> list[Span]:
    return union(Span(int(partition), *pair) for partition, pairs in document.items() for pair in pairs)
