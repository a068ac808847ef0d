"""The comparison with Spark's stock connector: what is measured, what is in the topics, what a figure means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.spark import command
from benchmarks.spark.figures import CPU_GOAL, Row, rate_rows, report, time_row
from benchmarks.spark.topics import Content, Topic, fill
from benchmarks.spark.works import CEILING, OURS, STOCK, Contender, Outcome

from penstock.spark.fetching import read_range
from penstock.spark.options import ReaderOptions
from penstock.testing import Broker

TOPIC = Topic("views", Content(100), 10_000_000)


def test_ours_twice_as_fast_and_at_half_the_cost_is_twice_as_good_in_every_row() -> None:
    outcomes = {OURS: Outcome(5.0, 4.0), STOCK: Outcome(10.0, 8.0), CEILING: Outcome(2.5, 2.0)}
    rows = rate_rows("penstock", "sum", TOPIC, outcomes, 2.5, CPU_GOAL)
    assert [(row.unit, row.ours, row.stock, row.ceiling, row.better) for row in rows] == [
        ("M rows/s", 2.0, 1.0, 4.0, 2.0),
        ("MB/s", 200.0, 100.0, 400.0, 2.0),
        ("CPU s a GB", 4.0, 8.0, 2.0, 2.0),
    ]
    assert rows[0].shown()["met"] is False
    assert rows[2].shown()["met"] is True


def test_without_the_stock_connector_there_is_no_ratio() -> None:
    rows = rate_rows("penstock", "sum", TOPIC, {OURS: Outcome(5.0, 4.0)})
    assert [row.better for row in rows] == [None] * 3
    assert time_row("penstock", "micro-batch", {OURS: 10.0}, 1.0).shown()["met"] is None


def test_less_time_is_better() -> None:
    assert time_row("penstock", "micro-batch", {OURS: 100.0, STOCK: 150.0}, 1.0).better == 1.5


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def work(contender: Contender, _topic: Topic) -> Outcome:
        order.append(contender.name)
        return Outcome(float(len(order)), 0.0)

    found = command.rounds(work, [OURS, STOCK], TOPIC, 2)
    assert order == ["penstock", "stock", "stock", "penstock", "penstock", "stock"]
    assert found[OURS].seconds == 4.5


@pytest.mark.parametrize("arguments", [[], ["--quick"]])
def test_a_quick_run_is_less_of_everything_and_keeps_what_is_said(arguments: list[str]) -> None:
    usual, quick = command.parsed([]), command.parsed(["--quick"])
    assert quick.records < usual.records
    assert quick.rounds < usual.rounds
    assert quick.commits < usual.commits
    assert quick.ours_only
    assert command.parsed([*arguments, "--records", "5"]).records == 5


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


def test_a_report_is_kept_as_figures_and_as_a_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report([Row("penstock", "sum", "M rows/s", 2.0, 1.0, None, 2.0, 2.5)], 3.0, tmp_path)
    assert json.loads((tmp_path / "spark.json").read_text())["rows"][0]["better"] == 2.0
    assert "penstock: sum" in (tmp_path / "spark.svg").read_text()
    assert "CAUTION" in capsys.readouterr().out
