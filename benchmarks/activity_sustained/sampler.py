"""Samples of a run from outside: what its pipelines report, what its processes use, what Java's heap holds.

Memory that processes share is counted once (Pss); resident memory is kept beside it. A process that is new since the
last sample has no CPU share yet. The memory of a Java process shows how far its heap may grow; what a full
collection leaves is what it uses.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from penstock.activity.live.usage import (
    PROC,
    TICKS_PER_S,
    ProcessStat,
    descendants,
    process_stats,
    proportional_bytes,
)
from penstock.activity.pipelines.engine import status

GENERATOR: Final = "generator"
_MB: Final = 1 << 20
_KINDS: Final = (
    ("pyspark", "Spark's Python"),
    ("penstock.spark.fork_server", "Spark's Python"),
    ("activity generate", GENERATOR),
    ("server start", "broker"),
    ("pipeline run", "pipelines"),
)
"""Texts in command lines, and the kind of such a process; the process that starts them is the run."""
_RUN: Final = "run"
_JAVA: Final = "Spark's Java"
_VARIABLE: Final = "JDK_JAVA_OPTIONS"
_FULL: Final = re.compile(r"^\[([^\]]+)\].* Pause Full .* \d+M->(\d+)M\(\d+M\)")
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%f%z"


class Query(NamedTuple):
    """The status of a query."""

    lag: int
    rows: int
    batch_id: int
    batch_ms: int
    restarts: int
    state_mb: float = 0.0
    """State that Spark keeps between batches."""


class Usage(NamedTuple):
    """The usage of all processes of a kind."""

    memory_mb: float
    cores: float
    rss_mb: dict[int, float]
    """Resident memory by process."""


class Sample(NamedTuple):
    """A moment, in seconds since the first event."""

    at_s: float
    queries: dict[str, Query]
    usages: dict[str, Usage]


class Family:
    """A process and its descendants."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._pid = pid
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._before: dict[int, ProcessStat] = {}
        self._sampled_s: float | None = None

    def sample(self, now_s: float) -> dict[str, Usage]:
        """Usage by kind of process, without kinds that do not run."""
        stats = process_stats(self._proc)
        elapsed_s = None if self._sampled_s is None else max(now_s - self._sampled_s, 1e-3)
        found: dict[str, list[tuple[int, float, float, float]]] = defaultdict(list)
        for pid in descendants(self._pid, stats):
            ticks = stats[pid].ticks - self._before.get(pid, stats[pid]).ticks
            cores = 0.0 if elapsed_s is None else ticks / TICKS_PER_S / elapsed_s
            share_mb = proportional_bytes(pid, self._proc) / _MB
            found[self._kind(pid)].append((pid, share_mb, self._rss_mb(pid), cores))
        self._before, self._sampled_s = stats, now_s
        return {
            kind: Usage(
                sum(share for _, share, _, _ in each),
                sum(cores for *_, cores in each),
                {pid: rss for pid, _, rss, _ in each},
            )
            for kind, each in found.items()
        }

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
        return next((kind for text, kind in _KINDS if text in line), _RUN)

    def _rss_mb(self, pid: int) -> float:
        try:
            pages = int((self._proc / str(pid) / "statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0.0
        return pages * self._page_bytes / _MB


def queries_of(warehouse: Path) -> dict[str, Query]:
    """Queries by pipeline and name; none before the warehouse exists."""
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


# ---------------------------------------------------------------------------------------------- Java's heap


def environment(folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that make every Java write a GC log into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = f"-Xlog:gc:file={folder}/gc-%p.log:time"
    return {**given, _VARIABLE: f"{given.get(_VARIABLE, '')} {asked}".strip()}


def held_mb(folder: Path, began_ms: int) -> list[tuple[float, float]]:
    """(seconds, MB left by a full collection) in order; none without a log."""
    return sorted(one for path in folder.glob("gc-*.log") for one in _read(path, began_ms))


def _read(path: Path, began_ms: int) -> Iterator[tuple[float, float]]:
    for line in path.read_text(errors="replace").splitlines():
        found = _FULL.match(line)
        if found is not None:
            at_s = datetime.strptime(found[1], _TIME).timestamp() - began_ms / 1000
            yield round(at_s, 2), float(found[2])
