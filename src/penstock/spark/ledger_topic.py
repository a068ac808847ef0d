"""The ledger in a compacted topic, and transactions at their coordinators: `ledger.Brokers` for a cluster.

A record has the query id as its key, in the partition of its hash. It is written in a transaction whose id belongs to
the query, so the next one that initializes the id fences all earlier ones: that is `take_over`. It also settles writes
whose outcome is unknown, since the coordinator completes or aborts them first. Readers read committed records up to the
end of the log, so they wait for writes that are under way.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.client.admin import Admin, AsyncAdmin
from penstock.client.admin.results import ConfigResource, TopicSpec, TransactionDescription
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.consumer import Consumer
from penstock.client.errors import (
    ConfigError,
    PenstockError,
    ProducerFenced,
    TimedOut,
    UnknownTransactionalId,
)
from penstock.client.producer.producer import Producer
from penstock.client.transactions import PreparedTransaction, transaction_version
from penstock.spark.errors import LedgerDamaged, one_line
from penstock.spark.ledger import NO_BATCH, LedgerFenced, LedgerInDoubt, LedgerRecord, Winner
from penstock.spark.options import SecurityOptions
from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    pass

T = TypeVar("T")

DEFAULT_TOPIC: Final = "penstock-spark-ledger"
_log = logging.getLogger("penstock.spark")
_ID_PREFIX: Final = "penstock-spark-ledger."
_PARTITIONS: Final = 8
_REPLICAS: Final = 3
_CLIENT: Final = "penstock-spark-ledger"
_CONFIG: Final = {
    # A record of a batch of thousands of tasks is large; small segments are compacted soon.
    "cleanup.policy": "compact", "max.message.bytes": str(8 * 1024 * 1024), "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip
_MOST_BYTES: Final = 8 * 1024 * 1024 - 64 * 1024
_LEDGER_TIMEOUT_MS: Final = 10_000
"""A driver that dies in the middle of a write holds others up for this time at most."""
_AT_ONCE: Final = 64
_ONGOING: Final = "Ongoing"
_TWO_PHASE_VERSION: Final = 6
_MOST_ATTEMPTS: Final = 100
_LONGEST_PAUSE_S: Final = 1.0
_QUICK_CLOSE_S: Final = 1.0
_POLL_MS: Final = 200


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """How to reach the ledger. Can be pickled, and used as a key."""

    bootstrap: str
    topic: str = DEFAULT_TOPIC
    timeout_ms: int = 120_000
    """For each step of the protocol: long enough for a coordinator to move."""
    security: SecurityOptions | None = None

    def client_options(self) -> dict[str, Any]:
        """The security options of clients."""
        from penstock.spark.connections import client_security

        return client_security(self.security)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a cluster can do about transactions."""

    version: int
    """The version of its transactions; 0 if it has none."""
    two_phase_commit: bool


