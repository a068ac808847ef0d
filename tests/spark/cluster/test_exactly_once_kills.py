"""Drivers, executors and our brokers, one or one of three, are killed while a stream writes exactly once.

PENSTOCK_KILLS=20 PENSTOCK_KILLS_SEED=7 make test-long ARGS="-k kills" is the long campaign.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.ports import free_port
from tests.spark.cluster.kills import Kills, Server, kills_wanted, seed
from tests.spark.cluster.standalone import Standalone

BROKER = """
import signal, sys
from penstock.testing.embedded_broker import EmbeddedBroker
settings = {"transaction.two.phase.commit.enable": sys.argv[3]}
EmbeddedBroker(sys.argv[1], port=int(sys.argv[2]), settings=settings).start()
print("up", flush=True)
signal.pause()
"""


class BrokerProcess:
    """Our broker in a process of its own, always at the same port."""

    def __init__(self, folder: Path, *, two_phase_commit: bool) -> None:
        self._port = free_port()
        self._arguments = [str(folder), str(self._port), "true" if two_phase_commit else "false"]
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def launch(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, *self._arguments], stdout=subprocess.PIPE, text=True
        )

    def wait_until_listening(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            assert output.readline() == "up\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None


THREE_BROKERS = {
    "zookeeper.session.timeout.ms": "4000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
}


class ClusterProcesses:
    """Three brokers, of which each is killed in its turn."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self._cluster = cluster
        self._victims = itertools.cycle(cluster.nodes.values())
        self._victim = next(self._victims)

    @property
    def address(self) -> str:
        return ",".join(self._cluster.bootstrap)

    def kill(self) -> None:
        self._victim = next(self._victims)
        self._victim.kill()

    def launch(self) -> None:
        self._victim.launch()

    def wait_until_listening(self) -> None:
        self._victim.wait_until_up()
        self._cluster.wait_until_joined()


@contextmanager
def brokers(kind: str, folder: Path) -> Iterator[Server]:
    if kind == "three brokers":
        with PenstockCluster(Loopback(), folder, THREE_BROKERS) as cluster:
            assert isinstance(cluster, PenstockCluster)
            yield ClusterProcesses(cluster)
        return
    server = BrokerProcess(folder, two_phase_commit=kind == "two-phase commit")
    server.launch()
    try:
        server.wait_until_listening()
        yield server
    finally:
        server.kill()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["two-phase commit", "time-outs", "three brokers"])
def test_every_row_is_visible_once_whatever_is_killed(standalone: Standalone, tmp_path: Path, kind: str) -> None:
    with brokers(kind, tmp_path / "brokers") as server:
        kills = Kills(server, standalone, tmp_path, seed())
        kills.run(kills_wanted())
    assert kills.killed.total() == kills_wanted()
