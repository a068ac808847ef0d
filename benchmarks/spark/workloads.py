"""What is measured: topics and their content, queries over them, loads into tables, and the rows of the result.

A workload is the same for every contender except for the name of the format. Time runs from the call to its end; CPU
is that of the JVM and its Python workers, without the broker. What a query wrote is counted after the clock has
stopped and must be the whole topic. A load commits exactly once to a Delta table and sets aside what it cannot decode;
the plain job of the stock connector beside it decodes with from_json and writes Parquet.
"""

from __future__ import annotations

import random
import shutil
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.results import Better, Figure, Row
from penstock import Admin, Producer, TopicSpec
from penstock.activity.live.usage import TICKS_PER_S, descendants, process_stats
from penstock.spark.tables import Limits, Loader, Warehouse, create, from_mapping
from penstock.spark.tables.delta import CommitNote
from penstock.spark.tables.runner import LocalRunner, Runner, SparkRunner

PARTITIONS = 4
MICRO_BATCHES: Final = 10
CPU_GOAL: Final = 0.6
SCHEMA: Final = "id bigint, text string"
_CHUNK = 20_000
_WORDS = 2_000
_BATCH_BYTES = 64 * 1024
_END = '"}'
_WARM_BATCHES: Final = 4
_PAUSE_S: Final = 0.02
_TIMEOUT_S: Final = 120
_FEW: Final = 25

# ---------------------------------------------------------------------------------------------- topics


class Content(NamedTuple):
    """The size and form of the records."""

    size: int
    codec: str = "none"
    keyed: bool = False
    """Each record has a key and a header."""

    def __str__(self) -> str:
        extras = [] if self.codec == "none" else [self.codec]
        return ", ".join([f"{self.size} B", *extras, *(["keys and headers"] if self.keyed else [])])

    @property
    def bytes_per_row(self) -> int:
        return self.size


_SMALL: Final = Content(100)


class Topic(NamedTuple):
    name: str
    content: Content
    rows: int
    partitions: int = PARTITIONS

    @property
    def megabytes(self) -> float:
        return self.rows * self.content.bytes_per_row / 1e6


