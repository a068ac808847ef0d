"""One group of Kafka 0.9's high-level consumers and ours, which share partitions through ZooKeeper."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError  # type: ignore[import-untyped]
from tests.broker.cluster_stories import BrokerCluster, running
from tests.peers.client.kafka_server import libraries_0_9
from tests.peers.java_process import FLAGS, classpath, compiled
from tests.peers.provision import Found
from tests.peers.zookeeper_tools import CONSOLE_CONSUMER, OFFSETS, OldTools
from tests.timeouts import PATIENCE_S, until

from penstock import Admin, Producer, TopicSpec, ZooKeeperConsumer
from penstock.client.addresses import ZooKeeperAddress
from penstock.client.zookeeper import new_client, start_client

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-0.9"), pytest.mark.long]

GROUP, TOPIC, PARTITIONS = "mixed", "views", 8
SESSION_MS = "6000"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with running(str(tmp_path_factory.mktemp("brokers"))) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kazoo(brokers: BrokerCluster) -> Iterator[Any]:
    where = ZooKeeperAddress(brokers.zookeeper.connect, "")
    client = new_client(where)
    start_client(client, where, PATIENCE_S * 1000)
    yield client
    client.stop()
    client.close()


class Members:
    """Processes of one group, and what they write."""

    def __init__(self, brokers: BrokerCluster, java: Found, package: Found, folder: Path) -> None:
        self._connect = brokers.zookeeper.connect
        jars = replace(package, path=libraries_0_9(package))
        classes = compiled(java, jars, ("ZooKeeperMember.java",))
        self._old = [str(java.path), *FLAGS, "-cp", classpath(jars, classes), "ZooKeeperMember"]
        self._new = [sys.executable, "-m", "tests.peers.zookeeper_member"]
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Kafka's consumer if the name begins with "old", else ours."""
        command = self._old if name.startswith("old") else self._new
        with (self._folder / f"{name}.out").open("wb") as output, (self._folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                [*command, self._connect, GROUP, name, TOPIC, SESSION_MS],
                stdin=subprocess.DEVNULL, stdout=output, stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )  # fmt: skip

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE_S)

    def read(self) -> Counter[int]:
        """How often each record was read."""
        found: Counter[int] = Counter()
        for path in self._folder.glob("*.out"):
            text = path.read_text()
            found.update(int(line.split()[2]) for line in text[: text.rfind("\n") + 1].splitlines())
        return found


def owners(kazoo: Any) -> Counter[str]:
    """How many partitions each member owns."""
    folder = f"/consumers/{GROUP}/owners/{TOPIC}"
    if kazoo.exists(folder) is None:
        return Counter()
    found: list[bytes] = []
    for child in kazoo.get_children(folder):
        with suppress(NoNodeError):  # released meanwhile
            found.append(kazoo.get(f"{folder}/{child}")[0])
    return Counter(name.decode().removeprefix(f"{GROUP}_").rpartition("-")[0] for name in found)


def until_shared(kazoo: Any, members: Members) -> None:
    names = sorted(members.running)
    share, extra = divmod(PARTITIONS, len(names))
    wanted = Counter({name: share + (number < extra) for number, name in enumerate(names)})
    until(lambda: owners(kazoo) == wanted, f"{names} share the partitions, not {owners(kazoo)}")


