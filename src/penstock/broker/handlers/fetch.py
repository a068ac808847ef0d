"""Fetch: reading record batches, at once or when there are enough.

Records leave as regions of files. A reader that asked for more bytes than there are waits, up to its limit, and is
woken by appends; the wait costs nothing but a timer. The first partition with data gives at least one whole batch,
however small the limits, so every reader makes progress. Readers of committed records see nothing at or above the last
stable offset and are told which transactions were aborted. Clients from before magic 2 get converted copies.

A partition of a session that has nothing new is put to rest, and costs nothing until it moves: a consumer of thousands
of partitions pays for those that are written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.error_mapping import EXPECTED, error_code_of
from penstock.broker.fetch_sessions import FetchContext
from penstock.broker.request import Answer, Request
from penstock.log.segment import Region
from penstock.records import Buffer, Codec, UnsupportedCodec, scan
from penstock.records.conversion import downconvert
from penstock.replication.partition import Partition
from penstock.wire.api_keys import ApiKey
from penstock.wire.error_codes import ErrorCode
from penstock.wire.headers import chunk_size
from penstock.wire.schemas.fetch import AbortedTransaction, FetchPartition, FetchRequest, PartitionData

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

READ_COMMITTED: Final = 1
_ZSTD_VERSION = 10
_CONVERSION_LIMIT = 64 * 1024 * 1024


def handle(broker: Broker, request: Request, answer: Answer) -> None:
    message: FetchRequest = request.message
    context = broker.sessions.begin(message, request.version, request.now_ms)
    if context.error:
        broker.count_error(request.api_key, context.error)
        answer(context.answer([]))
        return
    read = _read_all(broker, context, request)
    if read.size >= message.min_bytes or read.failed or message.max_wait_ms <= 0 or context.is_empty:
        _finish(broker, context, read, answer)
        return
    _Waiter(broker, context, request, answer, read).wait()


class _Read:
    """What one pass over the partitions found; `partitions` are those that are here and not at rest."""

    __slots__ = ("failed", "partitions", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[tuple[str, PartitionData]] = []
        self.partitions: list[Partition] = []
        self.size = 0
        self.failed = False


def _read_all(broker: Broker, context: FetchContext, request: Request) -> _Read:
    message: FetchRequest = request.message
    read = _Read()
    left = min(message.max_bytes, broker.settings.fetch_max_bytes)
    for topic, wanted in context.pending():
        partition = broker.replicas.get(topic, wanted.partition)
        if partition is not None:
            if _has_no_news(context, partition, wanted):
                context.rest(partition)
                continue
            read.partitions.append(partition)
        data = PartitionData(partition_index=wanted.partition, high_watermark=-1)
        read.rows.append((topic, data))
        if partition is None:
            data.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            data.records = b""
            read.failed = True
            continue
        try:
            size = _read_one(partition, wanted, data, request, left, at_least_one=read.size == 0)
        except EXPECTED as error:
            data.error_code = error_code_of(error)
            data.records = b""
            read.failed = True
            continue
        read.size += size
        read.failed |= data.error_code != ErrorCode.NONE
        left = max(0, left - size)
    return read


def _has_no_news(context: FetchContext, partition: Partition, wanted: FetchPartition) -> bool:
    """Whether there is no record for the reader, of whichever isolation, no error, and no offset it does not know."""
    log = partition.log
    high_watermark, start = log.high_watermark, log.log_start_offset
    return (
        context.unchanged(partition.topic, partition.index, high_watermark, start)
        and max(high_watermark, start) <= wanted.fetch_offset <= log.log_end_offset
        and log.failure is None
        and partition.check_epoch(wanted.current_leader_epoch) == ErrorCode.NONE
    )


def _read_one(
    partition: Partition,
    wanted: FetchPartition,
    data: PartitionData,
    request: Request,
    left: int,
    *,
    at_least_one: bool,
) -> int:
    """Fill in a partition's part of the answer; how many bytes of records it has."""
    log = partition.log
    data.error_code = partition.check_epoch(wanted.current_leader_epoch)
    if data.error_code:
        data.records = b""
        return 0
    committed_only = request.message.isolation_level == READ_COMMITTED
    upper = log.last_stable_offset if committed_only else log.high_watermark
    data.high_watermark = log.high_watermark
    data.last_stable_offset = log.last_stable_offset
    data.log_start_offset = log.log_start_offset
    data.aborted_transactions = [] if committed_only else None
    limit = min(left, wanted.partition_max_bytes)
    region = log.read(wanted.fetch_offset, limit, upper_offset=upper) if limit > 0 or at_least_one else None
    if region is None or (region.size > limit and not at_least_one):
        data.records = b""
        return 0
    if committed_only:
        data.aborted_transactions = [
            AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
            for entry in log.aborted_between(wanted.fetch_offset, upper)
        ]
    if request.version < _ZSTD_VERSION:
        records = _for_old_clients(region, request.version, wanted.fetch_offset)
        data.records = records
        return len(records)
    data.records = region
    return region.size


