"""What clients do during a run: writers, readers of one group, and an operator with the admin client.

A writer sends to a partition in order. A reader is a member of the run's one group and records in the `History` all
that it receives. The operator creates the topics, then reassigns partitions, elects preferred leaders, and creates
topics that are written, read and deleted. A rejected or unanswered call is retried later or dropped. After the faults
the operator stays to elect unclean leaders, but only after every broker had the time to return with its records. A
topic created again under a deleted name must hold nothing of the old one. A paused leader may show stale data, so a
missing record is looked for again before it is reported.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.results import TopicSpec
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.errors import PenstockError, TopicExists
from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.delivery import Delivery
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.cluster import SimulatedHost
from penstock.testing.simulation.history import FILLING, History, Place, Sent

JOURNAL: Final = "journal"
PARTITIONS: Final = 2
GROUP: Final = "followers"
STILL_FROM_S: Final = 1.5
REQUEST_TIMEOUT_MS: Final = 1_500
CONNECT_TIMEOUT_MS: Final = 1_000
SESSION_TIMEOUT_MS: Final = 2_000
PATIENCE_MS: Final = 120_000
_DELIVERY_TIMEOUT_MS: Final = 30_000
_PLACES_AT_ONCE: Final = 6
_RECORDS_AT_ONCE: Final = 4
_RESTLESS_S: Final = 0.17
_CALM_S: Final = 0.4
_BUSY_S: Final = 0.5


def places_of(topics: Iterable[str]) -> list[Place]:
    return [Place(topic, partition) for topic in topics for partition in range(PARTITIONS)]


def new_producer(bootstrap: str, name: str) -> AsyncProducer[bytes, bytes]:
    """The default producer: idempotent, acks=all."""
    return AsyncProducer(
        bootstrap,
        client_id=name,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
        max_block_ms=PATIENCE_MS,
        retry_backoff_ms=100,
        start_timeout_ms=PATIENCE_MS,
    )


class Writer:
    """Sends to some topics until asked to end. `last` is the time of each partition's last acknowledgement."""

    def __init__(
        self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str], still: Sequence[str] = ()
    ) -> None:
        """The topics in `still` get no records for a long time in the middle of the run."""
        self.host = host
        self.last: dict[Place, float] = {}
        self._bootstrap = bootstrap
        self._history = history
        self._random: Random = SeededRandom(f"{host.random.seed}/writer")
        self._places = places_of(topics)
        self._still = set(still)
        self._numbers = dict.fromkeys(self._places, 0)
        self._turn = 0
        self.is_calm = False
        """Whether an occasional record is enough."""
        self.is_ending = False
        self.task = host.spawn(self._run())

    def at_work(self) -> Writer:
        """Run. Raises the error that ended it."""
        if self.task.done():
            self.task.result()
        return self

    async def _run(self) -> None:
        producer = new_producer(self._bootstrap, self.host.name)
        await producer.start()
        random = self._random
        settling: list[asyncio.Task[None]] = []
        while not self.is_ending:
            places = [self._next_place() for _ in range(1 + random.below(_PLACES_AT_ONCE))]
            deliveries = [
                await self._hand_over(producer, place)
                for place in places
                for _ in range(1 + random.below(_RECORDS_AT_ONCE))
            ]
            if random.below(4):
                for what, delivery in deliveries:
                    await self._settle(what, delivery)
            else:
                settling += [self.host.spawn(self._settle(what, delivery)) for what, delivery in deliveries]
            await asyncio.sleep(random.uniform(0.0, _CALM_S if self.is_calm else _RESTLESS_S))
        await producer.flush(PATIENCE_MS / 1000)
        await asyncio.gather(*settling)
        await producer.close()

    async def _hand_over(self, producer: AsyncProducer[bytes, bytes], place: Place) -> tuple[Sent, Delivery]:
        random = self._random
        what = Sent(self.host.name, place, self._numbers[place])
        self._numbers[place] += 1
        self._history.sent.add(what)
        size = random.below(100) if random.below(2) else random.below(len(FILLING))
        return what, await producer.enqueue(place.topic, what.value(size), partition=place.partition)

    def _next_place(self) -> Place:
        """Any partition; in turn once the faults are over, because all of them are awaited then."""
        if self.is_calm:
            self._turn += 1
            return self._places[self._turn % len(self._places)]
        is_still = self.host.scheduler.now_s > STILL_FROM_S
        while True:
            place = self._places[self._random.below(len(self._places))]
            if not (is_still and place.topic in self._still):
                return place

    async def _settle(self, what: Sent, delivery: Delivery) -> None:
        try:
            stored = await delivery
        except PenstockError as error:
            self._history.given_up[what] = str(error)
        else:
            self.host.scheduler.trace.note(self.host.name, f"{what} acknowledged at {stored.offset}")
            self._history.acknowledge(what, stored.offset)
            self.last[what.place] = self.host.scheduler.now_s


