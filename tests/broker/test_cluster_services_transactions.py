"""Transactions in a cluster of three brokers on a real ZooKeeper: markers and verifications go between brokers, and a
decision outlives its coordinator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.broker.cluster_stories import BrokerCluster, running
from tests.broker.group_client import committed, find_coordinator
from tests.broker.transactional_client import (
    Transactional,
    committed_values,
    find_transaction_coordinator,
    state_of,
    unique_id,
)
from tests.broker.wire_client import WireClient, call, log_of
from tests.timeouts import until

from penstock import Admin, TopicSpec
from penstock.coordination.coordinator_runtime import partition_for_key
from penstock.wire.protocol import TRANSACTION_STATE_TOPIC, ApiKey, ErrorCode
from penstock.wire.schemas.find_coordinator import FindCoordinatorRequest

SHARDS = 3
TOPIC = "orders"


@pytest.fixture
def cluster(tmp_path: str) -> Iterator[BrokerCluster]:
    shards = str(SHARDS)
    with running(
        str(tmp_path), transaction_state_log_num_partitions=shards, offsets_topic_num_partitions=shards
    ) as started:
        with Admin(started.bootstrap) as admin:
            admin.create_topic(TopicSpec(TOPIC, 6, replication_factor=3))
        for number in started.brokers:
            started.until_known(number, {TOPIC})
        yield started


def leader_of(cluster: BrokerCluster, topic: str, index: int) -> int:
    return cluster.partition(topic, index).leader


def coordinator_of(cluster: BrokerCluster, name: str) -> int:
    return leader_of(cluster, TRANSACTION_STATE_TOPIC, partition_for_key(name, SHARDS))


def ready(cluster: BrokerCluster) -> None:
    """Every broker can be asked for its transactional ids."""
    with WireClient(next(iter(cluster.brokers.values())).port) as client:
        wanted = FindCoordinatorRequest(key="any", key_type=1)
        until(lambda: client.ask(ApiKey.FIND_COORDINATOR, wanted, 3).error_code == 0, "there are coordinators")
    for number in cluster.brokers:
        cluster.until_known(number, {TRANSACTION_STATE_TOPIC})


class Clients:
    """A connection to each broker."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster
        self._open: dict[int, WireClient] = {}

    def to(self, number: int) -> WireClient:
        if number not in self._open:
            self._open[number] = WireClient(self._cluster.brokers[number].port)
        return self._open[number]

    def forget(self, number: int) -> None:
        client = self._open.pop(number, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        for number in tuple(self._open):
            self.forget(number)


@pytest.fixture
def clients(cluster: BrokerCluster) -> Iterator[Clients]:
    found = Clients(cluster)
    yield found
    found.close()


def write_everywhere(cluster: BrokerCluster, clients: Clients, producer: Transactional, value: bytes) -> set[int]:
    """To every partition, at its leader; the leaders. A write is retried while the markers of the last transaction are
    on their way."""
    coordinator = producer.client
    leaders = set()
    for index in range(6):
        leader = leader_of(cluster, TOPIC, index)
        leaders.add(leader)
        producer.client = clients.to(leader)
        code = producer.write(TOPIC, value, partition=index)
        while code == ErrorCode.NOT_ENOUGH_REPLICAS:
            code = producer.write(TOPIC, value, partition=index)
        assert code == 0
    producer.client = coordinator
    return leaders


def is_committed(cluster: BrokerCluster, clients: Clients, expected: list[bytes]) -> bool:
    return all(
        committed_values(clients.to(leader_of(cluster, TOPIC, index)), TOPIC, index) == expected for index in range(6)
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_over_partitions_of_all_brokers_commits_and_aborts(
    cluster: BrokerCluster, clients: Clients, version: int
) -> None:
    ready(cluster)
    name = unique_id()
    coordinator = clients.to(coordinator_of(cluster, name))
    producer = Transactional(coordinator, name, version=version).start()
    for value, commit in [(b"a", True), (b"b", False), (b"c", True)]:
        if version == 1:
            assert producer.add(*((TOPIC, index) for index in range(6))) == 0
        assert write_everywhere(cluster, clients, producer, value) == {0, 1, 2}
        assert producer.end(commit=commit) == 0
    until(lambda: is_committed(cluster, clients, [b"a", b"c"]), "all leaders have the markers")
    # Another broker says where the coordinator is.
    elsewhere = next(number for number in cluster.brokers if number != coordinator_of(cluster, name))
    stray = Transactional(clients.to(elsewhere), name)
    stray.take(producer.producer_id, producer.epoch)
    assert stray.commit() == ErrorCode.NOT_COORDINATOR


def test_a_reader_at_a_follower_sees_what_is_committed_and_waits_for_what_is_open(
    cluster: BrokerCluster, clients: Clients
) -> None:
    ready(cluster)
    name = unique_id()
    producer = Transactional(clients.to(coordinator_of(cluster, name)), name).start()
    followers = [
        (number, index)
        for index in range(6)
        for number in cluster.brokers
        if number != leader_of(cluster, TOPIC, index)
    ]

    def seen() -> list[list[bytes | None]]:
        return [committed_values(clients.to(number), TOPIC, index, rack="here") for number, index in followers]

    for value, commit in [(b"a", True), (b"b", False), (b"c", True)]:
        write_everywhere(cluster, clients, producer, value)
        assert producer.end(commit=commit) == 0
    until(lambda: seen() == [[b"a", b"c"]] * len(followers), "all followers have the markers")
    write_everywhere(cluster, clients, producer, b"open")
    for number, index in followers:
        log = log_of(cluster.brokers[number].broker, TOPIC, index)
        until(lambda log=log: log.high_watermark == 7, "it has what is open")  # type: ignore[misc]
    assert seen() == [[b"a", b"c"]] * len(followers)
    assert producer.commit() == 0
    until(lambda: seen() == [[b"a", b"c", b"open"]] * len(followers), "all followers have the markers")


def test_a_write_outside_a_transaction_is_rejected_by_the_leader_of_another_broker(
    cluster: BrokerCluster, clients: Clients
) -> None:
    ready(cluster)
    name = unique_id()
    coordinator = coordinator_of(cluster, name)
    producer = Transactional(clients.to(coordinator), name, version=1).start()
    index = next(each for each in range(6) if leader_of(cluster, TOPIC, each) != coordinator)
    producer.client = clients.to(leader_of(cluster, TOPIC, index))
    assert producer.write(TOPIC, b"stray", partition=index) == ErrorCode.TRANSACTION_ABORTABLE
    zombie = Transactional(producer.client, name)
    zombie.take(producer.producer_id, producer.epoch)
    producer.client = clients.to(coordinator)
    Transactional(producer.client, name).start()
    assert zombie.write(TOPIC, b"zombie", partition=index) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_decision_outlives_its_coordinator(cluster: BrokerCluster, clients: Clients) -> None:
    """It dies in PrepareCommit: no marker is written, and the next coordinator writes them all."""
    ready(cluster)
    name, group = unique_id(), "readers"
    victim = coordinator_of(cluster, name)
    producer = Transactional(clients.to(victim), name).start()
    find_coordinator(clients.to(victim), group)
    write_everywhere(cluster, clients, producer, b"a")
    services = cluster.brokers[victim].broker.services
    assert services.transactions.sender is not None
    sender = services.transactions.sender
    call(cluster.brokers[victim].broker, lambda: setattr(sender, "send", lambda *_: None))
    assert producer.commit() == 0, "the decision counts"
    assert state_of(clients.to(victim), name) == "PrepareCommit"
    clients.forget(victim)
    cluster.stop(victim)
    until(lambda: coordinator_of(cluster, name) not in (victim, -1), "another broker coordinates")
    until(lambda: is_committed(cluster, clients, [b"a"]), "its markers are everywhere")
    successor = clients.to(coordinator_of(cluster, name))
    find_transaction_coordinator(successor, name)
    until(lambda: state_of(successor, name) == "CompleteCommit", "it is complete")
    producer.client = successor
    write_everywhere(cluster, clients, producer, b"b")
    assert producer.commit() == 0
    until(lambda: is_committed(cluster, clients, [b"a", b"b"]), "and the next transaction too")


def test_offsets_of_a_group_on_another_broker_are_committed_with_the_transaction(
    cluster: BrokerCluster, clients: Clients
) -> None:
    ready(cluster)
    find_coordinator(clients.to(0), "any")
    name = unique_id()
    coordinator = coordinator_of(cluster, name)
    groups = (f"group-{number}" for number in range(100))
    group = next(
        each
        for each in groups
        if leader_of(cluster, "__consumer_offsets", partition_for_key(each, SHARDS)) != coordinator
    )
    leader = clients.to(leader_of(cluster, "__consumer_offsets", partition_for_key(group, SHARDS)))
    producer = Transactional(clients.to(coordinator), name).start()
    producer.client = leader
    assert producer.commit_offset(group, TOPIC, 5) == 0
    assert committed(leader, group, TOPIC) == -1
    producer.client = clients.to(coordinator)
    assert producer.commit() == 0
    until(lambda: committed(leader, group, TOPIC) == 5, "the offset is committed")
