"""A leader is cut off from the other brokers, from ZooKeeper and from all clients, by a network that loses its packets.

Connections stay open and say nothing, unlike those of a process that was killed. The cut lasts until every client has
been acknowledged again in every partition, so others lead by then; it is not a matter of seconds. The servers stand in
network namespaces, so the test runs itself again inside one (`unshare`, no privilege beyond a user namespace).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.faults import namespaces
from benchmarks.faults.injector import Kind, Target
from benchmarks.faults.namespaces import NoNamespaces
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.faults.report import verdict
from benchmarks.faults.run import Plan, run
from tests.demands import lacking

_ROOT = Path(__file__).resolve().parents[2]
_PLAN = Plan(
    faults=1, partitions=2, rate=60, clients=("confluent-kafka", "penstock"), only=((Kind.CUT, Target.LEADER),),
    outlasts=True,
)  # fmt: skip


def test_a_leader_is_cut_off_under_load_another_takes_over_and_nothing_is_lost(tmp_path: Path) -> None:
    if not namespaces.is_in_a_namespace():
        _run_again_in_a_namespace(tmp_path)
        return
    with PenstockCluster(namespaces.network(with_cuts=True), tmp_path) as cluster:
        outcome = run(cluster, _PLAN, tmp_path, lambda _: None)
        view = cluster.view([_PLAN.topic])
    assert outcome.is_good, verdict(outcome)
    [cut] = outcome.happened
    assert cut.led, "it led partitions when it was cut off"
    epochs = [view.partitions[_PLAN.topic, partition].leader_epoch for partition in cut.led]
    assert min(epochs) > 0, "others have led them since"
    for client, acked_s in outcome.acked_s.items():
        during = [moment for moment in acked_s if cut.began_s < moment < cut.undone_s]
        assert during, f"{client} was acknowledged while the leader was cut off"
        assert outcome.clients[client].unresolved == 0


def _run_again_in_a_namespace(folder: Path) -> None:
    try:
        # In a folder of its own: pytest would tidy up those of the runs around it.
        options = ["-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={folder / 'inside'}"]
        command = namespaces.in_a_namespace([sys.executable, "-m", "pytest", *options, __file__])
    except NoNamespaces as error:
        lacking("namespaces", f"no network can be cut here: {error}")
    done = subprocess.run(command, env=namespaces.inside(), cwd=_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "1 passed" in done.stdout, done.stdout[-2000:]
