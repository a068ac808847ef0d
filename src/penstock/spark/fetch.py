"""Reads a range of offsets of one partition as Arrow batches: what a task does.

    for batch in read_range("host:9092", ReaderOptions(), "views", 0, start=100, end=250_000): ...

    key, value: binary    topic: string    partition: int    offset: long    timestamp    timestampType: int
    headers: array<struct<key: string, value: binary>>, on request; null where a record has none

The next fetch runs while the caller processes the last one. The kernel fills Arrow buffers batch by batch; columns
that are equal in every row are built once and sliced. Offsets without a record (compacted, transaction markers,
aborted) are skipped. A broker that is unreachable is retried and a moved leader is looked up, until `poll_timeout_ms`
pass without progress.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.connection import Connection
from penstock.client.errors import PenstockError, RecordUnreadable, error_for
from penstock.client.fetch_state import Chunk, PartitionState, chunk_in
from penstock.client.leader_requests import FETCH_LANE, OffsetLookup, ask_leaders_once, fetch_partitions
from penstock.records import BatchHeader, Buffer, ColumnBuilder, RecordError, append_time_of, payload_of
from penstock.records.types import BytesColumn, HeaderColumn
from penstock.spark.connections import SharedCluster, shared_cluster
from penstock.spark.errors import DataLost, ReadStalled, TopicRecreated, in_one_line
from penstock.spark.options import EARLIEST, LATEST, Bounds, Isolation, ReaderOptions
from penstock.wire.fetch_session import NO_EPOCH, FetchOutcome, PartitionFetch, enlarged, outcome_of
from penstock.wire.protocol import ErrorCode
from penstock.wire.schemas.fetch import PartitionData

if TYPE_CHECKING:
    import pyarrow


COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
HEADER_COLUMN: Final = "headers array<struct<key: string, value: binary>>"
DEFAULT_BATCH_ROWS: Final = 20_000
# Larger buffers are allocated from new pages each time, and have left the caches when they are sent.
_BATCH_BYTES: Final = 2 * 1024 * 1024
_MICROSECONDS: Final = 1000


def source_ddl(*, include_headers: bool) -> str:
    """The schema in Spark SQL."""
    return f"{COLUMNS}, {HEADER_COLUMN}" if include_headers else COLUMNS


@cache
def arrow_schema(*, include_headers: bool) -> pyarrow.Schema:
    """The Arrow schema, with which Spark compares the first batch."""
    import pyarrow as pa

    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    if include_headers:
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        fields.append(pa.field("headers", pa.list_(pa.field("element", pair))))
    return pa.schema(fields)


class RowBuilder:
    """Builds rows of one partition."""

    def __init__(self, topic: str, partition: int, *, include_headers: bool, batch_rows: int) -> None:
        self._columns = ColumnBuilder(headers=include_headers, timestamp_scale=_MICROSECONDS)
        self._schema = arrow_schema(include_headers=include_headers)
        self._batch_rows = batch_rows
        self._timestamp_type = 0
        self._same = _SameInEveryRow(topic, partition)

    def add(self, buffer: Buffer, header: BatchHeader, start: int, end: int) -> Iterator[pyarrow.RecordBatch]:
        """Add the records of a batch with offsets in [start, end); yields rows that are ready.

        Raises RecordError for damaged bytes; no record of the batch is added then.
        """
        if header.timestamp_type != self._timestamp_type:
            yield from self.finish()
            self._timestamp_type = header.timestamp_type
        plain, first, last = payload_of(buffer, header)
        columns = self._columns
        columns.append(
            plain, first, last, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header), start, end,
        )  # fmt: skip
        if columns.rows >= self._batch_rows or columns.data_size >= _BATCH_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[pyarrow.RecordBatch]:
        """Yields the remaining rows."""
        import pyarrow as pa

        if not self._columns.rows:
            return
        rows, offsets, timestamps, keys, values, headers = self._columns.finish()
        arrays: list[Any] = [
            _binary(keys, rows, pa.binary()),
            _binary(values, rows, pa.binary()),
            *self._same.topic_and_partition(rows),
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(offsets)]),
            pa.Array.from_buffers(pa.timestamp("us", "UTC"), rows, [None, pa.py_buffer(timestamps)]),
            self._same.timestamp_type(self._timestamp_type, rows),
        ]
        if headers is not None:
            arrays.append(_headers(headers, rows, self._schema.field("headers").type))
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        # A stored batch may have any number of records.
        for first in range(0, rows, 2 * self._batch_rows):
            yield whole if rows <= 2 * self._batch_rows else whole.slice(first, 2 * self._batch_rows)


class _SameInEveryRow:
    """Columns of one value, enlarged when necessary."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._rows = 0
        self._arrays: list[Any] = []

    def topic_and_partition(self, rows: int) -> list[Any]:
        self._grow(rows)
        return [self._arrays[0].slice(0, rows), self._arrays[1].slice(0, rows)]

    def timestamp_type(self, kind: int, rows: int) -> Any:
        self._grow(rows)
        return self._arrays[2 + kind].slice(0, rows)

    def _grow(self, rows: int) -> None:
        if rows <= self._rows:
            return
        import pyarrow as pa

        self._rows = rows = rows * 5 // 4
        self._arrays = [
            pa.repeat(pa.scalar(self._topic, pa.string()), rows),
            *(pa.repeat(pa.scalar(number, pa.int32()), rows) for number in (self._partition, 0, 1)),
        ]


