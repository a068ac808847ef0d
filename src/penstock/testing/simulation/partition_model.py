"""A model of one partition across all brokers, and what contradicts it. Pure.

A `ReplicaModel` is one broker's log in one life of its process: the batches as written, and those that its disk would
hold if power failed now. A `PartitionModel` has the replicas, the leader of each epoch, and what was committed.
Nothing is taken on a broker's word (invariants 1 to 6 of a run):

What a broker calls durable is on its disk. What a leader's high watermark passes is held by at least
min.insync.replicas members of the ISR, the leader among them: on disk, or in their logs if the topic does not sync.
From then on it is committed: every later leader has it, and no other bytes are committed in its place. Only committed
records are shown or acknowledged. An epoch has one leader. An offset and epoch have the same bytes on every disk.
Every method returns a sentence if something is wrong, else None.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Batch(NamedTuple):
    """One batch in a log."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    producer: tuple[int, int, int] | None
    """Id, epoch and first sequence of an idempotent producer."""

    def __str__(self) -> str:
        return f"{self.base_offset}..{self.next_offset - 1} of epoch {self.epoch} ({self.crc & 0xFFFFFFFF:08x})"


class ReplicaModel:
    """The log of one broker, in one run of its process."""

    def __init__(self, broker: str, life: int, batches: Iterable[Batch] = ()) -> None:
        self.broker = broker
        self.life = life
        self.batches: dict[int, Batch] = {}
        self.offsets: list[int] = []
        self.held: dict[int, Batch] = {}
        """What its disk has for good, by base offset. Where the log was cut this may be another batch than the log's,
        until the cut is durable too.
        """
        self.flushed = 0
        """The offset up to which the broker reports its log as durable."""
        self.watermark = -1
        self.led_epoch = -1
        self.agrees_to = 0
        """The offset up to which it was compared with what is committed."""
        for batch in batches:
            self.append(batch)

    @property
    def end(self) -> int:
        return self.batches[self.offsets[-1]].next_offset if self.offsets else 0

    def append(self, batch: Batch) -> None:
        self.offsets.append(batch.base_offset)
        self.batches[batch.base_offset] = batch

    def cut(self, offset: int) -> None:
        """Remove everything from `offset` on, including a batch that contains it."""
        while self.offsets and self.batches[self.offsets[-1]].next_offset > offset:
            del self.batches[self.offsets.pop()]
        self.flushed = min(self.flushed, offset)
        self.agrees_to = min(self.agrees_to, self.end)

    @property
    def held_end(self) -> int:
        """The end of the newest batch on its disk."""
        return max((batch.next_offset for batch in self.held.values()), default=0)

    def between(self, start: int, end: int) -> Iterable[Batch]:
        """The batches that begin in [start, end)."""
        first = bisect_left(self.offsets, start)
        for offset in self.offsets[first:]:
            if offset >= end:
                return
            yield self.batches[offset]


