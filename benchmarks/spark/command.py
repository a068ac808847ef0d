"""`python -m benchmarks.spark`: our data source beside the stock connector, same broker, same session.

Contenders take turns in rounds, of queries and of micro-batches alike; only one query runs at a time. The first round
warms the JVM and does not count, medians of the others do. The ceiling is measured in the same rounds. On our broker
everything is measured; on Apache Kafka the plain topics, the micro-batches and the sinks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.peers.installing import NotAvailable

from benchmarks import results
from benchmarks.peers import kafka, ours
from benchmarks.peers.servers import Server
from benchmarks.results import Recording, Row
from benchmarks.spark.workloads import (
    AT_LEAST_ONCE,
    CEILING,
    CPU_GOAL,
    EXACTLY_ONCE,
    MICRO_BATCHES,
    OURS,
    STOCK,
    Bench,
    Contender,
    Content,
    Outcome,
    Topic,
    batch_rows,
    commit_row,
    fill,
    rate_rows,
    sink_rows,
)

ROOT: Final = Path(__file__).resolve().parents[2]
_SUM_GOALS: Final = {100: 2.5, 1000: 2.0}
_PARQUET_GOALS: Final = {100: 1.7, 1000: 1.4}
_STREAM_GOALS: Final = {100: 1.0, 1000: 1.0}
# Of the same sink at least once: records per second, and the time of a micro-batch.
_SINK_GOAL: Final = 0.8
_SINK_BATCH_GOAL: Final = 1.25
_PARTITIONS: Final = (1, 4, 16)
_LOAD_BYTES: Final = 200
_BROKERS: Final = {ours.NAME: "our broker", kafka.NAME: "Apache Kafka 4.3"}
_NOTES: Final = (
    "One Spark session on two cores, topics of 4 partitions unless a row says otherwise. CPU is that of the JVM and "
    "its Python workers.",
    "The ceiling is a data source of the Python API that yields ready Arrow batches: no source of that API is faster.",
    "Sinks write what our source reads into a new topic of 4 partitions.",
    "A load commits to a Delta table exactly once and sets aside what it cannot decode; the job of the stock connector "
    "beside it decodes by from_json and writes bare Parquet.",
)
_QUICK: Final = {"rounds": 1, "records": 1_000_000, "commits": 100, "batches": 5, "plain_only": True}

Work = Callable[[Contender, Topic], Outcome]


def session(folder: Path, jars: Sequence[Path]) -> Any:
    """Spark as `penstock spark` starts it, on this machine's cores, with the connector's jars where there are any."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # An installed package has its bytecode; a checkout need not, and would be compiled at the start of every worker.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
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


def rounds(work: Work, contenders: Sequence[Contender], topic: Topic, count: int) -> dict[Contender, list[Outcome]]:
    """What each took in `count` rounds, after one that does not count; every round begins with another one."""
    found: dict[Contender, list[Outcome]] = {contender: [] for contender in contenders}
    for number in range(count + 1):
        place = number % len(contenders)
        for contender in [*contenders[place:], *contenders[:place]]:
            outcome = work(contender, topic)
            if number:
                found[contender].append(outcome)
    return found


