from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    MissingSequence,
    NonMonotonicOffsets,
    NotInTransaction,
    OutOfOrderSequence,
    ProducerStateError,
    TooManyProducers,
)
from penstock.log.producer_state import NEW, CompletedTransaction, ProducerStates, SequenceCheck, last_sequence_of
from penstock.records.batch import EndMarker

LAST = 2**31 - 1
COMMIT, ABORT = EndMarker(True, 0), EndMarker(False, 0)


class Batch(NamedTuple):
    """A header with the relevant fields; `base_offset` is 0, as a producer sends it, by default."""

    producer_id: int = 1
    producer_epoch: int = 0
    base_sequence: int = 0
    records: int = 1
    is_transactional: bool = False
    is_control: bool = False
    max_timestamp: int = 1000
    base_offset: int = 0

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.records - 1


class Log:
    """A partition in miniature: it checks, gives offsets and applies."""

    def __init__(self, states: ProducerStates | None = None) -> None:
        self.states = states or ProducerStates()
        self.end = 0

    def produce(self, batch: Batch, *, now_ms: int = 0) -> SequenceCheck:
        verdict = self.states.check(batch)
        if not verdict.is_duplicate:
            self.states.apply(batch, self.end, now_ms=now_ms)
            self.end += batch.records
        return verdict

    def send(self, sequence: int, count: int = 1, *, epoch: int = 0) -> SequenceCheck:
        return self.produce(Batch(1, epoch, sequence, count))

    def write(self, producer_id: int, sequence: int, count: int = 1, epoch: int = 0) -> None:
        self.produce(Batch(producer_id, epoch, sequence, count, is_transactional=True))

    def mark(self, producer_id: int, marker: EndMarker, epoch: int = 0) -> CompletedTransaction | None:
        batch = Batch(producer_id, epoch, -1, is_transactional=True, is_control=True)
        self.states.check_marker(batch, marker)
        completed = self.states.apply(batch, self.end, now_ms=0, marker=marker)
        self.end += 1
        return completed


def sequences(log: Log, producer_id: int = 1) -> list[tuple[int, int]]:
    entry = log.states.get(producer_id)
    return [(batch.base_sequence, batch.last_sequence) for batch in entry.batches] if entry else []


# --- sequences


def test_continuing_sequences_are_new() -> None:
    log = Log()
    assert [log.send(0, 3), log.send(3), log.send(4, 10)] == [NEW, NEW, NEW]
    assert sequences(log) == [(0, 2), (3, 3), (4, 13)]


def test_each_of_the_last_five_batches_is_recognised_and_answered_with_its_first_offsets() -> None:
    log = Log()
    for sequence in range(0, 14, 2):
        log.produce(Batch(base_sequence=sequence, records=2, max_timestamp=500 + sequence))
    for sequence in range(4, 14, 2):
        retry = Batch(base_sequence=sequence, records=2, max_timestamp=9999)
        assert log.produce(retry) == SequenceCheck(True, sequence, sequence + 1, 500 + sequence)
    assert log.end == 14
    with pytest.raises(OutOfOrderSequence) as caught:
        log.send(2, 2)
    assert (caught.value.sequence, caught.value.expected) == (2, 14)


@pytest.mark.parametrize(("sequence", "count"), [(4, 1), (2, 1), (0, 1), (0, 2), (1, 2), (2, 2), (0, 4), (LAST, 1)])
def test_gaps_reorderings_and_half_repetitions_are_rejected(sequence: int, count: int) -> None:
    log = Log()
    log.send(0, 3)
    with pytest.raises(OutOfOrderSequence) as caught:
        log.send(sequence, count)
    error = caught.value
    assert (error.producer_id, error.epoch, error.sequence, error.expected) == (1, 0, sequence, 3)
    assert log.end == 3


def test_a_rejected_batch_changes_nothing() -> None:
    log = Log()
    log.send(0, 3)
    before = log.states.snapshot()
    for bad in (Batch(base_sequence=9), Batch(producer_epoch=-1), Batch(base_sequence=-1)):
        with pytest.raises(ProducerStateError):
            log.states.check(bad)
    assert log.states.check(Batch(base_sequence=3)) == NEW
    assert log.states.snapshot() == before


