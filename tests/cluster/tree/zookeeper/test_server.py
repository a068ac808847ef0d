"""Starting a real ZooKeeper: from what, with which settings, and what is said when it cannot."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import create_server

import pytest
from tests.ports import free_port, free_ports
from tests.timeouts import PATIENCE_S, until

from penstock.cluster.errors import ZooKeeperNotStarted
from penstock.cluster.tree.zookeeper.ensemble import Condition, Health, ServerAddress, four_letters, health_of
from penstock.cluster.tree.zookeeper.server import (
    JAR_NAMES,
    Member,
    ServerSettings,
    ZooKeeperProcess,
    config_text,
    find_jars,
    parse_members,
)
from penstock.testing.zookeeper import ZooKeeperServer

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +\S+: .*")


# --- the class path


def test_jars_of_the_package_suffice() -> None:
    jars = find_jars()
    assert len(jars.paths) == len(JAR_NAMES)
    assert all(Path(path).is_file() for path in jars.paths)
    assert re.fullmatch(r"3\.\d+\.\d+", jars.version)


def test_newest_of_several_versions_is_taken_and_no_other_jar(tmp_path: Path) -> None:
    files = [f"{name}-1.9.0.jar" for name in JAR_NAMES]
    for file in (*files, "zookeeper-1.10.0.jar", "zookeeper-jute-1.2.jar", "zookeeper-contrib.jar"):
        (tmp_path / file).touch()
    names = [Path(path).name for path in find_jars(str(tmp_path)).paths]
    assert names == ["zookeeper-1.10.0.jar", *files[1:]]


def test_missing_jar_is_reported_with_what_to_do(tmp_path: Path) -> None:
    for name in JAR_NAMES:
        if name != "zookeeper-jute":
            (tmp_path / f"{name}-1.0.jar").touch()
    with pytest.raises(ZooKeeperNotStarted, match="jars zookeeper-jute are not in") as missing:
        find_jars(str(tmp_path))
    assert 'pip install "penstock[spark]"' in missing.value.advice


def test_without_pyspark_the_error_says_where_the_jars_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ZooKeeperNotStarted, match="are in the pyspark package, which is not installed"):
        find_jars()


def test_without_a_java_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperNotStarted, match="which has no working bin/java"):
        ZooKeeperProcess(ServerSettings(str(tmp_path), 2181))


# --- settings


def test_members_are_read_as_they_are_written() -> None:
    assert parse_members("1=zk1:2888:3888, 2=[::1]:2889:3889") == (
        Member(1, "zk1", 2888, 3888),
        Member(2, "[::1]", 2889, 3889),
    )


@pytest.mark.parametrize("text", ["", "zk1:2888:3888", "1=zk1:2888", "0=a:1:2", "256=a:1:2", "1=a:1:x", "1=:1:2"])
def test_invalid_ensemble_server_is_rejected(text: str) -> None:
    with pytest.raises(ZooKeeperNotStarted, match="as in 1=zk1:2888:3888"):
        parse_members(text)


def test_two_servers_with_the_same_id_are_rejected() -> None:
    with pytest.raises(ZooKeeperNotStarted, match="have the same id"):
        parse_members("1=a:1:2,1=b:1:2")


def test_folder_with_any_name_reaches_java(tmp_path: Path) -> None:
    assert "dataDir=/d\\\\x/\\u00f6\\ud83d\\ude00\n" in config_text(ServerSettings("/d\\x/ö😀", 2181))


# --- processes


def test_server_is_not_asked_before_it_has_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that comes earlier makes it log a NullPointerException."""
    has_data: list[bool] = []

    def asked(server: ServerAddress, timeout_s: float) -> Health:
        has_data.append(any(each.stat().st_mtime >= begun_s - 0.1 for each in tmp_path.glob("version-2/snapshot.*")))
        return health_of(server, timeout_s)

    monkeypatch.setattr("penstock.cluster.tree.zookeeper.server.health_of", asked)
    monkeypatch.setattr("penstock.cluster.tree.zookeeper.server._SNAPSHOT_TIMEOUT_S", PATIENCE_S)
    for _ in range(2):
        begun_s = time.time()
        with ZooKeeperServer(str(tmp_path)):
            pass
    assert set(has_data) == {True}
    assert "Exception" not in (tmp_path / "zookeeper.log").read_text()


