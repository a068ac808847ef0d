"""One streaming query of a pipeline, from its definition to what it says of itself.

Nouns: `Member`, something of a pipeline that runs and can be started again; `RowsQuery`, the query of a `Rows`.

Rule: a query is started from its checkpoint, which lies beside the pipeline's status. Tables are made before the first
batch. If the checkpoint says that batches were committed, the tables must be there: one that was removed by hand would
otherwise come back with its past missing.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.clusters import Cluster
from penstock.activity.pipelines import pools, status
from penstock.activity.pipelines.batches import BatchWork, open_work
from penstock.activity.pipelines.errors import cause_of, in_one_line
from penstock.activity.pipelines.lag import LagWatch
from penstock.activity.pipelines.outputs import Outputs
from penstock.activity.pipelines.pipeline import Pipeline, Rows
from penstock.activity.pipelines.sources import MALFORMED, stream_frames
from penstock.activity.pipelines.status import Folder, QueryStatus
from penstock.client.consumer.types import TopicPartition
from penstock.client.errors import PenstockError
from penstock.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_IDLE_S: Final = 0.05
_STARTING: Final = ("Initializing", "Getting offsets")


class Member(ABC):
    """What a run needs to know of each of its parts."""

    name: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.troubles = 0
        """Of those, what happened to Spark itself."""
        self.retry_at_s: float | None = None
        self._error: PenstockError | None = None
        self._started_s = time.monotonic()

    @abstractmethod
    def start(self) -> None: ...

    def is_starting(self) -> bool:
        """Whether what it has started is a burden for others that start."""
        return False

    def await_sources(self, deadline_s: float) -> None:
        """Until it is none any more."""
        while time.monotonic() < deadline_s and self.is_starting():
            time.sleep(_IDLE_S)

    @abstractmethod
    def stop(self, deadline_s: float) -> None: ...

    @abstractmethod
    def status(self) -> QueryStatus: ...

    def failure(self) -> PenstockError | None:
        """Why it does not run; None if it does."""
        return self._error

    def failed(self, error: PenstockError) -> None:
        self._error = error

    def well_for_s(self) -> float:
        return time.monotonic() - self._started_s

    def positions(self) -> Mapping[TopicPartition, int]:
        """How far it has read."""
        return {}


class RowsQuery(Member):
    """A `Rows` as a stream."""

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
        self._folder = Folder(warehouse_uri, pipeline.name)
        self._query: StreamingQuery | None = None
        self._work: BatchWork | None = None
        self._status = QueryStatus(name=rows.name)
        self._lock = threading.Lock()
        self._positions: dict[TopicPartition, int] = {}

    def start(self) -> None:
        self._spark.sparkContext.setLocalProperty(pools.PROPERTY, pools.pool_of(self._pipeline.trigger))
        frames = stream_frames(self._spark, self._cluster, self._rows)
        frame = self._rows.define(frames)
        schema = arrow_schema(frame)
        may_create = not self._folder.has_checkpoint(self._rows.name)
        work = self._work = open_work(
            self._pipeline, self._rows, schema, self._warehouse_uri, self._outputs, may_create=may_create
        )
        millis = int(self._pipeline.trigger.total_seconds() * 1000)
        writer = frame.writeStream.outputMode(self._rows.mode).foreachBatch(work).queryName(self.name.replace("/", "."))
        writer = writer.trigger(processingTime=f"{millis} milliseconds")
        query = writer.option("checkpointLocation", self._folder.checkpoint(self._rows.name).uri).start()
        with self._lock:
            self._query, self._error = query, None
            self._started_s = time.monotonic()
            self._status.restarts += 1 if self._status.batch_id >= 0 or self.failures else 0

    def is_starting(self) -> bool:
        """Whether the processes of its sources are not there yet; one that has failed waits for none."""
        query = self._query
        return query is not None and query.isActive and query.status["message"].startswith(_STARTING)

    def stop(self, deadline_s: float) -> None:
        query, work = self._query, self._work
        if query is None:
            return
        # Whoever ends a process group has ended Spark too: then there is nothing left to stop.
        with contextlib.suppress(Exception):
            # A batch that is nearly done need not be done again; one that is not is interrupted.
            while time.monotonic() < deadline_s - 3.0 and query.isActive and query.status["isTriggerActive"]:
                time.sleep(_IDLE_S)
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
                self._error = cause_of("the query was stopped by another", self.name)
        return self._error

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._positions

    # ------------------------------------------------------------------------------------------ telling

    def status(self) -> QueryStatus:
        one = self._status
        if one.state == status.STOPPED:
            return one
        self._take_progress()
        one.lag = self._lag.behind(self._positions)
        if self._work is not None:
            one.last_commit_ms = self._work.last_commit_ms
            one.table_rows_changed = self._work.rows_changed
        one.message = "" if self._error is None else self._error.message
        if self._error is not None:
            one.state = status.WAITING if self._error.retriable else status.FAILED
        else:
            one.state = status.RUNNING if one.batch_id >= 0 else status.STARTING
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
            self._lag.show(last["name"], str(last["id"]), ends)


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
