"""The cluster client: metadata, connections, and brokers that come and go."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.client.scripted import Scripted, SkippingLoop, brokers, run, speaking, this_loop
from tests.ports import free_port
from tests.timeouts import NEVER_MS, PATIENCE_MS, until, until_async

from penstock.client.addresses import Address
from penstock.client.cluster_client import ClusterClient
from penstock.client.cluster_metadata import ClusterView
from penstock.client.connection_pool import ConnectionKey, ConnectionOptions, ConnectionPool, open_connection
from penstock.client.errors import (
    BootstrapError,
    ClosedError,
    ConfigError,
    InvalidTopic,
    NotConnected,
    PenstockError,
    UnknownTopic,
)
from penstock.runtime.clock import SystemClock
from penstock.runtime.network import PortReservation
from penstock.runtime.randomness import SeededRandom
from penstock.testing.embedded_broker import EmbeddedBroker
from penstock.wire.framing import RequestHeader
from penstock.wire.protocol import ApiKey, ErrorCode
from penstock.wire.schemas.api_versions import ApiVersion
from penstock.wire.schemas.find_coordinator import Coordinator, FindCoordinatorResponse
from penstock.wire.schemas.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.schemas.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from penstock.wire.types import Message


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


class Fake:
    """A broker whose metadata can be changed, and that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.nodes: MetadataResponse | None = None
        self.coordinator_errors: list[int] = []
        self.server = Scripted(speaking(self._answer))

    def _answer(self, header: RequestHeader, message: Any) -> Message | None:
        if header.api.key is ApiKey.FIND_COORDINATOR:
            self.asked.append("coordinator")
            error = self.coordinator_errors.pop(0) if self.coordinator_errors else 0
            found = Coordinator(
                key=message.coordinator_keys[0], node_id=1, host="127.0.0.1", port=self.server.port, error_code=error
            )
            return FindCoordinatorResponse(coordinators=[found])
        if header.api.key is ApiKey.LIST_GROUPS:
            return None
        self.asked.append(None if message.topics is None else sorted(topic.name for topic in message.topics))
        return self.nodes or brokers((1, "127.0.0.1", self.server.port))


