"""Offsets with the coordinator, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from tests.ports import free_port

from penstock.client.cluster_client import ClusterClient
from penstock.client.errors import GroupError, PenstockError, RequestTimedOut
from penstock.client.offset_stores import BrokerOffsetStore, Membership, OffsetAndMetadata, OffsetStore
from penstock.testing import Broker
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

T = TypeVar("T")
P0, P1 = ("views", 0), ("views", 1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"offsets.topic.num.partitions": "2"}) as broker:
        broker.create_topic("views", partitions=2)
        broker.create_topic("clicks", partitions=1)
        yield broker


def run(broker: Broker, work: Callable[[BrokerOffsetStore, ClusterClient], Awaitable[T]]) -> T:
    async def within() -> T:
        cluster = ClusterClient(broker.address)
        await cluster.start()
        try:
            return await work(BrokerOffsetStore(cluster, timeout_ms=20_000), cluster)
        finally:
            await cluster.close()

    return asyncio.run(within())


def test_what_was_saved_is_loaded(broker: Broker) -> None:
    async def story(store: OffsetStore, _: ClusterClient) -> None:
        offsets = {
            P0: OffsetAndMetadata(2**40, 0, "ünï"),
            P1: OffsetAndMetadata(0),
            ("clicks", 0): OffsetAndMetadata(9),
        }
        await store.save("feed", offsets)
        assert await store.load("feed", [P0, ("clicks", 0), P1]) == offsets
        assert await store.load("feed", [P1]) == {P1: OffsetAndMetadata(0)}
        await store.close()

    run(broker, story)


def test_what_was_never_saved_is_not_there(broker: Broker) -> None:
    async def story(store: OffsetStore, _: ClusterClient) -> None:
        assert await store.load("nobody", [P0, ("no-such-topic", 5)]) == {}
        assert await store.load("nobody", []) == {}
        await store.save("nobody", {})

    run(broker, story)


@pytest.mark.parametrize("version", [1, 5, 6, 7, 8, 9])
def test_every_version_of_the_protocol_loads_the_same(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.connection import Connection

    real = Connection.version_of
    monkeypatch.setattr(
        Connection, "version_of", lambda self, key: version if key == ApiKey.OFFSET_FETCH else real(self, key)
    )

    async def story(store: OffsetStore, _: ClusterClient) -> None:
        await store.save("versions", {P0: OffsetAndMetadata(7, -1, "note")})
        assert await store.load("versions", [P0, P1]) == {P0: OffsetAndMetadata(7, -1, "note")}

    run(broker, story)


@pytest.mark.parametrize("version", [2, 5, 6, 7, 8, 9])
def test_every_version_of_the_protocol_saves_the_same(
    broker: Broker, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.client.connection import Connection

    real = Connection.version_of
    monkeypatch.setattr(
        Connection, "version_of", lambda self, key: version if key == ApiKey.OFFSET_COMMIT else real(self, key)
    )

    async def story(store: OffsetStore, _: ClusterClient) -> None:
        await store.save("saves", {P0: OffsetAndMetadata(version, -1, "note")})
        assert await store.load("saves", [P0]) == {P0: OffsetAndMetadata(version, -1, "note")}

    run(broker, story)


def test_an_unknown_member_is_rejected(broker: Broker) -> None:
    async def story(store: OffsetStore, _: ClusterClient) -> None:
        await store.save("fenced", {P0: OffsetAndMetadata(1)})
        with pytest.raises(GroupError, match="views-0 for group fenced"):
            await store.save("fenced", {P0: OffsetAndMetadata(2)}, Membership(3, "somebody"))
        assert await store.load("fenced", [P0]) == {P0: OffsetAndMetadata(1)}

    run(broker, story)


def test_a_coordinator_that_was_restarted_is_found_again() -> None:
    port = free_port()
    with Broker(port=port, settings={"offsets.topic.num.partitions": "1"}) as first:
        first.create_topic("views")
        folder = first.data_dir

        async def story(store: OffsetStore, cluster: ClusterClient) -> None:
            await store.save("feed", {P0: OffsetAndMetadata(5)})
            await asyncio.to_thread(first.stop)
            with Broker(folder, port=port):
                assert await store.load("feed", [P0]) == {P0: OffsetAndMetadata(5)}
                # While the client is connected it holds nothing against the broker's going.
                await cluster.close()

        run(first, story)


def test_with_no_broker_left_it_ends() -> None:
    with Broker(settings={"offsets.topic.num.partitions": "1"}) as only:
        only.create_topic("views")

        async def story(patient: OffsetStore, cluster: ClusterClient) -> None:
            await patient.save("feed", {P0: OffsetAndMetadata(5)})
            await asyncio.to_thread(only.stop)
            with pytest.raises(PenstockError):
                await BrokerOffsetStore(cluster, timeout_ms=700).load("feed", [P0])

        run(only, story)


class _MovingCluster:
    """A coordinator that answers NOT_COORDINATOR, or not at all, until it is looked up again."""

    request_timeout_ms = 1_000

    def __init__(self, code: ErrorCode) -> None:
        self.code = code
        self.forgotten = 0
        self.asked = 0

    async def to_coordinator(self, kind: str, group: str) -> _MovingCluster:
        return self

    def forget_coordinator(self, kind: str, group: str) -> None:
        self.forgotten += 1

    def version_of(self, api_key: int) -> int:
        return 9

    async def request(self, api_key: int, message: object, **options: object) -> OffsetCommitResponse:
        self.asked += 1
        assert options["timeout_ms"] == self.request_timeout_ms, "one that hangs must not have all of the time"
        code = ErrorCode.NONE if self.asked == 3 else self.code
        if code is ErrorCode.REQUEST_TIMED_OUT:
            raise RequestTimedOut("b:1", "OffsetCommit", self.request_timeout_ms)
        partition = OffsetCommitResponsePartition(partition_index=0, error_code=code)
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(name="views", partitions=[partition])])


@pytest.mark.parametrize(
    ("code", "forgotten"),
    [
        (ErrorCode.NOT_COORDINATOR, 2),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 2),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0),
        (ErrorCode.REQUEST_TIMED_OUT, 2),
    ],
)
def test_a_coordinator_that_moved_is_looked_for_and_one_that_loads_is_asked_again(
    code: ErrorCode, forgotten: int
) -> None:
    cluster = _MovingCluster(code)
    store = BrokerOffsetStore(cluster, timeout_ms=20_000)  # type: ignore[arg-type]
    asyncio.run(store.save("feed", {P0: OffsetAndMetadata(1)}))
    assert (cluster.asked, cluster.forgotten) == (3, forgotten)
