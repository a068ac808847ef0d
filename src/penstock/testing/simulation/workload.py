"""The clients of a run: writers, readers in one consumer group, and an operator with the admin client.

A writer sends to a partition in order. A reader is a member of the group and adds everything it receives to the
`History`. The operator creates the topics, then reassigns partitions, moves replicas between the data folders of a
broker, elects preferred leaders, and creates topics that are written, read and deleted. A rejected or unanswered call
is retried later or dropped. After the faults the operator elects unclean leaders, but only after every broker had time
to return with its records. A topic created under the name of a deleted one must hold none of its records. A paused
leader may serve stale data, so the operator reads again before it reports a missing record.
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
from penstock.testing.simulation.history import PADDING, History, Sent

JOURNAL: Final = "journal"
PARTITIONS: Final = 2
GROUP: Final = "followers"
QUIET_FROM_S: Final = 1.5
REQUEST_TIMEOUT_MS: Final = 1_500
CONNECT_TIMEOUT_MS: Final = 1_000
SESSION_TIMEOUT_MS: Final = 2_000
PATIENCE_MS: Final = 120_000
_DELIVERY_TIMEOUT_MS: Final = 30_000
_PARTITIONS_AT_ONCE: Final = 6
_RECORDS_AT_ONCE: Final = 4
_SEND_GAP_S: Final = 0.17
_CALM_SEND_GAP_S: Final = 0.4
_PROCESSING_S: Final = 0.5


def partitions_of(topics: Iterable[str]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]


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
    """Sends to some topics until `is_ending`. `last` is the time of each partition's last acknowledgement."""

    def __init__(
        self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str], quiet: Sequence[str] = ()
    ) -> None:
        """The topics in `quiet` get no records for a long time in the middle of the run."""
        self.host = host
        self.last: dict[TopicPartition, float] = {}
        self._bootstrap = bootstrap
        self._history = history
        self._random: Random = SeededRandom(f"{host.random.seed}/writer")
        self._partitions = partitions_of(topics)
        self._quiet = set(quiet)
        self._numbers = dict.fromkeys(self._partitions, 0)
        self._turn = 0
        self.is_calm = False
        """The faults are over: send few records, to all partitions in turn."""
        self.is_ending = False
        self.task = host.spawn(self._run())

    def checked(self) -> Writer:
        """This writer. Raises the error that ended it, if one did."""
        if self.task.done():
            self.task.result()
        return self

    async def _run(self) -> None:
        producer = new_producer(self._bootstrap, self.host.name)
        await producer.start()
        random = self._random
        settling: list[asyncio.Task[None]] = []
        while not self.is_ending:
            partitions = [self._next_partition() for _ in range(1 + random.below(_PARTITIONS_AT_ONCE))]
            deliveries = [
                await self._enqueue(producer, partition)
                for partition in partitions
                for _ in range(1 + random.below(_RECORDS_AT_ONCE))
            ]
            if random.below(4):
                for what, delivery in deliveries:
                    await self._settle(what, delivery)
            else:
                settling += [self.host.spawn(self._settle(what, delivery)) for what, delivery in deliveries]
            await asyncio.sleep(random.uniform(0.0, _CALM_SEND_GAP_S if self.is_calm else _SEND_GAP_S))
        await producer.flush(PATIENCE_MS / 1000)
        await asyncio.gather(*settling)
        await producer.close()

    async def _enqueue(self, producer: AsyncProducer[bytes, bytes], partition: TopicPartition) -> tuple[Sent, Delivery]:
        random = self._random
        what = Sent(self.host.name, partition, self._numbers[partition])
        self._numbers[partition] += 1
        self._history.sent.add(what)
        size = random.below(100) if random.below(2) else random.below(len(PADDING))
        return what, await producer.enqueue(partition.topic, what.value(size), partition=partition.partition)

    def _next_partition(self) -> TopicPartition:
        """A random partition. After the faults, partitions in turn, because the run then waits for each of them."""
        if self.is_calm:
            self._turn += 1
            return self._partitions[self._turn % len(self._partitions)]
        is_quiet = self.host.scheduler.now_s > QUIET_FROM_S
        while True:
            partition = self._partitions[self._random.below(len(self._partitions))]
            if not (is_quiet and partition.topic in self._quiet):
                return partition

    async def _settle(self, what: Sent, delivery: Delivery) -> None:
        try:
            stored = await delivery
        except PenstockError as error:
            self._history.given_up[what] = str(error)
        else:
            self.host.scheduler.trace.note(self.host.name, f"{what} acknowledged at {stored.offset}")
            self._history.acknowledge(what, stored.offset)
            self.last[what.partition] = self.host.scheduler.now_s


