"""Transactional producers, processors and readers of a run, and late copies of their requests.

Two transactors write to `orders` and `audit`, several partitions in a transaction, and commit, abort, wait until the
transaction times out, or leave it open. Sometimes a second producer starts with the same transactional id while the
first one, a zombie, continues. In half of the runs coordinators soon forget ids that are not used. Two processors read
`orders` in a group, write one record to `results` for each, and commit the group's offsets in the same transaction.
Processes are killed at random moments and started again. A reader follows all topics and gets committed records only.
`TransactionHistory` has the rules.
`TransactionFaults` adds late requests, and trouble for coordinators.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final

from penstock.client.admin.admin import AsyncAdmin
from penstock.client.admin.results import TopicSpec
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer.async_consumer import AsyncConsumer
from penstock.client.errors import PenstockError, TopicExists, TransactionOutcomeUnknown
from penstock.client.producer.async_producer import AsyncProducer
from penstock.coordination.transactions.transaction import Transaction
from penstock.log.partition_log import PartitionLog
from penstock.records import records_of, scan
from penstock.runtime.randomness import Random, SeededRandom
from penstock.testing.simulation.cluster import SimulatedCluster, SimulatedHost
from penstock.testing.simulation.faults import Fault
from penstock.testing.simulation.transactions.faults import TransactionFaults
from penstock.testing.simulation.transactions.history import Attempt, Fate, Producer, Source, TransactionHistory
from penstock.testing.simulation.workload import (
    CONNECT_TIMEOUT_MS,
    PARTITIONS,
    PATIENCE_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    partitions_of,
    started,
)

ORDERS: Final = "orders"
AUDIT: Final = "audit"
RESULTS: Final = "results"
TOPICS: Final = (ORDERS, AUDIT, RESULTS)
GROUP: Final = "processors"
PRODUCERS: Final = 4
"""Number of hosts, from the first on, that have producers and may be disturbed."""
HOSTS: Final = PRODUCERS + 1
ZOMBIES: Final = "producers started beside another"
FREEZES: Final = "processors paused in a transaction"
KILLS: Final = "transactional clients killed"
FORGOTTEN: Final = "transactional ids forgotten"
LONGEST_OPEN_S: Final = 14.0
"""After the faults, no transaction is open for longer: the longest timeout, and time for its markers."""
LONGEST_KNOWN_S: Final = 8.0
"""Where ids expire, none is known for longer after the last client has ended."""
LONGEST_PROCESSING_S: Final = 30.0
"""A member whose coordinator ended during a join waits for 10 s, and others wait for it."""

_ONE_SEED_IN: Final = 3
_EXPIRATION_MS: Final = 1_000
"""Shorter than the longest timeout: an id with an open transaction must be kept."""
_EXPIRY_INTERVAL_MS: Final = 300
_TIMEOUTS_MS: Final = (600, 1_500, 4_000)
_COMMIT_TIMEOUTS_S: Final = (0.05, 0.3, 2.0, 5.0, 5.0)
_RECORDS: Final = 5
_GAP_S: Final = 0.05
_CALM_GAP_S: Final = 0.8
_RETRY_S: Final = 0.25
_CALL_TIMEOUT_MS: Final = 2_500


def is_drawn(seed: int) -> bool:
    """Whether the run of a seed has transactions."""
    return not SeededRandom(f"{seed}/transactions").below(_ONE_SEED_IN)


def version_of(seed: int) -> int:
    """The transaction version of a run, 1 or 2."""
    return 1 + SeededRandom(f"{seed}/transaction version").below(2)


def has_expiry(seed: int) -> bool:
    """Whether transactional ids expire within the run."""
    return not SeededRandom(f"{seed}/expiry of transactional ids").below(2)


def settings_of(seed: int, *, is_single: bool) -> dict[str, str]:
    """Broker settings of a run with transactions."""
    settings = {"transaction.state.log.num.partitions": "2", "transaction.version": str(version_of(seed))}
    if has_expiry(seed):
        settings |= {
            "transactional.id.expiration.ms": str(_EXPIRATION_MS),
            "transaction.remove.expired.transaction.cleanup.interval.ms": str(_EXPIRY_INTERVAL_MS),
        }
    if not is_single:
        settings |= {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    return settings


def forgettable(known: Iterable[tuple[str, Transaction]], now_ms: int) -> Iterator[str]:
    """The ids that can expire. What a clock stamped that was ahead is known until its time has come."""
    return (transactional_id for transactional_id, transaction in known if transaction.update_ms <= now_ms)


class Transactions:
    """The transactional clients of a run, and the checks on them."""

    def __init__(
        self,
        hosts: Sequence[SimulatedHost],
        cluster: SimulatedCluster,
        inject: Callable[[Sequence[Fault]], None],
        *,
        replicas: int,
        seed: int,
        faults_s: float,
    ) -> None:
        """Until `faults_s`, coordinators are disturbed by faults that `inject` schedules."""
        self.history = TransactionHistory(ORDERS, RESULTS)
        self.done: Counter[str] = Counter()
        self.cluster = cluster
        self.has_expiry = has_expiry(seed)
        self._replicas = replicas
        self._creating = hosts[4].spawn(self._create_topics(hosts[4].name))
        self.transactors = [Transactor(host, self) for host in hosts[:2]]
        self.processors = [Processor(host, self) for host in hosts[2:4]]
        self.reader = CommittedReader(hosts[4], self)
        self.clients: list[_Client] = [*self.transactors, *self.processors]
        names = [client.host.name for client in self.clients]
        self.faults = TransactionFaults(
            cluster, inject, names, self._forgotten, seed=seed, version=version_of(seed), until_s=faults_s
        )

    def _forgotten(self, transactional_id: str) -> None:
        self.done[FORGOTTEN] += 1
        self.history.forgotten(transactional_id)

    async def _create_topics(self, name: str) -> None:
        admin = AsyncAdmin(
            self.cluster.bootstrap,
            client_id=name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
        )
        for topic in TOPICS:
            while True:
                try:
                    await admin.create_topic(TopicSpec(topic, PARTITIONS, self._replicas), timeout_ms=_CALL_TIMEOUT_MS)
                except TopicExists:
                    break
                except PenstockError:
                    await asyncio.sleep(_RETRY_S)
                else:
                    break
        await admin.close()

    async def topics(self) -> None:
        """Wait for the topics."""
        while not self._creating.done():
            await asyncio.sleep(0.02)
        self._creating.result()

    # --- the end of a run

    def calm_down(self) -> None:
        """The faults are over: no kills, no zombies, no late requests."""
        self.faults.is_calm = True
        for client in self.clients:
            client.is_calm = True

    def end(self, clients: Sequence[_Client | CommittedReader]) -> bool:
        """Let clients end; whether they have."""
        for client in clients:
            client.is_ending = True
        for task in (client.task for client in clients if client.task.done()):
            task.result()
        return all(client.task.done() for client in clients)

    @property
    def partitions(self) -> list[TopicPartition]:
        return partitions_of(TOPICS)

    def is_stable(self) -> bool:
        """Whether no replica has an open transaction: every last stable offset is at the high watermark."""
        return not self.unstable()

    def unstable(self) -> list[str]:
        starting = [f"{node.name} is starting" for node in self.cluster.nodes if not node.is_ready]
        return starting + [
            f"{partition} of {broker}: {log.last_stable_offset} of {log.high_watermark}"
            for partition in self.partitions
            for broker, log in self._logs(partition)
            if log.last_stable_offset != log.high_watermark or log.high_watermark != log.log_end_offset
        ]

    def known_ids(self) -> list[str]:
        """The transactional ids that coordinators know, and should have forgotten."""
        return [
            transactional_id
            for node in self.cluster.nodes
            if node.is_ready and node.broker is not None
            for shard in node.broker.services.transactions.shards
            for transactional_id in forgettable(shard.each(), node.clock.now_ms())
        ]

    def has_read(self, log: dict[TopicPartition, list[tuple[int, bytes]]]) -> bool:
        """Whether the reader has got all these records."""
        read = self.history.read
        return all(offset in read[partition] for partition, records in log.items() for offset, _ in records)

    def differences(self, log: dict[TopicPartition, list[tuple[int, bytes]]]) -> list[str]:
        """Replicas from which a reader of committed records would get something else."""
        return [
            f"{partition}: a reader of committed records gets {len(theirs)} records from {broker}, not {len(ours)}"
            for partition, ours in log.items()
            for broker, each in self._logs(partition)
            if (theirs := _committed_records(each)) != ours
        ]

    def _logs(self, partition: TopicPartition) -> Iterator[tuple[str, PartitionLog]]:
        for node in self.cluster.nodes:
            found = node.broker.replicas.get(*partition) if node.is_ready and node.broker is not None else None
            if found is not None:
                yield node.name, found.log


def _committed_records(log: PartitionLog) -> list[tuple[int, bytes]]:
    """What a reader of committed records gets from a replica."""
    end = log.last_stable_offset
    aborted = sorted(log.aborted_between(log.log_start_offset, end), key=lambda each: each.first_offset)
    open_ones: set[int] = set()
    found: list[tuple[int, bytes]] = []
    for index in range(log.segment_count):
        segment = log.segment_at(index)
        data = segment.file.read_at(0, segment.size)
        for header in scan(data).headers:
            while aborted and aborted[0].first_offset <= header.base_offset:
                open_ones.add(aborted.pop(0).producer_id)
            if header.is_control:
                open_ones.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_ones):
                found += [(each.offset, each.value or b"") for each in records_of(data, header) if each.offset < end]
    return found


# --- clients


class _Client:
    """A process with transactional producers, which is killed now and then."""

    def __init__(self, host: SimulatedHost, transactions: Transactions) -> None:
        self.host = host
        self.transactions = transactions
        self.history = transactions.history
        self.random: Random = SeededRandom(f"{host.random.seed}/{type(self).__name__}")
        self.is_calm = False
        self.is_ending = False
        self._freezes_s = self.random.uniform(0.8, 2.5) if self.random.below(2) else inf
        self.transactional_id = f"{type(self).__name__.lower()}-{host.name}"
        self._loop: object = host.loop
        self.task = host.spawn(self._run())
        host.on_boot = self._restart

    async def _run(self) -> None:
        raise NotImplementedError

    def _restart(self) -> None:
        if self._loop is not self.host.loop:
            self._loop = self.host.loop
            self.task = self.host.spawn(self._run())

    def may_die(self, one_in: int) -> None:
        """Perhaps the process is killed in a moment, and started again."""
        if self.is_calm or self.random.below(one_in):
            return
        kernel, process = self.host.network.kernel, self.host.loop
        after_s, down_s = self.random.uniform(0.0, 0.12), self.random.uniform(0.05, 1.0)

        def kill() -> None:
            if self.host.loop is process and self.host.is_alive:
                self.transactions.done[KILLS] += 1
                self.host.kill()
                kernel.call_later(down_s, up)

        def up() -> None:
            if self.host.loop is process:
                self.host.boot()
                self._restart()

        kernel.call_later(after_s, kill)

    async def may_freeze(self) -> None:
        """Pause the process here, at most once in a run, until its group has continued without it."""
        if self.is_calm or self.host.scheduler.now_s < self._freezes_s:
            return
        self._freezes_s = inf
        loop = self.host.loop
        self.transactions.done[FREEZES] += 1
        loop.pause()
        self.host.network.kernel.call_later(self.random.uniform(1.5, 2.2) * SESSION_TIMEOUT_MS / 1000, loop.resume)
        await asyncio.sleep(0.001)

    async def new_producer(self) -> _Instance:
        """A started producer, with its epoch."""
        random = self.random
        timeout_ms = _TIMEOUTS_MS[-1] if self.is_calm else _TIMEOUTS_MS[random.below(len(_TIMEOUTS_MS))]
        while True:
            producer: AsyncProducer[bytes, bytes] = AsyncProducer(
                self.transactions.cluster.bootstrap,
                client_id=self.host.name,
                transactional_id=self.transactional_id,
                transaction_timeout_ms=timeout_ms,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                delivery_timeout_ms=4_000,
                max_block_ms=6_000,
                retry_backoff_ms=100,
                start_timeout_ms=PATIENCE_MS,
            )
            await producer.start()
            known = self.history.new_producer(self.transactional_id)
            try:
                await producer.init_transactions()
            except PenstockError:
                await producer.close()
                continue
            self.history.initialized(known)
            return _Instance(producer, known, timeout_ms / 1000)

    def note(self, text: str) -> None:
        self.host.scheduler.trace.note(self.host.name, text)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, _CALM_GAP_S if self.is_calm else _GAP_S))

    # --- the end of a transaction

    async def commit(self, instance: _Instance, attempt: Attempt) -> bool:
        """Commit, and find out how that ended; False if the producer cannot continue."""
        random = self.random
        attempt.commits()
        while True:
            timeout_s = 5.0 if self.is_calm else _COMMIT_TIMEOUTS_S[random.below(len(_COMMIT_TIMEOUTS_S))]
            try:
                await instance.producer.commit_transaction(timeout_s)
            except TransactionOutcomeUnknown:
                self.note(f"{attempt}: outcome unknown")
                if not random.below(4):
                    return False  # another producer with the same id decides
            except PenstockError as error:
                return await self.not_committed(instance, attempt, error)
            else:
                self.note(f"{attempt}: committed")
                attempt.ended(Fate.COMMITTED)
                return True

    async def not_committed(self, instance: _Instance, attempt: Attempt, error: PenstockError) -> bool:
        """The transaction cannot be committed; False if the producer cannot continue."""
        doubt = " perhaps" if instance.is_doubtful else ""
        self.note(f"{attempt}: failed{doubt}: {type(error).__name__}: {error}")
        if instance.is_doubtful:
            return False
        attempt.ended(Fate.FAILED)
        return await self.abort(instance)

    async def abort(self, instance: _Instance) -> bool:
        for _ in range(3):
            try:
                await instance.producer.abort_transaction(3.0)
            except PenstockError as error:
                self.note(f"not aborted: {type(error).__name__}: {error}")
                if not instance.may_abort:
                    return False
            else:
                return True
        return False


class _Instance:
    """A started producer."""

    def __init__(self, producer: AsyncProducer[bytes, bytes], known: Producer, timeout_s: float) -> None:
        self.producer = producer
        self.known = known
        self.timeout_s = timeout_s

    @property
    def is_doubtful(self) -> bool:
        """Whether the producer does not know if its last commit was carried out."""
        state = self.producer._core.transactional().state
        return state.is_doubtful

    @property
    def may_abort(self) -> bool:
        return self.producer._core.transactional().may_abort


class Transactor(_Client):
    """Writes transactions until `is_ending`."""

    async def _run(self) -> None:
        await self.transactions.topics()
        zombies: list[asyncio.Task[None]] = []
        instance = await self.new_producer()
        while not self.is_ending:
            self.may_die(12)
            if not self.is_calm and not self.random.below(10):
                # The first continues, beside the second.
                self.transactions.done[ZOMBIES] += 1
                zombies.append(self.host.spawn(self._continue_beside(instance)))
                await asyncio.sleep(self.random.uniform(0.0, 0.3))
                instance = await self.new_producer()
            elif not await self._transact(instance):
                await instance.producer.close(0)
                instance = await self.new_producer()
            await self.pause()
        await asyncio.gather(*zombies)
        await instance.producer.close()

    async def _continue_beside(self, instance: _Instance) -> None:
        """Some more transactions of a producer that another one fences."""
        for _ in range(1 + self.random.below(3)):
            if not await self._transact(instance):
                break
            await asyncio.sleep(self.random.uniform(0.0, 0.2))
        await instance.producer.close(0)

    async def _transact(self, instance: _Instance) -> bool:
        """One transaction. False if the producer cannot continue."""
        random = self.random
        attempt = self.history.begin(instance.known)
        try:
            await instance.producer.begin_transaction()
            await self._send(instance, attempt)
        except PenstockError as error:
            return await self.not_committed(instance, attempt, error)
        choice = 9 if self.is_calm else random.below(20)
        if choice < 2:
            await asyncio.sleep(instance.timeout_s * random.uniform(0.7, 1.5))
            try:
                await self._send(instance, attempt)  # in time, or after the coordinator has aborted the transaction
            except PenstockError as error:
                return await self.not_committed(instance, attempt, error)
        elif choice == 2:
            return False  # it stays open until it times out, or until the next producer starts
        elif choice < 7:
            attempt.ended(Fate.FAILED)
            return await self.abort(instance)
        return await self.commit(instance, attempt)

    async def _send(self, instance: _Instance, attempt: Attempt) -> None:
        random = self.random
        partitions = partitions_of((ORDERS, AUDIT))
        for _ in range(1 + random.below(_RECORDS)):
            partition = partitions[random.below(len(partitions))]
            size = random.below(60) if random.below(4) else random.below(3_000)
            value = attempt.record(partition).value(size)
            await instance.producer.enqueue(partition.topic, value, partition=partition.partition)
            if not self.is_calm and not random.below(6):
                await asyncio.sleep(random.uniform(0.0, 0.15))
            elif not random.below(5):
                await instance.producer.flush(1.0)


class Processor(_Client):
    """Reads `orders` in the group, and writes to `results` in transactions, until `is_ending`."""

    async def _run(self) -> None:
        await self.transactions.topics()
        consumer = await started(self._consumer)
        instance = await self.new_producer()
        while not self.is_ending:
            polled = await consumer.poll(300)
            records = [(partition, each.offset) for partition, each_of in polled.items() for each in each_of]
            if not records:
                continue
            self.may_die(10)
            if not self.is_calm and not self.random.below(12):
                await asyncio.sleep(self.random.uniform(0.0, 1.5 * SESSION_TIMEOUT_MS / 1000))
            process = self._process_in_block if self.random.below(2) else self._process
            if not await process(consumer, instance, records):
                await instance.producer.close(0)
                instance = await self.new_producer()
                await consumer.rewind()
        await consumer.close()
        await instance.producer.close()

    def _consumer(self) -> AsyncConsumer[bytes, bytes]:
        return AsyncConsumer(
            ORDERS,
            bootstrap_servers=self.transactions.cluster.bootstrap,
            client_id=self.host.name,
            group_id=GROUP,
            exactly_once=True,
            auto_offset_reset="earliest",
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            max_poll_interval_ms=10_000,
            retry_backoff_ms=100,
            fetch_max_wait_ms=500,
            metadata_max_age_ms=2_500,
        )

    async def _process(
        self,
        consumer: AsyncConsumer[bytes, bytes],
        instance: _Instance,
        records: Sequence[tuple[TopicPartition, int]],
    ) -> bool:
        """Process a batch with the single calls. False if the producer cannot continue."""
        producer, attempt = instance.producer, self.history.begin(instance.known)
        can_continue = True
        try:
            await producer.begin_transaction()
            await self._write(producer, attempt, records)
            is_aborted = not self.is_calm and not self.random.below(8)
            if not is_aborted or self.random.below(2):
                await producer.send_offsets_to_transaction(consumer.consumed(), consumer)
        except PenstockError as error:
            can_continue = await self.not_committed(instance, attempt, error)
        else:
            if is_aborted:
                attempt.ended(Fate.FAILED)
                can_continue = await self.abort(instance)
            else:
                can_continue = await self.commit(instance, attempt)
        if attempt.fate is not Fate.COMMITTED:
            await consumer.rewind()
        return can_continue

    async def _process_in_block(
        self,
        consumer: AsyncConsumer[bytes, bytes],
        instance: _Instance,
        records: Sequence[tuple[TopicPartition, int]],
    ) -> bool:
        """Process a batch with `transaction(consumer=...)`. False if the producer cannot continue."""
        producer, attempt = instance.producer, self.history.begin(instance.known)
        try:
            async with producer.transaction(consumer=consumer):
                await self._write(producer, attempt, records)
                if not self.is_calm and not self.random.below(8):
                    raise _ChangedItsMind
                attempt.commits()
        except _ChangedItsMind:
            attempt.ended(Fate.FAILED)
        except PenstockError as error:
            doubt = " perhaps" if instance.is_doubtful else ""
            self.note(f"{attempt}: failed{doubt}: {type(error).__name__}: {error}")
            if not instance.is_doubtful:
                attempt.ended(Fate.FAILED)
            return False
        else:
            self.note(f"{attempt}: committed")
            attempt.ended(Fate.COMMITTED)
        return True

    async def _write(
        self,
        producer: AsyncProducer[bytes, bytes],
        attempt: Attempt,
        records: Sequence[tuple[TopicPartition, int]],
    ) -> None:
        for partition, offset in records:
            target = TopicPartition(RESULTS, (partition.partition + offset) % PARTITIONS)
            value = attempt.record(target, Source(partition, offset)).value(self.random.below(60))
            await producer.enqueue(RESULTS, value, partition=target.partition)
        if not self.is_calm and not self.random.below(6):
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
        await self.may_freeze()


class _ChangedItsMind(Exception):
    """An application that aborts its transaction."""


def committed_consumer(bootstrap: str, name: str, group_id: str | None = None) -> AsyncConsumer[bytes, bytes]:
    """A reader of committed records."""
    return AsyncConsumer(
        bootstrap_servers=bootstrap,
        client_id=name,
        group_id=group_id,
        enable_auto_commit=False,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        retry_backoff_ms=100,
        fetch_max_wait_ms=500,
        metadata_max_age_ms=2_500,
    )


class CommittedReader:
    """Follows all topics until `is_ending`, and reports every record to the history."""

    def __init__(self, host: SimulatedHost, transactions: Transactions) -> None:
        self.host = host
        self.is_ending = False
        self._transactions = transactions
        self.task = host.spawn(self._run())

    async def _run(self) -> None:
        transactions = self._transactions
        await transactions.topics()
        consumer = await started(lambda: committed_consumer(transactions.cluster.bootstrap, self.host.name))
        await consumer.assign(transactions.partitions)
        while not self.is_ending:
            for partition, records in (await consumer.poll(300)).items():
                for record in records:
                    transactions.history.record_read(self.host.name, partition, record.offset, record.value)
        await consumer.close()


async def read_committed(
    bootstrap: str, name: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Offsets and values of all committed records. The last offsets have markers, which are not handed out."""
    consumer = await started(lambda: committed_consumer(bootstrap, name))
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {partition: [] for partition in partitions}
    await consumer.assign(partitions)
    ends = await consumer.end_offsets(partitions)
    while any([await consumer.position(partition) < end for partition, end in ends.items()]):
        for partition, records in (await consumer.poll(200)).items():
            found[partition] += [(record.offset, record.value) for record in records]
    await consumer.close()
    return found


async def read_stable_commits(
    bootstrap: str, name: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """The committed offsets of the processors' group, once no transaction is about to decide on them."""
    consumer = await started(lambda: committed_consumer(bootstrap, name, GROUP))
    found = await consumer.committed(*partitions, timeout_ms=PATIENCE_MS)
    await consumer.close(autocommit=False)
    return {partition: committed.offset for partition, committed in found.items()}
