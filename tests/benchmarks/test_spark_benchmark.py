"""The comparison with Spark's stock connector: what is measured, what is in the topics, what a figure means."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.spark import command, workloads
from benchmarks.spark.workloads import (
    CEILING,
    CPU_GOAL,
    EXACTLY_ONCE,
    OURS,
    STOCK,
    Bench,
    Contender,
    Content,
    Outcome,
    Topic,
    batch_rows,
    fill,
    rate_rows,
)

from penstock.spark.fetch import read_range
from penstock.spark.options import ReaderOptions
from penstock.testing import Broker

TOPIC = Topic("views", Content(100), 10_000_000)


def test_rows_say_how_many_rows_how_many_bytes_and_how_much_cpu_with_every_round() -> None:
    outcomes = {
        OURS: [Outcome(5.0, 4.0), Outcome(2.5, 2.0), Outcome(10.0, 8.0)],
        STOCK: [Outcome(10.0, 8.0)],
        CEILING: [Outcome(2.5, 2.0)],
    }
    rows = rate_rows("Queries", "sum", TOPIC, outcomes, 2.5, CPU_GOAL)
    assert [(row.unit, [each.value for each in row.figures.values()], row.ratio()) for row in rows] == [
        ("M rows/s", [2.0, 1.0, 4.0], 2.0),
        ("MB/s", [200.0, 100.0, 400.0], 2.0),
        ("CPU s/GB", [4.0, 8.0, 2.0], 0.5),
    ]
    assert rows[0].figures["Penstock"].rounds == (2.0, 4.0, 1.0)
    assert [row.is_met for row in rows] == [False, None, True]
    assert {row.work for row in rows} == {"sum, 100 B"}


def test_without_the_stock_connector_there_is_no_ratio() -> None:
    rows = rate_rows("Queries", "sum", TOPIC, {OURS: [Outcome(5.0, 4.0)]}, 2.5)
    assert [row.ratio() for row in rows] == [None] * 3
    assert rows[0].is_met is None


def test_a_micro_batch_that_takes_less_time_meets_its_goal() -> None:
    outcomes = {OURS: [Outcome(0.1, 0.2)], STOCK: [Outcome(0.2, 0.1)]}
    time, cpu = batch_rows("Micro-batches", "micro-batch to noop", outcomes, 1.0)
    assert (time.ratio(), time.is_met) == (0.5, True)
    assert (cpu.ratio(), cpu.is_losing) == (2.0, True)


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def work(contender: Contender, _topic: Topic) -> Outcome:
        order.append(contender.name)
        return Outcome(float(len(order)), 0.0)

    found = command.rounds(work, [OURS, STOCK], TOPIC, 2)
    ours, stock = OURS.name, STOCK.name
    assert order == [ours, stock, stock, ours, ours, stock]
    assert [each.seconds for each in found[OURS]] == [4.0, 5.0]


class RecordingBench:
    """Notes who is asked for micro-batches, and when."""

    def __init__(self) -> None:
        self.visits: list[tuple[str, str]] = []

    def micro_batches(self, contender: Contender, _topic: Topic, sink: str, batches: int) -> Outcome:
        self.visits.append((sink, contender.name))
        return Outcome(0.1 * batches, 0.2, (0.1,) * batches)


def test_micro_batches_of_the_contenders_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = RecordingBench()
    monkeypatch.setattr(command, "Bench", lambda *_: bench)
    monkeypatch.setattr(command, "fill", lambda *_: TOPIC)
    options = command.parsed(["--rounds", "2", "--batches", "3"])
    server: Any = SimpleNamespace(name="penstock", address="127.0.0.1:1")
    measurement = command.Measurement(server, None, [OURS, STOCK, CEILING], options, tmp_path)
    rows = measurement.latency()
    ours, stock = OURS.name, STOCK.name
    assert [name for sink, name in bench.visits if sink == "noop"] == [ours, stock, stock, ours, ours, stock]
    assert [name for sink, name in bench.visits if sink == "parquet"] == [ours, stock, stock, ours, ours, stock]
    assert [(row.work, row.unit) for row in rows] == [
        ("micro-batch to noop, 100 B", "ms"),
        ("micro-batch to noop, 100 B", "CPU ms"),
        ("micro-batch to parquet, 100 B", "ms"),
        ("micro-batch to parquet, 100 B", "CPU ms"),
    ]
    assert measurement.micro_batches[0] == {
        "broker": "our broker",
        "sink": "noop",
        "contender": "Penstock",
        "seconds": [(0.1, 0.1, 0.1)] * 2,
    }


def test_every_work_on_a_topic_has_its_cpu_among_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams too, and however many partitions there are."""

    def work(*_: object) -> Outcome:
        return Outcome(1.0, 1.0)

    bench = SimpleNamespace(sum_lengths=work, to_parquet=work, stream_to_parquet=work)
    monkeypatch.setattr(command, "Bench", lambda *_: bench)
    monkeypatch.setattr(command, "fill", lambda _address, content, rows, partitions: Topic("t", content, rows))
    server: Any = SimpleNamespace(name="penstock", address="127.0.0.1:1")
    options = command.parsed([])
    measurement = command.Measurement(server, None, [OURS, STOCK, CEILING], options, tmp_path)
    rows = measurement.contents(command.contents_of(options, is_ours=True)) + measurement.scaling()
    works = {row.work for row in rows}
    assert "stream to Parquet, available now, 1000 B" in works
    assert {"to Parquet, 100 B, lz4", "to Parquet, 100 B, zstd", "to Parquet, 100 B, keys and headers"} <= works
    assert {
        f"sum(length(value)) of {some}, 100 B" for some in ("1 partition", "4 partitions", "16 partitions")
    } <= works
    assert {row.work for row in rows if row.unit == "CPU s/GB"} == works
    assert {row.work for row in rows if CEILING.name in row.figures} == {
        f"{what}, {size} B" for what in ("sum(length(value))", "to Parquet") for size in (100, 1000)
    }


