"""Three brokers of ours under three real ZooKeepers, with clients by other people and ours, are killed and restarted.

A short run of what `make bench ARGS=faults` does at length: every send is acknowledged or fails, nothing acknowledged
is lost, nothing is there twice or out of order, every group reads everything, no reader starts below a commit that was
acknowledged, and every replica has its files, the same in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults.cluster import Cluster
from benchmarks.faults.injector import DISKS, Kind
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import WITH_DISKS, PenstockCluster
from benchmarks.faults.report import verdict
from benchmarks.faults.run import Plan, run

_CLIENTS = ("confluent-kafka", "penstock")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with PenstockCluster(Loopback(), tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.mark.long
def test_leaders_and_the_controller_die_and_freeze_under_load_and_nothing_is_lost(
    cluster: Cluster, tmp_path: Path
) -> None:
    plan = Plan(faults=4, seed=25, partitions=3, rate=90, clients=_CLIENTS, topic="hit")
    outcome = run(cluster, plan, tmp_path, lambda _: None)
    assert outcome.is_good, verdict(outcome)
    assert len(outcome.happened) == 4
    killed = [gap for gap in outcome.gaps if gap.happened.fault.kind is Kind.KILL and gap.happened.led]
    assert min(gap.gap_s - gap.happened.fault.hold_s for gap in killed) < 0, "others lead before the dead one is back"


@pytest.mark.long
def test_a_rolling_restart_fails_no_send_and_raises_no_error_in_a_reader(cluster: Cluster, tmp_path: Path) -> None:
    plan = Plan(partitions=3, rate=90, clients=_CLIENTS, rolling_rounds=1, topic="rolled")
    outcome = run(cluster, plan, tmp_path, lambda _: None)
    assert outcome.is_good, verdict(outcome)
    assert [each.victim for each in outcome.happened] == ["broker 1", "broker 2", "broker 3"]


@pytest.mark.long
def test_disks_fail_and_are_replaced_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    """The brokers stay; the injector fails the run if one does not, and waits until other replicas are in sync."""
    plan = Plan(faults=2, partitions=4, rate=60, clients=_CLIENTS, only=DISKS[:2], outlasts=True)
    with PenstockCluster(Loopback(), tmp_path, WITH_DISKS, disks=2) as cluster:
        outcome = run(cluster, plan, tmp_path, lambda _: None)
    assert outcome.is_good, verdict(outcome)
    assert {each.fault.kind for each in outcome.happened} == {Kind.DISK}
    for fault in outcome.happened:
        for client, acked_s in outcome.acked_s.items():
            assert any(fault.began_s < moment < fault.undone_s for moment in acked_s), f"{client} was acknowledged"
