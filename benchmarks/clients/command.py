"""`python -m benchmarks.clients`: producing and consuming on our broker and on Apache Kafka 4.3: one table, one plot.

Rule: a row is one of our ways to send or read beside confluent-kafka at its best, in the same rounds against the same
broker; aiokafka and kafka-python stand in the tables of their own that are printed on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.peers.installing import NotToBeHad

from benchmarks.clients import consuming, producing
from benchmarks.clients.rounds import Outcome
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server
from benchmarks.ratio_chart import Bar, picture
from benchmarks.report import machine, table

RESULTS = Path(__file__).resolve().parents[1] / "results"
_QUIET_LOAD = 0.5


class Row(NamedTuple):
    """A figure of ours and confluent-kafka's; `better` is how many times better ours is."""

    server: str
    work: str
    ours: float
    theirs: float
    better: float
    goal: float | None

    def shown(self) -> dict[str, object]:
        return {
            "broker": self.server,
            "work": self.work,
            "ours": f"{self.ours:,.2f}",
            "confluent-kafka": f"{self.theirs:,.2f}",
            "times better": f"{self.better:.2f}",
            "goal": "" if self.goal is None else f"{self.goal:g}",
            "met": None if self.goal is None else self.better >= self.goal,
        }


def produced_rows(
    server: str, size: int, acks: str, floods: dict[str, Outcome], trips: dict[str, Outcome]
) -> list[Row]:
    theirs = floods["confluent produce"]
    rows = []
    for name, goal in producing.GOALS.items():
        what = f"{name.removeprefix('penstock ')}, {size} B, acks={acks}"
        mine = floods[name]
        rows.append(_higher(server, f"{what}, M records/s", mine["rate"] / 1e6, theirs["rate"] / 1e6, goal))
        rows.append(_lower(server, f"{what}, CPU s a million", mine["cpu_s"], theirs["cpu_s"], None))
        rows.append(_lower(server, f"{what}, memory MB", mine["memory_mb"], theirs["memory_mb"], 1.0))
    mine, other = trips["penstock, one"], trips["confluent, one"]
    for field, goal_of in (("p50_us", None), ("p99_us", 1.0)):
        what = f"one acknowledged send, {size} B, acks={acks}, {field.removesuffix('_us')} µs"
        rows.append(_lower(server, what, mine[field], other[field], goal_of))
    return rows


def consumed_rows(server: str, size: int, outcomes: dict[str, Outcome]) -> list[Row]:
    theirs = outcomes["confluent consume"]
    rows = []
    for name in ("penstock iterate", "penstock async for", "penstock poll", "penstock to_arrow"):
        what, mine, goal = f"{name.removeprefix('penstock ')}, {size} B", outcomes[name], consuming.GOALS.get(name)
        rows.append(_higher(server, f"{what}, M records/s", mine["rate"] / 1e6, theirs["rate"] / 1e6, goal))
        rows.append(_lower(server, f"{what}, CPU s a million", mine["cpu_s"], theirs["cpu_s"], None))
        rows.append(_lower(server, f"{what}, memory MB", mine["memory_mb"], theirs["memory_mb"], 1.0))
    return rows


def _higher(server: str, work: str, mine: float, theirs: float, goal: float | None) -> Row:
    return Row(server, work, mine, theirs, mine / theirs, goal)


def _lower(server: str, work: str, mine: float, theirs: float, goal: float | None) -> Row:
    return Row(server, work, mine, theirs, theirs / max(mine, 0.01 if "memory" not in work else 1.0), goal)


def _measure(server: Server, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for size in options.bytes:
        share = max(size, 100) // 100
        for acks in options.acks:
            count = max(options.records // share, 10_000)
            floods, trips = producing.measure(server, size, count, options.rounds, acks)
            producing.show(server.name, size, acks, floods, trips)
            rows += produced_rows(server.name, size, acks, floods, trips)
        outcomes = consuming.measure(server, size, max(2 * options.records // share, 20_000), options.rounds)
        consuming.show(server.name, size, outcomes)
        rows += consumed_rows(server.name, size, outcomes)
    return rows


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description="Our clients beside others.")
    parser.add_argument("--ours-only", action="store_true", help="against our broker alone")
    parser.add_argument("--acks", nargs="*", choices=["all", "1"], default=["1", "all"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; fewer if they are larger")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1000], help="the sizes of values")
    options = parser.parse_args(arguments)
    busy = os.getloadavg()[0]
    starters: list[Callable[[Path], Server]] = [ours.start]
    if not options.ours_only:
        try:
            starters.append(kafka.Kafka().start)
        except NotToBeHad as error:
            print(f"Apache Kafka is not to be had, so only our broker is used: {error}")
    rows: list[Row] = []
    for start in starters:
        with tempfile.TemporaryDirectory() as folder, start(Path(folder, "server")) as server:
            rows += _measure(server, options)
    table("Our clients beside confluent-kafka, same broker, same rounds; medians", [row.shown() for row in rows])
    RESULTS.mkdir(exist_ok=True)
    kept = {"machine": machine(), "load_before": busy, "rows": [row._asdict() for row in rows]}
    (RESULTS / "clients.json").write_text(json.dumps(kept, indent=1))
    bars = [Bar(f"{row.server}: {row.work.rpartition(',')[0]}", row.better, row.goal) for row in rows if _is_drawn(row)]
    (RESULTS / "clients.svg").write_text(
        picture("penstock's clients beside confluent-kafka: how many times better", bars)
    )
    if busy > _QUIET_LOAD:
        print(f"CAUTION: the machine was busy before the run began (load {busy:.1f})")


def _is_drawn(row: Row) -> bool:
    return row.work.endswith(("M records/s", "p99 µs"))
