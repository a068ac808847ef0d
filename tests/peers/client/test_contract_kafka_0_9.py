"""The contract of the client and of the command, as far as the versions of Apache Kafka 0.9.0.1 allow.

It has no request that makes a topic: topics are made as its own tool makes them, by a node in ZooKeeper.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from tests.client.contract import (
    test_administering,
    test_command_line,
    test_consuming,
    test_producing,
    test_sharing,
    test_transacting,
)
from tests.client.contract.contract import KEPT, Capabilities, MakeTopic, is_led, new_name, stories_of
from tests.peers.client.kafka_server import JavaServer, kafka_0_9
from tests.peers.provision import Found
from tests.timeouts import PATIENCE_S, until

from penstock import Admin
from penstock.client import connection_pool

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-broker-0.9")]


@pytest.fixture(scope="module")
def servers(
    peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JavaServer, JavaServer]]:
    zookeeper, broker = kafka_0_9(peer("java"), peer("kafka-broker-0.9"), tmp_path_factory.mktemp("kafka"))
    try:
        for server in (zookeeper, broker):
            server.launch()
            server.wait_until_listening()
        yield zookeeper, broker
    finally:
        broker.kill()
        zookeeper.kill()


@pytest.fixture(scope="module")
def bootstrap(servers: tuple[JavaServer, JavaServer]) -> str:
    return servers[1].address


@pytest.fixture(autouse=True)
def quick_recognition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client waits for versions that never come; it is enough that the commands do so in full."""
    monkeypatch.setattr(connection_pool, "_SILENCE_MS", 20)


@pytest.fixture(scope="module")
def capabilities() -> Capabilities:
    return Capabilities(
        "Kafka 0.9.0.1",
        administers=False,
        batches=False,
        transactions=False,
        static_members=False,
        codecs=frozenset({"none", "gzip", "snappy", "lz4"}),
        librdkafka={"api.version.request": False, "broker.version.fallback": "0.9.0"},
        kafka_python={"api_version": (0, 9)},
    )


@pytest.fixture(scope="module")
def zookeeper(servers: tuple[JavaServer, JavaServer]) -> Iterator[Any]:
    client: Any = importlib.import_module("kazoo.client").KazooClient(hosts=servers[0].address)
    client.start(timeout=PATIENCE_S)
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


@pytest.fixture
def make_topic(zookeeper: Any, admin: Admin) -> MakeTopic:
    def make(partitions: int = 1, config: Mapping[str, str] | None = None, *, prefix: str = "t") -> str:
        name = new_name(prefix)
        settings = {"version": 1, "config": {**KEPT, **(config or {})}}
        zookeeper.create(f"/config/topics/{name}", json.dumps(settings).encode(), makepath=True)
        replicas = {"version": 1, "partitions": {str(index): [0] for index in range(partitions)}}
        zookeeper.create(f"/brokers/topics/{name}", json.dumps(replicas).encode())
        until(lambda: is_led(admin, name, partitions), f"{name} is there")
        return name

    return make


def test_the_command_finds_the_brokers_through_their_zookeeper(
    servers: tuple[JavaServer, JavaServer], make_topic: MakeTopic
) -> None:
    """As the tools of its time did."""
    topic, command = make_topic(), [sys.executable, "-m", "penstock"]
    ways = {"produce": "--broker-list", "consume": "--zookeeper"}
    addresses = {"produce": servers[1].address, "consume": servers[0].address}
    said = {
        what: subprocess.run(
            [*command, what, "--topic", topic, way, addresses[what], *(["--exit"] if what == "consume" else [])],
            input="hello\n", capture_output=True, text=True, timeout=PATIENCE_S, check=True,
        ).stdout
        for what, way in ways.items()
    }  # fmt: skip
    assert said["consume"] == "hello\n"


globals().update(
    stories_of(test_producing, test_consuming, test_sharing, test_administering, test_command_line, test_transacting)
)