class Reader:
    """Reads some topics in the group until it is asked to end; commits automatically and sometimes explicitly."""

    def __init__(self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str]) -> None:
        self.host = host
        self._bootstrap = bootstrap
        self._history = history
        self._topics = tuple(topics)
        self._random: Random = SeededRandom(f"{host.random.seed}/reader")
        self._next: dict[Place, int] = {}
        self._owned: dict[Place, int] = {}
        """Its partitions, and their committed offsets at the time of the assignment."""
        self.is_ending = False
        self.task = host.spawn(self._run())
        host.on_boot = self._start_again

    def _start_again(self) -> None:
        self._next.clear()
        self._owned.clear()
        self.task = self.host.spawn(self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: self._consumer())
        while not self.is_ending:
            for partition, records in (await consumer.poll(500)).items():
                place = Place(*partition)
                for record in records:
                    self._take(place, record.offset, record.value)
            if not self._random.below(3):
                await self._commit(consumer)
            if not self._random.below(8):
                # It is busy with what it has, and more is fetched meanwhile.
                await asyncio.sleep(self._random.uniform(0.0, _BUSY_S))
        await consumer.close()

    def _take(self, place: Place, offset: int, value: bytes) -> None:
        history, name = self._history, self.host.name
        if place not in self._owned:
            history.odd.append(f"{name} gets offset {offset} of {place}, which it has given up")
        elif place not in self._next:
            history.began(name, place, offset, self._owned[place])
        history.saw(name, place, offset, value, self._next.get(place))
        self._next[place] = offset + 1

    def _consumer(self) -> AsyncConsumer[bytes, bytes]:
        consumer = new_consumer(self._bootstrap, self.host.name, self._topics, group_id=GROUP)

        @consumer.on_assign
        def assigned(partitions: Iterable[TopicPartition]) -> None:
            for place in (Place(*partition) for partition in partitions):
                self._history.assigned(self.host.name, consumer.generation, place)
                self._owned[place] = self._history.committed.get(place, 0)

        @consumer.on_revoke
        def revoked(partitions: Iterable[TopicPartition]) -> None:
            for place in (Place(*partition) for partition in partitions):
                self._next.pop(place, None)
                self._owned.pop(place, None)

        consumer.on_lost(revoked)
        return consumer

    async def _commit(self, consumer: AsyncConsumer[bytes, bytes]) -> None:
        with suppress(PenstockError):
            await consumer.commit(timeout_ms=REQUEST_TIMEOUT_MS)


def new_consumer(
    bootstrap: str, name: str, topics: Sequence[str] = (), group_id: str | None = None
) -> AsyncConsumer[bytes, bytes]:
    return AsyncConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        client_id=name,
        group_id=group_id,
        auto_offset_reset="earliest",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        # A member whose coordinator loses power while it joins waits so long for the answer that never comes.
        max_poll_interval_ms=10_000,
        retry_backoff_ms=100,
        auto_commit_interval_ms=500,
        fetch_max_wait_ms=1_000,
        # Who subscribes to a topic that is not there yet looks for it so often.
        metadata_max_age_ms=2_500,
    )


async def started(make: Callable[[], AsyncConsumer[bytes, bytes]]) -> AsyncConsumer[bytes, bytes]:
    """A connected consumer, after as many attempts as needed."""
    while True:
        consumer = make()
        try:
            await consumer.start()
        except PenstockError:
            await asyncio.sleep(0.5)
        else:
            return consumer


