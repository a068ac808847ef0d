"""What clients of a run were told and what they read, and the checks on it. Pure.

Each value is sent once and names its writer, partition and number. An acknowledged record is in the log at the
reported offset, once; records of a writer are in order; the log holds nothing that was not sent; offsets have no gaps.
Every reader has read every acknowledged record in the end, and nothing that was later gone; in one generation a
partition has one member. Committed offsets never go back, and in the end they are what the group has read. A record
that was not acknowledged may or may not be in the log.

Where every replica known to hold committed records has lost them (`lost`, possible only for a topic that does not
sync), earlier promises about that partition are excused and counted; what follows is checked as anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

FILLING: Final = b"." * 16384
_NOTHING: Final[Mapping[Place, int]] = MappingProxyType({})


class Place(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Sent(NamedTuple):
    """A value's name: "writer:topic:partition:number"."""

    writer: str
    place: Place
    number: int

    def __str__(self) -> str:
        return f"{self.writer}:{self.place.topic}:{self.place.partition}:{self.number}"

    def value(self, size: int) -> bytes:
        return f"{self}:".encode() + FILLING[:size]

    @classmethod
    def of(cls, value: bytes) -> Sent:
        """Raises ValueError for a value that no writer sent."""
        writer, topic, partition, number, _ = value.split(b":", 4)
        return cls(writer.decode(), Place(topic.decode(), int(partition)), int(number))


class Loss(NamedTuple):
    """What remains excused of a partition after its last loss."""

    end: int
    """What was lost ended there: who is told of less, and of what had been sent by then, may be told of that still."""
    read_end: int
    """Readers had come so far: what is written below it now they need not have seen."""
    numbers: Mapping[str, int]
    """The last record that each writer had sent. With the log the broker has lost what it knew of their sequences, so
    the first that it takes again of what they had under way need not be the next.
    """


class History:
    """What all clients of a run saw. `odd` are sentences about impossible responses."""

    def __init__(self) -> None:
        self.sent: set[Sent] = set()
        self.acknowledged: dict[Place, dict[int, Sent]] = {}
        self.given_up: dict[Sent, str] = {}
        self.read: dict[Place, dict[int, Sent]] = {}
        self.reread: Counter[Place] = Counter()
        """Records read again with other values: what was there had not been committed, and is gone."""
        self.odd: list[str] = []
        self.owners: dict[tuple[int, Place], str] = {}
        self.committed: dict[Place, int] = {}
        """The highest offset whose commit the coordinator has acknowledged."""
        self.reads = 0
        self.commits = 0
        self.losses: dict[Place, Loss] = {}
        self.excused_records = 0
        self.excused_commits = 0
        self.on_acknowledged: Callable[[Place, int], None] = _not_interested
        self.on_read: Callable[[Place, int], None] = _not_interested
        self._commits: Counter[Place] = Counter()

    @property
    def acknowledgements(self) -> int:
        return self.excused_records + sum(map(len, self.acknowledged.values()))

    def lost(self, place: Place, end: int) -> None:
        """No broker is known to have what was committed, up to `end`."""
        self.excused_records += len(self.acknowledged.pop(place, ()))
        self.excused_commits += self._commits.pop(place, 0)
        self.committed.pop(place, None)
        self.reread.pop(place, None)
        before = self.losses.get(place)
        read_end = max(self.read.pop(place, ()), default=-1) + 1
        if before is not None:
            end, read_end = max(end, before.end), max(read_end, before.read_end)
        numbers: dict[str, int] = {}
        for what in self.sent:
            if what.place == place:
                numbers[what.writer] = max(what.number, numbers.get(what.writer, -1))
        self.losses[place] = Loss(end, read_end, numbers)

    def _is_of_before(self, place: Place, offset: int, what: Sent) -> bool:
        """Whether the response may have been in flight at the last loss of the partition."""
        loss = self.losses.get(place)
        return loss is not None and offset < loss.end and what.number <= loss.numbers.get(what.writer, -1)

    def acknowledge(self, what: Sent, offset: int) -> None:
        self.on_acknowledged(what.place, offset)
        if self._is_of_before(what.place, offset, what):
            self.excused_records += 1
            return
        told = self.acknowledged.setdefault(what.place, {})
        before = told.get(offset)
        if before is not None:
            self.odd.append(f"offset {offset} of {what.place} was given to {before} and to {what}")
        told[offset] = what

    def saw(self, reader: str, place: Place, offset: int, value: bytes, expected: int | None) -> None:
        """`expected` is the offset after the one that the reader saw before it, if nothing came between the two."""
        self.reads += 1
        self.on_read(place, offset)
        if expected is not None and offset != expected and place not in self.losses:
            how = "skipped from" if offset > expected else "went back from"
            self.odd.append(f"{reader} {how} {expected} to {offset} of {place}")
        try:
            what = Sent.of(value)
        except ValueError:
            self.odd.append(f"{reader} read {value[:40]!r} at {offset} of {place}, which was never sent")
            return
        if self._is_of_before(place, offset, what):
            loss = self.losses[place]
            self.losses[place] = loss._replace(read_end=max(loss.read_end, offset + 1))
            return
        seen = self.read.setdefault(place, {})
        if seen.get(offset, what) != what:
            self.reread[place] += 1
        seen[offset] = what

    def began(self, reader: str, place: Place, offset: int, committed: int) -> None:
        """A member that was given a place reads its first record of it; `committed` was so when it was given it.

        It repeats nothing that was committed, and leaves nothing out that nobody of the group has read.
        """
        if place in self.losses:
            return
        if offset < committed:
            self.odd.append(f"{reader} starts {place} at {offset}, but {committed} was committed")
        read_to = max(self.read.get(place, ()), default=-1) + 1
        if offset > read_to:
            self.odd.append(f"{reader} starts {place} at {offset}, but the group has read up to {read_to}")

    def assigned(self, member: str, generation: int, place: Place) -> None:
        """A member is assigned a partition in a generation."""
        owner = self.owners.setdefault((generation, place), member)
        if owner != member:
            self.odd.append(f"{place} is assigned to {owner} and to {member} in generation {generation}")

    # --- committed offsets
    #
    # A commit counts from the moment its response arrives, at any member and for any reason. Every later OffsetFetch must
    # report at least that offset, no matter which broker coordinates by then. The protocol leaves no other way: a commit
    # of an older generation is rejected and so not acknowledged, and no reader of a run seeks. The commits of one member
    # go out one after the other and never go back; if an older one were applied last, a later response would show it.
    # For the same reason no commit is accepted that is below what was committed when it was sent.
    # An answer to a question from before the commit may tell of less, so what counts is what was known when it was
    # asked. A reader of a place with a loss may be sent back, and its commits are excused from then on.

    def commit_acknowledged(self, offsets: Iterable[tuple[Place, int]], least: Mapping[Place, int] = _NOTHING) -> None:
        """A member's commit was accepted; when it was sent, `least` was committed."""
        for place, offset in offsets:
            self.commits += 1
            if place in self.losses:
                self.excused_commits += 1
                continue
            if offset < least.get(place, offset):
                self.odd.append(
                    f"{place}: the commit of {offset} was accepted, although {least[place]} was committed before"
                )
            self._commits[place] += 1
            self.committed[place] = max(offset, self.committed.get(place, offset))

    def committed_offsets_read(self, least: Mapping[Place, int], told: Mapping[Place, int]) -> None:
        """A client that begins to read is told that the group has committed `told`; when it asked, `least` was."""
        for place, offset in least.items():
            if told.get(place, -1) < offset and place not in self.losses:
                answer = told.get(place)
                self.odd.append(f"{place}: the commit of {offset} was acknowledged, but a reader gets {answer}")


