"""`python -m benchmarks.growth`: measured, printed as tables, and kept in benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.peers.installing import CACHE, NotToBeHad

from benchmarks.growth.chart import svg
from benchmarks.growth.figures import life, requests
from benchmarks.growth.stages import FULL, QUICK, Run, Starter
from benchmarks.peers import kafka, ours
from benchmarks.report import machine, table

RESULTS = Path(__file__).resolve().parents[1] / "results"
_QUIET_LOAD = 0.5
_NOTES = (
    "memory a partition and a connection: what the resident memory grew by; a JVM's heap hides it.",
    "make: until every partition can be read; Kafka has answered long before that.",
    "CPU: the broker's, for all that is needed to ask once; ours also looks for the next request while it has time.",
)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="What a broker's size costs.")
    parser.add_argument("--quick", action="store_true", help="few partitions: shows that it works, not how it grows")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the brokers' data is put meanwhile")
    options = parser.parse_args(arguments)
    busy, began = os.getloadavg()[0], time.monotonic()

    def say(text: str) -> None:
        print(f"growth: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # Who is told to end takes the brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    beside: Starter | None = None
    if not options.ours_only:
        try:
            beside = kafka.Kafka().start
        except NotToBeHad as error:
            print(f"{kafka.NAME} is not to be had, so ours stands alone: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(QUICK if options.quick else FULL, ours.start, beside, options.folder, say)
    run.run()
    say("done")
    _report(run, [ours.NAME] if beside is None else [ours.NAME, kafka.NAME], options.quick, busy)


def _report(run: Run, servers: list[str], is_quick: bool, busy: float) -> None:
    tables = {server: requests(run.figures, server) for server in servers}
    for server, lines in tables.items():
        table(f"{server}: requests" + (" (short; not to be quoted)" if is_quick else ""), lines)
    lines = life(run.figures, servers)
    table("Making, starting, stopping, memory", lines)
    for note in _NOTES:
        print(f"  {note}")
    if busy > _QUIET_LOAD:
        print(f"CAUTION: the machine was busy before the run began (load {busy:.1f})")
    if is_quick:
        return
    RESULTS.mkdir(exist_ok=True)
    kept = {
        "machine": machine(),
        "load_before": busy,
        "requests": tables,
        "life": lines,
        "notes": _NOTES,
        "rounds": run.figures.as_json(),
    }
    (RESULTS / "growth.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
    (RESULTS / "growth.svg").write_text(svg(run.figures, ours.NAME))
    print(f"\nkept in {RESULTS.parent.name}/{RESULTS.name}/ (growth.json, growth.svg)")
