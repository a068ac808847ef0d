"""franz-go: a client that takes the highest versions, fetches in sessions and names topics by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from tests.peers.conversation import Conversation, ProgramFailed
from tests.peers.provision import Found

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.peer("franz-go")

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def program(peer: Callable[[str], Found]) -> Iterator[Conversation]:
    with Conversation("franz-go", [str(peer("franz-go").path)]) as conversation:
        yield conversation


@pytest.fixture
def ask(program: Conversation, address: str) -> Ask:
    def asking(about: str, **question: Any) -> Any:
        return program.ask(about, address=address, **question)

    return asking


def produce(
    ask: Ask, topic: str, partition: int, texts: list[str], codec: str = "none", acks: str = "all"
) -> list[int]:
    records = [{"partition": partition, "value": text} for text in texts]
    offsets: list[int] = ask("produce", topic=topic, records=records, codec=codec, acks=acks)
    return offsets


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_written_with_a_codec_is_stored_so_and_read(
    ask: Ask, broker: EmbeddedBroker, topic: str, codec: str
) -> None:
    assert produce(ask, topic, 1, numbered(200), codec) == list(range(200))
    assert stored_codecs(broker, topic) == {codec}
    assert values(ask("consume", topic=topic, partition=1, count=200)) == numbered(200)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_given(ask: Ask, topic: str, acks: str) -> None:
    produce(ask, topic, 0, numbered(50), acks=acks)
    assert values(ask("consume", topic=topic, partition=0, count=50)) == numbered(50)


def test_keys_nulls_headers_and_times_come_back(ask: Ask, topic: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["a", "1"], ["a", "2"]], "timestamp_ms": BEGIN_MS},
        {"key": None, "value": "no key", "headers": [], "timestamp_ms": BEGIN_MS + 1},
        {"key": "gone", "value": None, "headers": [["ünï", ""]], "timestamp_ms": BEGIN_MS + 2},
    ]
    ask("produce", topic=topic, codec="none", records=[{"partition": 0, **record} for record in records])
    read = ask("consume", topic=topic, partition=0, count=3)
    assert [{name: record[name] for name in records[0]} for record in read] == records


def test_reading_starts_at_the_given_offset(ask: Ask, topic: str) -> None:
    produce(ask, topic, 2, numbered(20), "zstd")
    assert values(ask("consume", topic=topic, partition=2, offset=15, count=5)) == numbered(5, 15)


@pytest.mark.parametrize("cooperate", [False, True], ids=["eager", "cooperative"])
def test_a_group_resumes_after_what_it_committed(ask: Ask, topic: str, group: str, cooperate: bool) -> None:
    for partition in range(PARTITIONS):
        produce(ask, topic, partition, numbered(10, 10 * partition))
    first = ask("consume", topic=topic, group=group, count=12, cooperate=cooperate)
    rest = ask("consume", topic=topic, group=group, count=18, cooperate=cooperate)
    assert values(first + rest) == numbered(30)
    assert len(set(reads(first + rest))) == 30
    known = ask("groups", group=group)
    assert known == {"listed": True, "state": "Empty", "committed": {str(p): 10 for p in range(PARTITIONS)}}
    ask("delete-group", group=group)
    assert ask("groups", group=group)["listed"] is False


def test_offsets_are_found_by_time(ask: Ask, topic: str) -> None:
    records = [{"partition": 0, "value": "x", "timestamp_ms": BEGIN_MS + hour * HOUR_MS} for hour in range(3)]
    ask("produce", topic=topic, codec="none", records=records)
    assert ask("times", topic=topic, partition=0, time_ms=BEGIN_MS + 1) == {"found": 1, "begin": 0, "end": 3}
    # For a time after the last record kadm gives the end.
    assert ask("times", topic=topic, partition=0, time_ms=BEGIN_MS + 3 * HOUR_MS)["found"] == 3


def test_topics_are_created_grown_configured_emptied_and_deleted(ask: Ask, topic: str) -> None:
    ask("create", topic=topic, partitions=2)
    with pytest.raises(ProgramFailed, match="TOPIC_ALREADY_EXISTS"):
        ask("create", topic=topic, partitions=2)
    ask("grow", topic=topic, partitions=5)
    assert ask("topics")[topic] == 5
    assert ask("configure", topic=topic, name="retention.ms", value="86400000") == "86400000"
    produce(ask, topic, 4, numbered(10))
    assert ask("delete-records", topic=topic, partition=4, offset=6) == 6
    assert ask("times", topic=topic, partition=4, time_ms=0)["begin"] == 6
    ask("delete", topic=topic)
    assert topic not in ask("topics")
    with pytest.raises(ProgramFailed, match="UNKNOWN_TOPIC_OR_PARTITION"):
        ask("delete", topic=topic)
