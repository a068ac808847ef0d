"""The reader's place inside what was handed over: the chunk, the batch and the record that it has reached.

Rule: a batch is decompressed and decoded when the reader gets to it, in the reader's thread, by one call of the kernel;
from then on reading is the iteration of a list. `last` is the record handed out last. The partition's position follows
in `settle`, which every call that needs it makes first: a store for each record would cost more than reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from penstock.client.consumer.chunks import Chunk
from penstock.client.consumer.errors import RecordUnreadable
from penstock.client.errors import DeserializationError
from penstock.client.serializers.base import Decoder
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, BatchHeader, RecordError, payload_of
from penstock.records.errors import DecodeFailed
from penstock.records.kernel import ConsumerRecord, decode_consumer_records

K = TypeVar("K")
V = TypeVar("V")

Decode = Callable[[bytes], object]
OnDecodeError = Callable[[DeserializationError], None]


class Slice(NamedTuple):
    """Records of one batch of a chunk: those with offsets from `from_offset` up to, not including, `until_offset`."""

    chunk: Chunk
    header: BatchHeader
    from_offset: int
    until_offset: int


class Decoders(Generic[K, V]):
    """The functions that read keys and values, bound to a topic; and what becomes of records that they cannot read.

    `on_error` None raises; otherwise it is called with the error, and the record is passed over unless it raises.
    """

    def __init__(self, key: Decoder[K] | None, value: Decoder[V] | None, on_error: OnDecodeError | None = None) -> None:
        self._key = key
        self._value = value
        self._bound: dict[str, tuple[Decode | None, Decode | None]] = {}
        self.on_error = on_error

    def of(self, topic: str) -> tuple[Decode | None, Decode | None]:
        bound = self._bound.get(topic)
        if bound is None:
            bound = self._bound[topic] = _bind(self._key, topic), _bind(self._value, topic)
        return bound


def _bind(decoder: Decoder[object] | None, topic: str) -> Decode | None:
    if decoder is None:
        return None
    decode = decoder.decode
    return lambda data: decode(topic, data)


class Cursor(Generic[K, V]):
    """Used by the reader's thread only."""

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
        """Forget the rest; what was handed out counts."""
        self.settle()
        self._chunk = None
        self._failure = None
        self.last = None
        self.records = iter(())

    @property
    def is_stale(self) -> bool:
        """What is left is not to be handed out: the user went elsewhere, or the partition did."""
        return self._chunk is not None and self._chunk.is_stale

    def release(self) -> Chunk | None:
        """Let go of what is left, to come back to it later: the partition was paused."""
        chunk = self._chunk
        if chunk is None or not chunk.place.paused or chunk.is_stale:
            return None
        self.drop()
        position = chunk.place.position
        chunk.from_offset = position
        chunk.headers = [header for header in chunk.headers if header.next_offset > position]
        return chunk

    def settle(self) -> None:
        """Tell the partition how far the reader got: everything handed out is behind its position."""
        last, chunk = self.last, self._chunk
        if last is not None and chunk is not None:
            chunk.place.handed_out(chunk.version, last.offset + 1, last.leader_epoch)

    def done(self) -> None:
        """The reader is done with what it was handed."""
        self.settle()
        if self.last is not None:
            self._resume_at = self.last.offset + 1
            self.last = None

    def advance(self) -> bool:
        """Decode the next batch into `records`; False, and the position behind the chunk, if there is none."""
        chunk = self._chunk
        if chunk is None:
            return False
        while True:
            if self._failure is not None:
                self._raise_or_skip(chunk)
            if self._next_header >= len(chunk.headers):
                chunk.place.handed_out(chunk.version, chunk.next_offset, chunk.epoch)
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
            # The position is the record that cannot be read: asked again, it is raised again.
            chunk.place.handed_out(chunk.version, failed_at, -1)
            raise failure
        self._decoders.on_error(failure)
        self._failure = None
        self._resume_at = failed_at + 1
        chunk.place.handed_out(chunk.version, self._resume_at, -1)

    def take(self, most: int) -> list[ConsumerRecord[K, V]]:
        """Up to `most` records of the batch that is being read."""
        taken = list(islice(self.records, most))
        if taken:
            self.last = taken[-1]
        return taken

    def cut(self, most: int) -> list[Slice]:
        """Up to `most` records of the chunk as slices, without decoding any; they count as handed out."""
        chunk = self._chunk
        if chunk is None:
            return []
        slices: list[Slice] = []
        self.done()
        start = self._resume_at
        self.records, self._failure = iter(()), None
        # A batch of which some records were iterated already counts as passed; its rest is still to be cut.
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
            chunk.place.handed_out(chunk.version, chunk.next_offset, chunk.epoch)
            self._chunk = None
        else:
            chunk.place.handed_out(chunk.version, start, chunk.headers[number].leader_epoch)
        return slices


def decode(
    chunk: Chunk, header: BatchHeader, from_offset: int, decoders: Decoders[K, V]
) -> tuple[list[ConsumerRecord[K, V]], DeserializationError | None]:
    """The records of a batch from an offset on, up to the first that cannot be decoded, and why it cannot."""
    topic, partition = chunk.place.partition
    key, value = decoders.of(topic)
    try:
        plain, start, end = payload_of(chunk.buffer, header, DEFAULT_DECOMPRESSED_LIMIT)
        return decode_consumer_records(
            chunk.buffer, header, plain, start, end, topic, partition, from_offset, key, value
        ), None
    except DecodeFailed as failed:
        return failed.records, _undecodable(failed, topic, partition)
    except RecordError as damage:
        raise unreadable(chunk, header, damage) from damage


def records_of(piece: Slice, decoders: Decoders[K, V]) -> list[ConsumerRecord[K, V]]:
    """The records of a slice as objects; those that cannot be decoded raise, or are passed over, as decoders say."""
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
        chunk.place.partition,
        header.base_offset,
        str(damage),
        f"Seek to {header.next_offset} to go on behind the damaged batch",
    )


def _undecodable(failed: DecodeFailed, topic: str, partition: int) -> DeserializationError:
    cause = failed.__cause__ or failed
    error = DeserializationError(
        f"the {failed.field} of {topic}-{partition} at offset {failed.offset} cannot be decoded: {cause}",
        topic=topic,
        partition=partition,
        offset=failed.offset,
        field=failed.field,
        data=failed.data,
        hint=f'Seek to {failed.offset + 1} to go on behind it, or set on_decode_error="skip"',
    )
    error.__cause__ = cause
    return error
