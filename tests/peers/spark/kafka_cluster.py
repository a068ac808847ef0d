"""Apache Kafka in place of our broker, for tests that were written for ours.

A shared test gets an address and creates its topics here, so that it does not know which broker it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from tests.client.contract.contract import KEPT, is_led, stories_of
from tests.peers.client.kafka_server import JavaServer
from tests.timeouts import until

from penstock import Admin, TopicSpec


class KafkaCluster:
    """What the stories ask of a broker."""

    def __init__(self, server: JavaServer, admin: Admin) -> None:
        self.address = server.address
        self.port = server.port
        self._admin = admin

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self._admin.create_topic(TopicSpec(name, partitions, config={**KEPT, **(config or {})}))
        until(lambda: is_led(self._admin, name, partitions), f"{name} is there")


def shared(*modules: ModuleType, without: Sequence[str] = ()) -> dict[str, object]:
    """The stories of these modules, but for those that look inside our broker; each of those must be there."""
    stories = stories_of(*modules)
    for name in without:
        del stories[name]
    return stories


class Transactions:
    """A producer of transactions that is not ours."""

    def __init__(self, address: str, name: str) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": "0"})
        self._producer.init_transactions(30)

    def write(self, topic: str, values: Iterable[bytes], *, partition: int = 0, commit: bool | None) -> None:
        """A transaction with these values; with None it stays open."""
        self._producer.begin_transaction()
        for value in values:
            self._producer.produce(topic, value, key=value, partition=partition)
        self._producer.flush(30)
        if commit is not None:
            self.end(commit=commit)

    def end(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
