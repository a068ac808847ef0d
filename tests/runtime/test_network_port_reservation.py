"""A port that is bound but not listened on."""

from __future__ import annotations

import socket

import pytest

from penstock.runtime.network import AddressInUse, CannotListen, PortReservation

HOST = "127.0.0.1"


def test_a_reserved_port_rejects_connections() -> None:
    reservation = PortReservation(HOST, 0)
    assert reservation.port > 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, reservation.port))
    reservation.release()


def test_a_reserved_port_is_not_given_out() -> None:
    reservation = PortReservation(HOST, 0)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, reservation.port))
    reservation.release()


def test_a_released_port_can_be_listened_on() -> None:
    reservation = PortReservation(HOST, 0)
    reservation.release()
    reservation.release()
    with socket.create_server((HOST, reservation.port)):
        socket.create_connection((HOST, reservation.port)).close()


def test_lingering_connections_do_not_block_the_port() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection((HOST, port))
        accepted, _ = server.accept()
        accepted.close()  # the first to close is the one that lingers
        client.close()
    reservation = PortReservation(HOST, port)
    assert reservation.port == port
    reservation.release()


def test_a_port_with_a_listener_is_in_use() -> None:
    with socket.create_server((HOST, 0)) as server, pytest.raises(AddressInUse, match=HOST):
        PortReservation(HOST, server.getsockname()[1])


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("no such host", 0), (HOST, 65_536), (HOST, -1)])
def test_a_foreign_address_cannot_be_reserved(host: str, port: int) -> None:
    with pytest.raises(CannotListen):
        PortReservation(host, port)


def test_all_addresses_are_reserved_together() -> None:
    reservation = PortReservation("", 0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, reservation.port))
    reservation.release()
