"""What clients do during a run, and what they remember of it.

Nouns: a `History`, what was sent, acknowledged, and read; a `Writer` and a `Reader`, each a process on a host of its
own with the real client in it.

Rule: a value is sent once and names its writer, partition and number, so that whatever is read tells where it came
from. A writer gives no partition a record before the one before it was handed over. What was not acknowledged may be in
the log or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.errors import PenstockError
from penstock.client.producer.async_producer import AsyncProducer
from penstock.client.producer.delivery import Delivery
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.nodes import SimulatedHost

TOPIC: Final = "journal"
PARTITIONS: Final = 2
_FILLING: Final = b"." * 16384
_REQUEST_TIMEOUT_MS: Final = 3_000
_CONNECT_TIMEOUT_MS: Final = 2_000
_DELIVERY_TIMEOUT_MS: Final = 30_000
_PATIENCE_MS: Final = 120_000


class Sent(NamedTuple):
    """A value's name: "writer:partition:number"."""

    writer: str
    partition: int
    number: int

    def value(self, size: int) -> bytes:
        return f"{self.writer}:{self.partition}:{self.number}:".encode() + _FILLING[:size]

    @classmethod
    def of(cls, value: bytes) -> Sent:
        """ValueError if it was never sent by a writer."""
        writer, partition, number, _ = value.split(b":", 3)
        return cls(writer.decode(), int(partition), int(number))


class History:
    """By partition and offset, what is known."""

    def __init__(self) -> None:
        self.sent: set[Sent] = set()
        self.acknowledged: dict[tuple[int, int], Sent] = {}
        self.twice: list[str] = []
        self.given_up: dict[Sent, str] = {}
        self.read: dict[tuple[int, int], Sent] = {}
        self.reread = 0
        """Records read again, and other ones than before: what was there was not durable, and is gone."""

    def acknowledge(self, what: Sent, offset: int) -> None:
        before = self.acknowledged.get((what.partition, offset))
        if before is not None:
            self.twice.append(f"offset {offset} of partition {what.partition} was given to {before} and to {what}")
        self.acknowledged[what.partition, offset] = what

    def saw(self, partition: int, offset: int, what: Sent) -> None:
        before = self.read.get((partition, offset))
        if before not in (None, what):
            self.reread += 1
        self.read[partition, offset] = what


class Writer:
    """Sends until it is told to end."""

    def __init__(self, host: SimulatedHost, bootstrap: str, history: History) -> None:
        self.host = host
        self._bootstrap = bootstrap
        self._history = history
        self._random: Random = SeededRandom(f"{host.random.seed}/writer")
        self._numbers = [0] * PARTITIONS
        self.is_ending = False
        self.task = host.spawn(self._run())

    async def _run(self) -> None:
        producer: AsyncProducer[bytes, bytes] = AsyncProducer(
            self._bootstrap,
            client_id=self.host.name,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            connect_timeout_ms=_CONNECT_TIMEOUT_MS,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=_PATIENCE_MS,
            retry_backoff_ms=50,
            start_timeout_ms=_PATIENCE_MS,
        )
        await producer.start()
        random = self._random
        settling: list[asyncio.Task[None]] = []
        while not self.is_ending:
            deliveries = [await self._hand_over(producer) for _ in range(1 + random.below(6))]
            if random.below(4):
                for what, delivery in deliveries:
                    await self._settle(what, delivery)
            else:
                settling += [self.host.spawn(self._settle(what, delivery)) for what, delivery in deliveries]
            await asyncio.sleep(random.uniform(0.0, 0.15))
        await producer.flush(_PATIENCE_MS / 1000)
        await asyncio.gather(*settling)
        await producer.close()

    async def _hand_over(self, producer: AsyncProducer[bytes, bytes]) -> tuple[Sent, Delivery]:
        random = self._random
        partition = random.below(PARTITIONS)
        what = Sent(self.host.name, partition, self._numbers[partition])
        self._numbers[partition] += 1
        self._history.sent.add(what)
        size = random.below(100) if random.below(2) else random.below(len(_FILLING))
        return what, await producer.enqueue(TOPIC, what.value(size), partition=partition)

    async def _settle(self, what: Sent, delivery: Delivery) -> None:
        try:
            stored = await delivery
        except PenstockError as error:
            self._history.given_up[what] = str(error)
        else:
            self.host.scheduler.trace.note(self.host.name, f"{what} acknowledged at {stored.offset}")
            self._history.acknowledge(what, stored.offset)


class Reader:
    """Follows the topic in a group, until it is told to end."""

    def __init__(self, host: SimulatedHost, bootstrap: str, history: History) -> None:
        self.host = host
        self._bootstrap = bootstrap
        self._history = history
        self.is_ending = False
        self.task = host.spawn(self._run())

    async def _run(self) -> None:
        consumer = await _started(lambda: _consumer(self._bootstrap, self.host.name, group_id="followers"))
        while not self.is_ending:
            for partition, records in (await consumer.poll(500)).items():
                for record in records:
                    self._history.saw(partition.partition, record.offset, Sent.of(record.value))
        await consumer.close()


def _consumer(bootstrap: str, name: str, group_id: str | None = None) -> AsyncConsumer[bytes, bytes]:
    topics = (TOPIC,) if group_id is not None else ()
    return AsyncConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        client_id=name,
        group_id=group_id,
        auto_offset_reset="earliest",
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        connect_timeout_ms=_CONNECT_TIMEOUT_MS,
        session_timeout_ms=10_000,
        # A member whose coordinator loses power while it joins waits so long for the answer that never comes.
        max_poll_interval_ms=10_000,
        retry_backoff_ms=50,
        auto_commit_interval_ms=1_000,
    )


async def _started(make: Callable[[], AsyncConsumer[bytes, bytes]]) -> AsyncConsumer[bytes, bytes]:
    """A consumer that has found its cluster, however often it has to look."""
    while True:
        consumer = make()
        try:
            await consumer.start()
        except PenstockError:
            await asyncio.sleep(0.5)
        else:
            return consumer


async def read_everything(bootstrap: str, name: str) -> dict[int, list[tuple[int, bytes]]]:
    """Offset and value of all records of the topic, by partition, as a new consumer finds them."""
    consumer = await _started(lambda: _consumer(bootstrap, name))
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
    places = [(TOPIC, partition) for partition in range(PARTITIONS)]
    await consumer.assign(places)
    ends = await consumer.end_offsets(places)
    left = {partition.partition: end for partition, end in ends.items() if end > 0}
    while left:
        for place, records in (await consumer.poll(1_000)).items():
            found[place.partition] += [(record.offset, record.value) for record in records]
            if records[-1].offset + 1 >= left.get(place.partition, 0):
                left.pop(place.partition, None)
    await consumer.close()
    return found
