"""A cluster at its edges: disks that fail, a broker removed for good, settings of one broker, records deleted
everywhere, a tree that is gone."""

from __future__ import annotations

import errno
import gc
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from tests.broker.cluster_stories import BrokerCluster, running
from tests.timeouts import NEVER_MS, PATIENCE_S, until

from penstock import Admin, Consumer, Producer, TopicSpec
from penstock.client.admin import ConfigResource
from penstock.client.errors import LogTruncated, PenstockError
from penstock.cluster.membership.broker_lifecycle import Membership
from penstock.cluster.tree.layout import BrokerRegistration
from penstock.runtime.files import PosixFile
from penstock.wire.protocol import ErrorCode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers for all tests here: each leaves them running, and has topics of its own."""
    with running(str(tmp_path_factory.mktemp("edges"))) as brokers:
        yield brokers


def make(cluster: BrokerCluster, name: str, partitions: int = 1, replicas: int = 3) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TopicSpec(name, partitions, replication_factor=replicas))
    cluster.until_in_sync(name, replicas)


class Sender:
    """Sends one record after the other on a thread until stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: list[bytes] = []
        self.failures: list[BaseException] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        with Producer(self._bootstrap, linger_ms=1) as producer:
            while not self._stop.is_set():
                value = b"%d" % len(self.sent)
                try:
                    producer.send(self._topic, value).result(PATIENCE_S)
                except BaseException as error:  # noqa: BLE001 - reported by `until_more`
                    self.failures.append(error)
                    return
                self.sent.append(value)

    def until_more(self, count: int = 20) -> None:
        wanted = len(self.sent) + count
        until(lambda: len(self.sent) >= wanted or bool(self.failures), "records are sent")
        assert self.failures == []

    @contextmanager
    def sending(self) -> Iterator[Sender]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()


