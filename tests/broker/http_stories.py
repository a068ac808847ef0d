"""Words for stories about the HTTP server: a site, and peers that write any bytes and read answers strictly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.timeouts import PATIENCE_S

from penstock.broker.http import Handler, HttpLimits, HttpRequest, HttpServer, Reply
from penstock.runtime.clock import ManualClock


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Peer:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, head_only: bool = False) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head[:-4].split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            version, status, _ = line.split(" ", 2)
            assert version == "HTTP/1.1"
            assert len(headers) == len(fields)
            return Answer(int(status), headers, b"" if head_only else await self._body(headers))

    async def ask(self, target: str, *headers: str, method: str = "GET", version: str = "1.1") -> Answer:
        lines = [f"{method} {target} HTTP/{version}", "Host: localhost", *headers]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        return await self.answer(head_only=method == "HEAD")

    async def ended(self) -> bool:
        """Whether the server has closed, with nothing more to read."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(1) == b""
            except ConnectionError:
                return True

    async def leave(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return await self.reader.read()
        parts: list[bytes] = []
        while True:
            size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
            part = await self.reader.readexactly(size + 2)
            assert part[-2:] == b"\r\n"
            if not size:
                return b"".join(parts)
            parts.append(part[:-2])


class Site:
    """A server, and the peers that were let to it."""

    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._peers.append(peer)
        return peer

    async def leave(self) -> None:
        for peer in self._peers:
            await peer.leave()


@asynccontextmanager
async def site(routes: Mapping[str, Handler], limits: HttpLimits | None = None) -> AsyncIterator[Site]:
    server = HttpServer(routes, limits=limits, clock=ManualClock(784_111_777_000))
    found = Site(server, await server.listen("127.0.0.1", 0))
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield found
    finally:
        await found.leave()
        await server.close()
        assert complaints == []
        assert server.connections == 0


def says(body: bytes) -> Handler:
    async def handle(request: HttpRequest) -> Reply:
        return Reply(200, "text/plain", body)

    return handle


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await story()

    asyncio.run(bounded())
