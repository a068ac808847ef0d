"""`penstock activity run`: what it rejects at once, and runs with Spark, from the first process to the last."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port

PATIENCE_S = 180.0
# On a busy machine the processes of a run may take longer to end than a user would wait before they are killed.
PATIENT = """
from penstock.activity.live import run
run.STOP_S = 100.0
from penstock.cli.main import main
main()
"""
COMMAND = [sys.executable, "-c", PATIENT, "activity", "run"]


class Session:
    """A run in a session of its own, as in a terminal: signals go to all of its processes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.page = f"http://127.0.0.1:{(port := free_port())}"
        self.output = folder.with_suffix(".out")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*COMMAND, "--data-dir", str(folder), "--port", "0", "--http-port", str(port), *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def state(self) -> dict[str, Any]:
        """The data of the page; nothing while there is no page."""
        try:
            with urllib.request.urlopen(f"{self.page}/api/state", timeout=PATIENCE_S) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except OSError:
            return {}

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (condition(state) if (state := self.state()) else False):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline_s, (state, self.output.read_text())
            time.sleep(0.1)
        return state

    def others(self) -> list[str]:
        """The processes of the session, but for the first."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] != "Z":
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def until_alone(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.others():
            assert time.monotonic() < deadline_s, self.others()
            time.sleep(0.05)


def rows(state: dict[str, Any]) -> int:
    return sum(query["rows"] for query in state["queries"])


def total(state: dict[str, Any]) -> int:
    return sum(topic["total"] for topic in state["topics"])


def processes(state: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["pid"] for each in state["processes"]}


def rejected(*options: str, **environment: str) -> str:
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **environment}
    )
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_port_in_use_is_reported_and_nothing_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        page = rejected("--data-dir", str(folder), "--http-port", port, "--port", "0")
        assert f"127.0.0.1:{port} is in use" in page
        assert "--http-port" in page
        broker = rejected("--data-dir", str(folder), "--http-port", "0", "--port", port)
        assert f"--bootstrap-server 127.0.0.1:{port}" in broker
    assert not folder.exists()


def test_missing_java_is_reported_and_nothing_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ("--data-dir", str(folder), "--port", "0", "--http-port", "0")
    reported = rejected(*options, JAVA_HOME=str(tmp_path))
    assert "JAVA_HOME" in reported
    assert not folder.exists()


def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    options = ("--data-dir", str(tmp_path / "run"), "--port", "0", "--http-port", "0")
    assert "Did you mean operations?" in rejected(*options, "--pipelines", "operation")
    assert "0" in rejected(*options, "--minutes", "0")


SMALL = ("--pipelines", "operations", "--rate", "200", "--rhythm", "flat")
by_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found by /proc")


@pytest.mark.long
@by_proc
def test_a_run_survives_its_pipelines_and_killed_itself_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Session(folder, *SMALL) as run:
        state = run.until(lambda state: rows(state) > 500 and state["servers"])
        assert state["phase"] == "running"
        assert "in use by another run" in rejected("--data-dir", str(folder), "--port", "0", "--http-port", "0")

        # The pipelines are killed in the middle: they resume, and what was read is not forgotten.
        before = processes(state)
        os.kill(before["pipelines"], signal.SIGKILL)
        state = run.until(lambda state: processes(state).get("pipelines", before["pipelines"]) != before["pipelines"])
        state = run.until(lambda state: rows(state) > 100 and state["queries"][0]["state"] == "running")
        assert "pipelines was killed by SIGKILL" in state["lines"][0]["text"]

        run.process.kill()
        run.process.wait()
        run.until_alone()


@pytest.mark.long
@by_proc
def test_a_run_ends_by_ctrl_c_and_a_second_one_continues_with_its_data(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Session(folder, *SMALL) as run:
        state = run.until(lambda state: rows(state) > 500)

        # Ctrl-C in a terminal reaches everybody; only the first process acts upon it.
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 0, run.output.read_text()
        run.until_alone()
        assert json.loads((folder / "generated.json").read_text())["unacknowledged"] == 0
        assert "broker stopped: id=0 clean=true" in (folder / "logs" / "broker.log").read_text(), "it ended cleanly"
        reported = (folder / "logs" / "pipelines.log").read_text().rpartition("\n--- ")[2]
        assert "Stopping" in reported
        landed = total(state)

    assert "not 9" in rejected("--data-dir", str(folder), "--port", "0", "--http-port", "0", "--seed", "9")
    with Session(folder, *SMALL) as run:
        state = run.until(lambda state: rows(state) > 500)
        assert total(state) > landed
