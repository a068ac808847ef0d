"""The history of a run as its clients have recorded it, and the checks on it. Pure.

Each value is sent once and names its writer, partition and number. An acknowledged record is in the log at the
reported offset, once; records of a writer are in order; the log holds nothing that was not sent; offsets have no gaps.
By the end every acknowledged record has been read, and no record that was read has disappeared. In one generation a
partition has one member. Committed offsets never go back, and in the end they are what the group has read. A record
that was not acknowledged may or may not be in the log.

If every replica known to hold committed records has lost them (`lost`, possible only for a topic that does not sync),
earlier acknowledgements of that partition are excused and counted. So are positions and commits of readers within the
part that they had read of it. Everything after the loss is checked as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.client.cluster_metadata import TopicPartition

PADDING: Final = b"." * 16384
_NO_OFFSETS: Final[Mapping[TopicPartition, int]] = MappingProxyType({})


class Sent(NamedTuple):
    """The identity of a value, which the value begins with: "writer:topic:partition:number"."""

    writer: str
    partition: TopicPartition
    number: int

    def __str__(self) -> str:
        return f"{self.writer}:{self.partition.topic}:{self.partition.partition}:{self.number}"

    def value(self, size: int) -> bytes:
        return f"{self}:".encode() + PADDING[:size]

    @classmethod
    def of(cls, value: bytes) -> Sent:
        """Raises ValueError for a value that no writer sent."""
        writer, topic, index, number, _ = value.split(b":", 4)
        return cls(writer.decode(), TopicPartition(topic.decode(), int(index)), int(number))


class Loss(NamedTuple):
    """What stays excused in a partition after its last loss."""

    end: int
    """The end of the lost records. A response below it about a record sent before the loss may have been in flight."""
    read_end: int
    """The offset that readers had reached. They need not see what is written below it afterwards. A reader here or
    below may have to go back, because the new log may end earlier; one above it has read the new log.
    """
    numbers: Mapping[str, int]
    """The last record that each writer had sent. The broker lost the producers' sequences with the log, so the first
    record in flight that it accepts need not be the next one.
    """


class History:
    """What all clients of a run have recorded. `anomalies` are sentences about impossible responses."""

    def __init__(self) -> None:
        self.sent: set[Sent] = set()
        self.acknowledged: dict[TopicPartition, dict[int, Sent]] = {}
        self.given_up: dict[Sent, str] = {}
        self.read: dict[TopicPartition, dict[int, Sent]] = {}
        self.reread: Counter[TopicPartition] = Counter()
        """Number of records read again with another value: the first one had not been committed."""
        self.anomalies: list[str] = []
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.committed: dict[TopicPartition, int] = {}
        """The highest offset whose commit was acknowledged."""
        self.reads = 0
        self.starts = 0
        self.final_commits = 0
        self.commits = 0
        self.losses: dict[TopicPartition, Loss] = {}
        self.excused_records = 0
        self.excused_commits = 0
        self.excused_reads = 0
        """Records at another offset than the one after the reader's previous record."""
        self.excused_starts = 0
        self.excused_final_commits = 0
        self.on_acknowledged: Callable[[TopicPartition, int], None] = _ignore
        self.on_read: Callable[[TopicPartition, int], None] = _ignore
        self._commits: Counter[TopicPartition] = Counter()

    @property
    def acknowledgements(self) -> int:
        return self.excused_records + sum(map(len, self.acknowledged.values()))

    def lost(self, partition: TopicPartition, end: int) -> None:
        """No broker is known to hold the committed records, which ended at `end`."""
        self.excused_records += len(self.acknowledged.pop(partition, ()))
        self.excused_commits += self._commits.pop(partition, 0)
        self.committed.pop(partition, None)
        self.reread.pop(partition, None)
        before = self.losses.get(partition)
        read_end = max(self.read.pop(partition, ()), default=-1) + 1
        if before is not None:
            end, read_end = max(end, before.end), max(read_end, before.read_end)
        numbers: dict[str, int] = {}
        for what in self.sent:
            if what.partition == partition:
                numbers[what.writer] = max(what.number, numbers.get(what.writer, -1))
        self.losses[partition] = Loss(end, read_end, numbers)

    def _predates_loss(self, partition: TopicPartition, offset: int, what: Sent) -> bool:
        """Whether the response may have been in flight when the partition was lost."""
        loss = self.losses.get(partition)
        return loss is not None and offset < loss.end and what.number <= loss.numbers.get(what.writer, -1)

    def acknowledge(self, what: Sent, offset: int) -> None:
        self.on_acknowledged(what.partition, offset)
        if self._predates_loss(what.partition, offset, what):
            self.excused_records += 1
            return
        acknowledged = self.acknowledged.setdefault(what.partition, {})
        before = acknowledged.get(offset)
        if before is not None:
            self.anomalies.append(f"offset {offset} of {what.partition} was given to {before} and to {what}")
        acknowledged[offset] = what

    def record_read(
        self, reader: str, partition: TopicPartition, offset: int, value: bytes, expected: int | None
    ) -> None:
        """A reader got a record. `expected` is the offset after its previous record; None after an assignment."""
        self.reads += 1
        self.on_read(partition, offset)
        if expected is not None and offset != expected:
            if offset < expected <= self._excused_to(partition):
                self.excused_reads += 1
            else:
                how = "skipped from" if offset > expected else "went back from"
                self.anomalies.append(f"{reader} {how} {expected} to {offset} of {partition}")
        try:
            what = Sent.of(value)
        except ValueError:
            self.anomalies.append(f"{reader} read {value[:40]!r} at {offset} of {partition}, which was never sent")
            return
        if self._predates_loss(partition, offset, what):
            loss = self.losses[partition]
            self.losses[partition] = loss._replace(read_end=max(loss.read_end, offset + 1))
            return
        seen = self.read.setdefault(partition, {})
        if seen.get(offset, what) != what:
            self.reread[partition] += 1
        seen[offset] = what

    def started_reading(self, reader: str, partition: TopicPartition, offset: int, committed: int) -> None:
        """A member reads its first record of an assigned partition; `committed` is from the time of the assignment.

        It repeats no committed record and skips no record that the group has not read.
        """
        self.starts += 1
        excused_to = self._excused_to(partition)
        read_to = max(self.read.get(partition, ()), default=-1) + 1
        wrong = []
        if offset < committed:
            wrong.append((committed, f"but {committed} was committed"))
        if offset > read_to:
            wrong.append((offset, f"but the group has read up to {read_to}"))
        self.excused_starts += any(place <= excused_to for place, _ in wrong)
        self.anomalies += [
            f"{reader} starts {partition} at {offset}, {says}" for place, says in wrong if place > excused_to
        ]

    def _excused_to(self, partition: TopicPartition) -> int:
        """Up to here a reader may go back, or start at an offset of the lost log; -1 without a loss."""
        loss = self.losses.get(partition)
        return -1 if loss is None else loss.read_end

    def assigned(self, member: str, generation: int, partition: TopicPartition) -> None:
        """A member is assigned a partition in a generation."""
        owner = self.owners.setdefault((generation, partition), member)
        if owner != member:
            self.anomalies.append(f"{partition} is assigned to {owner} and to {member} in generation {generation}")

    # --- committed offsets
    #
    # A commit counts from the moment its response arrives, at any member and for any reason. Every later OffsetFetch
    # must report at least that offset, whichever broker coordinates by then. The protocol leaves no exception: a commit
    # of an older generation is rejected and so not acknowledged, and no reader of a run seeks. A member sends its
    # commits one after the other and they never go back; if an older one were applied last, a later response would show
    # it. For the same reason no commit is accepted below the offset that was committed when it was sent.
    # The response to a request sent before the commit may report less, so a response is compared with what was
    # committed when the request was sent. After a loss a reader may have to go back, so commits of what had been read
    # of the lost log are excused. A commit above that is of the new log, and is judged.

    def commit_acknowledged(
        self, offsets: Iterable[tuple[TopicPartition, int]], known: Mapping[TopicPartition, int] = _NO_OFFSETS
    ) -> None:
        """A member's commit was accepted. `known` are the committed offsets when it was sent."""
        for partition, offset in offsets:
            self.commits += 1
            before = known.get(partition, -1)
            if max(offset, before) <= self._excused_to(partition):
                self.excused_commits += 1
                continue
            if offset < before:
                self.anomalies.append(
                    f"{partition}: the commit of {offset} was accepted, although {before} was committed before"
                )
            self._commits[partition] += 1
            self.committed[partition] = max(offset, self.committed.get(partition, offset))

    def committed_offsets_read(
        self, known: Mapping[TopicPartition, int], fetched: Mapping[TopicPartition, int]
    ) -> None:
        """A client got the committed offsets `fetched`. `known` are the committed offsets when it sent the request."""
        for partition, offset in known.items():
            if fetched.get(partition, -1) < offset and offset > self._excused_to(partition):
                found = fetched.get(partition)
                self.anomalies.append(
                    f"{partition}: the commit of {offset} was acknowledged, but a reader gets {found}"
                )


