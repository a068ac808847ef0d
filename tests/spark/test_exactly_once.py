"""The driver's and the tasks' side of exactly-once writes on a real broker, without Spark."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.spark.exactly_once_stories import AnyBroker, Query, require_transactions, rows
from tests.timeouts import until

from penstock import Admin, Producer
from penstock.client.errors import ConfigError
from penstock.spark import exactly_once
from penstock.spark.errors import CheckpointMismatch, MarginCrossed, RowsLost, Superseded
from penstock.spark.exactly_once import ExactlyOnceOptions, Plan, batch_plan, stream_plan, uptime_s
from penstock.spark.ledger import Batch, Ledger, id_prefix
from penstock.spark.ledger_topic import Capabilities, ClusterBrokers, LedgerOptions
from penstock.testing import Broker

FIXTURES = ("nothing_kept", "brokers")


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    yield
    exactly_once.close_all()


@pytest.fixture
def brokers(broker: AnyBroker) -> Iterator[ClusterBrokers]:
    made = ClusterBrokers(LedgerOptions(broker.address, timeout_ms=30_000))
    yield made
    made.close()


def test_rows_are_visible_once_the_driver_has_committed(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    for batch_id in range(3):
        prepared = pickle.loads(pickle.dumps(query.tasks(batch_id)))
        record = query.record()
        assert record is not None
        assert record.batch_id == batch_id - 1
        exactly_once.commit(prepared)
    assert query.visible() == rows(0, 1, 2)


def test_ids_are_used_again_from_batch_to_batch(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    names = []
    for batch_id in range(3):
        prepared = query.tasks(batch_id)
        names.append([each.winner.transaction.transactional_id for each in prepared if each.winner is not None])
        exactly_once.commit(prepared)
    assert names[0] == names[1] == names[2]
    assert len(set(names[0])) == 2


def test_a_batch_that_was_decided_and_not_carried_out_is_finished_by_the_next_run(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    prepared = query.tasks(0)
    winners = tuple(each.winner for each in prepared if each.winner is not None)
    Ledger(brokers, query.query_id)._decision(Batch(query.run_id, 0, winners))  # and the driver dies
    again = query.restarted()
    skipped = again.tasks(0)
    assert all(each.has_skipped and each.winner is None for each in skipped)
    exactly_once.commit(skipped)
    assert query.visible() == rows(0)


def test_a_batch_that_was_not_decided_is_written_again_and_its_first_rows_are_swept(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    query.tasks(0)  # and the driver dies
    again = query.restarted()
    exactly_once.commit(again.tasks(0))
    assert brokers.open_transactions(id_prefix(query.query_id)) == []
    assert query.visible() == rows(0)


def test_rows_of_a_losing_attempt_are_not_visible(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    loser = query.task(0, 0)
    exactly_once.commit(query.tasks(0))
    assert loser.winner is not None
    assert query.visible() == rows(0)


def test_every_batch_sweeps_since_it_may_be_the_last_for_a_long_time(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    for batch_id in (0, 1):
        query.task(batch_id, 0)  # its executor is killed
        exactly_once.commit(query.tasks(batch_id))
        assert brokers.open_transactions(id_prefix(query.query_id)) == []
    assert query.visible() == rows(0, 1)


def test_a_run_that_was_superseded_writes_nothing(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    old = Query(broker.address, topic)
    exactly_once.commit(old.tasks(0))
    late = old.tasks(1)
    new = old.restarted()
    winning = new.tasks(1)
    with pytest.raises(Superseded, match=r"run run-1 of query .* was superseded by run run-1\+"):
        exactly_once.commit(late)
    exactly_once.commit(winning)
    assert old.visible() == rows(0, 1)
    exactly_once.close_all()
    with pytest.raises(Superseded):
        old.tasks(2)


def test_aborting_before_the_decision_leaves_nothing_and_after_it_changes_nothing(
    broker: AnyBroker, topic: str
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    prepared = query.tasks(0)
    assert exactly_once.abort(query.plan(), prepared, 0)
    assert query.visible() == []
    query = query.restarted()
    prepared = query.tasks(0)
    exactly_once.commit(prepared)
    assert not exactly_once.abort(query.plan(), prepared, 0)
    assert query.visible() == rows(0)


def test_a_batch_of_which_no_task_has_reported_is_aborted_by_the_name_of_its_stream(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    exactly_once.commit(query.tasks(0), "checkpoint")
    query.tasks(1)  # killed before their messages came
    assert exactly_once.abort(query.plan(), [], 1, "checkpoint")
    assert brokers.open_transactions(id_prefix(query.query_id)) == []
    assert query.visible() == rows(0)


def test_a_checkpoint_older_than_the_ledger_is_rejected(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    for batch_id in (0, 1):
        exactly_once.commit(query.tasks(batch_id))
    old = query.restarted()
    with pytest.raises(CheckpointMismatch, match=r"batch 0 of query .* is older than its ledger, which has batch 1"):
        exactly_once.commit(old.tasks(0))
    assert query.visible() == rows(0, 1)


def test_a_batch_without_rows_is_not_recorded(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    plan = query.plan()
    empty = exactly_once.TaskTransaction(plan, query.key(0), broker.address, {}).prepare(30)(0, ())
    exactly_once.commit([empty])
    assert query.record() is None


# ---------------------------------------------------------------------------------------------- time-outs


def aborted_after_the_decision(query: Query, brokers: ClusterBrokers, *which: int) -> None:
    """A decided batch, some of whose transactions were aborted as their time-out would."""
    prepared = query.tasks(0)
    winners = [each.winner for each in prepared if each.winner is not None]
    Ledger(brokers, query.query_id)._decision(Batch(query.run_id, 0, tuple(winners)))
    with Admin(query.address) as admin:
        for number in which:
            admin.end_transaction(winners[number].transaction, commit=False)


def test_rows_that_time_out_after_the_decision_are_reported_by_offset(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    aborted_after_the_decision(query, brokers, 1)
    again = query.restarted()
    with pytest.raises(RowsLost) as failed:
        exactly_once.commit(again.tasks(0))
    assert "1 of 2 of its transactions timed out" in str(failed.value)
    assert "2 rows are not visible" in str(failed.value)
    assert f"{topic}-0 [1, 2), {topic}-1 [1, 2)" in str(failed.value)
    assert query.visible() == rows(0, tasks=[0])
    # It stays so until it is accepted.
    with pytest.raises(RowsLost):
        exactly_once.commit(again.restarted().tasks(0))
    accepting = replace(again.restarted().restarted(), accept_lost=True)
    exactly_once.commit(accepting.tasks(0))
    exactly_once.commit(accepting.tasks(1))
    assert query.visible() == [*rows(0, tasks=[0]), *rows(1)]


def test_a_batch_of_which_nothing_is_visible_is_written_again(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    aborted_after_the_decision(query, brokers, 0, 1)
    again = query.restarted()
    with pytest.raises(MarginCrossed, match="no record of the batch is visible"):
        exactly_once.commit(again.tasks(0))
    exactly_once.commit(again.restarted().tasks(0))
    assert query.visible() == rows(0)


def test_a_transaction_that_was_aborted_before_the_decision_fails_the_batch(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    prepared = query.tasks(0)
    with Admin(broker.address) as admin:
        assert prepared[0].winner is not None
        admin.end_transaction(prepared[0].winner.transaction, commit=False)
    with pytest.raises(MarginCrossed, match="1 of 2 transactions of the batch are no longer open"):
        exactly_once.commit(prepared)
    assert exactly_once.abort(query.plan(), prepared, 0)
    exactly_once.commit(query.restarted().tasks(0))
    assert query.visible() == rows(0)


def test_a_batch_that_took_too_long_is_not_decided(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic)
    prepared = query.tasks(0)
    slow = [
        replace(each, plan=replace(each.plan, planned_s=uptime_s() - 49, two_phase_commit=False)) for each in prepared
    ]
    with pytest.raises(MarginCrossed, match=r"has taken 49\.\d s, and its transactions time out after 60.0 s"):
        exactly_once.commit(slow)
    record = query.record()
    assert record is not None
    assert record.batch_id == -1


def test_two_phase_commit_has_no_margin() -> None:
    options = ExactlyOnceOptions(LedgerOptions("127.0.0.1:1"), 60_000)
    Plan(options, True, uptime_s() - 1000).check_age()
    with pytest.raises(MarginCrossed):
        Plan(options, False, uptime_s() - 1000).check_age()


@pytest.mark.long
def test_a_batch_whose_transactions_have_timed_out_is_not_decided(
    broker: AnyBroker, topic: str, brokers: ClusterBrokers
) -> None:
    require_transactions(broker)
    query = Query(broker.address, topic, timeout_ms=3_000)
    prepared = query.tasks(0)
    transactions = [each.winner.transaction for each in prepared if each.winner is not None]
    until(lambda: brokers.closed(transactions) == transactions, "they have timed out")
    with pytest.raises(MarginCrossed):
        exactly_once.commit(prepared)
    assert query.visible() == []


def test_with_two_phase_commit_a_prepared_batch_waits_for_its_driver_as_long_as_it_takes() -> None:
    with Broker(settings={"transaction.two.phase.commit.enable": "true"}) as broker, Admin(broker.address) as admin:
        broker.create_topic("views", 2)
        query = Query(broker.address, "views", timeout_ms=1)
        prepared = query.tasks(0)
        assert all(each.plan.two_phase_commit for each in prepared)
        # Begun later and without two phases: when its time is over, that of the others is, too.
        with Producer(broker.address, transactional_id="other", transaction_timeout_ms=1) as producer:
            producer.begin_transaction()
            producer.send("views", b"other")
            until(lambda: admin.describe_transaction("other").state == "CompleteAbort", "it is aborted")
        exactly_once.commit(prepared)
        assert query.visible() == rows(0)
        # What a killed run leaves stays open, until the next one sweeps it.
        query.tasks(1)
        again = query.restarted()
        exactly_once.commit(again.tasks(1))
        assert query.visible() == rows(0, 1)
        exactly_once.close_all()


# ---------------------------------------------------------------------------------------------- processes


def test_brokers_without_transactions_are_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterBrokers, "capabilities", lambda self: Capabilities(0, False))
    options = ExactlyOnceOptions(LedgerOptions("old:9092"))
    for plan in (stream_plan, batch_plan):
        with pytest.raises(ConfigError, match="the brokers at old:9092 have no transactions"):
            plan(options)


def test_a_write_without_a_name_needs_no_ledger_and_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterBrokers, "capabilities", lambda self: Capabilities(2, True))
    made = batch_plan(ExactlyOnceOptions(LedgerOptions("some:9092")))
    assert not made.has_ledger
    assert not made.two_phase_commit
    assert made.key is not None
    assert made.key != batch_plan(ExactlyOnceOptions(LedgerOptions("some:9092"))).key


def test_a_forked_child_does_not_use_the_ids_of_its_parent(broker: AnyBroker, topic: str) -> None:
    require_transactions(broker)
    exactly_once.commit(Query(broker.address, topic).tasks(0))
    child = os.fork()
    if child == 0:
        os._exit(len(exactly_once._producers) + len(exactly_once._clusters))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
