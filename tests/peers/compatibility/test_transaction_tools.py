"""The tools of Apache Kafka 4.3 on our broker's transactions: the console consumer, and the decoder of their log."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.broker.transactional_client import Transactional, find_transaction_coordinator, state_of
from tests.broker.wire_client import WireClient, log_of
from tests.peers.compatibility.transaction_stories import ONE_BROKER, make_topic
from tests.peers.java_process import JavaProcess
from tests.timeouts import until

from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3")]

Tool = Callable[..., str]
_PRINTED = re.compile(r" key: (\{.*\}) payload: (\{.*\})$")


@pytest.fixture
def tool(start_java: Callable[..., JavaProcess]) -> Tool:
    """What a tool prints, once it has ended well."""
    program = start_java("java-clients-4.3", "NewClients")

    def run(name: str, *arguments: str) -> str:
        answer: Any = program.ask("tool", address="", tool=name, arguments=arguments)
        assert answer["status"] == 0, answer
        output: str = answer["output"]
        return output

    return run


def test_the_transaction_log_is_read_by_kafkas_own_decoder(tool: Tool, tmp_path: Path) -> None:
    settings = {**ONE_BROKER, "transaction.state.log.num.partitions": "1"}
    with EmbeddedBroker(str(tmp_path), settings=settings) as broker, WireClient(broker.port) as wire:
        topic = make_topic(broker.address, "orders")
        first, second = Transactional(wire, "first").start(), Transactional(wire, "second", version=1).start()
        first.transact(topic, b"a")
        until(lambda: state_of(wire, "first") == "CompleteCommit", "it is complete")
        second.transact(topic, b"b", commit=False)
        until(lambda: state_of(wire, "second") == "CompleteAbort", "it is complete")
        assert first.write(topic, b"open") == 0
    (segment,) = (tmp_path / "__transaction_state-0").glob("*.log")
    printed = tool("DumpLogSegments", "--transaction-log-decoder", "--print-data-log", "--files", str(segment))
    rows = [
        (json.loads(found[1])["data"], json.loads(found[2])["data"])
        for line in printed.splitlines()
        if (found := _PRINTED.search(line)) is not None
    ]
    states: dict[str, list[tuple[int, int]]] = {}
    for key, value in rows:
        states.setdefault(key["transactionalId"], []).append((value["transactionStatus"], value["producerEpoch"]))
    # Empty, Ongoing, PrepareCommit, CompleteCommit, and again Ongoing; version 2 ends in the next epoch.
    assert states == {
        "first": [(0, 0), (1, 0), (2, 1), (4, 1), (1, 1)],
        "second": [(0, 0), (1, 0), (3, 0), (5, 0)],
    }
    assert rows[2][1]["transactionPartitions"] == [{"topic": topic, "partitionIds": [0]}]


def test_the_console_consumer_reads_committed_records_only(tool: Tool) -> None:
    with EmbeddedBroker(settings=ONE_BROKER) as broker, WireClient(broker.port) as wire:
        topic = make_topic(broker.address, "orders")
        producer = Transactional(wire).start()
        for number in range(6):
            producer.transact(topic, b"order %d" % number, commit=number % 2 == 0)
        until(lambda: log_of(broker.broker, topic).last_stable_offset == 12, "all markers are there")
        find_transaction_coordinator(wire, producer.transactional_id)
        common = ["--bootstrap-server", broker.address, "--topic", topic, "--from-beginning", "--timeout-ms", "5000"]
        committed = tool("consumer.ConsoleConsumer", *common, "--isolation-level", "read_committed")
        everything = tool("consumer.ConsoleConsumer", *common, "--isolation-level", "read_uncommitted")
    assert committed.split("\n")[:-1] == ["order 0", "order 2", "order 4"]
    assert everything.split("\n")[:-1] == [f"order {number}" for number in range(6)]
