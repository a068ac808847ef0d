"""The Java clients of Apache Kafka 0.9: first versions of every request, message sets, and no question of versions.

What they write the newest clients read, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.peers.compatibility.peer_stories import BEGIN_MS, PARTITIONS, numbered, reads, stored_codecs, values
from tests.peers.java_process import JavaProcess

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-0.9")]

OLD_CODECS = ("none", "gzip", "snappy", "lz4")

Ask = Callable[..., Any]


@pytest.fixture
def ask(start_java: Callable[..., JavaProcess], address: str) -> Ask:
    """Puts a question to the program with the old clients."""
    program = start_java("java-clients-0.9", "OldClients")

    def asking(about: str, settings: dict[str, str] | None = None, **question: Any) -> Any:
        return program.ask(about, address=address, settings=settings or {}, **question)

    return asking


@pytest.fixture
def ask_new(start_java: Callable[..., JavaProcess], address: str) -> Ask:
    """Puts a question to the program with the newest clients."""
    program = start_java("java-clients-4.3", "NewClients")

    def asking(about: str, **question: Any) -> Any:
        return program.ask(about, address=address, **question)

    return asking


def produce(ask: Ask, topic: str, partition: int, texts: list[str], **settings: str) -> list[int]:
    records = [{"partition": partition, "value": text} for text in texts]
    offsets: list[int] = ask("produce", topic=topic, records=records, settings=settings)
    return offsets


def of_group(group: str) -> dict[str, str]:
    return {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_what_was_written_with_a_codec_is_stored_so_and_read(
    ask: Ask, broker: EmbeddedBroker, topic: str, codec: str
) -> None:
    settings = {"compression.type": codec, "linger.ms": "50"}
    assert produce(ask, topic, 1, numbered(200), **settings) == list(range(200))
    assert stored_codecs(broker, topic) == {codec}
    assert values(ask("consume", topic=topic, partition=1, count=200)) == numbered(200)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_given(ask: Ask, topic: str, acks: str) -> None:
    produce(ask, topic, 0, numbered(50), acks=acks)
    assert values(ask("consume", topic=topic, partition=0, count=50)) == numbered(50)


def test_keys_and_nulls_come_back(ask: Ask, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v"},
        {"key": None, "value": "no key"},
        {"key": "gone", "value": None},
    ]
    ask("produce", topic=topic, records=[{"partition": 0, **record} for record in records])
    read = ask("consume", topic=topic, partition=0, count=3)
    assert [{name: record[name] for name in ("key", "value")} for record in read] == records


def test_reading_starts_at_the_given_offset(ask: Ask, topic: str) -> None:
    produce(ask, topic, 2, numbered(20), **{"compression.type": "gzip", "linger.ms": "50"})
    read = ask("consume", topic=topic, partition=2, offset=15, count=5)
    assert [(record["offset"], record["value"]) for record in read] == list(
        zip(range(15, 20), numbered(5, 15), strict=True)
    )


def test_a_group_resumes_after_what_it_committed(ask: Ask, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        produce(ask, topic, partition, numbered(10, 10 * partition))
    # Small fetches, so that the first member does not get everything at once.
    settings = {**of_group(group), "max.partition.fetch.bytes": "1000"}
    first = ask("consume", topic=topic, count=6, commit=True, settings=settings)
    assert 6 <= len(first) < 30
    rest = ask("consume", topic=topic, count=30 - len(first), commit=True, settings=of_group(group))
    assert values(first + rest) == numbered(30)
    assert len(set(reads(first + rest))) == 30
    for partition in range(PARTITIONS):
        assert ask("committed", topic=topic, partition=partition, settings=of_group(group)) == 10


def test_topics_are_listed_with_their_partitions(ask: Ask, topic: str) -> None:
    produce(ask, topic, 0, ["x"])
    assert ask("topics")[topic] == PARTITIONS


@pytest.mark.peer("java-clients-4.3")
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_old_consumers_read_what_new_producers_write(ask: Ask, ask_new: Ask, topic: str, codec: str) -> None:
    records = [
        {"partition": 0, "key": "k", "value": text, "headers": [["h", "1"]], "timestamp_ms": BEGIN_MS}
        for text in numbered(100)
    ]
    ask_new("produce", topic=topic, records=records, settings={"compression.type": codec, "linger.ms": "50"})
    assert values(ask("consume", topic=topic, partition=0, count=100)) == numbered(100)


@pytest.mark.peer("java-clients-4.3")
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_new_consumers_read_what_old_producers_write(ask: Ask, ask_new: Ask, topic: str, codec: str) -> None:
    produce(ask, topic, 0, numbered(100), **{"compression.type": codec, "linger.ms": "50"})
    assert values(ask_new("consume", topic=topic, partition=0, count=100)) == numbered(100)


@pytest.mark.peer("java-clients-4.3")
def test_a_group_moves_from_old_to_new_clients(ask: Ask, ask_new: Ask, topic: str, group: str) -> None:
    produce(ask, topic, 0, numbered(10))
    ask("consume", topic=topic, count=10, commit=True, settings=of_group(group))
    produce(ask, topic, 0, numbered(5, 10))
    rest = ask_new("consume", topic=topic, count=5, settings=of_group(group))
    assert values(rest) == numbered(5, 10)
