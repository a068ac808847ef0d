"""What readers of committed records may see of each transaction, and what is found if they see anything else."""

from __future__ import annotations

import pytest

from penstock.client.cluster_metadata import TopicPartition
from penstock.testing.simulation.transactions.history import Attempt, Fate, Source, Stored, TransactionHistory

INPUT = TopicPartition("in", 0)
OUTPUT = TopicPartition("out", 0)
OTHER = TopicPartition("other", 0)
Log = dict[TopicPartition, list[tuple[int, bytes]]]


class Story:
    """A history, and a log of two partitions without processors."""

    def __init__(self) -> None:
        self.history = TransactionHistory("in", "out")
        self.log: Log = {OTHER: [], OUTPUT: []}

    def attempt(self, fate: Fate, *partitions: TopicPartition, name: str = "t") -> Attempt:
        attempt = self.history.begin(self.history.new_producer(name))
        for partition in partitions:
            attempt.record(partition)
        attempt.fate = fate
        return attempt

    def store(self, *records: Stored) -> None:
        for stored in records:
            log = self.log[stored.partition]
            log.append((len(log), stored.value(3)))

    def found(self) -> str:
        for partition, records in self.log.items():
            for offset, value in records:
                self.history.record_read("reader", partition, offset, value)
        return "; ".join(self.history.findings(self.log, {}))


@pytest.mark.parametrize("fate", [Fate.COMMITTED, Fate.ENDING])
def test_a_transaction_may_be_visible_as_a_whole(fate: Fate) -> None:
    story = Story()
    story.store(*story.attempt(fate, OTHER, OTHER, OUTPUT).records)
    assert story.found() == ""


@pytest.mark.parametrize("fate", [Fate.OPEN, Fate.FAILED, Fate.FENCED, Fate.ENDING])
def test_a_transaction_that_is_not_known_to_be_committed_may_be_invisible(fate: Fate) -> None:
    story = Story()
    story.attempt(fate, OTHER, OUTPUT)
    assert story.found() == ""


@pytest.mark.parametrize("fate", [Fate.OPEN, Fate.FAILED, Fate.FENCED])
def test_what_was_not_committed_is_not_read(fate: Fate) -> None:
    story = Story()
    story.store(*story.attempt(fate, OTHER).records)
    found = story.found()
    assert "but 1 of its 1 records are visible" in found
    assert f"reads record 0 of transaction 0 at 0, which {fate.value}" in found


def test_a_committed_transaction_is_not_lost_in_part() -> None:
    story = Story()
    story.store(*story.attempt(Fate.COMMITTED, OTHER, OUTPUT).records[:1])
    assert "was committed, but 1 of its 2 records are visible" in story.found()


def test_a_transaction_of_unknown_outcome_is_all_or_nothing() -> None:
    story = Story()
    story.store(*story.attempt(Fate.ENDING, OTHER, OUTPUT).records[1:])
    assert "is visible in part: 1 of its 2 records are" in story.found()


def test_a_record_is_stored_once_in_order_and_by_whom_it_was_sent() -> None:
    story = Story()
    first, second = story.attempt(Fate.COMMITTED, OTHER, OTHER).records
    story.store(second, first, first)
    story.log[OTHER].append((3, b"something else"))
    found = story.found()
    assert "is visible 2 times" in found
    assert "after record 1 of transaction 0 of the same producer" in found
    assert "at 3 is b'something else', which was never sent there" in found


def test_what_was_read_stays_and_what_is_there_is_read() -> None:
    story = Story()
    one, two = (story.attempt(Fate.COMMITTED, OTHER).records[0] for _ in range(2))
    story.store(one)
    story.history.record_read("reader", OTHER, 0, two.value(3))
    found = "; ".join(story.history.findings(story.log, {}))
    assert "other-0: record 0 of transaction 1 was read at 0, where now record 0 of transaction 0 is" in found
    assert "transaction 1 of t/1 was committed, but 0 of its 1 records are visible" in found


def test_a_producer_is_fenced_by_one_that_starts_later_and_only_then() -> None:
    history = TransactionHistory("in", "out")
    old = history.new_producer("t")
    history.initialized(old)
    before, after = history.begin(old), history.begin(old)
    before.commits()
    new, other = history.new_producer("t"), history.new_producer("u")
    history.initialized(other)
    assert not old.is_fenced
    history.initialized(new)
    after.commits()
    after.ended(Fate.COMMITTED)
    assert (before.fate, after.fate) == (Fate.ENDING, Fate.FENCED)
    assert not new.is_fenced


def test_a_coordinator_that_forgets_an_id_does_not_know_whom_it_has_fenced() -> None:
    history = TransactionHistory("in", "out")
    old, other = history.new_producer("t"), history.new_producer("u")
    history.initialized(old)
    history.initialized(other)
    for name in ("t", "u"):
        history.initialized(history.new_producer(name))
    history.forgotten("t")
    assert not old.is_fenced
    assert other.is_fenced, "another id is still known"
    history.initialized(history.new_producer("t"))
    assert old.is_fenced, "fenced again"


def test_of_two_producers_that_start_at_the_same_time_neither_is_known_to_be_fenced() -> None:
    history = TransactionHistory("in", "out")
    one, two = history.new_producer("t"), history.new_producer("t")
    history.initialized(two)
    history.initialized(one)
    assert not one.is_fenced
    assert not two.is_fenced


def processed(*offsets: int, committed: int) -> str:
    """Three inputs, outputs for some of them, and the group's committed offset."""
    history = TransactionHistory("in", "out")
    writer, worker = (history.begin(history.new_producer(name)) for name in ("w", "p"))
    log: Log = {INPUT: [(offset, writer.record(INPUT).value(1)) for offset in range(3)], OUTPUT: []}
    for number, offset in enumerate(offsets):
        log[OUTPUT].append((number, worker.record(OUTPUT, Source(INPUT, offset)).value(1)))
    writer.fate = worker.fate = Fate.COMMITTED
    for partition, records in log.items():
        for offset, value in records:
            history.record_read("reader", partition, offset, value)
    assert len(history.unprocessed(log)) == 3 - len(set(offsets))
    return "; ".join(history.findings(log, {INPUT: committed}))


def test_every_input_is_processed_once_and_its_offset_committed() -> None:
    assert processed(0, 1, 2, committed=4) == ""
    assert "input in-0@1 was processed twice" in processed(0, 1, 1, 2, committed=4)
    assert "input in-0@1 was never processed, and the group is past it" in processed(0, 2, committed=4)
    assert processed(0, 1, committed=2) == "input in-0@2 was never processed"
    assert "input in-0@2 was processed by record 2 of transaction 1, but the group is at 2" in processed(
        0, 1, 2, committed=2
    )
