"""Several brokers under one ZooKeeper: what clients and operators see of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.cluster_stories import BrokerCluster, running
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Consumer, Producer, TopicSpec
from penstock.cluster.errors import BrokerIdInUse
from penstock.testing import Broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers for all tests here: each leaves them running, and has topics of its own."""
    with running(str(tmp_path_factory.mktemp("cluster"))) as brokers:
        yield brokers


def _values(cluster: BrokerCluster, topic: str, count: int, group: str | None = None) -> list[bytes]:
    with Consumer(topic, bootstrap_servers=cluster.bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < count:
            for records in consumer.poll(5000).values():
                found += [record.value for record in records]
        return found


def _make(cluster: BrokerCluster, name: str, partitions: int = 1) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TopicSpec(name, partitions, replication_factor=3))
    cluster.until_in_sync(name)


def test_what_is_acknowledged_is_on_every_replica(cluster: BrokerCluster) -> None:
    _make(cluster, "views-0", 3)
    with Producer(cluster.bootstrap) as producer:
        deliveries = [producer.send("views-0", b"%d" % number) for number in range(300)]
        for delivery in deliveries:
            delivery.result(PATIENCE_S)
    ends = {
        tuple(
            partition.log.log_end_offset
            for index in range(3)
            for partition in (broker.broker.replicas.get("views-0", index),)
            if partition is not None
        )
        for broker in cluster.brokers.values()
    }
    assert len(ends) == 1
    assert sum(ends.pop()) == 300
    assert sorted(_values(cluster, "views-0", 300)) == sorted(b"%d" % number for number in range(300))


def test_a_topic_is_created_through_any_broker(cluster: BrokerCluster) -> None:
    for number, broker in cluster.brokers.items():
        with Admin(broker.address) as admin:
            admin.create_topic(TopicSpec(f"topic-{number}", 2, replication_factor=3))
    for number in cluster.brokers:
        cluster.until_known(number, {f"topic-{each}" for each in range(3)})


def test_a_controlled_shutdown_does_not_disturb_producers(cluster: BrokerCluster) -> None:
    _make(cluster, "views-2", 4)
    stop = threading.Event()
    sent: list[bytes] = []
    failures: list[BaseException] = []

    def send() -> None:
        with Producer(cluster.bootstrap, linger_ms=1) as producer:
            number = 0
            while not stop.is_set():
                value = b"%d" % number
                try:
                    producer.send("views-2", value).result(PATIENCE_S)
                except BaseException as error:  # noqa: BLE001 - reported below
                    failures.append(error)
                    return
                sent.append(value)
                number += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        for number in range(3):
            _until_longer(sent, failures)
            cluster.stop(number)
            _until_longer(sent, failures)
            cluster.start(number)
            cluster.until_in_sync("views-2")
    finally:
        stop.set()
        sender.join()
    assert failures == []
    assert sorted(_values(cluster, "views-2", len(sent))) == sorted(sent)


def _until_longer(sent: list[bytes], failures: list[BaseException]) -> None:
    before = len(sent)
    until(lambda: len(sent) > before + 20 or bool(failures), "records are sent")


def test_the_coordinator_of_a_group_moves_with_its_partition(cluster: BrokerCluster) -> None:
    _make(cluster, "views-3")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send("views-3", b"%d" % number).result(PATIENCE_S)
    assert len(_values(cluster, "views-3", 10, group="readers-3")) == 10
    cluster.until_in_sync("__consumer_offsets")
    for number in (0, 1):
        cluster.stop(number)
        with Admin(cluster.bootstrap) as admin:
            offsets = admin.group_offsets("readers-3")
        assert [entry.offset for entry in offsets.values()] == [10]
        cluster.start(number)
        cluster.until_in_sync("__consumer_offsets")


def test_a_broker_id_in_use_is_rejected_with_its_owner(cluster: BrokerCluster, tmp_path: Path) -> None:
    other = BrokerCluster(cluster.zookeeper, str(tmp_path / "other"))
    with pytest.raises(BrokerIdInUse, match=str(cluster.brokers[1].port)):
        other.start(1)


def test_a_broker_without_a_number_is_given_one_and_keeps_it(cluster: BrokerCluster, tmp_path: Path) -> None:
    settings = {"zookeeper.connect": cluster.zookeeper.connect}
    numbers = []
    for _ in range(2):
        with Broker(str(tmp_path), settings=settings) as broker:
            numbers.append(broker.broker.services.node_id)
            assert broker.broker.services.node_id in broker.broker.cluster.image.brokers
    assert numbers[0] > 1000
    assert numbers[0] == numbers[1]
    until(lambda: numbers[0] not in cluster.image().brokers, "it has left")


def test_a_session_that_ended_is_followed_by_another(cluster: BrokerCluster) -> None:
    _make(cluster, "views-5")
    epochs = {number: cluster.epoch(number) for number in cluster.brokers}
    cluster.zookeeper.pause()
    with Producer(cluster.bootstrap) as producer:
        producer.send("views-5", b"while the tree does not answer").result(PATIENCE_S)
    cluster.zookeeper.kill()
    cluster.zookeeper.start()
    until(
        lambda: (
            all(cluster.epoch(number) >= epochs[number] for number in cluster.brokers)
            and cluster.controller is not None
        ),
        "all are registered",
    )
    with Producer(cluster.bootstrap) as producer:
        producer.send("views-5", b"afterwards").result(PATIENCE_S)
    assert len(_values(cluster, "views-5", 2)) == 2


def test_a_topic_that_was_deleted_while_a_broker_was_down_is_removed_from_it(cluster: BrokerCluster) -> None:
    _make(cluster, "views-6")
    cluster.stop(2)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topics(["views-6"])
    assert "views-6" not in _names(cluster)
    cluster.start(2)
    until(lambda: "views-6" not in cluster.image().topics, "nothing of it is left")
    assert not cluster.brokers[2].broker.replicas.logs.holds("views-6", 0)


def _names(cluster: BrokerCluster) -> list[str]:
    with Admin(cluster.bootstrap) as admin:
        return admin.list_topics()
