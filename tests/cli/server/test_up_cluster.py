"""`penstock up --brokers N`: real brokers, a real ZooKeeper, real signals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.cli.running import CLEAN_MARKER, Running

ANYWHERE = ("--port", "0", "--http-port", "0")


def pid_of(cluster: Running, name: str) -> int:
    (row,) = [line for line in cluster.said if line.strip().startswith(f"{name} ") and " | " not in line]
    return int(row.split()[-2])


def shell_of(cluster: Running) -> Shell:
    return Shell(next(line for line in cluster.said if "Kafka clients" in line).split()[-1])


@pytest.mark.long
def test_a_cluster_heals_itself_stops_in_order_and_is_continued(tmp_path: Path) -> None:
    with Running("up", "--brokers", "2", *ANYWHERE, cwd=tmp_path) as cluster:
        cluster.until("Starting 1 ZooKeeper and 2 brokers")
        cluster.until("Ctrl-C to stop")
        shell = shell_of(cluster)
        listed = shell.json("brokers")["brokers"]
        assert [(each["id"], each["online"]) for each in listed] == [(0, True), (1, True)]
        shell.done("topics", "create", "views", "-p", 2)
        shell.done("produce", "views", stdin="one\ntwo\n")
        os.kill(pid_of(cluster, "broker 1"), signal.SIGKILL)
        assert "restarting in " in cluster.until("was killed by SIGKILL")
        cluster.until("broker 1  | broker started: id=1")
        assert cluster.stop(signal.SIGINT) == 0
    data = tmp_path / "penstock-data"
    assert cluster.said[-1] == f"Stopped. The data is kept in {data}"
    assert all((data / "brokers" / str(broker) / CLEAN_MARKER).exists() for broker in range(2))
    with Running("up", *ANYWHERE, cwd=tmp_path) as cluster:
        cluster.until("Starting 1 ZooKeeper and 2 brokers")
        cluster.until("Ctrl-C to stop")
        assert sorted(shell_of(cluster).lines("consume", "views", "--from-beginning", "--exit")) == ["one", "two"]
        with Running("up", *ANYWHERE, cwd=tmp_path) as second:
            assert second.end() == 1
        assert "in use by another `penstock up`" in second.text
        assert cluster.stop(signal.SIGTERM) == 0


@pytest.mark.long
def test_workers_are_a_host_with_one_rack(tmp_path: Path) -> None:
    with Running("up", "--workers", "2", *ANYWHERE, cwd=tmp_path) as cluster:
        cluster.until("Ctrl-C to stop")
        shell = shell_of(cluster)
        assert [(each["id"], each["rack"]) for each in shell.json("brokers")["brokers"]] == [
            (0, "host-0"), (1, "host-0"),
        ]  # fmt: skip
        shell.done("topics", "create", "views", "-p", 4)
        (topic,) = shell.json("topics", "describe", "views")["topics"]
        assert sorted(part["replicas"] for part in topic["partitions"]) == [[0], [0], [1], [1]], "both work, none twice"
        _moved_and_back(shell, tmp_path)
        assert cluster.stop(signal.SIGINT) == 0


def _moved_and_back(shell: Shell, folder: Path) -> None:
    """What the commands ask for is done by this cluster, too."""
    plan, back = folder / "plan.json", folder / "back.json"
    shell.done("reassign", "plan", "views", "-r", 2, "-o", plan, "--rollback", back)
    assert shell.json("reassign", "start", plan, "--wait", "--timeout", "30s")["moving"] == 0
    entries = json.loads(plan.read_text())["partitions"]
    plan.write_text(json.dumps({"version": 1, "partitions": [{**each, "replicas": [1, 0]} for each in entries]}))
    shell.done("reassign", "start", plan, "--wait", "--timeout", "30s")
    assert {row["leader"] for row in shell.json("elect", "preferred", "views")["elected"]} == {1}
    assert shell.json("reassign", "start", back, "--wait", "--timeout", "30s")["moving"] == 0