class PartitionModel:
    """The model of one partition."""

    def __init__(self, name: str, *, syncs: bool) -> None:
        self.name = name
        self.syncs = syncs
        self.committed: dict[int, Batch] = {}
        self.committed_end = 0
        self.leaders: dict[int, tuple[str, int]] = {}
        self.doubted: set[str] = set()
        """Brokers that ended badly since they were last found to be in sync: of what they had not synced, nobody knows
        what they still have.
        """
        self.forgotten_end = 0
        """The end of what was committed at the last loss."""
        self._forgotten: dict[int, Batch] = {}
        """What was committed before the loss; a leader that still has it may serve it."""
        self._written: dict[tuple[int, int], int] = {}
        self._offsets: list[int] = []
        self._committed_in: dict[int, int] = {}
        self._latest: dict[str, ReplicaModel] = {}
        self._before_loss: list[ReplicaModel] = []

    def met(self, replica: ReplicaModel) -> None:
        """A new log: of another broker, or of a new process, which may have another disk."""
        before = self._latest.get(replica.broker)
        if before is not None:
            had, has = self._copy(before), self._copy(replica)
            if any(has.get(offset) != batch for offset, batch in had.items()):
                self._before_loss.append(before)
        self._latest[replica.broker] = replica

    def _copy(self, replica: ReplicaModel) -> Mapping[int, Batch]:
        """The batches of a replica that count as copies: the durable ones, if the topic requires that."""
        return replica.held if self.syncs else replica.batches

    def appended(self, replica: ReplicaModel, batch: Batch) -> str | None:
        replica.append(batch)
        known = self._written.setdefault((batch.base_offset, batch.epoch), batch.crc)
        if known != batch.crc:
            return f"{self.name}: {replica.broker} stores {batch}, which others have as {known & 0xFFFFFFFF:08x}"
        return None

    def flushed(self, replica: ReplicaModel, offset: int) -> str | None:
        """A broker says that everything below `offset` is durable: its disk has what it said so of for the first time.

        Not the rest: a bit may have flipped there since, where nobody has looked yet.
        """
        start, replica.flushed = replica.flushed, offset
        for batch in replica.between(start, offset):
            held = replica.held.get(batch.base_offset)
            if held != batch:
                return f"{self.name}: {replica.broker} reports {batch} as durable, but its disk has {held}"
        return None

    def cut(self, replica: ReplicaModel, offset: int, *, is_in_sync: bool) -> str | None:
        """A replica truncates its log to `offset`: an in-sync one may drop what it has alone, not what is committed."""
        gone = [
            batch for batch in replica.between(offset, replica.end) if self.committed.get(batch.base_offset) == batch
        ]
        replica.cut(offset)
        if gone and is_in_sync:
            return f"{self.name}: {replica.broker} is in sync and truncates {gone[0]}, which is committed"
        return None

    def led(self, replica: ReplicaModel, epoch: int) -> str | None:
        """A broker leads in an epoch: no other broker does, and it has everything committed."""
        if replica.led_epoch == epoch:
            return None
        if epoch < replica.led_epoch:
            return f"{self.name}: {replica.broker} leads in epoch {epoch} after {replica.led_epoch}"
        replica.led_epoch = epoch
        replica.watermark = -1
        leader = self.leaders.setdefault(epoch, (replica.broker, replica.life))
        if leader != (replica.broker, replica.life):
            return f"{self.name}: epoch {epoch} is led by {leader[0]} and by {replica.broker}"
        # Who learns late that it led has not what a later leader has committed meanwhile, and can commit nothing.
        later = next((offset for offset in self._offsets if self._committed_in[offset] >= epoch), self.committed_end)
        return self.lacking(replica, later, f"leads in epoch {epoch}")

    def lacking(self, replica: ReplicaModel, end: int, why: str) -> str | None:
        """What a replica lacks, or has differently, of everything committed below `end`."""
        if replica.agrees_to >= min(end, self.committed_end):
            return None  # nothing is committed there that it was not compared with
        for offset in self._offsets[bisect_left(self._offsets, replica.agrees_to) :]:
            if offset >= end:
                break
            batch, found = self.committed[offset], replica.batches.get(offset)
            if found != batch:
                return f"{self.name}: {replica.broker} {why} and has {found} where {batch} is committed"
        replica.agrees_to = max(replica.agrees_to, min(end, self.committed_end))
        return None

    def advanced(self, replica: ReplicaModel, watermark: int, insync_demanded: int, isr: Collection[str]) -> str | None:
        """The high watermark of a leader with this ISR is `watermark`."""
        if watermark == replica.watermark:
            return None
        if watermark < replica.watermark:
            return f"{self.name}: the high watermark of {replica.broker} falls from {replica.watermark} to {watermark}"
        start = max(0, replica.watermark)
        replica.watermark = watermark
        new = [
            batch
            for batch in replica.between(start, watermark)
            if batch.base_offset not in self.committed and self._forgotten.get(batch.base_offset) != batch
        ]
        if new:
            holders = [broker for broker in sorted(isr) if self._has_held(broker, replica, new)]
            if replica.broker not in holders or len(holders) < insync_demanded:
                held = {broker: life.held_end for broker, life in sorted(self._latest.items())}
                return (
                    f"{self.name}: the high watermark of {replica.broker} is {watermark}, "
                    f"{'durable on' if self.syncs else 'in the logs of'} {', '.join(holders) or 'no broker'}, "
                    f"where {insync_demanded} of {', '.join(sorted(isr))} are required: {held}"
                )
        return self._commit(replica, start, watermark)

    def _has_held(self, broker: str, leader: ReplicaModel, batches: Iterable[Batch]) -> bool:
        """Whether a broker has a copy of all that, or had it, and told the leader so in time, on a disk that was
        damaged or lost since. The leader itself must have it now.
        """
        if broker == leader.broker:
            lives = [leader]
        else:
            latest = self._latest.get(broker)
            lives = [life for life in self._before_loss if life.broker == broker]
            lives += [] if latest is None else [latest]
        return any(all(copy.get(batch.base_offset) == batch for batch in batches) for copy in map(self._copy, lives))

    def _commit(self, replica: ReplicaModel, start: int, end: int) -> str | None:
        for batch in replica.between(start, end):
            before = self.committed.get(batch.base_offset)
            if before is None:
                insort(self._offsets, batch.base_offset)
            elif before != batch:
                return f"{self.name}: {replica.broker} commits {batch}, where {before} is committed"
            self.committed[batch.base_offset] = batch
            self._committed_in.setdefault(batch.base_offset, replica.led_epoch)
        self.committed_end = max(self.committed_end, end)
        return None

    def crashed(self, broker: str, trusted: Collection[str]) -> bool:
        """A broker is gone, and what it had not synced with it; whether nothing is left that is `is_lost`."""
        self.doubted.add(broker)
        return self.is_lost(trusted)

    def is_lost(self, trusted: Collection[str]) -> bool:
        """Whether all who are in sync or eligible, `trusted` by the metadata, have ended badly since they were found to
        be: then nobody is known to have what is committed, if the topic does not sync before it acknowledges.
        """
        return not self.syncs and self.doubted.issuperset(trusted)

    def lose(self) -> None:
        """What was committed may be gone, and something else may be committed in its place."""
        self.forgotten_end = max(self.forgotten_end, self.committed_end)
        self.committed_end = 0
        self._forgotten.update(self.committed)
        self.committed.clear()
        self._offsets.clear()
        self._committed_in.clear()
        for replica in self._latest.values():
            replica.agrees_to = 0

    def shown(self, offset: int, to: str) -> str | None:
        """A client got the record at `offset`; the response may have been in flight for long."""
        if offset >= max(self.committed_end, self.forgotten_end):
            return f"{self.name}: {to} offset {offset}, but only {self.committed_end} is committed"
        return None

    def sequences(self, replica: ReplicaModel) -> str | None:
        """Each producer's batches are in the log once, in order (invariant 6)."""
        last: dict[tuple[int, int], int] = {}
        for offset in replica.offsets:
            batch = replica.batches[offset]
            if batch.producer is None:
                continue
            producer, epoch, sequence = batch.producer
            if sequence <= last.get((producer, epoch), -1):
                return f"{self.name}: {replica.broker} has sequence {sequence} of producer {producer} again at {batch}"
            last[producer, epoch] = sequence
        return None
