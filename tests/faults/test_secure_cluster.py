"""Three brokers with TLS, logins and ACLs, for clients and between brokers, lose brokers under load.

A short run of what `make bench ARGS="faults --secure"` does at length, with the same verdict. Every client has a user
of its own that may use its topic and its group and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults.access import OURS, Access
from benchmarks.faults.cluster import NoAnswer
from benchmarks.faults.injector import Kind, Target
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.faults.report import verdict
from benchmarks.faults.run import Plan, run

from penstock import Admin
from penstock.client.errors import PenstockError

_CLIENTS = ("confluent-kafka", "penstock")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    secure = PenstockCluster(Loopback(), tmp_path_factory.mktemp("cluster"), is_secure=True)
    with secure:
        yield secure


@pytest.mark.long
def test_a_leader_and_the_controller_are_killed_and_nothing_is_lost(cluster: PenstockCluster, tmp_path: Path) -> None:
    only = ((Kind.KILL, Target.LEADER), (Kind.KILL, Target.CONTROLLER))
    plan = Plan(faults=2, seed=1, partitions=3, rate=90, clients=_CLIENTS, topic="hit", only=only)
    outcome = run(cluster, plan, tmp_path, lambda _: None)
    assert outcome.is_good, verdict(outcome)
    assert len(outcome.happened) == 2
    assert all(each.acked and each.read for each in outcome.clients.values())


@pytest.mark.long
def test_unauthenticated_clients_and_users_without_an_acl_get_nothing(cluster: PenstockCluster) -> None:
    cluster.make_topic("mine", 1, {})
    cluster.make_topic("hidden", 1, {})
    mine = cluster.admit("penstock", "mine", "readers")
    node = cluster.nodes[1]
    assert ("mine", 0) in node.view(["mine"], mine).partitions
    with pytest.raises(NoAnswer, match="error 29"):  # TOPIC_AUTHORIZATION_FAILED
        node.view(["hidden"], mine)
    with pytest.raises(NoAnswer):
        node.view(["mine"], Access("nobody", "a guess", mine.authority))
    with pytest.raises(NoAnswer):
        node.view(["mine"], Access())
    with Admin(cluster.bootstrap, **mine.options(OURS)) as admin, pytest.raises(PenstockError):
        admin.describe_acls()
