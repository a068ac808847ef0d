"""Peers that send nothing, or too much; ports that are taken."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send
from tests.registry.api import Api, record
from tests.registry.conftest import SETTINGS
from tests.security.certificates import write_broker, write_ca
from tests.timeouts import PATIENCE_S, until

from penstock.client.background import new_event_loop
from penstock.client.consumer import AsyncConsumer
from penstock.client.errors import ClosedError
from penstock.registry import Registry
from penstock.registry.errors import RegistryUnavailable
from penstock.registry.server import HttpServer, listening_sockets
from penstock.registry.settings import RegistrySettings
from penstock.testing.embedded_broker import EmbeddedBroker


@pytest.fixture
def impatient(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, subject: str) -> Registry:
    monkeypatch.setattr("penstock.registry.server._HEAD_S", 0.2)
    monkeypatch.setattr("penstock.registry.server._LOOK_S", 0.05)
    return Registry(broker.address, topic=f"_{subject}", group_id=subject)


@pytest.mark.parametrize(
    "begun", [b"", b"G", b"GET / HTTP/1.1\r\nHost: local", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /"]
)
def test_a_peer_that_does_not_finish_its_request_is_cut_off(impatient: Registry, begun: bytes) -> None:
    with impatient, socket.create_connection(("127.0.0.1", impatient.port), PATIENCE_S) as peer:
        peer.sendall(begun)
        while peer.recv(65536):
            pass
        assert Api(impatient.url).get("/") == {}


def test_a_head_is_bounded(registry: Registry) -> None:
    with socket.create_connection(("127.0.0.1", registry.port), PATIENCE_S) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000)
        assert b" 400 " in peer.recv(65536).partition(b"\r\n")[0]


def test_many_idle_peers_do_not_stop_others(registry: Registry, api: Api) -> None:
    peers = [socket.create_connection(("127.0.0.1", registry.port), PATIENCE_S) for _ in range(100)]
    try:
        assert api.get("/") == {}
    finally:
        for each in peers:
            each.close()


def test_a_port_in_use_is_reported() -> None:
    (taken,) = listening_sockets("127.0.0.1", 0)
    with taken:
        port = taken.getsockname()[1]
        with pytest.raises(RegistryUnavailable, match=f"127.0.0.1:{port}: another process listens there"):
            listening_sockets("127.0.0.1", port)


def test_a_host_that_does_not_exist_is_reported() -> None:
    with pytest.raises(RegistryUnavailable, match=r"no\.such\.host\.invalid"):
        listening_sockets("no.such.host.invalid", 0)


def test_all_addresses_have_one_port() -> None:
    found = listening_sockets("", 0)
    try:
        assert len({each.getsockname()[1] for each in found}) == 1
    finally:
        for each in found:
            each.close()


def test_stopping_leaves_no_thread(broker: EmbeddedBroker, subject: str) -> None:
    before = set(threading.enumerate())
    with Registry(broker.address, topic=f"_{subject}", group_id=subject) as instance:
        Api(instance.url).get("/")
    left = {each.name for each in set(threading.enumerate()) - before}
    assert "penstock-registry" not in left


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BEGUN = (
    b"POST /subjects/s/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 10\r\n\r\n{"
)


@pytest.fixture
def https(broker: EmbeddedBroker, subject: str, tmp_path: Path) -> Registry:
    certificate = write_broker(tmp_path)
    return Registry(
        broker.address, topic=f"_{subject}", group_id=subject, ssl_certfile=certificate, ssl_keyfile=certificate
    )


def test_idle_tls_peers_do_not_use_up_the_grace_of_a_stop(
    https: Registry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They do not confirm the end of TLS until they read, which an idle client does not do."""
    tls = ssl.create_default_context(cafile=write_ca(tmp_path))
    with https, caplog.at_level(logging.WARNING):
        silent, used = (
            tls.wrap_socket(
                socket.create_connection(("127.0.0.1", https.port), PATIENCE_S), server_hostname="localhost"
            )
            for _ in range(2)
        )
        with silent, used:
            used.sendall(GET)
            assert b" 200 " in used.recv(65536)
            https.stop()
            assert not caplog.messages  # uvicorn reports a grace that has passed
            for peer in (silent, used):
                _read_to_the_end(peer)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop])
def test_an_unfinished_handshake_does_not_outlive_the_server(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    certificate = write_broker(tmp_path)
    settings = RegistrySettings(bootstrap_servers="", ssl_certfile=certificate, ssl_keyfile=certificate)
    sockets = listening_sockets("127.0.0.1", 0)
    address = sockets[0].getsockname()

    async def story() -> None:
        server = HttpServer(_nothing, settings)
        serving = asyncio.create_task(server.serve(sockets))
        for begun in (b"", b"\x16\x03\x01\x02"):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(begun)
            peers.append((reader, writer))
        assert server._tls is not None
        while len(server._tls.handshakes) < len(peers):
            await asyncio.sleep(0.001)
        server.close()
        await serving
        assert not server._tls.handshakes
        # The loop still runs: nothing but the server can have closed them.
        for reader, writer in peers:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            writer.close()

    peers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


def test_handshakes_are_bounded(https: Registry) -> None:
    https.settings = dataclasses.replace(https.settings, connections=2)
    with https, contextlib.ExitStack() as stack:
        peers = [stack.enter_context(socket.create_connection(("127.0.0.1", https.port), PATIENCE_S)) for _ in range(3)]
        assert peers[2].recv(1) == b""


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("no request was sent")


def test_a_tls_peer_with_half_a_request_is_aborted_after_the_grace(https: Registry, tmp_path: Path) -> None:
    tls = ssl.create_default_context(cafile=write_ca(tmp_path))
    with https:
        server = https._server
        assert server is not None
        connections = server._server.server_state.connections
        with tls.wrap_socket(
            socket.create_connection(("127.0.0.1", https.port), PATIENCE_S), server_hostname="localhost"
        ) as peer:
            peer.sendall(BEGUN)
            until(lambda: server._server.server_state.tasks, "the request has begun")
            https.stop()
            assert not connections
            _read_to_the_end(peer)


def _read_to_the_end(peer: socket.socket) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):  # it may be aborted
        while peer.recv(65536):
            pass


def test_stopping_does_not_wait_for_a_write_that_brokers_do_not_take(subject: str) -> None:
    """The broker stops in the middle of a write: the producer would wait for it for two minutes."""
    with EmbeddedBroker(settings=SETTINGS) as gone:
        instance = Registry(gone.address, topic=f"_{subject}", group_id=subject).start()
        until(lambda: instance.is_leader, "it leads")
    service = instance._service
    assert service is not None
    with ThreadPoolExecutor(1) as threads:
        write = threads.submit(Api(instance.url), "POST", f"/subjects/{subject}/versions", record("a"))
        until(service._leadership.write_lock.locked, "it writes")
        instance.stop()
        write.exception(PATIENCE_S)


def test_stopping_ends_a_reader_whose_client_does_not_close_well(
    broker: EmbeddedBroker, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(AsyncConsumer[bytes, bytes]):
        async def close(self, timeout: float = 0, *, autocommit: bool = True) -> None:
            await super().close(timeout, autocommit=autocommit)
            raise ClosedError("the connection was lost")

    monkeypatch.setattr("penstock.registry.topic.AsyncConsumer", Failing)
    monkeypatch.setattr("penstock.registry.leadership.AsyncConsumer", Failing)
    with Registry(broker.address, topic=f"_{subject}", group_id=subject) as instance:
        assert Api(instance.url).get("/subjects") == []
