"""Transactions with confluent-kafka, kafka-python and aiokafka, unmodified, on one broker and on three: commit, abort,
fencing, timeouts, offsets, and read-process-write, of which the program is killed in the middle, or a broker is.

All three use transaction version 1: they add partitions themselves, and keep their epoch.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.broker import group_client
from tests.broker.broker_process import BrokerProcess
from tests.broker.transactional_client import state_of
from tests.broker.wire_client import WireClient
from tests.compatibility.client_interface import (
    Client,
    Producer,
    Record,
    TransactionFailed,
    send_all,
    take,
)
from tests.compatibility.client_stories import BROKER_SETTINGS, PARTITIONS, numbered, unique
from tests.compatibility.clients import CLIENTS
from tests.compatibility.copying import Copier
from tests.timeouts import until

from penstock import Admin
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.protocol import ApiKey
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest

KILLED_SETTINGS = {**BROKER_SETTINGS, "transaction.state.log.num.partitions": "3"}
CLUSTER_SETTINGS = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "num.partitions": str(PARTITIONS),
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
}
ROOT = Path(__file__).parents[2]
ROWS = 300
ROWS_AT_ONCE = 25


@pytest.fixture(params=CLIENTS, ids=lambda client: client.features.name)
def client(request: pytest.FixtureRequest) -> Client:
    found: Client = request.param
    return found


@pytest.fixture
def name() -> str:
    return unique("transactional")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    settings = {"zookeeper.session.timeout.ms": "4000", **CLUSTER_SETTINGS}
    with PenstockCluster(Loopback(), folder, settings) as running:
        assert isinstance(running, PenstockCluster)
        yield running


@pytest.fixture(params=["one broker", pytest.param("three brokers", marks=pytest.mark.long)])
def anywhere(request: pytest.FixtureRequest) -> str:
    """The address of one broker, and of three."""
    if request.param == "one broker":
        broker: EmbeddedBroker = request.getfixturevalue("broker")
        return broker.address
    cluster: PenstockCluster = request.getfixturevalue("cluster")
    return ",".join(cluster.bootstrap)


def committed(client: Client, address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    return _values(client, address, topic, partition, "read_committed")


def everything(client: Client, address: str, topic: str, partition: int = 0) -> list[bytes | None]:
    return _values(client, address, topic, partition, "read_uncommitted")


def _values(client: Client, address: str, topic: str, partition: int, isolation: str) -> list[bytes | None]:
    """Up to a record that is sent last, so that no wait is without end."""
    end = unique("end").encode()
    send_all(client, address, topic, [end], partition)
    values: list[bytes | None] = []
    with client.consuming(address, isolation=isolation) as consumer:
        consumer.assign(topic, partition)

        def at_end() -> bool:
            values.extend(record.value for record in consumer.poll())
            return end in values

        until(at_end, f"the end of {topic}-{partition}")
    return [value for value in values if value is not None and not value.startswith(b"end-")]


def send(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        producer.send(topic, Record(value, partition=partition))
    producer.settle()


# --- commit and abort


def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: Client, anywhere: str, topic: str, name: str
) -> None:
    with client.producing(anywhere, transactional_id=name) as producer:
        for number, ends in enumerate([producer.commit, producer.abort, producer.commit, producer.abort]):
            producer.begin()
            for partition in range(PARTITIONS):
                send(producer, topic, b"%d-%d" % (number, partition), partition=partition)
            ends()
    for partition in range(PARTITIONS):
        assert committed(client, anywhere, topic, partition) == [b"%d-%d" % (each, partition) for each in (0, 2)]
    assert everything(client, anywhere, topic) == [b"%d-0" % number for number in range(4)]


def test_many_small_transactions_follow_each_other(client: Client, address: str, topic: str, name: str) -> None:
    values = numbered(60)
    with client.producing(address, transactional_id=name, linger_ms=0) as producer:
        for value in values:
            producer.begin()
            send(producer, topic, value)
            producer.commit()
    assert committed(client, address, topic) == values


def test_a_transaction_without_records_ends(client: Client, address: str, topic: str, name: str) -> None:
    with client.producing(address, transactional_id=name) as producer:
        for ends in (producer.commit, producer.abort, producer.commit):
            producer.begin()
            ends()
        producer.begin()
        send(producer, topic, b"after")
        producer.commit()
    assert committed(client, address, topic) == [b"after"]


def test_a_reader_waits_for_the_end_of_a_transaction(client: Client, address: str, topic: str, name: str) -> None:
    send_all(client, address, topic, [b"before"])
    with (
        client.producing(address, transactional_id=name) as producer,
        client.consuming(address, isolation="read_committed") as consumer,
    ):
        producer.begin()
        send(producer, topic, b"open")
        send_all(client, address, topic, [b"behind it"])
        consumer.assign(topic, 0)
        assert [record.value for record in take(consumer, 1)] == [b"before"]
        assert consumer.poll() == []
        producer.commit()
        assert [record.value for record in take(consumer, 2)] == [b"open", b"behind it"]


# --- fencing and timeouts


def test_a_producer_is_fenced_by_another_with_its_id(client: Client, anywhere: str, topic: str, name: str) -> None:
    with ExitStack() as stack:
        old = stack.enter_context(client.producing(anywhere, transactional_id=name))
        old.begin()
        send(old, topic, b"old")
        with client.producing(anywhere, transactional_id=name) as new:
            new.begin()
            send(new, topic, b"new")
            new.commit()
        with pytest.raises(TransactionFailed) as failed:
            old.commit()
        assert failed.value.is_fenced, failed.value
    assert committed(client, anywhere, topic) == [b"new"]


def test_a_transaction_over_its_timeout_is_aborted(
    client: Client, address: str, topic: str, name: str, broker: EmbeddedBroker
) -> None:
    with ExitStack() as stack:
        producer = stack.enter_context(client.producing(address, transactional_id=name, transaction_timeout_ms=1_000))
        producer.begin()
        send(producer, topic, b"too slow")
        with WireClient(broker.port) as wire:
            until(lambda: state_of(wire, name) == "CompleteAbort", "the coordinator aborts it")
        with pytest.raises(TransactionFailed):
            producer.commit()
    assert committed(client, address, topic) == []


# --- offsets


def test_offsets_are_committed_with_the_transaction(
    client: Client, address: str, topic: str, group: str, name: str, broker: EmbeddedBroker
) -> None:
    target = unique("target")
    send_all(client, address, topic, numbered(10))
    with (
        client.producing(address, transactional_id=name) as producer,
        client.consuming(address, topic=topic, group=group, isolation="read_committed") as consumer,
    ):
        records = take(consumer, 10)
        for commits in (False, True):
            producer.begin()
            send(producer, target, *(record.value or b"" for record in records))
            producer.send_offsets(consumer, group, {(topic, 0): 10})
            with WireClient(broker.port) as wire:  # the clients wait until it is stable
                assert group_client.committed(wire, group, topic) == group_client.NO_OFFSET
            if commits:
                producer.commit()
            else:
                producer.abort()
        until(lambda: consumer.committed(topic, 0) == 10, "the offset is committed")
    assert committed(client, address, target) == numbered(10)


def test_a_group_that_never_had_a_member_gets_offsets(client: Client, tmp_path: Path, topic: str, name: str) -> None:
    """The group's coordinator has not been looked for before."""
    with EmbeddedBroker(str(tmp_path), settings=KILLED_SETTINGS) as broker:
        send_all(client, broker.address, topic, numbered(1))
        with (
            client.producing(broker.address, transactional_id=name) as producer,
            client.consuming(broker.address, group="first") as consumer,
        ):
            consumer.assign(topic, 0)
            producer.begin()
            producer.send_offsets(consumer, "first", {(topic, 0): 1})
            producer.commit()
            until(lambda: consumer.committed(topic, 0) == 1, "the offset is committed")


