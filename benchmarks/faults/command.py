"""`python -m benchmarks.faults`: a run of faults on a real cluster, printed, and kept in benchmarks/results/."""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.peers.installing import CACHE, NotToBeHad

from benchmarks.faults import places
from benchmarks.faults.clients import SENDERS
from benchmarks.faults.clusters import Cluster, NotInTime
from benchmarks.faults.kafka_cluster import KafkaCluster
from benchmarks.faults.penstock_cluster import PenstockCluster
from benchmarks.faults.places import Network, NoNamespaces
from benchmarks.faults.reporting import as_json, show
from benchmarks.faults.running import Outcome, Plan, run
from benchmarks.faults.timeline import svg
from benchmarks.peers.servers import ServerFailed
from penstock.cluster.zookeeper_errors import ZooKeeperNotStarted

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
KINDS: Final = {"penstock": PenstockCluster, "kafka": KafkaCluster}
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] = ()) -> None:
    options = _options(arguments)
    if options.cuts and not places.is_in_a_namespace():
        try:
            command = places.in_a_namespace([sys.executable, "-m", "benchmarks.faults", *arguments])
        except NoNamespaces as error:
            print(f"nobody is cut off in this run: {error}")
            options.cuts = False
        else:
            # Not exec: other benchmarks may follow this one.
            if subprocess.call(command, env=places.inside()):
                raise SystemExit(1)
            return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Who is told to end, or whose parent is no more, takes the servers along.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if not _run(options):
        raise SystemExit(1)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description="A cluster under load and faults.")
    parser.add_argument("--kind", choices=KINDS, default="penstock", help="whose cluster it is")
    parser.add_argument("--faults", type=int, default=50, help="how many [50]")
    parser.add_argument("--seed", type=int, default=1, help="of the schedule [1]")
    parser.add_argument("--rate", type=float, default=150.0, help="records a second of each client [150]")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--clients", nargs="*", choices=list(SENDERS), default=list(SENDERS))
    parser.add_argument("--rolling", type=int, default=0, metavar="ROUNDS",
                        help="instead of faults: restart each broker in turn, so many times")  # fmt: skip
    parser.add_argument("--rough", action="store_true", help="next fault before all is well; all brokers at once too")
    parser.add_argument("--no-cuts", dest="cuts", action="store_false", help="without network namespaces")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the data is put meanwhile")
    parser.add_argument("--keep", action="store_true", help="leave the data there, to look into")
    options = parser.parse_args(arguments)
    if options.faults < 1 or options.rate <= 0 or options.partitions < 1 or not options.clients:
        parser.error("at least one fault, one partition, one client, and a rate above zero are needed")
    return options


def _run(options: argparse.Namespace) -> bool:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"faults: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    plan = Plan(
        options.faults, options.seed, options.partitions, options.rate, tuple(options.clients), options.rough,
        options.rolling,
    )  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=options.folder))
    try:
        say(f"starting {options.kind}")
        with _cluster(options.kind, places.network(options.cuts), folder) as cluster:
            outcome = run(cluster, plan, folder, say)
    except (NotInTime, ServerFailed, ZooKeeperNotStarted) as error:
        print(f"FAILED: {error}\nwhat the servers and clients said is in {folder}")
        return False
    except NotToBeHad as error:
        print(f"{options.kind} is not to be had: {error}")
        return False
    _keep(outcome)
    show(outcome)
    if outcome.is_good and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"what the servers and clients said is in {folder}")
    return outcome.is_good


def _cluster(kind: str, network: Network, folder: Path) -> Cluster:
    made: Cluster = KINDS[kind](network, folder)
    return made


def _keep(outcome: Outcome) -> None:
    RESULTS.mkdir(exist_ok=True)
    mode = "rolling" if outcome.plan.rolling_rounds else "rough" if outcome.plan.is_rough else "faults"
    name = f"faults-{outcome.kind}" + ("" if mode == "faults" else f"-{mode}")
    (RESULTS / f"{name}.json").write_text(json.dumps(as_json(outcome), indent=1, ensure_ascii=False))
    what = f"{len(outcome.happened)} {'restarts' if mode == 'rolling' else 'faults'}, seed {outcome.plan.seed}"
    title = f"{outcome.kind}, three brokers, three replicas, acks=all: {what}"
    picture = svg(title, outcome.acked_s, outcome.happened, outcome.began_s, outcome.ended_s)
    (RESULTS / f"{name}.svg").write_text(picture)
    print(f"kept in {RESULTS.parent.name}/{RESULTS.name}/ ({name}.json, {name}.svg)")
