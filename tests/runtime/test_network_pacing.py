"""A congestion control that paces is kept for other machines, and left out within this one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.runtime import network
from penstock.runtime.network import Limits, bind_socket, is_this_machine

ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")

pytestmark = pytest.mark.skipif(not ALLOWED.exists(), reason="the congestion control of a socket is Linux's")


def control_of(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.fixture
def controls(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """The system's congestion control, which from now on counts as one that paces, and the one that does not."""
    with socket.socket() as probe:
        system = control_of(probe)
    others = [name for name in ALLOWED.read_bytes().split() if name != system]
    if not others:
        pytest.skip("this user may choose only one congestion control")
    monkeypatch.setattr(network, "_PACING_PREFIX", system)
    monkeypatch.setattr(network, "_UNPACED", others[0])
    return system, others[0]


@contextmanager
def accepted(host: str) -> Iterator[socket.socket]:
    """The server's end of a connection to a listener of that host."""
    with bind_socket(host, 0, Limits()) as listener:
        listener.setblocking(True)
        with socket.create_connection((host or "127.0.0.1", listener.getsockname()[1])):
            connection, _ = listener.accept()
            with connection:
                yield connection


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_connection_within_this_machine_is_not_paced(host: str, controls: tuple[bytes, bytes]) -> None:
    _, unpaced = controls
    with accepted(host) as connection:
        assert control_of(connection) == unpaced


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_connection_of_another_machine_keeps_the_systems_congestion_control(
    host: str, controls: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _ = controls
    monkeypatch.setattr(network, "is_this_machine", lambda peer, own: False)
    with accepted(host) as connection:
        assert control_of(connection) == system


def test_a_congestion_control_that_does_not_pace_is_left_alone(
    controls: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _ = controls
    monkeypatch.setattr(network, "_PACING_PREFIX", b"no such")
    with accepted("127.0.0.1") as connection:
        assert control_of(connection) == system


def test_where_the_congestion_control_may_not_be_chosen_connections_are_accepted_all_the_same(
    controls: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    system, _ = controls
    monkeypatch.setattr(network, "_UNPACED", b"no such")
    with accepted("127.0.0.1") as connection:
        assert control_of(connection) == system


@pytest.mark.parametrize(
    ("peer", "own", "is_here"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.2", True),
        ("192.0.2.7", "192.0.2.7", True),
        ("fe80::1%2", "fe80::1%2", True),
        ("192.0.2.8", "192.0.2.7", False),
        ("::ffff:192.0.2.8", "::ffff:192.0.2.7", False),
        ("fe80::2%2", "fe80::1%2", False),
        ("2001:db8::2", "2001:db8::1", False),
        ("", "192.0.2.7", False),
    ],
)
def test_a_peer_with_an_address_of_this_machine_is_on_it(peer: str, own: str, is_here: bool) -> None:
    assert is_this_machine(peer, own) is is_here
