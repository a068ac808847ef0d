"""`python -m benchmarks.peers`: the whole comparison, printed as a table and kept in benchmarks/results/."""

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

from benchmarks.peers import kafka, ours
from benchmarks.peers.chart import svg
from benchmarks.peers.figures import DISK, START, Figures, rows
from benchmarks.peers.rounds import FULL, QUICK, Run, Starter
from benchmarks.report import machine, table

RESULTS = Path(__file__).resolve().parents[1] / "results"
_QUIET_LOAD = 0.5
_SAME_DISK = 1.5


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Our broker beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the brokers' data is put meanwhile")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    busy = os.getloadavg()[0]

    def say(text: str) -> None:
        print(f"peers: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # Who is told to end takes the brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    starters: list[Starter] = list(ours.starters())
    if not options.ours_only:
        try:
            starters.append(kafka.Kafka().start)
        except NotToBeHad as error:
            print(f"Apache Kafka is not to be had, so ours stands alone: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(QUICK if options.quick else FULL, starters, options.folder, say)
    run.run()
    say("done")
    _report(run.figures, [ours.ON_ASYNCIO] if len(ours.starters()) > 1 else [], options.quick)
    for doubt in doubts(run.figures, busy):
        print(f"CAUTION: {doubt}")


def _report(figures: Figures, also: Sequence[str], is_quick: bool) -> None:
    how = "short rounds; not to be quoted" if is_quick else "medians of alternating rounds"
    lines = rows(figures, ours.NAME, also, kafka.NAME)
    table(f"Our broker beside Apache Kafka 4.3, same clients, same machine ({how})", lines)
    RESULTS.mkdir(exist_ok=True)
    kept = {"machine": machine(), "quick": is_quick, "rows": lines, "rounds": figures.as_json()}
    (RESULTS / "peers.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
    picture = RESULTS / "peers.svg"
    # One of an earlier run would be taken for this one's.
    picture.unlink(missing_ok=True)
    if figures.ratio(START, ours.NAME, kafka.NAME) is not None:
        picture.write_text(svg(figures, ours.NAME, kafka.NAME))
    print(f"\nkept in {RESULTS.parent.name}/{RESULTS.name}/ (peers.json, and the ratios as peers.svg if Kafka ran)")


def doubts(figures: Figures, load_before: float) -> list[str]:
    """Why the figures may not be worth much."""
    found = []
    if load_before > _QUIET_LOAD:
        found.append(f"the machine was busy before the run began (load {load_before:.1f})")
    ratio = figures.ratio(DISK, ours.NAME, kafka.NAME)
    if ratio is not None and not 1 / _SAME_DISK < ratio < _SAME_DISK:
        found.append(f"the disk was not alike for both (ratio {ratio:.2f}): the synced rows do not count")
    return found
