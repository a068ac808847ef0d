"""What drivers do in these tests. Each is given a session, classic or over Spark Connect, and plain values.

Functions that go to executors are made inside of the stories: so they travel by value, and executors need none of
these files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.client.errors import PenstockError
from penstock.spark.lag import publish
from penstock.spark.tables import Limits, Loader, Warehouse
from penstock.spark.tables.runner import SparkRunner
from penstock.spark.tables.tasks import Work, run_load_pickled

Found = list[tuple[int, int, bytes]]
QUERY_TIMEOUT_S = 90


def reading(spark: SparkSession, /, address: str, topic: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": address, "subscribe": topic, **options}
    return spark.read.format("penstock").options(**given).load()


def streaming(spark: SparkSession, /, address: str, topic: str, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest", **options}
    return spark.readStream.format("penstock").options(**given).load()


def found_in(frame: DataFrame) -> Found:
    rows = frame.select("partition", "offset", "value").collect()
    return sorted((row["partition"], row["offset"], bytes(row["value"])) for row in rows)


def read(spark: SparkSession, /, address: str, topic: str, **options: str) -> Found:
    return found_in(reading(spark, address, topic, **options))


def readers(spark: SparkSession, /, address: str, topic: str) -> list[str]:
    """The folders of the processes that read, once there are two executors: one may have died a moment ago."""
    context: Any = spark.sparkContext
    deadline_s = time.monotonic() + QUERY_TIMEOUT_S
    while context._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver counts
        assert time.monotonic() < deadline_s, "there are no two executors"
        time.sleep(0.05)

    def places(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow

        for batch in batches:
            if batch.num_rows:
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array([os.getcwd()])], names=["place"])

    rows = reading(spark, address, topic).mapInArrow(places, "place string").distinct().collect()
    return sorted(row["place"] for row in rows)


def write(spark: SparkSession, /, address: str, topic: str, count: int, mark: str | None = None) -> None:
    """Numbers into a topic. With `mark` the executor that has number 150 dies, the first time, with rows under way."""
    frame = spark.range(0, count, 1, 2).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    if mark is not None:
        kill = executor_killer()

        def deadly_rows(batches: Iterable[Any]) -> Iterator[Any]:
            for batch in batches:
                if "150" in batch.column("value").to_pylist():
                    kill(mark)
                yield batch

        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
        frame = frame.mapInArrow(deadly_rows, frame.schema)
    given = {"kafka.bootstrap.servers": address, "topic": topic}
    try:
        frame.write.format("penstock").options(**given).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def to_parquet(
    spark: SparkSession,
    /,
    address: str,
    topic: str,
    folder: str,
    fatal: tuple[int, int] | None = None,
    gate: tuple[int, int] | None = None,
    **options: str,
) -> tuple[str, int]:
    """Everything there is, into Parquet; the query's id and how many batches it has had.

    With `fatal` the task that has this partition and offset ends its executor, the first time. With `gate`, a port and
    an offset, the task that has this offset stops at the gate.
    """
    frame = streaming(spark, address, topic, **options).select("partition", "offset", "value")
    if fatal is not None:
        frame = frame.mapInArrow(deadly(fatal, str(Path(folder) / "killed")), frame.schema)
    if gate is not None:
        frame = frame.mapInArrow(halting(*gate), frame.schema)
    Path(folder).mkdir(parents=True, exist_ok=True)
    writer = frame.writeStream.format("parquet").queryName("to-parquet").option("path", str(Path(folder) / "out"))
    query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).trigger(availableNow=True).start()
    ended = _ended(query)
    return ended, len([one for one in Path(folder, "checkpoint", "commits").iterdir() if one.name.isdigit()])


def parquet(spark: SparkSession, /, folder: str) -> Found:
    return found_in(spark.read.parquet(str(Path(folder) / "out")))


def to_topic(spark: SparkSession, /, address: str, topic: str, target: str, folder: str, **options: str) -> str:
    """A topic into another, by the stream's sink."""
    frame = streaming(spark, address, topic, **options).select("key", "value", "partition")
    writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", address).option("topic", target)
    return _ended(writer.option("checkpointLocation", folder).trigger(availableNow=True).start())


