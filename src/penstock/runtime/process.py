"""What this process uses of its machine: CPU time, memory, open files, and since when.

Rule: each figure is read by itself, when it is asked for, because one of them (open files) costs with its own
size. A figure that this system does not tell is None, never a guess.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Protocol


class ProcessFigures(Protocol):
    def cpu_seconds(self) -> float | None:
        """CPU time of all threads, user and system."""

    def resident_bytes(self) -> float | None:
        """Memory that is in RAM now."""

    def virtual_bytes(self) -> float | None:
        """Address space."""

    def open_files(self) -> float | None:
        """File descriptors, sockets among them."""

    def open_files_max(self) -> float | None:
        """How many of them the system allows; infinite where it sets no limit."""

    def start_time_s(self) -> float | None:
        """Seconds since 1970."""


class SystemProcess:
    """The real process, as Linux shows it under /proc; elsewhere, what POSIX tells."""

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
                # Listing the folder opens one more, which is closed again before anyone can see the figure.
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
            return time.time()  # Made as the broker starts, this is late by the imports only.

    def _read(self, name: str) -> bytes:
        with open(f"{self._proc}/{name}", "rb") as file:
            return file.read()
