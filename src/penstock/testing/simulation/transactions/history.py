"""What the clients of a run know about its transactions, and the checks on it. Pure.

An `Attempt` is one transaction of one producer. Each of its records is sent once and names the attempt. What the
application knows decides what readers of committed records may see:

    commit acknowledged                                          every record, once, in order
    commit sent, outcome unknown, or the producer was killed     every record or none
    no commit sent, or it failed for certain, or the producer was fenced before it sent the commit       none

A record is never read before its commit is sent. What a processor writes names the input record that it comes from:
in the end every committed input has one committed output, and the committed offsets of the group agree with that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from penstock.client.cluster_metadata import TopicPartition

_PADDING: Final = b"." * 4096


class Fate(Enum):
    """What the application knows about the end of a transaction."""

    OPEN = "was never committed"
    ENDING = "may be committed"
    COMMITTED = "was committed"
    FAILED = "was aborted"
    FENCED = "was committed by a fenced producer"


_INVISIBLE: Final = frozenset({Fate.OPEN, Fate.FAILED, Fate.FENCED})


class Source(NamedTuple):
    """The input record that an output comes from."""

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


class Stored(NamedTuple):
    """A record as its value names it."""

    attempt: int
    number: int
    partition: TopicPartition
    source: Source | None = None

    def __str__(self) -> str:
        return f"record {self.number} of transaction {self.attempt}"

    def value(self, size: int) -> bytes:
        source = "" if self.source is None else f"{self.source.partition.partition}@{self.source.offset}"
        topic, index = self.partition
        return f"{self.attempt}:{self.number}:{topic}:{index}:{source}:".encode() + _PADDING[:size]

    @classmethod
    def of(cls, value: bytes, inputs: str) -> Stored:
        """Sources are in topic `inputs`. Raises ValueError for a value that was never sent."""
        attempt, number, topic, index, source, _ = value.split(b":", 5)
        partition, _, offset = source.partition(b"@")
        found = Source(TopicPartition(inputs, int(partition)), int(offset)) if source else None
        return cls(int(attempt), int(number), TopicPartition(topic.decode(), int(index)), found)


class Producer:
    """One instance of a producer. A later one with the same transactional id fences it."""

    def __init__(self, transactional_id: str, instance: int) -> None:
        self.transactional_id = transactional_id
        self.instance = instance
        self.is_initialized = False
        self.is_fenced = False
        self.fences: list[Producer] = []
        """Those that had their epochs before it asked for its own."""

    def __str__(self) -> str:
        return f"{self.transactional_id}/{self.instance}"


class Attempt:
    """One transaction."""

    def __init__(self, number: int, producer: Producer) -> None:
        self.number = number
        self.producer = producer
        self.fate = Fate.OPEN
        self.records: list[Stored] = []

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.producer}"

    def record(self, partition: TopicPartition, source: Source | None = None) -> Stored:
        """The next record, which is about to be sent."""
        self.records.append(Stored(self.number, len(self.records), partition, source))
        return self.records[-1]

    def commits(self) -> None:
        """The commit is about to be sent, or sent again."""
        if self.fate is Fate.OPEN:
            self.fate = Fate.FENCED if self.producer.is_fenced else Fate.ENDING

    def ended(self, fate: Fate) -> None:
        """The application learns how it ended."""
        if self.fate is not Fate.FENCED:
            self.fate = fate


class TransactionHistory:
    """The transactions of a run. `anomalies` are sentences about impossible responses."""

    def __init__(self, inputs: str, outputs: str) -> None:
        """Processors read topic `inputs` and write to topic `outputs`."""
        self.attempts: list[Attempt] = []
        self.anomalies: list[str] = []
        self.read: dict[TopicPartition, dict[int, Stored]] = defaultdict(dict)
        self.processed: set[Source] = set()
        """Inputs whose output a reader has seen."""
        self.reads = 0
        self._inputs = inputs
        self._outputs = outputs
        self._producers: dict[str, list[Producer]] = defaultdict(list)

    def new_producer(self, transactional_id: str) -> Producer:
        """A producer is about to start."""
        known = self._producers[transactional_id]
        producer = Producer(transactional_id, len(known))
        producer.fences = [other for other in known if other.is_initialized]
        known.append(producer)
        return producer

    def initialized(self, producer: Producer) -> None:
        """A producer got its id and epoch, so those that had theirs when it started are fenced."""
        producer.is_initialized = True
        for other in producer.fences:
            other.is_fenced = True

    def forgotten(self, transactional_id: str) -> None:
        """The coordinator forgets an id that was not used for long: it no longer knows whom it has fenced.

        An id must expire later than any producer that was fenced.
        """
        for producer in self._producers[transactional_id]:
            producer.is_fenced = False

    def begin(self, producer: Producer) -> Attempt:
        self.attempts.append(Attempt(len(self.attempts), producer))
        return self.attempts[-1]

    def fates(self) -> Counter[str]:
        return Counter(f"transactions: {attempt.fate.value}" for attempt in self.attempts)

    def record_read(self, reader: str, partition: TopicPartition, offset: int, value: bytes) -> None:
        """A reader of committed records got one."""
        self.reads += 1
        stored = self._known(partition, value)
        if stored is None:
            self.anomalies.append(f"{partition}: {reader} reads {value[:40]!r} at {offset}, which was never sent there")
            return
        attempt = self.attempts[stored.attempt]
        if attempt.fate in _INVISIBLE:
            self.anomalies.append(f"{partition}: {reader} reads {stored} at {offset}, which {attempt.fate.value}")
        before = self.read[partition].setdefault(offset, stored)
        if before != stored:
            self.anomalies.append(f"{partition}: {reader} reads {stored} at {offset}, where {before} was")
        if stored.source is not None:
            self.processed.add(stored.source)

    def _known(self, partition: TopicPartition, value: bytes) -> Stored | None:
        try:
            stored = Stored.of(value, self._inputs)
        except ValueError:
            return None
        is_sent = stored.attempt < len(self.attempts) and stored in self.attempts[stored.attempt].records
        return stored if is_sent and stored.partition == partition else None

    # --- checks at the end

    def findings(
        self, log: Mapping[TopicPartition, Sequence[tuple[int, bytes]]], commits: Mapping[TopicPartition, int]
    ) -> list[str]:
        """All violations. `log` is what a reader of committed records gets in the end, `commits` are the offsets of the
        processors' group.
        """
        visible: dict[TopicPartition, dict[int, Stored]] = {partition: {} for partition in log}
        found: list[str] = []
        for partition, records in log.items():
            for offset, value in records:
                stored = self._known(partition, value)
                if stored is None:
                    found.append(f"{partition}: at {offset} is {value[:40]!r}, which was never sent there")
                else:
                    visible[partition][offset] = stored
        found += self._atomicity(visible)
        for partition, by_offset in visible.items():
            found += self._order(partition, by_offset)
            found += self._unread(partition, by_offset)
        found += self._processing(visible, commits)
        return [*found, *self.anomalies]

    def _atomicity(self, visible: Mapping[TopicPartition, Mapping[int, Stored]]) -> Iterator[str]:
        seen: Counter[Stored] = Counter(stored for by_offset in visible.values() for stored in by_offset.values())
        for stored, count in seen.items():
            if count > 1:
                yield f"{stored.partition}: {stored} is visible {count} times"
        by_attempt = Counter(stored.attempt for stored in seen)
        for attempt in self.attempts:
            count, total = by_attempt[attempt.number], len(attempt.records)
            if attempt.fate in _INVISIBLE and count:
                yield f"{attempt} {attempt.fate.value}, but {count} of its {total} records are visible"
            elif attempt.fate is Fate.COMMITTED and count < total:
                yield f"{attempt} was committed, but {count} of its {total} records are visible"
            elif 0 < count < total:
                yield f"{attempt} is visible in part: {count} of its {total} records are"

    def _order(self, partition: TopicPartition, by_offset: Mapping[int, Stored]) -> Iterator[str]:
        last: dict[Producer, Stored] = {}
        for offset, stored in sorted(by_offset.items()):
            producer = self.attempts[stored.attempt].producer
            before = last.get(producer)
            if before is not None and (stored.attempt, stored.number) < (before.attempt, before.number):
                yield f"{partition}: at {offset} is {stored}, after {before} of the same producer"
            last[producer] = stored

    def _unread(self, partition: TopicPartition, by_offset: Mapping[int, Stored]) -> Iterator[str]:
        read = self.read[partition]
        for offset, stored in read.items():
            if by_offset.get(offset) != stored:
                yield f"{partition}: {stored} was read at {offset}, where now {by_offset.get(offset)} is"
        for offset, stored in by_offset.items():
            if offset not in read:
                yield f"{partition}: {stored} at {offset} was not read"

    def _processing(
        self, visible: Mapping[TopicPartition, Mapping[int, Stored]], commits: Mapping[TopicPartition, int]
    ) -> Iterator[str]:
        outputs: dict[Source, Stored] = {}
        for partition, by_offset in visible.items():
            for stored in by_offset.values() if partition.topic == self._outputs else ():
                if stored.source is None:
                    continue
                before = outputs.setdefault(stored.source, stored)
                if before is not stored:
                    yield f"input {stored.source} was processed twice, by {before} and by {stored}"
                if stored.source.offset >= commits.get(stored.source.partition, 0):
                    where = commits.get(stored.source.partition)
                    yield f"input {stored.source} was processed by {stored}, but the group is at {where}"
        for partition, by_offset in visible.items():
            for offset in by_offset if partition.topic == self._inputs else ():
                source = Source(partition, offset)
                if source not in outputs:
                    is_passed = offset < commits.get(partition, 0)
                    yield f"input {source} was never processed{', and the group is past it' if is_passed else ''}"

    def unprocessed(self, log: Mapping[TopicPartition, Sequence[tuple[int, bytes]]]) -> list[Source]:
        """Committed inputs whose output no reader has seen yet."""
        return [
            Source(partition, offset)
            for partition, records in log.items()
            if partition.topic == self._inputs
            for offset, _ in records
            if Source(partition, offset) not in self.processed
        ]