def _ended(query: Any) -> str:
    assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    return str(query.id)


def deadly(place: tuple[int, int], mark: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the rows unchanged; the first task with this partition and offset kills its executor."""
    partition, offset = place
    kill = executor_killer()

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            places = zip(batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True)
            if (partition, offset) in places:
                kill(mark)
            yield batch

    return rows


def halting(port: int, offset: int) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the rows unchanged; the task with this offset waits at a gate."""
    pause = gate_pauser()

    def rows(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if offset in batch.column("offset").to_pylist():
                pause(port)
            yield batch

    return rows


def gate_pauser() -> Callable[[int], None]:
    """What tells the test, at this port, that it is there, and waits until it may continue."""

    def pause(port: int) -> None:
        import socket

        with socket.create_connection(("127.0.0.1", port), 60) as gate:
            gate.recv(1)

    return pause


def executor_killer() -> Callable[[str], None]:
    """What ends, by SIGKILL, the executor of the task that calls it; only once, of which `mark` is the sign."""

    def kill(mark: str) -> None:
        import os
        import signal
        import threading
        from pathlib import Path

        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        # This process is a child of Spark's daemon for Python, which is a child of the executor.
        parent = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        if b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{parent}/cmdline").read_bytes():
            raise RuntimeError("this task does not run in an executor")
        os.kill(parent, signal.SIGKILL)
        threading.Event().wait()

    return kill


# ---------------------------------------------------------------------------------------------- tables


class Deadly(SparkRunner):
    """A task of it writes its files, and then its executor dies, before anybody hears of them."""

    def __init__(self, spark: SparkSession, mark: str) -> None:
        super().__init__(spark)
        self._mark = mark

    def run(self, work: Work, payloads: Any) -> list[bytes]:
        mark, kill = self._mark, executor_killer()

        def worked(payload: bytes) -> bytes:
            answer = work(payload)
            if work is run_load_pickled:
                kill(mark)
            return answer

        return super().run(worked, payloads)


def load(
    spark: SparkSession,
    /,
    address: str,
    uri: str,
    commit_records: int = 10_000_000,
    mark: str | None = None,
    gate: int | None = None,
    **options: str,
) -> tuple[int, int]:
    """The table `views`: how many commits, how many landed.

    With `mark` an executor dies on the way; with `gate` it stops there after the first commit.
    """
    from penstock.client.admin import Admin

    runner = SparkRunner(spark) if mark is None else Deadly(spark, mark)
    opened = Warehouse(uri).open("views")

    commits: list[int] = []

    def reported(note: object, version: int) -> None:
        commits.append(version)
        if gate is not None and len(commits) == 1:
            gate_pauser()(gate)

    with Admin(address) as admin:
        loader = Loader(
            opened, admin, address, runner, limits=Limits(commit_records, 200), options=options, progress=reported
        )
        report = loader.load_new()
    return report.commits, report.counts.landed


def rejected_load(
    spark: SparkSession, /, address: str, uri: str, commit_records: int, gate: int, **options: str
) -> tuple[str, str]:
    """Why a load ended: kind and words."""
    try:
        load(spark, address, uri, commit_records, gate=gate, **options)
    except PenstockError as error:
        return type(error).__name__, str(error)
    return "", ""


# ---------------------------------------------------------------------------------------------- sessions


def master(spark: SparkSession, /) -> tuple[str, int]:
    return str(spark.sparkContext.master), SparkRunner(spark).parallelism()


def application(spark: SparkSession, /) -> str:
    return str(spark.sparkContext.applicationId)


def publishes(spark: SparkSession, /) -> bool:
    """Whether lag is shown already."""
    return publish(spark) is None
