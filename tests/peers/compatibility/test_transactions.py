"""Transactions of Java 4.3, franz-go and KafkaJS, unmodified, on one broker and on three: commit, abort, fencing,
timeouts, and read-process-write, of which the program is killed in the middle, or brokers are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.faults.namespaces import Loopback
from benchmarks.faults.penstock_cluster import PenstockCluster
from tests.broker.broker_process import BrokerProcess
from tests.broker.transactional_client import state_of
from tests.broker.wire_client import WireClient
from tests.peers.compatibility.transaction_stories import (
    ONE_BROKER,
    THREE_BROKERS,
    commits_and_aborts,
    copies_exactly_once,
    is_fenced,
    outlives_its_own_death,
    times_out,
)
from tests.peers.conversation import Conversation
from tests.peers.java_process import JavaProcess
from tests.peers.provision import Found
from tests.timeouts import until

from penstock import Admin
from penstock.testing.embedded_broker import EmbeddedBroker

NODE_PROGRAM = Path(__file__).with_name("node") / "clients.js"


class Kind(NamedTuple):
    """A client. With transaction version 2 each transaction has an epoch of its own."""

    peers: tuple[str, ...]
    version: int
    fenced: set[str]
    """The errors of a producer that is fenced."""


KINDS = {
    "java-2": Kind(("java", "java-clients-4.3"), 2, {"ProducerFencedException", "InvalidProducerEpochException"}),
    "java-1": Kind(("java", "java-clients-4.3"), 1, {"ProducerFencedException", "InvalidProducerEpochException"}),
    "franz-go-2": Kind(("franz-go",), 2, {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}),
    "franz-go-1": Kind(("franz-go",), 1, {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}),
    "kafkajs": Kind(("kafkajs",), 1, {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}),
}


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.peer(each) for each in kind.peers]) for name, kind in KINDS.items()]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, Conversation]]:
    running: dict[str, Conversation] = {}
    yield running
    for each in running.values():
        each.close()


@pytest.fixture
def start(kind: Kind, peer: Callable[[str], Found]) -> Callable[[], Conversation]:
    """Starts the client's program."""
    name = kind.peers[-1]

    def started() -> Conversation:
        if name == "java-clients-4.3":
            return JavaProcess(peer("java"), peer(name), "Transactions", ("Lines.java", "Transactions.java"))
        if name == "franz-go":
            return Conversation(name, [str(peer(name).path)])
        modules = {**os.environ, "NODE_PATH": str(peer(name).path / "node_modules")}
        return Conversation(name, [shutil.which("node") or "node", str(NODE_PROGRAM)], modules)

    return started


@pytest.fixture
def program(kind: Kind, programs: dict[str, Conversation], start: Callable[[], Conversation]) -> Conversation:
    """One that several tests use."""
    name = kind.peers[-1]
    if name not in programs:
        programs[name] = start()
    return programs[name]


def settings_of(kind: Kind, settings: dict[str, str]) -> dict[str, str]:
    return {**settings, "transaction.version": str(kind.version)}


@pytest.fixture(scope="module")
def brokers() -> Iterator[dict[int, EmbeddedBroker]]:
    """By transaction version."""
    running: dict[int, EmbeddedBroker] = {}
    yield running
    for each in running.values():
        each.stop()


@pytest.fixture
def broker(kind: Kind, brokers: dict[int, EmbeddedBroker]) -> EmbeddedBroker:
    if kind.version not in brokers:
        brokers[kind.version] = EmbeddedBroker(settings=settings_of(kind, dict(ONE_BROKER))).start()
    return brokers[kind.version]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], PenstockCluster]]:
    """Three brokers with the transaction version of a client."""
    with ExitStack() as stack:
        running: dict[int, PenstockCluster] = {}

        def cluster(kind: Kind) -> PenstockCluster:
            if kind.version not in running:
                settings = settings_of(kind, dict(THREE_BROKERS))
                started = PenstockCluster(Loopback(), tmp_path_factory.mktemp("cluster"), settings)
                stack.enter_context(started)
                running[kind.version] = started
            return running[kind.version]

        yield cluster


@pytest.fixture
def cluster(kind: Kind, clusters: Callable[[Kind], PenstockCluster]) -> PenstockCluster:
    return clusters(kind)


@pytest.fixture(params=["one broker", "three brokers"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param == "one broker":
        broker: EmbeddedBroker = request.getfixturevalue("broker")
        return broker.address
    cluster: PenstockCluster = request.getfixturevalue("cluster")
    return ",".join(cluster.bootstrap)


def test_what_is_committed_is_read_and_what_is_aborted_is_not(program: Conversation, address: str, kind: Kind) -> None:
    name = commits_and_aborts(program, address)
    with Admin(address) as admin:
        described = admin.describe_transaction(name)
        assert described.producer_epoch == (5 if kind.version == 2 else 0), "the version is what it is"


def test_a_producer_is_fenced_by_another_with_its_id(program: Conversation, address: str, kind: Kind) -> None:
    is_fenced(program, address, kind.fenced)


def test_a_program_that_is_killed_in_a_transaction_is_continued_by_another(
    start: Callable[[], Conversation], address: str
) -> None:
    outlives_its_own_death(start, address)


def test_a_transaction_over_its_timeout_is_aborted(program: Conversation, broker: EmbeddedBroker, kind: Kind) -> None:
    def wait(name: str) -> None:
        with WireClient(broker.port) as wire:
            until(lambda: state_of(wire, name) == "CompleteAbort", "the coordinator aborts it")

    assert times_out(program, broker, wait) is not None


def test_rows_are_copied_exactly_once_while_the_broker_is_killed(
    program: Conversation, kind: Kind, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, settings_of(kind, dict(ONE_BROKER))) as broker:
        copies_exactly_once(program, broker.address, broker.restart, kills=3)


def test_rows_are_copied_exactly_once_while_brokers_of_a_cluster_are_killed(
    program: Conversation, cluster: PenstockCluster
) -> None:
    victims = iter(sorted(cluster.nodes))

    def kill() -> None:
        node = cluster.nodes[next(victims)]
        node.kill()
        node.launch()
        cluster.wait_until_joined()

    copies_exactly_once(program, ",".join(cluster.bootstrap), kill, kills=3)
