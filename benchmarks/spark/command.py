"""`python -m benchmarks.spark`: our data source beside the stock connector, same broker, same session; a table, a plot.

Rule: contenders take turns, the first round warms the JVM and does not count, medians of the others do. The ceiling is
measured in the same rounds, and has no ratio: it is what remains to be won.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.installing import NotToBeHad

from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server
from benchmarks.ratio_chart import Bar, picture
from benchmarks.report import machine, table
from benchmarks.spark.topics import Content, Topic, fill
from benchmarks.spark.works import CEILING, OURS, STOCK, Bench, Contender, Outcome

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_QUIET_LOAD = 0.5
_SUM_GOALS = {100: 2.5, 1000: 2.0}
_PARQUET_GOALS = {100: 1.7, 1000: 1.4}
_CPU_GOAL = 1 / 0.6
_LEAST_S = 1e-3


class Row(NamedTuple):
    """A figure of ours, the stock connector's and the ceiling's; `better` is how many times better ours is."""

    broker: str
    work: str
    unit: str
    ours: float
    stock: float | None
    ceiling: float | None
    better: float | None
    goal: float | None

    def shown(self) -> dict[str, object]:
        return {
            "broker": self.broker,
            "work": f"{self.work}, {self.unit}",
            "ours": f"{self.ours:,.2f}",
            "stock": None if self.stock is None else f"{self.stock:,.2f}",
            "ceiling": None if self.ceiling is None else f"{self.ceiling:,.2f}",
            "times better": None if self.better is None else f"{self.better:.2f}",
            "goal": "" if self.goal is None else f"{self.goal:.2f}",
            "met": None if self.goal is None or self.better is None else self.better >= self.goal,
        }


def session(folder: Path, jars: Sequence[Path]) -> Any:
    """Spark as `penstock spark` starts it, on this machine's cores, with the connector's jars where there are any."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    settings = {
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": ",".join(map(str, jars))} if jars else {}),
    }
    builder = SparkSession.builder.appName("benchmark").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    from benchmarks.spark.ceiling import CeilingSource

    spark.dataSource.register(CeilingSource)
    return spark


def rounds(
    work: Callable[[Contender, Topic], Outcome], contenders: Sequence[Contender], topic: Topic, count: int
) -> dict[Contender, Outcome]:
    """Medians of `count` rounds after one that does not count."""
    found: dict[Contender, list[Outcome]] = {contender: [] for contender in contenders}
    for number in range(count + 1):
        place = number % len(contenders)
        for contender in [*contenders[place:], *contenders[:place]]:
            outcome = work(contender, topic)
            if number:
                found[contender].append(outcome)
    return {
        contender: Outcome(*(statistics.median(figures) for figures in zip(*some, strict=True)))
        for contender, some in found.items()
    }


def _rate_rows(
    broker: str, what: str, topic: Topic, outcomes: dict[Contender, Outcome], goal: float | None
) -> list[Row]:
    work = f"{what}, {topic.content}"
    mine, other, most = outcomes[OURS], outcomes.get(STOCK), outcomes.get(CEILING)
    faster = None if other is None else other.seconds / mine.seconds
    cheaper = None if other is None else other.cpu_s / max(mine.cpu_s, _LEAST_S)
    gigabytes = topic.megabytes / 1000

    def rate(unit: str, amount: float, aim: float | None) -> Row:
        theirs, highest = (None if one is None else amount / one.seconds for one in (other, most))
        return Row(broker, work, unit, amount / mine.seconds, theirs, highest, faster, aim)

    theirs, least = (None if one is None else one.cpu_s / gigabytes for one in (other, most))
    cpu_goal = None if goal is None else _CPU_GOAL
    return [
        rate("M rows/s", topic.rows / 1e6, goal),
        rate("MB/s", topic.megabytes, None),
        Row(broker, work, "CPU s a GB", mine.cpu_s / gigabytes, theirs, least, cheaper, cpu_goal),
    ]


