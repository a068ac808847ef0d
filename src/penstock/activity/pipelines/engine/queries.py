"""One streaming query of a pipeline: its source frames, start, progress and lag.

A frame has the columns of its kind with `time` as a timestamp. Malformed values, and events from far beyond their
record's timestamp (which would close everybody's windows), are counted and left out.

A query starts from its checkpoint. If the checkpoint has commits, the tables must exist: a removed one would come back
without its past. Lag is asked for all queries at once; nothing depends on it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.cluster import Cluster
from penstock.activity.events import TIME, Kind
from penstock.activity.pipelines.definition import Pipeline, Rows
from penstock.activity.pipelines.engine import status
from penstock.activity.pipelines.engine.micro_batch import BatchWork, Outputs, open_batch_work
from penstock.activity.pipelines.engine.session import POOL_PROPERTY, pool_of
from penstock.activity.pipelines.engine.status import PipelineFolder, QueryStatus
from penstock.activity.pipelines.errors import cause_of, in_one_line
from penstock.client.admin import Admin
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.spark.lag import LagCommitter, query_progress
from penstock.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


PARTITIONS: Final = 4
"""Partitions of a topic of events that has to be created."""
FURTHEST_AHEAD: Final = timedelta(minutes=10)
MOST_PER_BATCH: Final = 400_000
"""The most records of a topic in one micro-batch: a large backlog is read in pieces."""
SEEN: Final = "records"
MALFORMED: Final = "malformed"
_BATCH_MARGIN_MS: Final = 600_000
_TIMEOUT_MS: Final = 3_000
_CLIENT: Final = "penstock-pipelines-lag"
_POLL_S: Final = 0.05
_STARTING: Final = ("Initializing", "Getting offsets")

# ---------------------------------------------------------------------------------------------- queries


class Member(ABC):
    """A part of a run: a query, or loads and reports."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.troubles = 0
        """Failures of Spark itself."""
        self.retry_at_s: float | None = None
        self.has_started = False
        """Whether a start was completed, or has failed and is retried."""
        self._error: PenstockError | None = None
        self._started_s = time.monotonic()

    @abstractmethod
    def start(self) -> None: ...

    def is_starting(self) -> bool:
        """Whether it is still starting processes, which slows other starts down."""
        return False

    def await_sources(self, deadline_s: float, stop: threading.Event) -> None:
        """Waits until it is no longer starting, or is to stop."""
        while time.monotonic() < deadline_s and self.is_starting() and not stop.wait(_POLL_S):
            pass

    def has_first_batch(self) -> bool:
        """Whether its first batch is done, or it has no batches."""
        return True

    def await_first_batch(self, deadline_s: float, stop: threading.Event) -> None:
        while time.monotonic() < deadline_s and not self.has_first_batch() and not stop.wait(_POLL_S):
            pass

    @abstractmethod
    def stop(self, deadline_s: float) -> None: ...

    @abstractmethod
    def status(self) -> QueryStatus: ...

    def failure(self) -> PenstockError | None:
        """Why it does not run; None if it runs."""
        return self._error

    def failed(self, error: PenstockError) -> None:
        self._error = error
        self.has_started = True

    def _set_state(self, one: QueryStatus) -> None:
        one.message = "" if self._error is None else self._error.message
        if self._error is not None:
            one.state = status.WAITING if self._error.retriable else status.FAILED
        else:
            one.state = status.RUNNING if one.batch_id >= 0 else status.STARTING

    def well_for_s(self) -> float:
        return time.monotonic() - self._started_s

    def positions(self) -> Mapping[TopicPartition, int]:
        """The offsets that it has read."""
        return {}


