"""Runs the console: on a TCP port, or for a broker on a Unix-domain socket, until it is idle.

uvicorn serves. It has no limit for a request whose head never ends, so connections get one here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.console.accounts import ConsoleOptions

_log = logging.getLogger(__name__)

HEAD_S: Final = 10.0
_CONNECTIONS: Final = 200
_HEAD_BYTES: Final = 32 * 1024
_IDLE_CHECK_S: Final = 5.0


class _Protocol(H11Protocol):
    """HTTP/1.1, with a time for the head of each request."""

    _head_timer: asyncio.TimerHandle | None = None
    last_request_at = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._stop_expecting()
            _Protocol.last_request_at = time.monotonic()
        elif self._head_timer is None and self.conn.their_state is h11.IDLE:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._too_slow)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.abort()


class ConsoleServer:
    """A console that listens; `serve` returns when it was stopped or idle for too long."""

    def __init__(self, options: ConsoleOptions, *, idle_s: float = 0.0) -> None:
        from penstock.console.app import Console

        self.console = Console(options)
        self._idle_s = idle_s
        config = uvicorn.Config(
            self.console.app, http=_Protocol, ws="none", lifespan="on", log_config=None, access_log=False,
            server_header=False, proxy_headers=False, limit_concurrency=_CONNECTIONS, timeout_keep_alive=30,
            h11_max_incomplete_event_size=_HEAD_BYTES, timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(config)

    def stop(self) -> None:
        """Stop serving; it may be called on the loop or from a signal handler."""
        self._server.should_exit = True

    @property
    def is_busy(self) -> bool:
        """Whether it must not end now, however long nobody has visited it."""
        return bool(self._server.server_state.tasks) or self.console.accounts.is_replaying

    async def serve(self, listening: socket.socket, on_started: Callable[[], None] | None = None) -> None:
        _Protocol.last_request_at = time.monotonic()
        watch = asyncio.create_task(self._watch(on_started))
        try:
            await self._server.serve([listening])
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _watch(self, on_started: Callable[[], None] | None) -> None:
        while not self._server.started:
            await asyncio.sleep(0.01)
        if on_started is not None:
            on_started()
        while self._idle_s:
            await asyncio.sleep(min(_IDLE_CHECK_S, self._idle_s))
            if not self.is_busy and time.monotonic() - _Protocol.last_request_at > self._idle_s:
                _log.info("console stops: idle_s=%.0f", self._idle_s)
                self.stop()
                return


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except BaseException:
        found.close()
        raise
    return found


def listen_at(path: str) -> socket.socket:
    """A listening Unix-domain socket that only this user can open."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mask = os.umask(0o177)
        try:
            found.bind(path)
        finally:
            os.umask(mask)
        found.listen(128)
    except BaseException:
        found.close()
        raise
    return found