def read_all(cluster: BrokerCluster, topic: str, count: int) -> list[bytes]:
    with Consumer(topic, bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        found: list[bytes] = []
        while len(found) < count:
            for records in consumer.poll(5000).values():
                found += [record.value for record in records]
        return found


def count_in_group(cluster: BrokerCluster, topic: str, count: int) -> int:
    """Read on as the group "readers" and commit; the records read, `count` of them unless some are missing."""
    with Consumer(
        topic, bootstrap_servers=cluster.bootstrap, group_id="readers", auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    ) as consumer:  # fmt: skip
        return sum(1 for _ in itertools.islice(consumer, count))


def http(cluster: BrokerCluster, number: int, path: str) -> str:
    try:
        with urlopen(f"http://127.0.0.1:{cluster.brokers[number].http_port}/{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return error.read().decode()


def test_a_broker_whose_disk_fails_leaves_and_producers_continue(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(cluster, "disks", 3)
    failing = next(number for number in cluster.brokers if number != cluster.controller)
    folder = cluster.brokers[failing].data_dir
    sync = PosixFile.sync

    def broken_sync(file: PosixFile) -> None:
        if file.path.startswith(folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
        sync(file)

    with Sender(cluster.bootstrap, "disks").sending() as sender, caplog.at_level(logging.ERROR):
        sender.until_more()
        monkeypatch.setattr(PosixFile, "sync", broken_sync)
        until(lambda: failing not in cluster.image().brokers, "the others know that it left")
        until(
            lambda: failing not in {each.leader for each in cluster.image().topics["disks"].partitions},
            "others lead what it led",
        )
        sender.until_more(100)
        reported = [record.getMessage() for record in caplog.records if "leaves the cluster" in record.getMessage()]
        assert len(reported) == 1
        assert folder in reported[0]
        assert "Repair or replace the disk" in reported[0]
        assert "kafka_log_offline_log_directories 1" in http(cluster, failing, "metrics")
        health = http(cluster, failing, "health")
        assert '"degraded"' in health
        assert folder in health
        with pytest.raises(ConnectionRefusedError):
            # A client that still asked it would get an outdated image of the cluster.
            socket.create_connection(("127.0.0.1", cluster.brokers[failing].port), PATIENCE_S)
        monkeypatch.setattr(PosixFile, "sync", sync)
        cluster.stop(failing)
        cluster.start(failing)
        cluster.until_in_sync("disks")
        sender.until_more()
    assert sorted(read_all(cluster, "disks", len(sender.sent))) == sorted(sender.sent)


def test_cluster_wide_settings_are_set_for_all_brokers_and_rejected_for_one(cluster: BrokerCluster) -> None:
    make(cluster, "agreed")
    name = "min.insync.replicas"
    with Admin(cluster.bootstrap) as admin:
        rejection = admin.alter_configs({ConfigResource.broker(1): {name: "3"}})[ConfigResource.broker(1)]
        assert isinstance(rejection, PenstockError)
        assert rejection.code == ErrorCode.INVALID_CONFIG
        assert "the same for all brokers" in str(rejection)
        assert "--all-brokers" in str(rejection)
        assert name not in cluster.image().broker_config("1")
        one = ConfigResource.broker(1)
        assert admin.alter_configs({one: {"log.cleaner.backoff.ms": "20000", name: None}})[one] is None
        everyone = ConfigResource.broker(None)
        assert admin.alter_configs({everyone: {name: "3"}})[everyone] is None
        until(lambda: demanded(cluster, "agreed") == {3}, "all brokers demand three")
        assert admin.alter_configs({everyone: {name: "2"}})[everyone] is None
        until(lambda: demanded(cluster, "agreed") == {2}, "all brokers demand two again")


def demanded(cluster: BrokerCluster, topic: str) -> set[int]:
    found = (broker.broker.replicas.get(topic, 0) for broker in cluster.brokers.values())
    return {partition.min_insync_replicas for partition in found if partition is not None}


def test_records_that_are_deleted_are_deleted_on_every_broker_when_it_is_answered(cluster: BrokerCluster) -> None:
    make(cluster, "deleted")
    with Producer(cluster.bootstrap) as producer:
        for number in range(10):
            producer.send("deleted", b"%d" % number).result(PATIENCE_S)
    with Admin(cluster.bootstrap) as admin:
        assert list(admin.delete_records({("deleted", 0): 7}).values()) == [7]
    starts = [broker.broker.replicas.get("deleted", 0) for broker in cluster.brokers.values()]
    assert [partition.log.log_start_offset for partition in starts if partition is not None] == [7, 7, 7]


def test_a_broker_is_emptied_and_removed_for_good_while_records_are_written(tmp_path: Path) -> None:
    two = {"default_replication_factor": "2", "min_insync_replicas": "1", "offsets_topic_replication_factor": "2"}
    with running(str(tmp_path), 3, **two) as cluster, ExitStack() as stack:
        gone = cluster.controller
        staying = [number for number in range(3) if number != gone]

        def folders() -> list[Path]:
            names = "views-?", "__consumer_offsets-?"  # deleted ones have another name
            return [path for name in names for path in Path(cluster.brokers[gone].data_dir).glob(name)]

        with Admin(cluster.bootstrap) as admin:
            placed = {0: [gone, staying[0]], 1: [staying[1], gone], 2: [staying[0], staying[1]]}
            admin.create_topic(TopicSpec("views", assignments=placed))
            cluster.until_in_sync("views", 2)
            sender = stack.enter_context(Sender(cluster.bootstrap, "views").sending())
            sender.until_more()
            assert count_in_group(cluster, "views", 20) == 20
            there = {
                (topic.name, index)
                for topic in cluster.image().topics.values()
                for index, partition in enumerate(topic.partitions)
                if gone in partition.replicas
            }
            assert {name for name, _ in there} == {"views", "__consumer_offsets"}
            assert len(folders()) == len(there)
            admin.alter_partition_reassignments(dict.fromkeys(there, staying))
            until(lambda: not folders(), "the broker has no replicas")
            until(lambda: not admin.list_partition_reassignments(), "everything has moved")
            sender.until_more()
        cluster.stop(gone)
        until(lambda: set(cluster.image().brokers) == set(staying), "the others are the cluster")
        sender.until_more()
        stack.close()
        make(cluster, "later", replicas=2)
        with Producer(cluster.bootstrap) as producer:
            producer.send("later", b"written without it").result(PATIENCE_S)
        assert read_all(cluster, "later", 1) == [b"written without it"]
        assert sorted(read_all(cluster, "views", len(sender.sent))) == sorted(sender.sent)
        assert count_in_group(cluster, "views", len(sender.sent) - 20) == len(sender.sent) - 20


def test_a_broker_whose_session_ends_while_it_opens_its_logs_starts_with_another(
    cluster: BrokerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(cluster, "late")
    cluster.stop(2)
    join = Membership.join
    ended: list[int] = []

    async def join_late(membership: Membership, registration: BrokerRegistration) -> None:
        assert membership._tree is not None
        await membership._tree.close()
        ended.append(membership.broker_id)
        await join(membership, registration)

    monkeypatch.setattr(Membership, "join", join_late)
    cluster.start(2)
    assert ended == [2]
    cluster.until_in_sync("late")


def test_what_a_leader_sends_is_throttled_as_the_settings_say_while_it_runs(cluster: BrokerCluster) -> None:
    make(cluster, "throttled", 2)
    one, topic = ConfigResource.broker(1), ConfigResource.topic("throttled")
    rate, listed = "leader.replication.throttled.rate", "leader.replication.throttled.replicas"
    throttle = cluster.brokers[1].broker.replicas.throttle
    assert throttle is not None
    with Admin(cluster.bootstrap) as admin:
        assert admin.alter_configs({one: {rate: "5000"}, topic: {listed: "0:1,1:2"}}) == {one: None, topic: None}
        until(lambda: throttle.applies_to("throttled", 0), "it is in force")
        assert throttle.rate_bytes_s == 5000
        assert not throttle.applies_to("throttled", 1), "the replica of another broker is meant"
        assert admin.alter_configs({one: {rate: None}, topic: {listed: None}}) == {one: None, topic: None}
        until(lambda: not throttle.applies_to("throttled", 0), "it is lifted")


def send(cluster: BrokerCluster, topic: str, *values: bytes) -> None:
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, value).result(PATIENCE_S)


def test_a_consumer_notices_that_what_it_read_was_cut_off_by_an_unclean_leader(cluster: BrokerCluster) -> None:
    """The new log has grown beyond the positions: without asking where their epoch ended, it would go unnoticed."""
    last, first = [number for number in cluster.brokers if number != cluster.controller][:2]
    config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(TopicSpec("cut", assignments={0: [last, first]}, config=config))
    cluster.until_in_sync("cut", 2)
    send(cluster, "cut", *[b"both %d" % number for number in range(5)])
    cluster.stop(first)
    send(cluster, "cut", *[b"lost %d" % number for number in range(5)])
    with (
        Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none") as strict,
        Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="latest") as lenient,
    ):
        for consumer in (strict, lenient):
            consumer.assign([("cut", 0)])
            consumer.seek(("cut", 0), 0)
            assert len(polled(consumer, 10)) == 10
        cluster.stop(last)
        cluster.start(first)
        until(lambda: cluster.partition("cut").leader == first, "who lacks records leads")
        send(cluster, "cut", *[b"new %d" % number for number in range(10)])
        with pytest.raises(LogTruncated, match="agrees only up to 5") as cut:
            polled(strict, 1)
        assert (cut.value.position, cut.value.end_offset) == (10, 5)
        assert polled(lenient, 10) == [b"new %d" % number for number in range(10)]
        strict.seek(("cut", 0), cut.value.end_offset)
        assert polled(strict, 10) == [b"new %d" % number for number in range(10)]
    cluster.start(last)
    cluster.until_in_sync("cut", 2)


def polled(consumer: Consumer[bytes, bytes], count: int) -> list[bytes]:
    found: list[bytes] = []

    def is_enough() -> bool:
        for records in consumer.poll(1000).values():
            found.extend(record.value for record in records)
        return len(found) >= count

    until(is_enough, f"{count} records are read")
    return found


@pytest.mark.long
def test_brokers_stop_without_waiting_for_an_unreachable_tree(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A handover may take longer than a test may last."""
    retries, backoff_ms = "100", str(NEVER_MS // 100)
    with (
        running(
            str(tmp_path), controlled_shutdown_max_retries=retries, controlled_shutdown_retry_backoff_ms=backoff_ms
        ) as cluster,
        caplog.at_level(logging.WARNING),
    ):
        make(cluster, "led", 3)
        controller = cluster.controller
        cluster.zookeeper.kill()
        for number in (controller, *[each for each in cluster.brokers if each != controller]):
            cluster.stop(number)
        gc.collect()
    reported = [record.getMessage() for record in caplog.records if "controlled shutdown failed" in record.getMessage()]
    assert len(reported) == 3
    assert [record for record in caplog.records if record.name == "asyncio"] == [], "nothing is left to itself"


def written_to(cluster: BrokerCluster, topic: str) -> int:
    """How many records the leaders have."""
    brokers = [each.broker for each in cluster.brokers.values()]
    return sum(each.log.log_end_offset for broker in brokers for each in broker.replicas.led() if each.topic == topic)


@pytest.mark.long
def test_brokers_that_stop_all_at_once_log_no_error_and_do_not_wait_for_one_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them loses its controller, its leaders and its followers, in any order."""
    with running(str(tmp_path)) as cluster:
        make(cluster, "written", 6)
        with Producer(cluster.bootstrap, delivery_timeout_ms=NEVER_MS) as producer:
            stopping = threading.Event()

            def write() -> None:
                while not stopping.is_set():
                    producer.send("written", b"x")
                    time.sleep(0.001)

            writer = threading.Thread(target=write)
            writer.start()
            until(lambda: written_to(cluster, "written") > 500, "records are written")
            caplog.clear()
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda broker: broker.stop(), cluster.brokers.values()))
            stopping.set()
            writer.join()
            reported, logged = list(caplog.records), caplog.text
            for number in list(cluster.brokers):
                del cluster.brokers[number]
                cluster.start(number)
            producer.flush()
        errors = [record for record in reported if record.levelno >= logging.ERROR]
        assert [record.getMessage() for record in errors if record.name.startswith("penstock.")] == []
        # Requests that wait for replicas that are gone are answered; no client is left without its response.
        assert "with pending replies" not in logged
