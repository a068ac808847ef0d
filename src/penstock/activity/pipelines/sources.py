"""The events of a pipeline as frames, as they come or over what the log holds.

Rule: a frame has the columns of its kind, `time` as a timestamp, and nothing that is malformed: bytes that are no value
of the kind, and an event that claims to be from far beyond its record's own time, since one of those would close the
windows of everybody else. Both are counted, by topic, in what Spark observes of the frame.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from penstock.activity.clusters import Cluster
from penstock.activity.events import TIME, Kind
from penstock.activity.pipelines.pipeline import Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

PARTITIONS: Final = 4
"""Of each topic of events that has to be made."""
FURTHEST_AHEAD: Final = timedelta(minutes=10)
MOST_A_BATCH: Final = 400_000
"""Records of a topic that one micro-batch takes: what was missed in a long absence comes in pieces."""
SEEN: Final = "records"
MALFORMED: Final = "malformed"
_BATCH_MARGIN_MS: Final = 600_000


def stream_frames(spark: SparkSession, cluster: Cluster, rows: Rows) -> dict[str, DataFrame]:
    """Frames by topic, with the watermarks of `rows`, from the beginning of the log on."""
    frames: dict[str, DataFrame] = {}
    for kind in rows.reads:
        reader = spark.readStream.format("penstock").option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(MOST_A_BATCH))
        raw = _with(reader, cluster, kind).load()
        events = _events(raw, kind, kind.topic)
        late = rows.watermark.get(kind.topic)
        frames[kind.topic] = events if late is None else events.withWatermark(TIME, _interval(late))
    return frames


def batch_frames(
    spark: SparkSession, cluster: Cluster, rows: Rows, since_ms: int | None, until_ms: int | None
) -> tuple[dict[str, DataFrame], dict[str, Observation]]:
    """Frames by topic of what the log holds between two times of its records, with room for lateness on both sides;
    and what will be observed of each once it was read."""
    from pyspark.sql import Observation

    frames: dict[str, DataFrame] = {}
    observed: dict[str, Observation] = {}
    for kind in rows.reads:
        reader = _with(spark.read.format("penstock"), cluster, kind)
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
        if since_ms is not None:
            reader = reader.option("startingTimestamp", str(max(0, since_ms - _BATCH_MARGIN_MS)))
        if until_ms is not None:
            reader = reader.option("endingTimestamp", str(until_ms + _BATCH_MARGIN_MS))
        observed[kind.topic] = Observation(kind.topic)
        frames[kind.topic] = _events(reader.load(), kind, observed[kind.topic])
    return frames, observed


def _with(reader: Any, cluster: Cluster, kind: Kind) -> Any:
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
    from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

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
