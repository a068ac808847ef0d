"""The works that are measured: what a query does with a topic.

A work is the same for every contender but for the name of the format. Time is from the call to its end; CPU is that of
Spark's processes, the JVM and its Python workers, without the broker. What a query wrote is counted after its clock has
stopped, and must be everything that the topic holds.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.topics import Topic
from penstock import Producer

MICRO_BATCHES: Final = 10
_WARM_BATCHES: Final = 4
_PAUSE_S: Final = 0.02
_PATIENCE_S: Final = 120
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Contender(NamedTuple):
    """A format that reads topics, or the ceiling that stands for one."""

    name: str
    format: str


OURS: Final = Contender("Penstock", "penstock")
STOCK: Final = Contender("stock connector", "kafka")
CEILING: Final = Contender("ceiling", "ceiling")


class Outcome(NamedTuple):
    """What a work took; of micro-batches `seconds` is the median, and `parts` are all of them."""

    seconds: float
    cpu_s: float
    parts: tuple[float, ...] = ()


class Bench:
    """One session and one broker; folders for what is written. `stock_options` are the stock connector's alone."""

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
        """What a work took."""
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
            if not query.awaitTermination(_PATIENCE_S):
                raise RuntimeError(f"{contender.name} did not end")

        try:
            outcome = self.timed(work)
            self._require_all(contender, topic, folder / "data")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _require_all(self, contender: Contender, topic: Topic, folder: Path) -> None:
        written = self._spark.read.parquet(str(folder)).count()
        if written != topic.rows:
            raise RuntimeError(f"{contender.name} wrote {written} of {topic.rows} records")

    def micro_batches(self, contender: Contender, topic: Topic, sink: str, batches: int = MICRO_BATCHES) -> Outcome:
        """Micro-batches of a few records by a query that runs for as long as they take, with no other one beside it.

        The CPU is that of one micro-batch, with what the query does until there is something for the next.
        """
        folder = self._new_folder()
        writing = self._stream(contender, topic, startingOffsets="latest").writeStream.format(sink)
        if sink == "parquet":
            writing = writing.option("path", str(folder / "data"))
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
    """Until so many batches that had something have ended."""
    deadline = time.monotonic() + _PATIENCE_S
    while len(_batch_times(query)) < count:
        if not query.isActive:
            raise RuntimeError(f"the query ended by itself: {query.exception()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {len(_batch_times(query))} micro-batches in {_PATIENCE_S} s")
        time.sleep(0.1)


def _batch_times(query: Any) -> list[float]:
    """In seconds, of batches that had something, in their order."""
    times = {
        progress.batchId: progress.durationMs["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress.numInputRows
    }
    return [times[number] for number in sorted(times)]


def _cpu_s(root: int) -> float:
    """CPU time of a process and all below it, dead ones included as far as their parents waited for them."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        process_id = waiting.pop()
        total += ticks.get(process_id, 0)
        waiting += children.get(process_id, [])
    return total / _TICKS
