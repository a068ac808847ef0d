"""The lanes into open batches, and the tickets for what went in, for the kernel's twin.

Rule: a lane is entered by many threads. In the compiled kernel an append is whole to the others by itself; here the
`guard` that whoever has threads gives the lane makes it so.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from penstock.records.twin_bytes import Buffer, check_int64
from penstock.records.twin_partitions import MOST_PARTITIONS, murmur2
from penstock.records.twin_producing import BatchBuilder, Headers, encode_headers
from penstock.records.twin_records import as_bytes


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
        self._guard: AbstractContextManager[Any] = nullcontext() if guard is None else guard

    @property
    def now_ms(self) -> int:
        return self.moment.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.moment.now_ms = now_ms

    def open(self, builder: BatchBuilder, batch: object) -> None:
        """Let appends into `builder`; their tickets will name `batch`."""
        if type(builder) is not BatchBuilder:
            raise TypeError(f"a BatchBuilder is needed, not {type(builder).__name__}")
        with self._guard:
            if self.builder is not None:
                raise ValueError("the lane is open: close it first")
            self.builder = builder
            self.batch = batch

    def close(self) -> Any:
        """Let nothing more into the open batch; that batch, or None."""
        with self._guard:
            batch = self.batch
            self.builder = None
            self.batch = None
            return batch

    def append(
        self, value: Buffer | None, key: Buffer | None = None, timestamp: int | None = None, headers: Headers = ()
    ) -> TicketT | None:
        """Append a record, stamped with the lane's moment unless a timestamp is given: its ticket, or None."""
        key_bytes, value_bytes = as_bytes(key, "key"), as_bytes(value, "value")
        encoded = encode_headers(headers)
        stamp = self.moment.now_ms if timestamp is None else check_int64(timestamp)
        ticket = Ticket.__new__(self.ticket_type)
        with self._guard:
            if self.builder is None:
                return None
            index = self.builder.add(stamp, key_bytes, value_bytes, encoded)
            if index < 0:
                return None
            ticket.batch = self.batch
            ticket.index = index
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

    def partition_of(self, key: Buffer | None) -> int:
        """The partition of a key; for None the sticky one, or -1."""
        return self._sticky if key is None else murmur2(key) % len(self.lanes)

    def append(
        self, value: Buffer | None, key: Buffer | None = None, timestamp: int | None = None, headers: Headers = ()
    ) -> TicketT | None:
        """Append a record to the partition of its key: its ticket, or None if that partition's lane has no way in."""
        key_bytes = as_bytes(key, "key")
        partition = self.partition_of(key_bytes)
        if partition < 0:
            as_bytes(value, "value")
            return None
        return self.lanes[partition].append(value, key_bytes, timestamp, headers)