class ClusterBrokers:
    """The ledger and the transactions of a cluster. Connections are opened on first use."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options
        self._admin: Admin | None = None
        self._writers: dict[str, Producer[Any, Any]] = {}
        self._partitions: int | None = None

    def close(self) -> None:
        writers, self._writers = self._writers, {}
        for writer in writers.values():
            writer.close(0)
        admin, self._admin = self._admin, None
        if admin is not None:
            admin.close(_QUICK_CLOSE_S)

    def _admins(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self._options.bootstrap, client_id=_CLIENT, **self._options.client_options())
        return self._admin

    def capabilities(self) -> Capabilities:
        async def ask(admin: AsyncAdmin) -> Capabilities:
            await admin.cluster.start()
            connection = await admin.cluster.to_any()
            if ApiKey.END_TXN not in connection.versions:
                return Capabilities(0, False)
            two_phase = connection.supports(ApiKey.INIT_PRODUCER_ID, _TWO_PHASE_VERSION)
            return Capabilities(transaction_version(connection), two_phase)

        return self._admins().run(ask)

    # ------------------------------------------------------------------------------------------ the topic

    def ensure_topic(self) -> None:
        """Creates the ledger topic if it is missing. Raises ConfigError if it is not compacted."""
        admin, name = self._admins(), self._options.topic
        brokers = len(admin.describe_cluster().nodes)
        replicas = min(_REPLICAS, brokers)
        config = {**_CONFIG, **({"min.insync.replicas": "2"} if replicas == _REPLICAS else {})}
        spec = TopicSpec(name, _PARTITIONS, replicas, config)
        if not admin.create_topic(spec, exist_ok=True).existed:
            _log.info("ledger topic created: topic=%s replicas=%d", name, replicas)
            return
        policy = admin.describe_config(ConfigResource.topic(name))["cleanup.policy"].value
        if policy != "compact":
            raise ConfigError(
                f"the ledger topic {name} has cleanup.policy {policy}: decisions would be deleted",
                hint=f"Set cleanup.policy=compact on {name}, or choose another with penstock.ledger.topic",
            )

    def place(self, query_id: str) -> TopicPartition:
        """Where the record of a query is."""
        if self._partitions is None:
            self._partitions = len(self._admins().describe_topic(self._options.topic).partitions)
        return TopicPartition(self._options.topic, zlib.crc32(query_id.encode()) % self._partitions)

    # ------------------------------------------------------------------------------------------ the record

    def read(self, query_id: str, *, settled: bool = True) -> LedgerRecord | None:
        place, key = self.place(query_id), query_id.encode()
        found: bytes | None = None
        with self._consumer("read_committed") as consumer:
            end = self._log_end(place, "read_uncommitted" if settled else "read_committed")
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            deadline_s = time.monotonic() + self._options.timeout_ms / 1000
            while consumer.position(place) < end:
                for records in consumer.poll(timeout_ms=_POLL_MS).values():
                    found = next((each.value for each in reversed(records) if each.key == key), found)
                if time.monotonic() > deadline_s:
                    raise TimedOut(
                        f"the ledger {place} was not read to its end within {self._options.timeout_ms} ms",
                        hint="Is a transaction open in it? `penstock transactions find-hanging` shows it",
                    )
        return None if found is None else LedgerRecord.decode(found)

    def _log_end(self, place: TopicPartition, isolation: str) -> int:
        answer = self._admins().list_offsets({place: "latest"}, isolation_level=isolation)[place]
        if isinstance(answer, PenstockError):
            raise answer
        return answer.offset

    def _consumer(self, isolation: Any) -> Consumer[bytes, bytes]:
        return Consumer(
            bootstrap_servers=self._options.bootstrap, isolation_level=isolation, **self._options.client_options(),
            client_id=_CLIENT, auto_offset_reset="earliest", max_partition_fetch_bytes=8 * 1024 * 1024,
        )  # fmt: skip

    def take_over(self, query_id: str) -> None:
        self._drop_writer(query_id)
        writer: Producer[Any, Any] = Producer(
            self._options.bootstrap, client_id=_CLIENT, **self._options.client_options(),
            transactional_id=_ID_PREFIX + query_id, transaction_timeout_ms=_LEDGER_TIMEOUT_MS,
            max_block_ms=self._options.timeout_ms, compression_type="gzip", max_request_size=8 * 1024 * 1024,
        )  # fmt: skip
        self._writers[query_id] = writer
        writer.init_transactions()

    def write(self, record: LedgerRecord) -> None:
        writer = self._writers.get(record.query_id)
        if writer is None:
            raise LedgerFenced(f"the ledger of query {record.query_id} is not taken over")
        place, value = self.place(record.query_id), record.encode()
        if len(value) > _MOST_BYTES:
            raise LedgerDamaged(
                f"the decision about {len(record.winners)} tasks has {len(value)} bytes, more than {_MOST_BYTES}",
                hint="Write with fewer tasks: df.coalesce(...)",
            )
        try:
            writer.begin_transaction()
            writer.send(place.topic, value, key=record.query_id.encode(), partition=place.partition)
            writer.commit_transaction()
        except PenstockError as error:
            self._drop_writer(record.query_id)
            kind = LedgerFenced if isinstance(error, ProducerFenced) else LedgerInDoubt
            raise kind(f"ledger write of query {record.query_id}: {one_line(error)}") from error

    def forget(self, query_id: str) -> None:
        """Gives the ledger of a query back; the next write needs `take_over` again."""
        self._drop_writer(query_id)

    def _drop_writer(self, query_id: str) -> None:
        writer = self._writers.pop(query_id, None)
        if writer is not None:
            # Without time to abort: what is open is settled by the next one that takes over.
            writer.close(0)

    def pause(self, attempt: int) -> None:
        if attempt >= _MOST_ATTEMPTS:
            raise TimedOut("the ledger could not be written", hint="Is the same query running several times?")
        time.sleep(random.uniform(0.0, min(0.01 * 2**attempt, _LONGEST_PAUSE_S)))

    # ------------------------------------------------------------------------------------------ transactions

    def closed(self, transactions: Sequence[PreparedTransaction]) -> list[PreparedTransaction]:
        states = self._described([each.transactional_id for each in transactions])
        return [each for each in transactions if not _is_open(states[each.transactional_id], each)]

    def _described(self, names: Iterable[str]) -> dict[str, TransactionDescription | None]:
        """The state of each id at its coordinator; None if it knows nothing of it."""
        found = self._admins().describe_transactions(names, timeout_ms=self._options.timeout_ms)
        for state in found.values():
            if isinstance(state, PenstockError) and not isinstance(state, UnknownTransactionalId):
                raise state
        return {name: None if isinstance(state, PenstockError) else state for name, state in found.items()}

    def end(self, transactions: Sequence[PreparedTransaction], *, commit: bool) -> list[PenstockError | None]:
        async def all_of(admin: AsyncAdmin) -> list[PenstockError | None]:
            async def one(transaction: PreparedTransaction) -> PenstockError | None:
                try:
                    await admin.end_transaction(transaction, commit, timeout_ms=self._options.timeout_ms)
                except PenstockError as error:
                    return error
                return None

            return await _together(one, transactions)

        return self._admins().run(all_of) if transactions else []

    def open_transactions(self, prefix: str) -> list[PreparedTransaction]:
        listed = self._admins().list_transactions([_ONGOING], timeout_ms=self._options.timeout_ms)
        states = self._described(each.transactional_id for each in listed if each.transactional_id.startswith(prefix))
        version = self.capabilities().version
        return [
            PreparedTransaction(name, state.producer_id, state.producer_epoch, version)
            for name, state in states.items()
            if state is not None and state.state == _ONGOING
        ]

    def was_committed(self, winner: Winner) -> bool:
        """Compares what readers of committed and of all records see at the first offset of the transaction.

        If neither sees the record, it was compacted or deleted, which says nothing: then it counts as committed.
        """
        first = min(winner.stored)
        place = TopicPartition(first.topic, first.partition)
        deadline_s = time.monotonic() + self._options.timeout_ms / 1000
        with self._consumer("read_committed") as committed, self._consumer("read_uncommitted") as everything:
            seen = [_first_offset(each, place, first.start, deadline_s) for each in (everything, committed)]
        return not (seen[0] == first.start and seen[1] != first.start)


class BatchProducer:
    """Writes batches of a query from one process, exactly once: the records and their ledger record in one transaction.

    There is one producer per query, so a transaction is all that a batch needs. A newer process fences this one. After
    an error the next call opens a new producer, which settles the transaction before, and reads what was written.
    """

    def __init__(self, brokers: ClusterBrokers, options: LedgerOptions, query_id: str, **settings: Any) -> None:
        self._brokers = brokers
        self._options = options
        self._query_id = query_id
        self._settings = settings
        self._producer: Producer[Any, Any] | None = None
        self._last: dict[str, int] = {}

    def write(
        self, topic: str, batch_id: int, keys: Sequence[bytes], values: Sequence[bytes | None], *, again: bool = False
    ) -> bool:
        """Writes records of a batch to a topic; False if they were written before. `again` writes them all the same."""
        producer = self._producer or self._opened()
        name = f"{self._query_id}:{topic}"
        if name not in self._last:
            record = self._brokers.read(name)
            self._last[name] = NO_BATCH if record is None else record.batch_id
        if batch_id <= self._last[name] and not again:
            return False
        place, record = self._brokers.place(name), LedgerRecord(name, "", 0, batch_id)
        try:
            producer.begin_transaction()
            delivery = producer.send_many(topic, values, keys=keys)
            producer.send(place.topic, record.encode(), key=name.encode(), partition=place.partition)
            producer.commit_transaction()
            delivery.result(0)
        except BaseException:
            self.close(0)
            raise
        self._last[name] = batch_id
        return True

    def _opened(self) -> Producer[Any, Any]:
        self._brokers.ensure_topic()
        self._producer = Producer(
            self._options.bootstrap, **self._options.client_options(), transactional_id=f"{_ID_PREFIX}{self._query_id}",
            **self._settings,
        )  # fmt: skip
        try:
            self._producer.init_transactions()
        except BaseException:
            self.close(0)
            raise
        return self._producer

    def close(self, timeout_s: float = _QUICK_CLOSE_S) -> None:
        producer, self._producer = self._producer, None
        self._last.clear()
        if producer is not None:
            producer.close(timeout_s)


def _is_open(state: TransactionDescription | None, transaction: PreparedTransaction) -> bool:
    same = (_ONGOING, transaction.producer_id, transaction.epoch)
    return state is not None and (state.state, state.producer_id, state.producer_epoch) == same


def _first_offset(consumer: Consumer[bytes, bytes], place: TopicPartition, start: int, deadline_s: float) -> int | None:
    """The offset of the first record from `start` on, None if there is none before the end of the log."""
    consumer.assign([place])
    consumer.seek(place, start)
    end = consumer.end_offsets([place])[place]
    while consumer.position(place) < max(end, start + 1):
        for records in consumer.poll(timeout_ms=_POLL_MS).values():
            if records:
                return records[0].offset
        if time.monotonic() > deadline_s:
            raise TimedOut(f"offset {start} of {place} was not readable in time", hint="Is a transaction open in it?")
    return None


async def _together(call: Callable[[Any], Awaitable[T]], items: Iterable[Any]) -> list[T]:
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> T:
        async with turn:
            return await call(item)

    return list(await asyncio.gather(*map(one, items)))
