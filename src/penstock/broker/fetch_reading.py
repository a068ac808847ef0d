"""What one fetch finds: a pass over the partitions that may have something to tell.

Noun: a `Reader`, a consumer or a follower, and what it may see of a partition.

Rule: a consumer sees what is below the high watermark, or below the last stable offset if it wants committed records
only; from a replica that does not lead only if it told its rack, as one does that was sent there. A follower sees
everything, from the leader; that it asks from an offset says that it has what is below, unless the two logs have
parted, which it is told before anything else. One that is not in sync is given nothing of a throttled partition while
more was sent of those than leader.replication.throttled.rate allows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from penstock.broker.error_mapping import EXPECTED, error_code_of
from penstock.broker.fetch_conversion import (
    CONVERTED_BYTES,
    FIRST_VERSION_WITH_BATCHES,
    FIRST_VERSION_WITH_ZSTD,
    SCANNED_BYTES,
    without_zstd,
)
from penstock.broker.fetch_session_cache import Asked
from penstock.broker.fetch_sessions import SLICE, FetchContext
from penstock.broker.fetch_topic_ids import is_unknown
from penstock.broker.request import Request
from penstock.broker.whereabouts import why_missing
from penstock.log.errors import TooManyOpenFiles
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Region
from penstock.replication.following import Position
from penstock.replication.near_reads import THE_LEADER, nearest_replica
from penstock.replication.partition import Partition
from penstock.wire.error_codes import ErrorCode
from penstock.wire.schemas.fetch import AbortedTransaction, EpochEndOffset, FetchPartition, FetchRequest, PartitionData

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

READ_COMMITTED: Final = 1
_REPLICA_STATE_VERSION = 15


class Read:
    """What one pass found; `partitions` are those that are here and not at rest."""

    __slots__ = ("ends", "held_back", "is_urgent", "left", "partitions", "rows", "size")

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.ends = 0  # of a wide pass: the sum of what `ends_of` was when each partition was read
        self.held_back = 0  # rows without records, as the throttle would have it
        self.rows: list[tuple[str, PartitionData]] = []
        self.partitions: list[Partition] = []
        self.size = 0
        self.is_urgent = False  # there is something to tell that is no records: no need to wait for any


class Reader(ABC):
    """Who fetches."""

    is_follower = False

    def __init__(self, broker: Broker, request: Request) -> None:
        self.broker = broker
        self.message: FetchRequest = request.message
        self.version = request.version

    @abstractmethod
    def has_no_news(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
        """Whether there is no record for the reader, no error, and no offset that it does not know."""

    def delay_ms(self, partition: Partition) -> float:
        """How long the reader has to wait for records of this partition, as it is throttled; 0 if it has not."""
        return 0.0

    @abstractmethod
    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        """Fill in a partition's part of the answer; how many bytes of records it has."""


def reader_of(broker: Broker, request: Request) -> Reader:
    message: FetchRequest = request.message
    if request.version >= _REPLICA_STATE_VERSION:
        state = message.replica_state
        replica_id, replica_epoch = state.replica_id, state.replica_epoch
    else:
        replica_id, replica_epoch = message.replica_id, -1
    return _Consumer(broker, request) if replica_id < 0 else _Follower(broker, request, replica_id, replica_epoch)


def read_narrow(broker: Broker, context: FetchContext, reader: Reader, pending: Sequence[Asked]) -> Read:
    """One pass over what is pending, all at once."""
    most = min(reader.message.max_bytes, broker.settings.fetch_max_bytes)
    read = Read(most if reader.version >= FIRST_VERSION_WITH_ZSTD else _max_bytes(reader, most))
    _read_into(read, broker, context, reader, pending)
    return read


