"""A command as a child of `penstock activity run`: it obeys its parent and ignores the terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.timeouts import until

from penstock.runtime.supervisor import LoggedChild

_PARENTS = {signal.SIGINT, signal.SIGHUP, signal.SIGTERM}


def pending(pid: int) -> set[signal.Signals]:
    """The signals that a process was sent and has blocked."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    assert found is not None
    return {number for number in _PARENTS if int(found[1], 16) & 1 << (number - 1)}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="blocked signals are seen in /proc")
def test_a_command_as_a_child_obeys_its_parent_and_ignores_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    command = [
        sys.executable, "-m", "penstock.cli.activity.child", "server", "start", "--data-dir", str(tmp_path / "data"),
        "--listen", f"127.0.0.1:{free_port()}", "--http-port", "0",
    ]  # fmt: skip
    child = LoggedChild(command, log)
    child.start()
    try:
        until(lambda: "broker started: " in log.read_text(), "the broker serves")
        assert child.pid is not None
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        pid = child.pid
        until(lambda: not child.is_alive or pending(pid) >= _PARENTS, "the signals are kept for later")
        assert child.is_alive
        child.request_stop()
        until(lambda: not child.is_alive, "the broker stops")
        assert child.exit_code == 0, log.read_text()
        assert "broker stopped: " in log.read_text()
    finally:
        child.kill()
