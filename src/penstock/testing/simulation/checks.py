"""What must hold of a run, whatever was done to it.

Noun: a finding, a sentence about something that must not be.

Rule: what clients were told counts. A record that was acknowledged is in the log at the offset that was told, once, and
the records of a writer are in the order in which it handed them over. What is in the log was sent. Offsets have no
gaps. Who follows the topic has seen every acknowledged record in the end, and nothing else in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from penstock.testing.simulation.workload import History, Sent

Log = Mapping[int, Sequence[tuple[int, bytes]]]


def findings(history: History, log: Log) -> list[str]:
    """Everything that is wrong, the worst first."""
    stored: dict[tuple[int, int], Sent] = {}
    found = list(history.twice)
    for partition, records in log.items():
        found += _of_partition(history, partition, records, stored)
    return [*_lost(history, stored), *found, *_unseen(history)]


def _of_partition(
    history: History, partition: int, records: Sequence[tuple[int, bytes]], stored: dict[tuple[int, int], Sent]
) -> Iterator[str]:
    places: dict[Sent, int] = {}
    last: dict[str, int] = {}
    for expected, (offset, value) in enumerate(records):
        if offset != expected:
            yield f"partition {partition}: offset {offset} was read where {expected} was expected"
            return
        try:
            what = Sent.of(value)
        except ValueError:
            yield f"partition {partition}: at {offset} is {value[:40]!r}, which nobody sent"
            continue
        stored[partition, offset] = what
        if what not in history.sent or what.partition != partition:
            yield f"partition {partition}: at {offset} is {what}, which nobody sent there"
        if what in places:
            yield f"partition {partition}: {what} is stored twice, at {places[what]} and at {offset}"
        elif what.number < last.get(what.writer, -1):
            yield f"partition {partition}: at {offset} is {what}, after number {last[what.writer]} of the same writer"
        places[what] = offset
        last[what.writer] = max(what.number, last.get(what.writer, -1))


def _lost(history: History, stored: Mapping[tuple[int, int], Sent]) -> Iterator[str]:
    for (partition, offset), what in history.acknowledged.items():
        there = stored.get((partition, offset))
        if there is None:
            yield f"partition {partition}: {what} was acknowledged at {offset} and is lost"
        elif there != what:
            yield f"partition {partition}: {what} was acknowledged at {offset}, where now {there} is"


def _unseen(history: History) -> Iterator[str]:
    for (partition, offset), what in history.acknowledged.items():
        there = history.read.get((partition, offset))
        if there != what:
            yield f"partition {partition}: {what}, acknowledged at {offset}, was read as {there} by who follows"
