"""The processes of a run: how one is started, asked to end, and looked at.

Nouns: `Child`, a process that ends with this one; `Restarts`, how often one that dies is started again.

Rule: a child's standard input is a pipe. A byte in it, and its end, are how it is asked to end; should this process be
killed, the system closes it, without the byte. Children stay in this process's group, so that they share its terminal's
job. What they print goes to a file, of which the last lines are there to be shown.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LAST_BYTES: Final = 8_192
_KILLED_S: Final = 5.0


class Child:
    """A process of ours. `output` gets its standard output; without it that goes to the log too."""

    def __init__(self, name: str, command: Sequence[str], log: Path, output: Path | None = None) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises OSError if there is no such program."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            log = files.enter_context(self.log.open("ab"))
            log.write(f"--- {' '.join(self._command)}\n".encode())
            log.flush()
            output = log if self._output is None else files.enter_context(self._output.open("wb"))
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=log)

    @property
    def pid(self) -> int | None:
        """Of the process, while it is there."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def is_alive(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """How it ended; None if it has not, or was never started."""
        return None if self._process is None else self._process.poll()

    def ask_to_end(self) -> None:
        """Returns at once; more than once is as good as once."""
        pipe = None if self._process is None else self._process.stdin
        if pipe is None or pipe.closed:
            return
        with contextlib.suppress(OSError):
            pipe.write(b"\n")
            pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within this time."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(timeout_s, 0.0))
        except subprocess.TimeoutExpired:
            return False
        self.ask_to_end()  # Which closes our end of its pipe.
        return True

    def kill(self) -> None:
        """At once. What it has started ends with it: their pipes close."""
        if self._process is None:
            return
        self.ask_to_end()
        if self._process.poll() is None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILLED_S)

    def last_lines(self, most: int = 8) -> list[str]:
        """The end of what it has printed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-most:]

    def how_it_ended(self) -> str:
        """ "ended with code 3", "was killed by SIGKILL"."""
        code = self.exit_code
        if code is None:
            return "runs" if self._process is not None else "was not started"
        if code >= 0:
            return f"ended with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"


class Restarts:
    """So many starts within so long; the wait before each is twice as long as the one before."""

    def __init__(self, most: int, within_s: float, first_wait_s: float = 0.5) -> None:
        self._most = most
        self._within_s = within_s
        self._first_wait_s = first_wait_s
        self._deaths: deque[float] = deque(maxlen=max(most, 1) + 1)

    def wait_s(self, now_s: float) -> float | None:
        """A process has died: how long to wait before it is started again; None if it has died too often."""
        self._deaths.append(now_s)
        recent = sum(1 for each in self._deaths if now_s - each < self._within_s)
        return None if recent > self._most else self._first_wait_s * 2.0 ** (recent - 1)
