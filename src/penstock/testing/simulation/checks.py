"""What must hold of a run, whatever was done to it. A finding is a sentence about something that must not be.

What clients were told counts. A record that was acknowledged is in the log at the offset that was told, once, and the
records of a writer are in the order in which it handed them over. What is in the log was sent there. Offsets have no
gaps. Who follows a topic has seen every acknowledged record in the end, and nothing else in its place; it was given
what follows what it had, nothing that was gone again later, and a partition in one generation was one member's. What
the group has committed never goes back, and in the end it is what the group has read. Of a place with a loss
(`History.lost`) all this holds for what came after it, but for what a `Loss` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.testing.simulation.history import History, Place, Sent

Log = Mapping[Place, Sequence[tuple[int, bytes]]]


def findings(history: History, log: Log) -> list[str]:
    """Everything that is wrong, the worst first."""
    stored: dict[Place, dict[int, Sent]] = {}
    found: list[str] = []
    for place, records in log.items():
        found += _of_partition(history, place, records, stored.setdefault(place, {}))
    lost = [sentence for place in history.acknowledged for sentence in _lost(history, place, stored.get(place, {}))]
    gone = [sentence for place in log for sentence in _gone(history, place, stored[place])]
    unseen = [
        f"{place}: {what}, acknowledged at {offset}, was read as {seen} by who follows"
        for place, offset, what, seen in unseen_records(history)
    ]
    return [*lost, *found, *history.odd, *gone, *unseen]


def unseen_records(history: History) -> Iterator[tuple[Place, int, Sent, Sent | None]]:
    """Acknowledged records that who follows should have read by the end, and what it has read in their place."""
    for place, told in history.acknowledged.items():
        seen, loss = history.read.get(place, {}), history.losses.get(place)
        for offset, what in told.items():
            if seen.get(offset) != what and (loss is None or offset >= loss.read_end):
                yield place, offset, what, seen.get(offset)


def commit_findings(history: History, log: Log, commits: Mapping[Place, int]) -> list[str]:
    """What is wrong with the offsets that the group has committed when all of its members had read everything."""
    found = []
    for place, told in history.acknowledged.items():
        least, most = max(told) + 1, len(log.get(place, ()))
        if place not in history.losses and not least <= commits.get(place, -1) <= most:
            found.append(f"{place}: {commits.get(place)} is committed, and all from {least} to {most} was read")
    return found


def _of_partition(
    history: History,
    place: Place,
    records: Sequence[tuple[int, bytes]],
    stored: dict[int, Sent],
) -> Iterator[str]:
    offsets: dict[Sent, int] = {}
    loss = history.losses.get(place)
    unordered = {} if loss is None else loss.numbers
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
        elif unordered.get(what.writer, -1) < what.number < last.get(what.writer, -1):
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
