"""More partitions than a process may have open files: the broker makes them, serves them and starts again."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.broker.wire_client import (
    ALL,
    WireClient,
    batch_of,
    fetch_request,
    make_topic,
    on_loop,
    produce_request,
    values_in,
)
from tests.timeouts import PATIENCE_S, until

from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey

LIMIT = 96
PARTITIONS = 150


def open_now() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not even that can be opened
        return LIMIT


def produce_to_all(client: WireClient, topic: str, value: bytes, acks: int = ALL) -> None:
    records = {(topic, index): batch_of(value) for index in range(PARTITIONS)}
    answer = client.ask(ApiKey.PRODUCE, produce_request(records, acks=acks), 9)
    assert {part.error_code for each in answer.responses for part in each.partition_responses} == {0}


def fetched(client: WireClient, topic: str, *indexes: int) -> list[list[bytes | None]]:
    answer = client.ask(ApiKey.FETCH, fetch_request({(topic, index): 0 for index in indexes}), 12)
    parts = [part for each in answer.responses for part in each.partitions]
    assert {part.error_code for part in parts} == {0}
    return [values_in(part.records) for part in parts if part.records]


def story(folder: str) -> None:
    """Runs in a process of its own, whose limit is LIMIT."""
    settings = {"log.dirs": folder, "log.segment.bytes": "1000", "num.recovery.threads.per.data.dir": "2"}
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        topic = make_topic(embedded.broker, partitions=PARTITIONS)
        produce_to_all(client, topic, b"first")
        produce_to_all(client, topic, b"second", acks=1)
        assert open_now() < LIMIT
    with EmbeddedBroker(settings=settings) as embedded, WireClient(embedded.port) as client:
        produce_to_all(client, topic, b"third" * 100, acks=1)
        produce_to_all(client, topic, b"fourth" * 100)  # in a second segment
        for index in range(PARTITIONS):
            assert fetched(client, topic, index) == [[b"first", b"second", b"third" * 100]]
        for _ in range(3):
            at_once = fetched(client, topic, *range(PARTITIONS))
            assert len(at_once) > LIMIT // 4, "the others come with the next"
            until(lambda: open_now() < LIMIT, "what was sent is closed")
        on_loop(embedded.broker, embedded.broker.cluster.require_controller().delete_topics([topic]))
    sys.stdout.write("through\n")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted under /proc")
def test_more_partitions_than_descriptors_are_made_served_and_found_again(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.hostile.test_descriptors", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert run.stdout == "through\n", run.stderr[-3000:]
    assert "Too many open files" not in run.stderr


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    story(sys.argv[1])
