"""Shared by the tests of the socket server: a recording handler, peers, and waiting for a condition."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from struct import pack
from typing import Any, NamedTuple

from tests.timeouts import PATIENCE_S

from penstock.runtime.clock import Clock, SystemClock
from penstock.runtime.files import File
from penstock.runtime.network import Connection, Limits, Reply
from penstock.runtime.socket_connection import SocketConnection
from penstock.runtime.socket_server import SocketServer


class Region(NamedTuple):
    file: File
    position: int
    size: int


def framed(content: bytes | bytearray) -> bytes:
    return pack(">i", len(content)) + content


def echo(connection: Connection, frame: bytearray) -> None:
    connection.reply().send([framed(frame)])


class Recorder:
    """A handler that records its calls and runs `on_frame`."""

    def __init__(self, on_frame: Callable[[Connection, bytearray], None] = echo) -> None:
        self.on_frame = on_frame
        self.connections: list[Connection] = []
        self.frames: list[bytes] = []
        self.closings: list[str] = []

    def connected(self, connection: Connection) -> None:
        self.connections.append(connection)

    def frame(self, connection: Connection, frame: bytearray) -> None:
        self.frames.append(bytes(frame))
        self.on_frame(connection, frame)

    def closed(self, connection: Connection, reason: str) -> None:
        self.closings.append(reason)


class Later(Recorder):
    """A handler that only reserves; the story completes the replies."""

    def __init__(self) -> None:
        super().__init__(self._reserve)
        self.replies: list[Reply] = []

    def _reserve(self, connection: Connection, frame: bytearray) -> None:
        self.replies.append(connection.reply())


class Scene:
    """A server that listens, and the peers that came to it."""

    def __init__(self, server: SocketServer, port: int) -> None:
        self.server = server
        self.port = port
        self.peers: list[Peer] = []

    async def peer(self, receive_buffer_bytes: int = 0) -> Peer:
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        peer = Peer(sock)
        self.peers.append(peer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    async def received(self, count: int) -> None:
        """Wait until the server has received this many bytes in total."""
        await until(lambda: self.server.counters.bytes_in == count)

    def connection(self) -> SocketConnection:
        """The oldest that is open."""
        return self.server.connections[0]


class Peer:
    """The other end of a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    @property
    def address(self) -> str:
        host, port = self.sock.getsockname()[:2]
        return f"{host}:{port}"

    async def send(self, *contents: bytes) -> None:
        """Each as a frame."""
        await self.send_raw(b"".join(framed(content) for content in contents))

    async def send_raw(self, data: bytes) -> None:
        await asyncio.wait_for(self._loop.sock_sendall(self.sock, data), PATIENCE_S)

    async def receive_raw(self, size: int) -> bytes:
        """This many bytes; fewer if the connection ends."""
        data = bytearray()
        while len(data) < size:
            try:
                part = await asyncio.wait_for(
                    self._loop.sock_recv(self.sock, min(size - len(data), 1 << 20)), PATIENCE_S
                )
            except ConnectionError:
                break
            if not part:
                break
            data += part
        return bytes(data)

    async def receive(self) -> bytes:
        """The content of a frame."""
        prefix = await self.receive_raw(4)
        if len(prefix) < 4:
            raise EOFError(f"the connection ended after {prefix!r}")
        return await self.receive_raw(int.from_bytes(prefix, "big"))

    async def ask(self, content: bytes) -> bytes:
        await self.send(content)
        return await self.receive()

    async def ended(self) -> bool:
        """Wait for what comes next: whether it is the end."""
        return await self.receive_raw(1) == b""

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """Close with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.sock.close()


@asynccontextmanager
async def serving(handler: Recorder, limits: Limits | None = None, clock: Clock | None = None) -> AsyncIterator[Scene]:
    server = SocketServer(asyncio.get_running_loop(), handler, limits or Limits(), clock or SystemClock())
    _, port = server.listen("127.0.0.1", 0)
    scene = Scene(server, port)
    try:
        yield scene
    finally:
        await server.close(0)
        for peer in scene.peers:
            peer.close()


async def until(fact: Callable[[], bool]) -> None:
    """Let the loop turn until it is so."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + PATIENCE_S
    while not fact():
        if loop.time() > end_s:
            raise TimeoutError("what was waited for did not come")
        await asyncio.sleep(0)


def play(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On the standard loop, and on uvloop where it is installed."""
    factories: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop]
    if importlib.util.find_spec("uvloop"):
        factories.append(importlib.import_module("uvloop").new_event_loop)
    for factory in factories:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(story())


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))
