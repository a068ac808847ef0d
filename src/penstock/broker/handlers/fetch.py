"""Fetch: reading record batches, at once or when there are enough.

Records leave as regions of files. A reader that asks for more bytes than there are waits for a timer or a wake-up: a
consumer for the high watermark, a follower for appends. The first partition with data returns at least one whole
batch, however small the limits. Consumers see records below the high watermark, or below the last stable offset with
read_committed; from a follower only if they name their rack (KIP-392). A follower sees everything, from the leader;
its fetch offset says what it has, unless the logs diverged, which is reported first. Clients before magic 2 get
converted copies. Idle partitions of a session cost nothing.

A waiting follower hears of a new high watermark within `WATERMARK_MS` (50 ms), because records usually come first. A
throttled follower that is not in sync waits until leader.replication.throttled.rate allows more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from functools import partial
from typing import Final

from penstock.broker.down_conversion import (
    CONVERTED_BYTES,
    FIRST_VERSION_WITH_BATCHES,
    FIRST_VERSION_WITH_ZSTD,
    SCANNED_BYTES,
    without_zstd,
)
from penstock.broker.errors import (
    EXPECTED,
    NOT_LEADER_ERRORS,
    current_leader,
    error_code_of,
    missing_partition_error,
    nodes_with_ids,
)
from penstock.broker.fetch_session import SLICE, FetchContext, RequestedPartition, is_unknown
from penstock.broker.request import Answer, Request, Services
from penstock.log.errors import TooManyOpenFiles
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import Region
from penstock.replication.fetch_state import Position
from penstock.replication.isr import THE_LEADER, nearest_replica
from penstock.replication.partition import Partition
from penstock.wire.framing import chunk_size
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

READ_COMMITTED: Final = 1
WATERMARK_MS: Final = 50
"""How late a waiting follower may learn of a new high watermark."""
_FIRST_VERSION_WITH_REPLICA_STATE: Final = 15
# Earlier versions have room for the leader but not for its address.
_FIRST_VERSION_WITH_LEADERS: Final = 16
_NO_DIVERGENCE: Final = EpochEndOffset()


def handle(services: Services, request: Request, answer: Answer) -> None:
    message: FetchRequest = request.message
    reader = reader_of(services, request)
    context = services.sessions.begin(
        message,
        request.version,
        request.now_ms,
        privileged=reader.is_follower,
        names=services.cluster.image.names_by_id,
    )
    if context.error:
        services.metrics.count_error(request.api_key, context.error)
        answer(context.answer([]))
        return
    pending = context.pending()
    if len(pending) > SLICE:
        _in_slices(services, request, _wide_pass(services, context, request, reader, pending, answer, may_wait=True))
        return
    read = read_narrow(services, context, reader, pending)
    if read.size >= message.min_bytes or _is_enough(read, message, context):
        _finish(services, context, request, reader, read, answer)
    else:
        _Waiter(services, context, request, reader, answer, read).wait()


def _is_enough(read: ReadResult, message: FetchRequest, context: FetchContext) -> bool:
    return read.size >= message.min_bytes or read.is_urgent or message.max_wait_ms <= 0 or context.is_empty


def _finish(
    services: Services, context: FetchContext, request: Request, reader: Reader, read: ReadResult, answer: Answer
) -> None:
    if request.version < FIRST_VERSION_WITH_BATCHES and read.size:
        work = partial(_convert_and_answer, services, context, request, reader, read, answer)
        services.long_requests.start(request.channel, read.size, work)
        return
    if not reader.is_follower:
        _count(services, read.rows)
    response = context.answer(read.rows)
    if read.is_urgent or response.error_code or context.topic_ids is not None:
        for _ in _complete(services, context, request, read, response):
            pass
    answer(response)


# --- waiting


class _Waiter:
    """A fetch that waits for enough bytes, its timeout, or the end of a partition or of the connection."""

    __slots__ = (
        "_answer",
        "_available",
        "_context",
        "_has_news",
        "_is_held_back",
        "_is_over",
        "_partitions",
        "_reader",
        "_request",
        "_services",
        "_stable",
        "_timer",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        context: FetchContext,
        request: Request,
        reader: Reader,
        answer: Answer,
        read: ReadResult,
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._reader = reader
        self._answer = answer
        self._available = read.size
        self._partitions = dict.fromkeys(read.partitions)
        # A follower's row without records reports a new high watermark.
        self._has_news = reader.is_follower and len(read.rows) > read.held_back
        self._is_held_back = read.held_back > 0
        self._is_over = False
        # For a reader of committed records: last stable offsets, and the bytes beyond them that it may not see yet.
        self._stable: dict[Partition, tuple[int, int]] = {}
        if reader.committed_only:
            self._stable = {each: (each.log.last_stable_offset, 0) for each in read.partitions}

    def wait(self) -> None:
        for partition in self._partitions:
            self._watch(partition)
        self._context.watch(self)
        wait_ms = self._request.message.max_wait_ms
        if self._has_news:
            wait_ms = min(wait_ms, WATERMARK_MS)
        if self._is_held_back:
            delays_ms = (self._reader.delay_ms(partition) for partition in self._partitions)
            wait_ms = min(wait_ms, max(1.0, min((each for each in delays_ms if each > 0), default=1.0)))
        self._timer = self._services.call_later(wait_ms / 1000, self._finish)
        if self._request.disconnection is not None:
            self._request.disconnection.watch(self._give_up)

    def _watch(self, partition: Partition) -> None:
        if self._reader.is_follower:
            partition.watch_end(self)
        else:
            partition.watch(self)

    def grown(self, partition: Partition, size: int) -> None:
        delay_ms = self._reader.delay_ms(partition)
        if delay_ms <= 0:
            self._available += self._stable_size(partition, size) if self._reader.committed_only else size
        if self._available >= self._request.message.min_bytes:
            self.finish_soon()
        else:
            # If it was idle until now, the session no longer watches it.
            self._watch(partition)
            self._partitions[partition] = None
            if delay_ms > 0 and not self._is_held_back and not self._is_over:
                self._is_held_back = True
                self._timer.cancel()
                wait_ms = min(self._request.message.max_wait_ms, delay_ms)
                self._timer = self._services.call_later(wait_ms / 1000, self._finish)

    def _stable_size(self, partition: Partition, size: int) -> int:
        """The bytes that became visible: none as long as the same transaction is open."""
        stable = partition.log.last_stable_offset
        before, hidden = self._stable.get(partition, (-1, 0))
        if stable <= before:
            self._stable[partition] = before, hidden + size
            return 0
        self._stable[partition] = stable, 0
        return hidden + size

    def moved(self, partition: Partition) -> None:
        self._watch(partition)
        self._partitions[partition] = None
        if not self._has_news and not self._is_over:
            self._has_news = True
            self._timer.cancel()
            self._timer = self._services.call_later(WATERMARK_MS / 1000, self._finish)

    def gone(self, partition: Partition) -> None:
        self.finish_soon()

    def finish_soon(self) -> None:
        if self._reader.is_follower:
            # At the end of this turn of the loop, with everything that is appended in it.
            self._services.loop.call_soon(self._finish)
        else:
            self._finish()

    def _give_up(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._context.unwatch(self)
        for partition in self._partitions:
            partition.unwatch(self)

    def _finish(self) -> None:
        if self._is_over:
            return
        self._give_up()
        if self._request.disconnection is not None:
            self._request.disconnection.unwatch(self._give_up)
        services, context, request = self._services, self._context, self._request
        reader = reader_of(services, request)  # a new one, because a follower's fetch counts from now
        pending = context.pending()
        if len(pending) > SLICE:
            work = _wide_pass(services, context, request, reader, pending, self._answer, may_wait=False)
            _in_slices(services, request, work)
        else:
            read = read_narrow(services, context, reader, pending)
            _finish(services, context, request, reader, read, self._answer)


# --- fetches of very many partitions, and those with converted batches


def _in_slices(services: Services, request: Request, work: Generator[None, None, None]) -> None:
    async def slices() -> None:
        await services.long_requests.through(work, request.channel)

    services.long_requests.start(request.channel, request.size, slices)


def _wide_pass(
    services: Services,
    context: FetchContext,
    request: Request,
    reader: Reader,
    pending: Sequence[RequestedPartition],
    answer: Answer,
    *,
    may_wait: bool,
) -> Generator[None, None, None]:
    read = yield from read_wide(services, context, reader, pending)
    if may_wait and not _is_enough(read, request.message, context):
        waiter = _Waiter(services, context, request, reader, answer, read)
        waiter.wait()
        # Records that arrived after their partition was read did not notify the waiter: it was not watching yet.
        if ends_of(read.partitions) != read.ends or len(context.pending()) > len(read.rows):
            waiter.finish_soon()
    elif request.version < FIRST_VERSION_WITH_BATCHES and read.size:
        work = partial(_convert_and_answer, services, context, request, reader, read, answer)
        services.long_requests.start(request.channel, read.size, work)
    else:
        yield from _answer_in_slices(services, context, request, reader, read, answer)


async def _convert_and_answer(
    services: Services, context: FetchContext, request: Request, reader: Reader, read: ReadResult, answer: Answer
) -> None:
    _reject_unconverted(services, read)
    offsets = {(topic, wanted.partition): wanted.fetch_offset for topic, wanted in context.partitions}
    rows = [(data, offsets[topic, data.partition_index]) for topic, data in read.rows]
    await services.conversions.convert(rows, request.version)
    await services.long_requests.through(
        _answer_in_slices(services, context, request, reader, read, answer), request.channel
    )


def _reject_unconverted(services: Services, read: ReadResult) -> None:
    """Fail the partitions of topics with message.downconversion.enable=false."""
    image = services.cluster.image
    allowed = {
        topic: services.config.topic(image, topic).message_downconversion_enable
        for topic in {topic for topic, data in read.rows if data.records}
    }
    for topic, data in read.rows:
        if data.records and not allowed[topic]:
            data.records, data.error_code = b"", ErrorCode.UNSUPPORTED_VERSION


def _answer_in_slices(
    services: Services, context: FetchContext, request: Request, reader: Reader, read: ReadResult, answer: Answer
) -> Generator[None, None, None]:
    for begin in range(0, len(read.rows), SLICE):
        if not reader.is_follower:
            _count(services, read.rows[begin : begin + SLICE])
        yield
    response = yield from context.answer_slices(read.rows)
    yield from _complete(services, context, request, read, response)
    answer(response)


def _complete(
    services: Services, context: FetchContext, request: Request, read: ReadResult, response: FetchResponse
) -> Generator[None, None, None]:
    if response.error_code:
        services.metrics.count_error(ApiKey.FETCH, response.error_code)
    ids = context.topic_ids
    if ids is not None:
        for topic in response.responses:
            topic.topic_id = ids.of(topic.topic)
    if read.is_urgent and request.version >= _FIRST_VERSION_WITH_LEADERS:
        yield from _add_current_leaders(services, request.session.listener, response)


def _count(services: Services, rows: Sequence[tuple[str, PartitionData]]) -> None:
    failed: set[str] = set()
    for topic, data in rows:
        records = data.records
        if records:
            services.metrics.topic(topic).bytes_out.add(chunk_size(records))
        elif data.error_code:
            services.metrics.count_error(ApiKey.FETCH, data.error_code)
            failed.add(topic)
    for topic in {topic for topic, _ in rows}:
        metrics = services.topic_metrics_or_none(topic)
        if metrics is not None:
            metrics.fetch_requests.add()
            if topic in failed:
                metrics.failed_fetch_requests.add()


def has_few_partitions(response: FetchResponse) -> bool:
    """Whether a response can be encoded at once."""
    partitions = 0
    for topic in response.responses:
        partitions += len(topic.partitions)
    return partitions <= SLICE


def _add_current_leaders(services: Services, listener: str, response: FetchResponse) -> Generator[None, None, None]:
    leaders: set[int] = set()
    seen = 0
    for topic in response.responses:
        for data in topic.partitions:
            if data.error_code not in NOT_LEADER_ERRORS:
                continue
            seen += 1
            if not seen % SLICE:
                yield
            leader = current_leader(services, topic.topic, data.partition_index)
            if leader is not None:
                data.current_leader = LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    if leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes_with_ids(services, listener, leaders)
        ]


# --- reading


class ReadResult:
    """What one pass found; `partitions` are those that are on this broker and not idle."""

    __slots__ = ("ends", "held_back", "is_urgent", "left", "partitions", "rows", "size")

    def __init__(self, max_bytes: int) -> None:
        self.left = max_bytes
        self.ends = 0  # of a wide pass: the sum of what `ends_of` was when each partition was read
        self.held_back = 0  # rows without records because of the throttle
        self.rows: list[tuple[str, PartitionData]] = []
        self.partitions: list[Partition] = []
        self.size = 0
        self.is_urgent = False  # there is something to report besides records: do not wait for any


class Reader(ABC):
    """A consumer or a follower that fetches."""

    is_follower = False
    committed_only = False

    def __init__(self, services: Services, request: Request) -> None:
        self.services = services
        self.permits = request.permits
        self.message: FetchRequest = request.message
        self.version = request.version

    @abstractmethod
    def has_nothing_new(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
        """Whether there is no record for the reader, no error, and no offset that it does not have."""

    def delay_ms(self, partition: Partition) -> float:
        """How long a throttled reader has to wait for records of this partition; 0 if not at all."""
        return 0.0

    @abstractmethod
    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        """Fill in a partition's part of the response; the bytes of its records."""


