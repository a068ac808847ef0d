"""Memory and CPU of the processes of a run.

Both are summed over a process and its descendants (Spark's Java and Python), from /proc. Shared memory is counted once
(Pss), every five seconds. Without /proc nothing is known, and nothing depends on it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

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
    """Samples processes."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._ticks_a_second = os.sysconf("SC_CLK_TCK")
        self._before: dict[int, int] = {}
        self._looked_s: float | None = None
        self._memory: dict[int, tuple[float, int]] = {}

    def look(self, pids: Mapping[str, int | None], now_s: float) -> dict[str, Usage]:
        """Usage by name; processes that do not run are left out."""
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
        """Its memory: shared pages count in proportion."""
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