@pytest.mark.parametrize(
    ("base", "delta", "last"), [(5, 2, 7), (LAST, 0, LAST), (LAST, 2, 1), (LAST - 1, 1, LAST), (-1, 2, -1)]
)
def test_last_sequence_of_a_batch(base: int, delta: int, last: int) -> None:
    assert last_sequence_of(base, delta) == last


def test_sequences_wrap_to_zero() -> None:
    log = Log()
    log.send(LAST - 1, 1)
    log.send(LAST, 3)  # LAST, 0, 1
    assert log.send(LAST, 3).is_duplicate
    assert log.send(2) == NEW
    assert sequences(log) == [(LAST - 1, LAST - 1), (LAST, 1), (2, 2)]

    ends_at_the_last = Log()
    ends_at_the_last.send(LAST - 2, 3)
    assert ends_at_the_last.send(0) == NEW


def test_an_unknown_producer_may_begin_anywhere() -> None:
    log = Log()
    assert log.send(777, 3, epoch=4) == NEW
    assert log.send(777, 3, epoch=4).is_duplicate
    with pytest.raises(OutOfOrderSequence):
        log.send(781, epoch=4)
    assert log.send(780, epoch=4) == NEW


def test_without_a_producer_id_everything_is_new_and_nothing_remembered() -> None:
    log = Log()
    for _ in range(2):
        assert log.produce(Batch(producer_id=-1, producer_epoch=-1, base_sequence=-1)) == NEW
    assert log.states.producer_count == 0


def test_a_client_with_an_id_needs_a_sequence_and_a_coordinator_does_not() -> None:
    states = ProducerStates()
    unnumbered = Batch(base_sequence=-1, records=3, is_transactional=True)
    with pytest.raises(MissingSequence):
        states.check(unnumbered)
    for offset in (10, 20):
        assert states.check(unnumbered, from_client=False) == NEW
        states.apply(unnumbered, offset, now_ms=0)
    entry = states.get(1)
    assert entry is not None
    assert (entry.last_sequence, entry.last_offset, entry.transaction_first_offset) == (-1, 22, 10)
    with pytest.raises(InvalidProducerEpoch):
        states.check(unnumbered._replace(producer_epoch=-1), from_client=False)


def test_a_repetition_is_recognised_even_across_a_batch_without_sequence() -> None:
    log = Log()
    log.send(0, 3)
    log.states.apply(Batch(base_sequence=-1), 3, now_ms=0)
    assert log.send(0, 3).is_duplicate
    assert log.send(0, 2) == NEW


# --- epochs


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    log = Log()
    log.send(0, 3)
    with pytest.raises(OutOfOrderSequence) as out_of_order:
        log.send(3, epoch=1)
    assert out_of_order.value.expected == 0
    assert log.send(0, 3, epoch=1) == NEW
    with pytest.raises(InvalidProducerEpoch) as fenced:
        log.send(3)
    assert (fenced.value.epoch, fenced.value.current) == (0, 1)
    assert sequences(log) == [(0, 2)]
    assert log.end == 6


def test_a_retry_from_before_the_new_epoch_is_fenced_not_answered() -> None:
    log = Log()
    log.send(0, 3)
    log.send(0, 3, epoch=1)
    with pytest.raises(InvalidProducerEpoch):
        log.send(0, 3)


def test_replay_takes_the_log_at_its_word() -> None:
    states = ProducerStates()
    for offset, batch in enumerate([Batch(producer_epoch=3), Batch(producer_epoch=2, base_sequence=50)]):
        states.apply(batch, offset, now_ms=0)
    entry = states.get(1)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence, len(entry.batches)) == (2, 50, 1)


# --- transactions


