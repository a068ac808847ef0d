"""Elections: preferred leaders, and unclean ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_cluster import Part, ScriptedCluster

_PREFERRED_OFFLINE, _NONE_ELIGIBLE = 80, 83


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    topics = {"views": [Part([0]), Part([0]), Part([0])], "other": [Part([1, 2])]}
    with ScriptedCluster(topics) as scripted:
        yield scripted


@pytest.fixture
def shell(cluster: ScriptedCluster) -> Shell:
    return Shell(cluster.address)


def test_preferred_leaders_are_elected_again(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.topics["other"] = [Part([1, 2], leader=2), Part([2, 1])]
    assert shell.lines("elect", "preferred")[1].split() == ["other", "0", "2", "1"]
    assert cluster.topics["other"][0].leader == 1
    assert "Nothing to elect" in shell.done("elect", "preferred")
    document = shell.json("elect", "preferred", "other")
    assert document == {"elected": [], "notNeeded": 2, "failed": []}


@pytest.mark.parametrize(
    ("kind", "code", "advice"),
    [
        ("preferred", _PREFERRED_OFFLINE, "Start the offline brokers"),
        ("unclean", _NONE_ELIGIBLE, "Start one of their"),
    ],
)
def test_an_election_that_fails_says_what_to_do(
    shell: Shell, cluster: ScriptedCluster, kind: str, code: int, advice: str
) -> None:
    cluster.rejections = {("views", 1): code}
    result = shell("elect", kind, "views:1")
    assert result.exit_code == 4
    assert "Election failed for 1 partition: views-1" in result.stderr
    assert advice in result.stderr


def test_an_unclean_election_needs_named_partitions(shell: Shell, cluster: ScriptedCluster) -> None:
    assert shell("elect", "unclean").exit_code == 2
    assert shell("elect", "unclean", "views", "--all").exit_code == 2
    cluster.topics["views"][1] = Part([2, 1], isr=[1], leader=-1)
    assert shell.json("elect", "unclean", "--all")["elected"] == [
        {"topic": "views", "partition": 1, "before": None, "leader": 2}
    ]
