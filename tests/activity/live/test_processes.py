"""Children: how they end, with their parent and without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.activity.live.runs import UNTIL_THE_PIPE_CLOSES, script
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock.activity.live.processes import Child, RestartPolicy, UsageSampler


def until_it_said(log: Path, text: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (log.exists() and text in log.read_text()):
        assert time.monotonic() < deadline_s, log.read_text() if log.exists() else "no log"
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "child.log"


def test_a_child_ends_when_it_is_asked_to(log: Path) -> None:
    child = Child("child", script(UNTIL_THE_PIPE_CLOSES), log)
    assert child.exit_text() == "was not started"
    child.start()
    until_it_said(log, "\nup\n")
    assert child.is_alive
    child.request_stop()
    child.request_stop()
    assert child.wait(PATIENCE_S)
    assert (child.exit_code, child.pid, child.exit_text()) == (0, None, "ended with code 0")


def test_a_child_that_does_not_listen_is_killed_and_its_last_lines_are_there(log: Path) -> None:
    child = Child("child", script("import time\nfor n in range(9): print(n, flush=True)\ntime.sleep(600)"), log)
    child.start()
    until_it_said(log, "\n8\n")
    child.request_stop()
    assert not child.wait(0.2)
    child.kill()
    assert child.exit_text() == "was killed by SIGKILL"
    assert child.last_lines(3) == ["6", "7", "8"]


def test_output_that_is_meant_for_programs_is_apart_from_the_log(log: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    child = Child("child", script("import sys; print('{}'); print('news', file=sys.stderr)"), log, output)
    child.start()
    assert child.wait(PATIENCE_S)
    assert output.read_text() == "{}\n"
    assert "news" in log.read_text()


def test_children_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    parent = subprocess.Popen(
        script(
            "import pathlib, sys, time\n"
            "from penstock.activity.live.processes import Child\n"
            f"child = Child('child', [sys.executable, '-c', {UNTIL_THE_PIPE_CLOSES!r}], pathlib.Path({str(log)!r}))\n"
            "child.start(); print(child.pid, flush=True); time.sleep(600)\n"
        ),
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    until_it_said(log, "\nup\n")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline_s = time.monotonic() + PATIENCE_S
    while is_there(child_pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_command_as_a_child_heeds_its_parent_and_not_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    command = [
        sys.executable, "-m", "penstock.cli.activity.child", "server", "start", "--data-dir", str(tmp_path / "data"),
        "--listen", f"127.0.0.1:{free_port()}", "--http-port", "0",
    ]  # fmt: skip
    child = Child("broker", command, log)
    child.start()
    try:
        until_it_said(log, " serves ")
        assert child.pid is not None
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        assert not child.wait(0.5)
        child.request_stop()
        assert child.wait(PATIENCE_S)
        assert child.exit_code == 0, log.read_text()
        assert "broker 0 stopped" in log.read_text()
    finally:
        child.kill()


def test_restarts_wait_longer_each_time_and_are_not_endless() -> None:
    restarts = RestartPolicy(3, 60.0, first_wait_s=1.0)
    assert [restarts.wait_s(now_s) for now_s in (0.0, 1.0, 2.0, 3.0)] == [1.0, 2.0, 4.0, None]
    assert restarts.wait_s(200.0) == 1.0


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_usage_counts_descendants_and_what_is_not_there_is_left_out(log: Path) -> None:
    text = (
        "import subprocess, sys\n"
        f"with subprocess.Popen([sys.executable, '-c', {UNTIL_THE_PIPE_CLOSES!r}]):\n"
        "    while True: pass\n"
    )
    child = Child("child", script(text), log)
    child.start()
    try:
        until_it_said(log, "\nup\n")
        usages = UsageSampler()
        first = usages.look({"child": child.pid, "none": None, "gone": 2**22 + 1}, 0.0)
        assert list(first) == ["child"]
        assert first["child"].processes == 2
        assert first["child"].memory_bytes > 4 << 20
        deadline_s = time.monotonic() + PATIENCE_S
        while not usages.look({"child": child.pid}, 1.0)["child"].cores:
            assert time.monotonic() < deadline_s
    finally:
        child.kill()


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert UsageSampler(tmp_path / "nothing").look({"me": os.getpid()}, 0.0) == {}
