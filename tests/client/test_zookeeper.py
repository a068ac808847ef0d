"""Brokers' registrations in ZooKeeper: how they are read, and how their changes are noticed."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.broker.cluster_stories import BrokerCluster, running
from tests.client.scripted import run
from tests.timeouts import NEVER_MS, PATIENCE_S, until_async

from penstock import AsyncAdmin, TopicSpec
from penstock.client.addresses import Address
from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import BootstrapError, Cause
from penstock.client.zookeeper import endpoint_of
from penstock.runtime.network import PortReservation

NEW = b"""{"version": 5, "host": null, "port": -1, "endpoints": ["INSIDE://10.0.0.1:9092", "OUTSIDE://b.example:9093"],
"listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SSL"}}"""


@pytest.mark.parametrize(
    ("document", "with_tls", "address"),
    [
        (b'{"version": 1, "host": "a", "port": 9092}', False, ("a", 9092)),
        (b'{"version": 1, "host": "a", "port": 9092}', True, None),
        (b'{"host": "a", "port": 1, "endpoints": ["PLAINTEXT://[::1]:9092"]}', False, ("::1", 9092)),
        (NEW, False, ("10.0.0.1", 9092)),
        (NEW, True, ("b.example", 9093)),
        (b'{"endpoints": ["PLAINTEXT://:x"], "host": "a", "port": 5}', False, ("a", 5)),
        (b"", False, None),
        (b"\xff", False, None),
        (b"[]", False, None),
        (b'{"host": 5, "port": "x"}', False, None),
    ],
)
def test_the_endpoint_that_fits(document: bytes, with_tls: bool, address: tuple[str, int] | None) -> None:
    expected = None if address is None else Address(*address)
    assert endpoint_of(document, "SSL" if with_tls else "PLAINTEXT") == expected


def test_no_zookeeper_there_is_an_attempt_with_its_cause() -> None:
    async def story() -> None:
        with pytest.raises(BootstrapError) as caught:
            await ClusterClient(f"zookeeper://127.0.0.1:{reservation.port}/kafka", connect_timeout_ms=300).start()
        (attempt,) = caught.value.attempts
        assert attempt.cause is Cause.ZOOKEEPER
        assert attempt.address == f"zookeeper://127.0.0.1:{reservation.port}/kafka"
        assert "within 300 ms" in attempt.detail

    reservation = PortReservation("127.0.0.1", 0)
    before = set(threading.enumerate())
    run(story())
    reservation.release()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_new_topics_partitions_and_brokers_are_noticed_by_watches(tmp_path: Path) -> None:
    """Nothing else would refresh the metadata: it never gets old, and no request fails."""

    async def story(cluster: BrokerCluster) -> None:
        address = f"zookeeper://{cluster.zookeeper.connect}"
        async with (
            ClusterClient(address, metadata_max_age_ms=NEVER_MS) as client,
            AsyncAdmin(cluster.bootstrap) as admin,
        ):
            client.follow(["views"])
            await until_async(lambda: "views" in client.view.topics, "the missing topic was asked for")
            await admin.create_topic(TopicSpec("views", 1, 1))
            await until_async(lambda: partitions(client) == 1, "the topic is known")
            await admin.create_partitions("views", 3)
            await until_async(lambda: partitions(client) == 3, "its partitions are known")
            await asyncio.to_thread(cluster.start, 7)
            await until_async(lambda: 7 in client.view.nodes, "the new broker is known")

    def partitions(client: ClusterClient) -> int:
        found = client.view.topics.get("views")
        return 0 if found is None else len(found.partitions)

    with running(str(tmp_path), 1) as cluster:
        run(story(cluster))