def test_a_topic_is_made_on_demand_and_followed(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            changes: list[tuple[ClusterView, ClusterView]] = []
            stop = cluster.on_change(lambda old, new: changes.append((old, new)))
            topic = await cluster.wait_for_topic("made", timeout_ms=PATIENCE_MS)
            assert topic.partitions[0].leader == 0
            assert changes[-1][1] is cluster.view
            stop()
            count = len(changes)
            await cluster.wait_for_topic("made-too", timeout_ms=PATIENCE_MS)
            assert len(changes) == count
            leader = cluster.view.leader_of("made", 0)
            assert leader is not None
            connection = await cluster.to(leader.leader)
            assert connection is await cluster.to(leader.leader)
            assert connection is await cluster.to_any()
            assert connection is await cluster.to_controller()

    run(story())


def test_a_topic_is_not_created_unless_that_is_allowed(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            with pytest.raises(UnknownTopic, match="topic never"):
                await cluster.wait_for_topic("never", timeout_ms=300, create=False)
            with pytest.raises(InvalidTopic):
                await cluster.wait_for_topic("not a name", timeout_ms=PATIENCE_MS)
            assert (await cluster.refresh(["never"])).topic("never") is None

    run(story())


def test_a_listener_that_fails_does_not_stop_the_others(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            seen: list[ClusterView] = []

            def failing(old: ClusterView, new: ClusterView) -> None:
                raise RuntimeError("mine")

            cluster.on_change(failing)
            cluster.on_change(lambda old, new: seen.append(new))
            await cluster.wait_for_topic("later", timeout_ms=PATIENCE_MS)
            assert seen

    run(story())
    assert "a listener for cluster changes failed" in caplog.text


def test_a_client_that_is_closed_leaves_nothing_behind(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            await cluster.to_coordinator("group", "g")
            await cluster.to(0, lane="fetch")
        await cluster.close()
        with pytest.raises(ClosedError):
            await cluster.to_any()
        with pytest.raises(ClosedError):
            await cluster.refresh()
        with pytest.raises(ClosedError):
            await cluster.start()

    run(story())
    gc.collect()
    before = open_files()
    run(story())
    gc.collect()
    # The broker, in this very process, closes its ends a little later.
    until(lambda: open_files() <= before, "all files are closed")


def test_closing_ends_pending_calls() -> None:
    async def story() -> None:
        fake = Fake()
        async with fake.server:
            cluster = ClusterClient(fake.server.address, retry_backoff_ms=NEVER_MS, retry_backoff_max_ms=NEVER_MS)
            await cluster.start()
            fake.coordinator_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
            waiting = asyncio.ensure_future(cluster.to_coordinator("group", "g"))
            connection = await cluster.to_any()
            await until_async(
                lambda: "coordinator" in fake.asked and not connection.in_flight, "one waits to try again"
            )
            request = asyncio.ensure_future(
                connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(), timeout_ms=NEVER_MS, version=0)
            )
            await until_async(lambda: connection.in_flight, "one waits for an answer")
            await cluster.close()
            with pytest.raises(ClosedError):
                await waiting
            with pytest.raises((NotConnected, PenstockError)):
                await request

    run(story())


def test_refreshes_asked_for_together_are_one_and_those_meanwhile_the_next() -> None:
    async def story() -> None:
        fake = Fake()
        async with fake.server, ClusterClient(fake.server.address) as cluster:
            await cluster.refresh()
            fake.asked.clear()
            first = [asyncio.ensure_future(cluster.refresh([f"t{number}"])) for number in range(10)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            later = [asyncio.ensure_future(cluster.refresh(["late"])) for _ in range(10)]
            await asyncio.gather(*first, *later)
            assert fake.asked[0] == sorted(f"t{number}" for number in range(10))
            assert fake.asked[1:] == [["late"]]

    run(story())


def test_followed_topics_are_refreshed_by_age_and_on_request() -> None:
    async def story() -> None:
        fake = Fake()
        loop = this_loop()
        async with (
            fake.server,
            ClusterClient(
                fake.server.address, metadata_max_age_ms=NEVER_MS, retry_backoff_ms=1_000, clock=loop
            ) as cluster,
        ):

            async def settle() -> None:
                """Ask something else, on the same connection: what was asked before is answered."""
                for _ in range(2):
                    cluster.forget_coordinator("group", "g")
                    await cluster.to_coordinator("group", "g")

            async def asked_after(skipped_ms: float) -> list[Any]:
                await settle()
                fake.asked.clear()
                loop.skip(skipped_ms)
                await settle()
                return [each for each in fake.asked if each != "coordinator"]

            cluster.follow(["a", "b"])
            await until_async(lambda: ["a", "b"] in fake.asked, "they are asked for")
            assert await asked_after(NEVER_MS * 0.9) == []
            fake.asked.clear()
            loop.skip(NEVER_MS * 0.2)  # no request is under way that would time out
            await until_async(lambda: fake.asked, "they are old enough")
            assert fake.asked == [["a", "b"]]
            cluster.unfollow(["a"])
            for _ in range(100):
                cluster.refresh_soon()
            assert await asked_after(500) == [], "not more often than the backoff"
            loop.skip(1_000)
            await until_async(lambda: ["b"] in fake.asked, "it is asked for")
            assert await asked_after(2_000) == [], "once for a hundred wishes"
            cluster.follow_all()
            await cluster.refresh()
            assert fake.asked[-1] is None

    run(story(), loop_factory=SkippingLoop)


def test_a_topic_without_a_leader_is_asked_for_until_it_has_one() -> None:
    async def story() -> None:
        fake = Fake()

        def led_by(leader: int) -> MetadataResponse:
            answer = brokers((1, "127.0.0.1", fake.server.port))
            partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=3)
            answer.topics = [MetadataResponseTopic(name="a", partitions=[partition])]
            return answer

        def is_led() -> bool:
            found = cluster.view.leader_of("a", 0)
            return found is not None and found.leader == 1

        loop = this_loop()
        async with (
            fake.server,
            ClusterClient(fake.server.address, retry_backoff_ms=5, retry_backoff_max_ms=20, clock=loop) as cluster,
        ):
            fake.nodes = led_by(-1)
            cluster.follow(["a"])
            await until_async(lambda: len(fake.asked) >= 5, "the client asks by itself")
            fake.nodes = led_by(1)
            await until_async(is_led, "it has a leader")
            await cluster.refresh()
            fake.asked.clear()
            for number in range(3):
                loop.skip(1_000)
                await cluster.to_coordinator("group", f"g{number}")
            assert fake.asked == ["coordinator"] * 3

    run(story(), loop_factory=SkippingLoop)


def test_a_caller_that_waits_for_a_dropped_connection_gets_its_replacement() -> None:
    async def story() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        way, key = ConnectionOptions(), ConnectionKey(1, "main")
        async with Scripted(silent) as mute, Scripted(speaking(lambda header, message: None)) as other:
            links = ConnectionPool(way, SystemClock(), SeededRandom(1), 10, 100)
            address = Address("127.0.0.1", mute.port)
            waiting = asyncio.ensure_future(links.get(key, address))
            await until_async(lambda: mute.connections == 1, "the first is being opened")
            adopted = await open_connection(Address("127.0.0.1", other.port), way)
            links.adopt(key, address, adopted)
            assert await waiting is adopted
            links.keep_only({})
            waiting = asyncio.ensure_future(links.get(key, address))
            await until_async(lambda: mute.connections == 2, "another one is being opened")
            links.keep_only({})
            with pytest.raises(NotConnected, match="has left the cluster"):
                await waiting
            await links.close()

    run(story())


def test_a_coordinator_is_asked_for_once_until_it_is_forgotten() -> None:
    async def story() -> None:
        fake = Fake()
        fake.coordinator_errors = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        async with fake.server, ClusterClient(fake.server.address, retry_backoff_ms=10) as cluster:
            found = await asyncio.gather(*(cluster.to_coordinator("group", "g") for _ in range(5)))
            assert len(set(found)) == 1
            assert fake.asked.count("coordinator") == 2
            assert found[0] is not await cluster.to_any()
            await cluster.to_coordinator("group", "g")
            assert fake.asked.count("coordinator") == 2
            cluster.forget_coordinator("group", "g")
            await cluster.to_coordinator("group", "g")
            assert fake.asked.count("coordinator") == 3
            fake.coordinator_errors = [ErrorCode.GROUP_AUTHORIZATION_FAILED]
            with pytest.raises(PenstockError, match="group other"):
                await cluster.to_coordinator("group", "other")

    run(story())


def test_a_broker_restarted_at_its_address_is_found_again(tmp_path: Path) -> None:
    port = free_port()
    first = EmbeddedBroker(str(tmp_path), port=port).start()

    async def story() -> None:
        async with ClusterClient(first.address, retry_backoff_ms=20) as cluster:
            connection = await cluster.to_any()
            await asyncio.to_thread(first.stop)
            await connection.wait_closed(PATIENCE_MS)
            with pytest.raises(NotConnected, match="the broker closed the connection"):
                await connection.request(ApiKey.LIST_GROUPS, ListGroupsRequest(), timeout_ms=PATIENCE_MS)
            refreshing = asyncio.ensure_future(cluster.refresh())
            await until_async(lambda: cluster._updater._failure, "it failed")
            assert not refreshing.done()
            second = await asyncio.to_thread(EmbeddedBroker(str(tmp_path), port=port).start)
            try:
                assert set((await refreshing).nodes) == {0}
                assert not (await cluster.to(0)).closed
            finally:
                await asyncio.to_thread(second.stop)

    run(story())


def test_the_topics_that_an_old_broker_keeps_for_itself_are_known_as_internal() -> None:
    """Otherwise a consumer of all topics would read the offsets of groups, too."""

    async def story() -> None:
        def answer(header: RequestHeader, message: Any) -> Message:
            found = brokers((1, "127.0.0.1", server.port))
            found.topics = [MetadataResponseTopic(name=name) for name in ("__consumer_offsets", "views")]
            return found

        old = [ApiVersion(api_key=ApiKey.METADATA, min_version=0, max_version=0)]
        async with Scripted(speaking(answer, old)) as server:
            client = ClusterClient(server.address)
            await client.start()
            client.follow_all()
            view = await client.refresh()
            assert {name: topic.is_internal for name, topic in view.topics.items()} == {
                "__consumer_offsets": True,
                "views": False,
            }
            await client.close()

    run(story())


def test_a_broker_that_listens_before_it_is_in_its_own_metadata_is_asked_again() -> None:
    async def story() -> None:
        asked = 0

        def answer(header: RequestHeader, message: Any) -> Message:
            nonlocal asked
            asked += 1
            return brokers((1, "127.0.0.1", server.port)) if asked > 2 else brokers()

        async with Scripted(speaking(answer)) as server:
            client = ClusterClient(server.address, retry_backoff_ms=10)
            await client.start()
            assert list(client.view.nodes) == [1]
            await client.close()

    run(story())


def test_a_broker_that_never_is_in_its_own_metadata_is_given_up() -> None:
    async def story() -> None:
        async with Scripted(speaking(lambda header, message: brokers())) as server:
            client = ClusterClient(server.address, connect_timeout_ms=300, retry_backoff_ms=10)
            with pytest.raises(BootstrapError, match="does not know any broker yet"):
                await client.start()
            await client.close()

    run(story(), 10)


def test_when_all_known_brokers_are_gone_the_bootstrap_addresses_are_asked_again() -> None:
    async def story() -> None:
        where: dict[str, int] = {}
        seed = Scripted(speaking(lambda *_: brokers((where["id"], "127.0.0.1", where["port"]))))
        old, new = Fake(), Fake()
        async with seed, new.server:
            async with old.server:
                where.update(id=1, port=old.server.port)
                cluster = ClusterClient(seed.address, retry_backoff_ms=10)
                await cluster.start()
                connection = await cluster.to_any()
                assert connection.node == old.server.address
            where.update(id=2, port=new.server.port)
            connection.close()
            assert (await cluster.to_any()).node == new.server.address
            assert set(cluster.view.nodes) == {2}
            await cluster.close()

    run(story())


def test_behind_a_balancer_each_connection_may_reach_another_broker() -> None:
    """One static address, several brokers behind it, one of them dead: the client finds a live one."""

    async def story() -> None:
        one, two = Fake(), Fake()
        async with one.server, two.server:
            nodes = brokers((1, "127.0.0.1", one.server.port), (2, "127.0.0.1", two.server.port))
            one.nodes = two.nodes = nodes
            live = speaking(lambda header, _: ListGroupsResponse() if header.api.key is ApiKey.LIST_GROUPS else nodes)
            behind = [None, live, None]

            async def balance(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                chosen = behind[(balancer.connections - 1) % len(behind)]
                if chosen is not None:
                    await chosen(reader, writer)

            async with Scripted(balance) as balancer:
                cluster = ClusterClient(balancer.address, retry_backoff_ms=10)
                await cluster.start(timeout_ms=PATIENCE_MS)
                assert set(cluster.view.nodes) == {1, 2}
                assert (await cluster.to(1)).legacy_release is None
                assert {(await cluster.to(node)).node for node in (1, 2)} == {one.server.address, two.server.address}
                await cluster.close()

    run(story())


def test_callers_share_the_opening_of_a_connection_and_its_failure() -> None:
    async def story() -> None:
        reservation = PortReservation("127.0.0.1", 0)
        nodes = brokers((1, "127.0.0.1", 1), (2, "127.0.0.1", reservation.port))
        async with Scripted(speaking(lambda *_: nodes)) as one:
            nodes.brokers[0].port = one.port
            async with Scripted(speaking(lambda *_: nodes)) as seed, ClusterClient(seed.address) as cluster:
                before = one.connections
                found = await asyncio.gather(*(cluster.to(1, lane="x") for _ in range(20)))
                assert len(set(found)) == 1
                assert one.connections == before + 1
                failed = await asyncio.gather(*(cluster.to(2) for _ in range(5)), return_exceptions=True)
                for error in failed:
                    assert isinstance(error, NotConnected)
                    assert f"broker 2 (127.0.0.1:{reservation.port})" in str(error)
                    assert "advertised.listeners" in error.hint
                    assert seed.address in error.hint
        reservation.release()

    run(story())


def test_a_cancelled_caller_does_not_cancel_the_opening(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            hasty = asyncio.ensure_future(cluster.to(0, lane="y"))
            patient = asyncio.ensure_future(cluster.to(0, lane="y"))
            await asyncio.sleep(0)
            hasty.cancel()
            assert not (await patient).closed
            with pytest.raises(asyncio.CancelledError):
                await hasty

    run(story())


def test_an_unknown_node_is_looked_up_then_rejected(broker: EmbeddedBroker) -> None:
    async def story() -> None:
        async with ClusterClient(broker.address) as cluster:
            with pytest.raises(NotConnected, match="broker 77"):
                await cluster.to(77)

    run(story())


def test_a_cluster_that_is_gone_is_an_error_within_the_time_out() -> None:
    async def story() -> None:
        fake = Fake()
        async with fake.server:
            cluster = ClusterClient(fake.server.address, request_timeout_ms=300, retry_backoff_ms=20)
            await cluster.start()
            (await cluster.to_any()).close()
        with pytest.raises(BootstrapError, match="refused"):
            await cluster.refresh()
        await cluster.close()

    run(story())


@pytest.mark.parametrize(
    "option", ["request_timeout_ms", "connect_timeout_ms", "metadata_max_age_ms", "retry_backoff_ms"]
)
@pytest.mark.parametrize("value", [-1, "1", True, 1.5])
def test_an_invalid_option_is_rejected_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        ClusterClient("localhost", **{option: value})


@pytest.mark.parametrize("option", ["request_timeout_ms", "connect_timeout_ms", "metadata_max_age_ms"])
def test_a_time_of_zero_is_rejected(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is 0; it must be 1 or more"):
        ClusterClient("localhost", **{option: 0})  # type: ignore[arg-type]


def test_ssl_must_be_a_context() -> None:
    with pytest.raises(ConfigError, match=r"ssl is True"):
        ClusterClient("localhost", ssl=True)  # type: ignore[arg-type]
