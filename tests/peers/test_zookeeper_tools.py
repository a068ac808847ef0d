"""Kafka 0.9's tools create, alter, reassign, elect, configure and delete through ZooKeeper on a cluster of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.cluster_stories import BrokerCluster, running
from tests.peers.provision import Found
from tests.peers.zookeeper_tools import CONFIGS, ELECT, REASSIGN, TOPICS, OldTools
from tests.timeouts import until

from penstock import Admin, Consumer, Producer, TopicSpec
from penstock.cluster.image import PartitionImage

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-0.9"), pytest.mark.long]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running(str(tmp_path_factory.mktemp("brokers")), min_insync_replicas="1") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tools(peer: Callable[[str], Found], brokers: BrokerCluster) -> OldTools:
    return OldTools(peer("java"), peer("kafka-broker-0.9"), brokers.zookeeper.connect)


def until_partitions(brokers: BrokerCluster, topic: str, count: int) -> list[PartitionImage]:
    def are_led() -> bool:
        found = [each.broker.cluster.image.topic(topic) for each in brokers.brokers.values()]
        return all(
            one is not None and len(one.partitions) == count and all(each.leader >= 0 for each in one.partitions)
            for one in found
        )

    until(are_led, f"{topic} has {count} partitions with leaders everywhere")
    return list(brokers.image().topics[topic].partitions)


def test_topic_is_created_described_grown_used_and_deleted(tools: OldTools, brokers: BrokerCluster) -> None:
    tools.run(
        TOPICS, "--create", "--topic", "views", "--partitions", "2", "--replication-factor", "3",
        "--config", "retention.ms=360000000",
    )  # fmt: skip
    until_partitions(brokers, "views", 2)
    assert brokers.image().topic_config("views") == {"retention.ms": "360000000"}
    described = tools.run(TOPICS, "--describe", "--topic", "views")
    assert "PartitionCount:2\tReplicationFactor:3\tConfigs:retention.ms=360000000" in described
    assert "Leader: none" not in described
    assert tools.run(TOPICS, "--list").split() == ["views"]
    tools.run(TOPICS, "--alter", "--topic", "views", "--partitions", "5")
    until_partitions(brokers, "views", 5)
    with Producer(brokers.bootstrap) as producer:
        for number in range(100):
            producer.send("views", value=b"%d" % number, partition=number % 5)
    with Consumer("views", bootstrap_servers=brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        records = iter(consumer)
        assert {int(next(records).value) for _ in range(100)} == set(range(100))
    tools.run(TOPICS, "--delete", "--topic", "views")
    until(lambda: not brokers.image().topics.get("views"), "views is deleted")
    assert "views" not in tools.run(TOPICS, "--list").split()


def test_settings_are_changed_for_a_topic_and_a_client(tools: OldTools, brokers: BrokerCluster) -> None:
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(TopicSpec("settings", 1, 3))
    change = ("--alter", "--entity-type", "topics", "--entity-name", "settings")
    tools.run(CONFIGS, *change, "--add-config", "cleanup.policy=compact,segment.bytes=1000000")
    wanted = {"cleanup.policy": "compact", "segment.bytes": "1000000"}
    until(lambda: all(brokers.image(n).topic_config("settings") == wanted for n in brokers.brokers), "settings count")
    tools.run(CONFIGS, *change, "--delete-config", "cleanup.policy")
    until(lambda: brokers.image().topic_config("settings") == {"segment.bytes": "1000000"}, "a setting is deleted")
    shown = tools.run(CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "settings")
    assert "segment.bytes=1000000" in shown
    tools.run(
        CONFIGS,
        "--alter",
        "--entity-type",
        "clients",
        "--entity-name",
        "web",
        "--add-config",
        "producer_byte_rate=1024",
    )
    until(lambda: brokers.image().clients.get("web") == {"producer_byte_rate": "1024"}, "the quota counts")


def test_partitions_are_reassigned_and_led_by_their_preferred_leaders(
    tools: OldTools, brokers: BrokerCluster, tmp_path: Path
) -> None:
    tools.run(TOPICS, "--create", "--topic", "moved", "--replica-assignment", "0:1,1:2,2:0")
    until_partitions(brokers, "moved", 3)
    with Producer(brokers.bootstrap, acks="all") as producer:
        for number in range(300):
            producer.send("moved", value=b"%d" % number, partition=number % 3)
    moves = [{"topic": "moved", "partition": index, "replicas": [2, 1]} for index in range(3)]
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    arguments = ("--reassignment-json-file", str(plan))
    assert "Successfully started reassignment" in tools.run(REASSIGN, *arguments, "--execute")
    until(lambda: all(each.replicas == (2, 1) for each in brokers.image().topics["moved"].partitions), "moves complete")
    verified = tools.run(REASSIGN, *arguments, "--verify")
    assert verified.count("completed successfully") == 3
    chosen = tmp_path / "elect.json"
    chosen.write_text(json.dumps({"partitions": [{"topic": "moved", "partition": index} for index in range(3)]}))
    tools.run(ELECT, "--path-to-json-file", str(chosen))
    until(lambda: all(each.leader == 2 for each in brokers.image().topics["moved"].partitions), "broker 2 leads")
    with Consumer("moved", bootstrap_servers=brokers.bootstrap, auto_offset_reset="earliest") as consumer:
        records = iter(consumer)
        assert {int(next(records).value) for _ in range(300)} == set(range(300))


def test_controller_that_is_replaced_in_the_middle(tools: OldTools, brokers: BrokerCluster) -> None:
    """The tool writes while no broker is the controller."""
    stopped = brokers.controller
    brokers.stop(stopped)
    try:
        tools.run(TOPICS, "--create", "--topic", "between", "--partitions", "3", "--replication-factor", "2")
        until_partitions(brokers, "between", 3)
    finally:
        brokers.start(stopped)
    tools.run(TOPICS, "--alter", "--topic", "between", "--partitions", "4")
    until_partitions(brokers, "between", 4)
