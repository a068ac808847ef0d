"""`penstock pipeline`, as far as it goes without Spark: what there is, what runs, what makes no sense."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.timeouts import PATIENCE_S, until

from penstock.activity.pipelines.engine import session
from penstock.activity.pipelines.engine.status import PipelineFolder, PipelineStatus, QueryStatus
from penstock.spark.environment import DRIVER_VARIABLE, VARIABLE
from penstock.spark.fork_server import ForkServer
from penstock.spark.session import prepare


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that ends early leaves no process, no thread and no variable behind.

    No JVM starts: it would live as long as this process, with the variables of one test.
    """
    processes: list[subprocess.Popen[bytes]] = []
    original = ForkServer.start

    def start(server: ForkServer) -> None:
        original(server)
        assert server._process is not None
        processes.append(server._process)

    def pipeline_session(*_: object) -> None:
        prepare(dict(os.environ))
        raise CancelledError

    monkeypatch.setattr(ForkServer, "start", start)
    monkeypatch.setattr(session, "pipeline_session", pipeline_session)
    for name in (VARIABLE, DRIVER_VARIABLE):
        monkeypatch.setenv(name, "")
    yield
    assert [os.environ[name] for name in (VARIABLE, DRIVER_VARIABLE)] == ["", ""]
    assert all(process.returncode is not None for process in processes)
    for thread in threading.enumerate():
        if thread.name == "penstock-session":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_list_names_what_pipelines_read_and_make(shell: Shell) -> None:
    found = {one["name"]: one for one in shell.json("pipeline", "list")}
    assert found["operations"]["reads"] == ["requests", "servers"]
    assert found["operations"]["tables"] == ["server_windows", "alerts"]
    assert found["operations"]["topics"] == ["server_windows", "alerts"]
    assert any(line.startswith("operations") for line in shell.lines("pipeline", "list"))


def test_unknown_names_are_rejected_before_anything_starts(shell: Shell, tmp_path: Path) -> None:
    for command in ("run", "status", "stop"):
        result = shell("pipeline", command, "operatons", "-w", tmp_path)
        assert result.exit_code == 2
        assert "Did you mean operations?" in result.stderr


def test_invalid_options_are_rejected(shell: Shell, tmp_path: Path) -> None:
    for options, said in (
        (("--from-start", "--since", "2026-11-14T00:00Z"), "--from-start excludes --since and --until"),
        (("--beside-stream",), "--beside-stream needs"),
        (("--since", "2026-11-15T00:00Z", "--until", "2026-11-14T00:00Z"), "ends before it starts"),
    ):
        result = shell("pipeline", "run", "operations", "-w", tmp_path, *options)
        assert result.exit_code == 2
        assert said in result.stderr


def test_a_missing_java_is_reported_at_once(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for options in ((), ("--since", "2026-11-14T00:00Z")):
        result = shell("pipeline", "run", "operations", "-w", tmp_path / "warehouse", *options)
        assert result.exit_code != 0
        assert "JAVA_HOME" in result.stderr
    assert not (tmp_path / "warehouse").exists()


def running(warehouse: Path, **changes: object) -> PipelineStatus:
    query = QueryStatus(name="server_windows", state="running", batch_id=7, batch_ms=420, input_rows_total=1234, lag=12)
    one = PipelineStatus(
        name="operations", state="running", pid=os.getpid(), host=socket.gethostname(), queries=[query]
    )
    for name, value in changes.items():
        setattr(one, name, value)
    PipelineFolder(str(warehouse), "operations").write(one)
    return one


def test_status_shows_running_pipelines_and_lost_processes(shell: Shell, tmp_path: Path) -> None:
    assert shell.done("pipeline", "status", "-w", tmp_path) == "No pipeline has run in this warehouse.\n"
    running(tmp_path)
    assert "1,234" in shell.done("pipeline", "status", "-w", tmp_path)
    assert shell.json("pipeline", "status", "-w", tmp_path)[0]["is_alive"]
    running(tmp_path, pid=2**22 + 1)
    result = shell("pipeline", "status", "-w", tmp_path)
    assert result.exit_code == 1
    assert "gone" in result.stdout
    running(tmp_path, state="failed", message="the table server_windows is gone")
    result = shell("pipeline", "status", "-w", tmp_path)
    assert result.exit_code == 1
    assert "operations: the table server_windows is gone" in result.stdout


def test_a_stream_that_runs_is_not_started_again(shell: Shell, tmp_path: Path) -> None:
    running(tmp_path)
    result = shell("pipeline", "run", "operations", "-w", tmp_path)
    assert result.exit_code == 4
    assert "penstock pipeline stop operations" in result.stderr


def test_stop_asks_and_waits_until_it_has_stopped(shell: Shell, tmp_path: Path) -> None:
    assert shell.done("pipeline", "stop", "-w", tmp_path) == "No pipeline is running.\n"
    one = running(tmp_path)
    folder = PipelineFolder(str(tmp_path), "operations")

    def obey() -> None:
        until(folder.is_stop_requested, "it is asked to stop")
        one.state = "stopped"
        folder.write(one)

    obeying = threading.Thread(target=obey)
    obeying.start()
    assert shell.done("pipeline", "stop", "operations", "-w", tmp_path) == "operations stopped\n"
    obeying.join()
    assert shell.done("pipeline", "stop", "operations", "-w", tmp_path) == "operations is not running\n"
