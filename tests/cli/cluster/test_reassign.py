"""`penstock reassign` and `penstock elect`: what they ask for, what they say, what they reject.

The cluster is scripted; tests/peers and tests/cluster move partitions in real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.commands import Shell
from tests.cli.scripted_cluster import Part, ScriptedCluster, entry, written

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_TOPIC, _BROKER = 2, 4
_INVALID_ASSIGNMENT = 39


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    topics = {"views": [Part([0]), Part([0]), Part([0])], "other": [Part([1, 2])]}
    with ScriptedCluster(topics) as scripted:
        yield scripted


@pytest.fixture
def shell(cluster: ScriptedCluster) -> Shell:
    return Shell(cluster.address)


# --- plan


def test_a_plan_is_shown_with_what_it_copies_and_changes_nothing(shell: Shell, cluster: ScriptedCluster) -> None:
    lines = shell.lines("reassign", "plan", "views")
    assert lines[0] == "2 partitions to change: 2 replicas copied (2.0 KB)"
    assert lines[1].split() == ["TOPIC", "PARTITION", "FROM", "TO", "COPIED", "TO", "SIZE"]
    # BROKER, RACK, REPLICAS, after, PREFERRED, after.
    assert [line.split() for line in lines[5:8]] == [
        ["0", "rack-0", "3", "1", "3", "1"],
        ["1", "rack-1", "0", "1", "0", "1"],
        ["2", "rack-2", "0", "1", "0", "1"],
    ]
    assert "penstock reassign start" in lines[-1]
    assert [part.replicas for part in cluster.topics["views"]] == [[0], [0], [0]]


def test_a_plan_in_json_is_a_file_of_kafka_s_tool(shell: Shell, tmp_path: Path) -> None:
    document = shell.json(
        "reassign", "plan", "views", "-o", tmp_path / "plan.json", "--rollback", tmp_path / "back.json"
    )
    assert document["version"] == 1
    assert document["copies"] == 2
    moved = {each["partition"]: each["replicas"] for each in document["partitions"]}
    assert json.loads((tmp_path / "plan.json").read_text()) == {
        "version": 1, "partitions": [entry(index, replicas) for index, replicas in moved.items()],
    }  # fmt: skip
    back = json.loads((tmp_path / "back.json").read_text())["partitions"]
    assert back == [entry(index, [0]) for index in moved]


def test_a_plan_empties_brokers_and_changes_the_number_of_replicas(shell: Shell, cluster: ScriptedCluster) -> None:
    document = shell.json("reassign", "plan", "other", "--without", "2")
    assert [each["replicas"] for each in document["partitions"]] == [[1, 0]]
    document = shell.json("reassign", "plan", "views", "-r", "3")
    assert all(sorted(each["replicas"]) == [0, 1, 2] for each in document["partitions"])
    cluster.topics["full"] = [Part([0, 1, 2]), Part([1, 2, 0])]
    document = shell.json("reassign", "plan", "full", "--without", "1", "-r", "2")
    assert sorted(sorted(each["replicas"]) for each in document["partitions"]) == [[0, 2], [0, 2]]
    assert document["copies"] == 0, "what goes anyway goes from the broker that is to be emptied"
    document = shell.json("reassign", "plan", "views:0", "--brokers", "2")
    assert [each["replicas"] for each in document["partitions"]] == [[2]]


def test_a_balanced_topic_is_not_moved(shell: Shell) -> None:
    assert "Nothing to move: 1 partition" in shell.done("reassign", "plan", "other")


def test_a_partition_on_its_way_is_left_out_of_a_plan(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.topics["other"] = [Part([0, 1, 2], isr=[1, 2], adding=[0], removing=[1])]
    result = shell("reassign", "plan", "other")
    assert result.exit_code == 0
    assert "1 partition left out" in result.stderr


def test_an_offline_broker_keeps_its_replicas_unless_it_is_excluded(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.away = {2}
    rejected = shell("reassign", "plan", "other")
    assert rejected.exit_code == 4
    assert "Broker 2 has replicas of these partitions and is offline." in rejected.stderr
    assert "--without 2" in rejected.stderr
    assert [each["replicas"] for each in shell.json("reassign", "plan", "other", "--without", "2")["partitions"]] == [
        [1, 0]
    ]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("view",), 4, "Did you mean views?"),
        (("views:7",), 4, "has no partition 7"),
        (("views", "--brokers", "9"), 4, "Broker 9 does not exist"),
        (("views", "--brokers", "a"), 2, "Example: 1,2,3"),
        (("views", "--without", "0,1,2"), 2, "No broker is left"),
        (("views", "-r", "4"), 2, "replication factor 4 needs 4 brokers; 3 are available"),
        (("views", "-o", "/nowhere/plan.json"), 2, "/nowhere/plan.json: No such file"),
    ],
)
def test_an_impossible_plan_says_why(shell: Shell, options: tuple[str, ...], code: int, said: str) -> None:
    result = shell("reassign", "plan", *options)
    assert result.exit_code == code
    assert said in result.stderr


# --- start


def test_a_plan_is_carried_out_and_waited_for(shell: Shell, cluster: ScriptedCluster, tmp_path: Path) -> None:
    plan = written(tmp_path, entry(0, [1]), entry(1, [0]), entry(2, [2, 0]))
    text = shell.done("reassign", "start", plan, "--wait", "--rollback", tmp_path / "back.json")
    assert text.splitlines()[0] == "2 partitions to change: 2 replicas copied (2.0 KB)"
    assert "Reassignment complete: 2 partitions. `penstock elect preferred`" in text
    assert [part.replicas for part in cluster.topics["views"]] == [[1], [0], [2, 0]]
    assert json.loads((tmp_path / "back.json").read_text())["partitions"] == [entry(0, [0]), entry(2, [0])]
    assert "Nothing to do: 3 partitions as planned." in shell.done("reassign", "start", plan)


def test_a_throttle_is_set_before_and_removed_after(shell: Shell, cluster: ScriptedCluster, tmp_path: Path) -> None:
    shell.done("reassign", "start", written(tmp_path, entry(0, [1]), entry(1, [2, 0])), "--throttle", "1MB", "--wait")
    per_broker = dict.fromkeys(RATES, "1048576")
    of_topic = dict(zip(LISTS, ("0:0,1:0", "0:1,1:2"), strict=True))
    assert cluster.history == [
        *((_BROKER, str(broker), per_broker) for broker in range(3)),
        (_TOPIC, "views", of_topic),
        *((_BROKER, str(broker), dict.fromkeys(RATES)) for broker in range(3)),
        (_TOPIC, "views", dict.fromkeys(LISTS)),
    ]


def test_the_rollback_of_a_redirected_move_restores_the_original_replicas(
    shell: Shell, cluster: ScriptedCluster, tmp_path: Path
) -> None:
    cluster.topics["views"][0] = Part([1, 0], isr=[0], leader=0, adding=[1], removing=[0])
    underway = written(tmp_path, entry(0, [1]))
    assert "Nothing to do" in shell.done("reassign", "start", underway)
    shell.done("reassign", "start", written(tmp_path, entry(0, [2])), "--rollback", tmp_path / "back.json", "--wait")
    assert cluster.topics["views"][0].replicas == [2]
    assert json.loads((tmp_path / "back.json").read_text())["partitions"] == [entry(0, [0])]


def test_a_change_of_order_needs_no_throttle(shell: Shell, cluster: ScriptedCluster, tmp_path: Path) -> None:
    plan = written(tmp_path, entry(0, [2, 1], "other"))
    assert "1 partition with only a new preferred leader" in shell.done("reassign", "start", plan, "--throttle", "1MB")
    assert cluster.history == []


def test_a_throttle_does_not_outlive_a_plan_that_is_rejected(
    shell: Shell, cluster: ScriptedCluster, tmp_path: Path
) -> None:
    cluster.rejections = {("views", 0): _INVALID_ASSIGNMENT}
    result = shell("reassign", "start", written(tmp_path, entry(0, [1])), "--throttle", "1MB")
    assert result.exit_code == 4
    assert "Cannot reassign 1 partition: views-0" in result.stderr
    assert not any(cluster.configs.values())


def test_some_partitions_are_moved_although_others_are_rejected(
    shell: Shell, cluster: ScriptedCluster, tmp_path: Path
) -> None:
    cluster.rejections = {("views", 0): _INVALID_ASSIGNMENT}
    cluster.finishes_moves = False
    result = shell("reassign", "start", written(tmp_path, entry(0, [1]), entry(1, [1])), "--format", "json")
    assert result.exit_code == 4
    document = json.loads(result.stdout)
    assert [each["partition"] for each in document["partitions"]] == [1]
    assert [each["partition"] for each in document["failed"]] == [0]
    assert document["moving"] == 1


# --- status and cancel


@pytest.fixture
def moving(cluster: ScriptedCluster) -> ScriptedCluster:
    cluster.topics["views"][0] = Part([1, 0], isr=[0], leader=0, adding=[1], removing=[0], copied_bytes=250)
    return cluster


def test_status_shows_copying_brokers_and_their_progress(shell: Shell, moving: ScriptedCluster) -> None:
    titles, row = shell.lines("reassign", "status")
    assert titles.split() == ["TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "BEHIND", "COPIED"]
    assert row.split() == ["views", "0", "1,0", "1", "0", "1", "25%"]
    assert shell("reassign", "status", "--wait", "--timeout", "1ms").exit_code == 1


def test_a_forgotten_throttle_is_reported_and_removed_on_request(shell: Shell, cluster: ScriptedCluster) -> None:
    cluster.configs = {(_BROKER, "1"): {RATES[0]: "5000"}, (_TOPIC, "views"): {LISTS[0]: "*"}}
    text = shell.done("reassign", "status")
    assert "A throttle of 5000 bytes/s is set on broker 1, topic views" in text
    assert "Use --remove-throttle to remove it" in text
    assert any(cluster.configs.values()), "looking changes nothing"
    shell.done("reassign", "status", "--remove-throttle")
    assert not any(cluster.configs.values())


def test_a_throttle_stays_while_something_moves(shell: Shell, moving: ScriptedCluster) -> None:
    moving.configs = {(_BROKER, "1"): {RATES[0]: "5000"}}
    assert "A throttle of 5000 bytes/s is set" in shell.done("reassign", "status", "--remove-throttle")
    assert any(moving.configs.values())


def test_a_plan_is_compared_with_what_is_there(shell: Shell, moving: ScriptedCluster, tmp_path: Path) -> None:
    assert shell("reassign", "status", written(tmp_path, entry(0, [1]))).exit_code == 0
    there = shell("reassign", "status", written(tmp_path, entry(1, [0])))
    assert (there.exit_code, "Reassignment complete" in there.stdout) == (0, True)
    result = shell("reassign", "status", written(tmp_path, entry(1, [2])))
    assert result.exit_code == 1
    assert "views-1 has replicas 0 instead of 2, and is not being moved." in result.stdout


def test_moves_are_taken_back_by_name_by_plan_or_all(shell: Shell, moving: ScriptedCluster, tmp_path: Path) -> None:
    assert shell("reassign", "cancel").exit_code == 2
    assert shell("reassign", "cancel", "views", "--all").exit_code == 2
    assert "Nothing to cancel" in shell.done("reassign", "cancel", "other")
    assert shell.done("reassign", "cancel", "views:0") == "views-0 keeps its replicas 0.\n"
    assert moving.topics["views"][0].replicas == [0]
    for option in (("--all",), ("--plan", written(tmp_path, entry(0, [1])))):
        moving.topics["views"][0] = Part([1, 0], isr=[0], adding=[1], removing=[0])
        assert shell.json("reassign", "cancel", *option)["cancelled"] == [{"topic": "views", "partition": 0}]


# --- elect


# --- files