def test_a_committed_transaction_is_unstable_until_its_marker_is_replicated() -> None:
    log = Log()
    log.end = 10
    log.write(1, 0, 3)
    log.write(1, 3, 2)
    assert (log.states.first_unstable_offset, log.states.first_undecided_offset) == (10, 10)
    assert log.mark(1, COMMIT) == CompletedTransaction(1, 10, 15, is_aborted=False, last_stable_offset=16)
    assert (log.states.first_unstable_offset, log.states.first_undecided_offset) == (10, None)
    log.states.on_high_watermark(15)
    assert log.states.first_unstable_offset == 10
    log.states.on_high_watermark(16)
    assert log.states.first_unstable_offset is None


def test_an_abort_shows_where_the_oldest_open_transaction_begins() -> None:
    log = Log()
    log.write(1, 0)
    log.write(2, 0)
    log.write(3, 0)
    assert log.mark(2, ABORT) == CompletedTransaction(2, 1, 3, is_aborted=True, last_stable_offset=0)
    assert log.mark(1, ABORT) == CompletedTransaction(1, 0, 4, is_aborted=True, last_stable_offset=2)
    assert log.mark(3, ABORT) == CompletedTransaction(3, 2, 5, is_aborted=True, last_stable_offset=6)


def test_sequences_continue_across_transactions() -> None:
    log = Log()
    log.write(1, 0, 3)
    log.mark(1, COMMIT)
    log.write(1, 3)
    assert log.states.first_undecided_offset == 4
    assert log.produce(Batch(base_sequence=0, records=3, is_transactional=True)).base_offset == 0


def test_a_marker_without_records_ends_nothing_but_its_epochs_count() -> None:
    log = Log()
    assert log.mark(1, EndMarker(False, 7), epoch=5) is None
    assert log.states.first_unstable_offset is None
    with pytest.raises(CoordinatorFenced) as caught:
        log.mark(1, EndMarker(False, 6), epoch=5)
    assert (caught.value.coordinator_epoch, caught.value.current) == (6, 7)
    with pytest.raises(InvalidProducerEpoch):
        log.mark(1, EndMarker(False, 7), epoch=4)
    with pytest.raises(InvalidProducerEpoch):
        log.write(1, 0, epoch=4)
    log.write(1, 0, epoch=5)


def test_an_abort_with_a_bumped_epoch_fences_the_producer_and_restarts_its_sequences() -> None:
    log = Log()
    log.write(1, 0, 3)
    completed = log.mark(1, ABORT, epoch=1)
    assert completed is not None
    assert (completed.first_offset, completed.is_aborted) == (0, True)
    with pytest.raises(InvalidProducerEpoch):
        log.write(1, 3)
    with pytest.raises(OutOfOrderSequence):
        log.write(1, 3, epoch=1)
    log.write(1, 0, epoch=1)


def test_plain_records_do_not_slip_into_an_open_transaction() -> None:
    log = Log()
    log.write(1, 0)
    with pytest.raises(NotInTransaction) as caught:
        log.send(1)
    assert caught.value.transaction_first_offset == 0
    log.mark(1, COMMIT)
    assert log.send(1) == NEW


def test_a_control_batch_that_compaction_emptied_is_ignored() -> None:
    log = Log()
    log.write(1, 0)
    control = Batch(1, 9, -1, is_transactional=True, is_control=True)
    before = log.states.snapshot()
    assert log.states.apply(control, 5, now_ms=0) is None
    assert log.states.snapshot() == before


def test_transactions_that_end_in_another_order_than_they_began() -> None:
    log = Log()
    for producer_id in (1, 2, 3):
        log.write(producer_id, 0)
    for producer_id in (2, 3, 1):  # markers at 3, 4, 5
        log.mark(producer_id, COMMIT)
    seen = []
    for high_watermark in range(3, 8):
        log.states.on_high_watermark(high_watermark)
        seen.append(log.states.first_unstable_offset)
    assert seen == [0, 0, 0, None, None]


def test_transactions_must_be_applied_in_offset_order() -> None:
    states = ProducerStates()
    states.apply(Batch(1, is_transactional=True), 10, now_ms=0)
    with pytest.raises(NonMonotonicOffsets):
        states.apply(Batch(2, is_transactional=True), 5, now_ms=0)


