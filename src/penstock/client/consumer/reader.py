"""The application's side of a consumer: decoding, handing out records, and what to commit.

A batch is decompressed and decoded when the reader reaches it, in the reader's thread, by one call of the kernel. The
position is updated by `settle`, not per record. Records count as processed when the reader asks for more; if it
leaves by an exception, what it had in hand is not committed. `RecordBatch` keeps bytes: `to_arrow` goes from fetched
bytes to Arrow columns without a Python object per record, iteration decodes once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.core import ConsumerCore, Pattern, SubscriptionRequest, subscription_request
from penstock.client.consumer.fetcher import RebalanceCallback
from penstock.client.errors import ConfigError, DeserializationError, MissingDependency, RecordUnreadable, TimedOut
from penstock.client.fetch_state import Chunk, PartitionState, is_offset
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.serializers.base import Decoder, HeaderDecoder
from penstock.records import (
    DEFAULT_DECOMPRESSED_LIMIT,
    BatchHeader,
    ColumnBuilder,
    RecordError,
    append_time_of,
    payload_of,
)
from penstock.records.arrow import to_arrow as columns_to_arrow
from penstock.records.errors import DecodeFailed
from penstock.records.kernel import ConsumerRecord, decode_consumer_records

if TYPE_CHECKING:
    import pyarrow

K = TypeVar("K")
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

Decode = Callable[[bytes], object]
OnDecodeError = Callable[[DeserializationError], None]
ByPartition = dict[TopicPartition, list[ConsumerRecord[K, V]]]
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]
Partitions = str | tuple[str, int] | Iterable[str | tuple[str, int]]


# --------------------------------------------------------------------------------------------------- decoding


class Slice(NamedTuple):
    """Records of one batch of a chunk, with offsets from `from_offset` up to, not including, `until_offset`."""

    chunk: Chunk
    header: BatchHeader
    from_offset: int
    until_offset: int


class Decoders(Generic[K, V]):
    """The functions that decode keys and values, bound to a topic.

    Without `on_error` a failure raises; otherwise it is called with the error, and the record is skipped unless it
    raises.
    """

    def __init__(self, key: Decoder[K] | None, value: Decoder[V] | None, on_error: OnDecodeError | None = None) -> None:
        self._key = key
        self._value = value
        self._bound: dict[str, tuple[Decode | None, Decode | None]] = {}
        self.on_error = on_error
        self.read_headers = isinstance(key, HeaderDecoder) or isinstance(value, HeaderDecoder)
        """Whether a decoder looks at headers. The kernel decodes without them, so these records take a longer way."""

    def of(self, topic: str) -> tuple[Decode | None, Decode | None]:
        bound = self._bound.get(topic)
        if bound is None:
            bound = self._bound[topic] = _bind(self._key, topic), _bind(self._value, topic)
        return bound

    def decoded(self, record: ConsumerRecord[bytes | None, bytes | None]) -> ConsumerRecord[K, V]:
        """A record with its key and value decoded, headers in view. DeserializationError."""
        key = self._with_headers(self._key, "key", record, record.key)
        value = self._with_headers(self._value, "value", record, record.value)
        return ConsumerRecord(
            record.topic, record.partition, record.offset, record.timestamp, record.timestamp_type,
            key, value, record.headers, record.leader_epoch,
        )  # fmt: skip

    def _with_headers(
        self, decoder: Decoder[Any] | None, field: str, record: ConsumerRecord[Any, Any], data: bytes | None
    ) -> Any:
        if data is None or decoder is None:
            return data
        try:
            if isinstance(decoder, HeaderDecoder):
                return decoder.decode_with_headers(record.topic, data, record.headers)
            return decoder.decode(record.topic, data)
        except Exception as cause:  # whatever it is, it is the cause
            raise _decode_error(field, record.topic, record.partition, record.offset, data, cause) from cause


def _bind(decoder: Decoder[object] | None, topic: str) -> Decode | None:
    if decoder is None:
        return None
    decode = decoder.decode
    return lambda data: decode(topic, data)


def decode(
    chunk: Chunk, header: BatchHeader, from_offset: int, decoders: Decoders[K, V]
) -> tuple[list[ConsumerRecord[K, V]], DeserializationError | None]:
    """The records of a batch from an offset on, up to the first that cannot be decoded, and its error."""
    topic, partition = chunk.state.partition
    key, value = decoders.of(topic) if not decoders.read_headers else (None, None)
    try:
        plain, start, end = payload_of(chunk.buffer, header, DEFAULT_DECOMPRESSED_LIMIT)
        if decoders.read_headers:
            return _decoded_one_by_one(
                decode_consumer_records(
                    chunk.buffer, header, plain, start, end, topic, partition, from_offset, None, None
                ),
                decoders,
            )
        return decode_consumer_records(
            chunk.buffer, header, plain, start, end, topic, partition, from_offset, key, value
        ), None
    except DecodeFailed as failed:
        return failed.records, _undecodable(failed, topic, partition)
    except RecordError as damage:
        raise unreadable(chunk, header, damage) from damage


def _decoded_one_by_one(
    records: list[ConsumerRecord[Any, Any]], decoders: Decoders[K, V]
) -> tuple[list[ConsumerRecord[K, V]], DeserializationError | None]:
    found: list[ConsumerRecord[K, V]] = []
    for record in records:
        try:
            found.append(decoders.decoded(record))
        except DeserializationError as failure:
            return found, failure
    return found, None


def records_of(piece: Slice, decoders: Decoders[K, V]) -> list[ConsumerRecord[K, V]]:
    """The records of a slice; those that cannot be decoded raise or are skipped, as the decoders say."""
    chunk, header, from_offset, until_offset = piece
    records: list[ConsumerRecord[K, V]] = []
    while True:
        found, failure = decode(chunk, header, from_offset, decoders)
        records += found
        if failure is None or failure.offset is None or failure.offset >= until_offset:
            break
        if decoders.on_error is None:
            raise failure
        decoders.on_error(failure)
        from_offset = failure.offset + 1
    while records and records[-1].offset >= until_offset:
        records.pop()
    return records


def unreadable(chunk: Chunk, header: BatchHeader, damage: RecordError) -> RecordUnreadable:
    return RecordUnreadable(
        chunk.state.partition,
        header.base_offset,
        str(damage),
        f"Seek to {header.next_offset} to continue after the damaged batch",
    )


def _undecodable(failed: DecodeFailed, topic: str, partition: int) -> DeserializationError:
    cause = failed.__cause__ or failed
    return _decode_error(failed.field, topic, partition, failed.offset, failed.data, cause)


def _decode_error(
    field: str, topic: str, partition: int, offset: int, data: bytes | None, cause: BaseException
) -> DeserializationError:
    error = DeserializationError(
        f"the {field} of {topic}-{partition} at offset {offset} cannot be decoded: {cause}",
        topic=topic,
        partition=partition,
        offset=offset,
        field=field,
        data=data,
        hint=f'Seek to {offset + 1} to continue after it, or set on_decode_error="skip"',
    )
    error.__cause__ = cause
    return error


# --------------------------------------------------------------------------------------------------- records


class Cursor(Generic[K, V]):
    """The position of the application in a chunk. Used by its thread only."""

    def __init__(self, decoders: Decoders[K, V]) -> None:
        self._decoders = decoders
        self._chunk: Chunk | None = None
        self._next_header = 0
        self._failure: DeserializationError | None = None
        self._resume_at = -1
        self.records: Iterator[ConsumerRecord[K, V]] = iter(())
        self.last: ConsumerRecord[K, V] | None = None

    @property
    def chunk(self) -> Chunk | None:
        return self._chunk

    def begin(self, chunk: Chunk) -> None:
        self.settle()
        self._chunk = chunk
        self._next_header = 0
        self._failure = None
        self._resume_at = chunk.from_offset
        self.last = None
        self.records = iter(())

    def drop(self) -> None:
        """Drop the rest; what was handed out counts."""
        self.settle()
        self._chunk = None
        self._failure = None
        self.last = None
        self.records = iter(())

    @property
    def is_stale(self) -> bool:
        """Whether the rest must not be handed out: the application sought elsewhere, or the partition was revoked."""
        return self._chunk is not None and self._chunk.is_stale

    def release(self) -> Chunk | None:
        """The rest of the chunk if its partition was paused, to be put back into the queue; else None."""
        chunk = self._chunk
        if chunk is None or not chunk.state.paused or chunk.is_stale:
            return None
        self.drop()
        position = chunk.state.position
        chunk.from_offset = position
        chunk.headers = [header for header in chunk.headers if header.next_offset > position]
        return chunk

    def settle(self) -> None:
        """Move the partition's position behind everything that was handed out."""
        last, chunk = self.last, self._chunk
        if last is not None and chunk is not None:
            chunk.state.handed_out(chunk.version, last.offset + 1, last.leader_epoch)

    def done(self) -> None:
        """The application has processed what it was handed."""
        self.settle()
        if self.last is not None:
            self._resume_at = self.last.offset + 1
            self.last = None

    def advance(self) -> bool:
        """Decode the next batch into `records`; False, with the position behind the chunk, if there is none."""
        chunk = self._chunk
        if chunk is None:
            return False
        while True:
            if self._failure is not None:
                self._raise_or_skip(chunk)
            if self._next_header >= len(chunk.headers):
                chunk.state.handed_out(chunk.version, chunk.next_offset, chunk.epoch)
                self._chunk = None
                self.last = None
                return False
            header = chunk.headers[self._next_header]
            records, self._failure = decode(chunk, header, self._resume_at, self._decoders)
            if self._failure is None:
                self._next_header += 1
            if records:
                self.records = iter(records)
                return True

    def _raise_or_skip(self, chunk: Chunk) -> None:
        failure = self._failure
        if failure is None or failure.offset is None:
            return
        failed_at = failure.offset
        if self._decoders.on_error is None:
            # The position stays at the record, so the next call raises again.
            chunk.state.handed_out(chunk.version, failed_at, -1)
            raise failure
        self._decoders.on_error(failure)
        self._failure = None
        self._resume_at = failed_at + 1
        chunk.state.handed_out(chunk.version, self._resume_at, -1)

    def take(self, most: int) -> list[ConsumerRecord[K, V]]:
        """Up to `most` records of the current batch."""
        taken = list(islice(self.records, most))
        if taken:
            self.last = taken[-1]
        return taken

    def cut(self, most: int) -> list[Slice]:
        """Up to `most` records of the chunk as slices, without decoding them; they count as handed out."""
        chunk = self._chunk
        if chunk is None:
            return []
        slices: list[Slice] = []
        self.done()
        start = self._resume_at
        self.records, self._failure = iter(()), None
        # A batch of which some records were iterated counts as read; its rest is still to be cut.
        number = max(0, self._next_header - 1)
        while number < len(chunk.headers) and most > 0:
            header = chunk.headers[number]
            if header.next_offset > start:
                start = max(start, header.base_offset)
                until = min(header.next_offset, start + most)
                slices.append(Slice(chunk, header, start, until))
                most -= until - start
                start = until
                if until < header.next_offset:
                    break
            number += 1
        self._resume_at = start
        self._next_header = number
        if number >= len(chunk.headers):
            chunk.state.handed_out(chunk.version, chunk.next_offset, chunk.epoch)
            self._chunk = None
        else:
            chunk.state.handed_out(chunk.version, start, chunk.headers[number].leader_epoch)
        return slices