def test_server_in_a_folder_with_a_strange_name_serves_and_keeps_its_data_over_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "a b ö"
    with ZooKeeperServer(str(folder)) as server:
        address = ServerAddress("127.0.0.1", server.port)
        assert health_of(address, PATIENCE_S).mode == "standalone"
        assert four_letters(address, "ruok", PATIENCE_S) == "imok"
        server.pause()
        assert health_of(address, 0.2).condition is Condition.SILENT
        server.resume()
        assert health_of(address, PATIENCE_S).condition is Condition.SERVING
        server.kill()
        assert health_of(address, PATIENCE_S).condition is Condition.REFUSED
        server.start()
        assert health_of(address, PATIENCE_S).condition is Condition.SERVING
    assert not server.is_running
    lines = (folder / "zookeeper.log").read_text().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []


def test_one_server_of_three_has_no_quorum_and_says_so(tmp_path: Path) -> None:
    ports = free_ports(7)
    members = tuple(Member(n + 1, "127.0.0.1", ports[2 * n + 1], ports[2 * n + 2]) for n in range(3))
    process = ZooKeeperProcess(ServerSettings(str(tmp_path), ports[0], server_id=1, members=members))
    with open(tmp_path / "log", "wb") as log:
        process.start(log)
    seen: list[Condition] = []

    def twice_without_quorum() -> bool:
        seen.append(process.health().condition)
        return seen.count(Condition.NO_QUORUM) == 2

    try:
        with pytest.raises(ZooKeeperNotStarted, match="has no quorum yet; start more than half"):
            process.wait_until_serving(give_up=twice_without_quorum)
    finally:
        process.stop()


# --- the command


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "zookeeper", "start", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_command(arguments: Sequence[str]) -> tuple[int, str]:
    with command(*arguments) as process:
        _, error = process.communicate(timeout=PATIENCE_S)
        return process.returncode, error


def test_command_serves_until_it_is_stopped(tmp_path: Path) -> None:
    port = free_port()
    with command("--data-dir", str(tmp_path / "zk"), "--port", str(port), "--log-level", "info") as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            if "zookeeper started" in line:
                break
        assert f"address=127.0.0.1:{port} mode=standalone" in lines[-1]
        assert health_of(ServerAddress("127.0.0.1", port), PATIENCE_S).condition is Condition.SERVING
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        lines += rest.splitlines()
        assert lines[-1].endswith("stopped")
        assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert health_of(ServerAddress("127.0.0.1", port)).condition is Condition.REFUSED


def test_server_does_not_outlive_a_command_that_was_killed(tmp_path: Path) -> None:
    port = free_port()
    with command("--data-dir", str(tmp_path / "zk"), "--port", str(port)) as process:
        assert process.stderr is not None
        assert any("zookeeper started" in line for line in process.stderr)
        process.kill()
        # Its end closes the pipe, which the server shares; and its port, a moment later.
        process.stderr.read()
    until(lambda: health_of(ServerAddress("127.0.0.1", port)).condition is Condition.REFUSED, "its port is closed")


def test_port_in_use_is_reported_before_anything_is_started(tmp_path: Path) -> None:
    with create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = run_command(["--data-dir", str(tmp_path / "zk"), "--port", str(port)])
    assert code == 1
    assert f"127.0.0.1:{port} is in use by another process.\nStop that process" in error
    assert not (tmp_path / "zk").exists()


def test_folder_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, error = run_command(["--data-dir", str(tmp_path / "file"), "--port", str(free_port())])
    assert code == 1
    assert f"Data folder {tmp_path}/file cannot be used: File exists." in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--servers", "1=a:1:2"], "--servers and --id belong together."),
        (["--id", "1"], "--servers and --id belong together."),
        (["--servers", "1=a:1:2", "--id", "2"], "server id 2 is not in the ensemble, which has 1."),
        (["--servers", "a:1:2", "--id", "2"], "is not a server of an ensemble"),
        (["--port", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options_are_reported(arguments: list[str], message: str) -> None:
    code, error = run_command(arguments)
    assert code == 2
    assert message in error
