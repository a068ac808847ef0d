"""Gaps in acknowledgements: for how long a client got none in a partition, because of a fault. Pure.

A gap is the longest time between two acknowledgements in one partition that reaches into the fault: from its
beginning until the cluster was whole again, where it ends in any case, as what comes later is the next fault's. Of the
partitions that the victim led the worst one counts; of all, where it led none. So with records every 40 ms in a
partition, a gap of 40 ms is none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.faults.injecting import Happened
from benchmarks.faults.journal import Acked, Event


@dataclass(frozen=True)
class Gap:
    happened: Happened
    client: str
    gap_s: float


@dataclass(frozen=True)
class Summary:
    count: int
    p50_s: float
    p99_s: float
    max_s: float


def moments(events: Iterable[Event]) -> dict[int, list[float]]:
    """When there were acknowledgements, by partition, in order."""
    found: dict[int, list[float]] = defaultdict(list)
    for event in events:
        if isinstance(event, Acked):
            found[event.partition].append(event.acked_s)
    for each in found.values():
        each.sort()
    return found


def longest(acked_s: Sequence[float], began_s: float, until_s: float) -> float:
    """The longest time between two of them, next to each other, that reaches into the time given."""
    worst, before = 0.0, None
    for moment in acked_s:
        if moment > began_s:
            worst = max(worst, min(moment, until_s) - (began_s if before is None else before))
        if moment > until_s:
            return worst
        before = moment
    # Nothing came any more.
    return max(worst, until_s - (began_s if before is None else before))


def gaps(happened: Sequence[Happened], clients: Mapping[str, Sequence[Event]]) -> list[Gap]:
    by_client = {client: moments(events) for client, events in clients.items()}
    return [
        Gap(
            each, client,
            max((longest(found, each.began_s, each.whole_s) for partition, found in acked.items()
                 if not each.led or partition in each.led), default=0.0),
        )
        for each in happened
        for client, acked in by_client.items()
    ]  # fmt: skip


def summary(values_s: Iterable[float]) -> Summary:
    """Percentiles by the nearest rank: the 99th of few is the greatest."""
    ordered = sorted(values_s)
    if not ordered:
        return Summary(0, math.nan, math.nan, math.nan)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Summary(len(ordered), rank(0.5), rank(0.99), ordered[-1])
