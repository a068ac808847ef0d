"""Samples of a run from outside: what its pipelines report, what its processes use, what Java's heap holds.

Memory that processes share is counted once (Pss); resident memory is kept beside it. A process that is new since the
last sample has no CPU share yet. The memory of a Java process says how far its heap was allowed to grow; what a full
collection leaves is what it holds.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from penstock.activity.pipelines.engine import status

GENERATOR: Final = "generator"
_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Fields of /proc/PID/stat after the name in parentheses, from 0."""
_MB: Final = 1 << 20
_KINDS: Final = (
    ("pyspark", "Spark's Python"),
    ("activity generate", GENERATOR),
    ("server start", "broker"),
    ("pipeline run", "pipelines"),
)
"""Words of a command line, and what such a process is; the one that starts all of them is the run."""
_RUN: Final = "run"
_JAVA: Final = "Spark's Java"


class Query(NamedTuple):
    """What a query says of itself."""

    lag: int
    rows: int
    batch_id: int
    batch_ms: int
    restarts: int
    state_mb: float = 0.0
    """What Spark's Java keeps of it from batch to batch."""


class Usage(NamedTuple):
    """Of all processes of a kind."""

    memory_mb: float
    cores: float
    rss_mb: dict[int, float]
    """By process."""


class Sample(NamedTuple):
    """A moment, in seconds since the first event."""

    at_s: float
    queries: dict[str, Query]
    usages: dict[str, Usage]


class Family:
    """A process and all that descend from it."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid = pid
        self._proc = proc
        self._ticks_a_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._ticks: dict[int, int] = {}
        self._looked_s: float | None = None

    def look(self, now_s: float) -> dict[str, Usage]:
        """By kind; what is not there is left out."""
        stats = dict(self._stats())
        members = list(_family(self._pid, {pid: parent for pid, (parent, _) in stats.items()}))
        elapsed_s = None if self._looked_s is None else max(now_s - self._looked_s, 1e-3)
        found: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
        for pid in members:
            ticks = stats[pid][1]
            spent = ticks - self._ticks.get(pid, ticks)
            cores = 0.0 if elapsed_s is None else spent / self._ticks_a_second / elapsed_s
            found[self._kind(pid)].append((pid, self._share_mb(pid), self._rss_mb(pid), cores))
        self._ticks = {pid: stats[pid][1] for pid in members}
        self._looked_s = now_s
        return {
            kind: Usage(
                sum(share for _, share, _, _ in each),
                sum(cores for *_, cores in each),
                {pid: rss for pid, _, rss, _ in each},
            )
            for kind, each in found.items()
        }

    def _stats(self) -> Iterator[tuple[int, tuple[int, int]]]:
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), (int(fields[_PARENT]), int(fields[_USER]) + int(fields[_SYSTEM]))
            except (OSError, ValueError, IndexError):
                continue

    def _kind(self, pid: int) -> str:
        if pid == self._pid:
            return _RUN
        try:
            words = (self._proc / str(pid) / "cmdline").read_text().split("\0")
        except OSError:
            return _RUN
        if Path(words[0]).name == "java":
            return _JAVA
        line = " ".join(words)
        return next((kind for said, kind in _KINDS if said in line), _RUN)

    def _share_mb(self, pid: int) -> float:
        try:
            text = (self._proc / str(pid) / "smaps_rollup").read_text()
            line = next(line for line in text.splitlines() if line.startswith("Pss:"))
            return int(line.split()[1]) * 1024 / _MB
        except (OSError, ValueError, IndexError, StopIteration):
            return 0.0

    def _rss_mb(self, pid: int) -> float:
        try:
            pages = int((self._proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * self._page_bytes / _MB


def _family(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for each, parent in parents.items():
        children[parent].append(each)
    waiting = [pid] if pid in parents else []
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children[each]


def queries_of(warehouse: Path) -> dict[str, Query]:
    """By pipeline and query, as far as they run; nothing before there is a warehouse."""
    if not warehouse.is_dir():
        return {}
    return {
        f"{one.name}/{query.name}": Query(
            query.lag,
            query.input_rows_total,
            query.batch_id,
            query.batch_ms,
            query.restarts,
            query.state_bytes / _MB,
        )
        for one in status.read_all(str(warehouse))
        for query in one.queries
    }


_VARIABLE: Final = "JDK_JAVA_OPTIONS"
_FULL: Final = re.compile(r"^\[([^\]]+)\].* Pause Full .* \d+M->(\d+)M\(\d+M\)")
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%f%z"


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Variables with which every Java that is started writes such a log into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = f"-Xlog:gc:file={folder}/gc-%p.log:time"
    return {**given, _VARIABLE: f"{given.get(_VARIABLE, '')} {asked}".strip()}


def held_mb(folder: Path, began_ms: int) -> list[tuple[float, float]]:
    """Seconds since then, and what was left at that time, in order; nothing if no log is there."""
    return sorted(one for path in folder.glob("gc-*.log") for one in _read(path, began_ms))


def _read(path: Path, began_ms: int) -> Iterator[tuple[float, float]]:
    for line in path.read_text(errors="replace").splitlines():
        found = _FULL.match(line)
        if found is not None:
            at_s = datetime.strptime(found[1], _TIME).timestamp() - began_ms / 1000
            yield round(at_s, 2), float(found[2])