class RowsQuery(Member):
    """A `Rows` as a streaming query."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, rows: Rows, cluster: Cluster, warehouse_uri: str,
        outputs: Outputs, lag: LagWatch,
    ) -> None:  # fmt: skip
        super().__init__(f"{pipeline.name}/{rows.name}")
        self._spark = spark
        self._pipeline = pipeline
        self._rows = rows
        self._cluster = cluster
        self._warehouse_uri = warehouse_uri
        self._outputs = outputs
        self._lag = lag
        self._folder = PipelineFolder(warehouse_uri, pipeline.name)
        self._query: StreamingQuery | None = None
        self._work: BatchWork | None = None
        self._status = QueryStatus(name=rows.name)
        self._lock = threading.Lock()
        self._positions: dict[TopicPartition, int] = {}

    def start(self) -> None:
        self._spark.sparkContext.setLocalProperty(POOL_PROPERTY, pool_of(self._pipeline.trigger))
        frames = stream_frames(self._spark, self._cluster, self._rows)
        frame = self._rows.define(frames)
        schema = arrow_schema(frame)
        may_create = not self._folder.has_checkpoint(self._rows.name)
        work = self._work = open_batch_work(
            self._pipeline, self._rows, schema, self._warehouse_uri, self._outputs, may_create=may_create
        )
        millis = int(self._pipeline.trigger.total_seconds() * 1000)
        writer = frame.writeStream.outputMode(self._rows.mode).foreachBatch(work).queryName(self.name.replace("/", "."))
        writer = writer.trigger(processingTime=f"{millis} milliseconds")
        query = writer.option("checkpointLocation", self._folder.checkpoint(self._rows.name).uri).start()
        with self._lock:
            self._query, self._error = query, None
            self.has_started = True
            self._started_s = time.monotonic()
            self._status.restarts += 1 if self._status.batch_id >= 0 or self.failures else 0

    def is_starting(self) -> bool:
        """Whether the processes of its sources are still starting."""
        query = self._query
        return query is not None and query.isActive and query.status["message"].startswith(_STARTING)

    def has_first_batch(self) -> bool:
        query = self._query
        return query is None or not query.isActive or query.lastProgress is not None

    def stop(self, deadline_s: float) -> None:
        query, work = self._query, self._work
        if query is None:
            return
        # If the process group was stopped, Spark has ended too.
        with contextlib.suppress(Exception):
            # A batch that ends in time need not be repeated; others are interrupted.
            while time.monotonic() < deadline_s - 3.0 and query.isActive and query.status["isTriggerActive"]:
                time.sleep(_POLL_S)
            self._take_progress()
            query.stop()
        if work is not None and work.busy.acquire(timeout=max(0.1, deadline_s - time.monotonic())):
            work.busy.release()
        self._status.state = status.STOPPED

    def failure(self) -> PenstockError | None:
        query = self._query
        if self._error is None and query is not None and not query.isActive:
            raised = query.exception()
            if self._work is not None and self._work.failure is not None:
                self._error = in_one_line(self._work.failure, self.name)
            elif raised is not None:
                self._error = cause_of(str(raised), self.name)
            else:
                self._error = cause_of("the query was stopped externally", self.name)
        return self._error

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._positions

    # ------------------------------------------------------------------------------------------ status

    def status(self) -> QueryStatus:
        one = self._status
        if one.state == status.STOPPED:
            return one
        self._take_progress()
        one.lag = self._lag.behind(self._positions)
        if self._work is not None:
            one.last_commit_ms = self._work.last_commit_ms
            one.table_rows_changed = self._work.rows_changed
        self._set_state(one)
        return one

    def _take_progress(self) -> None:
        query, one = self._query, self._status
        if query is None:
            return
        with self._lock:
            last: Any = query.lastProgress
            if last is None or last["batchId"] <= one.batch_id:
                return
            several: list[Any] = [last] if last["batchId"] == one.batch_id + 1 else list(query.recentProgress)
            for progress in several:
                if progress["batchId"] > one.batch_id:
                    one.input_rows_total += progress["numInputRows"]
                    one.malformed_total += _malformed(progress)
                    one.batch_id = progress["batchId"]
            one.batch_ms = int(last["durationMs"].get("triggerExecution", 0))
            one.rows_per_s = round(float(last["processedRowsPerSecond"] or 0.0), 1)
            operators = list(last["stateOperators"] or ())
            one.state_rows = sum(int(each["numRowsTotal"]) for each in operators)
            one.state_bytes = sum(int(each["memoryUsedBytes"]) for each in operators)
            ends = [source["endOffset"] for source in last["sources"]]
            for end in ends:
                self._positions.update(_offsets(end))
            self._lag.publish(last["name"], str(last["id"]), ends)


def _malformed(progress: Any) -> int:
    observed = progress["observedMetrics"] or {}
    return sum(int(row[MALFORMED] or 0) for row in observed.values())


def _offsets(end: Any) -> dict[TopicPartition, int]:
    try:
        document = json.loads(end) if isinstance(end, str) else end
        return dict(StreamOffset.from_json(document).offsets)
    except (PenstockError, TypeError, ValueError):
        return {}


def arrow_schema(frame: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")


# ---------------------------------------------------------------------------------------------- frames


def stream_frames(spark: SparkSession, cluster: Cluster, rows: Rows) -> dict[str, DataFrame]:
    """Streaming frames by topic, with the watermarks of `rows`, from the beginning of the log."""
    frames: dict[str, DataFrame] = {}
    for kind in rows.reads:
        reader = spark.readStream.format("penstock").option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(MOST_PER_BATCH))
        raw = _with_options(reader, cluster, kind).load()
        events = _events(raw, kind, kind.topic)
        late = rows.watermark.get(kind.topic)
        frames[kind.topic] = events if late is None else events.withWatermark(TIME, _interval(late))
    return frames


def batch_frames(
    spark: SparkSession, cluster: Cluster, rows: Rows, since_ms: int | None, until_ms: int | None
) -> tuple[dict[str, DataFrame], dict[str, Observation]]:
    """Batch frames by topic of the records between two timestamps, with a margin; and their observations."""
    from pyspark.sql import Observation

    frames: dict[str, DataFrame] = {}
    observed: dict[str, Observation] = {}
    for kind in rows.reads:
        reader = _with_options(spark.read.format("penstock"), cluster, kind)
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
        if since_ms is not None:
            reader = reader.option("startingTimestamp", str(max(0, since_ms - _BATCH_MARGIN_MS)))
        if until_ms is not None:
            reader = reader.option("endingTimestamp", str(until_ms + _BATCH_MARGIN_MS))
        observed[kind.topic] = Observation(kind.topic)
        frames[kind.topic] = _events(reader.load(), kind, observed[kind.topic])
    return frames, observed


def _with_options(reader: Any, cluster: Cluster, kind: Kind) -> Any:
    schema = kind.ddl if cluster.value_format == "json" else kind.avro
    options = {
        **cluster.options,
        "kafka.bootstrap.servers": cluster.bootstrap,
        "subscribe": kind.topic,
        "penstock.decode": cluster.value_format,
        "penstock.decode.schema": schema,
        "penstock.decode.mode": "permissive",
    }
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def _events(raw: DataFrame, kind: Kind, observed: Observation | str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - the usual name

    ahead_ms = FURTHEST_AHEAD // timedelta(milliseconds=1)
    is_good = F.col("decoded").isNotNull() & (
        F.col("decoded.time") <= F.unix_millis(F.col("timestamp")) + F.lit(ahead_ms)
    )
    judged = raw.select("decoded", F.coalesce(is_good, F.lit(False)).alias("is_good"))
    counts = (
        F.count(F.lit(1)).alias(SEEN),
        F.count(F.when(~F.col("is_good"), F.lit(1))).alias(MALFORMED),
    )
    columns = [F.col(f"decoded.`{name}`").alias(name) for name in kind.names]
    columns[kind.names.index(TIME)] = F.timestamp_millis(F.col("decoded.time")).alias(TIME)
    return judged.observe(observed, *counts).where("is_good").select(*columns)


def _interval(span: timedelta) -> str:
    return f"{span // timedelta(milliseconds=1)} milliseconds"


# ---------------------------------------------------------------------------------------------- lag


class LagWatch:
    """Asks for end offsets and publishes lag, for all queries of a run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin: Admin | None = None
        self._ends: dict[TopicPartition, int] = {}
        self._committer = LagCommitter(lambda _: cluster.admin(_CLIENT))

    def look(self, positions: Iterable[Mapping[TopicPartition, int]]) -> None:
        """Asks for the end offsets of these partitions."""
        wanted = {one for each in positions for one in each}
        if not wanted:
            return
        try:
            if self._admin is None:
                self._admin = self._cluster.admin(
                    _CLIENT, request_timeout_ms=_TIMEOUT_MS, connect_timeout_ms=_TIMEOUT_MS
                )
            answers = self._admin.list_offsets(dict.fromkeys(wanted, "latest"), timeout_ms=_TIMEOUT_MS)
        except PenstockError:
            self._close_admin()
            return
        self._ends = {one: answer.offset for one, answer in answers.items() if not isinstance(answer, PenstockError)}

    def publish(self, name: str, query_id: str, end_offsets: Iterable[str | None]) -> None:
        """Publishes the progress of a query. Does not block."""
        for progress in query_progress(name, query_id, end_offsets):
            self._committer.note(progress)

    def behind(self, positions: Mapping[TopicPartition, int]) -> int:
        """Records between these positions and the end offsets; -1 if unknown."""
        if not positions or any(one not in self._ends for one in positions):
            return -1
        return sum(max(0, self._ends[one] - offset) for one, offset in positions.items())

    def close(self) -> None:
        """Commits pending progress within a second, and closes the clients."""
        self._committer.close(1.0)
        self._close_admin()

    def _close_admin(self) -> None:
        self._ends = {}
        admin, self._admin = self._admin, None
        if admin is not None:
            with contextlib.suppress(PenstockError):
                admin.close(1.0)