class RecordBatch(Sequence[ConsumerRecord[K, V]], Generic[K, V]):
    """Records of one or more partitions. Commit `offsets` once all of them are processed."""

    def __init__(self, slices: list[Slice], decoders: Decoders[K, V]) -> None:
        self._slices = slices
        self._decoders = decoders
        self._records: list[ConsumerRecord[K, V]] | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of its records, in order of appearance."""
        return list(dict.fromkeys(piece.chunk.state.partition for piece in self._slices))

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit when the whole batch is processed."""
        return {
            piece.chunk.state.partition: OffsetAndMetadata(piece.until_offset, piece.header.leader_epoch, "")
            for piece in self._slices
        }

    @property
    def records(self) -> list[ConsumerRecord[K, V]]:
        """All records, decoded; raises DeserializationError unless on_decode_error says otherwise."""
        if self._records is None:
            records: list[ConsumerRecord[K, V]] = []
            for piece in self._slices:
                records += records_of(piece, self._decoders)
            self._records = records
        return self._records

    def by_partition(self) -> dict[TopicPartition, list[ConsumerRecord[K, V]]]:
        """All records, decoded, by partition."""
        grouped: dict[TopicPartition, list[ConsumerRecord[K, V]]] = {}
        for record in self.records:
            grouped.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return grouped

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[ConsumerRecord[K, V]]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> ConsumerRecord[K, V]: ...

    @overload
    def __getitem__(self, index: slice) -> list[ConsumerRecord[K, V]]: ...

    def __getitem__(self, index: int | slice) -> ConsumerRecord[K, V] | list[ConsumerRecord[K, V]]:
        return self.records[index]

    def __repr__(self) -> str:
        return f"<RecordBatch of {', '.join(map(str, self.partitions)) or 'nothing'}>"

    def to_arrow(self, *, headers: bool = False) -> pyarrow.RecordBatch:
        """Columns topic (dictionary), partition, offset, timestamp (ms, UTC), key, value (binary) [, headers].

        Keys and values are the bytes as they were sent, without decoding.
        """
        try:
            import pyarrow as pa
        except ImportError as error:
            raise MissingDependency("pyarrow", "to_arrow()") from error
        builder = ColumnBuilder(headers=headers)
        topics: dict[str, int] = {}
        topic_codes, partitions = array("i"), array("i")
        for piece in self._slices:
            rows = _append(builder, piece)
            topic, partition = piece.chunk.state.partition
            topic_codes += array("i", [topics.setdefault(topic, len(topics))]) * rows
            partitions += array("i", [partition]) * rows
        table = columns_to_arrow(builder.finish())
        rows = table.num_rows
        codes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(topic_codes)])
        named = pa.DictionaryArray.from_arrays(codes, pa.array(list(topics), pa.string()))
        indexes = pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(partitions)])
        arrays: list[Any] = [named, indexes, *table.columns]
        return pa.RecordBatch.from_arrays(arrays, names=["topic", "partition", *table.schema.names])


