"""A server of frames on the machine's sockets, directly on the event loop.

Noun: listeners, and the connections that came in by them, within limits.

Rule: a peer that asks for too much (connections, time, bytes) loses its own connection, and nobody else's. What could
be repeated by a peer at will is logged at most once a second. When the process has no descriptors left, files
that are not in use are closed and accepting pauses: the waiting peers stay in the listener's backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock.runtime import posix_files
from penstock.runtime.clock import Clock
from penstock.runtime.idle_wheel import IdleWheel
from penstock.runtime.network import AddressInUse, CannotListen, Complaints, Counters, Handler, Limits, ServerClosed
from penstock.runtime.socket_connection import BY_SERVER, IDLE, Shared, SocketConnection
from penstock.runtime.socket_input import BUFFER_BYTES

logger = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 64
_ACCEPT_PAUSE_MS: Final = 100
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_MAPPED_IPV4: Final = "::ffff:"


class SocketServer:
    """All of it on the thread of `loop`. `open_listener` opens the listening sockets; the machine's own by default."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        limits: Limits,
        clock: Clock,
        *,
        open_listener: Callable[[str, int, Limits], socket.socket] | None = None,
    ) -> None:
        self._open_listener = open_listener or _listener
        self._loop = loop
        self._limits = limits
        self._complain = Complaints(clock, logger)
        self._wheel: IdleWheel[SocketConnection] = IdleWheel(clock, limits.idle_ms)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        self._shared = Shared(loop, handler, limits, self._wheel, buffer, self._complain, self._forget, clock)
        self._listeners: dict[int, socket.socket] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._connections: dict[int, SocketConnection] = {}
        self._per_address: Counter[str] = Counter()
        self._last_id = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._emptied: asyncio.Future[None] | None = None

    @property
    def counters(self) -> Counters:
        return self._shared.counters

    @property
    def request_bytes(self) -> int:
        """Bytes of requests that are being received or not answered."""
        return self._shared.memory.held

    @property
    def connections(self) -> list[SocketConnection]:
        """Those that are open now."""
        return list(self._connections.values())

    def listen(self, host: str, port: int) -> tuple[str, int]:
        if self._closed:
            raise ServerClosed(f"a closed server cannot listen on {_address_text(host, port)}")
        listener = self._open_listener(host, port, self._limits)
        self._listeners[listener.fileno()] = listener
        self._accept_on(listener)
        if self._idle_timer is None and self._wheel.tick_ms:
            self._wait_a_tick()
        bound = listener.getsockname()
        return bound[0], bound[1]

    # Accepting

    def _accept_on(self, listener: socket.socket) -> None:
        descriptor = listener.fileno()
        self._timers.pop(descriptor, None)
        self._loop.add_reader(descriptor, partial(self._on_acceptable, listener))

    def _on_acceptable(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(listener, error)
                    return
                # The peer was gone before it was accepted.
                logger.debug("a connection could not be accepted: %s", error)
                continue
            self._admit(sock, address)
            if self._closed:
                return

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        self._complain("accept", f"connections cannot be accepted, next try in {_ACCEPT_PAUSE_MS} ms: {error}")
        if posix_files.relief is not None and error.errno in (errno.EMFILE, errno.ENFILE):
            posix_files.relief()
        descriptor = listener.fileno()
        self._loop.remove_reader(descriptor)
        self._timers[descriptor] = self._loop.call_later(_ACCEPT_PAUSE_MS / 1000, self._accept_on, listener)

    def _admit(self, sock: socket.socket, address: Any) -> None:
        host = address[0].removeprefix(_MAPPED_IPV4) if "." in address[0] else address[0]
        peer = _address_text(host, address[1])
        limits, counters = self._limits, self._shared.counters
        if len(self._connections) >= limits.max_connections:
            refusal = f"{limits.max_connections} connections are open"
        elif self._per_address[host] >= limits.max_connections_per_address:
            refusal = f"{limits.max_connections_per_address} connections are open from {host}"
        else:
            refusal = ""
        if refusal:
            counters.rejected += 1
            sock.close()
            self._complain("refusal", f"a connection from {peer} is refused: {refusal}, as many as are allowed")
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if limits.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        except OSError as error:
            logger.debug("a connection from %s was gone as it came: %s", peer, error)
            sock.close()
            return
        self._last_id += 1
        connection = SocketConnection(self._shared, sock, self._last_id, host, peer)
        self._connections[connection.id] = connection
        self._per_address[host] += 1
        counters.accepted += 1
        counters.connections += 1
        self._wheel.add(connection)
        connection.start()

    def _forget(self, connection: SocketConnection) -> None:
        del self._connections[connection.id]
        self._shared.counters.connections -= 1
        self._wheel.remove(connection)
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]
        if not self._connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # Idleness

    def _wait_a_tick(self) -> None:
        # A loop may call a little early, and the wheel would not turn.
        self._idle_timer = self._loop.call_later((self._wheel.tick_ms + 1) / 1000, self._on_idle_timer)

    def _on_idle_timer(self) -> None:
        self._wait_a_tick()
        self.close_idle()

    def close_idle(self) -> int:
        """Close the connections that have been idle for too long; how many.

        The loop calls it sixteen times in `Limits.idle_ms`. To be seen to be idle, a connection needs seventeen calls,
        each a sixteenth of that time or more after the one before.
        """
        due = self._wheel.turn()
        for connection in due:
            self._shared.counters.idle_closed += 1
            connection.close(IDLE)
        return len(due)

    # The end

    async def close(self, timeout_ms: int) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for descriptor, listener in self._listeners.items():
            self._loop.remove_reader(descriptor)
            listener.close()
        self._listeners.clear()
        try:
            for connection in self.connections:
                connection.finish()
            if self._connections:
                if self._emptied is None:
                    self._emptied = self._loop.create_future()
                await asyncio.wait({self._emptied}, timeout=max(0, timeout_ms) / 1000)
        finally:
            if self._connections:
                logger.warning("%d connections are closed with answers owed", len(self._connections))
            for connection in self.connections:
                connection.close(BY_SERVER)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None
            self._shared.memory.close()
        # The handler hears of the last connections in this turn of the loop.
        await asyncio.sleep(0)


def _address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"


def _listener(host: str, port: int, limits: Limits) -> socket.socket:
    """A socket that listens at the first of the host's addresses that this machine has; IPv4 before IPv6."""
    text = _address_text(host, port)
    if not 0 <= port <= 65535:
        raise CannotListen(text, "a port is a number from 0 to 65535")
    candidates: list[tuple[int, Any]]
    if not host:
        candidates = [(socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("", port))]
    else:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except (OSError, UnicodeError) as error:
            raise CannotListen(text, str(error)) from error
        candidates = [(family, address) for family, _, _, _, address in found]
        candidates.sort(key=lambda candidate: candidate[0] != socket.AF_INET)
    problem: OSError | None = None
    for family, address in candidates:
        try:
            return _bound(family, address, limits, dual_stack=not host)
        except OSError as error:
            problem = error
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(text, "the address is in use") from error
    raise CannotListen(text, str(problem or "the host has no address")) from problem


def _bound(family: int, address: Any, limits: Limits, *, dual_stack: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        if limits.receive_buffer_bytes >= 0:
            # Before listening: accepted sockets inherit it, and the window is agreed on at the start.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(limits.backlog)
    except OSError:
        listener.close()
        raise
    return listener
