"""Brokers that authenticate to ZooKeeper, and nodes that others cannot change or read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]
from tests.activity.pipelines.tls_broker import Proxy
from tests.broker.cluster_stories import BrokerCluster
from tests.client.tls import PEM
from tests.cluster.cluster_stories import run
from tests.security.certificates import write_ca

from penstock import Admin, Producer, TopicSpec
from penstock.broker.cluster_services import zookeeper_security
from penstock.broker.settings import settings_from
from penstock.cluster.errors import ZooKeeperUnreachable
from penstock.cluster.tree.layout import CLUSTER_SECRET
from penstock.cluster.tree.zookeeper.security import ZooKeeperAuthFailed, ZooKeeperSecurity
from penstock.cluster.tree.zookeeper.tree import open_zookeeper_tree
from penstock.security.credentials import Secret
from penstock.testing.zookeeper import ZooKeeperServer

BROKERS = ZooKeeperSecurity(user="brokers", password=Secret("hunter2"), sets_acls=True)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as started:
        yield started


@pytest.fixture
def outsider(server: ZooKeeperServer) -> Iterator[Any]:
    client = KazooClient(server.connect)
    client.start()
    yield client
    client.stop()
    client.close()


def test_what_brokers_create_is_changed_by_brokers_only_and_secrets_are_read_by_them_only(
    server: ZooKeeperServer, outsider: Any
) -> None:
    async def story() -> None:
        tree = await open_zookeeper_tree(f"{server.connect}/a", security=BROKERS)
        for path in ("/penstock", "/config", "/config/users", "/consumers"):
            await tree.create(path)
        await tree.create("/controller_epoch", b"1")
        await tree.create(CLUSTER_SECRET, b"secret")
        await tree.create("/config/users/alice", b"credentials")
        assert outsider.get("/a/controller_epoch")[0] == b"1"
        for path in ("/a/controller_epoch", f"/a{CLUSTER_SECRET}", "/a/config/users/alice"):
            with pytest.raises(NoAuthError):
                outsider.set(path, b"2147483647")
        for path in (f"/a{CLUSTER_SECRET}", "/a/config/users/alice"):
            with pytest.raises(NoAuthError):
                outsider.get(path)
        outsider.create("/a/consumers/old")
        again = await open_zookeeper_tree(f"{server.connect}/a", security=BROKERS)
        assert (await again.get(CLUSTER_SECRET)).data == b"secret", "another broker"
        await tree.close()
        await again.close()

    run(story())


def test_secrets_that_were_readable_before_are_restricted_when_acls_are_set(
    server: ZooKeeperServer, outsider: Any
) -> None:
    async def story() -> None:
        tree = await open_zookeeper_tree(f"{server.connect}/b")
        for path in ("/penstock", CLUSTER_SECRET, "/config", "/config/users", "/config/users/alice"):
            await tree.create(path, b"secret")
        await tree.close()
        assert outsider.get(f"/b{CLUSTER_SECRET}")[0] == b"secret"
        protected = await open_zookeeper_tree(f"{server.connect}/b", security=BROKERS)
        for path in (f"/b{CLUSTER_SECRET}", "/b/config/users/alice"):
            with pytest.raises(NoAuthError):
                outsider.get(path)
        await protected.close()

    run(story())


def test_a_cluster_runs_on_a_protected_tree(tmp_path: Path, server: ZooKeeperServer, outsider: Any) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    settings = {
        "zookeeper.set.acl": "true",
        "zookeeper.auth.user": "brokers",
        "zookeeper.auth.password": f"file:{password}",
    }
    cluster = BrokerCluster(server, str(tmp_path), settings)
    try:
        for number in range(3):
            cluster.start(number)
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TopicSpec("views", 1, 3))
            admin.set_password("alice", "wonderland")
        cluster.until_in_sync("views")
        with Producer(cluster.bootstrap) as producer:
            producer.send("views", b"x").result(30)
        assert "alice" in cluster.image(0).users
        for path in ("/brokers/topics/views", "/controller_epoch"):
            with pytest.raises(NoAuthError):
                outsider.set(path, b"{}")
        with pytest.raises(NoAuthError):
            outsider.get("/config/users/alice")
    finally:
        cluster.close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"zookeeper.set.acl": "true"}, "needs an identity"),
        ({"zookeeper.auth.user": "x"}, "need each other"),
        ({"zookeeper.auth.password": "x"}, "need each other"),
        ({"zookeeper.auth.user": "x", "zookeeper.auth.password": "file:/no/such"}, "zookeeper.auth.password"),
        ({"zookeeper.ssl.client.enable": "true"}, "truststore.location"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/no/such"},
            "cannot be read: /no/such",
        ),
    ],
)
def test_settings_that_cannot_work_are_explained(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ZooKeeperAuthFailed, match=text):
        zookeeper_security(settings_from(settings)).client_options()


def test_tls_and_passwords_reach_kazoo_and_no_text(tmp_path: Path) -> None:
    authority, own = tmp_path / "ca.pem", tmp_path / "own.pem"
    for path in (authority, own):
        path.write_text("")
    found = settings_from(
        {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(authority),
            "zookeeper.ssl.keystore.location": str(own),
            "zookeeper.ssl.keystore.password": "hunter2",
            "zookeeper.auth.user": "brokers",
            "zookeeper.auth.password": "hunter3",
        }
    )
    assert "hunter" not in repr(found)
    security = zookeeper_security(found)
    assert "hunter" not in repr(security)
    options = security.client_options()
    assert options["auth_data"] == [("digest", "brokers:hunter3")]
    assert (options["use_ssl"], options["ca"], options["certfile"]) == (True, str(authority), str(own))
    assert (options["keyfile_password"], options["check_hostname"], options["verify_certs"]) == ("hunter2", True, True)


def test_sasl_without_its_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cluster.tree.zookeeper.security.find_spec", lambda name: None)
    with pytest.raises(ZooKeeperAuthFailed, match="pip install pure-sasl"):
        ZooKeeperSecurity(user="x", password=Secret("y"), is_sasl=True).client_options()


@pytest.fixture
def proxy(tmp_path: Path, server: ZooKeeperServer) -> Iterator[Proxy]:
    """Takes TLS off, in front of the server."""
    started = Proxy(tmp_path)
    started.leads_to(server.port)
    yield started
    started.close()


def test_a_session_runs_over_tls_if_the_certificate_is_trusted(tmp_path: Path, proxy: Proxy) -> None:
    authority = tmp_path / "authority.pem"
    authority.write_text(PEM[PEM.index("-----BEGIN CERTIFICATE") :])
    trusting = ZooKeeperSecurity(
        user="brokers", password=Secret("hunter2"), sets_acls=True, uses_tls=True, ca_file=str(authority)
    )

    async def story() -> None:
        tree = await open_zookeeper_tree(f"localhost:{proxy.port}/tls", security=trusting)
        await tree.create("/node", b"over tls")
        assert (await tree.get("/node")).data == b"over tls"
        await tree.close()

    run(story())
    assert proxy.connections == 1


# kazoo leaves the sockets of failed handshakes to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_another_authority_signed_is_not_talked_to(tmp_path: Path, proxy: Proxy) -> None:
    suspicious = ZooKeeperSecurity(uses_tls=True, ca_file=write_ca(tmp_path, name="other.pem"))

    async def story() -> None:
        with pytest.raises(ZooKeeperUnreachable):
            await open_zookeeper_tree(f"localhost:{proxy.port}", connection_timeout_ms=1500, security=suspicious)

    run(story())
    gc.collect()
