"""kcat, and with it a librdkafka that picks exact versions out of the ranges that a broker offers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.peers.compatibility.peer_stories import (
    CODECS,
    HOUR_MS,
    PARTITIONS,
    numbered,
    reads,
    stored_codecs,
    unique,
    values,
)
from tests.peers.provision import Found

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.peer("kcat")

RUN_S = 30
FROM_BEGIN = ("-X", "auto.offset.reset=earliest")

Kcat = Callable[..., str]


@pytest.fixture
def kcat(peer: Callable[[str], Found], address: str) -> Kcat:
    """Runs kcat against the broker with its output as the result."""

    def run(*arguments: str, given: str = "") -> str:
        command = [str(peer("kcat").path), "-b", address, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=RUN_S)
        if done.returncode != 0:
            raise RuntimeError(f"kcat {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    return run


def produce(kcat: Kcat, topic: str, lines: list[str], *more: str) -> None:
    kcat("-P", "-t", topic, *more, given="".join(f"{line}\n" for line in lines))


def consumed(output: str) -> list[dict[str, Any]]:
    """What kcat -J shows, by the names that all clients' answers have."""
    records = [json.loads(line) for line in output.splitlines()]
    return [{**record, "value": record["payload"]} for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_what_was_written_with_a_codec_is_stored_so_and_read(
    kcat: Kcat, broker: EmbeddedBroker, topic: str, codec: str
) -> None:
    sent = numbered(200)
    produce(kcat, topic, sent, "-p", "1", "-z", codec)
    assert stored_codecs(broker, topic) == {codec}
    assert values(consumed(kcat("-C", "-t", topic, "-p", "1", "-e", "-q", "-J"))) == sent


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_given(kcat: Kcat, topic: str, acks: str) -> None:
    # Creates the topic: an unacknowledged record must not depend on a retry.
    produce(kcat, topic, ["first"], "-p", "0")
    produce(kcat, topic, numbered(50), "-p", "0", "-X", f"acks={acks}")
    output = kcat("-C", "-t", topic, "-p", "0", "-c", "51", "-q", "-J")
    assert values(consumed(output)) == ["first", *numbered(50)]


def test_an_idempotent_producer_is_served(kcat: Kcat, topic: str) -> None:
    produce(kcat, topic, numbered(100), "-p", "0", "-X", "enable.idempotence=true")
    assert values(consumed(kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J"))) == numbered(100)


def test_keys_nulls_and_headers_come_back(kcat: Kcat, topic: str) -> None:
    produce(kcat, topic, ["k:v", "gone:"], "-p", "0", "-K:", "-Z", "-H", "a=1", "-H", "b=2")
    first, second = consumed(kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J"))
    assert (first["key"], first["payload"], first["headers"]) == ("k", "v", ["a", "1", "b", "2"])
    assert (second["key"], second["payload"]) == ("gone", None)


def test_reading_starts_at_the_given_offset(kcat: Kcat, topic: str) -> None:
    produce(kcat, topic, numbered(20), "-p", "2")
    assert values(consumed(kcat("-C", "-t", topic, "-p", "2", "-o", "15", "-e", "-q", "-J"))) == numbered(5, 15)
    assert values(consumed(kcat("-C", "-t", topic, "-p", "2", "-o", "-3", "-e", "-q", "-J"))) == numbered(3, 17)


def test_offsets_are_found_by_time(kcat: Kcat, topic: str) -> None:
    produce(kcat, topic, ["early"], "-p", "0")
    (record,) = consumed(kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J"))
    written_ms = record["ts"]

    def asked(time_ms: int) -> str:
        return kcat("-Q", "-t", f"{topic}:0:{time_ms}").strip()

    assert asked(written_ms) == f"{topic} [0] offset 0"
    assert asked(written_ms - HOUR_MS) == f"{topic} [0] offset 0"
    assert asked(written_ms + HOUR_MS) == f"{topic} [0] offset -1"
    assert asked(-1) == f"{topic} [0] offset 1"
    assert asked(-2) == f"{topic} [0] offset 0"


def test_a_group_resumes_after_what_it_committed(kcat: Kcat, topic: str, group: str) -> None:
    for partition in range(PARTITIONS):
        produce(kcat, topic, numbered(10, 10 * partition), "-p", str(partition))
    first = consumed(kcat("-G", group, topic, "-c", "12", "-q", "-J", *FROM_BEGIN))
    rest = consumed(kcat("-G", group, topic, "-e", "-q", "-J", *FROM_BEGIN))
    assert len(first) == 12
    assert values(first + rest) == numbered(30)
    assert len(set(reads(first + rest))) == 30
    assert kcat("-G", group, topic, "-e", "-q", "-J", *FROM_BEGIN) == ""


def test_a_new_group_without_commits_begins_at_the_end(kcat: Kcat, topic: str, group: str) -> None:
    produce(kcat, topic, numbered(5), "-p", "0")
    assert kcat("-G", group, topic, "-e", "-q", "-J", "-X", "auto.offset.reset=latest") == ""


def test_metadata_names_the_broker_and_the_partitions(kcat: Kcat, broker: EmbeddedBroker, topic: str) -> None:
    produce(kcat, topic, ["x"], "-p", "0")
    answer = json.loads(kcat("-L", "-J", "-t", topic))
    assert [row["name"] for row in answer["brokers"]] == [broker.address]
    (row,) = answer["topics"]
    assert row["topic"] == topic
    assert sorted(entry["partition"] for entry in row["partitions"]) == list(range(PARTITIONS))


def test_a_topic_that_does_not_exist_is_named_as_unknown_to_a_reader(kcat: Kcat) -> None:
    with pytest.raises(RuntimeError, match="Unknown topic or partition"):
        kcat("-C", "-t", unique("missing"), "-p", "0", "-e", "-q", "-X", "allow.auto.create.topics=false")