def _for_old_clients(region: Region, version: int, offset: int) -> Buffer:
    """The bytes as a version below 10 may see them: magic 0 and 1 for the oldest, and never zstd."""
    plain = region.read()
    if version < 4:
        return downconvert(plain, 0 if version < 2 else 1, limit=_CONVERSION_LIMIT, from_offset=offset)
    for header in scan(plain, verify=False).headers:
        if header.codec == Codec.ZSTD:
            if header.position == 0:
                raise UnsupportedCodec("zstd needs Fetch version 10 or higher")
            return plain[: header.position]
    return plain


def _finish(broker: Broker, context: FetchContext, read: _Read, answer: Answer) -> None:
    failed: set[str] = set()
    for topic, data in read.rows:
        records = data.records
        if records:
            broker.topic_figures(topic).fetched(chunk_size(records))
        elif data.error_code:
            broker.count_error(ApiKey.FETCH, data.error_code)
            failed.add(topic)
    for topic in {topic for topic, _ in read.rows}:
        figures = broker.figures_of(topic)
        if figures is not None:
            figures.fetch_requested()
            if topic in failed:
                figures.fetch_failed()
    response = context.answer(read.rows)
    if response.error_code:
        broker.count_error(ApiKey.FETCH, response.error_code)
    answer(response)


class _Waiter:
    """A fetch that waits until enough bytes were appended, its time is over, or a partition or the reader goes away."""

    __slots__ = ("_answer", "_available", "_broker", "_context", "_partitions", "_request", "_timer")

    def __init__(self, broker: Broker, context: FetchContext, request: Request, answer: Answer, read: _Read) -> None:
        self._broker = broker
        self._context = context
        self._request = request
        self._answer = answer
        self._available = read.size
        self._partitions = set(read.partitions)

    def wait(self) -> None:
        for partition in self._partitions:
            partition.watch(self)
        self._context.watch(self)
        self._timer = self._broker.call_later(self._request.message.max_wait_ms / 1000, self._finish)
        if self._request.departure is not None:
            self._request.departure.watch(self._give_up)

    def grown(self, partition: Partition, size: int) -> None:
        self._available += size
        if self._available >= self._request.message.min_bytes:
            self._finish()
        else:
            # It may have been at rest until now; then nobody else watches it any more.
            partition.watch(self)
            self._partitions.add(partition)

    def gone(self, partition: Partition) -> None:
        self._finish()

    def _give_up(self) -> None:
        self._timer.cancel()
        self._context.unwatch(self)
        for partition in self._partitions:
            partition.unwatch(self)

    def _finish(self) -> None:
        self._give_up()
        if self._request.departure is not None:
            self._request.departure.unwatch(self._give_up)
        read = _read_all(self._broker, self._context, self._request)
        _finish(self._broker, self._context, read, self._answer)
