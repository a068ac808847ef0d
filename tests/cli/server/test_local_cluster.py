"""A cluster on this machine: what it is made of, what is continued, what is rejected; and workers of a host."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.logs import run
from tests.ports import free_port

from penstock.broker.settings import load_settings
from penstock.cli.output import CommandError
from penstock.cli.server import local_cluster
from penstock.cli.server.foreground import Program
from penstock.cli.server.local_cluster import (
    FolderInUse,
    LocalCluster,
    ZooKeeperPorts,
    locked,
    open_cluster,
    save_state,
    worker_programs,
    worker_settings,
)


def opened(folder: Path, **options: int | None) -> LocalCluster:
    wanted: dict[str, int | None] = {"hosts": None, "workers": None, "zookeepers": None, **options}
    return open_cluster(
        str(folder), hosts=wanted["hosts"], workers=wanted["workers"], zookeepers=wanted["zookeepers"],
        port=wanted.get("port") or 0, http_port=wanted.get("http_port") or 0,
    )  # fmt: skip


def made(folder: Path, **options: int | None) -> LocalCluster:
    """One that was there before."""
    cluster = opened(folder, **options)
    folder.mkdir(exist_ok=True)
    save_state(cluster)
    return cluster


def settings_of(program: Program) -> dict[str, str]:
    words = program.command
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--set")


def option_of(program: Program, name: str) -> str:
    return program.command[program.command.index(name) + 1]


# --- what it is made of


def test_brokers_have_ports_from_the_first_on_and_folders_of_their_own(tmp_path: Path) -> None:
    cluster = opened(tmp_path, hosts=3, port=19_092, http_port=18_092)
    assert cluster.bootstrap == "127.0.0.1:19092,127.0.0.1:19093,127.0.0.1:19094"
    zookeepers, brokers = cluster.programs("warning")
    assert [program.name for program in (*zookeepers, *brokers)] == ["zookeeper", "broker 0", "broker 1", "broker 2"]
    last = brokers[2]
    assert option_of(last, "--listen") == "127.0.0.1:19094"
    assert option_of(last, "--http-port") == "18094"
    assert option_of(last, "--data-dir") == str(tmp_path / "brokers" / "2")
    settings = settings_of(last)
    assert settings["zookeeper.connect"] == f"127.0.0.1:{option_of(zookeepers[0], '--port')}"
    assert (settings["broker.id"], settings["default.replication.factor"], settings["min.insync.replicas"]) == (
        "2", "3", "2",
    )  # fmt: skip
    assert "broker.rack" not in settings


@pytest.mark.parametrize(("hosts", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (5, "3", "2")])
def test_replicas_go_by_the_hosts(tmp_path: Path, hosts: int, replicas: str, in_sync: str) -> None:
    settings = settings_of(opened(tmp_path, hosts=hosts, workers=2).programs("warning")[1][0])
    assert settings["default.replication.factor"] == settings["offsets.topic.replication.factor"] == replicas
    assert settings["min.insync.replicas"] == settings["transaction.state.log.min.isr"] == in_sync


def test_workers_of_a_host_share_its_rack(tmp_path: Path) -> None:
    brokers = opened(tmp_path, hosts=2, workers=3).programs("warning")[1]
    racks = [settings_of(program)["broker.rack"] for program in brokers]
    assert racks == ["host-0"] * 3 + ["host-1"] * 3
    assert [settings_of(program)["broker.id"] for program in brokers] == list("012345")


def test_an_ensemble_knows_all_of_its_servers(tmp_path: Path) -> None:
    cluster = opened(tmp_path, hosts=1, zookeepers=3)
    zookeepers, (broker,) = cluster.programs("warning")
    assert [option_of(program, "--id") for program in zookeepers] == ["1", "2", "3"]
    assert len({option_of(program, "--servers") for program in zookeepers}) == 1
    assert len(settings_of(broker)["zookeeper.connect"].split(",")) == 3
    ports = [port for each in cluster.zookeepers for port in (each.client, each.peer, each.election)]
    assert len(set(ports)) == 9


def test_a_broker_is_heard_when_it_serves_whatever_is_shown_of_it(tmp_path: Path) -> None:
    cluster = opened(tmp_path, hosts=1)
    assert [option_of(cluster.programs(level)[1][0], "--log-level") for level in ("error", "info", "debug")] == [
        "info", "info", "debug",
    ]  # fmt: skip


# --- what is there is continued


def test_without_numbers_what_is_there_is_continued(tmp_path: Path) -> None:
    before = made(tmp_path, hosts=2, workers=2, zookeepers=3)
    after = opened(tmp_path)
    assert (after.hosts, after.workers, after.zookeepers) == (2, 2, before.zookeepers)


def test_brokers_may_be_added(tmp_path: Path) -> None:
    made(tmp_path, hosts=1)
    assert [broker.id for broker in opened(tmp_path, hosts=3).brokers] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "option"),
    [({"hosts": 1}, "--brokers 2"), ({"workers": 2}, "--workers 1"), ({"zookeepers": 3}, "--zookeepers 1")],
)
def test_fewer_brokers_than_before_are_rejected(tmp_path: Path, options: dict[str, int], option: str) -> None:
    made(tmp_path, hosts=2)
    with pytest.raises(CommandError, match=option):
        opened(tmp_path, **options)


def test_a_broker_that_stood_alone_is_not_made_a_cluster(tmp_path: Path) -> None:
    (tmp_path / ".metadata").mkdir()
    result = run("up", "--brokers", "3", "--data-dir", tmp_path)
    assert result.exit_code == 2
    assert "holds the data of a single broker" in result.stderr


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9, "hosts": 1, "workers": 1, "zookeepers": []}'])
def test_a_damaged_memory_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(CommandError, match=r"cluster\.json"):
        opened(tmp_path, hosts=3)


def test_two_cannot_have_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "new"), pytest.raises(FolderInUse, match="in use"), locked(tmp_path / "new"):
        pass
    with locked(tmp_path / "new"):
        pass


# --- ports


def test_zookeeper_keeps_its_ports_unless_they_are_in_use(tmp_path: Path) -> None:
    before = made(tmp_path, hosts=1).zookeepers
    assert opened(tmp_path).zookeepers == before
    with socket.create_server(("127.0.0.1", before[0].client)):
        after = opened(tmp_path).zookeepers
    assert after[0].client != before[0].client


def test_zookeeper_s_usual_port_is_taken_if_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(local_cluster, "_ZOOKEEPER_PORT", port)
    with socket.create_server(("127.0.0.1", port)):
        assert opened(tmp_path, hosts=1).zookeepers[0].client != port
    assert opened(tmp_path, hosts=1).zookeepers[0].client == port


@pytest.mark.parametrize(("port", "http_port"), [(65_534, 0), (9_092, 65_534), (8_090, 8_092), (8_092, 8_092)])
def test_overlapping_ports_are_rejected(tmp_path: Path, port: int, http_port: int) -> None:
    with pytest.raises(CommandError, match="overlap, or go beyond"):
        opened(tmp_path, hosts=3, port=port, http_port=http_port)


def test_a_port_in_use_is_named_with_a_range_that_is_free(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("up", "--brokers", "2", "--port", str(port - 1), "--http-port", "0", "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} is in use" in result.stderr or f"127.0.0.1:{port - 1} is in use" in result.stderr
    assert "--port " in result.stderr
    assert not (tmp_path / "cluster.json").exists()


def test_a_missing_java_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("up", "--brokers", "3", "--data-dir", tmp_path / "data")
    assert result.exit_code == 1
    assert "A cluster needs ZooKeeper, which cannot run here: JAVA_HOME is" in result.stderr
    assert "`penstock up` alone runs a single broker without ZooKeeper" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_broker_alone_does_not_wait_for_what_a_cluster_needs() -> None:
    code = "import sys, penstock.cli.server.up; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    cluster = {
        "asyncio",
        "msgspec",
        *(f"penstock.cli.{name}" for name in ("up_cluster", "local_cluster", "supervising")),
    }
    assert cluster & set(loaded) == set()


# --- workers of a host


def test_workers_have_what_their_host_was_given_each_a_number_further() -> None:
    given = [
        "zookeeper.connect=zk:2181", "broker.id=10", "listeners=PLAINTEXT://:9092", "log.dirs=/d1,/d2",
        "advertised.listeners=PLAINTEXT://b1.example.com:9092", "num.partitions=8",
    ]  # fmt: skip
    settings = load_settings(None, given, host_name=lambda: "b1").settings
    assert worker_settings(settings, 2) == {
        "broker.id": "12",
        "broker.rack": "b1",
        "listeners": "PLAINTEXT://:9094",
        "log.dirs": "/d1/brokers/12,/d2/brokers/12",
        "advertised.listeners": "PLAINTEXT://b1.example.com:9094",
    }
    programs = worker_programs(
        settings, 3, config="a.properties", assignments=given, http_host="127.0.0.1", http_port=8092, log_level="error"
    )
    assert [program.name for program in programs] == ["broker 10", "broker 11", "broker 12"]
    own = settings_of(programs[1])
    assert (own["broker.id"], own["num.partitions"], own["zookeeper.connect"]) == ("11", "8", "zk:2181")
    assert option_of(programs[1], "--http-port") == "8093"
    assert option_of(programs[1], "--config") == "a.properties"
    again = load_settings(None, [f"{name}={value}" for name, value in own.items()]).settings
    assert (again.broker_id, again.listeners[0].port, again.broker_rack) == (11, 9093, "b1")


def test_a_rack_that_was_given_is_kept_and_any_port_stays_any() -> None:
    given = ["zookeeper.connect=zk", "broker.rack=east", "listeners=PLAINTEXT://127.0.0.1:0", "node.id=4"]
    own = worker_settings(load_settings(None, given).settings, 1)
    assert (own["broker.rack"], own["listeners"], own["broker.id"], own["node.id"]) == (
        "east", "PLAINTEXT://127.0.0.1:0", "5", "5",
    )  # fmt: skip


def test_workers_without_a_zookeeper_are_rejected_with_both_solutions(tmp_path: Path) -> None:
    result = run("server", "start", "--workers", "4", "--data-dir", tmp_path / "data")
    assert result.exit_code == 2
    assert "zookeeper.connect" in result.stderr
    assert "penstock up --workers 4" in result.stderr
    assert not (tmp_path / "data").exists()


def test_ports_are_remembered_as_they_were(tmp_path: Path) -> None:
    made(tmp_path, hosts=1, zookeepers=3)
    first = opened(tmp_path).zookeepers[0]
    assert isinstance(first, ZooKeeperPorts)
    assert f'"client": {first.client}' in (tmp_path / "cluster.json").read_text()
