"""Whoever runs the cluster, during a run.

Noun: an `Operator`, a process with the real admin client: makes the topics, then moves partitions, has preferred
leaders elected, and makes topics that are written, read and deleted while everything goes on. When the faults are over
it stays, to decide what the cluster does not decide by itself.

Rule: what is refused or not answered is tried again later, or not at all. That records are lost is accepted only when
everybody had the time to come back with them. A topic that is made again under the name of one that was deleted is
another topic: nothing of the old one is in it. A leader that was paused, and does not know yet that another one leads,
shows readers what was: who misses something in the middle of faults looks again before he says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from penstock.client.admin.async_admin import AsyncAdmin
from penstock.client.admin.results import TopicSpec
from penstock.client.errors import PenstockError, TopicExists
from penstock.client.producer.async_producer import AsyncProducer
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.history import History, Place, Sent
from penstock.testing.simulation.nodes import SimulatedHost
from penstock.testing.simulation.workload import (
    CONNECT_TIMEOUT_MS,
    PARTITIONS,
    REQUEST_TIMEOUT_MS,
    new_producer,
    places_of,
    read_everything,
)

BRIEF: Final = "brief"
_AGAIN_S: Final = 0.25
_CALL_MS: Final = 2_500
# Who was taken for dead, and is not, is back by then with what it has.
_HOPE_S: Final = 3.0
# Whoever led before has heard by then that he does not.
_OLD_VIEW_S: Final = 10.0
_RECORDS: Final = 12
LOOKED_AGAIN: Final = "acknowledged records missed by a reader who then looked again"
_AT_ONCE: Final = 4


class Operator:
    """`topics` are made at once, by their settings; `brokers` says which there are."""

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
        """Partitions of which nobody is left who has all that was committed: whoever has something is to lead them."""
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
        actions = (self._move, self._move, self._elect, self._live_briefly)
        while not self.is_ending:
            await asyncio.sleep(self._random.uniform(0.1, 1.25))
            action = actions[self._random.below(len(actions))]
            try:
                await action(admin)
            except PenstockError as error:
                self._note(f"{action.__name__} failed: {type(error).__name__}")
        until_s = self.host.scheduler.now_s + _HOPE_S
        while not self.is_released:
            await asyncio.sleep(_AGAIN_S)
            if self.lost and self.host.scheduler.now_s > until_s:
                await self._accept_loss(admin)
        await admin.close()

    async def _accept_loss(self, admin: AsyncAdmin) -> None:
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
                self._note(f"{name} is not made: {type(error).__name__}")
                await asyncio.sleep(_AGAIN_S)
            else:
                self.done["topic made"] += 1
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
        self.done["move refused" if refused else "move"] += 1
        self._note(f"move of {place} to {wanted}{' refused' if refused else ''}")

    async def _elect(self, admin: AsyncAdmin) -> None:
        outcomes = await admin.elect_leaders("preferred", timeout_ms=_CALL_MS)
        self.done["election"] += 1
        self._note(f"preferred leaders: {sum(error is None for error in outcomes.values())} elected")

    async def _live_briefly(self, admin: AsyncAdmin) -> None:
        """A topic from its beginning to its end: what was acknowledged is there before it is deleted, and only that."""
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
                self._note(f"{BRIEF} is not deleted: {type(error).__name__}")
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _odd(self, acknowledged: Mapping[tuple[Place, int], Sent]) -> list[str]:
        """What is not as it was acknowledged, once nobody shows an older view."""
        until_s = self.host.scheduler.now_s + _OLD_VIEW_S
        while True:
            read = await read_everything(self._bootstrap, f"{self.host.name}-reader", places_of([BRIEF]))
            found = {(place, offset): value for place, all_ in read.items() for offset, value in all_}
            odd = self._compared(acknowledged, found)
            if not odd or self.host.scheduler.now_s > until_s:
                return odd
            self.host.scheduler.trace.count(LOOKED_AGAIN)
            self._note(f"of {BRIEF} {len(odd)} records are not as they were acknowledged; looking again")
            await asyncio.sleep(_AGAIN_S)

    def _compared(
        self, acknowledged: Mapping[tuple[Place, int], Sent], found: Mapping[tuple[Place, int], bytes]
    ) -> list[str]:
        odd = []
        for (place, offset), value in found.items():
            if not value.startswith(f"life-{self._lives}:".encode()):
                odd.append(f"{place}: at {offset} of life {self._lives} is {value[:40]!r}")
        for (place, offset), what in acknowledged.items():
            stored = found.get((place, offset))
            if stored is None or Sent.of(stored) != what:
                odd.append(f"{place}: {what} was acknowledged at {offset}, where {stored!r:.60} is")
        return odd


async def _stored(producer: AsyncProducer[bytes, bytes], records: Sequence[Sent]) -> list[tuple[Sent, int]]:
    """Those that were acknowledged, and where."""
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
