"""Loads by real Spark: tasks in executors, commits in the driver, rows read back."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.spark.tables.table_stories import VIEWS, World, dead, once, places, reasons, rows, view

from penstock.spark.errors import TableError, UnfitRecord
from penstock.spark.tables import load
from penstock.spark.tables.load_plan import Span
from penstock.spark.tables.loader import replay_dead
from penstock.spark.tables.maintenance import compact
from penstock.spark.tables.runner import SparkRunner


def test_spark_loads_everything_once_and_reads_it_back(world: World, spark: SparkSession) -> None:
    world.views(3000)
    world.send([b"bad"] * 3)
    opened = world.make(schema=VIEWS, event_time="at")
    report = load(world.warehouse, "views", world.address, spark=spark)
    assert (report.counts.landed, report.counts.dead) == (3000, 3)
    assert places(rows(opened)) + places(dead(opened)) == once(world.log())
    root = opened.store.storage.uri
    frame = spark.read.option("basePath", root).parquet(*opened.store.delta.file_uris())
    (found,) = frame.selectExpr("count(*) AS n", "sum(ms) AS total", "count(DISTINCT event_day) AS days").collect()
    assert (found["n"], found["total"], found["days"]) == (3000, sum(range(3000)), 3)


@pytest.mark.long
def test_spark_carries_out_backfill_growth_compaction_and_replay(world: World, spark: SparkSession) -> None:
    world.views(200)
    opened = world.make(schema=VIEWS)
    loader = world.loader(opened, runner=SparkRunner(spark))
    loader.load_new()
    world.send([b'{"user": "x", "page": "/", "ms": 3000000000}', b"bad"])
    loader.load_new()
    loader.load_range([Span(0, 5, 50)], bounded=True)
    compact(opened, SparkRunner(spark), least=2)
    assert replay_dead(loader).tried == 1
    assert places(rows(opened)) + places(dead(opened)) == once(world.log())
    assert "/" in rows(opened).column("page").to_pylist()
    assert len(reasons(opened)) == 1


@pytest.mark.long
def test_a_poisoned_record_in_an_executor_is_one_line_in_the_driver(world: World, spark: SparkSession) -> None:
    world.send([view(0), b"poison"], partition=0)
    opened = world.make(schema=VIEWS, on_error="fail")
    with pytest.raises(UnfitRecord, match="at offset 1 does not match table views") as caught:
        world.loader(opened, runner=SparkRunner(spark)).load_new()
    assert "\n" not in str(caught.value)
    assert opened.store.version == 0


@pytest.mark.long
def test_what_spark_itself_cannot_do_is_one_line(spark: SparkSession) -> None:
    with pytest.raises(TableError, match="Spark failed to run the load") as caught:
        SparkRunner(spark).run(_fails, [b"x"])
    assert "\n" not in str(caught.value)
    assert "no reason at all" in str(caught.value)


def _fails(payload: bytes) -> bytes:
    raise ValueError("no reason at all")


@pytest.mark.long
def test_answers_come_in_the_order_of_the_questions(spark: SparkSession) -> None:
    payloads = [bytes([number]) for number in range(7)]
    assert SparkRunner(spark).run(_echo, payloads) == payloads
    assert SparkRunner(spark).run(_echo, []) == []


def _echo(payload: bytes) -> bytes:
    return payload
