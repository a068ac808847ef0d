"""A node: one server as a process at its place, begun, ended and held as often as one likes.

It does not outlive the program that began it, whatever becomes of that. It is up when it answers a request, not when
its port is open.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.faults.asking import NoAnswer, answers
from benchmarks.faults.places import Place
from benchmarks.peers.servers import ServerFailed
from penstock.runtime.held_process import hold

_START_S: Final = 90.0
_STOP_S: Final = 60.0
_AGAIN_S: Final = 0.02
_TAIL_CHARACTERS: Final = 2000
_PR_SET_PDEATHSIG: Final = 1


class Node:
    """`number` is its broker id."""

    def __init__(self, number: int, command: Sequence[str], place: Place, port: int, folder: Path) -> None:
        self.number = number
        self.place = place
        self.port = port
        self.folder = folder
        self.is_paused = False
        self.command = command
        self._output = folder / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.place.address}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Begin it, without waiting until it is up. From the main thread only: it ends with that."""
        with self.place.enter(), self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder,
                start_new_session=True, preexec_fn=dies_with_parent(),
            )  # fmt: skip

    def wait_until_up(self, timeout_s: float = _START_S) -> None:
        """ServerFailed, with the end of what it said."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return answers(self.place.address, self.port)
            except NoAnswer as error:
                if not self.is_running or time.monotonic() > deadline:
                    raise ServerFailed(f"broker {self.number} is not up ({error}): {self.said()}") from None
                time.sleep(_AGAIN_S)

    def kill(self) -> None:
        """As a crash of the process ends it: the page cache stays."""
        self._end(signal.SIGKILL)

    def stop(self) -> bool:
        """Let it end by itself; False if it had to be killed."""
        return self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Its connections stay, but it does nothing until `resume`."""
        if self._process is not None:
            hold(self._process)
        self.is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def cpu_s(self) -> float:
        """CPU time of all its threads, user and system, since it began."""
        if self._process is None:
            raise ServerFailed(f"broker {self.number} does not run")
        return process_cpu_s(self._process.pid)

    def said(self) -> str:
        """The end of its output."""
        if not self._output.exists():
            return "(nothing)"
        return self._output.read_text(errors="replace")[-_TAIL_CHARACTERS:]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> bool:
        if self._process is None:
            return True
        self._signal(number)
        self.resume()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True


def process_cpu_s(pid: int) -> float:
    """As in /proc/PID/stat, but not rounded to ticks of 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)


def dies_with_parent() -> Callable[[], None]:
    """For `preexec_fn`: whoever is killed takes along what it began."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
