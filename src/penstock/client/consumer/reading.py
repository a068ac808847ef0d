"""What both faces of a consumer do on the reader's side, but for the waiting.

Noun: a reader, with its cursor, its callbacks, and what it owes the group. Rule: records count as done when the reader
comes back for more. What it has in hand at that moment is `undone`: should it leave by an exception, those are not
committed, and whoever reads next begins with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from penstock.client.consumer.batches import RecordBatch
from penstock.client.consumer.chunks import Chunk
from penstock.client.consumer.cursor import Cursor, Decoders, K, OnDecodeError, Slice, V
from penstock.client.consumer.engine import Engine
from penstock.client.consumer.handover import Duty
from penstock.client.consumer.positions import Place, is_offset
from penstock.client.consumer.settings import ConsumerSettings
from penstock.client.consumer.subscription import Pattern, Wish, wish_for
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import ConfigError, DeserializationError, TimedOut
from penstock.client.offset_stores.base import OffsetAndMetadata
from penstock.client.serializers.base import Decoder
from penstock.records.kernel import ConsumerRecord

F = TypeVar("F", bound=Callable[..., Any])

ByPartition = dict[TopicPartition, list[ConsumerRecord[K, V]]]
Offsets = Mapping[TopicPartition, int | OffsetAndMetadata] | Mapping[tuple[str, int], int | OffsetAndMetadata]

Committable = ConsumerRecord[Any, Any] | RecordBatch[Any, Any] | Offsets
Partitions = str | tuple[str, int] | Iterable[str | tuple[str, int]]


def _skip(error: DeserializationError) -> None:
    """on_decode_error="skip"."""


class RebalanceListener:
    """Hears of partitions that come and go; given to `subscribe`. Override what you need.

    Any object with `on_partitions_assigned` and `on_partitions_revoked` serves. For `AsyncConsumer` the methods may be
    coroutines. They are called where records are read (`poll`, iteration), like functions of `on_assign` and its kin,
    after these.
    """

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> Any:
        """These were added, and no record of theirs was handed out yet: seek there if you like."""

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> Any:
        """These will go to other members, and are still ours: finish and commit here."""

    def on_partitions_lost(self, lost: list[TopicPartition]) -> Any:
        """These are gone already; calls `on_partitions_revoked` unless it is overridden."""
        return self.on_partitions_revoked(lost)


def checked_listener(listener: Any) -> Any:
    """A listener, or None; raises ConfigError for what cannot be one."""
    if listener is not None:
        for name in ("on_partitions_assigned", "on_partitions_revoked"):
            if isinstance(listener, type) or not callable(getattr(listener, name, None)):
                raise ConfigError(f"listener is {listener!r}, which lacks {name}", hint="Subclass RebalanceListener")
    return listener


def milliseconds(timeout: float | None, timeout_ms: float | None) -> float | None:
    """A time-out that was given in seconds (`timeout`) or in milliseconds (`timeout_ms`)."""
    if timeout is None:
        return timeout_ms
    if timeout_ms is not None:
        raise ConfigError(f"timeout ({timeout} s) and timeout_ms ({timeout_ms}) are both given", hint="Give one")
    return timeout * 1000


class Callbacks:
    """The user's functions for partitions that come and go, in the order in which they were registered."""

    def __init__(self) -> None:
        self.listener: Any = None
        self.assign: list[Callable[..., Any]] = []
        self.revoke: list[Callable[..., Any]] = []
        self.lose: list[Callable[..., Any]] = []

    def of(self, duty: Duty) -> list[Callable[..., Any]]:
        """Partitions that are lost are revoked too, for who does not tell the two apart."""
        listener = self.listener
        if duty.kind == "assign":
            return [*self.assign, *([] if listener is None else [listener.on_partitions_assigned])]
        revoked = [] if listener is None else [listener.on_partitions_revoked]
        if duty.kind == "revoke":
            return [*self.revoke, *revoked]
        lost = getattr(listener, "on_partitions_lost", None)
        return [*(self.lose or self.revoke), *(revoked if lost is None else [lost])]