def _latency_row(broker: str, bench: Bench, topic: Topic, sink: str, contenders: Sequence[Contender]) -> Row:
    found = {one: bench.micro_batch_ms(one, topic, sink) for one in contenders if one is not CEILING}
    mine, other = found[OURS], found.get(STOCK)
    better = None if other is None else other / mine
    return Row(broker, f"micro-batch to {sink}, {topic.content}", "ms", mine, other, None, better, 1.0)


def measure(server: Server, spark: Any, contenders: Sequence[Contender], options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(spark, server.address, Path(folder))
        for content in _contents(options):
            topic = fill(server.address, content, options.records * 200 // max(content.size, 200))
            is_plain = content == Content(content.size)
            works: list[tuple[str, Callable[[Contender, Topic], Outcome], dict[int, float]]] = [
                ("sum(length(value))", bench.sum_lengths, _SUM_GOALS if is_plain else {}),
                ("to Parquet", bench.to_parquet, _PARQUET_GOALS if is_plain else {}),
                ("stream to Parquet, available now", bench.stream_to_parquet, {}),
            ]
            for what, work, goals in works:
                can = [one for one in contenders if one is not CEILING or (is_plain and "stream" not in what)]
                print(f"{server.name}: {what}, {content} ...", flush=True)
                outcomes = rounds(work, can, topic, options.rounds)
                rows += _rate_rows(server.name, what, topic, outcomes, goals.get(content.size))
            if is_plain and content.size == 100 and not options.without_latency:
                rows += [_latency_row(server.name, bench, topic, sink, contenders) for sink in ("noop", "parquet")]
    return rows


def _contents(options: argparse.Namespace) -> list[Content]:
    plain = [Content(size) for size in options.bytes]
    if options.plain_only:
        return plain
    return [*plain, Content(100, "lz4"), Content(100, "zstd"), Content(100, keyed=True)]


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ours-only", action="store_true", help="our broker alone, without Apache Kafka 4.3")
    parser.add_argument("--plain-only", action="store_true", help="neither compressed topics nor keys and headers")
    parser.add_argument("--without-latency", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=4_000_000, help="of 100 B; fewer if they are larger")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1000])
    options = parser.parse_args(arguments)
    busy = os.getloadavg()[0]
    contenders, jars = [OURS, CEILING], _stock()
    if jars:
        contenders.insert(1, STOCK)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder), jars)
        try:
            for number, start in enumerate(_starters(options)):
                with start(Path(folder, f"server-{number}")) as server:
                    rows += measure(server, spark, contenders, options)
        finally:
            spark.stop()
    _report(rows, busy)


def _stock() -> list[Path]:
    from benchmarks.spark.stock import stock_jars

    try:
        return stock_jars()
    except NotToBeHad as error:
        print(f"the stock connector is not to be had, so ours stands beside the ceiling alone: {error}")
        return []


def _starters(options: argparse.Namespace) -> list[Callable[[Path], Server]]:
    starters: list[Callable[[Path], Server]] = [ours.start]
    if not options.ours_only:
        try:
            starters.append(kafka.Kafka().start)
        except NotToBeHad as error:
            print(f"Apache Kafka is not to be had, so only our broker is used: {error}")
    return starters


def _report(rows: Sequence[Row], busy: float) -> None:
    table("Our data source beside Spark's stock connector; medians", [row.shown() for row in rows])
    RESULTS.mkdir(exist_ok=True)
    kept = {"machine": machine(), "load_before": busy, "rows": [row._asdict() for row in rows]}
    (RESULTS / "spark.json").write_text(json.dumps(kept, indent=1))
    bars = [
        Bar(f"{row.broker}: {row.work}{', CPU' if row.unit.startswith('CPU') else ''}", row.better, row.goal)
        for row in rows
        if row.better is not None and row.unit != "MB/s"
    ]
    (RESULTS / "spark.svg").write_text(
        picture("penstock's data source beside Spark's own: how many times better", bars)
    )
    if busy > _QUIET_LOAD:
        print(f"CAUTION: the machine was busy before the run began (load {busy:.1f})")
