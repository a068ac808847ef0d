"""Transactions on Apache Kafka 4.3, in version 2 and, with `transaction.version` lowered, in version 1.

Version 1 keeps the same contract. Both are shown what a broker can do to a transaction: abort it after its time-out,
and be silent while it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from tests.client.contract import test_transacting
from tests.client.contract.contract import (
    KEPT,
    Capabilities,
    MakeTopic,
    fill_all,
    is_led,
    new_group,
    new_name,
    reader,
    stories_of,
    take,
    values,
)
from tests.client.contract.test_transacting import committed, processor, transactional
from tests.peers.client.kafka_server import JavaServer, kafka_4_3
from tests.peers.provision import Found
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicPartition, TopicSpec, errors

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-4.3")]

_SOON = "transaction.abort.timed.out.transaction.cleanup.interval.ms=200\n"


@pytest.fixture(scope="module")
def servers(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, JavaServer]]:
    """A broker for each version of transactions."""
    running = {
        version: kafka_4_3(
            peer("java"), peer("kafka-broker-4.3"), tmp_path_factory.mktemp(f"version-{version}"), _SOON,
            features=[f"transaction.version={version}"],
        )
        for version in (1, 2)
    }  # fmt: skip
    try:
        for server in running.values():
            server.launch()
        for server in running.values():
            server.wait_until_listening()
        yield running
    finally:
        for server in running.values():
            server.kill()


@pytest.fixture(scope="module")
def bootstrap(servers: dict[int, JavaServer]) -> str:
    """Of version 1, for the contract; tests/peers/client/test_contract_kafka_4_3.py has it in version 2."""
    return servers[1].address


@pytest.fixture(scope="module")
def capabilities() -> Capabilities:
    return Capabilities("Kafka 4.3 with transaction.version 1")


def new_topic(address: str, config: Mapping[str, str] | None = None, partitions: int = 1, prefix: str = "t") -> str:
    name = new_name(prefix)
    with Admin(address) as admin:
        admin.create_topic(TopicSpec(name, partitions, config={**KEPT, **(config or {})}))
        until(lambda: is_led(admin, name, partitions), f"{name} is there")
    return name


@pytest.fixture
def make_topic(bootstrap: str) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str:
        return new_topic(bootstrap, config, partitions, prefix)

    return make


@pytest.fixture(params=[1, 2])
def server(servers: dict[int, JavaServer], request: pytest.FixtureRequest) -> JavaServer:
    return servers[request.param]


@pytest.mark.parametrize("version", [1, 2])
def test_the_version_of_transactions_is_the_one_of_the_cluster(servers: dict[int, JavaServer], version: int) -> None:
    address = servers[version].address
    topic = new_topic(address)
    prepared = []
    with transactional(address) as producer:
        for _ in range(3):
            producer.begin_transaction()
            producer.send(topic, b"x")
            prepared.append(producer.prepare_transaction())
            producer.commit_transaction()
    assert [each.version for each in prepared] == [version] * 3
    assert [each.epoch for each in prepared] == ([0, 1, 2] if version == 2 else [0, 0, 0])


def test_a_transaction_that_lasts_too_long_is_aborted_and_its_producer_says_so(server: JavaServer) -> None:
    topic, name = new_topic(server.address), new_name("tx")
    with transactional(server.address, name, transaction_timeout_ms=500) as producer, Admin(server.address) as admin:
        producer.begin_transaction()
        producer.send(topic, b"too slow")
        prepared = producer.prepare_transaction()
        # The marker of the abort is behind the record.
        until(lambda: ends(admin, topic) == 2, "it is aborted")
        with pytest.raises(errors.TransactionAborted, match="time-out"):
            admin.end_transaction(prepared, commit=True)
        admin.end_transaction(prepared, commit=False)
        # The error depends on the version; both say why, and that this producer has to stop.
        with pytest.raises(errors.PenstockError, match="transaction_timeout_ms") as raised:
            producer.commit_transaction()
        assert isinstance(raised.value, errors.ProducerFenced | errors.FatalTransactionError)
        assert raised.value.advice is errors.Advice.STOP
    with transactional(server.address, name) as successor, successor.transaction():
        successor.send(topic, b"in time")
    assert committed(server.address, topic, 1) == [b"in time"]


def ends(admin: Admin, topic: str) -> int:
    found = admin.list_offsets({(topic, 0): "latest"})[TopicPartition(topic, 0)]
    if isinstance(found, errors.PenstockError):
        raise found
    return found.offset


def test_a_commit_without_an_answer_is_repeated_and_never_aborted(server: JavaServer) -> None:
    topic = new_topic(server.address)
    with transactional(server.address) as producer:
        with producer.transaction():
            producer.send(topic, b"before")
        producer.begin_transaction()
        producer.send(topic, b"perhaps").result(PATIENCE_S)
        server.freeze()
        try:
            with pytest.raises(errors.TransactionOutcomeUnknown) as raised:
                producer.commit_transaction(timeout=0.5)
            assert raised.value.advice is errors.Advice.RETRY
            for call in (producer.abort_transaction, producer.begin_transaction, lambda: producer.send(topic, b"x")):
                with pytest.raises(errors.TransactionOutcomeUnknown):
                    call()
        finally:
            server.thaw()
        producer.commit_transaction()
        with producer.transaction():
            producer.send(topic, b"after")
    assert committed(server.address, topic, 3) == [b"before", b"perhaps", b"after"]


def test_a_new_producer_recovers_after_an_unknown_outcome(server: JavaServer) -> None:
    """The first one is closed without an abort; its commit is carried out, since the broker got it before it slept."""
    topic, name = new_topic(server.address), new_name("tx")
    producer = transactional(server.address, name)
    producer.begin_transaction()
    producer.send(topic, b"perhaps").result(PATIENCE_S)
    server.freeze()
    try:
        with pytest.raises(errors.TransactionOutcomeUnknown):
            producer.commit_transaction(timeout=0.5)
        producer.close(timeout=1)
    finally:
        server.thaw()
    with transactional(server.address, name) as successor, successor.transaction():
        successor.send(topic, b"successor")
    assert committed(server.address, topic, 2)[-1:] == [b"successor"]


def test_a_processor_that_is_cut_off_in_its_commit_continues_where_the_group_is(server: JavaServer) -> None:
    source, target, group = new_topic(server.address), new_topic(server.address), new_group()
    fill_all(server.address, source, 1, 10)
    with (
        transactional(server.address, max_block_ms=500) as producer,
        processor(server.address, source, group, session_timeout_ms=30_000) as consumer,
    ):
        first = take(consumer, 4)
        with (  # noqa: PT012 - it is about the block
            pytest.raises(errors.TransactionOutcomeUnknown),
            producer.transaction(consumer=consumer),
        ):
            for record in first:
                producer.send(target, record.value)
            producer.send_offsets_to_transaction(consumer.consumed(), consumer, timeout=PATIENCE_S)
            producer.flush(PATIENCE_S)
            server.freeze()
            producer.commit_transaction()
        server.thaw()
        producer.commit_transaction(timeout=PATIENCE_S)
        rest = take(consumer, 6)
        with producer.transaction(consumer=consumer):
            for record in rest:
                producer.send(target, record.value)
    assert committed(server.address, target, 100) == values(first) + values(rest) == [b"%d" % n for n in range(10)]


def test_a_cluster_without_two_phase_commit_says_so_at_the_first_begin(server: JavaServer) -> None:
    with (
        Producer(server.address, transactional_id=new_name("tx"), transaction_two_phase_commit=True) as producer,
        pytest.raises(errors.UnsupportedVersion, match="transaction_two_phase_commit"),
    ):
        producer.begin_transaction()


def test_a_transaction_survives_the_restart_of_its_broker(server: JavaServer) -> None:
    topic = new_topic(server.address)
    with transactional(server.address) as producer:
        producer.begin_transaction()
        producer.send(topic, b"before").result(PATIENCE_S)
        server.stop()
        server.launch()
        server.wait_until_listening()
        producer.send(topic, b"after").result(PATIENCE_S)
        producer.commit_transaction(timeout=PATIENCE_S)
    with reader(server.address, topic, isolation_level="read_committed") as consumer:
        assert values(take(consumer, 2)) == [b"before", b"after"]


globals().update(stories_of(test_transacting))
