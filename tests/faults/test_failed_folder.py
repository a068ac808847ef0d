"""A disk of a broker in a cluster of three fails under load: nothing acknowledged is lost, and the broker stays.

The brokers are processes of their own under a real ZooKeeper. Each has two data folders. One fails because its path is
suddenly that of a file, as after a disk was pulled and something else was mounted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.broker.broker_process import BrokerProcess
from tests.broker.test_cluster_services_edges import Sender
from tests.timeouts import until

from penstock import Admin, Consumer, TopicSpec
from penstock.client.admin.results import TopicDescription
from penstock.client.errors import PenstockError
from penstock.testing.zookeeper import ZooKeeperServer

TOPIC = "views"
PARTITIONS = 6


class Cluster:
    def __init__(self, zookeeper: ZooKeeperServer, folder: Path) -> None:
        self._folder = folder
        self.brokers = [BrokerProcess(folder / str(number), self._settings(zookeeper, number)) for number in range(3)]
        self.bootstrap = ",".join(each.address for each in self.brokers)

    def folder(self, number: int, name: str = "one") -> Path:
        return self._folder / str(number) / name

    def _settings(self, zookeeper: ZooKeeperServer, number: int) -> dict[str, str]:
        return {
            "zookeeper.connect": zookeeper.connect,
            "zookeeper.session.timeout.ms": "4000",
            "broker.id": str(number),
            "log.dirs": f"{self.folder(number)},{self.folder(number, 'two')}",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            # The failed folder is noticed by the next checkpoint.
            "replica.high.watermark.checkpoint.interval.ms": "200",
            "log.segment.bytes": "65536",
        }

    def topic(self) -> TopicDescription:
        with Admin(self.bootstrap) as admin:
            return admin.describe_topic(TOPIC)

    def online(self, number: int) -> dict[str, bool]:
        """A broker's data folders, and whether they are online; none while the broker does not answer."""
        with Admin(self.bootstrap) as admin:
            found = admin.describe_log_dirs([number])[number]
        return {} if isinstance(found, PenstockError) else {each.path: each.error is None for each in found}

    def until_in_sync(self) -> None:
        until(lambda: all(len(each.isr) == 3 for each in self.topic().partitions), "every replica is in sync")

    def held(self, number: int, name: str) -> set[int]:
        return {int(each.name.rpartition("-")[2]) for each in self.folder(number, name).glob(f"{TOPIC}-?")}

    def fail(self, number: int) -> Path:
        """Pull the disk; returns where its files are now."""
        pulled = self.folder(number).rename(self.folder(number, "pulled"))
        self.folder(number).write_bytes(b"not a folder")
        return pulled


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        found = Cluster(stack.enter_context(ZooKeeperServer()), tmp_path)
        for broker in found.brokers:
            stack.enter_context(broker)
        with Admin(found.bootstrap) as admin:
            admin.create_topic(TopicSpec(TOPIC, PARTITIONS, replication_factor=3))
        found.until_in_sync()
        yield found


def read_all(cluster: Cluster, count: int) -> list[bytes]:
    with Consumer(TOPIC, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < count:
            for records in consumer.poll(5000).values():
                found += [record.value for record in records]
        return found


def until_only_offline(cluster: Cluster, number: int, lost: set[int]) -> None:
    def is_so() -> bool:
        found = cluster.topic().partitions
        return all(
            ((number in each.offline) == (each.index in lost) == (number not in each.isr))
            and each.leader is not None
            and (each.index not in lost or each.leader.id != number)
            for each in found
        )

    until(is_so, f"of broker {number} only {lost} are offline, and others lead them")


@pytest.mark.long
@pytest.mark.parametrize("is_replaced", [True, False])
def test_disk_fails_under_load_and_the_broker_continues_and_gets_it_back(cluster: Cluster, is_replaced: bool) -> None:
    failing = 1
    lost, kept = cluster.held(failing, "one"), cluster.held(failing, "two")
    assert len(lost) == len(kept) == PARTITIONS // 2
    with Sender(cluster.bootstrap, TOPIC).sending() as sender:
        sender.until_more()
        pulled = cluster.fail(failing)
        until_only_offline(cluster, failing, lost)
        sender.until_more(50)
        assert cluster.online(failing) == {
            str(cluster.folder(failing)): False,
            str(cluster.folder(failing, "two")): True,
        }
        # It is killed and started again without the folder, which others do not notice as a new disk.
        cluster.brokers[failing].restart()
        until_only_offline(cluster, failing, lost)
        sender.until_more(50)
        cluster.brokers[failing].kill()
        cluster.folder(failing).unlink()
        if not is_replaced:
            pulled.rename(cluster.folder(failing))
        cluster.brokers[failing].start()
        cluster.until_in_sync()
        assert all(cluster.online(failing).values())
        sender.until_more()
    assert cluster.held(failing, "one") | cluster.held(failing, "two") == lost | kept
    assert sorted(read_all(cluster, len(sender.sent))) == sorted(sender.sent)