def read_wide(
    broker: Broker, context: FetchContext, reader: Reader, pending: Sequence[Asked]
) -> Generator[None, None, Read]:
    """One pass over what is pending, with a yield after every `SLICE` partitions."""
    read = Read(_max_bytes(reader, min(reader.message.max_bytes, broker.settings.fetch_max_bytes)))
    for begin in range(0, len(pending), SLICE):
        if context.is_overtaken:
            break  # what is found from here on would be of another request
        seen = len(read.partitions)
        _read_into(read, broker, context, reader, pending[begin : begin + SLICE])
        read.ends += ends_of(read.partitions[seen:])
        yield
    return read


def ends_of(partitions: Iterable[Partition]) -> int:
    """A number that is another one when a partition has grown, or its high watermark has moved."""
    return sum(partition.log.log_end_offset + partition.log.high_watermark for partition in partitions)


def _max_bytes(reader: Reader, most: int) -> int:
    if reader.version >= FIRST_VERSION_WITH_ZSTD:
        return most
    return min(most, SCANNED_BYTES if reader.version >= FIRST_VERSION_WITH_BATCHES else CONVERTED_BYTES)


def _read_into(read: Read, broker: Broker, context: FetchContext, reader: Reader, pending: Sequence[Asked]) -> None:
    ids = context.topic_ids
    left = read.left
    for topic, wanted in pending:
        partition = broker.replicas.get(topic, wanted.partition)
        if partition is not None:
            if ids is not None and ids.of(topic) != partition.topic_id:
                partition = None
            elif reader.has_no_news(context, partition, wanted):
                context.rest(partition)
                continue
            else:
                read.partitions.append(partition)
        data = PartitionData(partition_index=wanted.partition, high_watermark=-1, records=b"")
        read.rows.append((topic, data))
        if partition is None:
            has_no_id = ids is not None and (is_unknown(topic) or ids.of(topic) != _id_of(broker, topic))
            data.error_code = ErrorCode.UNKNOWN_TOPIC_ID if has_no_id else why_missing(broker, topic, wanted.partition)
            read.is_urgent = True
            continue
        try:
            size = reader.fill(partition, wanted, data, left, at_least_one=read.size == 0)
        except EXPECTED as error:
            data.error_code = error_code_of(error)
            read.is_urgent = True
            continue
        read.size += size
        if not size and reader.is_follower and reader.delay_ms(partition) > 0:
            read.held_back += 1
        if data.error_code or data.diverging_epoch.epoch >= 0 or data.preferred_read_replica >= 0:
            read.is_urgent = True
        left = max(0, left - size)
    read.left = left


def _id_of(broker: Broker, topic: str) -> bytes | None:
    found = broker.cluster.image.topics.get(topic)
    return None if found is None else found.topic_id


class _Consumer(Reader):
    """A client, who reads what is committed."""

    def __init__(self, broker: Broker, request: Request) -> None:
        super().__init__(broker, request)
        self._committed_only = self.message.isolation_level == READ_COMMITTED

    def has_no_news(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
        log = partition.log
        high_watermark, start = log.high_watermark, log.log_start_offset
        return (
            context.unchanged(partition.topic, partition.index, high_watermark, start)
            and max(high_watermark, start) <= wanted.fetch_offset <= log.log_end_offset
            and log.failure is None
            and self._refusal(partition, wanted) == ErrorCode.NONE
            and self._nearest(partition, wanted) == THE_LEADER
        )

    def _refusal(self, partition: Partition, wanted: FetchPartition) -> ErrorCode:
        if partition.leadership is None and (not self.message.rack_id or partition.leader < 0):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition.check_epoch(wanted.current_leader_epoch)

    def _nearest(self, partition: Partition, wanted: FetchPartition) -> int:
        rack, leadership = self.message.rack_id, partition.leadership
        if not rack or leadership is None or partition.is_alone:
            return THE_LEADER
        brokers = self.broker.cluster.image.brokers
        return nearest_replica(leadership, rack, wanted.fetch_offset, partition.log.log_start_offset, brokers)

    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        data.error_code = self._refusal(partition, wanted)
        if data.error_code:
            return 0
        log = partition.log
        upper = log.last_stable_offset if self._committed_only else log.high_watermark
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        data.aborted_transactions = [] if self._committed_only else None
        if self.message.rack_id:
            data.preferred_read_replica = self._nearest(partition, wanted)
            if data.preferred_read_replica != THE_LEADER:
                return 0
        limit = min(left, wanted.partition_max_bytes)
        region = _read(log, wanted.fetch_offset, limit, upper) if limit > 0 or at_least_one else None
        if region is None or (region.size > limit and not at_least_one):
            return 0
        if self._committed_only:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in log.aborted_between(wanted.fetch_offset, upper)
            ]
        # Readers from before batches get them converted, when all are read.
        if FIRST_VERSION_WITH_BATCHES <= self.version < FIRST_VERSION_WITH_ZSTD:
            region = without_zstd(region)
        data.records = region
        return region.size