def fill(address: str, content: Content, rows: int, partitions: int = PARTITIONS) -> Topic:
    """Creates a topic with about `rows` records, the same number in each partition."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    rounds = max(1, rows // (_CHUNK * partitions))
    with Admin(address) as admin:
        admin.create_topic(TopicSpec(name, partitions=partitions))
    columns = _columns(content)
    with Producer(address, linger_ms=5, batch_size=_BATCH_BYTES, compression_type=content.codec) as producer:
        for _ in range(rounds):
            for partition in range(partitions):
                numbers = pa.repeat(pa.scalar(partition, pa.int32()), _CHUNK)
                producer.send_arrow(name, pa.table({**columns, "partition": numbers}))
        producer.flush()
    return Topic(name, content, rounds * _CHUNK * partitions, partitions)


def _columns(content: Content) -> dict[str, pa.Array]:
    """JSON values with words, so that codecs have something to compress."""
    seeded = random.Random(7)
    words = [f"word{seeded.randrange(10**6):06d}" for _ in range(_WORDS)]
    texts = []
    for number in range(_CHUNK):
        text = f'{{"id":{number},"text":"'
        while len(text) < content.size:
            text += seeded.choice(words) + " "
        texts.append((text[: content.size - len(_END)] + _END).encode())
    columns = {"value": pa.array(texts, pa.binary())}
    if content.keyed:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        columns["key"] = pa.array([b"user-%d" % (number % 1000) for number in range(_CHUNK)], pa.binary())
        columns["headers"] = pa.array([[{"key": "source", "value": b"web"}]] * _CHUNK, pa.list_(pair))
    return columns


# ---------------------------------------------------------------------------------------------- queries


class Contender(NamedTuple):
    """A format that reads topics, or the ceiling."""

    name: str
    format: str


OURS: Final = Contender("Penstock", "penstock")
STOCK: Final = Contender("stock connector", "kafka")
CEILING: Final = Contender("ceiling", "ceiling")
# Sinks. Each writes what our source reads.
EXACTLY_ONCE: Final = Contender("exactly once", "penstock")
AT_LEAST_ONCE: Final = Contender("at least once", "penstock")


class Outcome(NamedTuple):
    """The time of a workload. For micro-batches `seconds` is the median and `parts` has all."""

    seconds: float
    cpu_s: float
    parts: tuple[float, ...] = ()


class Bench:
    """Queries over topics, in one session on one broker. `stock_options` are for the stock connector only."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, stock_options: Mapping[str, str]) -> None:
        self._spark = spark
        self._stock_options = stock_options
        self._address = address
        self._folder = folder
        self._number = 0
        self._jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def options(self, contender: Contender, topic: Topic) -> dict[str, str]:
        if contender is CEILING:
            return {"rows": str(topic.rows), "size": str(topic.content.size), "partitions": str(topic.partitions)}
        headers = {"includeHeaders": "true"} if topic.content.keyed else {}
        more = self._stock_options if contender is STOCK else {}
        return {"kafka.bootstrap.servers": self._address, "subscribe": topic.name, **headers, **more}

    def _frame(self, contender: Contender, topic: Topic) -> DataFrame:
        return self._spark.read.format(contender.format).options(**self.options(contender, topic)).load()

    def _stream(self, contender: Contender, topic: Topic, **more: str) -> DataFrame:
        options = {**self.options(contender, topic), **more}
        return self._spark.readStream.format(contender.format).options(**options).load()

    def timed(self, work: Callable[[], None]) -> Outcome:
        """Measures a workload."""
        cpu, began = _cpu_s(self._jvm), time.perf_counter()
        work()
        return Outcome(time.perf_counter() - began, _cpu_s(self._jvm) - cpu)

    def _new_folder(self) -> Path:
        self._number += 1
        return self._folder / f"out-{self._number}"

    def sum_lengths(self, contender: Contender, topic: Topic) -> Outcome:
        def work() -> None:
            (row,) = self._frame(contender, topic).selectExpr("sum(length(value))", "count(1)").collect()
            if row[1] != topic.rows:
                raise RuntimeError(f"{contender.name} read {row[1]} of {topic.rows} records")

        return self.timed(work)

    def to_parquet(self, contender: Contender, topic: Topic) -> Outcome:
        folder = self._new_folder()
        try:
            outcome = self.timed(lambda: self._frame(contender, topic).write.parquet(str(folder)))
            self._require_all(contender, topic, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def stream_to_parquet(self, contender: Contender, topic: Topic) -> Outcome:
        folder = self._new_folder()

        def work() -> None:
            writing = self._stream(contender, topic, startingOffsets="earliest").writeStream.format("parquet")
            writing = writing.option("path", str(folder / "data")).option("checkpointLocation", str(folder / "state"))
            query = writing.trigger(availableNow=True).start()
            if not query.awaitTermination(_TIMEOUT_S):
                raise RuntimeError(f"{contender.name} did not end")

        try:
            outcome = self.timed(work)
            self._require_all(contender, topic, folder / "data")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _sink_options(self, contender: Contender, target: str) -> dict[str, str]:
        delivery = {"penstock.delivery": "exactly-once"} if contender is EXACTLY_ONCE else {}
        return {"kafka.bootstrap.servers": self._address, "topic": target, **delivery}

    def to_topic(self, contender: Contender, topic: Topic) -> Outcome:
        """A batch write of the whole topic into a new one."""
        target = self._new_topic(topic)

        def work() -> None:
            frame = self._frame(OURS, topic).select("key", "value")
            frame.write.format(contender.format).options(**self._sink_options(contender, target)).mode("append").save()

        outcome = self.timed(work)
        self._require_committed(contender, topic, target)
        return outcome

    def stream_to_topic(self, contender: Contender, topic: Topic) -> Outcome:
        target, folder = self._new_topic(topic), self._new_folder()

        def work() -> None:
            frame = self._stream(OURS, topic, startingOffsets="earliest").select("key", "value")
            writing = frame.writeStream.format(contender.format).options(**self._sink_options(contender, target))
            query = writing.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start()
            if not query.awaitTermination(_TIMEOUT_S):
                raise RuntimeError(f"{contender.name} did not end")

        try:
            outcome = self.timed(work)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._require_committed(contender, topic, target)
        return outcome

    def _new_topic(self, topic: Topic) -> str:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        with Admin(self._address) as admin:
            admin.create_topic(TopicSpec(name, partitions=topic.partitions))
        return name

    def _require_committed(self, contender: Contender, topic: Topic, target: str) -> None:
        committed = Topic(target, topic.content, topic.rows, topic.partitions)
        options = {**self.options(OURS, committed), "kafka.isolation.level": "read_committed"}
        written = self._spark.read.format("penstock").options(**options).load().count()
        with Admin(self._address) as admin:
            admin.delete_topic(target)
        if written != topic.rows:
            raise RuntimeError(f"{contender.name} wrote {written} of {topic.rows} records")

    def _require_all(self, contender: Contender, topic: Topic, folder: Path) -> None:
        written = self._spark.read.parquet(str(folder)).count()
        if written != topic.rows:
            raise RuntimeError(f"{contender.name} wrote {written} of {topic.rows} records")

    def micro_batches(self, contender: Contender, topic: Topic, sink: str, batches: int = MICRO_BATCHES) -> Outcome:
        """Micro-batches of a few records, by one query that runs alone.

        The CPU time is that of one micro-batch, including the wait for the next records.
        """
        folder = self._new_folder()
        writing = self._stream(contender, topic, startingOffsets="latest").writeStream.format(sink)
        if sink == "parquet":
            writing = writing.option("path", str(folder / "data"))
        return self._few_records(writing, topic, folder, batches)

    def micro_batches_to_topic(self, contender: Contender, topic: Topic, batches: int = MICRO_BATCHES) -> Outcome:
        """As `micro_batches`, into a new topic."""
        target, folder = self._new_topic(topic), self._new_folder()
        frame = self._stream(OURS, topic, startingOffsets="latest").select("key", "value")
        writing = frame.writeStream.format(contender.format).options(**self._sink_options(contender, target))
        return self._few_records(writing, topic, folder, batches)

    def _few_records(self, writing: Any, topic: Topic, folder: Path, batches: int) -> Outcome:
        query = writing.option("checkpointLocation", str(folder / "state")).start()
        ended = threading.Event()
        sender = threading.Thread(target=self._trickle, args=(topic, ended), daemon=True)
        sender.start()
        try:
            wait_for_batches(query, _WARM_BATCHES)
            cpu_s, warm = _cpu_s(self._jvm), len(_batch_times(query))
            wait_for_batches(query, warm + batches)
            times = _batch_times(query)[warm:]
            cpu_s = (_cpu_s(self._jvm) - cpu_s) / len(times)
        finally:
            ended.set()
            sender.join()
            query.stop()
            shutil.rmtree(folder, ignore_errors=True)
        return Outcome(statistics.median(times), cpu_s, tuple(times))

    def _trickle(self, topic: Topic, ended: threading.Event) -> None:
        with Producer(self._address, linger_ms=0) as producer:
            while not ended.wait(_PAUSE_S):
                producer.send(topic.name, bytes(topic.content.size))


def wait_for_batches(query: Any, count: int) -> None:
    """Waits until this many non-empty batches have ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    while len(_batch_times(query)) < count:
        if not query.isActive:
            raise RuntimeError(f"the query ended by itself: {query.exception()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(_batch_times(query))} micro-batches in {_TIMEOUT_S} s")
        time.sleep(0.1)


def _batch_times(query: Any) -> list[float]:
    """Durations of non-empty batches in seconds, in order."""
    times = {
        progress.batchId: progress.durationMs["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress.numInputRows
    }
    return [times[number] for number in sorted(times)]


def _cpu_s(root: int) -> float:
    """CPU time of a process and its descendants, ended children included if they were waited for."""
    stats = process_stats()
    return sum(stats[pid].ticks + stats[pid].waited for pid in descendants(root, stats)) / TICKS_PER_S


# ---------------------------------------------------------------------------------------------- tables


class Tables:
    """Loads into tables of a new warehouse."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self._spark = spark
        self._address = address
        self._folder = folder

    def load(self, contender: Contender, topic: Topic) -> None:
        """Loads the whole topic."""
        if contender is OURS:
            self._load(topic)
        else:
            self._plain_job(contender, topic)

    def _load(self, topic: Topic) -> None:
        with Admin(self._address) as admin:
            report = self._loader(topic, admin, SparkRunner(self._spark), Limits()).load_new()
        if report.counts.landed != topic.rows:
            raise RuntimeError(f"{report.counts.landed} of {topic.rows} records were loaded")

    def _loader(self, topic: Topic, admin: Admin, runner: Runner, limits: Limits, **more: object) -> Loader:
        name = f"t{uuid.uuid4().hex[:8]}"
        declared = from_mapping({"name": name, "topic": topic.name, "format": "json", "schema": SCHEMA})
        opened = create(Warehouse(str(self._folder / "warehouse")), declared, self._address)
        return Loader(opened, admin, self._address, runner, limits=limits, **more)  # type: ignore[arg-type]

    def _plain_job(self, contender: Contender, topic: Topic) -> None:
        reading = self._spark.read.format(contender.format).option("kafka.bootstrap.servers", self._address)
        frame = reading.option("subscribe", topic.name).option("includeHeaders", "true").load()
        decoded = frame.selectExpr(
            f"from_json(cast(value as string), '{SCHEMA}') as row", "topic", "partition", "offset", "timestamp", "key",
            "headers",
        )  # fmt: skip
        decoded.select("row.*", "topic", "partition", "offset", "timestamp", "key", "headers").write.parquet(
            str(self._folder / f"plain-{uuid.uuid4().hex[:8]}")
        )

    def commit_times_ms(self, count: int) -> tuple[list[float], list[float]]:
        """Durations of loads of one record with their commits: the first few, and those after `count` commits."""
        topic = fill(self._address, _SMALL, count + 2 * _FEW, partitions=1)
        times: list[float] = []

        def note_time(_note: CommitNote, _version: int) -> None:
            times.append(time.perf_counter())

        with Admin(self._address) as admin:
            loader = self._loader(topic, admin, LocalRunner(1), Limits(1, 1), progress=note_time)
            loader.load_new(until={0: count + _FEW})
        spans = [1000 * (after - before) for before, after in pairwise(times)]
        return spans[:_FEW], spans[-_FEW:]


# ---------------------------------------------------------------------------------------------- rows of the result


Rounds = Mapping[Contender, Sequence[Outcome]]


def rate_rows(
    title: str, what: str, topic: Topic, rounds: Rounds, goal: float | None = None, cpu_goal: float | None = None
) -> list[Row]:
    """Rows and bytes per second, and CPU time per gigabyte."""
    work = f"{what}, {topic.content}"
    return [
        _row(title, work, "M rows/s", Better.HIGHER, rounds, lambda one: topic.rows / 1e6 / one.seconds, goal),
        _row(title, work, "MB/s", Better.HIGHER, rounds, lambda one: topic.megabytes / one.seconds, None),
        _row(title, work, "CPU s/GB", Better.LOWER, rounds, lambda one: one.cpu_s / topic.megabytes * 1000, cpu_goal),
    ]


def batch_rows(title: str, work: str, rounds: Rounds, goal: float) -> list[Row]:
    """Time and CPU of a micro-batch."""
    return [
        _row(title, work, "ms", Better.LOWER, rounds, lambda one: one.seconds * 1000, goal),
        _row(title, work, "CPU ms", Better.LOWER, rounds, lambda one: one.cpu_s * 1000, None),
    ]


def sink_rows(rows: Sequence[Row]) -> list[Row]:
    """Rows of sinks: exactly once beside at least once."""
    return [replace(row, subject=EXACTLY_ONCE.name, peer=AT_LEAST_ONCE.name) for row in rows]


def _row(
    title: str,
    work: str,
    unit: str,
    better: Better,
    rounds: Rounds,
    figure: Callable[[Outcome], float],
    goal: float | None,
) -> Row:
    figures = {one.name: Figure.of([figure(outcome) for outcome in some]) for one, some in rounds.items()}
    return Row(work, unit, better, figures, OURS.name, STOCK.name, goal, title)


def commit_row(title: str, work: str, times_ms: Sequence[float]) -> Row:
    """Only Penstock commits to a table."""
    return Row(work, "ms", Better.LOWER, {OURS.name: Figure.of(times_ms)}, OURS.name, table=title)
