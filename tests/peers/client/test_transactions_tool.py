"""The tool of Apache Kafka for transactions, and ours, see the same: on Kafka 4.3, and on our broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.client.contract import test_administering_transactions as stories
from tests.client.contract.contract import Capabilities, MakeTopic, fill, is_led, new_name
from tests.client.contract.test_administering_transactions import Command, Hang, Transactional, document
from tests.peers.java_process import JavaProcess
from tests.timeouts import until

from penstock import Admin, TopicSpec
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("java-clients-4.3"), pytest.mark.peer("kafka-broker-4.3")]

globals().update({name: getattr(stories, name) for name in stories.FIXTURES})
Tool = Callable[..., list[dict[str, str]]]


@pytest.fixture(scope="module", params=["Kafka 4.3", "Penstock"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "Penstock":
        with EmbeddedBroker() as embedded:
            yield embedded.address
    else:
        yield request.getfixturevalue("kafka").address


@pytest.fixture(scope="module")
def capabilities(bootstrap: str) -> Capabilities:
    with Admin(bootstrap) as admin:

        async def serves(client: Any) -> bool:
            connection = await client.cluster.to_any()
            return bool(connection.supports(ApiKey.LIST_TRANSACTIONS, 0))

        return Capabilities(bootstrap, transactions=admin.run(serves))


@pytest.fixture
def make_topic(operator: Admin) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str:
        name = new_name(prefix)
        operator.create_topic(TopicSpec(name, partitions, config=config or {}))
        until(lambda: is_led(operator, name, partitions), f"{name} is there")
        return name

    return make


@pytest.fixture
def tool(start_java: Callable[..., JavaProcess], bootstrap: str) -> Tool:
    """The rows of the table that Kafka's tool prints, by its titles."""
    program = start_java("java-clients-4.3", "NewClients")

    def run(*arguments: str) -> list[dict[str, str]]:
        words = ["--bootstrap-server", bootstrap, *arguments]
        answer = program.ask("tool", address=bootstrap, tool="TransactionsCommand", arguments=words)
        assert answer["status"] == 0, answer
        titles, *rows = [line.split("\t") for line in answer["output"].splitlines() if line] or [[]]
        names = [each.strip() for each in titles]
        return [dict(zip(names, [cell.strip() for cell in row], strict=False)) for row in rows]

    return run


def test_both_describe_an_open_transaction_alike(
    tool: Tool, command: Command, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(2), Transactional(bootstrap, capabilities)
    ledger.begin(topic, 0, 1)
    (ours,) = document(command, "transactions", "describe", ledger.name)["transactions"]
    (theirs,) = tool("describe", "--transactional-id", ledger.name)
    assert {
        "ProducerId": str(ours["producerId"]), "ProducerEpoch": str(ours["producerEpoch"]),
        "TransactionState": ours["state"], "TransactionTimeoutMs": str(ours["timeoutMs"]),
        "CurrentTransactionStartTimeMs": str(ours["startTime"]), "CoordinatorId": str(ours["coordinator"]),
    }.items() <= theirs.items()  # fmt: skip
    assert sorted(theirs["TopicPartitions"].split(",")) == [f"{topic}-0", f"{topic}-1"]
    (listed,) = [row for row in tool("list") if row["TransactionalId"] == ledger.name]
    assert (listed["ProducerId"], listed["TransactionState"]) == (str(ours["producerId"]), "Ongoing")
    ((state,),) = [each["producers"] for each in _partitions(command, topic, 0)]
    (row,) = tool("describe-producers", "--topic", topic, "--partition", "0")
    assert (row["ProducerId"], row["LastSequence"]) == (str(state["producerId"]), str(state["lastSequence"]))
    assert row["CurrentTransactionStartOffset"] == str(state["transactionStartOffset"])
    assert row["LastTimestamp"] == str(state["lastTimestamp"])
    ledger.commit()


def _partitions(command: Command, topic: str, partition: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(command, "transactions", "producers", f"{topic}:{partition}")["partitions"]
    return found


@pytest.mark.parametrize("aborted_by", ["ours", "theirs"])
def test_both_find_the_same_hanging_transactions_and_abort_them(
    tool: Tool, command: Command, hang: Hang, bootstrap: str, make_topic: MakeTopic, aborted_by: str
) -> None:
    topic = make_topic(2)
    hang(topic, 1)
    fill(bootstrap, topic, [b"after"], partition=1)
    (ours,) = document(command, "transactions", "find-hanging", topic, code=1)["hanging"]
    (theirs,) = tool("find-hanging", "--topic", topic)
    assert {
        "Topic": topic, "Partition": "1", "ProducerId": str(ours["producerId"]),
        "ProducerEpoch": str(ours["producerEpoch"]), "StartOffset": str(ours["startOffset"]),
        "LastTimestamp": str(ours["lastTimestamp"]),
    }.items() <= theirs.items()  # fmt: skip
    if aborted_by == "ours":
        command("transactions", "abort", f"{topic}:1", "--start-offset", theirs["StartOffset"])
    else:
        tool("abort", "--topic", topic, "--partition", "1", "--start-offset", str(ours["startOffset"]))
    assert tool("find-hanging", "--topic", topic) == []
    assert document(command, "transactions", "find-hanging", topic)["hanging"] == []
