"""Pipelines and clusters that are not at their best or not as usual: killed in the middle, behind TLS, with Avro."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.activity.pipelines.engine_stories import KEPT, logged, plain_windows, records, send, traffic, windows_of
from tests.activity.pipelines.engine_stories import kept_windows as windows_in
from tests.activity.pipelines.tls_broker import tls_broker
from tests.activity.plain import tables
from tests.cli.running import Running
from tests.ports import free_port
from tests.timeouts import PATIENCE_S

from penstock import Producer
from penstock.activity.cluster import Cluster
from penstock.activity.events import KINDS, REQUESTS, SERVERS, VIEWS
from penstock.activity.pipelines import operations, reporting, search
from penstock.activity.pipelines.definition import Pipeline
from penstock.activity.pipelines.engine import results
from penstock.activity.pipelines.engine.runner import PipelinesRun
from penstock.client.cluster_metadata import TopicPartition
from penstock.client.errors import PenstockError
from penstock.spark.tables import Warehouse
from penstock.testing import Broker

ALERTS = TopicPartition("alerts", 0)
LOADS = Pipeline(
    name="loads", summary="requests as they are", trigger=timedelta(seconds=1), loads=(REQUESTS, SERVERS), reports=()
)


@contextmanager
def streams(spark: SparkSession, pipelines: list[Pipeline], cluster: Cluster, warehouse: str) -> Iterator[PipelinesRun]:
    run = PipelinesRun(spark, pipelines, cluster, warehouse)
    run.start()
    try:
        yield run
    finally:
        assert run.stop(30)


def until_read(run: PipelinesRun, least: dict[str, int]) -> None:
    """Wait until each pipeline has read this many records and has no lag."""
    deadline_s = time.monotonic() + PATIENCE_S

    def is_done() -> bool:
        rows = {one.name: sum(query.input_rows_total for query in one.queries) for one in run.status()}
        return all(rows[name] >= count for name, count in least.items())

    while not is_done() or any(one.lag for one in run.status()):
        assert not run.wait(0.1), run.failure
        assert time.monotonic() < deadline_s, run.status()


def until_a_round_later(run: PipelinesRun) -> None:
    """Reports come at the end of the round that loads what they follow from."""

    def rounds() -> int:
        return next(query.batch_id for one in run.status() for query in one.queries if query.name == "loads")

    before, deadline_s = rounds(), time.monotonic() + PATIENCE_S
    while rounds() <= before:
        assert not run.wait(0.1), run.failure
        assert time.monotonic() < deadline_s, run.status()


def server(folder: Path, port: int) -> Running:
    return Running(
        "server", "start", "--data-dir", folder, "--listen", f"127.0.0.1:{port}", "--http-port", "0",
        *(word for name, value in KEPT.items() for word in ("--set", f"{name}={value}")),
    )  # fmt: skip


@pytest.mark.long
def test_a_broker_that_is_killed_in_the_middle_is_waited_for_and_nothing_is_missing_or_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    port, warehouse, events = free_port(), str(tmp_path / "warehouse"), traffic(40)
    address, half = f"127.0.0.1:{port}", len(events) // 2
    # The source itself waits so long for a broker that is away.
    cluster = Cluster(address, options={"kafka.request.timeout.ms": "4000"})
    pipelines = [operations.PIPELINE, LOADS]
    with server(tmp_path / "data", port) as first:
        first.address()
        with streams(spark, pipelines, cluster, warehouse) as run:
            send(address, events[:half])
            until_read(run, {"operations": half, "loads": half})
            first.stop(signal.SIGKILL)
            deadline_s = time.monotonic() + PATIENCE_S
            while "waiting" not in {one.state for one in run.status()}:
                assert not run.wait(0.1), run.failure
                assert time.monotonic() < deadline_s, run.status()
            with server(tmp_path / "data", port) as second:
                second.address()
                send(address, events[half:])
                until_read(run, {"operations": len(events), "loads": len(events)})
                expected = plain_windows(address)
                requests = [event["id"] for event in logged(address, REQUESTS)]
                # A batch that is repeated counts its records again: what counts is what is in the table.
                while windows_in(results.read_result_table(warehouse, "server_windows")) != expected:
                    assert not run.wait(0.1), run.failure
                    assert time.monotonic() < deadline_s + PATIENCE_S, run.status()
                run.request_stop()
                assert run.wait(PATIENCE_S)
    assert len(requests) == sum(kind is REQUESTS for kind, _ in events)
    assert windows_in(results.read_result_table(warehouse, "server_windows")) == expected
    landed = Warehouse(warehouse).open(REQUESTS.topic).store.delta.to_pyarrow_table(columns=["id"])
    assert sorted(landed.column("id").to_pylist()) == sorted(requests)


@pytest.mark.long
def test_events_in_avro_go_from_the_generator_to_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    loads = replace(reporting.PIPELINE, trigger=timedelta(seconds=1))
    with Broker(str(tmp_path / "data"), settings=KEPT) as broker:
        with Running(
            "activity", "generate", "--as-fast-as-possible", "--events", "20000", "--rate", "1000", "--rhythm", "flat",
            "--value-format", "avro", "--malformed", "0.01", "--start", "2026-09-21T12:00:10Z", "-b", broker.address,
        ) as generator:  # fmt: skip
            assert generator.end() == 0, generator.text
        events = tables.logged(broker.address, tables.from_avro)
        good = sum(map(len, events.values()))
        malformed = sum(1 for kind in KINDS for _ in records(broker.address, kind.topic)) - good
        with streams(spark, [search.PIPELINE, loads], Cluster(broker.address, "avro"), warehouse) as run:
            until_read(run, {"search": len(events["searches"]), "reporting": good + malformed})
            until_a_round_later(run)
            seen = {one.name: one for one in run.status()}
    assert good > 10_000
    assert malformed > 50
    assert seen["reporting"].queries[0].malformed_total == malformed
    tables.assert_same(warehouse, events, ("search", "reporting"))
    views = Warehouse(warehouse).open(VIEWS.topic).store.delta.to_pyarrow_table(columns=list(VIEWS.names)).to_pylist()
    kept = [{**row, "time": round(row["time"].timestamp() * 1000)} for row in views]
    assert sorted(kept, key=lambda row: row["id"]) == sorted(events["views"], key=lambda row: row["id"])


@pytest.mark.long
def test_a_cluster_behind_tls_is_read_written_and_watched_by_tls_alone(spark: SparkSession, tmp_path: Path) -> None:
    warehouse, events = str(tmp_path / "warehouse"), traffic(30, slow=("server-1", 15, 25))
    with tls_broker(tmp_path / "broker") as broker:
        cluster = Cluster(broker.address, options={**broker.options, "kafka.request.timeout.ms": "10000"})
        with streams(spark, [operations.PIPELINE, LOADS], cluster, warehouse) as run:
            with Producer(broker.address, **cluster.security()) as producer:
                for kind, event in events:
                    producer.send(kind.topic, json.dumps(event).encode(), key=b"k", timestamp_ms=event["time"])
            until_read(run, {"operations": len(events), "loads": len(events)})
        with cluster.admin("test") as admin:
            groups = [one.group_id for one in admin.list_groups()]
            ends = admin.list_offsets({ALERTS: "latest"})
        with pytest.raises(PenstockError), Cluster(broker.address).admin("test", request_timeout_ms=2000) as admin:
            admin.list_topics()
    plain = {kind.topic: [event for each, event in events if each is kind] for kind in (REQUESTS, SERVERS)}
    kept = windows_in(results.read_result_table(warehouse, "server_windows"))
    assert kept == windows_of(plain[REQUESTS.topic], plain[SERVERS.topic])
    assert any(name.startswith("operations.") for name in groups), "how far it is can be seen"
    assert getattr(ends[ALERTS], "offset", 0) > 0, "alerts were written"