# --- a broker that restarts, and one that is killed


def test_transactions_survive_a_restart_of_the_broker(client: Client, tmp_path: Path, topic: str, name: str) -> None:
    with (
        EmbeddedBroker(str(tmp_path), settings=KILLED_SETTINGS) as broker,
        client.producing(broker.address, transactional_id=name) as producer,
    ):
        for ends in (producer.commit, producer.abort):
            producer.begin()
            send(producer, topic, ends.__name__.encode())
            ends()
    with EmbeddedBroker(str(tmp_path), settings=KILLED_SETTINGS) as broker:
        with client.producing(broker.address, transactional_id=name) as producer:
            producer.begin()
            send(producer, topic, b"after")
            producer.commit()
        assert committed(client, broker.address, topic) == [b"commit", b"after"]


def copied_exactly_once(client: Client, address: str, kill: Callable[[str], None], kills: int) -> None:
    """`kill` gets the name of the group that reads."""
    source, target, group, name = unique("source"), unique("target"), unique("group"), unique("transactional")
    copier = Copier(client, address, source, target, group, name)
    is_over = threading.Event()
    thread = threading.Thread(target=copier.run, args=(is_over.is_set,), daemon=True)
    send_all(client, address, source, [b"first"])
    send_all(client, address, target, [b"end-of nothing"])
    thread.start()
    rows = [b"first"]
    try:
        for begin in range(0, ROWS, ROWS_AT_ONCE):
            values = [b"row %d" % number for number in range(begin, begin + ROWS_AT_ONCE)]
            rows += values
            before = copier.transactions
            for partition in range(PARTITIONS):
                send_all(client, address, source, values[partition::PARTITIONS], partition)
            if (begin // ROWS_AT_ONCE) % 4 == 1 and kills:
                until(lambda before=before: copier.transactions > before, "it copies")  # type: ignore[misc]
                kills -= 1
                kill(group)

        def all_copied() -> list[bytes]:
            return [value or b"" for each in range(PARTITIONS) for value in committed(client, address, target, each)]

        found: Counter[bytes] = Counter()

        def is_complete() -> bool:
            nonlocal found
            found = Counter(all_copied())
            return set(found) >= {b"copy of " + row for row in rows}

        until(is_complete, f"everything is copied; failures: {copier.failures[-3:]}")
    finally:
        is_over.set()
        thread.join(60)
    assert {value: count for value, count in found.items() if count > 1} == {}
    assert len(found) == len(rows)


@pytest.mark.long
def test_a_program_that_is_killed_in_a_transaction_is_continued_by_another(client: Client, anywhere: str) -> None:
    source, target, group, name = unique("source"), unique("target"), unique("group"), unique("transactional")
    rows = numbered(ROWS_AT_ONCE)
    send_all(client, anywhere, source, rows)
    send_all(client, anywhere, target, [b"end-of nothing"])

    def program(pause_s: int) -> subprocess.Popen[bytes]:
        names = [client.features.name, anywhere, source, target, group, name, str(pause_s)]
        return subprocess.Popen([sys.executable, "-m", "tests.compatibility.copying", *names], cwd=ROOT)

    with killed(program(pause_s=600)):
        until(lambda: everything(client, anywhere, target), "it has written, and does not commit")
    with Admin(anywhere) as admin:
        assert name in {each.transactional_id for each in admin.list_transactions(["Ongoing"])}
    with killed(program(pause_s=0)):
        wanted = [b"copy of " + row for row in rows]
        until(lambda: set(committed(client, anywhere, target)) >= set(wanted), "everything is copied")
    assert Counter(committed(client, anywhere, target)) == Counter(wanted)
    assert len(everything(client, anywhere, target)) > len(wanted), "what the first one wrote is there, aborted"


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process by SIGKILL."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_rows_are_copied_exactly_once_while_the_broker_is_killed(client: Client, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, KILLED_SETTINGS) as broker:
        copied_exactly_once(client, broker.address, lambda _: broker.restart(), kills=3)


@pytest.mark.long
def test_rows_are_copied_exactly_once_while_brokers_of_a_cluster_are_killed(
    client: Client, cluster: PenstockCluster
) -> None:
    missing = "transactions while brokers of a cluster are killed"
    if missing in client.features.lacks:
        pytest.skip(f"{client.features.name} lacks {missing}")
    victims = itertools.cycle(sorted(cluster.nodes))

    def kill(group: str) -> None:
        spared = -1
        if "offsets in a transaction while their coordinator is killed" in client.features.lacks:
            with WireClient(next(iter(cluster.nodes.values())).port) as wire:
                spared = wire.ask(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key=group), 3).node_id
        node = next(node for number in victims for node in (cluster.nodes[number],) if number != spared)
        node.kill()
        node.launch()
        node.wait_until_up()
        cluster.wait_until_joined()

    copied_exactly_once(client, ",".join(cluster.bootstrap), kill, kills=3)