def test_group_of_both_is_rebalanced_by_kills_and_reads_everything(
    brokers: BrokerCluster, kazoo: Any, peer: Callable[[str], Found], tmp_path: Path
) -> None:
    with Admin(brokers.bootstrap) as admin:
        admin.create_topic(TopicSpec(TOPIC, PARTITIONS, 3))
    numbers = itertools.count()
    members = Members(brokers, peer("java"), peer("kafka-broker-0.9"), tmp_path)
    try:
        with Producer(brokers.bootstrap) as producer:

            def send() -> None:
                for number in itertools.islice(numbers, 400):
                    producer.send(TOPIC, value=b"%d" % number, partition=number % PARTITIONS)
                producer.flush()

            send()
            for name in ("old-1", "new-1", "old-2", "new-2"):
                members.start(name)
            until_shared(kazoo, members)
            for killed, started in (("old-1", "new-3"), ("new-1", "old-3"), ("new-2", "old-4"), ("old-2", "new-4")):
                send()
                members.end(killed)
                send()
                until_shared(kazoo, members)
                members.start(started)
                until_shared(kazoo, members)
            send()
            members.end("new-3", signal.SIGTERM)
            until_shared(kazoo, members)
            send()
        sent = set(range(next(numbers)))
        until(lambda: members.read().keys() == sent, "everything is read")
        folder = f"/consumers/{GROUP}/offsets/{TOPIC}"
        until(
            lambda: sum(int(kazoo.get(f"{folder}/{each}")[0]) for each in kazoo.get_children(folder)) == len(sent),
            "everything is committed",
        )
        tools = OldTools(peer("java"), peer("kafka-broker-0.9"), brokers.zookeeper.connect)
        rows = [line.split() for line in tools.run(OFFSETS, "--group", GROUP, "--topic", TOPIC).splitlines()]
        shown = [row for row in rows if row[:2] == [GROUP, TOPIC]]
        # Group, topic, partition, offset, log size, lag, owner.
        assert [(int(row[2]), row[3], row[5]) for row in shown] == [
            (number, str(len(sent) // PARTITIONS), "0") for number in range(PARTITIONS)
        ]
        assert {row[6].rpartition("-")[0].removeprefix(f"{GROUP}_") for row in shown} == members.running.keys()
    finally:
        for name in list(members.running):
            members.end(name)


def test_console_consumer_with_a_white_list_shares_topics_with_ours(
    brokers: BrokerCluster, kazoo: Any, peer: Callable[[str], Found], tmp_path: Path
) -> None:
    group, topics = "lists", ("list-a", "list-b")
    with Admin(brokers.bootstrap) as admin:
        for topic in topics:
            admin.create_topic(TopicSpec(topic, 4, 3))
    settings = tmp_path / "consumer.properties"
    settings.write_text(
        f"group.id={group}\nconsumer.id=console\nzookeeper.session.timeout.ms={SESSION_MS}\nauto.offset.reset=smallest\n"
    )
    tools = OldTools(peer("java"), peer("kafka-broker-0.9"), brokers.zookeeper.connect)
    output = tmp_path / "console.out"
    console = tools.start(CONSOLE_CONSUMER, "--whitelist", "list-.*", "--consumer.config", str(settings), output=output)
    try:
        with ZooKeeperConsumer(
            pattern="list-.*",
            zookeeper_connect=brokers.zookeeper.connect,
            group_id=group,
            consumer_id="ours",
            auto_offset_reset="earliest",
            timeout_ms=PATIENCE_S * 1000,
        ) as ours:
            until(lambda: len(kazoo.get_children(f"/consumers/{group}/ids")) == 2, "both are registered")
            until(lambda: len(ours.assignment()) == 4, "each has half of the partitions")
            registered = json.loads(kazoo.get(f"/consumers/{group}/ids/{group}_console")[0])
            own = json.loads(kazoo.get(f"/consumers/{group}/ids/{group}_ours")[0])
            del registered["timestamp"], own["timestamp"]
            assert own == registered
            # Names are compared as text: "console" comes before "ours".
            assert {partition for _, partition in ours.assignment()} == {2, 3}
            with Producer(brokers.bootstrap) as producer:
                for number in range(80):
                    producer.send(topics[number % 2], value=b"%d" % number, partition=number // 2 % 4)
            read = {int(record.value) for record in itertools.islice(ours[0], 40)}
            assert read == {number for number in range(80) if number // 2 % 4 > 1}
            others = set(range(80)) - read
            until(lambda: set(map(int, output.read_text().split())) >= others, "the console has the others")
            assert set(map(int, output.read_text().split())) == others
    finally:
        console.kill()
        console.wait()
