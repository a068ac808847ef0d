"""A server of frames on the machine's sockets, directly on the event loop.

A peer that exceeds a limit (connections, time, bytes) loses only its own connection. Log lines that peers can
provoke appear at most once a second. When the process runs out of descriptors, it closes
files that are not in use and accepting pauses; waiting peers stay in the listener's backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from penstock.runtime import files
from penstock.runtime.clock import Clock
from penstock.runtime.network import (
    UNLIMITED,
    Counters,
    Handler,
    Limits,
    RateLimitedLogger,
    ServerClosed,
    TlsContexts,
    address_text,
    bind_socket,
)
from penstock.runtime.socket_connection import BY_SERVER, IDLE, Shared, SocketConnection
from penstock.runtime.socket_io import BUFFER_BYTES
from penstock.runtime.socket_limits import IdleTimingWheel
from penstock.runtime.socket_tls import TlsConnection

logger = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 64
_ACCEPT_PAUSE_MS: Final = 100
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_MAPPED_IPV4: Final = "::ffff:"


class SocketServer:
    """Runs on the thread of `loop`. `open_listener` opens the listening sockets; `bind_socket` by default."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: Handler,
        limits: Limits,
        clock: Clock,
        *,
        open_listener: Callable[[str, int, Limits], socket.socket] | None = None,
    ) -> None:
        self._open_listener = open_listener or bind_socket
        self._loop = loop
        self._limits = limits
        self._log_limited = RateLimitedLogger(clock, logger)
        self._wheel: IdleTimingWheel[SocketConnection] = IdleTimingWheel(clock, limits.idle_ms)
        buffer = memoryview(bytearray(BUFFER_BYTES))
        self._shared = Shared(loop, handler, limits, self._wheel, buffer, self._log_limited, self._forget, clock)
        self._listeners: dict[int, socket.socket] = {}
        self._names: dict[int, tuple[str, TlsContexts | None]] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._accepted_at_s: deque[float] = deque()  # connections of the last second, if their rate is limited
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
        """Bytes of requests being received or unanswered."""
        return self._shared.memory.held

    @property
    def connections(self) -> list[SocketConnection]:
        """The open connections."""
        return list(self._connections.values())

    def set_limits(self, limits: Limits) -> None:
        self._limits = limits

    def listen(self, host: str, port: int, listener: str = "", tls: TlsContexts | None = None) -> tuple[str, int]:
        if self._closed:
            raise ServerClosed(f"cannot listen on {address_text(host, port)}: the server is closed")
        opened = self._open_listener(host, port, self._limits)
        self._listeners[opened.fileno()] = opened
        self._names[opened.fileno()] = (listener, tls)
        self._accept_on(opened)
        if self._idle_timer is None and self._wheel.tick_ms:
            self._wait_a_tick()
        bound = opened.getsockname()
        return bound[0], bound[1]

    # --- accept

    def _accept_on(self, listener: socket.socket) -> None:
        descriptor = listener.fileno()
        self._timers.pop(descriptor, None)
        self._loop.add_reader(descriptor, partial(self._on_acceptable, listener))

    def _on_acceptable(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            wait_s = self._next_accept_s()
            if wait_s > 0:
                self._stop_accepting(listener, wait_s)
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES:
                    self._pause_accepting(listener, error)
                    return
                # The peer closed the connection before it was accepted.
                logger.debug("connection not accepted: error=%s", error)
                continue
            self._accepted_at_s.append(self._loop.time())
            self._admit(sock, address, *self._names[listener.fileno()])
            if self._closed:
                return

    def _pause_accepting(self, listener: socket.socket, error: OSError) -> None:
        self._log_limited("accept", f"cannot accept connections: retry_in_ms={_ACCEPT_PAUSE_MS} error={error}")
        if files.relief is not None and error.errno in (errno.EMFILE, errno.ENFILE):
            files.relief()
        self._stop_accepting(listener, _ACCEPT_PAUSE_MS / 1000)

    def _stop_accepting(self, listener: socket.socket, for_s: float) -> None:
        descriptor = listener.fileno()
        self._loop.remove_reader(descriptor)
        self._timers[descriptor] = self._loop.call_later(for_s, self._accept_on, listener)

    def _next_accept_s(self) -> float:
        """How long the next connection has to wait, so that no more than `max_connections_per_s` are accepted."""
        most, accepted = self._limits.max_connections_per_s, self._accepted_at_s
        if most >= UNLIMITED:
            accepted.clear()
            return 0.0
        now_s = self._loop.time()
        while accepted and accepted[0] <= now_s - 1:
            accepted.popleft()
        return accepted[-most] + 1 - now_s if len(accepted) >= most else 0.0

    def _admit(self, sock: socket.socket, address: Any, listener: str, tls: TlsContexts | None) -> None:
        host = address[0].removeprefix(_MAPPED_IPV4) if "." in address[0] else address[0]
        peer = address_text(host, address[1])
        limits, counters = self._limits, self._shared.counters
        if len(self._connections) >= limits.max_connections:
            reason = f"the limit of {limits.max_connections} connections is reached"
        elif self._per_address[host] >= (
            most := limits.max_connections_overrides.get(host, limits.max_connections_per_address)
        ):
            reason = f"the limit of {most} connections from this address is reached"
        else:
            reason = ""
        if reason:
            counters.rejected += 1
            sock.close()
            self._log_limited("rejection", f"connection rejected: peer={peer} reason={reason}")
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if limits.send_buffer_bytes >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        except OSError as error:
            logger.debug("connection lost while it was accepted: peer=%s error=%s", peer, error)
            sock.close()
            return
        self._last_id += 1
        if tls is None:
            connection = SocketConnection(self._shared, sock, self._last_id, host, peer, listener)
        else:
            connection = TlsConnection(self._shared, sock, self._last_id, host, peer, listener, tls)
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

    # --- idle connections

    def _wait_a_tick(self) -> None:
        # The loop may call slightly early, and the wheel would not turn.
        self._idle_timer = self._loop.call_later((self._wheel.tick_ms + 1) / 1000, self._on_idle_timer)

    def _on_idle_timer(self) -> None:
        self._wait_a_tick()
        self.close_idle()

    def close_idle(self) -> int:
        """Close the connections that were idle for too long; how many.

        The loop calls it 16 times per `Limits.idle_ms`. A connection is idle after 17 calls, each at least a sixteenth
        of that time after the one before.
        """
        due = self._wheel.turn()
        for connection in due:
            self._shared.counters.idle_closed += 1
            connection.close(IDLE)
        return len(due)

    # --- close

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
                logger.warning("connections closed with pending replies: count=%d", len(self._connections))
            for connection in self.connections:
                connection.close(BY_SERVER)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None
            self._shared.memory.close()
            self._shared.pages.close()
        # The handler is called for the last connections in this turn of the loop.
        await asyncio.sleep(0)