def _ignore(partition: TopicPartition, offset: int) -> None:
    """The default callback."""


Log = Mapping[TopicPartition, Sequence[tuple[int, bytes]]]


def findings(history: History, log: Log) -> list[str]:
    """All violations, the worst first."""
    stored: dict[TopicPartition, dict[int, Sent]] = {}
    found: list[str] = []
    for partition, records in log.items():
        found += _misplaced_records(history, partition, records, stored.setdefault(partition, {}))
    lost = [
        sentence
        for partition in history.acknowledged
        for sentence in _lost_records(history, partition, stored.get(partition, {}))
    ]
    gone = [sentence for partition in log for sentence in _replaced_records(history, partition, stored[partition])]
    unseen = [
        f"{partition}: {what}, acknowledged at {offset}, was read as {seen}"
        for partition, offset, what, seen in unseen_records(history)
    ]
    return [*lost, *found, *history.anomalies, *gone, *unseen]


def unseen_records(history: History) -> Iterator[tuple[TopicPartition, int, Sent, Sent | None]]:
    """Acknowledged records that should have been read by the end, and what was read at their offsets instead."""
    for partition, acknowledged in history.acknowledged.items():
        seen, loss = history.read.get(partition, {}), history.losses.get(partition)
        for offset, what in acknowledged.items():
            if seen.get(offset) != what and (loss is None or offset >= loss.read_end):
                yield partition, offset, what, seen.get(offset)


