"""Brokers that log in to a real ZooKeeper with SASL, and nodes that nobody else can change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]
from tests.peers.provision import Found
from tests.peers.zookeeper_server import zookeeper

from penstock.cluster.errors import TreeError
from penstock.cluster.tree.layout import CLUSTER_SECRET
from penstock.cluster.tree.zookeeper.security import ZooKeeperSecurity
from penstock.cluster.tree.zookeeper.tree import open_zookeeper_tree
from penstock.security.credentials import Secret

pytestmark = pytest.mark.peer("java")

USER, PASSWORD = "brokers", "hunter2"
PROVIDER = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"


def login(password: str) -> ZooKeeperSecurity:
    return ZooKeeperSecurity(user=USER, password=Secret(password), is_sasl=True, sets_acls=True)


@pytest.fixture
def address(peer: Callable[[str], Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("puresasl", reason="kazoo needs the package pure-sasl")
    jaas = tmp_path / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    jaas.write_text(f'Server {{\n  {module} required user_{USER}="{PASSWORD}";\n}};\n')
    options = f"-Djava.security.auth.login.config={jaas} -Dzookeeper.authProvider.1={PROVIDER}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    with zookeeper(peer, tmp_path) as started:
        yield started


def test_what_a_broker_creates_belongs_to_its_user(address: str) -> None:
    async def create() -> None:
        tree = await open_zookeeper_tree(f"{address}/a", security=login(PASSWORD))
        for path in ("/penstock", "/controller_epoch", CLUSTER_SECRET):
            await tree.create(path, b"1")
        again = await open_zookeeper_tree(f"{address}/a", security=login(PASSWORD))
        assert (await again.get(CLUSTER_SECRET)).data == b"1", "another broker"
        await tree.close()
        await again.close()

    asyncio.run(create())
    outsider = KazooClient(address)
    outsider.start()
    try:
        assert outsider.get("/a/controller_epoch")[0] == b"1"
        with pytest.raises(NoAuthError):
            outsider.set("/a/controller_epoch", b"2147483647")
        with pytest.raises(NoAuthError):
            outsider.get(f"/a{CLUSTER_SECRET}")
        owners = {acl.id.scheme: acl.id.id for acl in outsider.get_acls("/a/controller_epoch")[0]}
        assert owners["sasl"] == USER
    finally:
        outsider.stop()
        outsider.close()


def test_a_wrong_password_is_reported(address: str) -> None:
    async def enter() -> None:
        with pytest.raises(TreeError) as raised:
            await open_zookeeper_tree(f"{address}/a", connection_timeout_ms=5_000, security=login("a guess"))
        assert "a guess" not in str(raised.value)

    asyncio.run(enter())
