"""Closing a socket without losing what was sent last.

Noun: the moment between the last answer and the end of a connection.

Rule: a socket that is closed with bytes unread makes the kernel send a reset, and a reset overtakes the answers that
have not arrived. So before the end what has come is read and thrown away; and where answers have just left, only our
direction is closed, and the peer has a moment to close the other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

_PATIENCE_MS: Final = 1000
_DISCARD_BYTES: Final = 256 * 1024


def discard_unread(sock: socket.socket) -> bool:
    """Throw away what has come; whether the peer has closed its direction, or is gone."""
    try:
        return not sock.recv(_DISCARD_BYTES)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Farewell:
    """Waits for the peer to close, for a second at most, then calls `done`. OSError if it is gone already."""

    __slots__ = ("_descriptor", "_done", "_loop", "_sock", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, done: Callable[[], None]) -> None:
        sock.shutdown(socket.SHUT_WR)
        self._loop = loop
        self._sock = sock
        self._descriptor = sock.fileno()
        self._done = done
        self._timer = loop.call_later(_PATIENCE_MS / 1000, done)
        loop.add_reader(self._descriptor, self._on_readable)

    def _on_readable(self) -> None:
        if discard_unread(self._sock):
            self._done()

    def cancel(self) -> None:
        """Let go of the socket."""
        self._timer.cancel()
        self._loop.remove_reader(self._descriptor)
