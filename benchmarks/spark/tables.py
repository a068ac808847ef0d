"""Topics into tables: `penstock load` beside a plain job of the stock connector, and what commits cost as they add up.

The two do not promise the same. A load decodes JSON, writes Parquet, keeps where each row comes from, sets
records aside that do not fit, and commits to a Delta table exactly once; the plain job decodes by from_json and writes
Parquet, and whoever runs it twice has everything twice. The comparison says what the promises cost, if anything.
"""

from __future__ import annotations

import time
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.spark.topics import Content, Topic, fill
from benchmarks.spark.works import OURS, Contender
from penstock import Admin
from penstock.spark.tables import Limits, Loader, Warehouse, create, from_mapping
from penstock.spark.tables.commits import CommitNote
from penstock.spark.tables.running import LocalRunner, Runner, SparkRunner

SCHEMA: Final = "id bigint, text string"
_FEW: Final = 25
_SMALL: Final = Content(100)


class Tables:
    """Loads into a warehouse of its own."""

    def __init__(self, spark: SparkSession, address: str, folder: Path) -> None:
        self._spark = spark
        self._address = address
        self._folder = folder

    def load(self, contender: Contender, topic: Topic) -> None:
        """Everything that the topic holds."""
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
        """How long loads of one record take with their commits: the first few, and those after `count` of them."""
        topic = fill(self._address, _SMALL, count + 2 * _FEW, partitions=1)
        times: list[float] = []

        def told(_note: CommitNote, _version: int) -> None:
            times.append(time.perf_counter())

        with Admin(self._address) as admin:
            loader = self._loader(topic, admin, LocalRunner(1), Limits(1, 1), progress=told)
            loader.load_new(until={0: count + _FEW})
        spans = [1000 * (after - before) for before, after in pairwise(times)]
        return spans[:_FEW], spans[-_FEW:]
