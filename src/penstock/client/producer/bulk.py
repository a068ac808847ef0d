"""`send_many` and `send_arrow`: lists and Arrow columns go into batches without an object per record.

The input is a row of sources, each for one partition or for any. A `BulkJob` fills batches while there is memory,
returns what it has to wait for, and is called again. A record that cannot be sent fails in its place; the others are
sent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.client.errors import PenstockError, RecordTooLarge
from penstock.client.producer.accumulator import Blocked, PartitionQueue, TopicQueues, checked
from penstock.client.producer.core import AnyHeaders, ProducerCore
from penstock.client.producer.delivery import BulkDelivery, Delivery, Span
from penstock.client.producer.producer_batch import Completion
from penstock.records.kernel import BatchBuilder, ColumnRows, partition_rows

if TYPE_CHECKING:
    import pyarrow

_CHUNK: Final = 16_384
_BYTES_OR_NULL: Final = frozenset({bytes, type(None)})


class ProducerRecord(NamedTuple):
    """A record for `send_many`, with more than a value."""

    value: Any = None
    key: Any = None
    headers: AnyHeaders | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class Source(Protocol):
    """Records for one partition (None: for any), and their indexes among all."""

    partition: int | None
    places: Sequence[int]

    def fill(self, builder: BatchBuilder, start: int) -> int:
        """Append from `start` on until the batch is full; returns how many."""


class ValueSource:
    """Values, with or without keys."""

    def __init__(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, timestamp_ms: int,
        partition: int | None, places: Sequence[int],
    ) -> None:  # fmt: skip
        self.partition = partition
        self.places = places
        self._values = values
        self._keys = keys
        self._timestamp_ms = timestamp_ms

    def fill(self, builder: BatchBuilder, start: int) -> int:
        return builder.append_many(self._timestamp_ms, self._values, start, self._keys)


class ColumnSource:
    """Rows of Arrow columns: all, or those in `selection`."""

    def __init__(self, rows: ColumnRows, selection: Any, partition: int | None, places: Sequence[int]) -> None:
        self.partition = partition
        self.places = places
        self._rows = rows
        self._selection = selection

    def fill(self, builder: BatchBuilder, start: int) -> int:
        return builder.append_columns(self._rows, start, None, self._selection)


class BulkJob:
    """Records of one topic that are being put into batches."""

    def __init__(self, core: ProducerCore, topic: str) -> None:
        self.core = core
        self.topic = topic
        self._spans: list[Span] = []
        self._sources: Iterator[Source] = iter(())
        self._current: Source | None = None
        self._position = 0

    def step(self) -> Blocked | None:
        """Fill batches while there is memory. Returns what to wait for; None when all records are in."""
        core = self.core
        core.check_sending()
        topic = core.accumulator.topics.get(self.topic)
        if topic is None:
            return Blocked.NO_TOPIC
        while (source := self._source(topic)) is not None:
            with core.lock:
                core.check_sending()
                topic = core.accumulator.topics[self.topic]
                blocked = self._fill(topic, source)
            core.wake()
            if blocked is not None:
                return blocked
        return None

    def _source(self, topic: TopicQueues) -> Source | None:
        while self._current is None or self._position >= len(self._current.places):
            self._current = next(self._sources, None) or self.more(topic)
            self._position = 0
            if self._current is None:
                return None
        return self._current

    def more(self, topic: TopicQueues) -> Source | None:
        """The next source, when the current ones are empty."""
        return None

    def _fill(self, topic: TopicQueues, source: Source) -> Blocked | None:
        """Fill one batch; called with the lock held."""
        accumulator = self.core.accumulator
        queue = self._queue(topic, source)
        batch, builder = queue.open, queue.lane.builder
        if batch is not None and builder is not None:
            first = builder.count
            # Others append without the lock, and their records would come in between.
            queue.lane.close()
            try:
                taken = source.fill(builder, self._position)
            finally:
                queue.lane.open(builder, batch, batch.callbacks)
            self._took(source, batch, first, taken)
            if self._position >= len(source.places):
                return None
            accumulator.close_open(queue)
            if source.partition is None:
                queue = accumulator.stick(topic)
                if queue.open is not None:
                    return None
        limit = accumulator.reserve(topic)
        if isinstance(limit, Blocked):
            return limit
        builder = BatchBuilder(limit)
        try:
            taken = source.fill(builder, self._position)
            if builder.size > limit:
                self.core.check_size(self.topic, builder.size)
        except BaseException as error:
            accumulator.memory.give_back(limit)
            if not isinstance(error, RecordTooLarge):
                raise
            self._reject(source, queue, error)
            return None
        self._took(source, accumulator.adopt(queue, builder, limit, self.core.cluster.clock.monotonic_ms()), 0, taken)
        if self._position < len(source.places):
            accumulator.close_open(queue)
            if source.partition is None:
                accumulator.stick(topic)
        return None

    def _queue(self, topic: TopicQueues, source: Source) -> PartitionQueue:
        if source.partition is not None:
            return topic.queues[source.partition]
        if topic.lanes.sticky < 0:
            return self.core.accumulator.stick(topic)
        return topic.queues[topic.lanes.sticky]

    def _took(self, source: Source, batch: Completion, first: int, taken: int) -> None:
        if taken:
            start = self._position
            self._position = start + taken
            self._spans.append(Span(batch, first, taken, source.places[start : start + taken]))

    def _reject(self, source: Source, queue: PartitionQueue, error: Exception) -> None:
        rejected = Completion(self.topic, queue.partition)
        rejected.fail(error)
        self._took(source, rejected, 0, 1)

    @property
    def has_begun(self) -> bool:
        return bool(self._spans)

    def give_up(self, error: PenstockError) -> None:
        """Fail what is not in a batch yet."""
        topic = self.core.accumulator.topics[self.topic]
        while (source := self._source(topic)) is not None:
            failed = Completion(self.topic, -1)
            failed.fail(error)
            self._took(source, failed, 0, len(source.places) - self._position)

    def delivery(self) -> BulkDelivery:
        return BulkDelivery(self.topic, self._spans)


class ValuesJob(BulkJob):
    """A list or iterator of values, taken in chunks; without keys, or with one for each value."""

    def __init__(
        self, core: ProducerCore, topic: str, values: Iterable[Any], keys: Iterable[Any] | None,
        partition: int | None, timestamp_ms: int | None,
    ) -> None:  # fmt: skip
        super().__init__(core, topic)
        self._values = values if isinstance(values, (list, tuple)) else iter(values)
        self._keys = None if keys is None else iter(keys)
        self._partition = partition
        self._timestamp_ms = timestamp_ms
        self._next_place = 0
        self._is_read = False

    def more(self, topic: TopicQueues) -> Source | None:
        chunk = self._next_chunk()
        if not chunk:
            return None
        count = len(topic.queues)
        if self._partition is not None:
            checked(self._partition, count, "the partition", self.topic)
        stamp_ms = self.core.cluster.clock.now_ms() if self._timestamp_ms is None else self._timestamp_ms
        values = self._encoded(chunk)
        places = range(self._next_place, self._next_place + len(values))
        self._next_place += len(values)
        if self._keys is None:
            return ValueSource(values, None, stamp_ms, self._partition, places)
        keys = [self.core.encode_key(self.topic, key) for key in islice(self._keys, len(values))]
        if len(keys) < len(values):
            raise ValueError(f"there are fewer keys than values: {places.start + len(keys)} keys")
        if self._partition is not None:
            return ValueSource(values, keys, stamp_ms, self._partition, places)
        if count == 1:
            # Records with and without keys share partitions, so their order counts.
            return ValueSource(values, keys, stamp_ms, 0, places)
        self._sources = iter(_by_partition(topic, values, keys, stamp_ms, places))
        return next(self._sources, None)

    def _next_chunk(self) -> Sequence[Any]:
        if isinstance(self._values, (list, tuple)):
            if self._is_read:
                return ()
            self._is_read = True
            return self._values
        return list(islice(self._values, _CHUNK))

    def _encoded(self, chunk: Sequence[Any]) -> Sequence[bytes | None]:
        if self.core.is_plain and _BYTES_OR_NULL.issuperset(map(type, chunk)):
            return chunk
        return [self.core.encode_value(self.topic, value) for value in chunk]


def _by_partition(
    topic: TopicQueues,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None],
    timestamp_ms: int,
    places: Sequence[int],
) -> list[Source]:
    rows: dict[int, list[int]] = {}
    partition_of = topic.lanes.partition_of
    for row, key in enumerate(keys):
        rows.setdefault(-1 if key is None else partition_of(key), []).append(row)
    return [
        ValueSource(
            [values[row] for row in chosen], [keys[row] for row in chosen], timestamp_ms,
            None if partition < 0 else partition, [places[row] for row in chosen],
        )
        for partition, chosen in rows.items()
    ]  # fmt: skip


class RecordsJob(BulkJob):
    """Records one by one: they differ in more than the value, or an interceptor or partitioner sees each."""

    def __init__(self, core: ProducerCore, topic: str, records: Iterable[ProducerRecord]) -> None:
        super().__init__(core, topic)
        self._records = iter(records)
        self._pending: ProducerRecord | None = None
        self._place = 0

    def step(self) -> Blocked | None:
        while (record := self._pending or next(self._records, None)) is not None:
            self._pending = record
            core = self.core
            try:
                key, value, headers = core.encode(self.topic, record.key, record.value, record.headers)
                taken = core.append(
                    self.topic, key, value, core.encode_headers(headers), record.partition, record.timestamp_ms
                )
            except RecordTooLarge as error:
                taken = _failed(self.topic, error)
            if isinstance(taken, Blocked):
                return taken
            self._note(taken)
        return None

    def give_up(self, error: PenstockError) -> None:
        while (self._pending or next(self._records, None)) is not None:
            self._note(_failed(self.topic, error))

    def _note(self, delivery: Delivery) -> None:
        last = self._spans[-1] if self._spans else None
        if last is not None and last.batch is delivery.batch and last.first + last.count == delivery.index:
            places = range(self._place - last.count, self._place + 1)
            self._spans[-1] = Span(last.batch, last.first, last.count + 1, places)
        else:
            self._spans.append(Span(delivery._completion, delivery.index, 1, range(self._place, self._place + 1)))
        self._place += 1
        self._pending = None


def _failed(topic: str, error: Exception) -> Delivery:
    completion = Completion(topic, -1)
    completion.fail(error)
    return Delivery(completion, 0)


class ColumnsJob(BulkJob):
    """The record batches of an Arrow table with columns value and optionally key, timestamp, headers, partition."""

    def __init__(self, core: ProducerCore, topic: str, table: Any, partition: int | None) -> None:
        super().__init__(core, topic)
        self._batches: Iterator[pyarrow.RecordBatch] = iter(_batches_of(table))
        self._partition = partition
        self._next_place = 0

    def more(self, topic: TopicQueues) -> Source | None:
        from penstock.records.arrow import partition_numbers, rows_of_arrow

        batch = next((each for each in self._batches if each.num_rows), None)
        if batch is None:
            return None
        names = batch.schema.names
        if "headers" in names:
            self.core.check_headers()
        rows = rows_of_arrow(batch, timestamp_ms=self.core.cluster.clock.now_ms())
        places = range(self._next_place, self._next_place + batch.num_rows)
        self._next_place += batch.num_rows
        count = len(topic.queues)
        if self._partition is not None:
            return ColumnSource(rows, None, checked(self._partition, count, "the partition", self.topic), places)
        chosen_by_user = self.core.partitioner is not None and "partition" not in names
        if "partition" not in names and not chosen_by_user:
            if count == 1:
                # Records with and without keys share partitions, so their order counts.
                return ColumnSource(rows, None, 0, places)
            if "key" not in names:
                return ColumnSource(rows, None, None, places)
        wanted = partition_numbers(batch.column("partition")) if "partition" in names else None
        if chosen_by_user:
            wanted = memoryview(array("i", self._ask_partitioner(batch, count)))
        by_partition, others = partition_rows(rows, count, wanted)
        sources: list[Source] = [
            ColumnSource(rows, chosen, partition, _Offset(chosen, places.start))
            for partition, chosen in enumerate(by_partition)
            if len(chosen)
        ]
        if len(others):
            sources.append(ColumnSource(rows, others, None, _Offset(others, places.start)))
        self._sources = iter(sources)
        return next(self._sources, None)

    def _ask_partitioner(self, batch: pyarrow.RecordBatch, count: int) -> Iterator[int]:
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * batch.num_rows
        for key in keys:
            yield self.core.ask_partitioner(self.topic, self.core.encode_key(self.topic, key), count)


class _Offset(Sequence[int]):
    """Row numbers of a record batch as indexes in the table, without a copy."""

    __slots__ = ("_rows", "_start")

    def __init__(self, rows: Any, start: int) -> None:
        self._rows = rows
        self._start = start

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        found = self._rows[index]
        return _Offset(found, self._start) if isinstance(index, slice) else found + self._start


def _batches_of(table: Any) -> Iterable[pyarrow.RecordBatch]:
    if hasattr(table, "to_batches"):
        batches: Iterable[pyarrow.RecordBatch] = table.to_batches()
        return batches
    return [table]


def values_job(
    core: ProducerCore, topic: str, values: Iterable[Any], keys: Iterable[Any] | None,
    partition: int | None, timestamp_ms: int | None,
) -> BulkJob:  # fmt: skip
    """The job for `send_many`: values, or ProducerRecords."""
    if isinstance(values, (bytes, str)):
        raise TypeError(f"send_many takes many values, not one {type(values).__name__}: use send for one")
    iterator = iter(values)
    first = list(islice(iterator, 1))
    if isinstance(values, (list, tuple)):
        items: Iterable[Any] = values
    else:
        items = _chain(first, iterator)
    if first and isinstance(first[0], ProducerRecord):
        return RecordsJob(core, topic, items)
    if core.is_record_wise:
        pairs = zip(items, keys, strict=True) if keys is not None else ((value, None) for value in items)
        return RecordsJob(core, topic, (ProducerRecord(v, k, None, partition, timestamp_ms) for v, k in pairs))
    return ValuesJob(core, topic, items, keys, partition, timestamp_ms)


def _chain(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    yield from first
    yield from rest
