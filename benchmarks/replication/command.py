"""`python -m benchmarks.replication`: the whole comparison, printed as tables, kept as a result, and drawn."""

from __future__ import annotations

import argparse
import ctypes
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from tests.peers.installing import CACHE, NotAvailable

from benchmarks import results
from benchmarks.faults import kafka_cluster, namespaces
from benchmarks.faults.cluster import NoAnswer, WaitTimedOut
from benchmarks.faults.namespaces import Loopback, Network, NoNamespaces
from benchmarks.faults.report import differences
from benchmarks.peers.rounds import Figures
from benchmarks.peers.servers import ServerFailed
from benchmarks.ratio_chart import ratios
from benchmarks.replication.failover import SENDERS, Fault, timeouts
from benchmarks.replication.rounds import (
    DEPTH,
    DEPTHS,
    FAILOVER,
    FULL,
    LOADED,
    MAKERS,
    OURS,
    PARTS,
    QUICK,
    ROWS,
    SETUPS,
    THEIRS,
    Contender,
    Load,
    Run,
    Say,
    Setup,
    fail_over,
)
from benchmarks.results import Result
from penstock.cluster.errors import ZooKeeperNotStarted

_NOTES: Final = (
    "ours syncs before it acknowledges, Kafka does not; where neither syncs, the topic of ours has "
    "flush.messages=9223372036854775807",
    "CPU is that of three brokers, ours with three ZooKeepers, which are idle but for changes of the cluster",
    "a killed process (SIGKILL) is given away by refused connections and leaves the page cache intact; a frozen one "
    "(SIGSTOP) and one that is cut off (packets dropped) keep connections open and say nothing, so a client waits for "
    "its own time-out; the failovers of both clusters are measured with every server in a network namespace of its own",
)
_PR_SET_PDEATHSIG: Final = 1
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _FLOOR = 640, 340, 70, 130, 44, 300
_COLOURS: Final = ("#2a7f62", "#b5483a")
_INK, _GREY = "#222", "#999"

# ---------------------------------------------------------------------------------------------- the comparison