class Reader:
    """Reads some topics in the group until `is_ending`; commits automatically and sometimes explicitly."""

    def __init__(self, host: SimulatedHost, bootstrap: str, history: History, topics: Sequence[str]) -> None:
        self.host = host
        self._bootstrap = bootstrap
        self._history = history
        self._topics = tuple(topics)
        self._random: Random = SeededRandom(f"{host.random.seed}/reader")
        self._next: dict[TopicPartition, int] = {}
        self._owned: dict[TopicPartition, int] = {}
        """Its partitions, and their committed offsets at the time of the assignment."""
        self.is_ending = False
        self.task = host.spawn(self._run())
        host.on_boot = self._restart

    def _restart(self) -> None:
        self._next.clear()
        self._owned.clear()
        self.task = self.host.spawn(self._run())

    async def _run(self) -> None:
        consumer = await started(lambda: self._consumer())
        while not self.is_ending:
            for partition, records in (await consumer.poll(500)).items():
                for record in records:
                    self._take(partition, record.offset, record.value)
            if not self._random.below(3):
                await self._commit(consumer)
            if not self._random.below(8):
                # Processing takes time, and the consumer fetches more meanwhile.
                await asyncio.sleep(self._random.uniform(0.0, _PROCESSING_S))
        await consumer.close()

    def _take(self, partition: TopicPartition, offset: int, value: bytes) -> None:
        history, name = self._history, self.host.name
        if partition not in self._owned:
            history.anomalies.append(f"{name} gets offset {offset} of {partition}, which it has given up")
        elif partition not in self._next:
            history.started_reading(name, partition, offset, self._owned[partition])
        history.record_read(name, partition, offset, value, self._next.get(partition))
        self._next[partition] = offset + 1

    def _consumer(self) -> AsyncConsumer[bytes, bytes]:
        consumer = new_consumer(self._bootstrap, self.host.name, self._topics, group_id=GROUP)

        @consumer.on_assign
        def assigned(partitions: Iterable[TopicPartition]) -> None:
            for partition in partitions:
                self._history.assigned(self.host.name, consumer.generation, partition)
                self._owned[partition] = self._history.committed.get(partition, 0)

        @consumer.on_revoke
        def revoked(partitions: Iterable[TopicPartition]) -> None:
            for partition in partitions:
                self._next.pop(partition, None)
                self._owned.pop(partition, None)

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
        # A member whose coordinator loses power during a join waits this long for a response that never comes.
        max_poll_interval_ms=10_000,
        retry_backoff_ms=100,
        auto_commit_interval_ms=500,
        fetch_max_wait_ms=1_000,
        # How often a consumer looks for a subscribed topic that does not exist yet.
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


