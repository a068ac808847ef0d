"""What is rejected before the API sees it."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.registry.api import Api, record
from tests.timeouts import PATIENCE_S

from penstock.registry import Registry
from penstock.runtime.network import is_host_of
from penstock.testing.embedded_broker import EmbeddedBroker


@contextmanager
def connected(registry: Registry) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", registry.port), PATIENCE_S) as peer:
        yield peer


def all_of(peer: socket.socket) -> bytes:
    found = b""
    while data := peer.recv(65536):
        found += data
    return found


@pytest.mark.parametrize(
    ("header", "is_ours"),
    [
        (None, True), ("localhost", True), ("localhost:8081", True), ("127.0.0.1:8081", True), ("[::1]:8081", True),
        ("10.1.2.3", True), ("registry.example", True), ("Registry.Example.:80", True), ("evil.example", False),
        ("127.0.0.1.evil.example", False), ("", False), ("registry.example.evil", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(header: str | None, is_ours: bool) -> None:
    assert is_host_of(header, {"registry.example"}) is is_ours


def test_another_name_is_misdirected(api: Api, subject: str) -> None:
    for method, path, body in (("GET", "/subjects", None), ("POST", f"/subjects/{subject}/versions", record("a"))):
        answer = api(method, path, body, {"Host": "evil.example"})
        assert (answer.status, answer.error) == (421, 421)
    assert api("GET", f"/subjects/{subject}/versions").error == 40401


def test_credentials(broker: EmbeddedBroker, subject: str) -> None:
    with Registry(
        broker.address, topic=f"_{subject}", group_id=subject, token="t0ken", user="me", password="pass:ä"
    ) as it:
        api = Api(it.url)
        basic = base64.b64encode("me:pass:ä".encode()).decode()
        for shown in ("Bearer t0ken", "bearer t0ken", f"Basic {basic}"):
            assert api("GET", "/subjects", headers={"Authorization": shown}).value == []
        for shown in ("", "Bearer", "Bearer other", "Basic t0ken", "Basic !", f"Bearer {basic}", "Basic bWU6"):
            answer = api("GET", "/subjects", headers={"Authorization": shown})
            assert answer.error == 401
            assert "Bearer" in answer.headers["www-authenticate"]


def test_a_body_is_bounded_whether_or_not_its_length_is_said(registry: Registry, api: Api, subject: str) -> None:
    large = b'{"schema": "' + b"x" * (2 * 1024 * 1024)
    assert api("POST", f"/subjects/{subject}/versions", large).error == 413
    with connected(registry) as peer:
        peer.sendall(
            b"POST /subjects/a/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        try:
            for _ in range(1024):
                peer.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            answer = all_of(peer)
        except OSError:
            answer = b""  # it was cut off while it still sent
        assert answer == b"" or b" 413 " in answer.partition(b"\r\n")[0]


def test_a_request_that_takes_too_long_is_cut_off(broker: EmbeddedBroker, subject: str) -> None:
    with (
        Registry(broker.address, topic=f"_{subject}", group_id=subject, request_timeout_ms=200) as slow,
        connected(slow) as peer,
    ):
        peer.sendall(
            b"POST /subjects/a/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 100\r\n\r\n{"schema'
        )
        assert b" 408 " in all_of(peer).partition(b"\r\n")[0]