class Reader(Generic[K, V]):
    def __init__(
        self, settings: ConsumerSettings, engine: Engine, key: Decoder[K] | None, value: Decoder[V] | None
    ) -> None:
        on_error: OnDecodeError | None = None
        if settings.on_decode_error == "skip":
            on_error = _skip
        elif callable(settings.on_decode_error):
            on_error = settings.on_decode_error
        self.settings = settings
        self.engine = engine
        self.handover = engine.handover
        self.decoders: Decoders[K, V] = Decoders(key, value, on_error)
        self.cursor: Cursor[K, V] = Cursor(self.decoders)
        self.undone: dict[Place, int] = {}
        engine.reached = lambda: self.cursor.last

    # Handing out

    def came_back(self) -> None:
        """The reader wants more: what it has is done."""
        self.cursor.done()
        self.undone.clear()

    def tidy(self) -> None:
        """Let go of a chunk that is no longer to be read, or not now."""
        if self.cursor.is_stale:
            self.cursor.drop()
            return
        paused = self.cursor.release()
        if paused is not None:
            self.handover.give_back(paused)

    def begin_next(self) -> bool:
        """Go on with the next chunk, if one is there."""
        chunk: Chunk | None = self.handover.take()
        if chunk is None:
            return False
        self.cursor.begin(chunk)
        return True

    def gather(self, result: ByPartition[K, V], most: int) -> int:
        """Add up to `most` records of what is there, without waiting; how many were added."""
        added = 0
        while added < most:
            chunk = self.cursor.chunk
            if chunk is not None:
                self._keep_undone(chunk)
                taken = self.cursor.take(most - added)
                if taken:
                    result.setdefault(chunk.place.partition, []).extend(taken)
                    added += len(taken)
                    continue
            try:
                if self.cursor.advance():
                    continue
            except DeserializationError:
                if added:
                    break  # It is raised again by the next call, which begins with it.
                raise
            if not self.begin_next():
                break
        return added

    def gather_slices(self, most: int) -> list[Slice]:
        """Up to `most` records of what is there as slices, without waiting and without decoding."""
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
        self.undone.setdefault(chunk.place, chunk.place.position)

    def batch(self, slices: list[Slice]) -> RecordBatch[K, V]:
        return RecordBatch(slices, self.decoders)

    # Letting go

    def let_go(self, duty: Duty) -> None:
        """The partitions of a duty are read no more."""
        if duty.kind == "assign":
            return
        for place in duty.places:
            place.version += 1
        self.tidy()

    # Commits

    def offsets_of(
        self, what: ConsumerRecord[Any, Any] | RecordBatch[Any, Any] | Offsets | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit: of a record the offset behind it; of nothing in particular, everything handed out."""
        if what is None:
            self.cursor.settle()
            return self.engine.consumed()
        if isinstance(what, RecordBatch):
            return what.offsets
        if isinstance(what, ConsumerRecord):
            return {
                TopicPartition(what.topic, what.partition): OffsetAndMetadata(what.offset + 1, what.leader_epoch, "")
            }
        return {TopicPartition(*partition): _stored(offset) for partition, offset in what.items()}

    def offsets_when_leaving(self, failed: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit at the end; `failed`: an exception came out of the handling of what is in hand."""
        cursor = self.cursor
        if failed and cursor.last is not None and cursor.chunk is not None and not self.undone:
            self.undone[cursor.chunk.place] = cursor.last.offset
        cursor.settle()
        offsets = self.engine.consumed()
        if failed:
            for place, offset in self.undone.items():
                if place.partition in offsets:
                    offsets[place.partition] = OffsetAndMetadata(offset, -1, "")
        return offsets


def _stored(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    if isinstance(offset, OffsetAndMetadata):
        return offset
    if not is_offset(offset):
        raise ConfigError(f"{offset!r} is no offset to commit")
    return OffsetAndMetadata(offset, -1, "")


def in_ms(when: datetime | int | float) -> int:
    """A time as records carry it. A number is milliseconds since 1970; a datetime without a zone is local time."""
    if isinstance(when, datetime):
        return int(when.timestamp() * 1000)
    if when < 0:
        raise ConfigError(f"{when!r} is no time", hint="Give a datetime, or milliseconds since 1970")
    return int(when)


def partitions_meant(what: Partitions, assigned: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions by topic, by pair, or several of both; a topic means those of its partitions that are assigned."""
    if isinstance(what, str):
        return [partition for partition in assigned if partition.topic == what]
    if isinstance(what, tuple) and len(what) == 2 and isinstance(what[0], str) and isinstance(what[1], int):
        return [TopicPartition(what[0], what[1])]
    known = list(assigned)
    meant: list[TopicPartition] = []
    for one in what:
        meant += partitions_meant(one, known)
    return meant


def unassigned(engine: Engine, timeout_ms: float) -> TimedOut:
    """What to say when nothing was assigned in time, with what is known about why."""
    if engine.wish.is_empty:
        hint = "Nothing is subscribed: call subscribe or assign"
    elif all(engine.cluster.view.topic(name) is None for name in engine.topics_meant()):
        hint = "None of the topics exists"
    elif engine.commits.committer.member_id:
        hint = "The group has this consumer as a member; it may have more members than there are partitions"
    else:
        hint = "See whether the group's coordinator is up"
    return TimedOut(f"no partitions were assigned within {timeout_ms:.0f} ms", hint=hint)


def make_wish(topics: Iterable[str], pattern: Pattern | None, exclude: Pattern | None) -> Wish:
    try:
        return wish_for(topics, pattern, exclude)
    except ValueError as reason:
        raise ConfigError(str(reason)) from None


def pairs(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    return [TopicPartition(*partition) for partition in partitions]
