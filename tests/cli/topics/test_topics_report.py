"""What `penstock topics` prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_cluster import Part, ScriptedCluster

from penstock.cli.topics.topics_report import is_internal
from penstock.client.admin import TopicDescription


@pytest.mark.parametrize(("name", "flag", "internal"), [("__consumer_offsets", False, True), ("views", True, True),
                                                        ("views", False, False)])  # fmt: skip
def test_an_internal_topic_is_known_by_name_where_the_broker_does_not_say(
    name: str, flag: bool, internal: bool
) -> None:
    assert is_internal(TopicDescription(name, None, flag, ())) == internal


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    topics = {"views": [Part([0]), Part([0]), Part([0])], "other": [Part([1, 2])]}
    with ScriptedCluster(topics) as scripted:
        yield scripted


@pytest.fixture
def shell(cluster: ScriptedCluster) -> Shell:
    return Shell(cluster.address)


def test_partitions_are_filtered_by_what_is_wrong_with_them(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.topics = {
        "ill": [
            Part([0, 1, 2]),
            Part([0, 1, 2], isr=[0, 1]),
            Part([0, 1, 2], isr=[0], elr=[2]),
            Part([2, 1], isr=[2], leader=-1),
            Part([0, 1, 2], isr=[0, 1], adding=[2]),
        ]
    }

    def shown(*options: str) -> list[int]:
        return [
            part["partition"]
            for topic in shell.json("topics", "describe", *options)["topics"]
            for part in topic["partitions"]
        ]

    assert shown("--under-replicated") == [1, 2, 3], "what is being added does not count"
    assert shown("--unavailable") == [3]
    assert shown("--under-min-isr") == [2, 3]
    assert shown("--unavailable", "--under-min-isr", "--under-replicated") == [1, 2, 3]
    assert shown() == [0, 1, 2, 3, 4]
    lines = shell.lines("topics", "describe", "ill", "--under-min-isr")
    assert lines[1].split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "BEGIN", "END", "SIZE"]
    assert lines[2].split()[:5] == ["2", "0", "0,1,2", "0", "2"]
    assert "ADDING" in shell.done("topics", "describe", "ill")
