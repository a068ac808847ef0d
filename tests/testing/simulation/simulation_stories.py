"""A small vocabulary for stories about simulated processes."""

from __future__ import annotations

import asyncio

from penstock.testing.simulation.cluster import SimulatedHost
from penstock.testing.simulation.network import SimulatedNetwork
from penstock.testing.simulation.scheduler import Scheduler


class Stage:
    """A network with two machines."""

    def __init__(self, seed: int = 0, *, give_up_s: float = 20.0) -> None:
        self.scheduler = Scheduler(seed)
        self.network = SimulatedNetwork(self.scheduler, seed, give_up_s=give_up_s)
        self.left = SimulatedHost(self.scheduler, self.network, "left", "10.0.0.1", seed)
        self.right = SimulatedHost(self.scheduler, self.network, "right", "10.0.0.2", seed)

    def pass_time(self, seconds: float) -> None:
        self.scheduler.run_until(limit_s=self.scheduler.now_s + seconds)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Caller(asyncio.BufferedProtocol):
    """Keeps what comes; can be set not to read."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.buffer = bytearray(1000)
        self.lost: list[Exception | None] = []
        self.pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def pause_writing(self) -> None:
        self.pauses += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


def connected(stage: Stage, caller: Caller) -> None:
    stage.right.loop.run_until_complete(stage.right.loop.create_server(Echo, "", 7), limit_s=1)
    stage.left.loop.run_until_complete(
        stage.left.loop.create_connection(lambda: caller, stage.right.address, 7), limit_s=5
    )
