"""Producer and consumer loops: open batches and the lanes that fill them, and consumer records.

A lane is used by many threads. In the compiled kernel an append is atomic; here the `guard` given to the lane makes it
so. A batch that was built does not change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from penstock.records.compression import compress
from penstock.records.errors import DecodeFailed, TooLarge
from penstock.records.python_kernel_batch import (
    INT32_MAX,
    LENGTH_END,
    BatchHeader,
    check_header,
    check_int64,
    put_varint,
    wrap_int64,
    write_header,
)
from penstock.records.python_kernel_columns import MOST_PARTITIONS, ColumnRows, Selection, as_rows, murmur2
from penstock.records.python_kernel_records import (
    Headers,
    as_bytes,
    check_range,
    decode_headers,
    encode_headers,
    parse_records,
)
from penstock.records.types import HEADER_SIZE, Buffer

_TRANSACTIONAL_BIT: Final = 16
_APPEND_TIME_BIT: Final = 8

Content: TypeAlias = bytes | memoryview | None
TextHeaders: TypeAlias = Mapping[str, Buffer | str | None] | Iterable[tuple[str, Buffer | str | None]]


def _varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def _length(data: Content) -> int:
    return -1 if data is None else len(data)


class BatchBuilder:
    """The records of one open batch, encoded as they are appended.

    `limit_bytes` bounds the batch before compression, its header of 61 bytes included; the first record always fits.
    `build` closes it: a batch that was sent once must not change, so from then on nothing fits.
    """

    def __init__(self, limit_bytes: int) -> None:
        if not HEADER_SIZE <= limit_bytes <= INT32_MAX:
            raise ValueError(f"a batch's limit is {limit_bytes} bytes; it must be {HEADER_SIZE} to {INT32_MAX}")
        self.limit_bytes = limit_bytes
        self.count = 0
        self.size = HEADER_SIZE
        self.base_timestamp = self.max_timestamp = -1
        self.is_closed = False
        self._is_lent = False
        self._out = bytearray(HEADER_SIZE)
        self._packed: tuple[tuple[int, int | None], bytes] | None = None

    def _check_size(self) -> None:
        if self._is_lent and len(self._out) != self.size:
            raise ValueError("the batch was resized by its reader")

    def add(self, timestamp: int, key: Content, value: Content, headers: bytes | bytearray) -> int:
        """Append a record whose headers are encoded already."""
        if self.is_closed:
            return -1
        prefix = b"\x00" + _varint(wrap_int64(timestamp - self.base_timestamp) if self.count else 0)
        prefix += _varint(self.count) + _varint(_length(key))
        middle = _varint(_length(value))
        body = len(prefix) + len(key or b"") + len(middle) + len(value or b"") + len(headers)
        if body > INT32_MAX:
            raise TooLarge("a record", INT32_MAX)
        length = _varint(body)
        needed = self.size + len(length) + body
        if needed > self.limit_bytes and self.count:
            return -1
        if needed - LENGTH_END > INT32_MAX:
            raise TooLarge("a batch", INT32_MAX)
        self._out += b"".join((length, prefix, key or b"", middle, value or b"", headers))
        self.size = needed
        if self.count == 0:
            self.base_timestamp = self.max_timestamp = timestamp
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.count += 1
        return self.count - 1

    def append(self, timestamp: int, key: Buffer | None, value: Buffer | None, headers: Headers = ()) -> int:
        """Append a record; its index in the batch, or -1 if it does not fit."""
        check_int64(timestamp)
        key_bytes, value_bytes = as_bytes(key, "key"), as_bytes(value, "value")
        return self.add(timestamp, key_bytes, value_bytes, encode_headers(headers))

    def append_many(
        self,
        timestamp: int,
        values: Sequence[Buffer | None],
        start: int = 0,
        keys: Sequence[Buffer | None] | None = None,
    ) -> int:
        """Append values[start:], each with its key where there are `keys`, until the batch is full; how many.

        An invalid value raises if it comes first. Otherwise the values before it are appended, and it raises next time.
        """
        check_int64(timestamp)
        items = values if isinstance(values, list | tuple) else list(values)
        names = keys if keys is None or isinstance(keys, list | tuple) else list(keys)
        if start < 0:
            raise ValueError(f"start {start} is negative")
        if names is not None and len(names) != len(items):
            raise ValueError(f"there are {len(names)} keys for {len(items)} values")
        for row in range(start, len(items)):
            try:
                value = as_bytes(items[row], "value")
                key = None if names is None else as_bytes(names[row], "key")
                if self.add(timestamp, key, value, b"\x00") < 0:
                    return row - start
            except (TypeError, TooLarge):
                if row == start:
                    raise
                return row - start
        return max(len(items) - start, 0)

    def append_columns(
        self, rows: ColumnRows, start: int = 0, stop: int | None = None, selection: Buffer | None = None
    ) -> int:
        """Append rows[start:stop], or the rows that selection[start:stop] names, until the batch is full; how many.

        An invalid row raises if it comes first. Otherwise the rows before it are appended, and it raises next time.
        """
        source = as_rows(rows)
        chosen = Selection(source.rows, start, stop, selection)
        for number in range(start, chosen.stop):
            try:
                row = chosen.row(number)
                timestamp, headers = source.timestamp_of(row), source.headers_of(row)
                if self.add(timestamp, source.key_of(row), source.value_of(row), headers) < 0:
                    return number - start
            except (ValueError, TooLarge):
                if number == start:
                    raise
                return number - start
        return chosen.stop - start

    def timestamp_runs(self) -> list[tuple[int, int]]:
        """[(index, timestamp)] of a built batch: where the timestamp changes."""
        if not self.is_closed:
            raise ValueError("the batch is still open")
        self._check_size()
        runs: list[tuple[int, int]] = []
        with memoryview(self._out) as whole:
            for index, parsed in enumerate(parse_records(whole, HEADER_SIZE, self.size, self.count)):
                timestamp = wrap_int64(self.base_timestamp + parsed.timestamp_delta)
                if not runs or timestamp != runs[-1][1]:
                    runs.append((index, timestamp))
        return runs

    def build(
        self,
        *,
        codec: int = 0,
        level: int | None = None,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytearray:
        """The complete batch. It may be built again with other numbers, for a retry with a new producer id.

        It is compressed once for the same codec and level. Not compressed, it is the builder's own buffer the first
        time, to be read only, and a copy after that.
        """
        if self.count == 0:
            raise ValueError("a batch holds at least one record")
        self._check_size()
        self.is_closed = True
        if codec == 0:
            batch = self._out[:] if self._is_lent else self._out
            self._is_lent = True
        else:
            if self._packed is None or self._packed[0] != (codec, level):
                with memoryview(self._out) as whole, whole[HEADER_SIZE:] as records:
                    self._packed = ((codec, level), compress(codec, records, level))
            batch = bytearray(HEADER_SIZE) + self._packed[1]
        write_header(
            batch, 0, -1, codec | is_transactional * _TRANSACTIONAL_BIT, self.count - 1, self.base_timestamp,
            self.max_timestamp, producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        return batch


def encode_columns(
    rows: ColumnRows, limit_bytes: int, start: int = 0, stop: int | None = None, selection: Buffer | None = None
) -> tuple[BatchBuilder, int]:
    """(a BatchBuilder, how many rows it took): rows[start:stop], or those that selection[start:stop] names.

    A batch has room for `limit_bytes` before compression; for more rows, call again with `start` plus what was taken.
    """
    builder = BatchBuilder(limit_bytes)
    return builder, builder.append_columns(rows, start, stop, selection)


def _content_of(given: Buffer | str | None, what: str) -> bytes | None:
    """Bytes as they are, text as UTF-8."""
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, (bytes, bytearray, memoryview)):
        return as_bytes(given, what)
    raise TypeError(f"a record's {what} must be bytes, str or None, not {type(given).__name__}")


def _encode_headers(headers: TextHeaders | None) -> bytearray:
    if not headers:
        return encode_headers(None)
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return encode_headers([(name, as_bytes(_utf8(value), "header value")) for name, value in pairs])


def _utf8(value: Buffer | str | None) -> Buffer | None:
    return value.encode() if isinstance(value, str) else value


def _check_callable(on_delivery: object) -> None:
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")


class Callbacks:
    """Callbacks for when a batch is done, with their arguments, in the order of addition.

    An int is the index of a record. Records in a row with the same callback are kept as one, so that a callback that
    all records share costs no object per record. From any thread. Nothing is lost between `add` and `take`: what `take`
    does not return, `add` has rejected. `guard` is held during each call.
    """

    __slots__ = ("_guard", "_items")

    def __init__(self, guard: AbstractContextManager[Any] | None = None) -> None:
        self._items: list[Any] | None = []
        self._guard: AbstractContextManager[Any] = nullcontext() if guard is None else guard

    def add(self, argument: object, callback: Callable[..., object]) -> bool:
        """Adds a callback with its argument; False once the others were taken."""
        with self._guard:
            items = self._items
            if items is None:
                return False
            before = _records(items[-2]) if type(argument) is int and items and items[-1] is callback else None
            if before is not None and before.stop == argument:
                items[-2] = range(before.start, before.stop + 1)
                return True
            items += (argument, callback)
            return True

    def take(self) -> list[Any]:
        """Everything added, as [argument, callback, argument, callback, ...]; empty the second time.

        The argument of records in a row that share a callback is the range of their indexes.
        """
        with self._guard:
            items, self._items = self._items, None
            return [] if items is None else items


def _records(argument: object) -> range | None:
    """The indexes of the records that an argument of a callback stands for, if it does."""
    if type(argument) is int:
        return range(argument, argument + 1)
    return argument if type(argument) is range else None


def run_callbacks(
    callbacks: list[Any],
    stored: tuple[type[tuple[Any, ...]], str, int, int, Any] | None,
    report: Callable[[int], tuple[Any, Any]],
    on_error: Callable[[], object],
) -> None:
    """Call what `Callbacks.take` returned; `on_error()` is called in the handler of what a callback raises.

    The callbacks of records get (None, metadata) if `stored` is (the metadata's subclass of tuple, topic, partition,
    base offset, timestamp or timestamps), and what `report(index)` returns if it is None. With None as its argument a
    callback is called without, with any other it gets that.
    """
    pairs = iter(callbacks)
    stamp, first, end = (stored[4], 0, sys.maxsize) if stored is not None and isinstance(stored[4], int) else (-1, 0, 0)
    for argument, callback in zip(pairs, pairs, strict=True):
        records = _records(argument)
        for number in (None,) if records is None else records:
            try:
                if number is None:
                    callback() if argument is None else callback(argument)
                elif stored is None:
                    callback(*report(number))
                else:
                    kind, topic, partition, base_offset, stamps = stored
                    if not first <= number < end:  # neighbours mostly share their timestamp
                        stamp, first, end = stamps.run_at(number)
                    callback(None, tuple.__new__(kind, (topic, partition, base_offset + number, stamp)))
            except (Exception, SystemExit):  # noqa: BLE001 - one callback must not keep the others from running
                on_error()


class Ticket:
    """Which record of which batch: what a producer gives for a record sent. Subclass it, see `uncollected`."""

    __slots__ = ("batch", "index")

    batch: Any
    index: int

    def __init__(self, batch: object, index: int) -> None:
        self.batch = batch
        self.index = index


TicketT = TypeVar("TicketT", bound=Ticket)


def uncollected(kind: type[TicketT]) -> type[TicketT]:
    """Decorates a subclass of Ticket without fields of its own (`__slots__ = ()`): the collector ignores its instances.

    Millions of them may be alive. A batch that refers to its tickets has to let go of them when it is done. Here the
    collector looks at them, as at all objects.
    """
    _ticket_type_of(kind)
    if kind.__basicsize__ != Ticket.__basicsize__ or kind.__dictoffset__:
        raise TypeError(f"{kind!r} has fields of its own")
    return kind


class Moment:
    """The timestamp of records that are appended now, shared by many lanes. The owner of a clock sets it."""

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = check_int64(now_ms)

    @property
    def now_ms(self) -> int:
        return self._now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._now_ms = check_int64(now_ms)


def _ticket_type_of(candidate: Any) -> Any:
    if not isinstance(candidate, type) or not issubclass(candidate, Ticket):
        raise TypeError(f"a subclass of Ticket is needed, not {candidate!r}")
    return candidate


def _moment_of(candidate: Moment | None) -> Moment:
    if candidate is None:
        return Moment()
    if not isinstance(candidate, Moment):
        raise TypeError(f"a Moment is needed, not {type(candidate).__name__}")
    return candidate


class Lane(Generic[TicketT]):
    """Appends to the open batch of one partition: `append` returns a ticket, or None if nothing fits.

    None means that no batch is open or that it is full: close it, open another, append again. Tickets are created
    without calling `__init__`. `guard` is held during each call; it must be reentrant.
    """

    def __init__(
        self,
        ticket_type: type[TicketT],
        moment: Moment | None = None,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.ticket_type: type[TicketT] = _ticket_type_of(ticket_type)
        self.moment = _moment_of(moment)
        self.builder: BatchBuilder | None = None
        self.batch: Any = None
        self.callbacks: Callbacks | None = None
        self._guard: AbstractContextManager[Any] = nullcontext() if guard is None else guard

    @property
    def now_ms(self) -> int:
        return self.moment.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.moment.now_ms = now_ms

    def open(self, builder: BatchBuilder, batch: object, callbacks: Callbacks | None = None) -> None:
        """Append to `builder` from now on. Tickets refer to `batch`; `callbacks` takes the on_delivery callbacks."""
        if type(builder) is not BatchBuilder:
            raise TypeError(f"a BatchBuilder is needed, not {type(builder).__name__}")
        with self._guard:
            if self.builder is not None:
                raise ValueError("the lane is open: close it first")
            if callbacks is not None and type(callbacks) is not Callbacks:
                raise TypeError(f"Callbacks are needed, not {type(callbacks).__name__}")
            self.builder = builder
            self.batch = batch
            self.callbacks = callbacks

    def close(self) -> Any:
        """Stop appending to the open batch. Returns that batch, or None."""
        with self._guard:
            batch = self.batch
            self.builder = None
            self.batch = None
            self.callbacks = None
            return batch

    def append(
        self,
        value: Buffer | str | None,
        key: Buffer | str | None = None,
        timestamp: int | None = None,
        headers: TextHeaders | None = (),
        on_delivery: Callable[..., object] | None = None,
    ) -> TicketT | None:
        """Append a record, stamped with the lane's moment unless a timestamp is given: its ticket, or None.

        Text becomes UTF-8. `headers` are pairs or a mapping of text to bytes, text or None. `on_delivery` goes to the
        batch's callbacks, with the record's index as its argument.
        """
        key_bytes, value_bytes = _content_of(key, "key"), _content_of(value, "value")
        stamp = self.moment.now_ms if timestamp is None else check_int64(timestamp)
        _check_callable(on_delivery)
        encoded = _encode_headers(headers)
        ticket = Ticket.__new__(self.ticket_type)
        with self._guard:
            if self.builder is None:
                return None
            if on_delivery is not None and self.callbacks is None:
                raise ValueError("the lane was opened without callbacks")
            place = self.builder.add(stamp, key_bytes, value_bytes, encoded)
            if place < 0:
                return None
            ticket.batch = self.batch
            ticket.index = place
            if on_delivery is not None and self.callbacks is not None:
                self.callbacks.add(place, on_delivery)
        return ticket


class TopicLanes(Generic[TicketT]):
    """The lanes of a topic's partitions. A key chooses its own as in Java; records without key go to the `sticky` one.

    `sticky` is -1 while there is none: then records without key are not accepted.
    """

    def __init__(
        self,
        ticket_type: type[TicketT],
        partition_count: int,
        moment: Moment | None = None,
        guard: AbstractContextManager[Any] | None = None,
    ) -> None:
        if not 1 <= partition_count <= MOST_PARTITIONS:
            raise ValueError(f"a topic has 1 to {MOST_PARTITIONS} partitions, not {partition_count}")
        shared = _moment_of(moment)
        self.lanes = tuple([Lane(ticket_type, shared, guard) for _ in range(partition_count)])
        self._sticky = -1

    @property
    def sticky(self) -> int:
        return self._sticky

    @sticky.setter
    def sticky(self, partition: int) -> None:
        if not -1 <= partition < len(self.lanes):
            raise ValueError(f"partition {partition} is not one of {len(self.lanes)}")
        self._sticky = partition

    def partition_of(self, key: Buffer | str | None) -> int:
        """The partition of a key; for None the sticky one, or -1."""
        content = _content_of(key, "key")
        return self._sticky if content is None else murmur2(content) % len(self.lanes)

    def append(
        self,
        value: Buffer | str | None,
        key: Buffer | str | None = None,
        timestamp: int | None = None,
        headers: TextHeaders | None = (),
        partition: int | None = None,
        on_delivery: Callable[..., object] | None = None,
    ) -> TicketT | None:
        """Append a record to the given partition, or that of its key: its ticket, or None if nothing fits.

        Also None for a partition that the topic does not have. See `Lane.append`.
        """
        key_bytes = _content_of(key, "key")
        chosen = self.partition_of(key_bytes) if partition is None else check_int64(index(partition))
        if not 0 <= chosen < len(self.lanes):
            _content_of(value, "value")
            return None
        return self.lanes[chosen].append(value, key_bytes, timestamp, headers, on_delivery)


SendT = TypeVar("SendT", bound=Callable[..., Any])


def lanes_first(method: SendT) -> SendT:
    """Decorates a producer's `send`: compiled, first tries the lanes in `self._lanes`, TopicLanes by topic.

    Records without a timestamp get the real time. The method runs if the topic has no lanes, nothing fits, an argument
    is invalid, or headers are not a list, tuple or dict. Nothing was appended then, and it sees the arguments as they
    were given. Here it always runs.
    """
    return method


K_co = TypeVar("K_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ConsumerRecord(Generic[K_co, V_co]):
    """A record as a consumer sees it: its position, timestamp in milliseconds, key, value, headers.

    `timestamp_type` is 0 if the producer set the timestamp, 1 if the broker did. `leader_epoch` is -1 if unknown.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: K_co
    value: V_co
    headers: tuple[tuple[str, bytes | None], ...] = ()
    leader_epoch: int = -1