def _append(builder: ColumnBuilder, piece: Slice) -> int:
    chunk, header, from_offset, until_offset = piece
    try:
        plain, start, end = payload_of(chunk.buffer, header)
        return builder.append(
            plain, start, end, header.record_count, header.base_offset, header.base_timestamp,
            append_time_of(header), from_offset, until_offset,
        )  # fmt: skip
    except RecordError as damage:
        raise unreadable(chunk, header, damage) from damage


Committable = ConsumerRecord[Any, Any] | RecordBatch[Any, Any] | Offsets


# --------------------------------------------------------------------------------------------------- the reader


class Reader(Generic[K, V]):
    def __init__(self, core: ConsumerCore, key: Decoder[K] | None, value: Decoder[V] | None) -> None:
        settings = core.settings
        on_error: OnDecodeError | None = None
        if settings.on_decode_error == "skip":
            on_error = _skip
        elif callable(settings.on_decode_error):
            on_error = settings.on_decode_error
        self.core = core
        self.queue = core.queue
        self.decoders: Decoders[K, V] = Decoders(key, value, on_error)
        self.cursor: Cursor[K, V] = Cursor(self.decoders)
        self.undone: dict[PartitionState, int] = {}
        core.reached = lambda: self.cursor.last

    # --- handing out

    def came_back(self) -> None:
        """The application wants more: what it has is processed."""
        self.cursor.done()
        self.undone.clear()

    def tidy(self) -> None:
        """Drop a stale chunk, put back one of a paused partition."""
        if self.cursor.is_stale:
            self.cursor.drop()
            return
        paused = self.cursor.release()
        if paused is not None:
            self.queue.give_back(paused)

    def begin_next(self) -> bool:
        """Start the next chunk, if there is one."""
        chunk: Chunk | None = self.queue.take()
        if chunk is None:
            return False
        self.cursor.begin(chunk)
        return True

    def gather(self, result: ByPartition[K, V], most: int) -> int:
        """Add up to `most` buffered records, without waiting; returns how many were added."""
        added = 0
        while added < most:
            chunk = self.cursor.chunk
            if chunk is not None:
                self._keep_undone(chunk)
                taken = self.cursor.take(most - added)
                if taken:
                    result.setdefault(chunk.state.partition, []).extend(taken)
                    added += len(taken)
                    continue
            try:
                if self.cursor.advance():
                    continue
            except DeserializationError:
                if added:
                    break  # the next call starts with it and raises
                raise
            if not self.begin_next():
                break
        return added

    def gather_slices(self, most: int) -> list[Slice]:
        """Up to `most` buffered records as slices, without waiting and without decoding."""
        slices: list[Slice] = []
        while most > 0:
            chunk = self.cursor.chunk
            if chunk is None:
                if not self.begin_next():
                    break
                continue
            self._keep_undone(chunk)
            cut = self.cursor.cut(most)
            most -= sum(piece.until_offset - piece.from_offset for piece in cut)
            slices += cut
        return slices

    def _keep_undone(self, chunk: Chunk) -> None:
        self.cursor.settle()
        self.undone.setdefault(chunk.state, chunk.state.position)

    def batch(self, slices: list[Slice]) -> RecordBatch[K, V]:
        return RecordBatch(slices, self.decoders)

    # --- revocation

    def let_go(self, callback: RebalanceCallback) -> None:
        """Stop reading the partitions of a revocation."""
        if callback.kind == "assign":
            return
        for state in callback.states:
            state.version += 1
        self.tidy()

    # --- commits

    def offsets_of(
        self, what: ConsumerRecord[Any, Any] | RecordBatch[Any, Any] | Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit for a record, a batch or offsets; for None, everything handed out."""
        if what is None:
            self.cursor.settle()
            return self.core.consumed()
        if isinstance(what, RecordBatch):
            return what.offsets
        if isinstance(what, ConsumerRecord):
            return {
                TopicPartition(what.topic, what.partition): OffsetAndMetadata(what.offset + 1, what.leader_epoch, "")
            }
        return {TopicPartition(*partition): _stored(offset) for partition, offset in what.items()}

    def offsets_when_leaving(self, failed: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit at the end; `failed`: processing the records in hand raised."""
        cursor = self.cursor
        if failed and cursor.last is not None and cursor.chunk is not None and not self.undone:
            self.undone[cursor.chunk.state] = cursor.last.offset
        cursor.settle()
        offsets = self.core.consumed()
        if failed:
            for state, offset in self.undone.items():
                if state.partition in offsets:
                    offsets[state.partition] = OffsetAndMetadata(offset, -1, "")
        return offsets


def _skip(error: DeserializationError) -> None:
    """on_decode_error="skip"."""


# --------------------------------------------------------------------------------------------------- rebalances


class RebalanceListener:
    """Called when partitions are assigned or revoked; pass it to `subscribe`. Override what you need.

    Any object with `on_partitions_assigned` and `on_partitions_revoked` works. For `AsyncConsumer` the methods may be
    coroutines. They are called inside `poll` and iterations, after the functions of `on_assign` and `on_revoke`.
    """

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These were added, and none of their records was handed out yet; you can seek here."""

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These move to other members and are still owned by this one: finish and commit here."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These are already lost; calls `on_partitions_revoked` unless it is overridden."""
        return self.on_partitions_revoked(lost)


def checked_listener(listener: Any) -> Any:
    """The listener, or None; raises ConfigError if it lacks a method."""
    if listener is not None:
        for name in ("on_partitions_assigned", "on_partitions_revoked"):
            if isinstance(listener, type) or not callable(getattr(listener, name, None)):
                raise ConfigError(f"listener is {listener!r}, which lacks {name}", hint="Subclass RebalanceListener")
    return listener


class RebalanceCallbacks:
    """The application's rebalance callbacks, in the order in which they were registered."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.assign: list[Callable[..., Any]] = []
        self.revoke: list[Callable[..., Any]] = []
        self.lose: list[Callable[..., Any]] = []

    def of(self, callback: RebalanceCallback) -> list[Callable[..., Any]]:
        """The functions to call; without callbacks for lost partitions, those for revoked ones."""
        listener = self.listener
        if callback.kind == "assign":
            return [*self.assign, *([] if listener is None else [listener.on_partitions_assigned])]
        revoked = [] if listener is None else [listener.on_partitions_revoked]
        if callback.kind == "revoke":
            return [*self.revoke, *revoked]
        lost = getattr(listener, "on_partitions_lost", None)
        return [*(self.lose or self.revoke), *(revoked if lost is None else [lost])]


# --------------------------------------------------------------------------------------------------- arguments


def milliseconds(timeout: float | None, timeout_ms: float | None) -> float | None:
    """A time-out given in seconds (`timeout`) or milliseconds (`timeout_ms`), in milliseconds."""
    if timeout is None:
        return timeout_ms
    if timeout_ms is not None:
        raise ConfigError(f"timeout ({timeout} s) and timeout_ms ({timeout_ms}) are both given", hint="Give one")
    return timeout * 1000


def _stored(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    if isinstance(offset, OffsetAndMetadata):
        return offset
    if not is_offset(offset):
        raise ConfigError(f"{offset!r} is not an offset", hint="Give a number, 0 or more")
    return OffsetAndMetadata(offset, -1, "")


def in_ms(when: datetime | int | float) -> int:
    """Milliseconds since 1970 of a datetime or number; a datetime without a time zone is local time."""
    if isinstance(when, datetime):
        return int(when.timestamp() * 1000)
    if when < 0:
        raise ConfigError(f"{when!r} is not a time", hint="Give a datetime, or milliseconds since 1970")
    return int(when)


def pairs(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]


def partitions_meant(what: Partitions, assigned: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions given by topic, by pair, or several of both; a topic means its assigned partitions."""
    if isinstance(what, str):
        return [partition for partition in assigned if partition.topic == what]
    if isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], int):
        return [TopicPartition(what[0], what[1])]
    known = list(assigned)
    meant: list[TopicPartition] = []
    for one in what:
        meant += partitions_meant(one, known)
    return meant


def checked_subscription(
    topics: Iterable[str], pattern: Pattern | None, exclude: Pattern | None
) -> SubscriptionRequest:
    try:
        return subscription_request(topics, pattern, exclude)
    except ValueError as reason:
        raise ConfigError(str(reason)) from None


def unassigned(core: ConsumerCore, timeout_ms: float) -> TimedOut:
    """The error if nothing was assigned in time, with the probable reason as hint."""
    if core.subscription.is_empty:
        hint = "There is no subscription: call subscribe or assign"
    elif all(core.cluster.view.topic(name) is None for name in core.topics_meant()):
        hint = "None of the topics exists"
    elif core.commits.committer.member_id:
        hint = "The consumer is a member of the group, which may have more members than partitions"
    else:
        hint = "Check that the group's coordinator is up"
    return TimedOut(f"no partitions were assigned within {timeout_ms:.0f} ms", hint=hint)
