"""One real ZooKeeper for all stories that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.tree.tree_stories import EmbeddedTrees, SimulatedTrees, Trees, ZooKeeperTrees

from penstock.testing.zookeeper import ZooKeeperServer


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """One that a story may kill; its sessions last long enough for it to come back on a busy machine."""
    with ZooKeeperServer(tick_ms=2000) as server:
        yield server


@pytest.fixture(params=["embedded", "simulated", "zookeeper"])
def trees(request: pytest.FixtureRequest) -> Trees:
    """Every kind of tree: their common contract is tested once."""
    if request.param == "embedded":
        return EmbeddedTrees()
    if request.param == "simulated":
        return SimulatedTrees()
    return ZooKeeperTrees(request.getfixturevalue("zookeeper").connect)
