"""The protocol of the ledger in a model of a cluster and of Spark: every crash, every order, from seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import pytest
from tests.spark.ledger_model import QUERY, FakeBrokers, World, all_rows

from penstock.client.transactions import PreparedTransaction
from penstock.spark import ledger
from penstock.spark.ledger import Ledger, LedgerRecord, Slots, generation_of

SEEDS = 200
MANY = 600
BATCHES = 4
DRIVERS = 4


def played(seed: int, **settings: float | bool) -> World:
    world = World(seed, **settings)  # type: ignore[arg-type]
    world.plays(BATCHES, DRIVERS)
    return world


def fault(world: World) -> str | None:
    """What is wrong with the outcome."""
    if world.bugs:
        return f"an actor failed: {world.bugs[0]!r}"
    if len(world.committed_batches) != BATCHES:
        return f"only batches {sorted(world.committed_batches)} were committed; errors {world.errors[-3:]}"
    visible = world.visible()
    doubled = sorted(row for row, count in visible.items() if count > 1)
    missing = sorted(set(all_rows(BATCHES)) - set(visible))
    if doubled:
        return f"visible twice: {doubled}"
    if missing and not world.lost:
        return f"missing and not reported: {missing}"
    if world.two_phase and (world.lost or missing):
        return f"lost in spite of two-phase commit: {missing}"
    return None


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock.spark")


def check(seeds: Iterable[int], **settings: float | bool) -> None:
    for seed in seeds:
        assert fault(played(seed, **settings)) is None, seed


def test_with_two_phase_commit_every_row_is_visible_once_whatever_dies() -> None:
    check(range(SEEDS))


def test_with_time_outs_no_row_is_doubled_or_lost_in_silence() -> None:
    check(range(SEEDS), two_phase=False, timeouts=0.01)


@pytest.mark.long
@pytest.mark.parametrize("chaos", [0.02, 0.05, 0.1])
def test_many_seeds(chaos: float) -> None:
    check(range(SEEDS, MANY), chaos=chaos)
    check(range(SEEDS, MANY), two_phase=False, timeouts=0.02, chaos=chaos)


def test_the_model_reaches_the_cases_it_is_there_for() -> None:
    """Zombies are superseded, rows are lost to time-outs and said to be, and transactions are left and swept."""
    kinds: set[str] = set()
    for seed in range(100):
        world = played(seed, two_phase=False, timeouts=0.02, chaos=0.08)
        kinds |= {type(error).__name__ for error in world.errors}
    assert {"Superseded", "MarginCrossed", "RowsLost", "TransactionAborted"} <= kinds


@pytest.mark.long
def test_no_transaction_is_left_open_when_the_last_driver_is_done() -> None:
    for seed in range(SEEDS):
        world = played(seed)
        # A late attempt may outlive the last sweep; the next batch of the query finds what it left.
        world.continues(BATCHES + 1)
        left = [name for name, state in world.ids.items() if state.is_open and generation_of(name, QUERY)]
        assert not left, seed


# ---------------------------------------------------------------------------------------------- mutations


def takes_over_without_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_over(self: FakeBrokers, query_id: str) -> None:
        self._reach()
        self._epoch = self._world.ledger_epoch
        self._answer()

    monkeypatch.setattr(FakeBrokers, "take_over", take_over)


def trusts_a_doubtful_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(self: Ledger, record: LedgerRecord) -> bool:
        try:
            self._brokers.write(record)
        except ledger.LedgerInDoubt:
            pass
        except ledger.LedgerFenced:
            self._is_held = False
            return False
        self._record, self._is_held = record, True
        return True

    monkeypatch.setattr(Ledger, "_written", written)


def aborts_what_was_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(self: Ledger, run_id: str, batch_id: int, transactions: list[PreparedTransaction]) -> bool:
        self._end_losers(transactions)
        return True

    monkeypatch.setattr(Ledger, "abort", abort)


def sweeps_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep_all(record: LedgerRecord, transaction: PreparedTransaction, *, batch_is_over: bool) -> bool:
        return True

    monkeypatch.setattr(ledger, "can_never_win", sweep_all)


def uses_an_id_twice_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slots, "take", lambda self, _: ledger.transactional_id(QUERY, self.generation, self._token, 0))


def shares_ids_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: Slots, batch_id: int) -> str:
        return ledger.transactional_id(QUERY, 1, "0", batch_id)

    monkeypatch.setattr(Slots, "take", take)
    monkeypatch.setattr(ledger, "generation_of", lambda name, query: 1)


def forgets_the_decision_of_the_owner_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(self: LedgerRecord, run_id: str) -> LedgerRecord:
        return LedgerRecord(self.query_id, run_id, self.generation + 1)

    monkeypatch.setattr(LedgerRecord, "taken_over_by", taken)


def ignores_aborted_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "_lost", lambda self, record: self._brokers.end(
        [each.transaction for each in record.winners], commit=True) and [])  # fmt: skip


MUTATIONS = [
    takes_over_without_fencing,
    trusts_a_doubtful_write,
    aborts_what_was_decided,
    sweeps_winners,
    uses_an_id_twice_in_a_batch,
    shares_ids_among_processes,
    forgets_the_decision_of_the_owner_before,
    ignores_aborted_winners,
]


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_rule_is_needed(mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutation(monkeypatch)
    for seed in range(MANY):
        found = fault(played(seed)) or fault(played(seed, two_phase=False, timeouts=0.02))
        if found is not None:
            return
    pytest.fail("the model does not notice")
