"""Groups that share partitions through a real ZooKeeper, on a broker of ours."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]
from tests.broker.cluster_stories import BrokerCluster, running
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicPartition, TopicSpec, ZooKeeperConsumer
from penstock.client.addresses import ZooKeeperAddress
from penstock.client.consumer.message_streams import MessageStream
from penstock.client.errors import BootstrapError, ConfigError
from penstock.client.zookeeper import new_client, start_client
from penstock.testing.zookeeper import ZooKeeperServer

SESSION_MS = 4_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder = str(tmp_path_factory.mktemp("broker"))
    one = {"default_replication_factor": "1", "min_insync_replicas": "1", "offsets_topic_replication_factor": "1"}
    with running(folder, 1, **one) as cluster:
        yield cluster


class Group:
    """Consumers of a topic and a group of their own; each stream is read by a thread into one list."""

    def __init__(self, brokers: BrokerCluster, partitions: int) -> None:
        self.brokers = brokers
        number = next(_numbers)
        self.topic, self.name = f"topic-{number}", f"group-{number}"
        self._stack = ExitStack()
        self.read: list[tuple[str, int, int]] = []  # consumer, partition, number in the record
        self._sent = itertools.count()
        self._partitions = partitions
        self._threads: list[threading.Thread] = []
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TopicSpec(self.topic, partitions))
        self._producer: Producer[Any, Any] = self._stack.enter_context(Producer(brokers.bootstrap))
        where = ZooKeeperAddress(brokers.zookeeper.connect, "")
        self.kazoo = new_client(where)
        start_client(self.kazoo, where, PATIENCE_S * 1000)
        self._stack.callback(self.kazoo.close)
        self._stack.callback(self.kazoo.stop)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def consumer(self, *topics: str, **options: Any) -> ZooKeeperConsumer[bytes, bytes]:
        by_name = not topics and not {"pattern", "exclude"} & options.keys()
        options = {
            "zookeeper_session_timeout_ms": SESSION_MS,
            "auto_offset_reset": "earliest",
            "rebalance_backoff_ms": 200,
            "rebalance_patience_ms": PATIENCE_S * 1000,
            **options,
        }
        found: ZooKeeperConsumer[bytes, bytes] = ZooKeeperConsumer(
            *([self.topic] if by_name and not isinstance(options.get("streams"), dict) else topics),
            zookeeper_connect=self.brokers.zookeeper.connect,
            group_id=self.name,
            **options,
        )
        self._stack.callback(found.close)
        for stream in found:
            thread = threading.Thread(target=self._follow, args=(found.consumer_id, stream), daemon=True)
            self._threads.append(thread)
            thread.start()
        return found

    def _follow(self, consumer: str, stream: MessageStream[bytes, bytes]) -> None:
        for record in stream:
            self.read.append((consumer, record.partition, int(record.value)))

    def send(self, count: int = 50) -> None:
        for number in itertools.islice(self._sent, count):
            self._producer.send(self.topic, value=b"%d" % number, partition=number % self._partitions)
        self._producer.flush()

    @property
    def sent(self) -> int:
        return int(repr(self._sent).strip("count()"))

    def until_read(self) -> None:
        until(lambda: len({number for *_, number in self.read}) == self.sent, "everything is read")

    def owners(self) -> dict[int, str]:
        """As the registry says, without the thread."""
        folder = f"/consumers/{self.name}/owners/{self.topic}"
        if self.kazoo.exists(folder) is None:
            return {}
        found = {}
        for child in self.kazoo.get_children(folder):
            with suppress(NoNodeError):  # released meanwhile
                found[int(child)] = self.kazoo.get(f"{folder}/{child}")[0].decode().rpartition("-")[0]
        return found

    def offsets(self) -> int:
        """The sum of all committed offsets."""
        folder = f"/consumers/{self.name}/offsets/{self.topic}"
        return sum(int(self.kazoo.get(f"{folder}/{child}")[0]) for child in self.kazoo.get_children(folder))

    def until_shared(self, *consumers: ZooKeeperConsumer[bytes, bytes]) -> None:
        """Every consumer owns its share, and the registry says the same."""
        names = sorted(each.consumer_id for each in consumers)
        share, extra = divmod(self._partitions, len(names))
        wanted = {name: share + (number < extra) for number, name in enumerate(names)}
        until(lambda: Counter(self.owners().values()) == Counter(wanted), "partitions are shared evenly")
        until(lambda: all(len(each.assignment()) == wanted[each.consumer_id] for each in consumers), "and known")


def test_wrong_options_are_named(brokers: BrokerCluster) -> None:
    connect = brokers.zookeeper.connect
    for options, problem in (
        ({}, "needs a group_id"),
        ({"group_id": "a/b"}, "cannot be the name of a group"),
        ({"group_id": "g", "group_instance_id": "x"}, "group_instance_id is not for groups in ZooKeeper"),
        ({"group_id": "g", "offsets_storage": "disk"}, "offsets_storage is 'disk'"),
        ({"group_id": "g", "partition_order": "leader"}, "partition_order is 'leader'"),
        ({"group_id": "g", "rebalance_backoff_ms": 0}, "rebalance_backoff_ms"),
        ({"group_id": "g", "consumer_id": "a/b"}, "cannot be the name of a consumer"),
        ({"group_id": "g", "no_such_option": 1}, "no_such_option"),
    ):
        with pytest.raises(ConfigError, match=problem):
            ZooKeeperConsumer("t", zookeeper_connect=connect, **options)
    with pytest.raises(BootstrapError, match="no ZooKeeper answered within 300 ms"):
        ZooKeeperConsumer("t", zookeeper_connect="127.0.0.1:1", group_id="g", connect_timeout_ms=300)


def test_members_come_and_go_and_everything_is_read_once(brokers: BrokerCluster) -> None:
    with Group(brokers, 5) as group:
        first = group.consumer()
        assert len(first.wait_for_assignment(PATIENCE_S)) == 5
        group.send()
        group.until_read()
        second = group.consumer(streams=1)
        group.until_shared(first, second)
        group.send()
        group.until_read()
        third = group.consumer()
        group.until_shared(first, second, third)
        group.send()
        group.until_read()
        second.close()
        group.until_shared(first, third)
        first.close()
        group.until_shared(third)
        group.send()
        group.until_read()
        third.close()
        # Nobody was killed: what was read was committed before it was released.
        assert Counter(number for *_, number in group.read) == Counter(range(group.sent))
        assert group.offsets() == group.sent
        assert group.owners() == {}
        assert group.kazoo.get_children(f"/consumers/{group.name}/ids") == []


def test_registration_and_owners_are_as_kafka_writes_them(brokers: BrokerCluster) -> None:
    with Group(brokers, 2) as group:
        consumer = group.consumer(consumer_id="me", streams={group.topic: 2})
        assert consumer.wait_for_assignment(PATIENCE_S) == {
            TopicPartition(group.topic, 0): 0,
            TopicPartition(group.topic, 1): 1,
        }
        name = f"{group.name}_me"
        document = json.loads(group.kazoo.get(f"/consumers/{group.name}/ids/{name}")[0])
        assert document.pop("timestamp").isdigit()
        assert document == {"version": 1, "subscription": {group.topic: 2}, "pattern": "static"}
        folder = f"/consumers/{group.name}/owners/{group.topic}"
        assert [group.kazoo.get(f"{folder}/{number}")[0] for number in range(2)] == [
            f"{name}-0".encode(),
            f"{name}-1".encode(),
        ]
        with pytest.raises(ConfigError, match="is in use in group"):
            group.consumer(consumer_id="me", zookeeper_session_timeout_ms=1000)


def test_members_that_sort_by_broker_each_read_from_one(tmp_path: Path) -> None:
    one = {"default_replication_factor": "1", "min_insync_replicas": "1", "offsets_topic_replication_factor": "1"}
    with running(str(tmp_path), 2, **one) as two_brokers, Group(two_brokers, 4) as group, ExitStack() as stack:
        topic = f"{group.topic}-spread"
        with Admin(two_brokers.bootstrap) as admin:
            admin.create_topic(TopicSpec(topic, assignments={0: [1], 1: [0], 2: [1], 3: [0]}))

        def member(name: str) -> ZooKeeperConsumer[bytes, bytes]:
            return stack.enter_context(
                ZooKeeperConsumer(
                    topic, zookeeper_connect=two_brokers.zookeeper.connect, group_id=group.name, consumer_id=name,
                    zookeeper_session_timeout_ms=SESSION_MS, rebalance_backoff_ms=200, partition_order="broker",
                )
            )  # fmt: skip

        first, second = member("a"), member("b")
        until(lambda: {each.partition for each in first.assignment()} == {1, 3}, "the first reads from broker 0")
        until(lambda: {each.partition for each in second.assignment()} == {0, 2}, "the second reads from broker 1")
        second.close()
        until(lambda: len(first.assignment()) == 4, "the first reads everything")


def test_claim_waits_until_another_member_releases_the_partition(brokers: BrokerCluster) -> None:
    with Group(brokers, 2) as group:
        path = f"/consumers/{group.name}/owners/{group.topic}/1"
        group.kazoo.create(path, b"somebody-0", ephemeral=True, makepath=True)
        consumer = group.consumer(rebalance_backoff_ms=600_000)
        until(lambda: consumer.assignment() == {TopicPartition(group.topic, 0): 0}, "what is free is claimed")
        assert not consumer._member.settled.is_set()  # type: ignore[union-attr]
        group.kazoo.delete(path)
        assert len(consumer.wait_for_assignment(PATIENCE_S)) == 2


def test_deleted_registration_is_recreated(brokers: BrokerCluster) -> None:
    with Group(brokers, 2) as group:
        consumer = group.consumer()
        consumer.wait_for_assignment(PATIENCE_S)
        path = f"/consumers/{group.name}/ids/{consumer.consumer_id}"
        group.kazoo.delete(path)
        until(lambda: group.kazoo.exists(path) is not None, "it is registered again")
        assert len(consumer.assignment()) == 2


def test_filter_follows_new_topics_and_new_partitions(brokers: BrokerCluster) -> None:
    with Group(brokers, 1) as group:
        one = group.consumer(pattern=f"{group.topic}.*")
        assert len(one.wait_for_assignment(PATIENCE_S)) == 1
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(TopicSpec(f"{group.topic}-more", 2))
            until(lambda: len(one.assignment()) == 3, "the new topic is read")
            admin.create_partitions(f"{group.topic}-more", 4)
            until(lambda: len(one.assignment()) == 5, "the new partitions are read")
        two = group.consumer(exclude=".*[0-9]", consumer_id="two")
        until(lambda: len(one.assignment()) == 3 and len(two.assignment()) >= 2, "both read the second topic")


def test_lost_session_gives_everything_up_and_registers_again(brokers: BrokerCluster) -> None:
    with Group(brokers, 4) as group:
        first, second = group.consumer(), group.consumer()
        group.until_shared(first, second)
        group.send()
        group.until_read()
        lost: list[TopicPartition] = []
        first[0].consumer.on_lost(lost.extend)
        expire(first)
        until(lambda: len(lost) == 2, "the partitions are lost")
        group.until_shared(first, second)
        group.send()
        group.until_read()


def expire(consumer: ZooKeeperConsumer[bytes, bytes]) -> None:
    """End its session as another client that resumes it and closes it."""
    session_id, password = consumer._client.client_id
    where = ZooKeeperAddress(consumer._client.hosts[0][0] + f":{consumer._client.hosts[0][1]}", "")
    other = new_client(where, SESSION_MS)
    other._session_id, other._session_passwd = session_id, password
    start_client(other, where, PATIENCE_S * 1000)
    other.stop()
    other.close()


def test_stream_that_is_busy_does_not_hold_a_rebalance_up(brokers: BrokerCluster) -> None:
    with Group(brokers, 2) as group:
        group.send(20)
        is_busy, may_continue = threading.Event(), threading.Event()
        slow: ZooKeeperConsumer[bytes, bytes] = ZooKeeperConsumer(
            group.topic,
            zookeeper_connect=brokers.zookeeper.connect,
            group_id=group.name,
            consumer_id="zzz",
            auto_offset_reset="earliest",
            rebalance_patience_ms=50,
        )

        def work() -> None:
            for _ in slow[0]:
                is_busy.set()
                may_continue.wait(PATIENCE_S)

        thread = threading.Thread(target=work)
        thread.start()
        assert is_busy.wait(PATIENCE_S)
        other = group.consumer(consumer_id="aaa")
        group.until_shared(slow, other)
        may_continue.set()
        slow.close()
        thread.join(PATIENCE_S)
        group.until_shared(other)
        # The record in hand was not committed, so nothing is lost.
        until(lambda: len(other.assignment()) == 2, "everything is the other's")
        group.send()


def test_offsets_in_the_brokers(brokers: BrokerCluster) -> None:
    with Group(brokers, 1) as group:
        consumer = group.consumer(offsets_storage="kafka")
        consumer.wait_for_assignment(PATIENCE_S)
        group.send()
        group.until_read()
        consumer.close()
        assert group.kazoo.exists(f"/consumers/{group.name}/offsets") is None
        with Admin(brokers.bootstrap) as admin:
            committed = admin.group_offsets(group.name)
        assert committed[TopicPartition(group.topic, 0)].offset == group.sent


def test_zookeeper_that_is_away_for_a_session_ends_reading_until_it_is_back(brokers: BrokerCluster) -> None:
    """The brokers are there all the time: only the registry is in another ZooKeeper, which freezes."""
    with Group(brokers, 2) as group, ZooKeeperServer() as frozen:
        where = ZooKeeperAddress(frozen.connect, "")
        client = new_client(where)
        start_client(client, where, PATIENCE_S * 1000)
        client.create("/brokers/ids/0", b"{}", makepath=True)
        client.create(f"/brokers/topics/{group.topic}", b'{"version":1,"partitions":{"0":[0],"1":[0]}}', makepath=True)
        client.stop()
        client.close()
        lost: list[TopicPartition] = []
        with ZooKeeperConsumer(
            group.topic,
            zookeeper_connect=frozen.connect,
            bootstrap_servers=brokers.bootstrap,
            group_id=group.name,
            zookeeper_session_timeout_ms=1000,
            timeout_ms=10,
        ) as consumer:
            assert len(consumer.wait_for_assignment(PATIENCE_S)) == 2
            consumer[0].consumer.on_lost(lost.extend)
            frozen.pause()
            until(lambda: not consumer.assignment(), "it gives up what others may own by now")
            assert list(consumer[0]) == []  # its callbacks run there
            assert len(lost) == 2
            frozen.resume()
            assert len(consumer.wait_for_assignment(PATIENCE_S)) == 2
