"""How long a user of the live example waits for its first result, and after Ctrl-C for its end.

    python -m benchmarks.activity_start [--rounds 3]

A round is two starts of `penstock activity run` with fresh data. The first finds no archive of Java's classes on the
machine, as after `make setup`; it is stopped when it has made one, which the second uses. The page is asked as by a
browser. CPU seconds are those of all processes of the run until the first result: they hardly depend on what else the
machine does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import results
from benchmarks.results import Better, Figure, Row
from penstock.activity.live.preflight import free_port
from penstock.activity.live.usage import TICKS_PER_S, descendants, process_stats

GOAL_S: Final = 15.0
FIRST: Final = "first start"
LATER: Final = "later start"
PAGE: Final = "the page answers"
EVENTS: Final = "events arrive"
QUERIES: Final = "all queries are started"
RESULT: Final = "the first result is on the page"
CPU: Final = "CPU until the first result"
STOP: Final = "from Ctrl-C to the end"
WORKS: Final = (PAGE, EVENTS, QUERIES, RESULT, CPU, STOP)
_SHOWN: Final = ("ranking", "suspects", "rising", "servers", "incidents", "members")
_START_S: Final = 300.0
_ARCHIVE_S: Final = 300.0
_STOP_S: Final = 120.0
_LOOK_S: Final = 0.05
_ANSWER_S: Final = 5.0


class StartFailed(Exception):
    """A run that did not come up."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("activity_start", "From the start of the live example to its first result.")
    parser.add_argument("--rounds", type=int, default=3, help="first and later starts (3)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    recording = results.begin("activity_start", parser, options, arguments)
    found: dict[str, list[Mapping[str, float]]] = {FIRST: [], LATER: []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="penstock-start-") as scratch:
            cache = Path(scratch, "cache")
            for name, rounds in found.items():
                try:
                    rounds.append(_measured(Path(scratch, name.replace(" ", "-")), cache, name == FIRST))
                except StartFailed as error:
                    sys.exit(str(error))
            if not list(cache.glob("penstock/java/*.jsa")):
                recording.lacks(f"no archive of Java's classes was made within {_ARCHIVE_S:.0f} s")
    recording.keep(rows_of(found))


def rows_of(found: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Row]:
    """A row for each quantity; the goal is for the first start, which is what a new user sees."""
    return [
        Row(
            work, "s", Better.LOWER,
            {name: Figure.of([one[work] for one in rounds]) for name, rounds in found.items() if rounds},
            FIRST, goal=GOAL_S if work == RESULT else None, table="From the start",
        )
        for work in WORKS
    ]  # fmt: skip


def _measured(folder: Path, cache: Path, makes_archive: bool) -> dict[str, float]:
    """One start, with the seconds until each moment. Raises StartFailed."""
    port = free_port()
    command = [sys.executable, "-m", "penstock", "activity", "run", "--data-dir", str(folder), "--port", "0"]
    began_s = time.monotonic()
    with (folder.with_suffix(".out")).open("wb") as output:
        run = subprocess.Popen(
            [*command, "--http-port", str(port)], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        )  # fmt: skip
    try:
        found: dict[str, float] = {}
        moments: dict[str, Callable[[Mapping[str, Any]], bool]] = {
            PAGE: bool,
            EVENTS: lambda state: any(topic["total"] for topic in state["topics"]),
            QUERIES: lambda state: state["phase"] == "running",
            RESULT: lambda state: any(state[name] for name in _SHOWN),
        }
        while not moments.keys() <= found.keys():
            if run.poll() is not None or time.monotonic() - began_s > _START_S:
                raise StartFailed(f"the run has not started:\n{folder.with_suffix('.out').read_text()}")
            state = _state(port)
            for work, is_there in moments.items():
                if work not in found and state and is_there(state):
                    found[work] = time.monotonic() - began_s
                    if work == RESULT:
                        found[CPU] = _cpu_s(run.pid)
            time.sleep(_LOOK_S)
        deadline_s = time.monotonic() + _ARCHIVE_S
        while makes_archive and not list(cache.glob("penstock/java/*.jsa")) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
        stopped_s = time.monotonic()
        run.send_signal(signal.SIGINT)
        run.wait(_STOP_S)
        found[STOP] = time.monotonic() - stopped_s
        return found
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def _state(port: int) -> Mapping[str, Any]:
    """What the page shows; empty while there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/state", timeout=_ANSWER_S) as answer:
            found: Mapping[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and all of its descendants, including those that have ended."""
    stats = process_stats()
    return sum(stats[each].ticks + stats[each].waited for each in descendants(pid, stats)) / TICKS_PER_S


if __name__ == "__main__":
    main(sys.argv[1:])
