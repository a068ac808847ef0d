"""The HTTP server of an instance: uvicorn on the instance's own loop, with limits on slow and idle peers.

uvicorn limits what a request head may hold and how long an idle connection is kept after a response. What it does not
limit is looked after here: a peer that sends nothing, or its head byte by byte, and one that never reads the end of a
response. It also waits for TLS peers to confirm that a connection is closed, which idle ones never do: when the server
is closed, connections without a request are given a moment, the others a short grace, and then all are aborted.
uvicorn does not know a TLS connection before its handshake is over, so these are accepted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.registry.errors import RegistryUnavailable
from penstock.registry.settings import RegistrySettings

_HEAD_BYTES: Final = 16 * 1024
_HEAD_S: Final = 10.0
_KEEP_ALIVE_S: Final = 60
_LINGER_S: Final = 10.0
_LOOK_S: Final = 1.0
_GRACE_S: Final = 2
"""For requests that are under way when the server is closed."""
_CLOSE_S: Final = 0.2
"""For a peer without a request to take the last bytes of a response, and the end of TLS."""
_ABORT_S: Final = 1.0
_BACKLOG: Final = 128
_ACCEPT_RETRY_S: Final = 0.1

_log = logging.getLogger(__name__)


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """A socket for every address of `host` ("" is all), with one port. RegistryUnavailable."""
    found: list[socket.socket] = []
    bound = port
    try:
        addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            try:
                opened = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # no IPv6 on this machine
            found.append(opened)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                opened.bind((address[0], bound))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) or len(addresses) == 1:
                    raise
                found.pop().close()
                continue
            opened.listen(_BACKLOG)
            bound = opened.getsockname()[1]
    except (OSError, OverflowError, UnicodeError) as error:
        for each in found:
            each.close()
        reason = "another process listens there" if getattr(error, "errno", 0) == errno.EADDRINUSE else str(error)
        raise RegistryUnavailable(
            f"the schema registry cannot listen on {host or '*'}:{port}: {reason}; choose another port"
        ) from error
    return found


class TlsAcceptor:
    """Accepts TLS connections, and knows those whose handshake is under way: their number and time are limited."""

    def __init__(self, context: SSLContext, protocol: Callable[[], asyncio.Protocol], most: int) -> None:
        self._context = context
        self._protocol = protocol
        self._most = most
        self.handshakes: set[asyncio.Task[None]] = set()

    async def run(self, sockets: Sequence[socket.socket]) -> None:
        """Accept until it is cancelled. No handshake is under way after that."""
        accepting = [asyncio.create_task(self._accept(each)) for each in sockets]
        try:
            await asyncio.gather(*accepting)
        finally:
            left = [*accepting, *self.handshakes]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("connection not accepted: error=%s", error)
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            if len(self.handshakes) >= self._most:
                connection.close()
                continue
            task = asyncio.create_task(self._secure(connection))
            self.handshakes.add(task)
            task.add_done_callback(self.handshakes.discard)

    async def _secure(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # The transport closes the connection, also if this is cancelled.
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=_HEAD_S
            )


class HttpServer:
    """Serves an application on sockets until it is closed."""

    def __init__(self, application: ASGIApp, settings: RegistrySettings) -> None:
        config = uvicorn.Config(
            application,
            http="h11",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=settings.connections,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        config.load()
        server = self._server = uvicorn.Server(config)
        self._tls: TlsAcceptor | None = None
        if config.ssl is not None:
            self._tls = TlsAcceptor(
                config.ssl,
                lambda: H11Protocol(config=config, server_state=server.server_state, app_state={}),
                settings.connections,
            )
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        self._since: dict[Any, tuple[str, float]] = {}
        self._closing = asyncio.Event()

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Serve until `close`. No connection is left open after that."""
        looking, closing = asyncio.create_task(self._look()), asyncio.create_task(self._close_idle())
        accepting = None if self._tls is None else asyncio.create_task(self._accept_tls(self._tls, sockets))
        try:
            await self._server.serve(sockets=sockets if accepting is None else [])
        finally:
            looking.cancel()
            closing.cancel()
            if accepting is not None:
                accepting.cancel()
                await asyncio.gather(accepting, return_exceptions=True)
            await self._abort_all()
            for each in sockets:
                each.close()

    @property
    def is_serving(self) -> bool:
        return self._server.started

    def close(self) -> None:
        self._server.should_exit = True
        self._closing.set()

    async def _accept_tls(self, acceptor: TlsAcceptor, sockets: Sequence[socket.socket]) -> None:
        running = asyncio.create_task(acceptor.run(sockets))
        try:
            await self._closing.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _close_idle(self) -> None:
        """Once the server is closed, close connections without a request, and abort those that stay."""
        await self._closing.wait()
        closed: dict[Any, float] = {}
        loop = asyncio.get_running_loop()
        while True:
            for connection in list(self._server.server_state.connections):
                state = _state_of(connection)
                if state in ("head", "idle"):
                    connection.transport.close()
                if state in ("new", "request"):
                    continue
                if loop.time() - closed.setdefault(connection, loop.time()) > _CLOSE_S:
                    connection.transport.abort()
            await asyncio.sleep(_CLOSE_S / 4)

    async def _abort_all(self) -> None:
        """What is left after the grace: a transport must not outlive the loop."""
        left, deadline_s = self._server.server_state, asyncio.get_running_loop().time() + _ABORT_S
        while (left.connections or left.tasks) and asyncio.get_running_loop().time() < deadline_s:
            for connection in list(left.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await asyncio.sleep(0.005)

    async def _look(self) -> None:
        """Cut off peers that stay in one state for too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            now_s, seen = loop.time(), {}
            for connection in list(self._server.server_state.connections):
                state = _state_of(connection)
                known = self._since.get(connection)
                since_s = known[1] if known is not None and known[0] == state else now_s
                seen[connection] = state, since_s
                if state == "head" and now_s - since_s > _HEAD_S:
                    connection.transport.close()
                elif state == "closing" and now_s - since_s > _LINGER_S:
                    connection.transport.abort()
            self._since = seen


def _state_of(connection: Any) -> str:
    """`head` before the first request and between a part of a head and the rest of it."""
    if connection.transport is None:
        return "new"
    if connection.transport.is_closing():
        return "closing"
    cycle = connection.cycle
    if cycle is None:
        return "head"
    if not cycle.response_complete:
        return "request"
    # uvicorn's own timer runs while nothing of the next request has arrived.
    has_begun = connection.timeout_keep_alive_task is None or connection.conn.trailing_data[0]
    return "head" if has_begun else "idle"
