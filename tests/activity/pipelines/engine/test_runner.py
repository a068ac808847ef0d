"""Pipelines on Spark: as streams, over the log, and in plain Python, with the same answer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.engine_stories import (
    FIRST_MS,
    KEPT,
    WINDOW_MS,
    kept_windows,
    plain_windows,
    records,
    send,
    table,
    traffic,
)
from tests.ports import free_port
from tests.timeouts import PATIENCE_S, until

from penstock.activity.cluster import Cluster
from penstock.activity.events import REQUESTS, SERVERS
from penstock.activity.pipelines.engine import results, runner, status
from penstock.activity.pipelines.engine.backfill import backfill, computed
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.activity.pipelines.engine.status import PipelineFolder
from penstock.activity.pipelines.errors import PipelineRuns, TableGone
from penstock.activity.pipelines.operations import PIPELINE
from penstock.spark.tables.delta import Storage
from penstock.testing import Broker

ROWS = PIPELINE.rows[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(str(tmp_path / "data"), settings=KEPT) as running:
        for kind in (REQUESTS, SERVERS):
            running.create_topic(kind.topic, 2)
        yield running


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


class Stream:
    """The pipeline as a stream, stopped at the end of the block."""

    def __init__(self, spark: SparkSession, address: str, warehouse: str) -> None:
        self.said: list[str] = []
        # The source itself waits so long for a broker that is away.
        cluster = Cluster(address, options={"kafka.request.timeout.ms": "4000"})
        self.run = PipelinesRun(spark, [PIPELINE], cluster, warehouse, notify=self.said.append)

    def __enter__(self) -> Stream:
        self.run.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.run.stop(30)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s, (self.said, self.run.status())
            assert not self.run.wait(0.1), self.run.failure

    def until_read(self, records: int) -> None:
        self.until(lambda: self.run.status()[0].queries[0].input_rows_total >= records)


@pytest.mark.long
def test_a_stream_finds_what_plain_python_finds(spark: SparkSession, broker: Broker, warehouse: str) -> None:
    events = traffic(20)
    send(broker.address, events)
    with Stream(spark, broker.address, warehouse) as stream:
        stream.until_read(len(events))
    assert status.read_all(warehouse)[0].state == status.STOPPED
    assert kept_windows(results.read_result_table(warehouse, "server_windows")) == plain_windows(broker.address)


@pytest.mark.long
def test_stream_and_batch_and_plain_python_agree_and_what_is_malformed_is_counted(
    spark: SparkSession, broker: Broker, warehouse: str, tmp_path: Path
) -> None:
    events = traffic(60, slow=("server-1", 40, 52))
    bad = [(REQUESTS, b'{"id": 1, "ti'), (REQUESTS, b"\xff\x00"), (SERVERS, b'{"id": "x", "time": 3}')]
    future = [(SERVERS, {**events[8][1], "time": FIRST_MS + 10**9})]  # it would close every window
    send(broker.address, [*events[:700], *bad])
    send(broker.address, future, timestamp_ms=FIRST_MS)
    with Stream(spark, broker.address, warehouse) as stream:
        stream.until_read(704)
        send(broker.address, events[700:])
        stream.until_read(len(events) + 4)
        stream.until(lambda: status.read_all(warehouse)[0].lag == 0)
        seen = status.read_all(warehouse)[0]
    assert seen.is_alive
    assert seen.queries[0].malformed_total == 4
    assert 0 < seen.queries[0].state_rows < seen.queries[0].state_bytes
    assert status.read_all(warehouse)[0].state == status.STOPPED

    kept = kept_windows(results.read_result_table(warehouse, "server_windows"))
    expected = plain_windows(broker.address)
    assert kept == expected
    batch, read, malformed = computed(spark, ROWS, Cluster(broker.address))
    assert kept_windows(batch) == expected
    assert (sum(read.values()), sum(malformed.values())) == (len(events) + 4, 4)

    elsewhere = str(tmp_path / "batch")
    backfill(spark, PIPELINE, Cluster(broker.address), elsewhere)
    order = ("start", "server", "kind")
    alerts = table(warehouse, "alerts", *order)
    assert alerts == table(elsewhere, "alerts", *order)
    opened = [row for row in alerts if row["state"] == "opened"]
    assert {row["server"] for row in opened} == {"server-1"}
    assert min(row["start"].timestamp() for row in opened) * 1000 <= FIRST_MS + 45_000
    assert_told(broker.address, len(alerts))


def assert_told(address: str, alerts: int) -> None:
    """The topic, compacted, holds the alerts that are in the table."""
    last = {key: value for key, value, _ in records(address, "alerts")}
    assert sum(value is not None for value in last.values()) == alerts


@pytest.mark.long
def test_a_second_run_continues_and_a_table_removed_meanwhile_is_reported(
    spark: SparkSession, broker: Broker, warehouse: str
) -> None:
    events = traffic(20)
    send(broker.address, events[:200])
    with Stream(spark, broker.address, warehouse) as stream:
        stream.until_read(200)
    send(broker.address, events[200:])
    with Stream(spark, broker.address, warehouse) as stream:
        stream.until_read(len(events) - 200)
        assert stream.run.status()[0].queries[0].input_rows_total == len(events) - 200
    assert kept_windows(results.read_result_table(warehouse, "server_windows")) == plain_windows(broker.address)

    Storage(warehouse).child("server_windows").remove()
    with pytest.raises(TableGone, match="--from-start"):
        PipelinesRun(spark, [PIPELINE], Cluster(broker.address), warehouse).start()
    assert status.read_all(warehouse)[0].state == status.FAILED


@pytest.mark.long
def test_a_broker_that_is_restarted_is_waited_for(spark: SparkSession, warehouse: str, tmp_path: Path) -> None:
    data, events = str(tmp_path / "data"), traffic(20)
    port = free_port()
    first = Broker(data, port=port, settings=KEPT).start()
    with Stream(spark, first.address, warehouse) as stream:
        send(first.address, events[:100])
        stream.until_read(100)
        first.stop()
        stream.until(lambda: bool(stream.said))
        with Broker(data, port=port, settings=KEPT) as second:
            send(second.address, events[100:])
            stream.until_read(len(events))
            assert stream.run.status()[0].queries[0].restarts > 0
            assert "Trying again" in stream.said[0]
            assert kept_windows(results.read_result_table(warehouse, "server_windows")) == plain_windows(second.address)
            stream.__exit__()


@pytest.mark.long
def test_a_backfill_replaces_exactly_its_windows(spark: SparkSession, broker: Broker, warehouse: str) -> None:
    send(broker.address, traffic(60, slow=("server-1", 30, 45)))
    cluster = Cluster(broker.address)
    backfill(spark, PIPELINE, cluster, warehouse)
    right = kept_windows(results.read_result_table(warehouse, "server_windows"))
    assert right == plain_windows(broker.address)
    right_alerts = table(warehouse, "alerts", "start", "server", "kind")

    # All rows are damaged by hand; the windows of 20 s to 40 s are computed again, and only those.
    kept = results.open_result_table(
        warehouse, "server_windows", ROWS.key, ROWS.time, results.read_result_table(warehouse, "server_windows").schema
    )
    rows = kept.rows()
    kept.merge(rows.set_column(rows.column_names.index("requests"), "requests", [[0] * rows.num_rows]))
    since_ms, until_ms = FIRST_MS + 4 * WINDOW_MS, FIRST_MS + 8 * WINDOW_MS
    done = backfill(spark, PIPELINE, cluster, warehouse, since_ms, until_ms)
    assert done.changed["server_windows"] == 12
    for place, row in kept_windows(results.read_result_table(warehouse, "server_windows")).items():
        inside = since_ms <= place[0] < until_ms
        assert row["requests"] == (right[place]["requests"] if inside else 0)
    backfill(spark, PIPELINE, cluster, warehouse)
    assert kept_windows(results.read_result_table(warehouse, "server_windows")) == right
    assert table(warehouse, "alerts", "start", "server", "kind") == right_alerts


@pytest.mark.long
def test_a_backfill_is_rejected_while_another_process_runs_the_stream(
    spark: SparkSession, broker: Broker, warehouse: str
) -> None:
    running = status.PipelineStatus(name="operations", state="running", pid=os.getppid(), host=socket.gethostname())
    PipelineFolder(warehouse, "operations").write(running)
    with pytest.raises(PipelineRuns, match="--beside-stream"):
        backfill(spark, PIPELINE, Cluster(broker.address), warehouse)
    with pytest.raises(PipelineRuns, match="penstock pipeline stop"):
        PipelinesRun(spark, [PIPELINE], Cluster(broker.address), warehouse).start()
    assert PipelineFolder(warehouse, "operations").read() == running


@pytest.mark.long
def test_checkpoints_in_a_local_folder_are_written_without_asking_for_links(
    spark: SparkSession, broker: Broker, warehouse: str
) -> None:
    spark.conf.unset(runner._FILE_MANAGER)
    with Stream(spark, broker.address, warehouse) as stream:
        assert spark.conf.get(runner._FILE_MANAGER) == runner._LOCAL_FILES
        until(lambda: stream.run.status()[0].queries[0].batch_id >= 0, "the first batch")
    assert PipelineFolder(warehouse, "operations").has_checkpoint("server_windows")


@pytest.mark.long
def test_stop_request_in_the_folder_stops_the_pipeline(spark: SparkSession, broker: Broker, warehouse: str) -> None:
    with Stream(spark, broker.address, warehouse) as stream:
        PipelineFolder(warehouse, "operations").request_stop()
        assert stream.run.wait(PATIENCE_S)
    assert status.read_all(warehouse)[0].state == status.STOPPED
    assert not PipelineFolder(warehouse, "operations").is_stop_requested()