def reader_of(services: Services, request: Request) -> Reader:
    message: FetchRequest = request.message
    if request.version >= _FIRST_VERSION_WITH_REPLICA_STATE:
        state = message.replica_state
        replica_id, replica_epoch = state.replica_id, state.replica_epoch
    else:
        replica_id, replica_epoch = message.replica_id, -1
    return _Consumer(services, request) if replica_id < 0 else _Follower(services, request, replica_id, replica_epoch)


def read_narrow(
    services: Services, context: FetchContext, reader: Reader, pending: Sequence[RequestedPartition]
) -> ReadResult:
    """One pass over what is pending, all at once."""
    most = min(reader.message.max_bytes, services.settings.fetch_max_bytes)
    read = ReadResult(most if reader.version >= FIRST_VERSION_WITH_ZSTD else _max_bytes(reader, most))
    _read_into(read, services, context, reader, pending)
    return read


def read_wide(
    services: Services, context: FetchContext, reader: Reader, pending: Sequence[RequestedPartition]
) -> Generator[None, None, ReadResult]:
    """One pass over what is pending, with a yield after every `SLICE` partitions."""
    read = ReadResult(_max_bytes(reader, min(reader.message.max_bytes, services.settings.fetch_max_bytes)))
    for begin in range(0, len(pending), SLICE):
        if context.is_superseded:
            break  # the rest belongs to a later request
        seen = len(read.partitions)
        _read_into(read, services, context, reader, pending[begin : begin + SLICE])
        read.ends += ends_of(read.partitions[seen:])
        yield
    return read


