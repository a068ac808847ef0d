"""Noticing that the other side of a quiet connection is gone.

Noun: a probe, by which the kernel asks a peer that has been silent whether it is still there.

Rule: a machine that loses power says no goodbye, and who waits for its answer sends nothing that could go unanswered. A
member of a group may wait so for minutes, as long as the slowest of the others may take. Probes end that after
`IDLE_S + PROBES * INTERVAL_S` = 30 s; a peer that is merely slow is not disturbed, for its kernel answers them.
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
