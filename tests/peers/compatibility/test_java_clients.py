"""The newest Java clients of Apache Kafka: producer, consumer, admin client, and the command line tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.peers.compatibility.peer_stories import (
    BEGIN_MS,
    CODECS,
    HOUR_MS,
    PARTITIONS,
    numbered,
    reads,
    stored_codecs,
    values,
)
from tests.peers.conversation import ProgramFailed
from tests.peers.java_process import JavaProcess

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3")]

Ask = Callable[..., Any]


@pytest.fixture
def ask(start_java: Callable[..., JavaProcess], address: str) -> Ask:
    """Puts a question to the program with the newest clients."""
    program = start_java("java-clients-4.3", "NewClients")

    def asking(about: str, **question: Any) -> Any:
        return program.ask(about, address=address, **question)

    return asking


def produce(ask: Ask, topic: str, partition: int, texts: list[str], **settings: str) -> list[int]:
    records = [{"partition": partition, "value": text} for text in texts]
    offsets: list[int] = ask("produce", topic=topic, records=records, settings=settings)
    return offsets


def consume_group(ask: Ask, topic: str, group: str, count: int, **settings: str) -> list[dict[str, Any]]:
    """Read as a member of the group, and commit what was read."""
    chosen = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false", **settings}
    records: list[dict[str, Any]] = ask("consume", topic=topic, count=count, commit=True, settings=chosen)
    return records


def tool(ask: Ask, name: str, *arguments: str) -> str:
    """What a command line tool prints, once it has ended well."""
    answer = ask("tool", tool=name, arguments=arguments)
    assert answer["status"] == 0, answer
    output: str = answer["output"]
    return output


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_written_with_a_codec_is_stored_so_and_read(
    ask: Ask, broker: EmbeddedBroker, topic: str, codec: str
) -> None:
    settings = {"compression.type": codec, "linger.ms": "50"}
    assert produce(ask, topic, 1, numbered(200), **settings) == list(range(200))
    assert stored_codecs(broker, topic) == {codec}
    read = ask("consume", topic=topic, partition=1, count=200)
    assert values(read) == numbered(200)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_given(ask: Ask, topic: str, acks: str) -> None:
    produce(ask, topic, 0, numbered(50), acks=acks, **{"enable.idempotence": "false"})
    assert values(ask("consume", topic=topic, partition=0, count=50)) == numbered(50)


def test_keys_nulls_headers_and_times_come_back(ask: Ask, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["a", "1"], ["a", "2"]], "timestamp_ms": BEGIN_MS},
        {"key": None, "value": "no key", "headers": [], "timestamp_ms": BEGIN_MS + 1},
        {"key": "gone", "value": None, "headers": [["ünï", ""]], "timestamp_ms": BEGIN_MS + 2},
    ]
    ask("produce", topic=topic, records=[{"partition": 0, **record} for record in records])
    read = ask("consume", topic=topic, partition=0, count=3)
    assert [{name: record[name] for name in records[0]} for record in read] == records


def test_reading_starts_at_the_given_offset(ask: Ask, topic: str) -> None:
    produce(ask, topic, 2, numbered(20))
    assert values(ask("consume", topic=topic, partition=2, offset=15, count=5)) == numbered(5, 15)


def test_offsets_are_found_by_time(ask: Ask, topic: str) -> None:
    records = [{"partition": 0, "value": "x", "timestamp_ms": BEGIN_MS + hour * HOUR_MS} for hour in range(3)]
    ask("produce", topic=topic, records=records)
    times_ms = [BEGIN_MS - 1, BEGIN_MS + 1, BEGIN_MS + 2 * HOUR_MS, BEGIN_MS + 3 * HOUR_MS]
    answer = ask("times", topic=topic, partition=0, times_ms=times_ms)
    assert answer["found"] == [[0, BEGIN_MS], [1, BEGIN_MS + HOUR_MS], [2, BEGIN_MS + 2 * HOUR_MS], None]
    assert (answer["begin"], answer["end"]) == (0, 3)


def test_a_group_resumes_after_what_it_committed(ask: Ask, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        produce(ask, topic, partition, numbered(10, 10 * partition))
    first = consume_group(ask, topic, group, 12, **{"max.poll.records": "4"})
    rest = consume_group(ask, topic, group, 30 - len(first))
    assert len(first) == 12
    assert values(first + rest) == numbered(30)
    assert len(set(reads(first + rest))) == 30
    known = ask("groups", group=group)
    assert known == {"listed": True, "state": "Empty", "committed": {str(p): 10 for p in range(PARTITIONS)}}
    ask("delete", group=group)
    assert ask("groups", group=group) == {"listed": False, "state": "Dead", "committed": {}}


@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_members_that_come_one_by_one_share_the_partitions(ask: Ask, topic: str, group: str, assignor: str) -> None:
    ask("create", topic=topic, partitions=PARTITIONS)
    strategy = f"org.apache.kafka.clients.consumer.{assignor}"
    settings = {"group.id": group, "partition.assignment.strategy": strategy, "heartbeat.interval.ms": "100"}
    shares = ask("share", topic=topic, members=PARTITIONS, settings=settings)
    assert sorted(shares) == [[partition] for partition in range(PARTITIONS)]


def test_topics_are_created_grown_configured_emptied_and_deleted(ask: Ask, topic: str) -> None:
    ask("create", topic=topic, partitions=2)
    with pytest.raises(ProgramFailed, match="TopicExists"):
        ask("create", topic=topic, partitions=2)
    assert ask("topics")[topic]["partitions"] == 2
    ask("grow", topic=topic, partitions=5)
    assert ask("topics")[topic]["partitions"] == 5
    answer = ask("configure", topic=topic, name="retention.ms", value="86400000")
    assert answer == {"value": "86400000", "source": "DYNAMIC_TOPIC_CONFIG"}
    produce(ask, topic, 4, numbered(10))
    assert ask("delete-records", topic=topic, partition=4, before=6) == 6
    assert ask("times", topic=topic, partition=4, times_ms=[])["begin"] == 6
    ask("delete", topic=topic)
    assert topic not in ask("topics")
    with pytest.raises(ProgramFailed, match="UnknownTopicOrPartition"):
        ask("delete", topic=topic)


def test_recreated_topic_has_another_id(ask: Ask, topic: str) -> None:
    ask("create", topic=topic, partitions=1)
    first = ask("topics")[topic]["id"]
    produce(ask, topic, 0, ["of the first"])
    ask("delete", topic=topic)
    ask("create", topic=topic, partitions=1)
    assert ask("topics")[topic]["id"] != first
    assert produce(ask, topic, 0, ["of the second"]) == [0]


def test_the_topic_tool_creates_describes_lists_and_deletes(ask: Ask, address: str, topic: str) -> None:
    name = ("--topic", topic)
    at = ("--bootstrap-server", address)
    created = tool(
        ask, "TopicCommand", *at, "--create", *name, "--partitions", "2", "--config", "segment.bytes=1048576"
    )
    assert f"Created topic {topic}." in created
    described = tool(ask, "TopicCommand", *at, "--describe", *name)
    assert "PartitionCount: 2" in described
    assert "segment.bytes=1048576" in described
    assert topic in tool(ask, "TopicCommand", *at, "--list").split()
    tool(ask, "TopicCommand", *at, "--delete", *name)
    assert topic not in tool(ask, "TopicCommand", *at, "--list").split()


def test_the_performance_tools_write_and_read(ask: Ask, address: str, topic: str) -> None:
    ask("create", topic=topic, partitions=2)
    size = ("--num-records", "2000", "--record-size", "100", "--throughput", "-1")
    written = tool(ask, "ProducerPerformance", "--topic", topic, *size, "--bootstrap-server", address)
    assert "2000 records sent" in written
    wanted = ("--num-records", "2000", "--timeout", "20000")
    read = tool(ask, "ConsumerPerformance", "--topic", topic, *wanted, "--bootstrap-server", address)
    header, row = read.strip().splitlines()[-2:]
    answer = dict(zip(header.split(", "), row.split(", "), strict=True))
    assert answer["data.consumed.in.nMsg"] == "2000"


def test_the_offset_and_group_tools_show_and_reset(ask: Ask, address: str, topic: str, group: str) -> None:
    at = ("--bootstrap-server", address)
    produce(ask, topic, 1, numbered(10))
    assert f"{topic}:1:10" in tool(ask, "GetOffsetShell", *at, "--topic", topic).split()
    consume_group(ask, topic, group, 10)
    groups = "consumer.group.ConsumerGroupCommand"
    assert group in tool(ask, groups, *at, "--list").split()
    described = tool(ask, groups, *at, "--describe", "--group", group)
    assert [group, topic, "1", "10", "10", "0"] in [line.split()[:6] for line in described.splitlines()]
    reset = ("--reset-offsets", "--topic", f"{topic}:1", "--to-offset", "4", "--execute")
    tool(ask, groups, *at, "--group", group, *reset)
    assert values(consume_group(ask, topic, group, 6)) == numbered(6, 4)
    assert "successful" in tool(ask, groups, *at, "--delete", "--group", group)


def test_the_tools_name_the_cluster_and_the_versions(ask: Ask, address: str) -> None:
    at = ("--bootstrap-server", address)
    assert "Cluster ID: " in tool(ask, "ClusterTool", "cluster-id", *at)
    versions = tool(ask, "BrokerApiVersionsCommand", *at)
    assert f"{address} (id: 0 rack: null" in versions
    assert "Produce(0): 0 to " in versions


def test_the_console_consumer_and_the_disk_tool_see_what_was_written(ask: Ask, address: str, topic: str) -> None:
    at = ("--bootstrap-server", address)
    produce(ask, topic, 1, numbered(10))
    wanted = ("--from-beginning", "--max-messages", "10", "--timeout-ms", "20000")
    assert tool(ask, "consumer.ConsoleConsumer", *at, "--topic", topic, *wanted).splitlines() == numbered(10)
    answer = tool(ask, "LogDirsCommand", *at, "--describe", "--topic-list", topic)
    (folder,) = json.loads(answer.strip().splitlines()[-1])["brokers"][0]["logDirs"]
    sizes = {row["partition"]: row["size"] for row in folder["partitions"]}
    assert sizes[f"{topic}-1"] > sizes[f"{topic}-0"] == 0
