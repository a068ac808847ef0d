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

from benchmarks.peers import kafka, kafka_09, ours
from benchmarks.peers.chart import svg
from benchmarks.peers.figures import DISK, START, Figures, rows
from benchmarks.peers.rounds import FULL, QUICK, Run, Starter
from benchmarks.report import machine, table

RESULTS = Path(__file__).resolve().parents[1] / "results"
_QUIET_LOAD = 0.5
_SAME_DISK = 1.5
_NOBODY_SYNCS = "same flush settings: Kafka as shipped; ours with flush.messages=9223372036854775807. Nobody syncs."


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Our broker beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--without-0.9", dest="without_09", action="store_true", help="without Kafka 0.9.0.1")
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
        starters += peers(options.without_09)
    options.folder.mkdir(parents=True, exist_ok=True)
    run = Run(QUICK if options.quick else FULL, starters, options.folder, say)
    run.run()
    say("done")
    _report(run, [ours.ON_ASYNCIO] if len(ours.starters()) > 1 else [], options.quick, doubts(run.figures, busy))


def peers(without_09: bool) -> list[Starter]:
    """Those that can be had; of any other one it is said why not."""
    found: list[Starter] = []
    try:
        found.append(kafka.Kafka().start)
    except NotToBeHad as error:
        print(f"{kafka.NAME} is not to be had, so there are no ratios: {error}")
    if not without_09:
        try:
            found.append(kafka_09.Kafka09().start)
        except NotToBeHad as error:
            print(f"{kafka_09.NAME} is not to be had, so its column is missing: {error}")
    return found


def _report(run: Run, also: Sequence[str], is_quick: bool, cautions: Sequence[str]) -> None:
    figures = run.figures
    how = "short rounds; not to be quoted" if is_quick else "medians of alternating rounds"
    older = [] if figures.median(START, kafka_09.NAME) is None else [kafka_09.NAME]
    lines = rows(figures, ours.NAME, also, kafka.NAME, older)
    table(f"Our broker beside Apache Kafka, same clients, same machine ({how}); ratio: ours to {kafka.NAME}", lines)
    notes = [_NOBODY_SYNCS, *(kafka_09.NOTES if older else ()), *run.notes]
    print("\n".join(f"  {note}" for note in notes))
    RESULTS.mkdir(exist_ok=True)
    kept = {
        "machine": machine(),
        "quick": is_quick,
        "cautions": cautions,
        "rows": lines,
        "notes": notes,
        "rounds": figures.as_json(),
    }
    (RESULTS / "peers.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
    picture = RESULTS / "peers.svg"
    # One of an earlier run would be taken for this one's.
    picture.unlink(missing_ok=True)
    if figures.ratio(START, ours.NAME, kafka.NAME) is not None:
        picture.write_text(svg(figures, ours.NAME, kafka.NAME, older[0] if older else None))
    print(f"\nkept in {RESULTS.parent.name}/{RESULTS.name}/ (peers.json, and the ratios as peers.svg if Kafka 4.3 ran)")
    for caution in cautions:
        print(f"CAUTION: {caution}")


def doubts(figures: Figures, load_before: float) -> list[str]:
    """Why the figures may not be worth much."""
    found = []
    if load_before > _QUIET_LOAD:
        found.append(f"the machine was busy before the run began (load {load_before:.1f})")
    for theirs in (kafka.NAME, kafka_09.NAME):
        ratio = figures.ratio(DISK, ours.NAME, theirs)
        if ratio is not None and not 1 / _SAME_DISK < ratio < _SAME_DISK:
            found.append(f"the disk differed between ours and {theirs} (ratio {ratio:.2f}): synced rows do not count")
    return found