def _binary(column: BytesColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa

    ends, data, valid = column
    validity = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)])


def _headers(column: HeaderColumn, rows: int, kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends, keys, values = column
    count = len(keys[0]) // 4 - 1
    pairs = pa.StructArray.from_arrays(
        [_binary(keys, count, pa.string()), _binary(values, count, pa.binary())], fields=list(kind.value_type)
    )
    numbers = pa.Array.from_buffers(pa.int32(), rows + 1, [None, pa.py_buffer(ends)])
    # The bits of the comparison are the validity bitmap: rows with an empty list are null, as in the stock connector.
    valid = pc.not_equal(numbers.slice(1), numbers.slice(0, rows)).buffers()[1]
    return pa.Array.from_buffers(kind, rows, [valid, pa.py_buffer(ends)], children=[pairs])


_log = logging.getLogger(__name__)

_MAX_WAIT_MS: Final = 500
_LEAST_PAUSE_MS: Final = 10
_CHUNKS_AHEAD: Final = 2
_GUESSED_BYTES: Final = 1024.0
_LEAST_FETCH: Final = 64 * 1024
# What was planned existed. If it does not, this broker's metadata may be old, but not for long.
_LOST_AFTER_MS: Final = 10_000
_LOSSES: Final[dict[ErrorCode | None, tuple[str, str]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ("its topic does not exist", "Was it deleted?"),
    ErrorCode.OFFSET_NOT_AVAILABLE: ("its log ends before that", "Was it truncated, or the topic created again?"),
}


def read_range(
    bootstrap: str,
    options: ReaderOptions,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    isolation: Isolation = "read_uncommitted",
    topic_id: str | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """Records of a partition with offsets from `start` up to, not including, `end`: the columns of `schema`.

    With `topic_id` (hexadecimal), a topic that was deleted and created again raises TopicRecreated. Raises DataLost,
    ReadStalled, RecordUnreadable and other PenstockErrors, each in one line.
    """
    if end <= start:
        return
    try:
        cluster = shared_cluster(bootstrap, options)
        rows = RowBuilder(topic, partition, include_headers=options.include_headers, batch_rows=options.batch_rows)
        ahead = _Prefetcher(cluster, options, TopicPartition(topic, partition), start, end, isolation, topic_id)
        try:
            for chunk in ahead:
                for header in chunk.headers:
                    if header.base_offset >= end:
                        break
                    try:
                        yield from rows.add(chunk.buffer, header, start, end)
                    except RecordError as damage:
                        raise ahead.unreadable(header.base_offset, damage) from damage
        finally:
            ahead.close()
        yield from rows.finish()
    except PenstockError as error:
        short = in_one_line(error)
        raise short from (None if short is error else error)


class _Prefetcher:
    """Fetches a range on the background loop; iterated by the task's thread."""

    def __init__(
        self,
        cluster: SharedCluster,
        options: ReaderOptions,
        partition: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation,
        topic_id: str | None,
    ) -> None:
        self._cluster = cluster
        self._client = cluster.client
        self._options = options
        self._partition = partition
        self._position = start
        self._end = end
        self._committed_only = isolation == "read_committed"
        self._topic_id = topic_id
        self._fetch_bytes = options.fetch_bytes
        self._max_wait_ms = min(_MAX_WAIT_MS, options.poll_timeout_ms // 4)
        self._empty_responses = 0
        self._queue: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
        self._room = asyncio.Semaphore(_CHUNKS_AHEAD)
        self._running = asyncio.run_coroutine_threadsafe(self._run(), cluster.background.loop)

    # ------------------------------------------------------------------------------------------ the task's thread

    def __iter__(self) -> Iterator[Chunk]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            self._cluster.background.call(self._room.release)
            yield item

    def close(self) -> None:
        """Stop fetching; the rest is not waited for."""
        self._running.cancel()

    def unreadable(self, offset: int, damage: RecordError) -> RecordUnreadable:
        hint = "The batch is damaged; read the ranges before and after it with startingOffsets and endingOffsets"
        return RecordUnreadable(self._partition, offset, str(damage), hint)

    # ------------------------------------------------------------------------------------------ the loop's thread

    async def _run(self) -> None:
        try:
            while self._position < self._end:
                await self._room.acquire()
                chunk = await self._next_chunk()
                if chunk is None:
                    break
                self._queue.put(chunk)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)
            if not isinstance(error, PenstockError):
                raise

    async def _next_chunk(self) -> Chunk | None:
        """The next chunk, after retries if necessary; None if the rest of the range has no records."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.poll_timeout_ms / 1000
        lost_at = min(deadline, loop.time() + _LOST_AFTER_MS / 1000)
        backoff = self._client.new_backoff()
        failure: PenstockError | None = None
        while self._position < self._end:
            try:
                async with asyncio.timeout_at(deadline):
                    chunk = await self._try()
                if chunk is not None:
                    return chunk
                failure = None
                continue
            except TimeoutError as error:
                if not isinstance(error, PenstockError):
                    self._give_up(failure)
                    return None
                failure = error
            except PenstockError as error:
                failure = error
            if not failure.retriable:
                raise failure
            wait_s = backoff.failed(loop.time() * 1000) / 1000
            if loop.time() + wait_s >= (lost_at if failure.code in _LOSSES else deadline):
                self._give_up(failure)
                return None
            await asyncio.sleep(wait_s)
            self._client.refresh_soon()
        return None

    def _give_up(self, failure: PenstockError | None) -> None:
        """Raise, except for a loss that is accepted: that ends the range."""
        if failure is not None and failure.code in _LOSSES:
            self._lost(*_LOSSES[failure.code])
            return
        why = f": {failure}" if failure is not None else ""
        raise ReadStalled(
            f"{self._partition} was read up to offset {self._position} of {self._end}, then no records came for "
            f"{self._options.poll_timeout_ms} ms{why}",
            hint="Raise kafkaConsumer.pollTimeoutMs to wait longer",
        ) from failure

    def _lost(self, what: str, hint: str) -> None:
        """Raise, or only log if losses are accepted."""
        message = f"{self._partition} cannot be read from offset {self._position} to {self._end}: {what}"
        if self._options.fail_on_data_loss:
            raise DataLost(message, hint=f"{hint} Set failOnDataLoss to false to continue with what is left".strip())
        _log.warning("data loss accepted: failOnDataLoss=false reason=%s", message)

    async def _try(self) -> Chunk | None:
        """One fetch; None if it brought nothing, with the position moved or not."""
        await self._cluster.start()
        topic, number = self._partition
        leader = self._client.view.leader_of(topic, number)
        if leader is None or leader.leader < 0:
            self._client.follow([topic])
            await self._client.refresh([topic])
        await self._check_id()
        if self._position >= self._end:
            return None
        found = await ask_leaders_once(
            self._client, [self._partition], self._fetch, timeout_ms=self._options.request_timeout_ms, lane=FETCH_LANE
        )
        data = found[self._partition]
        if isinstance(data, PenstockError):
            raise data
        return None if data is None else await self._take(data)

    async def _fetch(
        self, connection: Connection, led: list[TopicPartition], left_ms: int
    ) -> dict[TopicPartition, PartitionData | PenstockError | None]:
        leader = self._client.view.leader_of(*self._partition)
        epoch = NO_EPOCH if leader is None else leader.leader_epoch
        max_bytes = self._wanted_bytes()
        found, throttled_ms = await fetch_partitions(
            connection,
            {self._partition: PartitionFetch(self._position, max_bytes, epoch)},
            timeout_ms=left_ms + self._max_wait_ms,
            max_bytes=max_bytes,
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            isolation_level=int(self._committed_only),
            rack_id=self._options.rack or "",
        )
        if self._partition not in found:  # the broker throttles the reader
            await asyncio.sleep(max(throttled_ms, _LEAST_PAUSE_MS) / 1000)
        return {self._partition: found.get(self._partition)}

    def _wanted_bytes(self) -> int:
        density = self._cluster.densities.get(self._partition, _GUESSED_BYTES)
        rest = (self._end - self._position) * density * 1.125 + _LEAST_FETCH
        return int(min(self._fetch_bytes, rest))

    async def _check_id(self) -> None:
        if self._topic_id is None:
            return
        for fresh in (False, True):
            if fresh:
                await self._client.refresh([self._partition.topic])
            view = self._client.view.topic(self._partition.topic)
            if view is None or view.topic_id is None or view.topic_id.hex() == self._topic_id:
                self._topic_id = None
                return
        message = f"topic {self._partition.topic} was deleted and created again: the records to read are gone"
        if self._options.fail_on_data_loss:
            raise TopicRecreated(
                message,
                hint="Run a batch query again; give a stream a new checkpointLocation, or set failOnDataLoss to false "
                "to read the new topic from its start",
            )
        _log.warning("data loss accepted: failOnDataLoss=false reason=%s", message)
        self._position = self._end

    async def _take(self, data: PartitionData) -> Chunk | None:
        match outcome_of(data):
            case FetchOutcome.RECORDS:
                return self._take_records(data)
            case FetchOutcome.OUT_OF_RANGE:
                await self._out_of_range()
            case _ if data.error_code:
                raise error_for(data.error_code, where=f"fetch of {self._partition}")
            case _:
                self._on_empty_response(data.last_stable_offset if self._committed_only else data.high_watermark)
        return None

    def _take_records(self, data: PartitionData) -> Chunk | None:
        state = PartitionState(self._partition, self._fetch_bytes)
        state.seek(self._position)
        try:
            chunk = chunk_in(state, data, verify=self._options.check_crcs)
        except RecordError as damage:
            raise self.unreadable(self._position, damage) from damage
        if chunk is None:
            larger = enlarged(self._fetch_bytes)
            if larger is None:
                raise RecordUnreadable(self._partition, self._position, "a batch is larger than any fetch may be", "")
            self._fetch_bytes = larger
            self._cluster.densities[self._partition] = float(larger)
            return None
        if chunk.next_offset <= self._position:
            self._on_empty_response(data.high_watermark)
            return None
        self._cluster.densities[self._partition] = chunk.size / (chunk.next_offset - self._position)
        self._position = chunk.next_offset
        self._empty_responses = 0
        return chunk

    def _on_empty_response(self, readable_to: int) -> None:
        """The log can be read up to `readable_to`. If that is beyond the range, two empty responses mean that the range
        has no more records: a fetch returns the first batch at or after its offset."""
        self._empty_responses += 1
        if readable_to >= self._end:
            if self._empty_responses > 1:
                self._position = self._end
            return
        # A new leader needs a moment to know how far its followers are.
        raise error_for(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            where=str(self._partition),
            detail=f"its log can be read up to {readable_to}, not up to {self._end}",
            hint="",
        )

    async def _out_of_range(self) -> None:
        """The position is outside of the log: continue inside of it, if losses are accepted."""
        bounds = await self._bounds()
        if self._position < bounds.earliest:
            self._lost(f"its log starts at {bounds.earliest}", "Retention deleted the records before they were read.")
            self._position = min(bounds.earliest, self._end)
        elif self._position > bounds.latest:
            self._lost(f"its log ends at {bounds.latest}", "Was the topic created again, or its log truncated?")
            self._position = self._end

    async def _bounds(self) -> Bounds:
        lookup = OffsetLookup(self._client, isolation_level=0, timeout_ms=self._options.request_timeout_ms)
        earliest, latest = await asyncio.gather(
            *(
                lookup.all_offsets({self._partition: end}, self._options.request_timeout_ms)
                for end in (EARLIEST, LATEST)
            )
        )
        return Bounds(earliest[self._partition].offset, latest[self._partition].offset)
