"""The snapshot of a cluster: filled, bounded, and only while somebody looks."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.console.visitor import console
from tests.timeouts import PATIENCE_S, until

from penstock.client.admin import Admin, AsyncAdmin, ClusterDescription
from penstock.client.cluster_metadata import Node
from penstock.console.cluster import collector as module
from penstock.console.cluster.collector import Collector
from penstock.testing import Broker


def test_a_snapshot_has_topics_groups_and_brokers(broker: Broker) -> None:
    collector = Collector(lambda: AsyncAdmin(broker.address), http_urls=[f"http://127.0.0.1:{broker.http_port}"])
    assert not collector.snapshot.is_known
    try:
        snapshot = asyncio.run(collector.first(PATIENCE_S))
        assert snapshot.topics["orders"].partitions == 3
        assert (snapshot.topics["orders"].records or 0) >= 300
        assert snapshot.groups["billing"].lag_records is not None
        assert snapshot.groups["billing"].lag_seconds is not None
        assert snapshot.groups["billing"].topics == ("orders",)
        assert snapshot.brokers[0].version.startswith("Penstock")
        assert snapshot.metered == 1
        assert snapshot.problems == []
    finally:
        collector.close()
        collector.close()


def test_more_groups_and_partitions_than_one_refresh_reads_follow_in_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_GROUPS", 2)
    monkeypatch.setattr(module, "_MOST_PARTITIONS", 4)
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "_SHARE", 0)
    names = [f"many-{number}" for number in range(7)]
    with Admin(broker.address) as admin:
        for name in names:
            broker.create_topic(name, 2)
            admin.set_group_offsets(name, {(name, 0): 0})
        collector = Collector(lambda: AsyncAdmin(broker.address))
        try:
            until(lambda: all(name in collector.look().topics for name in names), "topics")
            until(lambda: all(collector.look().topics[name].end == 0 for name in names), "ends")
            until(lambda: all(collector.look().groups[name].lag_records == 0 for name in names), "lags")
        finally:
            collector.close()
            admin.delete_groups(names)
            admin.delete_topics(names)


def test_nothing_is_read_while_nobody_looks(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "_SHARE", 0)
    monkeypatch.setattr(module, "_WANTED_S", 0.2)
    collector = Collector(lambda: AsyncAdmin(broker.address))
    try:
        until(lambda: collector.look().is_known, "a snapshot")
        until(lambda: collector.is_resting, "rest")
        old = collector.snapshot.time_ms
        until(lambda: collector.look().time_ms > old, "a new snapshot")
    finally:
        collector.close()
    assert not any(each.name == "penstock-console-collector" and not each.is_alive() for each in threading.enumerate())


def test_only_controllers_of_penstock_are_elections() -> None:
    nodes = (Node(1, "a", 1), Node(2, "b", 1))
    collector = Collector(lambda: AsyncAdmin("127.0.0.1:1"))
    for time_ms, node in enumerate(nodes * 3):
        collector._compare_leaders(ClusterDescription("kraft", node, nodes), [], time_ms)
    assert not collector._elections
    collector._versions = {1: "Penstock 1.0"}
    collector._compare_leaders(ClusterDescription("c", nodes[0], nodes), [], 7)
    assert [(each.before, each.after) for each in collector._elections] == [(2, 1)]


def test_what_was_known_stays_when_the_cluster_is_gone() -> None:
    with Broker() as broker:
        broker.create_topic("views")
        with console(broker.address, client_options={"request_timeout_ms": 1000, "connect_timeout_ms": 500}) as visitor:
            until(lambda: "views" in visitor.get("/topics").words, "the topic")
            broker.stop()
            until(lambda: "problem" in visitor.get("/").words, "the verdict", within_s=PATIENCE_S)
            assert "views" in visitor.get("/topics").words
