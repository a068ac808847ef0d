"""Groups in ZooKeeper: what is bounded, and a ZooKeeper that does not answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.timeouts import PATIENCE_S

from penstock.client.addresses import ZooKeeperAddress
from penstock.client.errors import BootstrapError
from penstock.client.offset_stores import OffsetStoreError
from penstock.client.zookeeper import new_client, start_client
from penstock.console.cluster import zookeeper_groups as module
from penstock.console.cluster.zookeeper_groups import ZooKeeperGroups
from penstock.runtime.network import PortReservation
from penstock.testing.zookeeper import ZooKeeperServer


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as found:
        where = ZooKeeperAddress(found.connect, "")
        client = new_client(where)
        start_client(client, where, PATIENCE_S * 1000)
        for number in range(12):
            client.create(f"/consumers/wide/offsets/views/{number}", b"1", makepath=True)
        client.stop()
        client.close()
        yield found


def test_partitions_are_bounded_and_a_zookeeper_that_stops_is_an_error(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ZooKeeperGroups(ZooKeeperAddress(server.connect, ""))
    try:
        assert groups.names() == ["wide"]
        whole = groups.group("wide")
        assert whole is not None
        assert (len(whole.partitions), whole.is_cut) == (12, False)
        assert [each.partition.partition for each in whole.partitions] == list(range(12))
        monkeypatch.setattr(module, "MOST_PARTITIONS", 5)
        cut = groups.group("wide")
        assert cut is not None
        assert (len(cut.partitions), cut.is_cut) == (5, True)
        assert groups.group("absent") is None
        monkeypatch.setattr(module, "_TIMEOUT_S", 0.5)
        server.kill()
        with pytest.raises(OffsetStoreError, match="did not answer"):
            groups.names()
        server.start()
        monkeypatch.setattr(module, "_TIMEOUT_S", PATIENCE_S)
        assert groups.names() == ["wide"]
    finally:
        groups.close()
        groups.close()
    with pytest.raises(OffsetStoreError, match="stopping"):
        groups.names()


def test_a_zookeeper_that_is_not_there_is_an_error_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.5)
    reserved = PortReservation("127.0.0.1", 0)
    groups = ZooKeeperGroups(ZooKeeperAddress(f"127.0.0.1:{reserved.port}", ""))
    with pytest.raises(OffsetStoreError, match="cannot be reached") as caught:
        groups.names()
    assert "--zookeeper-groups" in caught.value.hint
    reserved.release()


def test_a_zookeeper_that_was_not_reached_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def fail(_: object, where: ZooKeeperAddress, timeout_ms: float) -> None:
        tries.append(str(where))
        raise BootstrapError([])

    monkeypatch.setattr(module, "new_client", lambda _: None)
    monkeypatch.setattr(module, "start_client", fail)
    groups = ZooKeeperGroups(ZooKeeperAddress("127.0.0.1:1", ""))
    for _ in range(3):
        with pytest.raises(OffsetStoreError, match="cannot be reached"):
            groups.names()
    assert len(tries) == 1
    monkeypatch.setattr(module, "_FAILED_S", 0.0)
    with pytest.raises(OffsetStoreError, match="cannot be reached"):
        groups.names()
    assert len(tries) == 2
