"""A fetch session, and the cache that holds a bounded number of them.

A session remembers three things: what its client asks for, partition by partition; what the client was last told of
each; and the order in which partitions are read, those that gave records least recently first, so that no partition
starves where a response has no room for all.

Of its partitions, those that had nothing new when they were last looked at are at rest: the session watches them, and
looks again when they grow or go. The others, the lively ones, are looked at with every fetch. So a fetch costs what is
going on, not what is asked for. A change that a partition tells nobody of (its log begins later, its disk failed) is
found by `recheck`, which compares what is at rest with what the client was told.

When every slot is taken, a newcomer makes one session give way, the first found of:

1. one that was not used for longer than the eviction time;
2. for a newcomer that is privileged (a follower), the smallest session that is not;
3. the smallest of the newcomer's own kind that is older than the eviction time, if the newcomer has more partitions.

If none is found, the newcomer gets no session. Neither does it if the sessions would hold more partitions than they
may: memory is bounded however wide the requests are. Followers have a bound of their own, of the same size, so that
consumers cannot take replication's room.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.broker.fetch_topic_ids import TopicIds
from penstock.runtime.randomness import Random
from penstock.wire.schemas.fetch import FetchPartition, FetchTopic, ForgottenTopic, PartitionData
from penstock.wire.types import BUFFERS

if TYPE_CHECKING:
    from penstock.replication.partition import Partition
    from penstock.replication.watchers import EndWatcher

Key: TypeAlias = tuple[str, int]
Asked: TypeAlias = tuple[str, FetchPartition]

MAX_INT32: Final = 2**31 - 1
MAX_SIZE: Final = 50_000
"""Partitions of one session: as many as one request may name. To end a session takes half a microsecond for each."""


def asked_by(topics: Iterable[FetchTopic]) -> dict[Key, Asked]:
    """What a request asks for, in its order; of a partition that is named twice, what was said last."""
    return {
        (topic.topic, partition.partition): (topic.topic, partition)
        for topic in topics
        for partition in topic.partitions
    }


def _has_records(data: PartitionData) -> bool:
    records = data.records
    if records is None:
        return False
    return len(records) > 0 if isinstance(records, BUFFERS) else records.size > 0


class _Rest(NamedTuple):
    """A partition that had nothing new, in the epoch in which it was led then."""

    partition: Partition
    leader_epoch: int


class FetchSession:
    """One client's session. Its size is what the cache sorts by: only the cache changes what is asked for.

    It watches its partitions at rest, and passes on what it hears to the fetches that wait.
    """

    __slots__ = (
        "_answered", "_asked", "_ended", "_lively", "_order", "_ranks", "_resting", "_waiting", "checked_ms",
        "created_ms", "disturbances", "epoch", "id", "overtaken", "privileged", "topic_ids", "used_ms",
    )  # fmt: skip

    def __init__(self, session_id: int, asked: dict[Key, Asked], *, privileged: bool, now_ms: int) -> None:
        self.id = session_id
        self.privileged = privileged
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.checked_ms = now_ms
        self.disturbances = 0
        self.overtaken: Callable[[], None] | None = None  # told of the next request, while the last is not answered
        self.epoch = 1
        self.topic_ids: TopicIds | None = None  # of a client that names topics by id
        self._asked: dict[Key, Asked] = {}
        # High watermark and log start as the client last heard them; None if the next answer has to tell.
        self._answered: dict[Key, tuple[int, int] | None] = {}
        self._order: tuple[Asked, ...] | None = None
        # The place of each in the order; gaps do not matter. Every partition is lively or at rest.
        self._ranks: dict[Key, int] = {}
        self._lively: set[Key] = set()
        self._resting: dict[Key, _Rest] = {}
        self._waiting: list[EndWatcher] = []
        self._ended = False
        self.change(asked, ())

    @property
    def size(self) -> int:
        return len(self._asked)

    @property
    def partitions(self) -> Sequence[Asked]:
        """What to read, in the order in which to read it; later changes do not show in it."""
        if self._order is None:
            self._order = tuple(self._asked.values())
        return self._order

    def change(self, asked: dict[Key, Asked], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add partitions, at the end, or change what is asked of those that are there, in their place; forget some."""
        for key, (_, partition) in asked.items():
            # Whatever a client attached to the request is not worth keeping for as long as the session lives.
            partition.unknown_tags = None
            if self.privileged:
                # A follower ignores what an answer tells that was on its way when it asked this anew.
                self._answered[key] = None
            else:
                self._answered.setdefault(key)
            if key not in self._ranks:
                self._to_the_end(key)
            self._rouse(key)
        self._asked |= asked
        for topic in forgotten:
            for index in topic.partitions:
                self._forget((topic.topic, index))
        self._order = None

    def _forget(self, key: Key) -> None:
        if self._asked.pop(key, None) is None:
            return
        self._rouse(key)
        self._lively.discard(key)
        del self._answered[key], self._ranks[key]

    def _to_the_end(self, key: Key) -> None:
        ranks = self._ranks
        ranks.pop(key, None)
        # Kept in order, so the last is the largest.
        ranks[key] = ranks[next(reversed(ranks))] + 1 if ranks else 0

    def advance(self, now_ms: int) -> None:
        """Expect the next epoch: 1, 2, ..., 2147483647, 1. Zero would be a request for a new session."""
        self.epoch = next_epoch(self.epoch)
        self.used_ms = now_ms

    # --- what is worth looking at

    @property
    def resting(self) -> int:
        return len(self._resting)

    def lively(self) -> Sequence[Asked]:
        """What may have news, in the order in which to read it."""
        if len(self._lively) == len(self._asked):
            return self.partitions
        return [self._asked[key] for key in sorted(self._lively, key=self._ranks.__getitem__)]

    def rest(self, partition: Partition) -> None:
        """A partition has no records for the client beyond what it has, and it was told the offsets: watch it."""
        key = (partition.topic, partition.index)
        if self._ended or key not in self._lively:
            return
        self._lively.remove(key)
        self._resting[key] = _Rest(partition, partition.leader_epoch)
        if self.privileged:
            partition.watch_end(self)
        else:
            partition.watch(self)

    def _rouse(self, key: Key) -> None:
        rest = self._resting.pop(key, None)
        if rest is not None:
            rest.partition.unwatch(self)
        self._lively.add(key)

    def recheck(self, now_ms: int) -> None:
        """Find the partitions at rest that changed without a word."""
        self.checked_ms = now_ms
        changed = [
            key
            for key, (partition, leader_epoch) in self._resting.items()
            if partition.leader_epoch != leader_epoch
            or partition.log.failure is not None
            or self._answered[key] != (partition.log.high_watermark, partition.log.log_start_offset)
        ]
        for key in changed:
            self._rouse(key)

    def grown(self, partition: Partition, size: int) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.grown(partition, size)

    def gone(self, partition: Partition) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.gone(partition)

    def moved(self, partition: Partition) -> None:
        self._rouse((partition.topic, partition.index))
        for waiting in tuple(self._waiting):
            waiting.moved(partition)

    def add_waiting(self, waiting: EndWatcher) -> None:
        """Tell a fetch, too, of what happens to partitions at rest."""
        self._waiting.append(waiting)

    def remove_waiting(self, waiting: EndWatcher) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    def end(self) -> None:
        """The session is no more: watch nothing. Whoever waits for its partitions does so by himself from now on."""
        self._ended = True
        for key, rest in tuple(self._resting.items()):
            self._rouse(key)
            for waiting in tuple(self._waiting):
                waiting.grown(rest.partition, 0)

    # --- what the client was told

    def knows(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        """Whether the client was told these offsets last."""
        return self._answered.get(key) == (high_watermark, log_start_offset)

    def answer(self, key: Key, data: PartitionData) -> bool:
        """Note that the client is told `data`; False if there is no news in it, and it need not be sent.

        Watermark 5, told before: nothing to send. Watermark 6: sent. An error: sent, and whatever is next as well.
        """
        # KeyError for a partition that is not in the session.
        told = self._answered[key]
        if data.error_code:
            self._answered[key] = None
            return True
        offsets = (data.high_watermark, data.log_start_offset)
        news = offsets != told
        if news:
            self._answered[key] = offsets
        if _has_records(data):
            self._asked[key] = self._asked.pop(key)
            self._to_the_end(key)
            self._order = None
            return True
        return news or data.preferred_read_replica >= 0 or data.diverging_epoch.epoch >= 0


def next_epoch(epoch: int) -> int:
    return epoch + 1 if epoch < MAX_INT32 else 1


class SizeOrder:
    """Sessions by size, then id. A sorted list: at a thousand slots, moving its tail costs less than a tree."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: list[tuple[int, int]] = []

    def add(self, size: int, session_id: int) -> None:
        insort(self._rows, (size, session_id))

    def discard(self, size: int, session_id: int) -> None:
        place = bisect_left(self._rows, (size, session_id))
        if place < len(self._rows) and self._rows[place] == (size, session_id):
            del self._rows[place]

    def smallest(self) -> tuple[int, int] | None:
        """Size and id of the smallest session."""
        return self._rows[0] if self._rows else None


class FetchSessionCache:
    """The sessions by id, least recently used first, and in the orders in which they give way."""

    def __init__(self, slots: int, eviction_ms: int, max_partitions: int, random: Random) -> None:
        if slots < 0 or eviction_ms < 0 or max_partitions < 0:
            raise ValueError(f"negative limit: {slots=}, {eviction_ms=}, {max_partitions=}")
        self._slots = slots
        self._eviction_ms = eviction_ms
        self._max_partitions = max_partitions
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        # In order of creation; whoever outlives the eviction time moves on to `_old` when a slot is looked for.
        self._young: OrderedDict[int, FetchSession] = OrderedDict()
        self._old: dict[bool, SizeOrder] = {False: SizeOrder(), True: SizeOrder()}
        self._consumers = SizeOrder()
        self.partitions = 0
        self._followed = 0  # those of followers
        self.evictions = 0
        self.disturbances = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def create(
        self, asked: dict[Key, Asked], *, privileged: bool, now_ms: int, expected: int = 0
    ) -> FetchSession | None:
        """A session that asks for these; None if no other has to give way to it.

        `expected` is how many it will have in all, if more are to be added at once.
        """
        if not asked or not self._make_room(max(expected, len(asked)), privileged, now_ms):
            return None
        session = FetchSession(self._unused_id(), asked, privileged=privileged, now_ms=now_ms)
        self._sessions[session.id] = session
        self._young[session.id] = session
        if not privileged:
            self._consumers.add(session.size, session.id)
        self._count(session, session.size)
        return session

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """The session is used: it expects its next epoch, and is the last that could be too long unused."""
        session.advance(now_ms)
        self._sessions.move_to_end(session.id)

    def change(self, session: FetchSession, asked: dict[Key, Asked], forgotten: Iterable[ForgottenTopic]) -> bool:
        """Let a session ask for more and forget some; False if that leaves nothing, or too much, and it was removed."""
        before = session.size
        session.change(asked, forgotten)
        if session.size != before:
            self._resize(session, before)
        is_over = session.size > MAX_SIZE or self._is_over(0, session.privileged)
        if session.size == 0 or (session.size > before and is_over):
            self.remove(session)
            return False
        return True

    def remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._young.pop(session.id, None)
        self._old[session.privileged].discard(session.size, session.id)
        self._consumers.discard(session.size, session.id)
        self._count(session, -session.size)
        session.end()

    def _count(self, session: FetchSession, more: int) -> None:
        self.partitions += more
        if session.privileged:
            self._followed += more

    def _resize(self, session: FetchSession, before: int) -> None:
        orders = [] if session.id in self._young else [self._old[session.privileged]]
        if not session.privileged:
            orders.append(self._consumers)
        for order in orders:
            order.discard(before, session.id)
            order.add(session.size, session.id)
        self._count(session, session.size - before)

    def _unused_id(self) -> int:
        while True:
            session_id = 1 + self._random.below(MAX_INT32)
            if session_id not in self._sessions:
                return session_id

    def _is_over(self, more: int, privileged: bool) -> bool:
        return (self._followed if privileged else self.partitions) + more > self._max_partitions

    def _make_room(self, size: int, privileged: bool, now_ms: int) -> bool:
        if size > min(self._max_partitions, MAX_SIZE):
            return False
        while len(self._sessions) >= self._slots or self._is_over(size, privileged):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= self._eviction_ms:
                break
            self._evict(oldest)
        if self._is_over(size, privileged):
            return False
        if len(self._sessions) < self._slots:
            return True
        victim = self._smaller_than(size, privileged, now_ms)
        if victim is None:
            return False
        self._evict(self._sessions[victim])
        return True

    def _evict(self, session: FetchSession) -> None:
        self.remove(session)
        self.evictions += 1

    def _smaller_than(self, size: int, privileged: bool, now_ms: int) -> int | None:
        """The id of the session that gives way to one of this size."""
        self._age(now_ms)
        if privileged and (consumer := self._consumers.smallest()) is not None:
            return consumer[1]
        old = self._old[privileged].smallest()
        return old[1] if old is not None and old[0] < size else None

    def _age(self, now_ms: int) -> None:
        while self._young:
            session = next(iter(self._young.values()))
            if now_ms - session.created_ms <= self._eviction_ms:
                return
            del self._young[session.id]
            self._old[session.privileged].add(session.size, session.id)