def main(arguments: Sequence[str] = ()) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    if any(given is not None and given < 1 for given in (options.rounds, options.warm_up, options.failovers)):
        parser.error("--rounds, --warm-up and --failovers are at least 1; --parts leaves something out")
    lacks: list[str] = []
    if FAILOVER in options.parts and not namespaces.is_in_a_namespace():
        try:
            command = namespaces.in_a_namespace([sys.executable, "-m", "benchmarks.replication", *arguments])
        except NoNamespaces as error:
            lacks.append(f"no leader was cut off, and failovers were measured on the loopback: {error}")
        else:
            if options.only != OURS:
                kafka_cluster.provide()
            # Not exec: other benchmarks may follow this one.
            if subprocess.call(command, env=namespaces.inside()):
                raise SystemExit(1)
            return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # The servers end with this process, which ends with its parent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    recording = results.begin("replication", parser, options, arguments, irrelevant=("folder",))
    for reason in lacks:
        recording.lacks(reason)
    load = _load(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(load, [options.only] if options.only else list(MAKERS), options.folder)
    is_over = False
    try:
        comparison.run(options.parts)
        is_over = True
    except (WaitTimedOut, NoAnswer, ServerFailed, ZooKeeperNotStarted) as error:
        raise SystemExit(f"FAILED: {error}") from None
    except (KeyboardInterrupt, SystemExit):
        # What was measured until then is worth something.
        recording.lacks("the run was ended before its time")
    for reason in comparison.lacks:
        recording.lacks(reason)
    recording.keep(
        comparison.figures.rows(ROWS, (OURS, THEIRS), OURS, THEIRS),
        notes=[*_NOTES, *comparison.notes],
        settings={"load": asdict(load)},
        details={"timeouts": comparison.timeouts},
    )
    if not is_over:
        raise SystemExit(1)


def _parser() -> argparse.ArgumentParser:
    parser = results.parser("replication", "acks=all, three replicas: ours beside Apache Kafka.")
    parser.add_argument("--quick", action="store_true", help="short rounds: shows that it works, not how fast")
    parser.add_argument("--only", choices=MAKERS, help="one cluster, without the other")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured [everything]")
    parser.add_argument("--rounds", type=int, help="how many of requests and of bulk")
    parser.add_argument("--warm-up", type=int, help="requests to each topic before the first round")
    parser.add_argument("--failovers", type=int, help="how often a leader goes away in each way")
    parser.add_argument("--folder", type=Path, default=CACHE, help="where the brokers' data is put meanwhile")
    return parser


def _load(options: argparse.Namespace) -> Load:
    load = QUICK if options.quick else FULL
    if options.failovers is not None:
        load = replace(load, failovers=options.failovers)
    if options.rounds is not None:
        load = replace(load, rounds=options.rounds, bulk_rounds=options.rounds)
    if options.warm_up is not None:
        load = replace(load, warm_up=options.warm_up)
    return load


@dataclass
class Comparison:
    """One part after the other, each on clusters of its own; what was measured grows as it goes."""

    load: Load
    names: Sequence[str]
    folder: Path
    figures: Figures = field(default_factory=Figures)
    notes: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    timeouts: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def run(self, parts: Sequence[str]) -> None:
        """NotInTime, NoAnswer, ServerFailed."""
        say: Say = self._say
        # First of all: the loopback of a new namespace is down until then.
        network = namespaces.network(with_cuts=namespaces.is_in_a_namespace())
        others = [part for part in parts if part != FAILOVER]
        if others:
            with self._clusters(LOADED, Loopback()) as contenders:
                Run(self.figures, self.load, contenders, say, others).run()
        if FAILOVER in parts:
            faults = [fault for fault in Fault if fault is not Fault.CUT or network.can_cut]
            for setup in SETUPS:
                with self._clusters(setup, network) as contenders:
                    self._describe_timeouts(setup, contenders)
                    fail_over(self.figures, contenders, setup, faults, self.load.failovers, say)

    @contextmanager
    def _clusters(self, setup: Setup, network: Network) -> Iterator[list[Contender]]:
        """The available contenders, running; settings that differ from the defaults are noted."""
        with tempfile.TemporaryDirectory(prefix="replication-", dir=self.folder) as scratch, ExitStack() as stack:
            contenders: list[Contender] = []
            for name in self.names:
                self._say(f"{setup.name}: starting three brokers of {name}")
                try:
                    contender = MAKERS[name](network, Path(scratch), setup)
                except NotAvailable as error:
                    self._lack(f"{name} is not available: {error}")
                    continue
                stack.enter_context(contender.cluster)
                contenders.append(contender)
                self._note(f"{setup.name}, {contender.name}", contender.cluster.settings())
            yield contenders

    def _note(self, who: str, settings: dict[str, Any]) -> None:
        self.notes += [f"{who}: {line}" for line in differences(settings)]

    def _lack(self, what: str) -> None:
        if what not in self.lacks:
            self.lacks.append(what)

    def _describe_timeouts(self, setup: Setup, contenders: Sequence[Contender]) -> None:
        self._note(setup.name, {f"{client} producer": setup.producers.get(client, {}) for client in SENDERS})
        found = {contender.name: timeouts(contender.cluster) for contender in contenders}
        self.timeouts[setup.name] = found
        for name, given in found.items():
            self.notes.append(
                f"{setup.name}, {name}, time-outs as the brokers report them: "
                + ", ".join(f"{setting}={value}" for setting, value in given.items())
            )

    def _say(self, text: str) -> None:
        print(f"replication: {time.monotonic() - self._began:4.0f} s  {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------- the chart


def pictures(result: Result) -> dict[str, str]:
    drawn = ratios(result)
    by_depth = depths(result)
    return drawn if by_depth is None else {**drawn, f"{result.name}-depth.svg": by_depth}


def depths(result: Result) -> str | None:
    """A line for each cluster; the axis of depth is logarithmic. None if the run has no figures by depth."""
    works = {DEPTH[depth].name: depth for depth in DEPTHS}
    series: dict[str, dict[int, float]] = {}
    for row in result.rows:
        if row.work in works and row.table == DEPTH[1].table:
            for name, figure in row.figures.items():
                series.setdefault(name, {})[works[row.work]] = figure.value
    if not series:
        return None
    most = max(figure for line in series.values() for figure in line.values())

    def place(depth: int, figure: float) -> tuple[float, float]:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(depth) / math.log2(DEPTHS[-1])
        return round(x, 1), round(_FLOOR - (_FLOOR - _TOP) * figure / most, 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        '<text x="10" y="20" font-size="14">requests per second on one connection, by how many are in flight</text>',
        f'<text x="{_LEFT - 8}" y="{_TOP + 4}" text-anchor="end" fill="{_GREY}">{most:,.0f}</text>',
        f'<text x="{_LEFT - 8}" y="{_FLOOR}" text-anchor="end" fill="{_GREY}">0</text>',
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_FLOOR}" y2="{_FLOOR}" stroke="{_GREY}"/>',
    ]
    lines += [
        f'<text x="{place(depth, 0)[0]}" y="{_FLOOR + 16}" text-anchor="middle" fill="{_GREY}">{depth}</text>'
        for depth in DEPTHS
    ]
    for colour, (name, line) in zip(_COLOURS, series.items(), strict=False):
        points = [place(depth, figure) for depth, figure in sorted(line.items())]
        path = " ".join(f"{x},{y}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1]
        lines.append(f'<text x="{x + 8}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>", ""])