class Measurement:
    """What is measured on one broker."""

    def __init__(
        self, server: Server, spark: Any, contenders: Sequence[Contender], options: argparse.Namespace, folder: Path
    ) -> None:
        self._server = server
        self._spark = spark
        self._contenders = contenders
        self._readers = [one for one in contenders if one is not CEILING]
        self._options = options
        self._folder = folder
        self._bench = Bench(spark, server.address, folder, stock_options(options.stock_options))
        self._broker = _BROKERS[server.name]
        self.micro_batches: list[dict[str, Any]] = []

    def _told(self, what: str) -> None:
        print(f"{self._server.name}: {what} ...", flush=True)

    def _fill(self, content: Content, partitions: int = 4) -> Topic:
        return fill(self._server.address, content, self._options.records * 200 // max(content.size, 200), partitions)

    def contents(self, contents: Sequence[Content]) -> list[Row]:
        """Batch and stream queries over topics of all kinds."""
        rows: list[Row] = []
        for content in contents:
            topic = self._fill(content)
            is_plain = content == Content(content.size)
            works: list[tuple[str, Work, dict[int, float]]] = [
                ("sum(length(value))", self._bench.sum_lengths, _SUM_GOALS),
                ("to Parquet", self._bench.to_parquet, _PARQUET_GOALS),
                ("stream to Parquet, available now", self._bench.stream_to_parquet, _STREAM_GOALS),
            ]
            for what, work, goals in works:
                self._told(f"{what}, {content}")
                can = self._contenders if is_plain and "stream" not in what else self._readers
                outcomes = rounds(work, can, topic, self._options.rounds)
                goal = goals.get(content.size) if is_plain else None
                # What a stream costs to start is Spark's, and the same for a gigabyte and for none.
                cpu_goal = CPU_GOAL if goal is not None and "stream" not in what else None
                rows += rate_rows(f"Queries, {self._broker}", what, topic, outcomes, goal, cpu_goal)
        return rows

    def latency(self) -> list[Row]:
        """Micro-batches of a few records, a few of them of each contender in turn."""
        topic = fill(self._server.address, Content(100), 1)
        rows: list[Row] = []
        for sink in ("noop", "parquet"):
            self._told(f"micro-batches to {sink}")
            outcomes = rounds(
                lambda one, some, sink=sink: self._bench.micro_batches(one, some, sink, self._options.batches),  # type: ignore[misc]
                self._readers,
                topic,
                self._options.rounds,
            )
            rows += batch_rows(
                f"Micro-batches, {self._broker}", f"micro-batch to {sink}, {topic.content}", outcomes, 1.0
            )
            self.micro_batches += [
                {"broker": self._broker, "sink": sink, "contender": one.name, "seconds": [each.parts for each in some]}
                for one, some in outcomes.items()
            ]
        return rows

    def sinks(self) -> list[Row]:
        """Into topics: exactly once beside at least once, and beside the stock connector."""
        sinks = [EXACTLY_ONCE, AT_LEAST_ONCE, *([STOCK] if STOCK in self._contenders else [])]
        title, rows = f"Into topics, {self._broker}", list[Row]()
        for size in self._options.bytes:
            topic = self._fill(Content(size))
            for what, work in (
                ("batch into a topic", self._bench.to_topic),
                ("stream into a topic, available now", self._bench.stream_to_topic),
            ):
                self._told(f"{what}, {topic.content}")
                outcomes = rounds(work, sinks, topic, self._options.rounds)
                rows += rate_rows(title, what, topic, outcomes, _SINK_GOAL)
        few = fill(self._server.address, Content(100), 1)
        self._told("micro-batches into a topic")
        outcomes = rounds(
            lambda one, some: self._bench.micro_batches_to_topic(one, some, self._options.batches),
            sinks,
            few,
            self._options.rounds,
        )
        rows += batch_rows(title, f"micro-batch into a topic, {few.content}", outcomes, _SINK_BATCH_GOAL)
        return sink_rows(rows)

    def scaling(self) -> list[Row]:
        """The same records in few partitions and in many."""
        rows: list[Row] = []
        for partitions in _PARTITIONS:
            self._told(f"{partitions} partitions")
            topic = self._fill(Content(100), partitions)
            outcomes = rounds(self._bench.sum_lengths, self._readers, topic, self._options.rounds)
            what = f"sum(length(value)) of {partitions} partition{'' if partitions == 1 else 's'}"
            rows += rate_rows(f"Partitions, {self._broker}", what, topic, outcomes)
        return rows

    def tables(self) -> list[Row]:
        """Loads, and what commits cost when there are many."""
        from benchmarks.spark.workloads import Tables

        tables = Tables(self._spark, self._server.address, self._folder)
        topic = self._fill(Content(_LOAD_BYTES))
        self._told("load into a table")
        outcomes = rounds(
            lambda one, some: self._bench.timed(lambda: tables.load(one, some)),
            self._readers,
            topic,
            self._options.rounds,
        )
        what = "load into a Delta table beside from_json to bare Parquet"
        title = f"Tables, {self._broker}"
        rows = rate_rows(title, what, topic, outcomes)
        self._told(f"{self._options.commits} commits")
        for when, times_ms in zip(
            ("the first", f"after {self._options.commits:,}"),
            tables.commit_times_ms(self._options.commits),
            strict=True,
        ):
            rows.append(commit_row(title, f"load and commit of one record, {when}", times_ms))
        return rows


def measure(
    server: Server, spark: Any, contenders: Sequence[Contender], options: argparse.Namespace
) -> tuple[list[Row], list[dict[str, Any]]]:
    """The rows of one broker, and its single micro-batches."""
    with tempfile.TemporaryDirectory() as folder:
        measurement = Measurement(server, spark, contenders, options, Path(folder))
        is_ours = server.name == ours.NAME
        rows = measurement.contents(contents_of(options, is_ours=is_ours))
        if not options.without_latency:
            rows += measurement.latency()
        if not options.without_sinks:
            rows += measurement.sinks()
        if is_ours and not options.without_scaling:
            rows += measurement.scaling()
        if is_ours and not options.without_tables:
            rows += measurement.tables()
    return rows, measurement.micro_batches


def contents_of(options: argparse.Namespace, *, is_ours: bool) -> list[Content]:
    """What topics are read of a broker."""
    plain = [Content(size) for size in options.bytes]
    if options.plain_only or not is_ours:
        return plain
    return [*plain, Content(100, "lz4"), Content(100, "zstd"), Content(100, keyed=True)]


def options_parser(*, is_quick: bool) -> argparse.ArgumentParser:
    parser = results.parser("spark", "Our data source beside Spark's stock Kafka connector.")
    parser.add_argument("--quick", action="store_true", help="about 5 minutes: less of everything, our broker alone")
    parser.add_argument("--ours-only", action="store_true", help="our broker alone, without Apache Kafka 4.3")
    parser.add_argument("--plain-only", action="store_true", help="neither compressed topics nor keys and headers")
    parser.add_argument("--without-latency", action="store_true")
    parser.add_argument("--without-sinks", action="store_true")
    parser.add_argument("--without-scaling", action="store_true")
    parser.add_argument("--without-tables", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=3_000_000, help="of 100 B; fewer if they are larger")
    parser.add_argument("--bytes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--commits", type=int, default=1000, help="after how many the cost of one is looked at again")
    parser.add_argument("--batches", type=int, default=MICRO_BATCHES, help="micro-batches of a contender in a round")
    parser.add_argument(
        "--stock-options",
        nargs="*",
        default=[],
        metavar="NAME=VALUE",
        help="options of the stock connector alone, to see what tuning it changes: kafka.max.poll.records=10000",
    )
    if is_quick:
        parser.set_defaults(ours_only=True, **_QUICK)
    return parser


def stock_options(given: Sequence[str]) -> dict[str, str]:
    """By name; ValueError for one without a value."""
    return dict(each.split("=", 1) for each in given)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    return options_parser(is_quick="--quick" in arguments).parse_args(arguments)


def main(arguments: Sequence[str] = ()) -> None:
    parser = options_parser(is_quick="--quick" in arguments)
    options = parser.parse_args(arguments)
    recording = results.begin("spark", parser, options, arguments)
    contenders, jars = [OURS, CEILING], _stock(recording)
    if jars:
        contenders.insert(1, STOCK)
    rows: list[Row] = []
    micro_batches: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        spark = session(Path(folder), jars)
        try:
            for number, start in enumerate(_starters(options, recording)):
                with start(Path(folder, f"server-{number}")) as server:
                    found, batches = measure(server, spark, contenders, options)
                rows += found
                micro_batches += batches
        finally:
            spark.stop()
    recording.keep(rows, notes=_NOTES, details={"micro_batches": micro_batches})


def _stock(recording: Recording) -> list[Path]:
    from benchmarks.spark.stock import stock_jars

    try:
        return stock_jars()
    except NotAvailable as error:
        recording.lacks(f"the stock connector is not installed: {error}")
        return []


def _starters(options: argparse.Namespace, recording: Recording) -> list[Callable[[Path], Server]]:
    starters: list[Callable[[Path], Server]] = [ours.start]
    if not options.ours_only:
        try:
            starters.append(kafka.Kafka().start)
        except NotAvailable as error:
            recording.lacks(f"Apache Kafka 4.3 is not installed: {error}")
    return starters