def _decode(
    raw: ConsumerRecord[bytes | None, bytes | None],
    field: Literal["key", "value"],
    decoder: Callable[[bytes], Any] | None,
    done: list[ConsumerRecord[Any, Any]],
) -> Any:
    data = raw.key if field == "key" else raw.value
    if data is None or decoder is None:
        return data
    try:
        return decoder(data)
    except Exception as reason:  # whatever it is, it is the cause
        raise DecodeFailed(raw, field, done) from reason


def decode_consumer_records(
    buffer: Buffer,
    header: BatchHeader,
    plain: Buffer | None,
    start: int,
    end: int,
    topic: str,
    partition: int,
    from_offset: int,
    key_decoder: Callable[[bytes], Any] | None,
    value_decoder: Callable[[bytes], Any] | None,
) -> list[ConsumerRecord[Any, Any]]:
    """The records of a scanned batch from `from_offset` on, which are in plain[start:end], decompressed.

    With `plain` None they are in buffer[start:end], uncompressed. A decoder is not called for None, nor for records
    before `from_offset`. If it raises, DecodeFailed carries the records before the one that failed.
    """
    if not isinstance(topic, str):
        raise TypeError(f"a topic must be str, not {type(topic).__name__}")
    check_header(header)
    view = check_range(buffer if plain is None else plain, start, end, header.record_count)
    stamped = bool(header.attributes & _APPEND_TIME_BIT)
    result: list[ConsumerRecord[Any, Any]] = []
    for parsed in parse_records(view, start, end, header.record_count):
        offset = wrap_int64(header.base_offset + parsed.offset_delta)
        if offset < from_offset:
            continue
        stamp = header.max_timestamp if stamped else wrap_int64(header.base_timestamp + parsed.timestamp_delta)
        raw = ConsumerRecord(
            topic, partition, offset, stamp, int(stamped), parsed.key, parsed.value,
            decode_headers(parsed.headers), header.leader_epoch,
        )  # fmt: skip
        if key_decoder is not None or value_decoder is not None:
            key, value = _decode(raw, "key", key_decoder, result), _decode(raw, "value", value_decoder, result)
            raw = ConsumerRecord(
                topic, partition, offset, stamp, int(stamped), key, value, raw.headers, raw.leader_epoch
            )
        result.append(raw)
    return result