# --- forgetting


def test_idle_producers_expire_by_the_brokers_clock_whatever_the_records_say() -> None:
    states = ProducerStates()
    states.apply(Batch(1, max_timestamp=-1), 0, now_ms=100)
    states.apply(Batch(2, max_timestamp=10**15), 1, now_ms=150)
    states.apply(Batch(1, base_sequence=1, max_timestamp=5), 2, now_ms=200)
    assert states.remove_expired(249, 100) == 0
    assert states.remove_expired(250, 100) == 1
    assert [entry.producer_id for entry in states.entries()] == [1]
    assert states.remove_expired(300, 100) == 1
    assert states.producer_count == 0


def test_an_open_transaction_never_expires_and_hides_no_others() -> None:
    states = ProducerStates()
    states.apply(Batch(1, is_transactional=True), 0, now_ms=0)
    states.apply(Batch(2), 1, now_ms=1)
    assert states.remove_expired(10**9, 100) == 1
    assert states.get(1) is not None
    states.apply(Batch(1, is_control=True), 2, now_ms=10**9, marker=ABORT)
    assert states.remove_expired(10**9 + 100, 100) == 1


def test_above_the_limit_the_longest_idle_producer_goes_but_none_with_a_transaction() -> None:
    log = Log(ProducerStates(max_producers=3))
    log.write(1, 0)
    for producer_id in (2, 3, 4, 5):
        log.produce(Batch(producer_id))
    assert {entry.producer_id for entry in log.states.entries()} == {1, 4, 5}
    log.produce(Batch(4, base_sequence=1))
    log.produce(Batch(6))
    assert {entry.producer_id for entry in log.states.entries()} == {1, 4, 6}


def test_when_every_producer_has_a_transaction_open_a_new_one_is_rejected() -> None:
    log = Log(ProducerStates(max_producers=2))
    log.write(1, 0)
    log.write(2, 0)
    with pytest.raises(TooManyProducers):
        log.write(3, 0)
    with pytest.raises(TooManyProducers):
        log.mark(3, COMMIT)
    log.write(1, 1)
    log.mark(2, COMMIT)
    log.write(3, 0)
    assert {entry.producer_id for entry in log.states.entries()} == {1, 3}


def test_a_replay_is_never_rejected_and_drops_only_what_has_no_transaction() -> None:
    states = ProducerStates(max_producers=1)
    for offset, producer_id in enumerate((1, 2)):
        states.apply(Batch(producer_id, is_transactional=True), offset, now_ms=0)
    states.apply(Batch(3), 2, now_ms=0)
    assert {entry.producer_id for entry in states.entries()} == {1, 2}
    assert states.first_undecided_offset == 0


def test_a_limit_below_one_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="max_producers"):
        ProducerStates(max_producers=0)


def test_cleared_state_knows_nothing() -> None:
    log = Log()
    log.write(1, 0)
    log.write(2, 0)
    log.mark(2, COMMIT)
    log.states.clear()
    assert (
        log.states.producer_count,
        log.states.first_unstable_offset,
        log.states.first_undecided_offset,
    ) == (
        0,
        None,
        None,
    )
    assert log.send(99) == NEW


def test_timestamps_are_the_logs_where_the_log_stamps_records() -> None:
    states = ProducerStates()
    states.apply(Batch(max_timestamp=5), 0, now_ms=0, append_time_ms=7777)
    assert states.check(Batch()).timestamp_ms == 7777


# --- against a naive model