def _read(log: PartitionLog, offset: int, limit: int, upper: int | None) -> Region | None:
    """None also where the process cannot open another file: those of the answer are closed when it is sent, and who
    asks again finds others open.
    """
    try:
        return log.read(offset, limit, upper_offset=upper)
    except TooManyOpenFiles:
        return None


class _Follower(Reader):
    """Another broker, who copies."""

    is_follower = True

    def __init__(self, broker: Broker, request: Request, replica_id: int, replica_epoch: int) -> None:
        super().__init__(broker, request)
        self._id = replica_id
        self._epoch = replica_epoch
        self._now_ms = broker.clock.monotonic_ms()
        self._verdict = (ErrorCode.NONE, EpochEndOffset())

    def has_no_news(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
        code, parted = self._verdict = self._ask(partition, wanted)
        log = partition.log
        return (
            code == ErrorCode.NONE
            and parted.epoch < 0
            and wanted.fetch_offset == log.log_end_offset
            and log.failure is None
            and context.unchanged(partition.topic, partition.index, log.high_watermark, log.log_start_offset)
        )

    def _ask(self, partition: Partition, wanted: FetchPartition) -> tuple[ErrorCode, EpochEndOffset]:
        if partition.leadership is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, _NOWHERE
        code = partition.check_epoch(wanted.current_leader_epoch)
        if code:
            return code, _NOWHERE
        position = Position(wanted.fetch_offset, wanted.last_fetched_epoch)
        brokers = self.broker.replicas.brokers
        start = wanted.log_start_offset
        code, end = partition.asked_by(self._id, self._epoch, position, brokers, self._now_ms, start)
        return code, _NOWHERE if end is None else EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)

    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        log = partition.log
        data.error_code, data.diverging_epoch = self._verdict
        if data.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            # One who is out of range is told where the log is: so he need not ask for that.
            data.high_watermark = log.high_watermark
            data.last_stable_offset = log.last_stable_offset
            data.log_start_offset = log.log_start_offset
            data.aborted_transactions = None
        if data.error_code or data.diverging_epoch.epoch >= 0 or self.delay_ms(partition) > 0:
            return 0
        limit = min(left, wanted.partition_max_bytes)
        region = _read(log, wanted.fetch_offset, limit, None) if limit > 0 or at_least_one else None
        if region is None or (region.size > limit and not at_least_one):
            return 0
        throttle = self.broker.replicas.throttle
        if throttle is not None and throttle.applies_to(partition.topic, partition.index):
            throttle.came(region.size, self.broker.clock.monotonic_ms())
        data.records = region
        return region.size

    def delay_ms(self, partition: Partition) -> float:
        throttle, leadership = self.broker.replicas.throttle, partition.leadership
        if throttle is None or leadership is None or self._id in leadership.isr:
            return 0.0
        if not throttle.applies_to(partition.topic, partition.index):
            return 0.0
        return throttle.delay_ms(self.broker.clock.monotonic_ms())


_NOWHERE: Final = EpochEndOffset()
