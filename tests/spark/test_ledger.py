"""Records of the ledger and the protocol around it: the crash cases of decision 019, one by one.

The brokers are those of the model, undisturbed; `test_ledger_model` draws such stories at random.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.spark.ledger_model import QUERY, Actor, FakeBrokers, Process, World, rows_of

from penstock.client.errors import TransactionAborted
from penstock.client.transactions import PreparedTransaction
from penstock.spark.errors import CheckpointMismatch, LedgerDamaged, MarginCrossed, RowsLost, Superseded
from penstock.spark.ledger import (
    Batch,
    Ledger,
    LedgerRecord,
    Slots,
    StoredRange,
    Winner,
    can_never_win,
    check_margin,
    generation_of,
    transactional_id,
)

ROWS = [rows_of(1, number) for number in range(3)]


class Alone(Actor):
    """An actor that is never interrupted."""

    def __init__(self) -> None:
        self.is_done = False

    def switch(self) -> None: ...


class Story:
    """Runs of one query, whose batch 1 has three tasks of which one is empty."""

    def __init__(self, *, two_phase: bool = True) -> None:
        self.world = World(0, two_phase=two_phase, chaos=0.0)
        self.brokers = FakeBrokers(self.world, Alone())

    def tasks(self, run_id: str, batch_id: int = 1) -> Batch:
        found = [Process(self.world, run_id).runs(self.brokers, batch_id, rows) for rows in ROWS if rows]
        winners = tuple(each for each in found if each is not None)
        return Batch(run_id, batch_id, winners, len(winners) < len(found))

    def commit(self, batch: Batch, **settings: bool) -> None:
        ledger = Ledger(self.brokers, QUERY)
        ledger.sweep(ledger.commit(batch, **settings))

    def decide(self, batch: Batch) -> LedgerRecord:
        return Ledger(self.brokers, QUERY)._decision(batch)

    def times_out(self, winner: Winner) -> None:
        self.world.end(self.world.ids[winner.transaction.transactional_id], commit=False)

    def check_once(self) -> None:
        assert dict(self.world.visible()) == dict.fromkeys((row for rows in ROWS for row in rows), 1)
        assert not [name for name, state in self.world.ids.items() if state.is_open]


def test_driver_dies_before_the_decision() -> None:
    story = Story()
    story.tasks("first")
    assert not story.world.visible()
    story.commit(story.tasks("second"))
    story.check_once()


def test_driver_dies_after_the_decision() -> None:
    story = Story()
    story.decide(story.tasks("first"))
    again = story.tasks("second")
    assert again.has_skipped
    assert not again.winners
    story.commit(again)
    story.check_once()


def test_driver_dies_between_two_ends() -> None:
    story = Story()
    batch = story.tasks("first")
    story.decide(batch)
    story.brokers.end(batch.transactions[:1], commit=True)
    story.commit(story.tasks("second"))
    story.check_once()


def test_driver_dies_before_spark_notes_the_commit() -> None:
    story = Story()
    story.commit(story.tasks("first"))
    story.commit(story.tasks("second"))
    story.check_once()


def test_task_runs_twice_and_one_attempt_wins() -> None:
    story = Story()
    story.tasks("first")
    story.commit(story.tasks("first"))
    story.check_once()


def test_zombie_attempt_writes_after_its_batch_was_decided() -> None:
    story = Story()
    batch = story.tasks("first")
    late = Process(story.world, "first").runs(story.brokers, 1, ROWS[0])
    story.commit(batch)
    assert late is not None
    with pytest.raises(TransactionAborted, match="fenced"):
        story.brokers.send(late.transaction, "late row")
    assert Process(story.world, "first").runs(story.brokers, 1, ROWS[0]) is None
    story.check_once()


def test_same_query_started_twice_is_written_by_the_later_one() -> None:
    story = Story()
    old, new = story.tasks("old"), story.tasks("new")
    with pytest.raises(Superseded):
        story.commit(old)
    story.commit(new)
    with pytest.raises(Superseded):
        story.tasks("old")
    story.check_once()


def test_later_one_finds_what_the_earlier_one_decided() -> None:
    story = Story()
    old = story.tasks("old")
    story.decide(old)
    new = story.tasks("new")
    # Both carry the same decision out, in any order.
    story.brokers.end(old.transactions, commit=True)
    story.commit(new)
    story.check_once()


def test_transaction_times_out_before_the_decision() -> None:
    story = Story(two_phase=False)
    batch = story.tasks("first")
    story.times_out(batch.winners[0])
    with pytest.raises(MarginCrossed, match="no longer open"):
        story.commit(batch)
    Ledger(story.brokers, QUERY).abort("first", 1, batch.transactions)
    story.commit(story.tasks("second"))
    story.check_once()


def test_some_transactions_time_out_after_the_decision() -> None:
    story = Story(two_phase=False)
    batch = story.tasks("first")
    story.decide(batch)
    story.times_out(batch.winners[1])
    with pytest.raises(
        RowsLost, match=r"1 of 2 of its transactions timed out .* 2 rows are not visible, at t-0 \[0, 2\)"
    ):
        story.commit(story.tasks("second"))
    story.commit(story.tasks("third"), accept_lost=True)
    assert sum(story.world.visible().values()) == 2


def test_all_transactions_time_out_after_the_decision() -> None:
    story = Story(two_phase=False)
    batch = story.tasks("first")
    story.decide(batch)
    for winner in batch.winners:
        story.times_out(winner)
    with pytest.raises(MarginCrossed, match="no record of the batch is visible"):
        story.commit(story.tasks("second"))
    story.commit(story.tasks("third"))
    story.check_once()


def test_checkpoint_is_older_than_the_ledger() -> None:
    story = Story()
    story.commit(story.tasks("first", batch_id=5))
    with pytest.raises(CheckpointMismatch, match="batch 1 of query q is older"):
        story.commit(story.tasks("second"))
    story.check_once()


def test_ledger_is_deleted() -> None:
    story = Story()
    batch = story.tasks("first")
    story.world.record = None
    with pytest.raises(LedgerDamaged, match="no record of query q"):
        story.commit(batch)


def test_ledger_is_set_back() -> None:
    story = Story()
    story.decide(story.tasks("first"))
    skipping = story.tasks("second")
    story.world.record = LedgerRecord(QUERY, "second", 9)
    with pytest.raises(LedgerDamaged, match="found it in the ledger, which now has only batch -1"):
        story.commit(skipping)


def test_abort_that_follows_a_failed_commit_leaves_the_decision_alone() -> None:
    story = Story()
    batch = story.tasks("first")
    story.decide(batch)
    assert not Ledger(story.brokers, QUERY).abort("first", 1, batch.transactions)
    story.commit(story.tasks("second"))
    story.check_once()


def test_abort_of_a_superseded_run_leaves_the_new_one_alone() -> None:
    story = Story()
    old, new = story.tasks("old"), story.tasks("new")
    Ledger(story.brokers, QUERY).abort("old", 1, old.transactions)
    story.commit(new)
    story.check_once()


def test_batch_without_rows_finishes_what_was_decided_about_it() -> None:
    story = Story()
    story.decide(story.tasks("first"))
    Ledger(story.brokers, QUERY).finish(1)
    story.check_once()


# ---------------------------------------------------------------------------------------------- parts


def winner(generation: int, slot: int = 0, epoch: int = 1) -> Winner:
    name = transactional_id(QUERY, generation, "ab", slot)
    return Winner(PreparedTransaction(name, 7, epoch), 3, (StoredRange("views", 0, 5, 8),))


def test_records_travel() -> None:
    record = LedgerRecord("write:a.b/c", "run", 3, 9, (winner(3),), ("one", "two"))
    assert LedgerRecord.decode(record.encode()) == record


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: b"",
        lambda text: text[:-5],
        lambda text: text.replace(b'"format":1', b'"format":2'),
        lambda text: text.replace(b'"run"', b'"rum"'),
        lambda text: text.replace(b'"producer_id":7', b'"producer_id":"7"'),
    ],
)  # fmt: skip
def test_damaged_records_are_reported(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(LedgerDamaged):
        LedgerRecord.decode(damage(LedgerRecord(QUERY, "run", 1, 0, (winner(1),)).encode()))


def test_only_transactions_of_the_owner_can_be_decided() -> None:
    with pytest.raises(LedgerDamaged, match="is not of generation 2"):
        LedgerRecord(QUERY, "run", 2).decided(0, [winner(1)])


def test_last_owners_are_remembered() -> None:
    record = LedgerRecord(QUERY, "run-0", 1)
    for number in range(1, 30):
        record = record.taken_over_by(f"run-{number}")
    assert record.generation == 30
    assert record.superseded == tuple(f"run-{number}" for number in range(13, 29))


def test_ids_say_where_they_belong() -> None:
    name = transactional_id("write:a.7.ff-1", 12, "c0ffee", 3)
    assert generation_of(name, "write:a.7.ff-1") == 12
    assert generation_of(name, "write:a") is None
    assert generation_of("another-application", QUERY) is None


def test_what_is_swept() -> None:
    record = LedgerRecord(QUERY, "run", 5, 7, (winner(5, 0),))
    table = [
        (winner(4), True, True),  # an earlier owner's
        (winner(5, 1), True, True),  # a loser of the batch
        (winner(5, 1), False, False),  # a task that is still at work
        (winner(5, 0), True, False),  # a winner
        (winner(5, 0, epoch=2), True, True),  # another transaction of its id
        (winner(6), True, False),  # a newer owner's
    ]
    for one, batch_is_over, swept in table:
        assert can_never_win(record, one.transaction, batch_is_over=batch_is_over) is swept


def test_ids_are_used_once_in_a_batch_and_again_in_the_next() -> None:
    slots = Slots(QUERY, 1, "ab")
    first = [slots.take(0) for _ in range(3)]
    assert len(set(first)) == 3
    assert [slots.take(1) for _ in range(2)] == first[:2]
    assert slots.take(1) == first[2]
    assert slots.take(1) not in first


def test_margin() -> None:
    check_margin(48_000, 60_000, 12_000)
    with pytest.raises(MarginCrossed, match=r"has taken 48\.1 s.* less than the margin of 12\.0 s is left"):
        check_margin(48_100, 60_000, 12_000)
