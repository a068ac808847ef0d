"""Definitions run over events at hand: at once, or as a stream of files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from penstock.activity.events import TIME, Kind
from penstock.activity.pipelines.definition import Rows
from penstock.activity.site import Site, rows_between

Events = Mapping[str, Sequence[Mapping[str, Any]]]
"""By topic, rows with the columns of its kind; `time` in milliseconds."""
INSTANT = pa.timestamp("us", "UTC")
_TYPES = {"BIGINT": pa.int64(), "INT": pa.int32(), "DOUBLE": pa.float64(), "STRING": pa.string()}


def minute_ms(number: int, second: float = 0) -> int:
    """A time in the n-th minute from some day on."""
    return 1_790_000_040_000 + number * 60_000 + int(second * 1000)


@cache
def two_minutes(seed: int = 1, rate: float = 300) -> tuple[Site, dict[str, list[dict[str, Any]]]]:
    """A site, and its events of two minutes that begin ten seconds into one."""
    site = Site(seed=seed, rate=rate, origin_ms=minute_ms(0, 10), rhythm="flat")
    return site, site_events(site, minute_ms(0, 10), minute_ms(2, 10))


def site_events(site: Site, since_ms: int, until_ms: int) -> dict[str, list[dict[str, Any]]]:
    events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kind, row in rows_between(site, since_ms, until_ms):
        events[kind.topic].append(row)
    return events


def cut(events: Events, starts_ms: Iterable[int], latest_ms: int = 20_000) -> list[dict[str, list[Mapping[str, Any]]]]:
    """The events in pieces as they arrive, each until the next of these times; some are late, by up to `latest_ms`."""
    edges = [0, *starts_ms, 1 << 62]
    return [
        {
            topic: [row for row in rows if low <= row[TIME] + row["id"] * 7919 % latest_ms < high]
            for topic, rows in events.items()
        }
        for low, high in pairwise(edges)
    ]


def arrow(kind: Kind, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """As frames have them: the time is a timestamp."""
    columns = {name: pa.array([row[name] for row in rows], _TYPES[spark]) for name, spark in kind.columns}
    columns[TIME] = pa.array([row[TIME] * 1000 for row in rows], pa.int64()).cast(INSTANT)
    return pa.table(columns)


def batch(spark: SparkSession, rows: Rows, events: Events) -> pa.Table:
    """What the definition says of all events at once."""
    frames = {kind.topic: _frame(spark, kind, events.get(kind.topic, ())) for kind in rows.reads}
    return rows.define(frames).toArrow()


def stream(spark: SparkSession, rows: Rows, pieces: Sequence[Events], folder: Path) -> pa.Table:
    """What is there after a stream was given the pieces, each in a micro-batch of its own."""
    frames = {}
    for kind in rows.reads:
        place = folder / kind.topic
        place.mkdir(parents=True)
        for number, piece in enumerate(pieces):
            pq.write_table(arrow(kind, piece.get(kind.topic, ())), place / f"{number:03}.parquet")
        schema = _frame(spark, kind, ()).schema
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(place))
        lateness = rows.watermark[kind.topic]
        frames[kind.topic] = frame.withWatermark(TIME, f"{int(lateness.total_seconds())} seconds")
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    schemas: list[pa.Schema] = []

    def keep(frame: DataFrame, _batch: int) -> None:
        given = frame.toArrow()
        schemas.append(given.schema)
        for row in given.to_pylist():
            kept[tuple(row[name] for name in rows.key)] = row

    query = (
        rows.define(frames)
        .writeStream.outputMode(rows.mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(keep)
        .start()
    )
    query.awaitTermination()
    return pa.Table.from_pylist(list(kept.values()), schema=schemas[0])


def numbered(kind: Kind, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with ids, and with something in the columns that they do not name."""
    other = {"STRING": "", "DOUBLE": 0.0}
    blank = {name: other.get(spark, 0) for name, spark in kind.columns}
    return [{**blank, "id": number, **row} for number, row in enumerate(rows, start=1)]


def ordered(table: pa.Table, *key: str) -> list[dict[str, Any]]:
    """The rows, in the order of a key, to compare."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: tuple(row[name] for name in key))


def _frame(spark: SparkSession, kind: Kind, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    return spark.createDataFrame(arrow(kind, rows))
