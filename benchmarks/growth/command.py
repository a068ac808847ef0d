"""`python -m benchmarks.growth`: measured, printed as tables, and kept as a result."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.peers.installing import CACHE, NotToBeHad

from benchmarks import results
from benchmarks.growth.figures import rows
from benchmarks.growth.stages import FULL, QUICK, Run, Starter
from benchmarks.peers import kafka, ours

_NOTES = (
    "memory per partition and per connection: what the resident memory grew by; a JVM's reserved heap hides it",
    "create: until every partition can be read; Kafka has answered long before that",
    "CPU: the broker's, for all that is needed to ask once; ours also looks for the next request while it has time",
)


def main(arguments: Sequence[str] = ()) -> None:
    parser = results.parser("growth", "What a broker's size costs.")
    parser.add_argument("--quick", action="store_true", help="few partitions: shows that it works, not how it grows")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder for the brokers' data during the run")
    options = parser.parse_args(arguments)
    recording = results.begin("growth", parser, options, arguments, irrelevant=("folder",))
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"growth: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    # A terminated run takes its brokers along.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    beside: Starter | None = None
    if not options.ours_only:
        try:
            beside = kafka.Kafka().start
        except NotToBeHad as error:
            recording.lacks(f"{kafka.NAME} is not available: {error}")
    options.folder.mkdir(parents=True, exist_ok=True)
    load = QUICK if options.quick else FULL
    run = Run(load, ours.start, beside, options.folder, say)
    run.run()
    say("done")
    servers = [ours.NAME] if beside is None else [ours.NAME, kafka.NAME]
    recording.keep(rows(run.figures, servers), notes=_NOTES, settings={"load": asdict(load)})
