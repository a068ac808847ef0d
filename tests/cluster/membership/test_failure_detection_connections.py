"""Failure detection by connections: a dead process is not a silent one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.timeouts import PATIENCE_S

from penstock.cluster.image import ClusterImage
from penstock.cluster.membership.failure_detection import ConnectionFailureDetector
from penstock.cluster.tree.layout import BrokerRegistration, Endpoint


class _Membership:
    """What a detector needs of the broker's membership."""

    broker_id = 1

    def __init__(self) -> None:
        self.image = ClusterImage().with_controller(1, 1)
        self.listeners: list[Callable[[ClusterImage, ClusterImage], None]] = []
        self.dead: list[tuple[int, int]] = []
        self.heard = asyncio.Event()

    def listen(self, listener: Callable[[ClusterImage, ClusterImage], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def show(self, *brokers: tuple[int, int], started_ms: int = 1) -> None:
        old, self.image = self.image, ClusterImage().with_controller(1, 1)
        for broker_id, epoch in brokers:
            registration = BrokerRegistration(broker_id, (), timestamp_ms=started_ms, epoch=epoch)
            self.image = self.image.with_broker(registration)
        for listener in self.listeners:
            listener(old, self.image)

    async def declare_dead(self, broker_id: int, epoch: int) -> None:
        self.dead.append((broker_id, epoch))
        self.heard.set()

    async def step_down(self, rest_s: float) -> None:
        raise AssertionError("only probes make a controller step down")


def _endpoint(port: int) -> Endpoint:
    return Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)


class _Peer:
    """Listens, and keeps what it accepted."""

    def __init__(self) -> None:
        self.accepted: list[asyncio.StreamWriter] = []
        self.connected = asyncio.Event()

    async def start(self, port: int = 0) -> int:
        async def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.accepted.append(writer)
            self.connected.set()

        self._server = await asyncio.start_server(take, "127.0.0.1", port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def die(self) -> None:
        self._server.close()
        self.drop()

    def drop(self) -> None:
        for writer in self.accepted:
            writer.transport.abort()
        self.accepted.clear()
        self.connected.clear()


def test_broker_that_closes_and_refuses_connections_is_dead_and_one_that_only_closes_is_not() -> None:
    async def story() -> None:
        membership, peer = _Membership(), _Peer()
        port = await peer.start()
        detector = ConnectionFailureDetector(membership, lambda _: _endpoint(port), 1000)
        detector.start()
        membership.show((1, 5), (2, 7))
        async with asyncio.timeout(PATIENCE_S):
            await peer.connected.wait()
            peer.drop()
            await peer.connected.wait()
            assert membership.dead == []
            peer.die()
            await membership.heard.wait()
        assert membership.dead == [(2, 7)]
        await detector.close()

    asyncio.run(story())


def test_broker_that_registers_again_is_not_declared_dead_for_a_while() -> None:
    async def story() -> None:
        membership, peer = _Membership(), _Peer()
        port = await peer.start()
        peer.die()
        detector = ConnectionFailureDetector(membership, lambda _: _endpoint(port), 60_000)
        detector.start()
        membership.show((1, 5), (2, 7))
        async with asyncio.timeout(PATIENCE_S):
            await membership.heard.wait()
            membership.show((1, 5), (2, 8))
            (task,) = [task for _, task in detector._watches.values()]
            await task
        assert membership.dead == [(2, 7)]
        await detector.close()

    asyncio.run(story())


def test_broker_that_is_killed_twice_is_declared_dead_at_once_both_times() -> None:
    """A leader's second death in a row cost the time of its session: 6 s instead of one or two."""

    async def story() -> None:
        membership, peer = _Membership(), _Peer()
        port = await peer.start()
        peer.die()
        detector = ConnectionFailureDetector(membership, lambda _: _endpoint(port), 60_000)
        detector.start()
        membership.show((1, 5), (2, 7), started_ms=100)
        async with asyncio.timeout(PATIENCE_S):
            await membership.heard.wait()
            membership.heard.clear()
            membership.show((1, 5), started_ms=100)
            membership.show((1, 5), (2, 8), started_ms=200)
            await membership.heard.wait()
        assert membership.dead == [(2, 7), (2, 8)]
        await detector.close()

    asyncio.run(story())


def test_other_brokers_watch_only_the_controller() -> None:
    async def story() -> None:
        membership = _Membership()
        detector = ConnectionFailureDetector(membership, lambda _: None, 1000)
        detector.start()
        image = ClusterImage().with_controller(3, 1)
        for broker_id in (1, 2, 3):
            image = image.with_broker(BrokerRegistration(broker_id, (), epoch=broker_id))
        for listener in membership.listeners:
            listener(membership.image, image)
        assert set(detector._watches) == {3}
        await detector.close()

    asyncio.run(story())