async def read_everything(bootstrap: str, name: str, places: Sequence[Place]) -> dict[Place, list[tuple[int, bytes]]]:
    """Offset and value of all records, as a new consumer reads them."""
    consumer = await started(lambda: new_consumer(bootstrap, name))
    found: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in places}
    await consumer.assign(places)
    ends = await consumer.end_offsets(places)
    left = {Place(*partition): end for partition, end in ends.items() if end > 0}
    while left:
        for partition, records in (await consumer.poll(1_000)).items():
            place = Place(*partition)
            found[place] += [(record.offset, record.value) for record in records]
            if records[-1].offset + 1 >= left.get(place, 0):
                left.pop(place, None)
    await consumer.close()
    return found


async def read_commits(bootstrap: str, name: str, places: Sequence[Place]) -> dict[Place, int]:
    """The committed offsets of the run's group."""
    consumer = await started(lambda: new_consumer(bootstrap, name, group_id=GROUP))
    found = await consumer.committed(*places, timeout_ms=PATIENCE_MS)
    await consumer.close(autocommit=False)
    return {Place(*partition): committed.offset for partition, committed in found.items()}


BRIEF: Final = "brief"
_AGAIN_S: Final = 0.25
_CALL_MS: Final = 2_500
# Who was taken for dead, and is not, is back by then with what it has.
_RECOVERY_S: Final = 3.0
# Whoever led before has heard by then that he does not.
_STALE_METADATA_S: Final = 10.0
_RECORDS: Final = 12
LOOKED_AGAIN: Final = "acknowledged records missed by a reader that then looked again"
_AT_ONCE: Final = 4


