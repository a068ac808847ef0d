"""Tables of events and reports that follow from them: what is loaded, what is due, what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from tests.activity.pipelines.engine_stories import FIRST_MS, KEPT, request, send, table

from penstock.activity.cluster import Cluster
from penstock.activity.events import REQUESTS
from penstock.activity.pipelines.definition import Pipeline, Report
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.loads import LoadsAndReports
from penstock.activity.pipelines.engine.micro_batch import Outputs
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.spark.tables import Warehouse
from penstock.spark.tables.delta import Storage, Store
from penstock.testing import Broker

DAY_MS = 86_400_000
FIRST_DAY_MS = FIRST_MS // DAY_MS * DAY_MS


def by_day(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Requests of each day and server, and of the day before."""
    events = frames[REQUESTS.topic].groupBy(F.date_trunc("day", "time").alias("day"), "server")
    counted = events.agg(F.count(F.lit(1)).alias("requests"))
    before = counted.select(
        (F.col("day") + F.expr("INTERVAL 1 DAY")).alias("day"), "server", F.col("requests").alias("b")
    )
    joined = counted.join(before, ["day", "server"], "left")
    return joined.select("day", "server", "requests", F.coalesce("b", F.lit(0)).alias("before"))


PIPELINE = Pipeline(
    name="daily", summary="", trigger=timedelta(seconds=1), loads=(REQUESTS,),
    reports=(Report("days", ("day", "server"), "day", (REQUESTS,), timedelta(days=1), by_day),),
)  # fmt: skip


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings=KEPT) as running:
        running.create_topic(REQUESTS.topic, 2)
        yield running


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


def days(address: str, *counts: int, first: int = 0) -> None:
    """The number of requests on each day."""
    for number, count in enumerate(counts, first):
        start_ms = FIRST_DAY_MS + number * DAY_MS
        send(address, [(REQUESTS, request(start_ms + each, start_ms + each)) for each in range(count)])


def found(warehouse: str) -> list[tuple[int, int]]:
    return [(row["requests"], row["before"]) for row in table(warehouse, "days", "day")]


def member(spark: SparkSession, address: str, warehouse: str) -> LoadsAndReports:
    return LoadsAndReports(spark, PIPELINE, Cluster(address), warehouse, Outputs(address), lambda line: None)


@pytest.mark.long
def test_reports_follow_what_is_loaded_and_only_days_that_changed_are_computed(
    spark: SparkSession, broker: Broker, warehouse: str
) -> None:
    loads = member(spark, broker.address, warehouse)
    loads.once()
    assert found(warehouse) == []
    days(broker.address, 3, 5)
    send(broker.address, [(REQUESTS, b"no request")])
    loads.once()
    assert found(warehouse) == [(3, 0), (5, 3)]
    assert loads.status().malformed_total == 1

    version = version_of(warehouse)
    loads.once()
    assert version_of(warehouse) == version

    days(broker.address, 4, first=2)  # a day more, and then something for the first
    loads.once()
    assert found(warehouse) == [(3, 0), (5, 3), (4, 5)]
    days(broker.address, 2)
    loads.once()
    assert found(warehouse) == [(5, 0), (5, 5), (4, 5)]


def version_of(warehouse: str) -> int:
    return Store(Storage(warehouse).child("days")).version


@pytest.mark.long
def test_a_report_that_a_crash_has_kept_from_being_computed_is_computed_later(
    spark: SparkSession, broker: Broker, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(broker.address, 3)
    member(spark, broker.address, warehouse).once()
    days(broker.address, 2, 7)
    with monkeypatch.context() as patched:
        patched.setattr(results.ResultTable, "replace", lambda *args, **kwargs: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            member(spark, broker.address, warehouse).once()
    assert found(warehouse) == [(3, 0)]
    member(spark, broker.address, warehouse).once()
    assert found(warehouse) == [(5, 0), (7, 5)]


@pytest.mark.long
def test_a_run_loads_and_reports_beside_its_streams(spark: SparkSession, broker: Broker, warehouse: str) -> None:
    days(broker.address, 3)
    run = PipelinesRun(spark, [PIPELINE], Cluster(broker.address), warehouse)
    run.start()
    try:
        while run.status()[0].queries[0].batch_id < 0 or run.status()[0].lag != 0:
            assert not run.wait(0.1), run.failure
    finally:
        assert run.stop(30)
    assert Warehouse(warehouse).names() == [REQUESTS.topic]
    assert found(warehouse) == [(3, 0)]
