"""The child processes of a run: started, stopped, watched.

A child's standard input is a pipe. A byte in it, and its end, ask the child to stop; if this process is killed, the
kernel closes the pipe without the byte. Children stay in this process group. Their output goes to a file.

Memory and CPU are summed over a process and its descendants (Spark's Java and Python), from /proc; shared memory is
counted once (Pss), every five seconds. Without /proc nothing is known, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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

    def request_stop(self) -> None:
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
        self.request_stop()  # Which closes our end of its pipe.
        return True

    def kill(self) -> None:
        """At once. What it has started ends with it: their pipes close."""
        if self._process is None:
            return
        self.request_stop()
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

    def exit_text(self) -> str:
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


class RestartPolicy:
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


_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Fields of /proc/PID/stat after the name in parentheses, from 0."""
_MEMORY_EVERY_S: Final = 5.0


class Usage(NamedTuple):
    """Of a process and its descendants."""

    pid: int
    memory_bytes: int
    cores: float
    processes: int


class _Stat(NamedTuple):
    parent: int
    ticks: int


class UsageSampler:
    """Looks at processes, again and again."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._ticks_a_second = os.sysconf("SC_CLK_TCK")
        self._before: dict[int, int] = {}
        self._looked_s: float | None = None
        self._memory: dict[int, tuple[float, int]] = {}

    def look(self, pids: Mapping[str, int | None], now_s: float) -> dict[str, Usage]:
        """By name; those that are not there are left out."""
        stats = dict(self._stats())
        children: dict[int, list[int]] = defaultdict(list)
        for pid, stat in stats.items():
            children[stat.parent].append(pid)
        elapsed_s = None if self._looked_s is None else max(now_s - self._looked_s, 1e-3)
        found: dict[str, Usage] = {}
        for name, root in pids.items():
            if root is None or root not in stats:
                continue
            family = list(_family(root, children))
            ticks = sum(stats[each].ticks - self._before[each] for each in family if each in self._before)
            cores = 0.0 if elapsed_s is None else ticks / self._ticks_a_second / elapsed_s
            found[name] = Usage(root, self._memory_of(root, family, now_s), cores, len(family))
        self._before = {pid: stat.ticks for pid, stat in stats.items()}
        self._looked_s = now_s
        return found

    def _stats(self) -> Iterator[tuple[int, _Stat]]:
        try:
            entries = [entry for entry in os.listdir(self._proc) if entry.isdigit()]
        except OSError:
            return
        for entry in entries:
            try:
                fields = (self._proc / entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry), _Stat(int(fields[_PARENT]), int(fields[_USER]) + int(fields[_SYSTEM]))
            except (OSError, ValueError, IndexError):
                continue

    def _memory_of(self, root: int, family: list[int], now_s: float) -> int:
        asked_s, memory_bytes = self._memory.get(root, (-_MEMORY_EVERY_S, 0))
        if now_s - asked_s >= _MEMORY_EVERY_S:
            memory_bytes = sum(self._share_of(pid) for pid in family)
            self._memory[root] = now_s, memory_bytes
        return memory_bytes

    def _share_of(self, pid: int) -> int:
        """Its memory, of that which it shares its share."""
        try:
            text = (self._proc / str(pid) / "smaps_rollup").read_text()
            line = next(line for line in text.splitlines() if line.startswith("Pss:"))
            return int(line.split()[1]) * 1024
        except (OSError, ValueError, IndexError, StopIteration):
            return 0


def _family(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children.get(each, ())