class Operator:
    """`topics` are created at the start, by their settings; `brokers` returns the brokers."""

    def __init__(
        self,
        host: SimulatedHost,
        bootstrap: str,
        history: History,
        topics: Mapping[str, Mapping[str, str]],
        brokers: Callable[[], Sequence[int]],
        replicas: int,
    ) -> None:
        self.host = host
        self.done: Counter[str] = Counter()
        self.is_ending = False
        self.is_released = False
        self.lost: list[Place] = []
        """Partitions without a complete replica: any live replica is to lead them."""
        self._bootstrap = bootstrap
        self._history = history
        self._topics = topics
        self._brokers = brokers
        self._replicas = replicas
        self._random: Random = SeededRandom(f"{host.random.seed}/operator")
        self._lives = 0
        self.task = host.spawn(self._run())

    async def _run(self) -> None:
        admin = AsyncAdmin(
            self._bootstrap,
            client_id=self.host.name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        for name, settings in self._topics.items():
            await self._make(admin, name, settings)
        actions = (self._move, self._move, self._elect, self._create_and_delete_topic)
        while not self.is_ending:
            await asyncio.sleep(self._random.uniform(0.1, 1.25))
            action = actions[self._random.below(len(actions))]
            try:
                await action(admin)
            except PenstockError as error:
                self._note(f"{action.__name__} failed: {type(error).__name__}")
        until_s = self.host.scheduler.now_s + _RECOVERY_S
        while not self.is_released:
            await asyncio.sleep(_AGAIN_S)
            if self.lost and self.host.scheduler.now_s > until_s:
                await self._elect_unclean(admin)
        await admin.close()

    async def _elect_unclean(self, admin: AsyncAdmin) -> None:
        try:
            outcomes = await admin.elect_leaders("unclean", self.lost, timeout_ms=_CALL_MS)
        except PenstockError as error:
            self._note(f"unclean election failed: {type(error).__name__}")
        else:
            self.done["unclean election"] += sum(error is None for error in outcomes.values())

    def _note(self, text: str) -> None:
        self.host.scheduler.trace.note(self.host.name, text)

    async def _make(self, admin: AsyncAdmin, name: str, settings: Mapping[str, str]) -> None:
        spec = TopicSpec(name, PARTITIONS, self._replicas, config=dict(settings))
        while True:
            try:
                await admin.create_topic(spec, timeout_ms=_CALL_MS)
            except TopicExists:
                if name != BRIEF:
                    return
                await self._delete(admin)  # of an earlier life, or of one whose making nobody answered
            except PenstockError as error:
                self._note(f"{name} not created: {type(error).__name__}")
                await asyncio.sleep(_AGAIN_S)
            else:
                self.done["topic created"] += 1
                return

    async def _move(self, admin: AsyncAdmin) -> None:
        random = self._random
        places = places_of(self._topics)
        place = places[random.below(len(places))]
        ids = list(self._brokers())
        random.shuffle(ids)
        wanted = ids[: self._replicas]
        outcomes = await admin.alter_partition_reassignments({place: wanted}, timeout_ms=_CALL_MS)
        refused = any(outcomes.values())
        self.done["move rejected" if refused else "move"] += 1
        self._note(f"move of {place} to {wanted}{' rejected' if refused else ''}")

    async def _elect(self, admin: AsyncAdmin) -> None:
        outcomes = await admin.elect_leaders("preferred", timeout_ms=_CALL_MS)
        self.done["election"] += 1
        self._note(f"preferred leaders: {sum(error is None for error in outcomes.values())} elected")

    async def _create_and_delete_topic(self, admin: AsyncAdmin) -> None:
        """Create a topic, write, read and delete it: before the deletion it holds exactly what was acknowledged."""
        self._lives += 1
        await self._make(admin, BRIEF, {})
        producer = new_producer(self._bootstrap, f"{self.host.name}-{self._lives}")
        acknowledged: dict[tuple[Place, int], Sent] = {}
        await producer.start()
        try:
            for number in range(0, _RECORDS, _AT_ONCE):
                sent = [
                    Sent(f"life-{self._lives}", Place(BRIEF, each % PARTITIONS), each)
                    for each in range(number, number + _AT_ONCE)
                ]
                for what, offset in await _stored(producer, sent):
                    acknowledged[what.place, offset] = what
        finally:
            await producer.close()
        self._history.odd += await self._odd(acknowledged)
        await self._delete(admin)
        self.done["topic deleted"] += 1

    async def _delete(self, admin: AsyncAdmin) -> None:
        while True:
            try:
                await admin.delete_topic(BRIEF, missing_ok=True, timeout_ms=_CALL_MS)
            except PenstockError as error:
                self._note(f"{BRIEF} not deleted: {type(error).__name__}")
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _odd(self, acknowledged: Mapping[tuple[Place, int], Sent]) -> list[str]:
        """Records that differ from what was acknowledged, once no broker has stale metadata."""
        until_s = self.host.scheduler.now_s + _STALE_METADATA_S
        while True:
            read = await read_everything(self._bootstrap, f"{self.host.name}-reader", places_of([BRIEF]))
            found = {(place, offset): value for place, all_ in read.items() for offset, value in all_}
            odd = self._compared(acknowledged, found)
            if not odd or self.host.scheduler.now_s > until_s:
                return odd
            self.host.scheduler.trace.count(LOOKED_AGAIN)
            self._note(f"{len(odd)} records of {BRIEF} differ from what was acknowledged; looking again")
            await asyncio.sleep(_AGAIN_S)

    def _compared(
        self, acknowledged: Mapping[tuple[Place, int], Sent], found: Mapping[tuple[Place, int], bytes]
    ) -> list[str]:
        odd = []
        for (place, offset), value in found.items():
            if not value.startswith(f"life-{self._lives}:".encode()):
                odd.append(f"{place}: at {offset} of topic {self._lives} is {value[:40]!r}")
        for (place, offset), what in acknowledged.items():
            stored = found.get((place, offset))
            if stored is None or Sent.of(stored) != what:
                odd.append(f"{place}: {what} was acknowledged at {offset}, where {stored!r:.60} is")
        return odd


async def _stored(producer: AsyncProducer[bytes, bytes], records: Sequence[Sent]) -> list[tuple[Sent, int]]:
    """Acknowledged records and their offsets."""
    stored = []
    deliveries = []
    for what in records:
        with suppress(PenstockError):
            place = what.place
            deliveries.append((what, await producer.enqueue(place.topic, what.value(10), partition=place.partition)))
    for what, delivery in deliveries:
        with suppress(PenstockError):
            stored.append((what, (await delivery).offset))
    return stored
