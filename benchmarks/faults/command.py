"""`python -m benchmarks.faults`: a run of faults on a real cluster, printed and kept as a result."""

from __future__ import annotations

import argparse
import ctypes
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.peers.installing import CACHE, NotAvailable

from benchmarks import results
from benchmarks.faults import kafka_cluster, namespaces, report
from benchmarks.faults.clients import SENDERS
from benchmarks.faults.cluster import Cluster, WaitTimedOut
from benchmarks.faults.injector import DISKS, Kind, Pair, Target
from benchmarks.faults.kafka_cluster import KafkaCluster
from benchmarks.faults.namespaces import Hosts, Network, NoNamespaces
from benchmarks.faults.penstock_cluster import WITH_DISKS, PenstockCluster
from benchmarks.faults.run import Plan, run
from benchmarks.peers.servers import ServerFailed
from penstock.cluster.errors import ZooKeeperNotStarted

KINDS: Final = {"penstock": PenstockCluster, "kafka": KafkaCluster}
_OURS: Final = "penstock"
_FAULTS: Final = 50
_RESTARTS: Final = 2
_DELAY_MS: Final = 1.0
_LOSS_PERCENT: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1


def main(arguments: Sequence[str] = ()) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.faults < 1 or options.rate <= 0 or options.partitions < 1 or not options.clients:
        parser.error("at least one fault, one partition, one client, and a rate above zero are needed")
    for name in ("secure", "disks"):
        if getattr(options, name) and options.kind != _OURS:
            parser.error(f"--{name} needs --kind {_OURS}")
    if options.disks and (options.rough or options.rolling or options.secure):
        parser.error("--disks excludes --rough, --rolling and --secure")
    if not options.disks and any(_pair(each)[0] is Kind.DISK for each in options.only):
        parser.error("only brokers with several disks can lose one: add --disks")
    lacks: list[str] = []
    if options.cuts and not namespaces.is_in_a_namespace():
        try:
            command = namespaces.in_a_namespace([sys.executable, "-m", "benchmarks.faults", *arguments])
        except NoNamespaces as error:
            lacks.append(f"no server was cut off: {error}")
            options.cuts = False
        else:
            if options.kind != _OURS:
                kafka_cluster.provide()
            # Not exec: other benchmarks may follow this one.
            if subprocess.call(command, env=namespaces.inside()):
                raise SystemExit(1)
            return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # The servers end with this process, which ends with its parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    variant = "-".join(
        [
            *([] if options.kind == _OURS else [options.kind]),
            *(["rolling"] if options.rolling else []),
            *(["rough"] if options.rough else []),
            *(["secure"] if options.secure else []),
            *(["disks"] if options.disks else []),
            *(["hosts"] if options.hosts else []),
        ]
    )
    recording = results.begin(
        "faults", parser, options, arguments, variant=variant or None,
        irrelevant=("kind", "rolling", "rough", "secure", "disks", "hosts", "folder", "keep"),
    )  # fmt: skip
    if options.rolling not in (0, _RESTARTS):
        lacks.append(f"not {_RESTARTS} rounds of restarts")
    for reason in lacks:
        recording.lacks(reason)
    if not _run(options, recording):
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = results.parser("faults", "A cluster under load and faults: are records lost?")
    parser.add_argument("--kind", choices=KINDS, default=_OURS, help="kind of cluster")
    parser.add_argument("--faults", type=int, default=_FAULTS, help=f"number of faults [{_FAULTS}]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the schedule [1]")
    parser.add_argument("--rate", type=float, default=150.0, help="records per second of each client [150]")
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--clients", nargs="*", choices=list(SENDERS), default=list(SENDERS))
    parser.add_argument("--only", nargs="*", type=_pair_name, default=(), metavar="FAULT:TARGET",
                        help="choose from these faults, such as cut:leader or kill:controller")  # fmt: skip
    parser.add_argument("--outlast", action="store_true", help="each fault lasts until writes have resumed elsewhere")
    parser.add_argument("--rolling", type=int, default=0, metavar="ROUNDS",
                        help="instead of faults, restart each broker in turn N times")  # fmt: skip
    parser.add_argument("--rough", action="store_true",
                        help="start the next fault before the cluster has recovered; also hit all brokers")  # fmt: skip
    parser.add_argument("--secure", action="store_true",
                        help="TLS, logins and ACLs, for clients and between brokers")  # fmt: skip
    parser.add_argument("--disks", action="store_true",
                        help="brokers have two disks, of which one fails and is replaced by an empty one")  # fmt: skip
    parser.add_argument("--no-cuts", dest="cuts", action="store_false", help="without network namespaces")
    parser.add_argument("--hosts", action="store_true",
                        help="three hosts with broker and ZooKeeper, and 1 ms and 0.1%% loss if possible")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=CACHE, help="folder for the data")
    parser.add_argument("--keep", action="store_true", help="keep the data")
    return parser


def _pair_name(text: str) -> str:
    """Checked, and kept as it is written, because the result names the options."""
    _pair(text)
    return text


def _pair(text: str) -> Pair:
    kind, _, target = text.upper().partition(":")
    try:
        return Kind[kind], Target[target]
    except KeyError:
        kinds, targets = (", ".join(each.name.lower() for each in enum) for enum in (Kind, Target))
        raise argparse.ArgumentTypeError(f"{text} is not FAULT:TARGET, of {kinds} and {targets}") from None


def _network(options: argparse.Namespace) -> Network:
    if options.hosts and options.cuts:
        return Hosts(_DELAY_MS, _LOSS_PERCENT)
    return namespaces.network(options.cuts)


def _run(options: argparse.Namespace, recording: results.Recording) -> bool:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"faults: {time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)

    only = tuple(map(_pair, options.only)) or (DISKS if options.disks else ())
    plan = Plan(
        options.faults, options.seed, options.partitions, options.rate, tuple(options.clients), options.rough,
        options.rolling, only=only, outlasts=options.outlast,
    )  # fmt: skip
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir=options.folder))
    try:
        say(f"starting {options.kind}{', with TLS, logins and ACLs' if options.secure else ''}")
        network = _network(options)
        with _cluster(options, network, folder) as cluster:
            outcome = run(cluster, plan, folder, say)
    except (WaitTimedOut, ServerFailed, ZooKeeperNotStarted) as error:
        print(f"FAILED: {error}\nOutput of servers and clients: {folder}")
        return False
    except NotAvailable as error:
        print(f"{options.kind} is not available: {error}")
        return False
    if not outcome.is_good:
        recording.lacks(report.verdict(outcome))
    hosts = [network.describe()] if isinstance(network, Hosts) else []
    recording.keep(report.rows(outcome), notes=[*report.notes(outcome), *hosts], details=report.details(outcome))
    report.show(outcome)
    if outcome.is_good and not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"Output of servers and clients: {folder}")
    return outcome.is_good


def _cluster(options: argparse.Namespace, network: Network, folder: Path) -> Cluster:
    if options.secure:
        return PenstockCluster(network, folder, is_secure=True)
    if options.disks:
        return PenstockCluster(network, folder, WITH_DISKS, disks=2)
    made: Cluster = KINDS[options.kind](network, folder)
    return made
