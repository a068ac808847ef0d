"""Memory and CPU of processes and their descendants, from /proc.

Spark is a tree of processes (Java and Python), so both are summed over a process and its descendants. Shared memory is
counted in proportion (Pss), which the kernel computes slowly: the sampler asks every five seconds. Without /proc
nothing is known, and nothing depends on it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PARENT, _USER, _SYSTEM, _WAITED_USER, _WAITED_SYSTEM = 1, 11, 12, 13, 14
"""Fields of /proc/PID/stat after the name in parentheses, from 0."""
_MEMORY_EVERY_S: Final = 5.0


class ProcessStat(NamedTuple):
    """CPU time in ticks; `waited` is that of ended children that the process has waited for."""

    parent: int
    ticks: int
    waited: int


class Usage(NamedTuple):
    """The usage of a process and its descendants."""

    pid: int
    memory_bytes: int
    cores: float
    processes: int


class UsageSampler:
    """Samples the usage of named processes."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before: dict[int, ProcessStat] = {}
        self._sampled_s: float | None = None
        self._memory: dict[int, tuple[float, int]] = {}

    def sample(self, pids: Mapping[str, int | None], now_s: float) -> dict[str, Usage]:
        """Usage by name, without processes that do not run."""
        stats = process_stats(self._proc)
        elapsed_s = None if self._sampled_s is None else max(now_s - self._sampled_s, 1e-3)
        found: dict[str, Usage] = {}
        for name, root in pids.items():
            family = [] if root is None else descendants(root, stats)
            if root is None or not family:
                continue
            ticks = sum(stats[each].ticks - self._before[each].ticks for each in family if each in self._before)
            cores = 0.0 if elapsed_s is None else ticks / TICKS_PER_S / elapsed_s
            found[name] = Usage(root, self._memory_of(root, family, now_s), cores, len(family))
        self._before, self._sampled_s = stats, now_s
        return found

    def _memory_of(self, root: int, family: list[int], now_s: float) -> int:
        sampled_s, memory_bytes = self._memory.get(root, (-_MEMORY_EVERY_S, 0))
        if now_s - sampled_s >= _MEMORY_EVERY_S:
            memory_bytes = sum(proportional_bytes(pid, self._proc) for pid in family)
            self._memory[root] = now_s, memory_bytes
        return memory_bytes


def process_stats(proc: Path = PROC) -> dict[int, ProcessStat]:
    """All processes."""
    return dict(_stats(proc))


def _stats(proc: Path) -> Iterator[tuple[int, ProcessStat]]:
    try:
        entries = [entry for entry in os.listdir(proc) if entry.isdigit()]
    except OSError:
        return
    for entry in entries:
        try:
            fields = (proc / entry / "stat").read_text().rpartition(")")[2].split()
            yield int(entry), ProcessStat(
                int(fields[_PARENT]), int(fields[_USER]) + int(fields[_SYSTEM]),
                int(fields[_WAITED_USER]) + int(fields[_WAITED_SYSTEM]),
            )  # fmt: skip
        except (OSError, ValueError, IndexError):
            continue


def descendants(root: int, stats: Mapping[int, ProcessStat]) -> list[int]:
    """A process and its descendants; none if it does not run."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, stat in stats.items():
        children[stat.parent].append(pid)
    found: list[int] = []
    waiting = [root] if root in stats else []
    while waiting:
        found.append(waiting.pop())
        waiting += children[found[-1]]
    return found


def proportional_bytes(pid: int, proc: Path = PROC) -> int:
    """The memory of a process; shared pages count in proportion."""
    try:
        text = (proc / str(pid) / "smaps_rollup").read_text()
        line = next(line for line in text.splitlines() if line.startswith("Pss:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
