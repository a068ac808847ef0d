"""The commands about a cluster, against three brokers of Apache Kafka 4.3: the ones who wrote the rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands import Shell
from tests.client.contract.contract import new_name
from tests.peers.client.kafka_cluster import KafkaCluster
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicSpec
from penstock.client.errors import TimedOut, UnknownTopic

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_ANSWER_MS = 5_000
_WAIT = ("--wait", "--timeout", "60s")


@pytest.fixture
def shell(cluster: KafkaCluster) -> Shell:
    return Shell(",".join(cluster.bootstrap))


@pytest.fixture
def admin(cluster: KafkaCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap, request_timeout_ms=_ANSWER_MS) as made:
        yield made


def placed(cluster: KafkaCluster, admin: Admin, replicas: list[list[int]], **config: str) -> str:
    """A topic whose partitions are where they are wanted."""
    name = new_name("placed")
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    admin.create_topic(TopicSpec(name, assignments=dict(enumerate(replicas)), config=settings))

    def is_there() -> bool:
        """Known to whichever broker is asked, and in sync."""
        try:
            in_sync = [part["isr"] for part in parts_of(admin, name)] == replicas
            return in_sync and cluster.is_known_everywhere(name)
        except UnknownTopic:
            return False

    until(is_there, "all are in sync", PATIENCE_S)
    return name


def parts_of(admin: Admin, topic: str) -> list[dict[str, Any]]:
    return [
        {"replicas": list(part.replicas), "isr": list(part.isr), "leader": part.leader.id if part.leader else None}
        for part in admin.describe_topic(topic).partitions
    ]


def part_of(admin: Admin, topic: str) -> dict[str, Any]:
    """Its only partition; nothing if the broker that was asked is the one that is away."""
    try:
        return parts_of(admin, topic)[0]
    except TimedOut:
        return {}


def replicas_of(admin: Admin, topic: str) -> list[list[int]]:
    return [part["replicas"] for part in parts_of(admin, topic)]


def status_of(shell: Shell, plan: Path) -> Any:
    return json.loads(shell("reassign", "status", plan, "--format", "json").stdout)


def wait_for(admin: Admin, topic: str, replicas: list[list[int]]) -> None:
    """Until the broker that is asked has heard of it, too."""
    until(lambda: replicas_of(admin, topic) == replicas, f"{topic} is on {replicas}", PATIENCE_S)


def test_brokers_are_listed_and_described(shell: Shell, cluster: KafkaCluster, admin: Admin) -> None:
    topic = placed(cluster, admin, [[1, 2], [2, 3]])
    listed = shell.json("brokers", "list")["brokers"]
    assert [each["id"] for each in listed] == sorted(cluster.nodes)
    assert all(each["online"] and each["outOfSync"] == 0 for each in listed)
    assert sum(each["controller"] for each in listed) == 1
    (one,) = shell.json("brokers", "describe", 2)["brokers"]
    assert one["leads"] >= 1
    assert one["replicas"] >= 2
    assert one["settings"]["node.id"] == "2"
    assert one["folders"][0]["online"]
    assert "holds" in shell.done("brokers", "describe")
    rejected = shell("brokers", "describe", 77)
    assert rejected.exit_code == 4
    assert "Broker 77 does not exist" in rejected.stderr
    (described,) = shell.json("topics", "describe", topic)["topics"]
    assert [part["elr"] for part in described["partitions"]] == [[], []], "this broker does tell"
    assert described["minInsyncReplicas"] == 2


def test_partitions_are_evened_out_and_led_back(
    shell: Shell, cluster: KafkaCluster, admin: Admin, tmp_path: Path
) -> None:
    topic = placed(cluster, admin, [[1], [1], [1]])
    plan, back = tmp_path / "plan.json", tmp_path / "back.json"
    text = shell.done("reassign", "plan", topic, "-o", plan, "--rollback", back)
    assert "2 partitions to change: 2 replicas copied" in text
    assert replicas_of(admin, topic) == [[1], [1], [1]], "a plan changes nothing"
    started = shell.json("reassign", "start", plan, "--throttle", "100MB", *_WAIT)
    assert (started["moving"], started["failed"], started["copies"]) == (0, [], 2)
    until(lambda: sorted(replicas_of(admin, topic)) == [[1], [2], [3]], "they are spread", PATIENCE_S)
    gone: dict[str, Any] = {"moving": [], "throttled": {}, "different": []}
    until(lambda: status_of(shell, plan) == gone, "the throttle goes with the move", PATIENCE_S)
    assert "Nothing to do" in shell.done("reassign", "start", plan)
    assert "Nothing to move" in shell.done("reassign", "plan", topic)
    shell.done("reassign", "start", back, *_WAIT)
    wait_for(admin, topic, [[1], [1], [1]])
    until(lambda: shell("reassign", "status", plan).exit_code == 1, "the plan is not true any more", PATIENCE_S)


def test_a_plan_goes_by_the_pipe_and_empties_a_broker(shell: Shell, cluster: KafkaCluster, admin: Admin) -> None:
    topic = placed(cluster, admin, [[1, 2], [2, 3], [3, 1]])
    plan = shell.done("reassign", "plan", topic, "--without", 3, "--format", "json")
    assert {entry["partition"] for entry in json.loads(plan)["partitions"]} >= {1, 2}
    assert shell("reassign", "start", "-", *_WAIT, stdin=plan).exit_code == 0
    until(lambda: all(3 not in replicas for replicas in replicas_of(admin, topic)), "3 is empty", PATIENCE_S)
    grown = shell.json("reassign", "plan", topic, "-r", 3)
    assert all(sorted(entry["replicas"]) == [1, 2, 3] for entry in grown["partitions"])


def test_a_move_is_watched_slowed_down_and_taken_back(
    shell: Shell, cluster: KafkaCluster, admin: Admin, tmp_path: Path
) -> None:
    topic = placed(cluster, admin, [[1]])
    with Producer(shell.address) as producer:
        for _ in range(4):
            producer.send(topic, b"x" * 500_000).result(PATIENCE_S)
    plan = tmp_path / "plan.json"
    entry = {"topic": topic, "partition": 0, "replicas": [2], "log_dirs": ["any"]}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    begun = shell.done("reassign", "start", plan, "--throttle", "1KB")
    assert "1 partition being moved" in begun
    (moving,) = shell.json("reassign", "status")["moving"]
    assert (moving["topic"], moving["adding"], moving["removing"], moving["behind"]) == (topic, [2], [1], [2])
    assert moving["copied"] < 1
    assert "A throttle of 1024 bytes/s is set" in shell.done("reassign", "status")
    under = shell.json("topics", "describe", topic, "--under-replicated")
    assert under["topics"] == [], "what is only being added is not missing"
    assert "ADDING" in shell.done("topics", "describe", topic)
    assert shell("reassign", "status", "--wait", "--timeout", "100ms").exit_code == 1
    assert f"{topic}-0 keeps its replicas 1." in shell.done("reassign", "cancel", topic, "--remove-throttle")
    wait_for(admin, topic, [[1]])
    # Each broker knows the settings when it hears of them.
    until(lambda: shell.json("reassign", "status") == {"moving": [], "throttled": {}}, "it is removed", PATIENCE_S)
    assert "Nothing to cancel" in shell.done("reassign", "cancel", "--all")


def test_preferred_leaders_are_elected(shell: Shell, cluster: KafkaCluster, admin: Admin, tmp_path: Path) -> None:
    topic = placed(cluster, admin, [[1, 2, 3], [2, 3, 1]])
    assert "Nothing to elect" in shell.done("elect", "preferred", topic)
    plan = tmp_path / "plan.json"
    entries = [{"topic": topic, "partition": index, "replicas": [3, 1, 2]} for index in range(2)]
    plan.write_text(json.dumps({"version": 1, "partitions": entries}))
    assert "penstock elect preferred" in shell.done("reassign", "start", plan, *_WAIT)
    document = shell.json("elect", "preferred", topic)
    assert [(row["before"], row["leader"]) for row in document["elected"]] == [(1, 3), (2, 3)]
    until(lambda: [part["leader"] for part in parts_of(admin, topic)] == [3, 3], "they lead", PATIENCE_S)
    assert shell.json("elect", "preferred", f"{topic}:0")["notNeeded"] == 1


def test_a_broker_that_is_unreachable_is_seen_everywhere(shell: Shell, admin: Admin, cluster: KafkaCluster) -> None:
    topic = placed(cluster, admin, [[1, 2], [2, 3], [3, 1]])
    cluster.nodes[2].kill()
    try:
        until(lambda: all(2 not in part["isr"] for part in parts_of(admin, topic)), "it is missed", PATIENCE_S)
        for option in ("--under-replicated", "--under-min-isr", "--troubled"):
            (described,) = shell.json("topics", "describe", topic, option)["topics"]
            assert [(part["partition"], part["elr"]) for part in described["partitions"]] == [(0, [2]), (1, [2])], (
                option
            )
        assert shell.done("topics", "describe", topic, "--unavailable") == ""
        (away,) = [each for each in shell.json("brokers")["brokers"] if not each["online"]]
        assert (away["id"], away["host"], away["leads"]) == (2, None, 0)
        assert away["outOfSync"] >= 2
        assert shell("brokers", "describe", 2).exit_code == 1
        rejected = shell("reassign", "plan", topic)
        assert rejected.exit_code == 4
        assert "--without 2" in rejected.stderr
        assert shell.json("reassign", "plan", topic, "--without", 2)["copies"] == 2
        failed = shell("elect", "preferred", f"{topic}:1")
        assert failed.exit_code == 4
        assert "Start the offline brokers" in failed.stderr
    finally:
        cluster.nodes[2].launch()
        cluster.nodes[2].wait_until_listening()
    until(lambda: all(len(part["isr"]) == 2 for part in parts_of(admin, topic)), "all are back", PATIENCE_S)


def test_unclean_leader_is_elected_if_no_other_replica_is_left(
    shell: Shell, admin: Admin, cluster: KafkaCluster
) -> None:
    topic = placed(cluster, admin, [[1, 2]], min_insync_replicas="1")
    assert shell("elect", "unclean").exit_code == 2
    cluster.nodes[2].freeze()
    try:
        until(lambda: part_of(admin, topic).get("isr") == [1], "one is left", PATIENCE_S)
        cluster.nodes[1].kill()
    finally:
        cluster.nodes[2].thaw()
    try:
        until(lambda: part_of(admin, topic).get("leader", 1) is None, "the partition has no leader", PATIENCE_S)
        (described,) = shell.json("topics", "describe", topic, "--unavailable")["topics"]
        assert described["partitions"][0]["leader"] is None
        assert "none" in shell.done("topics", "describe", topic, "--unavailable")
        (elected,) = shell.json("elect", "unclean", topic)["elected"]
        assert (elected["topic"], elected["before"], elected["leader"]) == (topic, None, 2)
    finally:
        cluster.nodes[1].launch()
        cluster.nodes[1].wait_until_listening()
    until(lambda: sorted(part_of(admin, topic).get("isr", [])) == [1, 2], "both are back", PATIENCE_S)
