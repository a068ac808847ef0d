"""`python -m benchmarks.replication`: the whole comparison, printed as a table and kept in benchmarks/results/."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.peers.installing import CACHE, NotToBeHad

from benchmarks.faults.asking import NoAnswer
from benchmarks.faults.clusters import NotInTime
from benchmarks.peers.figures import Figures, Work
from benchmarks.peers.servers import ServerFailed
from benchmarks.replication.chart import depths, ratios
from benchmarks.replication.contenders import MAKERS, OURS, THEIRS, Contender
from benchmarks.replication.figures import DEEPEST, DEPTH, IDLE, rows
from benchmarks.replication.rounds import FULL, PARTS, QUICK, Load, Run, Say
from benchmarks.report import machine, table
from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
_QUIET_LOAD: Final = 0.5
_NOTES: Final = (
    "both as shipped: ours syncs before it acknowledges, Kafka does not; where nobody syncs, ours has "
    "flush.messages=9223372036854775807",
    "CPU is that of three brokers, ours with three ZooKeepers, which are idle but for changes of the cluster",
)


def main(arguments: Sequence[str] = ()) -> None:
    options = _options(arguments)
    began, busy = time.monotonic(), os.getloadavg()[0]

    def say(text: str) -> None:
        print(f"replication: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    load = QUICK if options.quick else FULL
    if options.failovers is not None:
        load = replace(load, failovers=options.failovers)
    if options.rounds is not None:
        load = replace(load, rounds=options.rounds, bulk_rounds=options.rounds)
    if options.warm_up is not None:
        load = replace(load, warm_up=options.warm_up)
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        names = [options.only] if options.only else list(MAKERS)
        figures, is_all = _measured(load, names, tuple(options.parts), options.folder, say)
    except (NotInTime, NoAnswer, ServerFailed, ZooKeeperNotStarted) as error:
        raise SystemExit(f"FAILED: {error}") from None
    cautions = [f"the machine was busy before the run began (load {busy:.1f})"] if busy > _QUIET_LOAD else []
    if not is_all:
        cautions.append("the run was ended before its time: fewer rounds, and some rows are missing")
    name = "replication" if len(options.parts) == len(PARTS) else "-".join(["replication", *options.parts])
    _report(name, figures, options.quick, cautions)
    if not is_all:
        raise SystemExit(1)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description="acks=all, three replicas.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--only", choices=MAKERS, help="one cluster, without the other")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured [everything]")
    parser.add_argument("--rounds", type=int, help="how many of requests and of bulk")
    parser.add_argument("--warm-up", type=int, help="requests to each topic before the first round")
    parser.add_argument("--failovers", type=int, help="how often the leader is killed")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the brokers' data is put meanwhile")
    options = parser.parse_args(arguments)
    if any(given is not None and given < 1 for given in (options.rounds, options.warm_up, options.failovers)):
        parser.error("--rounds, --warm-up and --failovers are at least 1; --parts leaves something out")
    return options


def _measured(load: Load, names: Sequence[str], parts: Sequence[str], folder: Path, say: Say) -> tuple[Figures, bool]:
    """The figures, and whether there are all of them."""
    with tempfile.TemporaryDirectory(prefix="replication-", dir=folder) as scratch, ExitStack() as stack:
        contenders: list[Contender] = []
        for name in names:
            say(f"starting three brokers of {name}")
            try:
                contender = MAKERS[name](Path(scratch))
            except NotToBeHad as error:
                print(f"{name} is not to be had, so there are no ratios: {error}")
                continue
            stack.enter_context(contender.cluster)
            contenders.append(contender)
        run = Run(load, contenders, say, parts)
        try:
            run.run()
        except (KeyboardInterrupt, SystemExit):
            # What was measured until then is worth something.
            return run.figures, False
    return run.figures, True


def _report(name: str, figures: Figures, is_quick: bool, cautions: Sequence[str]) -> None:
    how = "short rounds; not to be quoted" if is_quick else "medians of alternating rounds"
    lines = rows(figures, OURS, THEIRS)
    table(f"Three brokers of ours beside three of Apache Kafka ({how}); ratio: ours to {THEIRS}", lines)
    print("\n".join(f"  {note}" for note in _NOTES))
    RESULTS.mkdir(exist_ok=True)
    kept = {
        "machine": machine(), "quick": is_quick, "cautions": list(cautions), "rows": lines, "notes": _NOTES,
        "rounds": figures.as_json(),
    }  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False))
    pictures = {
        f"{name}.svg": ratios(figures, OURS, THEIRS) if figures.ratio(IDLE, OURS, THEIRS) is not None else None,
        f"{name}-depth.svg": depths(figures, (OURS, THEIRS)) if _has(figures, DEPTH[DEEPEST]) else None,
    }
    for file, picture in pictures.items():
        # One of an earlier run would be taken for this one's.
        (RESULTS / file).unlink(missing_ok=True)
        if picture is not None:
            (RESULTS / file).write_text(picture)
    drawn = [file for file, picture in pictures.items() if picture is not None]
    print(f"\nkept in {RESULTS.parent.name}/{RESULTS.name}/ ({', '.join([f'{name}.json', *drawn])})")
    for caution in cautions:
        print(f"CAUTION: {caution}")


def _has(figures: Figures, work: Work) -> bool:
    return any(figures.median(work, name) is not None for name in (OURS, THEIRS))
