"""The lanes into open batches, and the tickets for what went in, for the kernel's twin.

Rule: a lane is entered by many threads. In the compiled kernel an append is whole to the others by itself; here the
`guard` that whoever has threads gives the lane makes it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import index
from typing import Any, Generic, TypeVar

from penstock.records.twin_bytes import Buffer, check_int64
from penstock.records.twin_partitions import MOST_PARTITIONS, murmur2
from penstock.records.twin_producing import BatchBuilder, encode_headers
from penstock.records.twin_records import as_bytes

TextHeaders = Mapping[str, Buffer | str | None] | Iterable[tuple[str, Buffer | str | None]]


def _content_of(given: Buffer | str | None, what: str) -> bytes | None:
    """Bytes as they are, text as UTF-8."""
    if isinstance(given, str):
        return given.encode()
    if given is None or isinstance(given, (bytes, bytearray, memoryview)):
        return as_bytes(given, what)
    raise TypeError(f"a record's {what} must be bytes, str or None, not {type(given).__name__}")


def _encode_headers(headers: TextHeaders | None) -> bytes:
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
    """What is to be called when a batch is done: arguments and callbacks, in the order in which they were added.

    From any thread. Nothing is lost between `add` and `take`: what `take` does not return, `add` has rejected.
    `guard` is held during each call.
    """

    __slots__ = ("_guard", "_items")

    def __init__(self, guard: AbstractContextManager[Any] | None = None) -> None:
        self._items: list[Any] | None = []
        self._guard: AbstractContextManager[Any] = nullcontext() if guard is None else guard

    def add(self, argument: object, callback: Callable[..., object]) -> bool:
        """Adds a callback with its argument; False once the others were taken."""
        with self._guard:
            if self._items is None:
                return False
            self._items += (argument, callback)
            return True

    def take(self) -> list[Any]:
        """All that was added, as [argument, callback, argument, callback, ...]; empty the second time."""
        with self._guard:
            items, self._items = self._items, None
            return [] if items is None else items


class Ticket:
    """Which record of which batch: what a producer gives for a record sent. Made to be subclassed, with `__slots__`.

    Millions of them may be alive, so the collector does not look at those that a compiled lane makes, if the subclass
    has no fields of its own (`__slots__ = ()`): a batch that refers to its tickets has to let go of them when it is
    done.
    """

    __slots__ = ("batch", "index")

    batch: Any
    index: int

    def __init__(self, batch: object, index: int) -> None:
        self.batch = batch
        self.index = index


TicketT = TypeVar("TicketT", bound=Ticket)


class Moment:
    """The time that records appended now are stamped with, shared by many lanes. Whoever has a clock sets it."""

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
    """The way into the open batch of one partition: `append` gives a ticket, or None while there is no way in.

    None says that nothing is open or that the open batch is full: close it, open another, append again. Tickets are
    made without calling `__init__`. `guard` is held during each call; it may be entered again by who holds it.
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
        """Let appends into `builder`; their tickets name `batch`, and `callbacks` takes their on_delivery callbacks."""
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
        """Let nothing more into the open batch; that batch, or None."""
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
    """The lanes of a topic's partitions: a key chooses its own, as in Java; without one it is the `sticky` partition.

    `sticky` is -1 while there is none: then a record without key finds no way in.
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
        """Append a record to the partition that is named, or that of its key: its ticket, or None without a way in.

        None, too, for a partition that the topic does not have. For the rest see `Lane.append`.
        """
        key_bytes = _content_of(key, "key")
        chosen = self.partition_of(key_bytes) if partition is None else check_int64(index(partition))
        if not 0 <= chosen < len(self.lanes):
            _content_of(value, "value")
            return None
        return self.lanes[chosen].append(value, key_bytes, timestamp, headers, on_delivery)