def test_sinks_are_compared_with_themselves_at_least_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(contender: Contender, *_: object) -> Outcome:
        return Outcome(1.0 if contender is EXACTLY_ONCE else 0.5, 1.0)

    bench = SimpleNamespace(to_topic=work, stream_to_topic=work, micro_batches_to_topic=work)
    monkeypatch.setattr(command, "Bench", lambda *_: bench)
    monkeypatch.setattr(command, "fill", lambda _address, content, rows, partitions=4: Topic("t", content, rows))
    server: Any = SimpleNamespace(name="penstock", address="127.0.0.1:1")
    measurement = command.Measurement(server, None, [OURS, STOCK, CEILING], command.parsed([]), tmp_path)
    rows = measurement.sinks()
    assert all(set(row.figures) == {"exactly once", "at least once", "stock connector"} for row in rows)
    assert {row.unit: row.ratio() for row in rows} == {
        "M rows/s": 0.5, "MB/s": 0.5, "CPU s/GB": 1.0, "ms": 2.0, "CPU ms": 1.0
    }  # fmt: skip
    assert {row.is_met for row in rows if row.unit in ("M rows/s", "ms")} == {False}


@pytest.mark.parametrize("arguments", [[], ["--quick"]])
def test_a_quick_run_is_smaller_and_keeps_given_options(arguments: list[str]) -> None:
    usual, quick = command.parsed([]), command.parsed(["--quick"])
    assert quick.records < usual.records
    assert quick.rounds < usual.rounds
    assert quick.commits < usual.commits
    assert quick.ours_only
    assert command.parsed([*arguments, "--records", "5"]).records == 5


def test_options_of_the_stock_connector_are_its_own() -> None:
    options = command.parsed(["--stock-options", "kafka.max.poll.records=10000", "kafka.client.id=a=b"])
    more = command.stock_options(options.stock_options)
    assert more == {"kafka.max.poll.records": "10000", "kafka.client.id": "a=b"}
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=SimpleNamespace(pid=1))))
    bench = Bench(spark, "127.0.0.1:1", Path("unused"), more)
    assert bench.options(STOCK, TOPIC) == bench.options(OURS, TOPIC) | more
    assert "kafka.max.poll.records" not in bench.options(OURS, TOPIC)


def test_apache_kafka_is_read_in_plain_topics_only() -> None:
    options = command.parsed([])
    assert command.contents_of(options, is_ours=False) == [Content(100), Content(1000)]
    assert Content(100, "zstd") in command.contents_of(options, is_ours=True)


def test_records_are_json_of_the_size_that_was_asked_for() -> None:
    with Broker() as broker:
        topic = fill(broker.address, Content(200, keyed=True), 1, partitions=2)
        (batch, *_) = read_range(broker.address, ReaderOptions(include_headers=True), topic.name, 1, 0, 1)
    (record,) = batch.to_pylist()
    assert len(record["value"]) == 200
    assert sorted(json.loads(record["value"])) == ["id", "text"]
    assert record["headers"] == [{"key": "source", "value": b"web"}]
    assert topic.rows == 40_000


def test_a_query_that_fails_ends_the_run_at_once() -> None:
    query = SimpleNamespace(isActive=False, recentProgress=[], exception=lambda: "no broker")
    with pytest.raises(RuntimeError, match="the query ended by itself: no broker"):
        workloads.wait_for_batches(query, 1)
