"""Three hosts, each with a broker and a ZooKeeper, and clients on a fourth. One host vanishes under load.

The hosts are network namespaces with addresses of their own; packets take a millisecond and some are lost, where the
kernel can do that. A host that vanishes takes the leader of partitions and a ZooKeeper with it, and nobody's connection
to it is closed. It stays away until every client has been acknowledged again in every partition.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults import namespaces
from benchmarks.faults.injector import Kind, Target
from benchmarks.faults.namespaces import Hosts, NoNamespaces
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.faults.report import verdict
from benchmarks.faults.run import Plan, run
from tests.demands import lacking

_ROOT = Path(__file__).resolve().parents[2]
_PLAN = Plan(
    faults=2, partitions=3, rate=60, clients=("confluent-kafka", "penstock"),
    only=((Kind.CUT, Target.LEADER), (Kind.CUT, Target.KEEPER)), outlasts=True,
)  # fmt: skip


@pytest.mark.long
def test_a_host_vanishes_with_its_broker_and_its_zookeeper_and_nothing_is_lost(tmp_path: Path) -> None:
    if not namespaces.is_in_a_namespace():
        _run_again_in_a_namespace(tmp_path)
        return
    with PenstockCluster(Hosts(delay_ms=1.0, loss_percent=0.1), tmp_path) as cluster:
        brokers = {number: node.place.address for number, node in cluster.nodes.items()}
        assert len(set(brokers.values())) == 3
        assert [keeper.place.address for keeper in cluster.keepers] == list(brokers.values())
        outcome = run(cluster, _PLAN, tmp_path, lambda _: None)
    assert outcome.is_good, verdict(outcome)
    assert len(outcome.happened) == _PLAN.faults
    for cut in outcome.happened:
        for client, acked_s in outcome.acked_s.items():
            during = [moment for moment in acked_s if cut.began_s < moment < cut.undone_s]
            assert during, f"{client} was acknowledged while a host was away"
            assert outcome.clients[client].unresolved == 0


def _run_again_in_a_namespace(folder: Path) -> None:
    try:
        options = ["-q", "-n0", "-m", "long", "-p", "no:cacheprovider", f"--basetemp={folder / 'inside'}"]
        command = namespaces.in_a_namespace([sys.executable, "-m", "pytest", *options, __file__])
    except NoNamespaces as error:
        lacking("namespaces", f"no hosts can be made here: {error}")
    done = subprocess.run(command, env=namespaces.inside(), cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout, done.stdout[-2000:]