def ends_of(partitions: Iterable[Partition]) -> int:
    """A number that changes when a partition grows or its high watermark moves."""
    return sum(partition.log.log_end_offset + partition.log.high_watermark for partition in partitions)


def _max_bytes(reader: Reader, most: int) -> int:
    if reader.version >= FIRST_VERSION_WITH_ZSTD:
        return most
    return min(most, SCANNED_BYTES if reader.version >= FIRST_VERSION_WITH_BATCHES else CONVERTED_BYTES)


def _read_into(
    read: ReadResult, services: Services, context: FetchContext, reader: Reader, pending: Sequence[RequestedPartition]
) -> None:
    ids = context.topic_ids
    left = read.left
    permits, denied, before = reader.permits, 0, len(read.rows)
    for topic, wanted in pending:
        if permits is not None and not permits(topic):
            denied += 1
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            row = PartitionData(partition_index=wanted.partition, error_code=code, high_watermark=-1, records=b"")
            read.rows.append((topic, row))
            continue
        partition = services.replicas.get(topic, wanted.partition)
        if partition is not None:
            if ids is not None and ids.of(topic) != partition.topic_id:
                partition = None
            elif reader.has_nothing_new(context, partition, wanted):
                context.set_idle(partition)
                continue
            else:
                read.partitions.append(partition)
        data = PartitionData(partition_index=wanted.partition, high_watermark=-1, records=b"")
        read.rows.append((topic, data))
        if partition is None:
            has_no_id = ids is not None and (is_unknown(topic) or ids.of(topic) != _id_of(services, topic))
            data.error_code = (
                ErrorCode.UNKNOWN_TOPIC_ID if has_no_id else missing_partition_error(services, topic, wanted.partition)
            )
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
    if denied and before + denied >= len(context.partitions):
        # A fetch does not end early for denied partitions, unless it is about nothing else, idle ones included.
        read.is_urgent = True
    read.left = left


