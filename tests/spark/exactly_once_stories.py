"""What the stories about exactly-once writes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import uuid4

import pytest

from penstock import Admin, Consumer, TopicPartition
from penstock.spark import exactly_once
from penstock.spark.exactly_once import ExactlyOnceOptions, Plan, Prepared, TaskTransaction, WriteKey
from penstock.spark.ledger import LedgerRecord, StoredRange
from penstock.spark.ledger_topic import ClusterBrokers, LedgerOptions


class AnyBroker(Protocol):
    """Our broker, or Apache Kafka."""

    address: str


def require_transactions(broker: AnyBroker) -> None:
    """Skips the test on a broker without transactions."""
    brokers = ClusterBrokers(LedgerOptions(broker.address))
    try:
        if not brokers.capabilities().version:
            pytest.skip("this broker has no transactions")
    finally:
        brokers.close()


def committed(address: str, topic: str, partitions: int = 2) -> list[bytes | None]:
    """The values that readers of committed records see, in order of their values."""
    found: list[bytes | None] = []
    with Consumer(
        bootstrap_servers=address, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        all_of = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(all_of)
        with Admin(address) as admin:
            # The end of the log, not of what is committed: whatever is open is waited for.
            answers = admin.list_offsets(dict.fromkeys(all_of, "latest"))
        ends = {one: answer.offset for one, answer in answers.items() if not isinstance(answer, Exception)}
        while any(consumer.position(one) < ends[one] for one in all_of):
            for records in consumer.poll(timeout_ms=1_000).values():
                found += [record.value for record in records]
    return sorted(found, key=lambda value: value or b"")


@dataclass
class Query:
    """A query without Spark: batches of tasks, each of which writes one row to each of two partitions."""

    address: str
    topic: str
    query_id: str = field(default_factory=lambda: uuid4().hex)
    run_id: str = "run-1"
    timeout_ms: int = 60_000
    accept_lost: bool = False

    @property
    def options(self) -> ExactlyOnceOptions:
        ledger = LedgerOptions(self.address, timeout_ms=30_000)
        return ExactlyOnceOptions(ledger, self.timeout_ms, None, self.accept_lost)

    def plan(self) -> Plan:
        return exactly_once.stream_plan(self.options)

    def task(self, batch_id: int, number: int, plan: Plan | None = None) -> Prepared:
        """Writes the row "batch-number" to both partitions and prepares it."""
        transaction = TaskTransaction(plan or self.plan(), self.key(batch_id), self.address, {"linger_ms": 0.0})
        producer = transaction.begin()
        if producer is None:
            return transaction.prepare(30)(0, ())
        value = b"%d-%d" % (batch_id, number)
        deliveries = [producer.send(self.topic, value, partition=partition) for partition in (0, 1)]
        made = transaction.prepare(30)
        stored = [each.result(30) for each in deliveries]
        return made(2, tuple(StoredRange(self.topic, each.partition, each.offset, each.offset + 1) for each in stored))

    def key(self, batch_id: int) -> WriteKey:
        return WriteKey(self.query_id, self.run_id, batch_id)

    def tasks(self, batch_id: int, count: int = 2) -> list[Prepared]:
        plan = self.plan()
        return [self.task(batch_id, number, plan) for number in range(count)]

    def restarted(self) -> Query:
        return Query(self.address, self.topic, self.query_id, f"{self.run_id}+", self.timeout_ms, self.accept_lost)

    def record(self) -> LedgerRecord | None:
        brokers = ClusterBrokers(self.options.ledger)
        try:
            return brokers.read(self.query_id)
        finally:
            brokers.close()

    def visible(self) -> list[bytes | None]:
        return committed(self.address, self.topic)


def rows(*batches: int, tasks: Sequence[int] = (0, 1)) -> list[bytes]:
    """What the tasks of these batches write."""
    return sorted(b"%d-%d" % (batch, task) for batch in batches for task in tasks for _ in (0, 1))
