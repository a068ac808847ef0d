"""KafkaJS: the client of Node.js, which compares advertised hosts literally and takes the highest version it knows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.peers.compatibility.peer_stories import (
    BEGIN_MS,
    HOUR_MS,
    PARTITIONS,
    numbered,
    reads,
    stored_codecs,
    unique,
    values,
)
from tests.peers.conversation import Conversation
from tests.peers.provision import Found

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.peer("kafkajs")

PROGRAM = Path(__file__).with_name("node") / "clients.js"

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def program(peer: Callable[[str], Found]) -> Iterator[Conversation]:
    modules = peer("kafkajs").path / "node_modules"
    command = [shutil.which("node") or "node", str(PROGRAM)]
    with Conversation("clients.js", command, {**os.environ, "NODE_PATH": str(modules)}) as conversation:
        yield conversation


@pytest.fixture
def ask(program: Conversation, address: str) -> Ask:
    def asking(about: str, **question: Any) -> Any:
        return program.ask(about, address=address, **question)

    return asking


def produce(ask: Ask, topic: str, partition: int, texts: list[str], **options: Any) -> int:
    """The offset of the first."""
    records = [{"partition": partition, "value": text} for text in texts]
    offset: int = ask("produce", topic=topic, records=records, **options)
    return offset


@pytest.fixture
def topic(ask: Ask) -> str:
    """A topic with three partitions."""
    name = unique("topic")
    ask("create", topic=name, partitions=PARTITIONS)
    return name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_written_with_a_codec_is_stored_so_and_read(
    ask: Ask, broker: EmbeddedBroker, topic: str, group: str, codec: str
) -> None:
    assert produce(ask, topic, 1, numbered(200), codec=codec) == 0
    assert stored_codecs(broker, topic) == {codec}
    assert values(ask("consume", topic=topic, group=group, count=200)) == numbered(200)


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_every_kind_of_acknowledgement_is_given(ask: Ask, topic: str, group: str, acks: int) -> None:
    produce(ask, topic, 0, numbered(20), acks=acks)
    assert values(ask("consume", topic=topic, group=group, count=20)) == numbered(20)


def test_an_idempotent_producer_is_served(ask: Ask, topic: str, group: str) -> None:
    assert produce(ask, topic, 0, numbered(20), idempotent=True) == 0
    assert values(ask("consume", topic=topic, group=group, count=20)) == numbered(20)


def test_keys_nulls_headers_and_times_come_back(ask: Ask, topic: str, group: str) -> None:
    sent: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": {"a": "1", "b": "2"}, "timestamp": str(BEGIN_MS)},
        {"key": None, "value": "no key", "headers": {}, "timestamp": str(BEGIN_MS + 1)},
        {"key": "gone", "value": None, "headers": {"ünï": ""}, "timestamp": str(BEGIN_MS + 2)},
    ]
    ask("produce", topic=topic, records=[{"partition": 0, **record} for record in sent])
    read = ask("consume", topic=topic, group=group, count=3)
    assert [(record["key"], record["value"], dict(record["headers"])) for record in read] == [
        (record["key"], record["value"], record["headers"]) for record in sent
    ]
    assert [record["timestamp_ms"] for record in read] == [BEGIN_MS, BEGIN_MS + 1, BEGIN_MS + 2]


def test_partition_is_read_from_the_given_offset(ask: Ask, topic: str, group: str) -> None:
    produce(ask, topic, 2, numbered(20))
    read = ask("consume", topic=topic, group=group, partition=2, offset=15, count=5)
    assert values(read) == numbered(5, 15)


def test_a_group_resumes_after_what_it_committed(ask: Ask, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        produce(ask, topic, partition, numbered(10, 10 * partition))
    first = ask("consume", topic=topic, group=group, count=12)
    rest = ask("consume", topic=topic, group=group, count=18)
    assert values(first + rest) == numbered(30)
    assert len(set(reads(first + rest))) == 30
    known = ask("groups", group=group, topic=topic)
    assert known == {"listed": True, "state": "Empty", "committed": {str(p): 10 for p in range(PARTITIONS)}}
    ask("delete-group", group=group)
    assert ask("groups", group=group, topic=topic)["listed"] is False


def test_offsets_are_found_by_time(ask: Ask, topic: str) -> None:
    records = [{"partition": 0, "value": "x", "timestamp": str(BEGIN_MS + hour * HOUR_MS)} for hour in range(3)]
    ask("produce", topic=topic, records=records)
    assert ask("times", topic=topic, time_ms=BEGIN_MS + 1)["0"] == 1
    # For a time after the last record KafkaJS gives the end.
    assert ask("times", topic=topic, time_ms=BEGIN_MS + 3 * HOUR_MS)["0"] == 3
    assert ask("offsets", topic=topic)["0"] == [0, 3]


def test_topics_are_created_grown_configured_emptied_and_deleted(ask: Ask, topic: str) -> None:
    assert topic in ask("topics")
    assert ask("create", topic=topic, partitions=2) is False
    ask("grow", topic=topic, partitions=5)
    assert ask("describe", topic=topic) == 5
    assert ask("configure", topic=topic, name="retention.ms", value="86400000") == "86400000"
    produce(ask, topic, 4, numbered(10))
    ask("delete-records", topic=topic, partition=4, before=6)
    assert ask("offsets", topic=topic)["4"] == [6, 10]
    ask("delete", topic=topic)
    assert topic not in ask("topics")
