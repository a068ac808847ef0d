"""The judgement on a run: what clients were told, held against what the cluster has in the end. Pure.

Rule, after Jepsen's checks of logs: what was acknowledged is there, where it was said to be, once, and in the order of
its sending; what was read is what is there; a group was given everything, and nothing before its turn. A record that
failed, or of which nothing was heard, may be there or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.faults.journal import Acked, Assigned, Event, Failed, Read, Told

_EXAMPLES: Final = 5


class Stored(NamedTuple):
    offset: int
    sender: str
    number: int


# By partition, in the order of their offsets.
Contents = Mapping[int, Sequence[Stored]]


@dataclass
class Verdict:
    """`wrong` has what must not be, by kind: how often, and examples. The rest is told for those who wonder."""

    acked: int = 0
    failed: int = 0
    read: int = 0
    read_again: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        return not self.wrong

    def add(self, kind: str, example: str) -> None:
        self.wrong[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < _EXAMPLES:
            shown.append(example)


def check_contents(contents: Contents) -> Verdict:
    """What can be said of the log by itself: offsets without a hole, each record once and in the order of sending."""
    verdict = Verdict()
    for partition, records in contents.items():
        last: dict[str, int] = {}
        known: set[tuple[str, int]] = set()
        for place, record in enumerate(records):
            where = f"{record.sender} {record.number} at {partition}/{record.offset}"
            if record.offset != place:
                verdict.add("offset out of line", where)
            if (record.sender, record.number) in known:
                verdict.add("duplicate", where)
            elif record.number < last.get(record.sender, -1):
                verdict.add("out of order", f"{where}, after {last[record.sender]}")
            known.add((record.sender, record.number))
            last[record.sender] = max(record.number, last.get(record.sender, -1))
    return verdict


def check_client(events: Sequence[Event], contents: Contents) -> Verdict:
    """What one client was told."""
    verdict = Verdict()
    _check_sending(verdict, events, contents)
    _check_reading(verdict, events, contents)
    for event in events:
        if isinstance(event, Told):
            verdict.told[event.text] += 1
    return verdict


def _check_sending(verdict: Verdict, events: Sequence[Event], contents: Contents) -> None:
    places = {
        (partition, record.sender, record.number): record.offset
        for partition, records in contents.items()
        for record in records
    }
    for event in events:
        if isinstance(event, Failed):
            verdict.failed += 1
            verdict.failures[event.text] += 1
        if not isinstance(event, Acked):
            continue
        verdict.acked += 1
        place = places.get((event.partition, event.sender, event.number))
        where = f"{event.sender} {event.number}, acknowledged as {event.partition}/{event.offset}"
        if place is None:
            verdict.add("acknowledged, then lost", where)
        # A broker that has the record already may say so without knowing where.
        elif event.offset >= 0 and place != event.offset:
            verdict.add("acknowledged at another offset", f"{where}, is at {place}")


def _check_reading(verdict: Verdict, events: Sequence[Event], contents: Contents) -> None:
    there = {
        (partition, record.offset): (record.sender, record.number)
        for partition, records in contents.items()
        for record in records
    }
    seen: set[tuple[int, int]] = set()
    positions: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, Assigned):
            for partition in event.partitions:
                positions.pop((event.member, partition), None)
        if not isinstance(event, Read):
            continue
        verdict.read += 1
        at = (event.partition, event.offset)
        verdict.read_again += at in seen
        seen.add(at)
        where = f"{event.sender} {event.number} from {event.partition}/{event.offset}"
        if at not in there:
            verdict.add("read, then gone", where)
        elif there[at] != (event.sender, event.number):
            verdict.add("read, then another one is there", f"{where}, now {there[at]}")
        last = positions.get((event.member, event.partition))
        if last is not None and event.offset <= last:
            verdict.add("read again without a rebalance", f"{where} after {last}")
        elif last is not None and event.offset > last + 1:
            verdict.add("skipped in reading", f"{where} after {last}")
        positions[event.member, event.partition] = event.offset
    for partition, offset in there.keys() - seen:
        verdict.add("never read by the group", f"{partition}/{offset}")
