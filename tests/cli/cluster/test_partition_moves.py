"""Plan files of reassignments: what is accepted, and what is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_cluster import Part, ScriptedCluster, entry, written

from penstock.cli.cluster.partition_moves import parse_plan, plan_text
from penstock.client.cluster_metadata import TopicPartition


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    topics = {"views": [Part([0]), Part([0]), Part([0])], "other": [Part([1, 2])]}
    with ScriptedCluster(topics) as scripted:
        yield scripted


@pytest.fixture
def shell(cluster: ScriptedCluster) -> Shell:
    return Shell(cluster.address)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not a valid plan"),
        ('{"version": 2, "partitions": []}', "version 2 is not supported"),
        ('{"version": 1}', "partitions"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": []}]}', "at least one"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "none twice"),
        ('{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}',
         "names a folder"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_plan_is_rejected_with_an_example(
    shell: Shell, tmp_path: Path, text: str, said: str
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(text)
    result = shell("reassign", "start", plan)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "penstock reassign plan -o FILE" in result.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (entry(0, [1], "vews"), "Did you mean views?"),
        (entry(9, [1]), "has no partition 9"),
        (entry(0, [0, 8]), "on broker 8, which does not exist"),
    ],
)
def test_a_plan_with_unknown_names_moves_nothing(
    shell: Shell, cluster: ScriptedCluster, tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    result = shell("reassign", "start", written(tmp_path, entry(1, [2]), wrong))
    assert result.exit_code == 4
    assert said in result.stderr
    assert cluster.topics["views"][1].replicas == [0]


def test_a_missing_file_and_a_listing_twice_are_reported(shell: Shell, tmp_path: Path) -> None:
    assert "No such file" in shell("reassign", "start", tmp_path / "nowhere.json").stderr
    assert (
        "views-0 is listed twice" in shell("reassign", "start", written(tmp_path, entry(0, [1]), entry(0, [2]))).stderr
    )


def test_a_plan_survives_its_file() -> None:
    plan = {TopicPartition("a", 0): (1, 2), TopicPartition("b", 3): (2,)}
    assert parse_plan(plan_text(plan)) == plan
