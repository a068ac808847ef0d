"""What an operator sees of transactions and does about them, by `Admin` and by the command, against any broker.

Transactions are made by another client library. A hanging one is made as an old producer makes it: a transactional
batch of which the coordinator knows nothing reaches a broker that does not verify such writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.contract.contract import Capabilities, MakeTopic, fill, new_name
from tests.timeouts import PATIENCE_MS, PATIENCE_S, until

from penstock import Admin, AsyncAdmin, ConfigResource, TopicPartition, errors
from penstock.client.admin.results import OffsetResult, OpenTransaction, ProducerState
from penstock.client.cluster_client import ClusterClient
from penstock.records import encode_batch
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.init_producer_id import InitProducerIdRequest
from penstock.wire.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData

FIXTURES = ("operator", "command", "hang")

_VERIFICATION = "transaction.partition.verification.enable"
_LAST_THAT_ADDS_NOTHING = 11  # from version 12 on, the leader adds the partition to the transaction itself
_HOUR_MS = 3_600_000
_FOUND, _REJECTED = 1, 4

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Hang = Callable[..., str]


@pytest.fixture
def operator(bootstrap: str, capabilities: Capabilities) -> Iterator[Admin]:
    capabilities.need("transactions")
    with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
def command(bootstrap: str, capabilities: Capabilities) -> Command:
    capabilities.need("transactions")

    def running(*words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
            env={**os.environ, "PENSTOCK_BOOTSTRAP_SERVER": bootstrap},
        )  # fmt: skip
        assert code in (None, done.returncode), f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return running


def document(command: Command, *words: str, code: int = 0) -> Any:
    return json.loads(command(*words, "--format", "json", code=code).stdout)


@pytest.fixture
def hang(bootstrap: str, operator: Admin) -> Hang:
    """Makes a hanging transaction with one record; its transactional id."""
    brokers = [ConfigResource.broker(node.id) for node in operator.describe_cluster().nodes]

    def verify(value: str | None) -> None:
        for broker in brokers:
            operator.alter_config(broker, {_VERIFICATION: value})

    def make(topic: str, partition: int = 0, *, age_ms: int = _HOUR_MS) -> str:
        name = new_name("late")
        verify("false")
        try:
            asyncio.run(_write_late(bootstrap, name, TopicPartition(topic, partition), age_ms))
        finally:
            verify(None)
        return name

    return make


async def _write_late(bootstrap: str, name: str, key: TopicPartition, age_ms: int) -> None:
    async with ClusterClient(bootstrap) as cluster:
        await cluster.wait_for_topic(key.topic, timeout_ms=PATIENCE_MS)
        begin = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
        producer = await _accepted(
            lambda: _coordinator_answer(cluster, name, begin), lambda answer: answer.error_code, ErrorCode.NONE
        )
        batch = encode_batch(
            [(int(time.time() * 1000) - age_ms, None, b"late", ())],
            producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
            transactional=True,
        )  # fmt: skip
        data = TopicProduceData(
            name=key.topic, partition_data=[PartitionProduceData(index=key.partition, records=batch)]
        )
        request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=PATIENCE_MS, topic_data=[data])
        leader = cluster.view.leader_of(*key)
        assert leader is not None
        connection = await cluster.to(leader.leader)
        # A broker applies a setting a moment after it has accepted it.
        await _accepted(
            lambda: connection.request(
                ApiKey.PRODUCE, request, version=_LAST_THAT_ADDS_NOTHING, timeout_ms=PATIENCE_MS
            ),
            lambda answer: answer.responses[0].partition_responses[0].error_code,
            ErrorCode.NONE,
        )


async def _coordinator_answer(cluster: ClusterClient, name: str, request: InitProducerIdRequest) -> Any:
    connection = await cluster.to_coordinator("transaction", name)
    return await connection.request(ApiKey.INIT_PRODUCER_ID, request, timeout_ms=PATIENCE_MS)


async def _accepted(ask: Callable[[], Any], code_of: Callable[[Any], int], wanted: int) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await ask()
        if code_of(answer) == wanted:
            return answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)


class Transactional:
    """A transactional producer that is not ours."""

    def __init__(self, bootstrap: str, capabilities: Capabilities, name: str = "") -> None:
        self.confluent = pytest.importorskip("confluent_kafka")
        self.name = name or new_name("ledger")
        self.producer = self.confluent.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": 45_000,
                **capabilities.librdkafka,
            }
        )
        self.producer.init_transactions(PATIENCE_S)

    def begin(self, topic: str, *partitions: int, timestamp_ms: int | None = None) -> None:
        """A transaction with a record in each partition, which stays open."""
        when = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
        self.producer.begin_transaction()
        for partition in partitions:
            self.producer.produce(topic, b"value", partition=partition, **when)
        assert self.producer.flush(PATIENCE_S) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self.producer.abort_transaction(PATIENCE_S)


def producers_of(admin: Admin, topic: str, partition: int = 0) -> tuple[ProducerState, ...]:
    found = admin.describe_producers([(topic, partition)])[TopicPartition(topic, partition)]
    assert not isinstance(found, errors.PenstockError)
    return found


def open_in(admin: Admin, topic: str, partition: int = 0, **options: Any) -> tuple[OpenTransaction, ...]:
    found = admin.open_transactions([(topic, partition)], **options)[TopicPartition(topic, partition)]
    assert not isinstance(found, errors.PenstockError)
    return found


def stable_end(admin: Admin, topic: str, partition: int = 0) -> int:
    found = admin.list_offsets({(topic, partition): "latest"}, isolation_level="read_committed")
    answer = found[TopicPartition(topic, partition)]
    assert isinstance(answer, OffsetResult)
    return answer.offset


def committed(command: Command, topic: str) -> list[str]:
    """What a reader of committed records gets."""
    return command("consume", topic, "--from-beginning", "--exit", "--isolation-level", "read_committed").stdout.split()


# --- looking at transactions


def test_an_open_transaction_is_described_until_it_is_committed(
    operator: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(3), Transactional(bootstrap, capabilities)
    assert operator.describe_transaction(ledger.name).state == "Empty"
    before_ms = int(time.time() * 1000) - 60_000
    ledger.begin(topic, 0, 2)
    open_ = operator.describe_transaction(ledger.name)
    assert (open_.state, open_.timeout_ms) == ("Ongoing", 45_000)
    assert open_.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 2))
    assert open_.start_time_ms is not None
    assert open_.start_time_ms > before_ms
    assert open_.coordinator in operator.describe_cluster().nodes
    (listed,) = operator.list_transactions(producer_ids=[open_.producer_id])
    assert (listed.transactional_id, listed.state) == (ledger.name, "Ongoing")
    ledger.commit()
    until(lambda: operator.describe_transaction(ledger.name).state == "CompleteCommit", "it is complete")
    assert operator.describe_transaction(ledger.name).partitions == ()


def test_transactions_are_listed_by_state_producer_duration_and_pattern(
    operator: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, family = make_topic(2), new_name("family")
    first, second = (Transactional(bootstrap, capabilities, f"{family}-{each}") for each in "ab")
    first.begin(topic, 0)
    second.begin(topic, 1)
    second.abort()
    until(lambda: operator.describe_transaction(second.name).state == "CompleteAbort", "it is complete")

    def listed(**filters: Any) -> list[str]:
        found = operator.list_transactions(**{"transactional_id_pattern": f"{family}-.*", **filters})
        return [each.transactional_id for each in found]

    assert listed() == [first.name, second.name]
    assert listed(states=["Ongoing", "PrepareCommit"]) == [first.name]
    assert listed(states=["CompleteAbort"]) == [second.name]
    assert listed(states=[]) == listed(producer_ids=[]) == []
    number = operator.describe_transaction(second.name).producer_id
    assert listed(producer_ids=[number]) == [second.name]
    assert listed(transactional_id_pattern=family) == []
    assert {first.name, second.name} <= set(listed(transactional_id_pattern=None))
    assert listed(duration_ms=_HOUR_MS) == []
    until(lambda: listed(duration_ms=1) == [first.name], "the open transaction is old enough")
    first.commit()


def test_wrong_filters_are_reported(operator: Admin) -> None:
    with pytest.raises(errors.ConfigError, match="'Sleeping' is not a state"):
        operator.list_transactions(states=["Sleeping"])
    with pytest.raises(errors.ConfigError, match="is not a regular expression"):
        operator.list_transactions(transactional_id_pattern="(")
    with pytest.raises(errors.ConfigError, match="duration_ms is -5"):
        operator.list_transactions(duration_ms=-5)


def test_unknown_ids_and_topics_are_reported_one_by_one(
    operator: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    known, missing = Transactional(bootstrap, capabilities).name, new_name("missing")
    described = operator.describe_transactions([known, missing])
    assert not isinstance(described[known], errors.PenstockError)
    assert isinstance(described[missing], errors.UnknownTransactionalId)
    with pytest.raises(errors.UnknownTransactionalId):
        operator.describe_transaction(missing)
    topic = make_topic()
    found = operator.describe_producers([(topic, 0), (topic, 7), (missing, 0)])
    assert found[TopicPartition(topic, 0)] == ()
    assert isinstance(found[TopicPartition(topic, 7)], errors.UnknownTopic)
    assert isinstance(found[TopicPartition(missing, 0)], errors.UnknownTopic)


def test_the_producers_of_a_partition_have_their_open_transaction(
    operator: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(2), Transactional(bootstrap, capabilities)
    fill(bootstrap, topic, [b"plain"], enable_idempotence=False)
    ledger.begin(topic, 0)
    described = operator.describe_transaction(ledger.name)
    (open_,) = producers_of(operator, topic)
    assert (open_.producer_id, open_.producer_epoch) == (described.producer_id, described.producer_epoch)
    assert (open_.transaction_start_offset, open_.last_sequence, open_.coordinator_epoch) == (1, 0, None)
    (node,) = operator.describe_cluster().nodes
    assert operator.describe_producers([(topic, 0)], broker_id=node.id) == {TopicPartition(topic, 0): (open_,)}
    assert producers_of(operator, topic, 1) == ()
    ledger.commit()
    until(lambda: producers_of(operator, topic)[0].transaction_start_offset is None, "the marker is there")
    assert producers_of(operator, topic)[0].coordinator_epoch is not None


def test_both_faces_answer_alike(
    operator: Admin, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(), Transactional(bootstrap, capabilities)
    ledger.begin(topic, 0)

    async def asked() -> tuple[Any, ...]:
        async with AsyncAdmin(bootstrap) as admin:
            return (
                await admin.describe_transaction(ledger.name),
                await admin.describe_producers([(topic, 0)]),
                await admin.open_transactions([(topic, 0)]),
            )

    assert asyncio.run(asked()) == (
        operator.describe_transaction(ledger.name),
        operator.describe_producers([(topic, 0)]),
        operator.open_transactions([(topic, 0)]),
    )
    ledger.abort()


# --- ending them


def test_a_fenced_producer_cannot_commit_and_its_records_are_aborted(
    operator: Admin, command: Command, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(2), Transactional(bootstrap, capabilities)
    ledger.begin(topic, 0, 1)
    before = operator.describe_transaction(ledger.name)
    outcome = operator.fence_producers([ledger.name])[ledger.name]
    assert not isinstance(outcome, errors.PenstockError)
    assert (outcome.producer_id, outcome.producer_epoch) > (before.producer_id, before.producer_epoch)
    until(lambda: not open_in(operator, topic) and not open_in(operator, topic, 1), "the markers are there")
    with pytest.raises(ledger.confluent.KafkaException):
        ledger.commit()
    fill(bootstrap, topic, [b"after"])
    assert committed(command, topic) == ["after"]


def test_an_ongoing_transaction_is_not_hanging_however_old_its_records_are(
    operator: Admin, command: Command, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(), Transactional(bootstrap, capabilities)
    ledger.begin(topic, 0, timestamp_ms=int(time.time() * 1000) - _HOUR_MS)
    (open_,) = open_in(operator, topic, idle_ms=_HOUR_MS // 2)
    assert (open_.is_hanging, open_.transactional_id, open_.state) == (False, ledger.name, "Ongoing")
    assert open_.start_time_ms == operator.describe_transaction(ledger.name).start_time_ms
    assert open_in(operator, topic, idle_ms=2 * _HOUR_MS) == ()
    with pytest.raises(errors.TransactionOngoing, match=ledger.name):
        operator.abort_transaction(topic, 0, start_offset=0)
    producer = open_.producer
    with pytest.raises(errors.TransactionOngoing):
        operator.abort_transaction(
            topic, 0, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, coordinator_epoch=0
        )
    assert document(command, "transactions", "find-hanging", topic)["hanging"] == []
    rejected = command("transactions", "abort", f"{topic}:0", "--start-offset", "0", "-y", code=_REJECTED)
    assert f"penstock transactions fence {ledger.name}" in rejected.stderr
    ledger.commit()
    assert committed(command, topic) == ["value"]


@pytest.mark.parametrize("named_by", ["start offset", "producer"])
def test_a_hanging_transaction_holds_committed_readers_until_it_is_aborted(
    operator: Admin, hang: Hang, command: Command, bootstrap: str, make_topic: MakeTopic, named_by: str
) -> None:
    topic = make_topic(2)
    fill(bootstrap, topic, [b"before"])
    name = hang(topic)
    fill(bootstrap, topic, [b"after"])
    assert stable_end(operator, topic) == 1
    assert committed(command, topic) == ["before"]
    (open_,) = open_in(operator, topic, idle_ms=_HOUR_MS // 2)
    assert (open_.is_hanging, open_.start_offset, open_.start_time_ms) == (True, 1, None)
    assert (open_.transactional_id, open_.state) == (name, "Empty")
    with pytest.raises(errors.NoOpenTransaction, match="starts at offset 2"):
        operator.abort_transaction(topic, 0, start_offset=2)
    if named_by == "start offset":
        operator.abort_transaction(topic, 0, start_offset=1)
    else:
        producer = open_.producer
        operator.abort_transaction(topic, 0, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch)
    assert open_in(operator, topic) == ()
    until(lambda: stable_end(operator, topic) == 4, "the last stable offset moves on")
    assert committed(command, topic) == ["before", "after"]
    with pytest.raises(errors.NoOpenTransaction):
        operator.abort_transaction(topic, 0, start_offset=1)


# --- the command


@pytest.mark.long
def test_the_command_lists_describes_and_fences_transactions(
    command: Command, bootstrap: str, capabilities: Capabilities, make_topic: MakeTopic
) -> None:
    topic, ledger = make_topic(), Transactional(bootstrap, capabilities)
    ledger.begin(topic, 0)
    (row,) = [line.split() for line in command("transactions", "list").stdout.splitlines() if ledger.name in line]
    assert row[2] == "Ongoing"
    match = ("transactions", "list", "--match", f".*{ledger.name[3:]}")
    (listed,) = document(command, *match, "--state", "ongoing")["transactions"]
    assert (listed["transactionalId"], listed["state"]) == (ledger.name, "Ongoing")
    assert document(command, *match, "--open-for", "1h")["transactions"] == []
    (described,) = document(command, "transactions", "describe", ledger.name)["transactions"]
    assert (described["state"], described["timeoutMs"]) == ("Ongoing", 45_000)
    assert described["partitions"] == [{"topic": topic, "partition": 0}]
    text = command("transactions", "describe", ledger.name).stdout
    assert f"{ledger.name}: Ongoing, producer {described['producerId']} epoch" in text
    (partition,) = document(command, "transactions", "producers", topic, "--open")["partitions"]
    assert [each["transactionStartOffset"] for each in partition["producers"]] == [0]
    assert str(described["producerId"]) in command("transactions", "producers", f"{topic}:0").stdout
    planned = document(command, "transactions", "fence", ledger.name, "--dry-run")
    assert [each["producerEpoch"] for each in planned["fenced"]] == [described["producerEpoch"]]
    (fenced,) = document(command, "transactions", "fence", ledger.name, "-y")["fenced"]
    assert (fenced["producerId"], fenced["producerEpoch"]) > (described["producerId"], described["producerEpoch"])
    assert committed(command, topic) == []
    missing = command("transactions", "fence", "no-such-id", code=_REJECTED)
    assert "Transactional id 'no-such-id' does not exist" in missing.stderr
    assert "no-such-id" not in command("transactions", "list").stdout


@pytest.mark.long
def test_the_command_finds_a_hanging_transaction_and_prints_how_to_abort_it(
    hang: Hang, command: Command, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    name = hang(topic, 1)
    fill(bootstrap, topic, [b"after"], partition=1)
    found = document(command, "transactions", "find-hanging", "--topic", topic, code=_FOUND)
    (item,) = found["hanging"]
    assert (item["topic"], item["partition"], item["startOffset"]) == (topic, 1, 0)
    assert (item["transactionalId"], found["searched"], found["failed"]) == (name, 3, [])
    nothing = document(command, "transactions", "find-hanging", topic, "--max-transaction-timeout", "2h")
    assert nothing["hanging"] == []
    assert document(command, "transactions", "find-hanging", topic, "--partition", "0")["searched"] == 1
    text = command("transactions", "find-hanging", f"{topic}:1", "-b", bootstrap, code=_FOUND).stdout
    (line,) = [line.strip() for line in text.splitlines() if "penstock transactions abort" in line]
    words = shlex.split(line)[1:]
    assert words == ["transactions", "abort", f"{topic}:1", "--start-offset", "0", "--bootstrap-server", bootstrap]
    assert "would be aborted" in command(*words, "--dry-run").stdout
    assert committed(command, topic) == []
    assert "Aborted the transaction of producer" in command(*words).stdout
    assert committed(command, topic) == ["after"]
    assert "No hanging transactions in 3 partitions" in command("transactions", "find-hanging", topic).stderr
    command(*words, code=_REJECTED)


def test_doctor_finds_a_hanging_transaction(hang: Hang, command: Command, make_topic: MakeTopic) -> None:
    topic = make_topic()
    hang(topic)
    # The code is 1 whatever else it finds on this machine.
    findings = document(command, "doctor", "--http-port", "0", code=_FOUND)["findings"]
    (found,) = [each for each in findings if each["check"] == "transactions" and each["subject"] == f"{topic}-0"]
    assert found["level"] == "problem"
    assert f"penstock transactions abort {topic}:0 --start-offset 0" in found["advice"]
    command("transactions", "abort", f"{topic}:0", "--start-offset", "0")
    left = command("doctor", "--http-port", "0", "--format", "json", code=None).stdout
    assert f"{topic}-0" not in [each["subject"] for each in json.loads(left)["findings"]]
