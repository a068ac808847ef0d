"""What must hold of a run, whatever was done to it.

Noun: a finding, a sentence about something that must not be.

Rule: what clients were told counts. A record that was acknowledged is in the log at the offset that was told, once, and
the records of a writer are in the order in which it handed them over. What is in the log was sent there. Offsets have
no gaps. Who follows a topic has seen every acknowledged record in the end, and nothing else in its place; it was given
what follows what it had, nothing that was gone again later, and a partition in one generation was one member's. What
the group has committed in the end is what it has read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from penstock.testing.simulation.history import History, Place, Sent

Log = Mapping[Place, Sequence[tuple[int, bytes]]]


def findings(history: History, log: Log, excused: Collection[Place] = ()) -> list[str]:
    """Everything that is wrong, the worst first.

    In `excused` places records may be lost, and others in their place. With the records the broker lost what it knew
    of their writers' sequences, so the first that it takes again of what a writer has under way need not be the next.
    """
    stored: dict[Place, dict[int, Sent]] = {}
    found: list[str] = []
    for place, records in log.items():
        kept = stored.setdefault(place, {})
        found += _of_partition(history, place, records, kept, is_ordered=place not in excused)
    places = [place for place in history.acknowledged if place not in excused]
    lost = [sentence for place in places for sentence in _lost(history, place, stored.get(place, {}))]
    odd = [sentence for place, sentence in history.odd if place not in excused]
    gone = [sentence for place in log if place not in excused for sentence in _gone(history, place, stored[place])]
    unseen = [sentence for place in places for sentence in _unseen(history, place)]
    return [*lost, *found, *odd, *gone, *unseen]


def commit_findings(
    history: History, log: Log, commits: Mapping[Place, int], excused: Collection[Place] = ()
) -> list[str]:
    """What is wrong with the offsets that the group has committed when all of its members had read everything."""
    found = []
    for place, told in history.acknowledged.items():
        least, most = max(told) + 1, len(log.get(place, ()))
        if place not in excused and not least <= commits.get(place, -1) <= most:
            found.append(f"{place}: {commits.get(place)} is committed, and all from {least} to {most} was read")
    return found


def _of_partition(
    history: History,
    place: Place,
    records: Sequence[tuple[int, bytes]],
    stored: dict[int, Sent],
    *,
    is_ordered: bool,
) -> Iterator[str]:
    offsets: dict[Sent, int] = {}
    last: dict[str, int] = {}
    for expected, (offset, value) in enumerate(records):
        if offset != expected:
            yield f"{place}: offset {offset} was read where {expected} was expected"
            return
        try:
            what = Sent.of(value)
        except ValueError:
            yield f"{place}: at {offset} is {value[:40]!r}, which nobody sent"
            continue
        stored[offset] = what
        if what not in history.sent or what.place != place:
            yield f"{place}: at {offset} is {what}, which nobody sent there"
        if what in offsets:
            yield f"{place}: {what} is stored twice, at {offsets[what]} and at {offset}"
        elif is_ordered and what.number < last.get(what.writer, -1):
            yield f"{place}: at {offset} is {what}, after number {last[what.writer]} of the same writer"
        offsets[what] = offset
        last[what.writer] = max(what.number, last.get(what.writer, -1))


def _lost(history: History, place: Place, stored: Mapping[int, Sent]) -> Iterator[str]:
    for offset, what in history.acknowledged[place].items():
        there = stored.get(offset)
        if there is None:
            yield f"{place}: {what} was acknowledged at {offset} and is lost"
        elif there != what:
            yield f"{place}: {what} was acknowledged at {offset}, where now {there} is"


def _gone(history: History, place: Place, stored: Mapping[int, Sent]) -> Iterator[str]:
    """What a reader was given is committed: nothing else can be there later."""
    if history.reread[place]:
        yield f"{place}: {history.reread[place]} records were read again as other ones"
    for offset, what in history.read.get(place, {}).items():
        if stored.get(offset) != what:
            yield f"{place}: {what} was read at {offset}, where now {stored.get(offset)} is"


def _unseen(history: History, place: Place) -> Iterator[str]:
    seen = history.read.get(place, {})
    for offset, what in history.acknowledged[place].items():
        if seen.get(offset) != what:
            yield f"{place}: {what}, acknowledged at {offset}, was read as {seen.get(offset)} by who follows"
