"""Faults applied to a cluster, one by one."""

from __future__ import annotations

import pytest

from penstock.testing.simulation.cluster import SimulatedCluster
from penstock.testing.simulation.fault_injector import FaultInjector, UnknownHost
from penstock.testing.simulation.faults import (
    SINGLE_BROKER,
    Fault,
    parse_schedule,
)
from penstock.testing.simulation.run import Plan, simulate
from penstock.testing.simulation.scheduler import Scheduler


def test_every_kind_of_fault_by_itself_is_survived() -> None:
    text = " | ".join(f"{1 + number} {kind} broker-0 for 0.4 x 20" for number, kind in enumerate(SINGLE_BROKER))
    report = simulate(1, Plan(schedule=tuple(parse_schedule(text))))
    assert not report.problem, report.problem
    assert sorted(report.faults) == sorted(SINGLE_BROKER)


def test_a_fault_to_a_host_that_does_not_exist_is_rejected() -> None:
    cluster = SimulatedCluster(Scheduler(0), 0, brokers=2, clients=1, settings={})
    with pytest.raises(UnknownHost, match="broker-0, broker-1, client-0"):
        FaultInjector(cluster, 0).schedule([Fault(1.0, "crash", "broker-7")])


def test_a_disk_that_is_slow_for_several_reasons_is_as_slow_as_the_worst_until_all_are_over() -> None:
    scheduler = Scheduler(0)
    cluster = SimulatedCluster(scheduler, 0, brokers=1, clients=0, settings={})
    injector, timing = FaultInjector(cluster, 0), cluster.nodes[0].timing
    injector.schedule(parse_schedule("1 slow-disk broker-0 for 3 x 20 | 2 slow-disk broker-0 for 3 x 50"))
    slowness = []
    for at_s in (1.5, 2.5, 4.5):
        assert not scheduler.run_until(limit_s=at_s)
        assert not injector.is_over
        slowness.append(timing.slowness)
    scheduler.run_until(limit_s=6)
    assert [*slowness, timing.slowness] == [20, 50, 50, 1]
    assert injector.is_over
