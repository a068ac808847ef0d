"""What clients do during a run.

Nouns: a `Writer` and a `Reader`, each a process on a host of its own with the real client in it.

Rule: a writer gives no partition a record before the one before it was handed over. A reader is a member of the one
group of the run, and remembers in the `History` all that it is given, with what it could expect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.delivery import Delivery
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.history import FILLING, History, Place, Sent
from penstock.testing.simulation.nodes import SimulatedHost

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
    """Idempotent, for all in-sync replicas: those are the defaults."""
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
    """Sends to some topics until it is told to end. `last` is when each of its partitions last acknowledged."""

    def __init__(
        self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str], still: Sequence[str] = ()
    ) -> None:
        """To the topics in `still` nothing is written for a long time between the beginning and the end."""
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
        """Whether a record now and then is enough."""
        self.is_ending = False
        self.task = host.spawn(self._run())

    def at_work(self) -> Writer:
        """Itself; raises what ended it."""
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
        """Any; one after the other once it is calm, as all of them are waited for then."""
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
    """Follows some topics in the group, until it is told to end; commits by itself and now and then on purpose."""

    def __init__(self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str]) -> None:
        self.host = host
        self._bootstrap = bootstrap
        self._history = history
        self._topics = tuple(topics)
        self._random: Random = SeededRandom(f"{host.random.seed}/reader")
        self._next: dict[Place, int] = {}
        self._owned: dict[Place, int] = {}
        """What it may read, and what was committed of it when it was given it."""
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
            history.odd.append(f"{name} is given offset {offset} of {place}, which it has let go")
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
    """A consumer that has found its cluster, however often it has to look."""
    while True:
        consumer = make()
        try:
            await consumer.start()
        except PenstockError:
            await asyncio.sleep(0.5)
        else:
            return consumer


async def read_everything(bootstrap: str, name: str, places: Sequence[Place]) -> dict[Place, list[tuple[int, bytes]]]:
    """Offset and value of all records there, as a new consumer finds them."""
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
    """What the group of the run has committed."""
    consumer = await started(lambda: new_consumer(bootstrap, name, group_id=GROUP))
    found = await consumer.committed(*places, timeout_ms=PATIENCE_MS)
    await consumer.close(autocommit=False)
    return {Place(*partition): committed.offset for partition, committed in found.items()}