def final_commits(history: History) -> dict[TopicPartition, int]:
    """The least offsets to be committed after all members have read everything. Where records were lost readers need
    not have seen the new log: they may still be behind its end.
    """
    found = {}
    for partition, acknowledged in history.acknowledged.items():
        least, loss = max(acknowledged) + 1, history.losses.get(partition)
        if loss is None or least > loss.read_end:
            found[partition] = least
    return found


def commit_findings(history: History, log: Log, commits: Mapping[TopicPartition, int]) -> list[str]:
    """Violations of the committed offsets after all members have read everything."""
    found, required = [], final_commits(history)
    history.final_commits += len(history.acknowledged)
    history.excused_final_commits += len(history.acknowledged) - len(required)
    for partition, least in required.items():
        most = len(log.get(partition, ()))
        if not least <= commits.get(partition, -1) <= most:
            found.append(
                f"{partition}: {commits.get(partition)} is committed, but everything from {least} to {most} was read"
            )
    return found


def _misplaced_records(
    history: History,
    partition: TopicPartition,
    records: Sequence[tuple[int, bytes]],
    stored: dict[int, Sent],
) -> Iterator[str]:
    offsets: dict[Sent, int] = {}
    loss = history.losses.get(partition)
    unordered = {} if loss is None else loss.numbers
    last: dict[str, int] = {}
    for expected, (offset, value) in enumerate(records):
        if offset != expected:
            yield f"{partition}: offset {offset} was read where {expected} was expected"
            return
        try:
            what = Sent.of(value)
        except ValueError:
            yield f"{partition}: at {offset} is {value[:40]!r}, which was never sent"
            continue
        stored[offset] = what
        if what not in history.sent or what.partition != partition:
            yield f"{partition}: at {offset} is {what}, which was not sent there"
        if what in offsets:
            yield f"{partition}: {what} is stored twice, at {offsets[what]} and at {offset}"
        elif unordered.get(what.writer, -1) < what.number < last.get(what.writer, -1):
            yield f"{partition}: at {offset} is {what}, after number {last[what.writer]} of the same writer"
        offsets[what] = offset
        last[what.writer] = max(what.number, last.get(what.writer, -1))


def _lost_records(history: History, partition: TopicPartition, stored: Mapping[int, Sent]) -> Iterator[str]:
    for offset, what in history.acknowledged[partition].items():
        there = stored.get(offset)
        if there is None:
            yield f"{partition}: {what} was acknowledged at {offset} and is lost"
        elif there != what:
            yield f"{partition}: {what} was acknowledged at {offset}, where now {there} is"


def _replaced_records(history: History, partition: TopicPartition, stored: Mapping[int, Sent]) -> Iterator[str]:
    """Readers get only committed records, so an offset that was read never holds another record later."""
    if history.reread[partition]:
        yield f"{partition}: {history.reread[partition]} records were read again with other values"
    for offset, what in history.read.get(partition, {}).items():
        if stored.get(offset) != what:
            yield f"{partition}: {what} was read at {offset}, where now {stored.get(offset)} is"
