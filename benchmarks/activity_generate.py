"""How fast a site's activity is generated into a broker, and what it costs while it keeps to the clock.

The generator has one core, the broker (a process of its own) the other ones. A rate is of acknowledged events by
the generator's own clock, without its start; the CPU time is all that its process took, user and system, with its
start, which the line "start" has alone. The median round counts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks import results
from benchmarks.results import Better, Figure, Row

OURS = "penstock"
ROUNDS = 3
GOALS_PER_S = {"as fast as possible, at --rate 200000": 200_000}
FAST = ("--as-fast-as-possible", "--events")
CASES: list[tuple[str, tuple[str, ...], int]] = [
    ("start", (*FAST, "1"), 1),
    ("as fast as possible, at --rate 200000", (*FAST, "2000000", "--rate", "200000"), ROUNDS),
    ("as fast as possible, at --rate 2000", (*FAST, "1000000", "--rate", "2000"), ROUNDS),
    ("the same in Avro", (*FAST, "200000", "--rate", "2000", "--value-format", "avro"), 1),
    ("in real time, 20 s at --rate 2000", ("--minutes", "0.3334", "--rate", "2000", "--rhythm", "flat"), 1),
]


class Round(NamedTuple):
    events_per_s: float
    wall_s: float
    cpu_s: float
    events: int


@contextmanager
def broker(cores: set[int]) -> Iterator[str]:
    """The address of a broker with an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "penstock", "server", "start", "--data-dir", folder, "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, "--http-port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )  # fmt: skip
        try:
            os.sched_setaffinity(process.pid, cores)
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(r"PLAINTEXT://(\S+:\d+)", line)
                if "broker started: " in line and found:
                    yield found[1]
                    break
            else:
                raise RuntimeError("the broker did not start")
        finally:
            process.terminate()
            process.communicate(timeout=30)


def generated(address: str, options: tuple[str, ...], core: int) -> Round:
    command = [sys.executable, "-m", "penstock", "activity", "generate", "-b", address, "--format", "json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    os.sched_setaffinity(process.pid, {core})
    assert process.stdout is not None
    summary: dict[str, Any] = json.loads(process.stdout.read())
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the generator ended with {process.returncode}")
    return Round(
        summary["events_per_second"], summary["seconds"], usage.ru_utime + usage.ru_stime, summary["events"]
    )  # fmt: skip


def rows_of(name: str, runs: Sequence[Round]) -> list[Row]:
    """What a case measured, as a table."""

    def row(work: str, unit: str, better: Better | None, rounds: Sequence[float], goal: float | None = None) -> Row:
        return Row(work, unit, better, {OURS: Figure.of(rounds)}, OURS, goal=goal, table=name)

    return [
        row("rate", "events/s", Better.HIGHER, [run.events_per_s for run in runs], GOALS_PER_S.get(name)),
        row("CPU per event", "µs", Better.LOWER, [run.cpu_s / run.events * 1e6 for run in runs]),
        row("CPU", "s", Better.LOWER, [run.cpu_s for run in runs]),
        row("time", "s", None, [run.wall_s for run in runs]),
        row("events", "", None, [run.events for run in runs]),
    ]


def main(arguments: Sequence[str] = ()) -> None:
    recording = results.begin_plain("activity_generate", "The site's generator on one core.", arguments)
    core, *others = sorted(os.sched_getaffinity(0))
    rows: list[Row] = []
    for name, options, rounds in CASES:
        runs = []
        for _ in range(rounds):
            with broker(set(others) or {core}) as address:
                runs.append(generated(address, options, core))
        rows += rows_of(name, runs)
    recording.keep(rows, notes=["the CPU is that of the generator's process, its start included"])


if __name__ == "__main__":
    main(sys.argv[1:])