def _id_of(services: Services, topic: str) -> bytes | None:
    found = services.cluster.image.topics.get(topic)
    return None if found is None else found.topic_id


class _Consumer(Reader):
    """A client, which reads committed records."""

    def __init__(self, services: Services, request: Request) -> None:
        super().__init__(services, request)
        self.committed_only = self.message.isolation_level == READ_COMMITTED

    def has_nothing_new(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
        log = partition.log
        high_watermark, start = log.high_watermark, log.log_start_offset
        return (
            context.unchanged(partition.topic, partition.index, high_watermark, start)
            and max(high_watermark, start) <= wanted.fetch_offset <= log.log_end_offset
            and log.failure is None
            and self._error(partition, wanted) == ErrorCode.NONE
            and self._nearest(partition, wanted) == THE_LEADER
        )

    def _error(self, partition: Partition, wanted: FetchPartition) -> ErrorCode:
        if partition.leadership is None and (not self.message.rack_id or partition.leader < 0):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return partition.check_epoch(wanted.current_leader_epoch)

    def _nearest(self, partition: Partition, wanted: FetchPartition) -> int:
        rack, leadership = self.message.rack_id, partition.leadership
        if not rack or leadership is None or partition.is_alone:
            return THE_LEADER
        brokers = self.services.cluster.image.brokers
        return nearest_replica(leadership, rack, wanted.fetch_offset, partition.log.log_start_offset, brokers)

    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        data.error_code = self._error(partition, wanted)
        if data.error_code:
            return 0
        log = partition.log
        upper = log.last_stable_offset if self.committed_only else log.high_watermark
        data.high_watermark = log.high_watermark
        data.last_stable_offset = log.last_stable_offset
        data.log_start_offset = log.log_start_offset
        data.aborted_transactions = [] if self.committed_only else None
        if self.message.rack_id:
            data.preferred_read_replica = self._nearest(partition, wanted)
            if data.preferred_read_replica != THE_LEADER:
                return 0
        limit = min(left, wanted.partition_max_bytes)
        region = _read(log, wanted.fetch_offset, limit, upper) if limit > 0 or at_least_one else None
        if region is None or (region.size > limit and not at_least_one):
            return 0
        if self.committed_only:
            data.aborted_transactions = [
                AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in log.aborted_between(wanted.fetch_offset, upper, region)
            ]
        # Clients before magic 2 get converted batches, after all are read.
        if FIRST_VERSION_WITH_BATCHES <= self.version < FIRST_VERSION_WITH_ZSTD:
            region = without_zstd(region)
        data.records = region
        return region.size


def _read(log: PartitionLog, offset: int, limit: int, upper: int | None) -> Region | None:
    """None also if the process cannot open another file: those of the response are closed when it is sent, and the
    next fetch can open others.
    """
    try:
        return log.read(offset, limit, upper_offset=upper)
    except TooManyOpenFiles:
        return None


class _Follower(Reader):
    """Another broker, which copies records."""

    is_follower = True

    def __init__(self, services: Services, request: Request, replica_id: int, replica_epoch: int) -> None:
        super().__init__(services, request)
        self._id = replica_id
        self._epoch = replica_epoch
        self._now_ms = services.clock.monotonic_ms()
        self._verdict = (ErrorCode.NONE, EpochEndOffset())

    def has_nothing_new(self, context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
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
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, _NO_DIVERGENCE
        code = partition.check_epoch(wanted.current_leader_epoch)
        if code:
            return code, _NO_DIVERGENCE
        position = Position(wanted.fetch_offset, wanted.last_fetched_epoch)
        brokers = self.services.replicas.online(partition)
        start = wanted.log_start_offset
        code, end = partition.fetched_by(self._id, self._epoch, position, brokers, self._now_ms, start)
        return code, _NO_DIVERGENCE if end is None else EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)

    def fill(
        self, partition: Partition, wanted: FetchPartition, data: PartitionData, left: int, *, at_least_one: bool
    ) -> int:
        log = partition.log
        data.error_code, data.diverging_epoch = self._verdict
        if data.error_code in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            # A follower that is out of range learns where the log begins and ends, and need not ask for that.
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
        throttle = self.services.replicas.throttle
        if throttle is not None and throttle.applies_to(partition.topic, partition.index):
            throttle.add(region.size, self.services.clock.monotonic_ms())
        data.records = region
        return region.size

    def delay_ms(self, partition: Partition) -> float:
        throttle, leadership = self.services.replicas.throttle, partition.leadership
        if throttle is None or leadership is None or self._id in leadership.isr:
            return 0.0
        if not throttle.applies_to(partition.topic, partition.index):
            return 0.0
        return throttle.delay_ms(self.services.clock.monotonic_ms())