async def read_everything(
    bootstrap: str, name: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Offsets and values of all records, read by a new consumer."""
    consumer = await started(lambda: new_consumer(bootstrap, name))
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {partition: [] for partition in partitions}
    await consumer.assign(partitions)
    ends = await consumer.end_offsets(partitions)
    left = {partition: end for partition, end in ends.items() if end > 0}
    while left:
        for partition, records in (await consumer.poll(1_000)).items():
            found[partition] += [(record.offset, record.value) for record in records]
            if records[-1].offset + 1 >= left.get(partition, 0):
                left.pop(partition, None)
    await consumer.close()
    return found


async def read_commits(bootstrap: str, name: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """The committed offsets of the run's group."""
    consumer = await started(lambda: new_consumer(bootstrap, name, group_id=GROUP))
    found = await consumer.committed(*partitions, timeout_ms=PATIENCE_MS)
    await consumer.close(autocommit=False)
    return {partition: committed.offset for partition, committed in found.items()}


BRIEF: Final = "brief"
OFFSETS_TOPIC: Final = "__consumer_offsets"
_RETRY_S: Final = 0.25
_CALL_TIMEOUT_MS: Final = 2_500
# A live broker whose session expired is back within this time, with its records.
_RECOVERY_S: Final = 3.0
# A former leader has learned of the new one within this time.
_STALE_METADATA_S: Final = 10.0
_RECORDS: Final = 12
REREAD: Final = "acknowledged records missed by a reader that then looked again"
_AT_ONCE: Final = 4
_MOVED_AT_ONCE: Final = 4


class Operator:
    """Changes the cluster by admin calls. It first creates `topics` with their settings; `brokers` returns the ids. Of
    several data `folders`, replicas are moved between them.
    """

    def __init__(
        self,
        host: SimulatedHost,
        bootstrap: str,
        history: History,
        topics: Mapping[str, Mapping[str, str]],
        brokers: Callable[[], Sequence[int]],
        replicas: int,
        folders: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.done: Counter[str] = Counter()
        self.is_ending = False
        self.is_released = False
        self.lost: list[TopicPartition] = []
        """Partitions without a complete replica: any live replica may lead them."""
        self._bootstrap = bootstrap
        self._history = history
        self._topics = topics
        self._brokers = brokers
        self._replicas = replicas
        self._folders = folders
        self._random: Random = SeededRandom(f"{host.random.seed}/operator")
        self._topics_created = 0
        self.task = host.spawn(self._run())

    async def _run(self) -> None:
        admin = AsyncAdmin(
            self._bootstrap,
            client_id=self.host.name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        for name, settings in self._topics.items():
            await self._create(admin, name, settings)
        actions = [self._move, self._move, self._elect, self._create_and_delete_topic]
        if len(self._folders) > 1:
            actions += [self._move_to_folder] * len(actions)
        while not self.is_ending:
            await asyncio.sleep(self._random.uniform(0.1, 1.25))
            action = actions[self._random.below(len(actions))]
            try:
                await action(admin)
            except PenstockError as error:
                self._note(f"{action.__name__} failed: {type(error).__name__}")
        until_s = self.host.scheduler.now_s + _RECOVERY_S
        while not self.is_released:
            await asyncio.sleep(_RETRY_S)
            if self.lost and self.host.scheduler.now_s > until_s:
                await self._elect_unclean(admin)
        await admin.close()

    async def _elect_unclean(self, admin: AsyncAdmin) -> None:
        try:
            outcomes = await admin.elect_leaders("unclean", self.lost, timeout_ms=_CALL_TIMEOUT_MS)
        except PenstockError as error:
            self._note(f"unclean election failed: {type(error).__name__}")
        else:
            self.done["unclean election"] += sum(error is None for error in outcomes.values())

    def _note(self, text: str) -> None:
        self.host.scheduler.trace.note(self.host.name, text)

    async def _create(self, admin: AsyncAdmin, name: str, settings: Mapping[str, str]) -> None:
        spec = TopicSpec(name, PARTITIONS, self._replicas, config=dict(settings))
        while True:
            try:
                await admin.create_topic(spec, timeout_ms=_CALL_TIMEOUT_MS)
            except TopicExists:
                if name != BRIEF:
                    return
                await self._delete(admin)  # left by an earlier action, or created by a call without a response
            except PenstockError as error:
                self._note(f"{name} not created: {type(error).__name__}")
                await asyncio.sleep(_RETRY_S)
            else:
                self.done["topic created"] += 1
                return

    async def _move(self, admin: AsyncAdmin) -> None:
        random = self._random
        partitions = partitions_of(self._topics)
        partition = partitions[random.below(len(partitions))]
        ids = list(self._brokers())
        random.shuffle(ids)
        wanted = ids[: self._replicas]
        outcomes = await admin.alter_partition_reassignments({partition: wanted}, timeout_ms=_CALL_TIMEOUT_MS)
        is_rejected = any(outcomes.values())
        self.done["move rejected" if is_rejected else "move"] += 1
        self._note(f"move of {partition} to {wanted}{' rejected' if is_rejected else ''}")

    async def _move_to_folder(self, admin: AsyncAdmin) -> None:
        """Move some replicas of a broker to one of its data folders; half of them are in another one now."""
        random = self._random
        partitions = [*partitions_of(self._topics), *partitions_of([OFFSETS_TOPIC])]
        random.shuffle(partitions)
        ids = list(self._brokers())
        broker_id, folder = ids[random.below(len(ids))], self._folders[random.below(len(self._folders))]
        wanted: dict[tuple[str, int], str] = dict.fromkeys(partitions[: 1 + random.below(_MOVED_AT_ONCE)], folder)
        outcomes = await admin.alter_replica_log_dirs(broker_id, wanted, timeout_ms=_CALL_TIMEOUT_MS)
        rejected = sum(error is not None for error in outcomes.values())
        self.done["move between folders rejected"] += rejected
        self.done["move between folders"] += len(outcomes) - rejected
        self._note(f"{len(outcomes) - rejected} of {len(wanted)} replicas move to {folder} of {broker_id}")

    async def _elect(self, admin: AsyncAdmin) -> None:
        outcomes = await admin.elect_leaders("preferred", timeout_ms=_CALL_TIMEOUT_MS)
        self.done["election"] += 1
        self._note(f"preferred leaders: {sum(error is None for error in outcomes.values())} elected")

    async def _create_and_delete_topic(self, admin: AsyncAdmin) -> None:
        """Create a topic, write to it, read it and delete it. Before the deletion it holds what was acknowledged."""
        self._topics_created += 1
        await self._create(admin, BRIEF, {})
        producer = new_producer(self._bootstrap, f"{self.host.name}-{self._topics_created}")
        acknowledged: dict[tuple[TopicPartition, int], Sent] = {}
        await producer.start()
        try:
            for number in range(0, _RECORDS, _AT_ONCE):
                sent = [
                    Sent(f"life-{self._topics_created}", TopicPartition(BRIEF, each % PARTITIONS), each)
                    for each in range(number, number + _AT_ONCE)
                ]
                for what, offset in await _stored(producer, sent):
                    acknowledged[what.partition, offset] = what
        finally:
            await producer.close()
        self._history.anomalies += await self._differences(acknowledged)
        await self._delete(admin)
        self.done["topic deleted"] += 1

    async def _delete(self, admin: AsyncAdmin) -> None:
        while True:
            try:
                await admin.delete_topic(BRIEF, missing_ok=True, timeout_ms=_CALL_TIMEOUT_MS)
            except PenstockError as error:
                self._note(f"{BRIEF} not deleted: {type(error).__name__}")
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def _differences(self, acknowledged: Mapping[tuple[TopicPartition, int], Sent]) -> list[str]:
        """Differences from what was acknowledged. Reads again while a broker may have stale metadata."""
        until_s = self.host.scheduler.now_s + _STALE_METADATA_S
        while True:
            read = await read_everything(self._bootstrap, f"{self.host.name}-reader", partitions_of([BRIEF]))
            found = {(partition, offset): value for partition, all_ in read.items() for offset, value in all_}
            differences = self._compare(acknowledged, found)
            if not differences or self.host.scheduler.now_s > until_s:
                return differences
            self.host.scheduler.trace.count(REREAD)
            self._note(f"{len(differences)} records of {BRIEF} differ from what was acknowledged; looking again")
            await asyncio.sleep(_RETRY_S)

    def _compare(
        self, acknowledged: Mapping[tuple[TopicPartition, int], Sent], found: Mapping[tuple[TopicPartition, int], bytes]
    ) -> list[str]:
        differences = []
        for (partition, offset), value in found.items():
            if not value.startswith(f"life-{self._topics_created}:".encode()):
                differences.append(f"{partition}: at {offset} of topic {self._topics_created} is {value[:40]!r}")
        for (partition, offset), what in acknowledged.items():
            stored = found.get((partition, offset))
            if stored is None or Sent.of(stored) != what:
                differences.append(f"{partition}: {what} was acknowledged at {offset}, where {stored!r:.60} is")
        return differences


async def _stored(producer: AsyncProducer[bytes, bytes], records: Sequence[Sent]) -> list[tuple[Sent, int]]:
    """Acknowledged records and their offsets."""
    stored = []
    deliveries = []
    for what in records:
        with suppress(PenstockError):
            partition = what.partition
            deliveries.append(
                (what, await producer.enqueue(partition.topic, what.value(10), partition=partition.partition))
            )
    for what, delivery in deliveries:
        with suppress(PenstockError):
            stored.append((what, (await delivery).offset))
    return stored
