"""A partition with the same offsets as its source. The target's own end is the position.

Every batch is appended under one producer id that never changes, with a sequence that follows from its offset: the
offset, less the offsets of gaps before it. A broker accepts only the next sequence, so each append is a compare-and-set
on the end of the log. A late batch of a process that was killed, or that does not know yet that it has lost the
partition, is either a duplicate, which is dropped, or exactly the next batch, which is appended.

A gap is filled by transactions that write nothing but their marker, one offset each. The gap is recorded before, so
that sequences can be computed from offsets; see `PartitionState.missing_before`.

    source   0 1 2 3 | commit marker 4 | 5 6        target   0..3 sequence 0, marker of an empty transaction 4,
                                                             5..6 sequence 4, since one offset is missing before 5
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from penstock.client.admin import AsyncAdmin
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import OffsetOutOfRange, PenstockError, UnknownTopic
from penstock.client.producer.producer_batch import ProducerId
from penstock.mirror.batches import Data, Gap, padding, same_records, stamped
from penstock.mirror.errors import FOREIGN, GAP, REJECTED, SHIFTED, MirrorStopped
from penstock.mirror.source import EARLIEST, LATEST, UNCOMMITTED, Arrival, SourceReader, fetch_once, lost, offset_of
from penstock.mirror.source import truncated as truncated_at
from penstock.mirror.state import PartitionState, SourcePartition
from penstock.mirror.target import TargetWriter
from penstock.wire.protocol import ErrorCode

_log = logging.getLogger(__name__)
# Brokers know the last five batches of a producer; a sequence that is older is rejected, which is as good here. Small
# batches need many in flight where an acknowledgement waits for a disk.
_IN_FLIGHT: Final = 32
_IN_FLIGHT_BYTES: Final = 4 * 1024 * 1024
_TAIL_BYTES: Final = 1024 * 1024
_FRESH_MS: Final = 60_000.0
_MARKER_POLL_S: Final = 0.005
_LOOKS: Final = 4
_REJECTIONS: Final = 5
_REPEATED: Final = frozenset(
    {ErrorCode.DUPLICATE_SEQUENCE_NUMBER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
_FOR_GOOD: Final = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
    }
)


class _OutOfSequence(PenstockError):
    """The target has records, or markers, that were not there when the session began."""


class ShardState(Protocol):
    """What a partition needs from its shard."""

    async def fill_gap(self, partition: TopicPartition, key: SourcePartition, state: PartitionState) -> None:
        """Record the state, then append a marker for every offset of its gap."""

    async def save(self, key: SourcePartition, state: PartitionState) -> None:
        """Record a state."""


class IdenticalPartition:
    """Mirrors one partition until it is cancelled, or until MirrorStopped or ShardLost ends it."""

    def __init__(
        self,
        key: SourcePartition,
        target: TopicPartition,
        state: PartitionState,
        *,
        reader: SourceReader,
        writer: TargetWriter,
        admin: AsyncAdmin,
        producer: ProducerId,
        shard: ShardState,
        limits: Callable[[str], int],
    ) -> None:
        self.key = key
        self.target = target
        self.state = state
        self.position = -1
        self._source = TopicPartition(key.topic, key.partition)
        self._reader = reader
        self._writer = writer
        self._admin = admin
        self._producer = producer
        self._shard = shard
        self._limits = limits
        self._in_flight: deque[tuple[asyncio.Future[int], Data]] = deque()
        self._in_flight_bytes = 0
        self._is_known = False
        self._began_at = -1

    @property
    def _cluster(self) -> ClusterClient:
        return self._writer.cluster

    async def run(self) -> None:
        """Sessions, one after the other: each begins at the end of the target."""
        backoff = self._cluster.new_backoff()
        rejected_at, rejections = -1, 0
        while True:
            began_at = self.position
            try:
                await self._session()
            except MirrorStopped:
                raise
            except _OutOfSequence as error:
                rejections = rejections + 1 if self._began_at == rejected_at else 1
                rejected_at = self._began_at
                if rejections == _REJECTIONS:
                    raise self._shifted() from error
                _log.info("partition restarts: partition=%s position=%s reason=%s", self.key, rejected_at, error)
            except PenstockError as error:
                if error.code in _FOR_GOOD:
                    raise self._rejected(error) from error
                if isinstance(error, UnknownTopic):
                    self._cluster.refresh_soon()
                if self.position != began_at:
                    backoff = self._cluster.new_backoff()
                _log.info("partition restarts: partition=%s position=%s reason=%s", self.key, self.position, error)
            await asyncio.sleep(backoff.failed(self._cluster.clock.monotonic_ms()) / 1000)

    async def _session(self) -> None:
        self._is_known = False
        self._began_at = self.position = await offset_of(self._cluster, self.target, LATEST)
        await self._check_source()
        await self._check_tail()
        if self.state.stopped:
            self.state = msgspec.structs.replace(self.state, stopped="", reason="")
            await self._shard.save(self.key, self.state)
        subscription = self._reader.subscribe(self._source, self.position, -1, self._limits("fetch.max.bytes"))
        try:
            while True:
                while self._in_flight and not subscription.has_arrivals:
                    await self._settled(1)
                await self._write(await subscription.get())
        except OffsetOutOfRange:
            await self._check_source()
            raise
        finally:
            self._reader.unsubscribe(subscription)
            # Whatever becomes of them is in the log, or is not, when the next session asks for its end.
            await asyncio.gather(*(each for each, _ in self._in_flight), return_exceptions=True)
            self._in_flight.clear()
            self._in_flight_bytes = 0

    # --- the beginning of a session

    async def _check_source(self) -> None:
        """The source must reach from the position on; raises MirrorStopped. Pads a new target."""
        start = await offset_of(self._reader.cluster, self._source, EARLIEST)
        if self.position < start:
            if self.position > 0 and self.position > self.state.padding:
                raise lost(self._source, self.position, start)
            await self._pad(start)
        elif self.state.padding > 0:
            await self._delete_padding()
        for look in range(_LOOKS):
            end = await offset_of(self._reader.cluster, self._source, LATEST)
            if end >= self.position:
                return
            # A new leader may not know yet how far its predecessor's records were committed.
            await asyncio.sleep(0.1 * 2**look)
        raise truncated_at(self._source, self.position, end)

    async def _pad(self, start: int) -> None:
        """Bring the end of a new target to where the source begins, with records that are deleted at once."""
        limit = self._limits("max.padding.offsets")
        if start > limit:
            raise MirrorStopped(
                GAP,
                f"{self._source} begins at {start} at the source; the same offsets in the target need as many filler "
                f"records, more than max.padding.offsets={limit}",
                "Raise it, or use mode=mapped",
            )
        self.state = msgspec.structs.replace(self.state, padding=start)
        await self._shard.save(self.key, self.state)
        _log.info("padding begins: partition=%s from=%s to=%s", self.key, self.position, start)
        while self.position < start:
            await self._append(padding(self.position, start))
        await self._settled(len(self._in_flight))
        await self._delete_padding()

    async def _delete_padding(self) -> None:
        begins = await offset_of(self._cluster, self.target, EARLIEST)
        if begins < self.state.padding:
            (outcome,) = (await self._admin.delete_records({self.target: self.state.padding})).values()
            if isinstance(outcome, PenstockError):
                raise outcome

    async def _check_tail(self) -> None:
        """The last record of the target must be the source's at that offset: no other client wrote to the target, and
        the source was neither truncated nor recreated."""
        offset = self.position - 1
        ours = await offset_of(self._cluster, self.target, EARLIEST)
        theirs = await offset_of(self._reader.cluster, self._source, EARLIEST)
        if offset < max(ours, theirs, 0):
            return
        mine = await fetch_once(self._cluster, self.target, offset, max_bytes=_TAIL_BYTES, isolation=UNCOMMITTED)
        yours = await fetch_once(
            self._reader.cluster, self._source, offset, max_bytes=_TAIL_BYTES, isolation=UNCOMMITTED
        )
        if not same_records(mine.records, yours.records, offset):
            raise MirrorStopped(
                FOREIGN,
                f"{self.target} of the target and {self._source} of the source have different records at offset "
                f"{offset}: the source was truncated or created again, or another client writes to the target",
                "To mirror it from the start again, delete the topic in the target",
            )

    # --- writing

    async def _write(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            if self._cluster.clock.monotonic_ms() - arrival.fetched_ms > _FRESH_MS:
                # A process that slept may not own the partition any more, and brokers forget sequences after a day.
                raise PenstockError("fetched records were not written in time", retriable=True)
            if isinstance(arrival.step, Gap):
                await self._settled(len(self._in_flight))
                await self._fill(arrival.step)
            else:
                await self._append(arrival.step)

    async def _append(self, step: Data) -> None:
        """Send a batch. Until one was acknowledged nothing else is in flight: a log that does not know the producer
        would accept any sequence."""
        while len(self._in_flight) >= _IN_FLIGHT or self._in_flight_bytes > _IN_FLIGHT_BYTES:
            await self._settled(1)
        if step.offset != self.position:
            raise PenstockError(f"{self.key} was fetched at {step.offset}, not at {self.position}", retriable=True)
        sequence = step.offset - self.state.missing_before(step.offset)
        batch = stamped(step.batch, *self._producer, sequence, transactional=False)
        self._in_flight.append((self._writer.append(self.target, batch), step))
        self._in_flight_bytes += len(step.batch)
        self.position = step.next_offset
        if not self._is_known:
            await self._settled(1)
            self._is_known = True

    async def _settled(self, count: int) -> None:
        """Wait for the oldest appends, and check where they are."""
        for _ in range(count):
            future, step = self._in_flight[0]
            try:
                base_offset = await future
            except PenstockError as error:
                if error.code in _REPEATED:
                    raise _OutOfSequence(f"the target does not expect offset {step.offset}: {error}") from error
                raise
            self._in_flight.popleft()
            self._in_flight_bytes -= len(step.batch)
            if base_offset not in (step.offset, -1):
                raise MirrorStopped(
                    FOREIGN,
                    f"{self.target} took the records from offset {step.offset} on at {base_offset}: another client "
                    "writes to it, or a transaction marker was repeated",
                    "Keep other producers away from it. To mirror it from the start again, delete it",
                )

    async def _fill(self, gap: Gap) -> None:
        limit = self._limits("max.gap.offsets")
        if gap.count > limit:
            raise MirrorStopped(
                GAP,
                f"{self._source} has no records at {gap.offset}..{gap.next_offset - 1}, which are more offsets than "
                f"max.gap.offsets={limit}",
                "Raise it (a gap takes some milliseconds per offset), or use mode=mapped",
            )
        if gap.offset != self.position:
            raise PenstockError(f"{self.key} was fetched at {gap.offset}, not at {self.position}", retriable=True)
        self.state = msgspec.structs.replace(
            self.state,
            gap_offset=gap.offset,
            gap_count=gap.count,
            before_gap=self.state.missing_before(gap.offset),
        )
        await self._shard.fill_gap(self.target, self.key, self.state)
        await until_end(self._cluster, self.target, gap.next_offset)
        self.position = gap.next_offset

    def _shifted(self) -> MirrorStopped:
        """Sequences and offsets do not fit: there is a marker too many in the target.

        A coordinator that is killed between a marker and the end of its transaction writes the marker again.
        """
        return MirrorStopped(
            SHIFTED,
            f"{self.target} ends at {self._began_at}, which is not where {self._source} continues: the target repeated "
            "a transaction marker while a gap was filled, so the next offsets would differ",
            "Nothing is lost. To mirror it from the start again, delete the topic in the target, or use mode=mapped",
        )

    def _rejected(self, error: PenstockError) -> MirrorStopped:
        return MirrorStopped(
            REJECTED,
            f"the target rejects a batch of {self._source}: {error}",
            "Check the settings of the topic in the target, such as max.message.bytes",
        )


async def until_end(cluster: ClusterClient, partition: TopicPartition, end: int) -> None:
    """Wait until the markers of a transaction are in the log; they follow its commit."""
    while await offset_of(cluster, partition, LATEST) < end:
        await asyncio.sleep(_MARKER_POLL_S)
