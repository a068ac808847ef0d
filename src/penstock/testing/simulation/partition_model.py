"""A model of one partition across all brokers, and the checks of its invariants. Pure.

A `ReplicaModel` is one broker's log in one process: the batches as written, and those that its disk would hold if
power failed now. A `PartitionModel` has the replicas, the leader of each epoch, and what was committed. It checks
invariants 1 to 6 of a run, and does not rely on what a broker reports:

A batch that a broker reports as durable is on its disk, also after the log was moved to another. A batch below a
leader's high watermark is held by at least min.insync.replicas members of the ISR, the leader among them: on disk, or
in their logs if the topic does not sync. From then on it is committed: every later leader has it, and no other bytes
are committed at its offset. Only committed records are served or acknowledged. An epoch has one leader. An offset and
epoch have the same bytes on every disk.
A check returns a sentence about the violation, or None.
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
    """The log of one broker in one process."""

    def __init__(self, broker: str, incarnation: int, batches: Iterable[Batch] = ()) -> None:
        self.broker = broker
        self.incarnation = incarnation
        self.batches: dict[int, Batch] = {}
        self.offsets: list[int] = []
        self.held: dict[int, Batch] = {}
        """The durable batches on its disk, by base offset. After a truncation they may differ from the log's, until the
        truncation is durable too.
        """
        self.flushed = 0
        """The offset up to which the broker reports its log as durable."""
        self.watermark = -1
        self.led_epoch = -1
        self.compared_to = 0
        """The offset up to which it was found equal to what is committed."""
        for batch in batches:
            self.append(batch)

    @property
    def end(self) -> int:
        return self.batches[self.offsets[-1]].next_offset if self.offsets else 0

    def append(self, batch: Batch) -> None:
        self.offsets.append(batch.base_offset)
        self.batches[batch.base_offset] = batch

    def truncate(self, offset: int) -> None:
        """Remove everything from `offset` on, including a batch that contains it."""
        while self.offsets and self.batches[self.offsets[-1]].next_offset > offset:
            del self.batches[self.offsets.pop()]
        self.flushed = min(self.flushed, offset)
        self.compared_to = min(self.compared_to, self.end)

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
        self.unclean: set[str] = set()
        """Brokers that ended uncleanly since they were last found in sync. They may lack records that they had not
        synced.
        """
        self.lost_end = 0
        """The end of what was committed at the last loss."""
        self._lost: dict[int, Batch] = {}
        """Batches committed before the loss. A leader that still has them may serve them."""
        self._written: dict[tuple[int, int], int] = {}
        self._offsets: list[int] = []
        self._committed_in: dict[int, int] = {}
        self._latest: dict[str, ReplicaModel] = {}
        self._before_loss: list[ReplicaModel] = []

    def opened(self, replica: ReplicaModel) -> None:
        """A broker or a new process opens its log. Its disk may be another one than before."""
        before = self._latest.get(replica.broker)
        if before is not None:
            previous, current = self._copies(before), self._copies(replica)
            if any(current.get(offset) != batch for offset, batch in previous.items()):
                self._before_loss.append(before)
        self._latest[replica.broker] = replica

    def _copies(self, replica: ReplicaModel) -> Mapping[int, Batch]:
        """The batches of a replica that count as copies: the durable ones, if the topic requires that."""
        return replica.held if self.syncs else replica.batches

    def appended(self, replica: ReplicaModel, batch: Batch) -> str | None:
        replica.append(batch)
        known = self._written.setdefault((batch.base_offset, batch.epoch), batch.crc)
        if known != batch.crc:
            return f"{self.name}: {replica.broker} stores {batch}, which others have as {known & 0xFFFFFFFF:08x}"
        return None

    def flushed(self, replica: ReplicaModel, offset: int) -> str | None:
        """A broker reports everything below `offset` as durable. Its disk has the batches that are new in this report.

        Older batches are not checked: a bit may have flipped there since, and the broker has not read it yet.
        """
        start, replica.flushed = replica.flushed, offset
        for batch in replica.between(start, offset):
            held = replica.held.get(batch.base_offset)
            if held != batch:
                return f"{self.name}: {replica.broker} reports {batch} as durable, but its disk has {held}"
        return None

    def relocated(self, replica: ReplicaModel, before: Mapping[int, Batch]) -> str | None:
        """A log was moved to another disk of its broker, which has every batch that the disk `before` held."""
        for offset, batch in replica.batches.items():
            held = replica.held.get(offset)
            if before.get(offset) == batch and held != batch:
                return f"{self.name}: {replica.broker} moved {batch} to another disk, which has {held}"
        return None

    def truncated(self, replica: ReplicaModel, offset: int, *, is_in_sync: bool) -> str | None:
        """A replica truncates its log to `offset`. An in-sync replica may drop uncommitted batches only."""
        dropped = [
            batch for batch in replica.between(offset, replica.end) if self.committed.get(batch.base_offset) == batch
        ]
        replica.truncate(offset)
        if dropped and is_in_sync:
            return f"{self.name}: {replica.broker} is in sync and truncates {dropped[0]}, which is committed"
        return None

    def led(self, replica: ReplicaModel, epoch: int) -> str | None:
        """A broker leads in an epoch: no other broker leads in it, and the leader has every committed batch."""
        if replica.led_epoch == epoch:
            return None
        if epoch < replica.led_epoch:
            return f"{self.name}: {replica.broker} leads in epoch {epoch} after {replica.led_epoch}"
        replica.led_epoch = epoch
        replica.watermark = -1
        leader = self.leaders.setdefault(epoch, (replica.broker, replica.incarnation))
        if leader != (replica.broker, replica.incarnation):
            return f"{self.name}: epoch {epoch} is led by {leader[0]} and by {replica.broker}"
        # A broker that learns late of its leadership lacks what a later leader has committed, and can commit nothing.
        later = next((offset for offset in self._offsets if self._committed_in[offset] >= epoch), self.committed_end)
        return self.missing(replica, later, f"leads in epoch {epoch}")

    def missing(self, replica: ReplicaModel, end: int, why: str) -> str | None:
        """The first batch committed below `end` that a replica lacks or has with other bytes."""
        if replica.compared_to >= min(end, self.committed_end):
            return None  # everything committed there was compared already
        for offset in self._offsets[bisect_left(self._offsets, replica.compared_to) :]:
            if offset >= end:
                break
            batch, found = self.committed[offset], replica.batches.get(offset)
            if found != batch:
                return f"{self.name}: {replica.broker} {why} and has {found} where {batch} is committed"
        replica.compared_to = max(replica.compared_to, min(end, self.committed_end))
        return None

    def advanced(self, replica: ReplicaModel, watermark: int, insync_required: int, isr: Collection[str]) -> str | None:
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
            if batch.base_offset not in self.committed and self._lost.get(batch.base_offset) != batch
        ]
        if new:
            holders = [broker for broker in sorted(isr) if self._has_copy(broker, replica, new)]
            if replica.broker not in holders or len(holders) < insync_required:
                held = {broker: latest.held_end for broker, latest in sorted(self._latest.items())}
                return (
                    f"{self.name}: the high watermark of {replica.broker} is {watermark}, "
                    f"{'durable on' if self.syncs else 'in the logs of'} {', '.join(holders) or 'no broker'}, "
                    f"where {insync_required} of {', '.join(sorted(isr))} are required: {held}"
                )
        return self._commit(replica, start, watermark)

    def _has_copy(self, broker: str, leader: ReplicaModel, batches: Iterable[Batch]) -> bool:
        """Whether a broker has copies of all these batches, or had them on a disk that was damaged or lost after it had
        reported them to the leader. The leader itself must have them now.
        """
        if broker == leader.broker:
            replicas = [leader]
        else:
            latest = self._latest.get(broker)
            replicas = [each for each in self._before_loss if each.broker == broker]
            replicas += [] if latest is None else [latest]
        return any(
            all(copy.get(batch.base_offset) == batch for batch in batches) for copy in map(self._copies, replicas)
        )

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
        """A broker ended uncleanly and may have lost what it had not synced. Returns `is_lost`."""
        self.unclean.add(broker)
        return self.is_lost(trusted)

    def is_lost(self, trusted: Collection[str]) -> bool:
        """Whether all replicas that the metadata trusts, those in the ISR or eligible, have ended uncleanly since they
        were found in sync. Then, if the topic does not sync, no replica is known to have what is committed.
        """
        return not self.syncs and self.unclean.issuperset(trusted)

    def lose(self) -> None:
        """The committed batches may be gone, and others may be committed at their offsets."""
        self.lost_end = max(self.lost_end, self.committed_end)
        self.committed_end = 0
        self._lost.update(self.committed)
        self.committed.clear()
        self._offsets.clear()
        self._committed_in.clear()
        for replica in self._latest.values():
            replica.compared_to = 0

    def served(self, offset: int, to: str) -> str | None:
        """A client got the record at `offset`. The response may have been in flight for a long time."""
        if offset >= max(self.committed_end, self.lost_end):
            return f"{self.name}: {to} offset {offset}, but only {self.committed_end} is committed"
        return None

    def sequences(self, replica: ReplicaModel) -> str | None:
        """The log has each producer's batches once, in order (invariant 6)."""
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
