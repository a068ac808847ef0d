"""Processes: what this one uses (CPU time, memory, open files, start time), and suspending a child.

Each metric is read when asked for; one that the system does not provide is None. `suspend` returns when all threads
have stopped: the signal alone only requests it, and on a busy machine the process keeps answering for a while.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from typing import Protocol


class ProcessMetrics(Protocol):
    """What a process uses."""

    def cpu_seconds(self) -> float | None:
        """CPU time of all threads, user and system."""

    def resident_bytes(self) -> float | None:
        """Memory that is in RAM now."""

    def virtual_bytes(self) -> float | None:
        """Address space."""

    def open_files(self) -> float | None:
        """File descriptors, sockets among them."""

    def open_files_max(self) -> float | None:
        """The limit on them; infinite if there is none."""

    def start_time_s(self) -> float | None:
        """Seconds since 1970."""


class SystemProcess:
    """This process, from /proc on Linux and from POSIX calls elsewhere."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._page_bytes = resource.getpagesize()
        self._start_time_s = self._started()

    def cpu_seconds(self) -> float | None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    def resident_bytes(self) -> float | None:
        return self._statm_bytes(1)

    def virtual_bytes(self) -> float | None:
        return self._statm_bytes(0)

    def open_files(self) -> float | None:
        for folder in (f"{self._proc}/self/fd", "/dev/fd"):
            try:
                # Listing the folder opens one more descriptor, which is closed by then.
                return len(os.listdir(folder)) - 1
            except OSError:
                continue
        return None

    def open_files_max(self) -> float | None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return float("inf") if limit == resource.RLIM_INFINITY else limit

    def start_time_s(self) -> float | None:
        return self._start_time_s

    def _statm_bytes(self, column: int) -> float | None:
        try:
            return int(self._read("self/statm").split()[column]) * self._page_bytes
        except (OSError, ValueError, IndexError):
            return None

    def _started(self) -> float:
        try:
            # The command's name, in parentheses, may hold spaces; the 22nd field is the 20th after it.
            ticks = int(self._read("self/stat").rpartition(b")")[2].split()[19])
            booted = next(line for line in self._read("stat").splitlines() if line.startswith(b"btime "))
            return int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, StopIteration):
            return time.time()  # created when the broker starts: late only by the imports

    def _read(self, name: str) -> bytes:
        with open(f"{self._proc}/{name}", "rb") as file:
            return file.read()


def suspend(process: subprocess.Popen[bytes]) -> None:
    """Suspend a process until SIGCONT. One that has ended, or ends meanwhile, is left alone."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGSTOP)
    if process.returncode is not None:  # `send_signal` polls again before it sends
        return
    if hasattr(os, "waitid"):  # Python has it on macOS from 3.13 on.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
