"""A port that is taken but not open yet.

Noun: a bound socket that does not listen.

Rule: from the moment it is reserved its number is known and nobody else is given it, and whoever connects is refused at
once, as if nothing ran here: a client then tries again, where an open port that does not answer would make it wait. It
is released right before the same address is listened on.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from penstock.runtime.network import AddressInUse, CannotListen


class PortReservation:
    """An address of this machine, held until released."""

    def __init__(self, host: str, port: int) -> None:
        """AddressInUse if somebody listens there, CannotListen if nobody can."""
        text = f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
        if not 0 <= port <= 65535:
            raise CannotListen(text, "a port is a number from 0 to 65535")
        self.host = host
        self._socket = _bind(text, host, port)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of it; again is harmless."""
        self._socket.close()


def _bind(text: str, host: str, port: int) -> socket.socket:
    problem: OSError | None = None
    for family, address in _addresses(text, host, port):
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            # Connections of an earlier process that still linger are no reason to wait for them.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1 if host else 0)
            reserved.bind(address)
        except OSError as error:
            reserved.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(text, "the address is in use") from error
            problem = error
        else:
            return reserved
    raise CannotListen(text, str(problem or "the host has no address")) from problem


def _addresses(text: str, host: str, port: int) -> list[tuple[int, Any]]:
    """Those of the host, IPv4 before IPv6."""
    if not host:
        return [(socket.AF_INET6, ("::", port)) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("", port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotListen(text, str(error)) from error
    return sorted(((family, address) for family, _, _, _, address in found), key=lambda each: each[0] != socket.AF_INET)
