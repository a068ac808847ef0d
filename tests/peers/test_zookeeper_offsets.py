"""Offsets in a real ZooKeeper, under the paths that consumers up to 0.9 use."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.peers.provision import Found
from tests.peers.zookeeper_server import zookeeper
from tests.timeouts import PATIENCE_S

from penstock.client.offset_stores import OffsetAndMetadata, OffsetStoreError, ZooKeeperOffsetStore

pytestmark = [pytest.mark.peer("java"), pytest.mark.peer("kafka-3.9")]

P0, P1 = ("views", 0), ("views", 1)


@pytest.fixture(scope="module")
def hosts(peer: Callable[[str], Found], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper(peer, tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.fixture
def client(hosts: str) -> Iterator[Any]:
    """A client of its own, to look at what is there."""
    kazoo: Any = importlib.import_module("kazoo.client").KazooClient(hosts=hosts)
    kazoo.start(timeout=PATIENCE_S)
    yield kazoo
    kazoo.stop()
    kazoo.close()


def run(hosts: str, work: Callable[[ZooKeeperOffsetStore], Any]) -> Any:
    async def within() -> Any:
        store = ZooKeeperOffsetStore(hosts, timeout_ms=30_000)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(within())


def test_what_was_saved_is_loaded_and_lies_where_old_consumers_look(hosts: str, client: Any) -> None:
    run(hosts, lambda store: store.save("feed", {P0: OffsetAndMetadata(41), P1: OffsetAndMetadata(2**40)}))
    assert client.get("/consumers/feed/offsets/views/0")[0] == b"41"
    run(hosts, lambda store: store.save("feed", {P0: OffsetAndMetadata(42)}))
    assert client.get("/consumers/feed/offsets/views/0")[0] == b"42"
    loaded = run(hosts, lambda store: store.load("feed", [P0, P1, ("views", 2), ("other", 0)]))
    assert loaded == {P0: OffsetAndMetadata(42), P1: OffsetAndMetadata(2**40)}


def test_what_an_old_consumer_wrote_is_understood(hosts: str, client: Any) -> None:
    client.create("/consumers/old/offsets/views/0", b"17", makepath=True)
    assert run(hosts, lambda store: store.load("old", [P0])) == {P0: OffsetAndMetadata(17)}


def test_nonsense_in_a_node_is_named(hosts: str, client: Any) -> None:
    client.create("/consumers/damaged/offsets/views/0", b"seven", makepath=True)
    with pytest.raises(OffsetStoreError, match="/consumers/damaged/offsets/views/0 contains b'seven'"):
        run(hosts, lambda store: store.load("damaged", [P0]))


def test_under_a_chroot(hosts: str, client: Any) -> None:
    client.ensure_path("/kafka")
    run(f"{hosts}/kafka", lambda store: store.save("feed", {P0: OffsetAndMetadata(3)}))
    assert client.get("/kafka/consumers/feed/offsets/views/0")[0] == b"3"


def test_closing_leaves_no_thread(hosts: str, client: Any) -> None:
    before = set(threading.enumerate())
    run(hosts, lambda store: store.load("feed", [P0]))
    left = [each for each in threading.enumerate() if each not in before and each.is_alive()]
    assert left == []
