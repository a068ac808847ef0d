"""Finding the brokers through a real ZooKeeper, whose registry has them under the classic path."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.peers.provision import Found
from tests.peers.zookeeper_server import zookeeper
from tests.timeouts import PATIENCE_S

from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BootstrapError, Cause
from penstock.testing.embedded_broker import EmbeddedBroker

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-3.9")]


@pytest.fixture(scope="module")
def registry(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any]]:
    with zookeeper(peer, tmp_path_factory.mktemp("zookeeper")) as hosts:
        kazoo: Any = importlib.import_module("kazoo.client").KazooClient(hosts=hosts)
        kazoo.start(timeout=PATIENCE_S)
        yield hosts, kazoo
        kazoo.stop()
        kazoo.close()


def test_a_registered_broker_is_found_under_its_root(registry: tuple[str, Any]) -> None:
    hosts, kazoo = registry

    async def story(broker: EmbeddedBroker) -> None:
        async with ClusterClient(f"zookeeper://{hosts}/site/one") as cluster:
            assert [node.port for node in cluster.view.nodes.values()] == [broker.port]

    with EmbeddedBroker() as broker:
        for number, port in ((0, 1), (1, broker.port)):
            document = {"version": 5, "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"], "host": "127.0.0.1", "port": port}
            kazoo.create(f"/site/one/brokers/ids/{number}", json.dumps(document).encode(), makepath=True)
        asyncio.run(story(broker))


@pytest.mark.parametrize("root", ["/no/such/root", "/empty"])
def test_a_root_without_brokers_is_named(registry: tuple[str, Any], root: str) -> None:
    hosts, kazoo = registry
    kazoo.ensure_path("/empty/brokers/ids")

    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient(f"zookeeper://{hosts}{root}").start()
        (attempt,) = caught.value.attempts
        assert attempt.cause is Cause.ZOOKEEPER
        assert f"{root}/brokers/ids has no broker" in attempt.detail

    asyncio.run(story())
