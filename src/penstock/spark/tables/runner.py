"""Where tasks run: in threads of this process or in Spark's executors.

A runner gets a function of bytes and a list of bytes, and returns the answers in order, so a load does not know
whether it runs on one machine or many, nor over which Spark API. The load says how much it is about to read: in the 8
to 15 s that Spark takes to start, one process loads millions of records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.spark.errors import TableError
from penstock.spark.tables.tasks import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# What one process loads in the 8 to 15 s that Spark takes to start: on one core 420,000 JSON records/s of 85 B, or
# 90 MB/s of records of 1 KB. Bytes are counted as stored, which may be compressed.
MOST_LOCAL_RECORDS: Final = 4_000_000
MOST_LOCAL_BYTES: Final = 512 * 1024 * 1024


class Runner(Protocol):
    """Runs functions of bytes somewhere."""

    def expect(self, records: int, stored_bytes: Callable[[], int]) -> None:
        """Announces how much the next tasks read. `stored_bytes` is called only if it matters."""

    def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]: ...

    def parallelism(self) -> int: ...


class LocalRunner:
    """Runs in threads of this process, without Java and start-up time."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 2

    def expect(self, records: int, stored_bytes: Callable[[], int]) -> None:
        """Ignored: everything runs in this process."""

    def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
        with ThreadPoolExecutor(min(self._threads, max(1, len(payloads)))) as pool:
            return list(pool.map(work, payloads))

    def parallelism(self) -> int:
        return self._threads


class SparkRunner:
    """Runs in Spark's executors, one task per payload, with or without Spark Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def expect(self, records: int, stored_bytes: Callable[[], int]) -> None:
        """Ignored: everything runs on Spark."""

    def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
        if not payloads:
            return []
        todo = list(payloads)

        def run_batches(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow

            for batch in batches:
                numbers = batch.column(0).to_pylist()
                answers = [work(todo[number]) for number in numbers]
                yield pyarrow.RecordBatch.from_arrays(
                    [pyarrow.array(numbers, pyarrow.int64()), pyarrow.array(answers, pyarrow.binary())],
                    names=["number", "answer"],
                )

        frame = self._spark.range(0, len(todo), 1, len(todo)).mapInArrow(run_batches, "number long, answer binary")
        try:
            rows = frame.collect()
        except Exception as error:
            raise _spark_error(error) from error
        answers = {row["number"]: bytes(row["answer"]) for row in rows}
        return [answers[number] for number in range(len(todo))]

    def parallelism(self) -> int:
        try:
            return max(1, int(self._spark.sparkContext.defaultParallelism))
        except Exception:  # noqa: BLE001 - Spark Connect has no context and raises its own errors
            return os.cpu_count() or 2


class AutomaticRunner:
    """Runs in this process until a larger amount is announced, then on Spark, which `start` starts.

    With `always_spark`, Spark is started for the first task. Without a task it is never started.
    """

    def __init__(self, start: Callable[[], SparkSession], *, always_spark: bool = False) -> None:
        self._start = start
        self._always_spark = always_spark
        self._runner: Runner = LocalRunner()
        self._has_started = False

    def expect(self, records: int, stored_bytes: Callable[[], int]) -> None:
        if self._has_started or not records:
            return
        if self._always_spark or records > MOST_LOCAL_RECORDS or stored_bytes() > MOST_LOCAL_BYTES:
            self._begin_spark()

    def run(self, work: Work, payloads: Sequence[bytes]) -> list[bytes]:
        if self._always_spark and payloads and not self._has_started:
            self._begin_spark()
        return self._runner.run(work, payloads)

    def parallelism(self) -> int:
        return self._runner.parallelism()

    def _begin_spark(self) -> None:
        self._runner = SparkRunner(self._start())
        self._has_started = True


def _spark_error(error: Exception) -> TableError:
    """Spark's error in one line: the last line of the traceback that it carries."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "...", "JVM stacktrace"))]
    reason = next(
        (line for line in reversed(reasons) if "Error" in line or "Exception" in line), reasons[0] if reasons else ""
    )
    return TableError(
        f"Spark failed to run the load: {reason}"[:500], hint="Nothing was committed. Run the same command again"
    )
