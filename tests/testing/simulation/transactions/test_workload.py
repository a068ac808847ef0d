"""Runs with transactional clients, in both transaction versions."""

from __future__ import annotations

from collections import Counter

import pytest

from penstock.coordination.transactions.transaction import Transaction
from penstock.testing.simulation.run import Plan, simulate
from penstock.testing.simulation.transactions.faults import LATE_REQUESTS
from penstock.testing.simulation.transactions.workload import (
    FORGOTTEN,
    KILLS,
    ZOMBIES,
    forgettable,
    has_expiry,
    is_drawn,
    version_of,
)

QUIET = Plan(brokers=3, schedule=())
SEEDS = {version: [seed for seed in range(60) if is_drawn(seed) and version_of(seed) == version] for version in (1, 2)}


def test_a_third_of_the_seeds_has_transactions_half_of_them_in_each_version() -> None:
    drawn = [version_of(seed) for seed in range(900) if is_drawn(seed)]
    assert 200 < len(drawn) < 400
    assert 0.4 < drawn.count(2) / len(drawn) < 0.6


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "plan", [QUIET, Plan(brokers=1, schedule=()), Plan(brokers=3)], ids=["quiet", "alone", "faults"]
)
def test_transactions_are_visible_as_a_whole_or_not_at_all(plan: Plan, version: int) -> None:
    reports = [simulate(seed, plan) for seed in SEEDS[version][:2]]
    for report in reports:
        assert not report.problem, "\n".join([*report.last_lines, report.schedule, report.problem])
    done = sum((report.changes for report in reports), Counter())
    assert done["transactions: was committed"] > 10
    for kind in ("transactions: was aborted", KILLS, LATE_REQUESTS, ZOMBIES):
        assert done[kind] > 0, kind


@pytest.mark.parametrize("version", [1, 2])
def test_ids_that_are_not_used_are_forgotten_and_their_producers_continue(version: int) -> None:
    seed = next(seed for seed in SEEDS[version] if has_expiry(seed))
    report = simulate(seed, Plan(brokers=1, schedule=()))
    assert not report.problem, "\n".join([*report.last_lines, report.problem])
    assert report.changes[FORGOTTEN] >= 4, "one of each client at least"


def test_an_id_that_a_clock_in_the_future_stamped_is_not_expected_to_be_forgotten_yet() -> None:
    stamped = {"now": 1_000, "before": 400, "by a clock that was ahead": 48_000}
    known = [(name, Transaction(producer_id=1, timeout_ms=600, update_ms=ms)) for name, ms in stamped.items()]
    assert list(forgettable(known, now_ms=1_000)) == ["now", "before"]
    assert list(forgettable(known, now_ms=48_000)) == list(stamped)


@pytest.mark.long
def test_a_seed_with_transactions_is_the_same_run_again() -> None:
    first, again = (simulate(SEEDS[2][0], Plan(brokers=3)) for _ in range(2))
    assert first.trace_hash == again.trace_hash
