"""Suspended processes, as Linux shows them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.runtime.process import suspend

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the state of threads is seen in /proc")

BUSY = """
import threading

def work():
    while True:
        pass

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
print("up", flush=True)
work()
"""


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """A process with work for each of its threads."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process
        process.kill()


def states(process: subprocess.Popen[bytes]) -> set[str]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return {task.read_text().rpartition(")")[2].split()[0] for task in tasks}


def test_a_held_process_has_stopped_every_time(busy: subprocess.Popen[bytes]) -> None:
    for _ in range(50):
        suspend(busy)
        assert states(busy) == {"T"}
        busy.send_signal(signal.SIGCONT)


def test_a_suspended_process_stays_suspended(busy: subprocess.Popen[bytes]) -> None:
    suspend(busy)
    suspend(busy)
    assert states(busy) == {"T"}


def test_one_that_ends_is_left_with_its_exit_code() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        while process.poll() is None:
            suspend(process)
            process.send_signal(signal.SIGCONT)
        suspend(process)
        assert process.wait() == 7