class NaiveProducers:
    """All that was ever accepted, in one list; every question is answered by reading it again."""

    def __init__(self) -> None:
        self.history: list[tuple[Batch, int, EndMarker | None]] = []

    def of(self, producer_id: int) -> list[tuple[Batch, int, EndMarker | None]]:
        return [item for item in self.history if item[0].producer_id == producer_id]

    def verdict(self, batch: Batch) -> str | tuple[int, int]:
        mine = self.of(batch.producer_id)
        if not mine:
            return "new"
        epoch = mine[-1][0].producer_epoch
        if batch.producer_epoch < epoch:
            return "fenced"
        data = [(b, offset) for b, offset, marker in mine if marker is None and b.producer_epoch == epoch]
        due = 0
        if batch.producer_epoch == epoch:
            for earlier, offset in data[-5:]:
                if (earlier.base_sequence, earlier.records) == (batch.base_sequence, batch.records):
                    return (offset, offset + batch.records - 1)
            if data:
                due = (data[-1][0].base_sequence + data[-1][0].records) % 2**31
        if batch.base_sequence != due:
            return "out of order"
        if self.open_since(batch.producer_id) is not None and not batch.is_transactional:
            return "not in transaction"
        return "new"

    def open_since(self, producer_id: int) -> int | None:
        since = None
        for batch, offset, marker in self.of(producer_id):
            if marker is not None:
                since = None
            elif since is None and batch.is_transactional:
                since = offset
        return since

    def first_unstable(self, high_watermark: int) -> int | None:
        unstable = []
        for producer_id in {batch.producer_id for batch, _, _ in self.history}:
            since = None
            for batch, offset, marker in self.of(producer_id):
                if marker is not None:
                    if since is not None and offset >= high_watermark:
                        unstable.append(since)
                    since = None
                elif since is None and batch.is_transactional:
                    since = offset
            if since is not None:
                unstable.append(since)
        return min(unstable, default=None)


def verdict_of(states: ProducerStates, batch: Batch) -> str | tuple[int, int]:
    try:
        verdict = states.check(batch)
    except InvalidProducerEpoch:
        return "fenced"
    except OutOfOrderSequence:
        return "out of order"
    except NotInTransaction:
        return "not in transaction"
    return (verdict.base_offset, verdict.last_offset) if verdict.is_duplicate else "new"


BASE = LAST - 4  # near the wrap


@pytest.mark.long
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_history_agrees_with_the_naive_model(data: st.DataObject) -> None:
    states, naive, end, high_watermark = ProducerStates(), NaiveProducers(), 0, 0
    for _ in range(data.draw(st.integers(1, 40), label="steps")):
        producer_id, epoch = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
        kind = data.draw(st.sampled_from(["send", "send", "send", "mark", "watermark", "restart"]))
        if kind == "send":
            entry = states.get(producer_id)
            due = (entry.last_sequence + 1) % 2**31 if entry else BASE
            sequence = (due + data.draw(st.sampled_from([0, 0, 0, 0, 0, -1, -2, -3, -8, 1]))) % 2**31
            batch = Batch(producer_id, epoch, data.draw(st.sampled_from([sequence, sequence, 0])))
            batch = batch._replace(records=data.draw(st.integers(1, 3)), is_transactional=data.draw(st.booleans()))
            expected = naive.verdict(batch)
            assert verdict_of(states, batch) == expected
            if expected == "new":
                states.apply(batch, end, now_ms=0)
                naive.history.append((batch, end, None))
                end += batch.records
        elif kind == "mark":
            batch = Batch(producer_id, epoch, -1, is_transactional=True, is_control=True)
            try:
                states.check_marker(batch, COMMIT)
            except InvalidProducerEpoch:
                assert naive.of(producer_id)[-1][0].producer_epoch > epoch
                continue
            since = naive.open_since(producer_id)
            completed = states.apply(batch, end, now_ms=0, marker=COMMIT)
            assert (completed and (completed.first_offset, completed.last_offset)) == (
                None if since is None else (since, end)
            )
            naive.history.append((batch, end, COMMIT))
            end += 1
        elif kind == "watermark":
            high_watermark = data.draw(st.integers(high_watermark, end))
            states.on_high_watermark(high_watermark)
        else:
            reborn = ProducerStates()
            reborn.load_snapshot(states.encode_snapshot())
            states = reborn
        assert states.first_unstable_offset == naive.first_unstable(high_watermark)
