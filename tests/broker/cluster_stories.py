"""Brokers of one cluster in this process, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from tests.ports import free_port
from tests.timeouts import until

from penstock.cluster.image import ClusterImage, PartitionImage
from penstock.testing import Broker
from penstock.testing.zookeeper import ZooKeeperServer

T = TypeVar("T")

SETTINGS: Mapping[str, str] = {
    "zookeeper.session.timeout.ms": "4000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
}


class BrokerCluster:
    """Brokers by number; one that was stopped may be started again with its data."""

    def __init__(self, zookeeper: ZooKeeperServer, folder: str, settings: Mapping[str, str] | None = None) -> None:
        self.zookeeper = zookeeper
        self._folder = folder
        self._settings = {**SETTINGS, **(settings or {})}
        self._ports: dict[int, int] = {}
        self.brokers: dict[int, Broker] = {}

    def start(self, number: int, **settings: str) -> Broker:
        if number not in self._ports:
            self._ports[number] = free_port()
        broker = Broker(
            f"{self._folder}/broker-{number}",
            port=self._ports[number],
            http_port=0,
            settings={
                **self._settings,
                **{name.replace("_", "."): value for name, value in settings.items()},
                "zookeeper.connect": self.zookeeper.connect,
                "broker.id": str(number),
            },
        ).start()
        self.brokers[number] = broker
        return broker

    def stop(self, number: int) -> None:
        self.brokers.pop(number).stop()

    def close(self) -> None:
        for broker in reversed(list(self.brokers.values())):
            broker.stop()
        self.brokers.clear()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def image(self, number: int | None = None) -> ClusterImage:
        """As a broker sees it: the one that is named, or the controller."""
        if number is not None:
            return self.brokers[number].broker.cluster.image
        return self.image(self.controller)

    @property
    def controller(self) -> int:
        def find() -> int | None:
            for number, broker in self.brokers.items():
                if broker.broker.cluster.controller is not None:
                    return number
            return None

        return self.eventually(find, "a controller is elected")

    def epoch(self, number: int) -> int:
        return self.brokers[number].broker.services.membership.broker_epoch

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        found = self.image().partition(topic, index)
        assert found is not None
        return found

    def until_known(self, number: int, topics: set[str]) -> None:
        until(lambda: topics <= self.image(number).topics.keys(), f"broker {number} knows {sorted(topics)}")

    def until_in_sync(self, topic: str, count: int = 3) -> None:
        def is_in_sync() -> bool:
            found = self.image().topic(topic)
            return found is not None and all(len(each.isr) == count for each in found.partitions)

        until(is_in_sync, f"{count} replicas of {topic} are in sync")

    @staticmethod
    def eventually(find: Callable[[], T | None], what: str) -> T:
        found: list[T] = []

        def look() -> bool:
            value = find()
            if value is not None:
                found.append(value)
            return value is not None

        until(look, what)
        return found[-1]


@contextmanager
def running(folder: str, count: int = 3, **settings: str) -> Iterator[BrokerCluster]:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperServer())
        cluster = BrokerCluster(zookeeper, folder, named)
        stack.callback(cluster.close)
        for number in range(count):
            cluster.start(number)
        yield cluster
