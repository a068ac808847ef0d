"""Ports of the loopback that belong to a test from the moment it knows their number."""

from __future__ import annotations

import atexit

from penstock.runtime.network import PortReservation

_held: list[PortReservation] = []


def free_port() -> int:
    """A port that is not given to another test while the tests of this process run.

    A socket is bound to it and does not listen. So connections are refused, until a server that is given the number
    listens there, and again once that server has stopped. Linux lets a server bind beside the reservation because both
    set SO_REUSEADDR and only one of them listens, and never hands such a port out for port 0 or for a connection.
    """
    reservation = PortReservation("127.0.0.1", 0)
    _held.append(reservation)
    return reservation.port


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


@atexit.register
def _release() -> None:
    for each in _held:
        each.release()
