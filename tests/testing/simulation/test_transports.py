"""asyncio transports over simulated sockets."""

from __future__ import annotations

import asyncio

from tests.testing.simulation.simulation_stories import Stage


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Caller(asyncio.BufferedProtocol):
    """Keeps what comes; may be told not to read."""

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


def test_a_stream_arrives_whole_and_in_order_however_it_is_cut_up() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    sent = bytes(range(256)) * 40
    for start in range(0, len(sent), 100):
        caller.transport.write(sent[start : start + 100])
    stage.pass_time(1)
    assert caller.received == sent


def test_a_writer_is_paused_when_its_peer_does_not_read() -> None:
    stage, caller = Stage(), Caller()
    connected(stage, caller)
    stage.right.pause()
    caller.transport.write(bytes(1_000_000))
    stage.pass_time(1)
    assert caller.pauses == 1
    assert caller.transport.get_write_buffer_size() > 500_000
    stage.right.resume()
    stage.pass_time(5)
    assert len(caller.received) == 1_000_000
