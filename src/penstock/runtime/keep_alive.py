"""TCP keep-alive: detects that the peer of a quiet connection is gone.

A machine that loses power sends nothing, and a client that only waits sends nothing that could fail; a group member may
wait for minutes. Probes end the connection after `IDLE_S + PROBES * INTERVAL_S` = 30 s. A slow peer is not disturbed:
its kernel answers.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

IDLE_S: Final = 15
INTERVAL_S: Final = 5
PROBES: Final = 3


class Socket(Protocol):
    """What of a socket an event loop shows."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def probe_when_idle(sock: Socket) -> None:
    """Let the kernel find out whether the peer is there. Where it has no such option, its own times hold."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", IDLE_S), ("TCP_KEEPINTVL", INTERVAL_S), ("TCP_KEEPCNT", PROBES)):
        option: int | None = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
