"""The ledger in its topic, on a real broker: who may write, what is read, and what a doubtful write leaves."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.spark.exactly_once_stories import AnyBroker, committed, require_transactions

from penstock import Admin, TopicSpec
from penstock.client.errors import ConfigError, PenstockError, TimedOut
from penstock.client.transactions import PreparedTransaction
from penstock.spark.ledger import (
    Ledger,
    LedgerFenced,
    LedgerInDoubt,
    LedgerRecord,
    StoredRange,
    Winner,
    transactional_id,
)
from penstock.spark.ledger_topic import BatchProducer, ClusterBrokers, LedgerOptions

FIXTURES = ("processes",)


@pytest.fixture
def processes(broker: AnyBroker) -> Iterator[list[ClusterBrokers]]:
    """The ledger as two processes see it."""
    require_transactions(broker)
    made = [ClusterBrokers(LedgerOptions(broker.address, timeout_ms=30_000)) for _ in range(2)]
    made[0].ensure_topic()
    yield made
    for each in made:
        each.close()


def record(query_id: str, batch_id: int, tasks: int = 1) -> LedgerRecord:
    winners = tuple(
        Winner(PreparedTransaction(transactional_id(query_id, 1, "ab", number), 7, 3), 4, (StoredRange("t", 0, 0, 4),))
        for number in range(tasks)
    )
    return LedgerRecord(query_id, "run", 1, batch_id, winners)


def test_the_last_record_of_a_query_is_read(processes: list[ClusterBrokers]) -> None:
    first, second = processes
    query, other = uuid4().hex, uuid4().hex
    assert first.read(query) is None
    first.take_over(query)
    for batch_id in range(3):
        first.write(record(query, batch_id))
    first.take_over(other)
    first.write(record(other, 9))
    assert second.read(query) == record(query, 2)
    assert second.read(other) == record(other, 9)


def test_only_the_last_that_took_over_can_write(processes: list[ClusterBrokers]) -> None:
    first, second = processes
    query = uuid4().hex
    with pytest.raises(LedgerFenced):
        first.write(record(query, 0))
    first.take_over(query)
    second.take_over(query)
    # Whether it knows that it was fenced depends on whom it asked first: both mean that it has to read again.
    with pytest.raises((LedgerFenced, LedgerInDoubt)):
        first.write(record(query, 0))
    second.write(record(query, 1))
    assert first.read(query) == record(query, 1)


def test_taking_over_settles_a_write_that_was_not_finished(processes: list[ClusterBrokers]) -> None:
    first, second = processes
    query = uuid4().hex
    first.take_over(query)
    writer = first._writers[query]
    writer.begin_transaction()
    place = first.place(query)
    writer.send(place.topic, record(query, 0).encode(), key=query.encode(), partition=place.partition).result(30)
    # The driver hangs here; its record is in the log, and not committed.
    assert second.read(query, settled=False) is None
    second.take_over(query)
    assert second.read(query) is None


def test_claims_of_two_processes_agree(processes: list[ClusterBrokers]) -> None:
    query = uuid4().hex
    claims = [Ledger(each, query).claim("run") for each in processes]
    assert claims[0] == claims[1]
    assert Ledger(processes[0], query).claim("other").generation == claims[0].generation + 1


def test_a_decision_about_thousands_of_tasks_fits(processes: list[ClusterBrokers]) -> None:
    query = uuid4().hex
    large = record(query, 0, tasks=5_000)
    processes[0].take_over(query)
    processes[0].write(large)
    assert processes[1].read(query) == large


def test_a_topic_that_forgets_is_rejected(broker: AnyBroker, processes: list[ClusterBrokers]) -> None:
    name = f"forgets-{uuid4().hex}"
    with Admin(broker.address) as admin:
        admin.create_topic(TopicSpec(name, 1, 1, {"cleanup.policy": "delete"}))
    brokers = ClusterBrokers(LedgerOptions(broker.address, name))
    try:
        with pytest.raises(ConfigError, match=f"the ledger topic {name} has cleanup.policy delete"):
            brokers.ensure_topic()
    finally:
        brokers.close()


def test_attempts_end(processes: list[ClusterBrokers]) -> None:
    with pytest.raises(TimedOut, match="could not be written"):
        processes[0].pause(100)


def test_one_process_writes_batches_and_their_record_in_one_transaction(
    broker: AnyBroker, topic: str, processes: list[ClusterBrokers]
) -> None:
    query, options = uuid4().hex, LedgerOptions(broker.address, timeout_ms=30_000)
    first, second = (BatchProducer(each, options, query) for each in processes)
    assert first.write(topic, 0, [b"a", b"b"], [b"1", None])
    assert not first.write(topic, 0, [b"a"], [b"1"])
    assert first.write(topic, 1, [b"a"], [b"2"])
    # Another process, after a crash: it knows what was written, and the first one cannot write any more.
    assert not second.write(topic, 1, [b"a"], [b"2"])
    assert second.write(topic, 2, [b"a"], [b"3"])
    with pytest.raises(PenstockError):
        first.write(topic, 3, [b"a"], [b"4"])
    assert second.write(topic, 2, [b"a"], [b"5"], again=True)
    second.close()
    assert committed(broker.address, topic) == [None, b"1", b"2", b"3", b"5"]
    # Its next call opens a new producer, and it owns the query again.
    assert first.write(topic, 3, [b"a"], [b"6"])
    first.close()
    assert committed(broker.address, topic) == [None, b"1", b"2", b"3", b"5", b"6"]
