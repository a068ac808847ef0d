"""`penstock topics` and `penstock brokers` where there are several brokers, and some of them are not well.

The cluster only answers; real ones are asked in tests/peers and by `penstock up --brokers`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_cluster import Part, ScriptedCluster
from tests.cli.test_completion import completed

_BROKER = 4


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    topics = {"views": [Part([0]), Part([0]), Part([0])], "other": [Part([1, 2])]}
    with ScriptedCluster(topics) as scripted:
        yield scripted


@pytest.fixture
def shell(cluster: ScriptedCluster) -> Shell:
    return Shell(cluster.address)


def test_an_offline_broker_is_listed_while_it_has_replicas(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.away = {2}
    cluster.topics["other"] = [Part([1, 2], isr=[1])]
    listed = shell.json("brokers")["brokers"]
    assert [(each["id"], each["online"], each["rack"], each["outOfSync"]) for each in listed] == [
        (0, True, "rack-0", 0), (1, True, "rack-1", 0), (2, False, None, 1),
    ]  # fmt: skip
    assert shell.lines("brokers")[-1].split()[:3] == ["2", "(offline)", "-"]
    described = shell("brokers", "describe", 2)
    assert described.exit_code == 1
    assert "not in sync: other-0" in described.stdout
    cluster.topics = {"views": [Part([0])]}
    assert [each["id"] for each in shell.json("brokers")["brokers"]] == [0, 1]


def test_a_broker_is_described_with_what_was_altered(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.configs = {(_BROKER, "1"): {"log.retention.ms": "5"}}
    text = shell.done("brokers", "describe", 1)
    assert text.startswith("broker 1: 127.0.0.1:")
    assert "rack rack-1, leads 1 partition (preferred leader of 1), holds 1 replica" in text
    assert "log.retention.ms" in text
    (document,) = shell.json("brokers", "describe", 1)["brokers"]
    assert document["settings"] == {"log.retention.ms": "5"}
    assert document["folders"][0]["path"] == "/data/1"
    rejected = shell("brokers", "describe", 9)
    assert (rejected.exit_code, "The brokers are 0, 1, 2." in rejected.stderr) == (4, True)


def test_numbers_of_brokers_are_completed(shell: Shell) -> None:
    assert completed(shell, "brokers", "describe", "") == ["0", "1", "2"]
    assert completed(shell, "reassign", "plan", "--without", "1,") == ["1,0", "1,2"]
    assert completed(shell, "elect", "preferred", "vi") == ["views"]
