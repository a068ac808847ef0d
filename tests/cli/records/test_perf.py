"""`penstock perf`: that the figures are those of what was done."""

from __future__ import annotations

import json

import pytest
from tests.cli.commands import Shell


def test_producing_is_counted_and_measured(shell: Shell, topic: str) -> None:
    figures = json.loads(shell.done("perf", "produce", "-t", topic, "-n", 3000, "-s", 50, "--json", "-z", "lz4"))
    assert (figures["records"], figures["bytes"], figures["failed"]) == (3000, 150_000, 0)
    assert figures["recordsPerSecond"] == pytest.approx(3000 / figures["seconds"], rel=0.01)
    latency = figures["latencyMs"]
    assert latency["measured"] == 3000
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    assert sum(each["records"] for each in shell.json("offsets", topic)["partitions"]) == 3000


def test_a_rate_is_kept(shell: Shell, topic: str) -> None:
    figures = json.loads(shell.done("perf", "produce", "-t", topic, "-n", 200, "--throughput", 400, "--json"))
    assert figures["recordsPerSecond"] <= 420


@pytest.mark.parametrize("kind", ["records", "arrow"])
def test_consuming_reads_all_that_is_there(shell: Shell, topic: str, kind: str) -> None:
    shell.done("perf", "produce", "-t", topic, "-n", 2000, "--random")
    figures = json.loads(shell.done("perf", "consume", "-t", topic, "--as", kind, "--json"))
    assert figures["records"] == 2000
    assert figures["bytes"] >= 200_000


def test_consuming_some_in_a_group(shell: Shell, topic: str, group: str) -> None:
    shell.done("perf", "produce", "-t", topic, "-n", 500)
    figures = json.loads(shell.done("perf", "consume", "-t", topic, "-n", 100, "-g", group, "--json"))
    assert figures["records"] == 100


def test_fewer_records_than_asked_for_are_reported(shell: Shell, topic: str) -> None:
    shell.done("perf", "produce", "-t", topic, "-n", 10)
    result = shell("perf", "consume", "-t", topic, "-n", 11, "--timeout-ms", 300, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["records"] == 10


def test_an_empty_topic_causes_no_division_by_zero(shell: Shell, topic: str) -> None:
    assert "0 records" in shell.done("perf", "consume", "-t", topic)


@pytest.mark.parametrize("option", [[], ["--end-to-end"]])
def test_latency_is_that_of_single_records(shell: Shell, topic: str, option: list[str]) -> None:
    figures = json.loads(shell.done("perf", "latency", "-t", topic, "-n", 30, "--json", *option))
    assert figures["latencyMs"]["measured"] == 30
    assert "p99.9" in shell.done("perf", "latency", "-t", topic, "-n", 5, *option)


def test_a_topic_that_a_measurement_creates_is_reported(shell: Shell, single: str) -> None:
    words = ("perf", "latency", "-n", 2, "-t")
    assert f"Topic '{single}-new' does not exist; creating it." in shell(*words, f"{single}-new").stderr
    assert "does not exist" not in shell(*words, f"{single}-new").stderr
    typo = shell.at_terminal(*words, f"{single}x")
    assert (typo.returncode, f"Did you mean {single}? Use --create to create it." in typo.stderr) == (4, True)
    assert f"{single}x" not in shell.lines("topics", "list")


def test_the_topic_may_be_an_argument_but_only_one(shell: Shell, topic: str) -> None:
    assert "10 records" in shell.done("perf", "produce", topic, "-n", 10)
    assert json.loads(shell.done("perf", "consume", topic, "--json"))["records"] == 10
    several = shell("perf", "consume", topic, "-t", "another")
    assert several.exit_code == 2
    assert "One topic is measured at a time" in several.stderr
    assert "Missing argument 'TOPIC'" in shell("perf", "latency").stderr
