"""What clients of a run were told, and what they saw.

Nouns: a `Place`, one partition of a topic; a `Sent`, the name that a value carries; a `History`, by place and offset.

Rule: a value is sent once and names its writer, place and number, so that whatever is read tells where it came from.
What was not acknowledged may be in the log or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

FILLING: Final = b"." * 16384


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
        """ValueError if it was never sent by a writer."""
        writer, topic, partition, number, _ = value.split(b":", 4)
        return cls(writer.decode(), Place(topic.decode(), int(partition)), int(number))


class History:
    """Of all clients of a run. `odd` are sentences about what a client must never be told."""

    def __init__(self) -> None:
        self.sent: set[Sent] = set()
        self.acknowledged: dict[Place, dict[int, Sent]] = {}
        self.given_up: dict[Sent, str] = {}
        self.read: dict[Place, dict[int, Sent]] = {}
        self.reread: Counter[Place] = Counter()
        """Records read again, and other ones than before: what was there had not been committed, and is gone."""
        self.odd: list[tuple[Place, str]] = []
        self.owners: dict[tuple[int, Place], str] = {}
        self.reads = 0
        self.commits = 0
        self.on_acknowledged: Callable[[Place, int], None] = _not_interested
        self.on_read: Callable[[Place, int], None] = _not_interested

    @property
    def acknowledgements(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def acknowledge(self, what: Sent, offset: int) -> None:
        told = self.acknowledged.setdefault(what.place, {})
        before = told.get(offset)
        if before is not None:
            self.odd.append((what.place, f"offset {offset} of {what.place} was given to {before} and to {what}"))
        told[offset] = what
        self.on_acknowledged(what.place, offset)

    def saw(self, reader: str, place: Place, offset: int, value: bytes, expected: int | None) -> None:
        """`expected` is the offset after the one that the reader saw before it, if nothing came between the two."""
        self.reads += 1
        self.on_read(place, offset)
        if expected is not None and offset != expected:
            how = "skipped from" if offset > expected else "went back from"
            self.odd.append((place, f"{reader} {how} {expected} to {offset} of {place}"))
        try:
            what = Sent.of(value)
        except ValueError:
            self.odd.append((place, f"{reader} read {value[:40]!r} at {offset} of {place}, which nobody sent"))
            return
        seen = self.read.setdefault(place, {})
        if seen.get(offset, what) != what:
            self.reread[place] += 1
        seen[offset] = what

    def assigned(self, member: str, generation: int, place: Place) -> None:
        """A member of the group may read a place in a generation."""
        owner = self.owners.setdefault((generation, place), member)
        if owner != member:
            self.odd.append((place, f"{place} is given to {owner} and to {member} in generation {generation}"))


def _not_interested(place: Place, offset: int) -> None:
    """Nobody wants to know."""