def _not_interested(place: Place, offset: int) -> None:
    """Not needed."""


Log = Mapping[Place, Sequence[tuple[int, bytes]]]


def findings(history: History, log: Log) -> list[str]:
    """All violations, the worst first."""
    stored: dict[Place, dict[int, Sent]] = {}
    found: list[str] = []
    for place, records in log.items():
        found += _of_partition(history, place, records, stored.setdefault(place, {}))
    lost = [sentence for place in history.acknowledged for sentence in _lost(history, place, stored.get(place, {}))]
    gone = [sentence for place in log for sentence in _gone(history, place, stored[place])]
    unseen = [
        f"{place}: {what}, acknowledged at {offset}, was read as {seen}"
        for place, offset, what, seen in unseen_records(history)
    ]
    return [*lost, *found, *history.odd, *gone, *unseen]


def unseen_records(history: History) -> Iterator[tuple[Place, int, Sent, Sent | None]]:
    """Acknowledged records that readers should have read by the end, and what they read instead."""
    for place, told in history.acknowledged.items():
        seen, loss = history.read.get(place, {}), history.losses.get(place)
        for offset, what in told.items():
            if seen.get(offset) != what and (loss is None or offset >= loss.read_end):
                yield place, offset, what, seen.get(offset)


def commit_findings(history: History, log: Log, commits: Mapping[Place, int]) -> list[str]:
    """What is wrong with the committed offsets after all members have read everything."""
    found = []
    for place, told in history.acknowledged.items():
        least, most = max(told) + 1, len(log.get(place, ()))
        if place not in history.losses and not least <= commits.get(place, -1) <= most:
            found.append(f"{place}: {commits.get(place)} is committed, but everything from {least} to {most} was read")
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
            yield f"{place}: at {offset} is {value[:40]!r}, which was never sent"
            continue
        stored[offset] = what
        if what not in history.sent or what.place != place:
            yield f"{place}: at {offset} is {what}, which was not sent there"
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
    """What a reader got is committed: nothing else can be there later."""
    if history.reread[place]:
        yield f"{place}: {history.reread[place]} records were read again with other values"
    for offset, what in history.read.get(place, {}).items():
        if stored.get(offset) != what:
            yield f"{place}: {what} was read at {offset}, where now {stored.get(offset)} is"
