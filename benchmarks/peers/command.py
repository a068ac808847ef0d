"""`python -m benchmarks.peers`: the whole comparison, printed as tables and kept as a result."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.peers.installing import CACHE, NotAvailable

from benchmarks import results
from benchmarks.peers import kafka, kafka_09, ours
from benchmarks.peers.rounds import DISK, FULL, QUICK, ROWS, START, Figures, Run, Starter

CONTENDERS = (ours.NAME, ours.ON_ASYNCIO, kafka.NAME, kafka_09.NAME)
_SAME_DISK = 1.5
_NOTES = (
    "neither synced: Kafka as shipped, ours with flush.messages=9223372036854775807",
    "confluent-kafka consumes with fetch.queue.backoff.ms=10 from every broker: by default it pauses for a second when "
    "its queue is full, and the figure would be how often that happens",
)


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("peers", "Our broker beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--without-0.9", dest="without_09", action="store_true", help="without Kafka 0.9.0.1")
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder for the brokers' data during the run")
    options = parser.parse_args(arguments)
    recording = results.begin("peers", parser, options, arguments, irrelevant=("folder",))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"peers: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # A terminated run takes its brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    starters: list[Starter] = list(ours.starters())
    if len(starters) == 1:
        recording.lacks("uvloop is not installed, so both brokers of ours would run on asyncio's loop")
    if not options.ours_only:
        starters += peers(options.without_09, recording)
    options.folder.mkdir(parents=True, exist_ok=True)
    load = QUICK if options.quick else FULL
    run = Run(load, starters, options.folder, say)
    run.run()
    say("done")
    has_09 = run.figures.median(START, kafka_09.NAME) is not None
    recording.keep(
        run.figures.rows(ROWS, CONTENDERS, ours.NAME, kafka.NAME),
        notes=[*_NOTES, *(kafka_09.NOTES if has_09 else ()), *run.notes],
        doubts=doubts(run.figures),
        settings={"load": asdict(load)},
    )


def peers(without_09: bool, recording: results.Recording) -> list[Starter]:
    """Those that are installed or can be; a run without one of them is partial."""
    found: list[Starter] = []
    try:
        found.append(kafka.Kafka().start)
    except NotAvailable as error:
        recording.lacks(f"{kafka.NAME} is not available: {error}")
    if not without_09:
        try:
            found.append(kafka_09.Kafka09().start)
        except NotAvailable as error:
            recording.lacks(f"{kafka_09.NAME} is not available: {error}")
    return found


def doubts(figures: Figures) -> list[str]:
    """Why rows that wait for the disk may not count."""
    found = []
    for theirs in (kafka.NAME, kafka_09.NAME):
        ratio = figures.ratio(DISK, ours.NAME, theirs)
        if ratio is not None and not 1 / _SAME_DISK < ratio < _SAME_DISK:
            found.append(f"the disk differed between ours and {theirs} (ratio {ratio:.2f}): synced rows do not count")
    return found
