"""Whole runs of a cluster: real brokers, controllers, coordinators, clients under faults."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.faults import DISK_LOST, KINDS, OF_ALL, WITH_PEER, parse_schedule
from penstock.testing.simulation.run import Plan, Report, simulate

CLUSTER = Plan(brokers=3)


def scheduled(text: str) -> Plan:
    return Plan(brokers=3, schedule=tuple(parse_schedule(text)))


def require_sound(report: Report) -> None:
    assert not report.problem, "\n".join([*report.last_lines, report.schedule, report.problem])


@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_loses_nothing_acknowledged_and_heals(seed: int) -> None:
    report = simulate(seed, CLUSTER)
    require_sound(report)
    assert report.acknowledged > 100
    assert report.faults.total() > 3
    assert report.checks > 5_000


def test_a_reader_who_meets_a_leader_of_yesterday_looks_again_before_he_misses_anything() -> None:
    """A leader that was paused says what it knows until it has heard of the next one. Nothing is lost by that."""
    assert not simulate(3736, CLUSTER).problem


def test_a_header_that_is_damaged_where_no_start_looks_is_no_complaint() -> None:
    """The machine had been stopped in good order before; whoever reads that batch finds out."""
    assert not simulate(7751, CLUSTER).problem


def test_a_commit_of_an_old_generation_that_is_refused_late_does_not_cost_the_member_its_partitions() -> None:
    """It had been tried again until the group had met; the last offsets were not committed for it."""
    assert not simulate(8328, CLUSTER).problem


def test_a_seed_of_a_cluster_is_the_same_run_every_time() -> None:
    assert simulate(4, CLUSTER) == simulate(4, CLUSTER)


def test_every_kind_of_fault_by_itself_is_survived_by_a_cluster() -> None:
    parts = []
    for number, kind in enumerate(KINDS):
        host = "all" if kind in OF_ALL else "broker-3" if kind == "add" else f"broker-{number % 3}"
        host = "broker-2" if kind in DISK_LOST else host  # what is acknowledged is on two disks: only one may be lost
        peer = f" > broker-{(number + 1) % 3}" if kind in WITH_PEER else ""
        parts.append(f"{2 + 2 * number} {kind} {host}{peer} for 0.5 x 20")
    report = simulate(1, scheduled(" | ".join(parts)))
    require_sound(report)
    assert sorted(report.faults) == sorted(KINDS)


def test_all_brokers_lose_power_at_once_again_and_again() -> None:
    report = simulate(2, scheduled("3 blackout all for 0.3 | 6 blackout all for 0.1 | 9 blackout all for 1"))
    require_sound(report)
    assert report.faults["blackout"] == 3


def test_a_rolling_restart_fails_no_send() -> None:
    report = simulate(3, scheduled("4 stop broker-0 for 2 | 9 stop broker-1 for 2 | 14 stop broker-2 for 2"))
    require_sound(report)
    assert report.faults["stop"] == 3
    assert report.given_up == 0


def test_nothing_is_given_up_for_lost_that_a_broker_comes_back_with() -> None:
    # The one that is in sync is cut off, and taken for dead, until the faults are over.
    faults = "2.49 add broker-3 | 3.582 sync-error broker-2 for 0.006 | 3.889 crash broker-1 for 0.089 | "
    faults += (
        "3.959 power broker-2 for 0.002 | 4.323 cut broker-0 for 1.169 | 5.091 slow-disk broker-0 for 0.909 x 58.8"
    )
    before = "0.541 clock broker-1 for 2.489 x 17.1 | 1.331 pause broker-1 for 0.014 | "
    report = simulate(20205, scheduled(before + faults))
    require_sound(report)
    assert report.changes["unclean election"] == 0


# The third is long out of sync when a disk is damaged, and then the one that has everything is gone for a while.
_ONE_IS_DAMAGED = "2.5 crash broker-2 for 8 | 8.5 {} broker-1 for 0.3 | 8.8 crash broker-0 for 6"


@pytest.mark.parametrize(("kind", "seed"), [("header-flip", 1), ("bit-flip", 2)])
def test_a_replica_that_finds_itself_damaged_leads_with_nothing_less(kind: str, seed: int) -> None:
    report = simulate(seed, scheduled(_ONE_IS_DAMAGED.format(kind)))
    require_sound(report)
    assert report.faults[kind] == 1
