"""TLS on the connections of the socket server: the same frames and replies, and what is different."""

from __future__ import annotations

import asyncio
import logging
import random
import select
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.runtime.socket_stories import Later, Recorder, Region, echo, framed, play, until
from tests.security.certificates import broker_settings, write_ca, write_client
from tests.timeouts import PATIENCE_S

from penstock.runtime.clock import SystemClock
from penstock.runtime.files import PosixFiles
from penstock.runtime.network import Chunk, Connection, Limits
from penstock.runtime.socket_server import SocketServer
from penstock.runtime.socket_tls import TlsSocket
from penstock.security.tls import client_context, server_context


class Scene:
    def __init__(self, server: SocketServer, port: int, plain_port: int) -> None:
        self.server, self.port, self.plain_port = server, port, plain_port


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *contents: bytes) -> None:
        self.writer.write(b"".join(map(framed, contents)))
        await asyncio.wait_for(self.writer.drain(), PATIENCE_S)

    async def receive(self) -> bytes:
        size = int.from_bytes(await asyncio.wait_for(self.reader.readexactly(4), PATIENCE_S), "big")
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)

    def close(self) -> None:
        self.writer.close()


@asynccontextmanager
async def serving(
    handler: Recorder, contexts: Callable[[], ssl.SSLContext], limits: Limits | None = None
) -> AsyncIterator[Scene]:
    server = SocketServer(asyncio.get_running_loop(), handler, limits or Limits(), SystemClock())
    _, port = server.listen("127.0.0.1", 0, "SSL", contexts)
    _, plain = server.listen("127.0.0.1", 0, "PLAINTEXT")
    try:
        yield Scene(server, port, plain)
    finally:
        await server.close(0)


async def connect(port: int, context: ssl.SSLContext | None) -> Peer:
    opening = asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None, limit=2**24
    )
    return Peer(*await asyncio.wait_for(opening, PATIENCE_S))


async def ask(port: int, context: ssl.SSLContext) -> bytes:
    peer = await connect(port, context)
    await peer.send(b"hello")
    return await peer.receive()


@pytest.fixture
def server_side(tmp_path: Path) -> Callable[[], ssl.SSLContext]:
    context = server_context(broker_settings(tmp_path))
    return lambda: context


@pytest.fixture
def client_side(tmp_path: Path) -> ssl.SSLContext:
    return client_context({"ssl.truststore.location": write_ca(tmp_path)})


def test_frames_of_all_sizes_are_answered_in_order(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    sizes = [0, 1, 3, 4, 5, 16_379, 16_380, 16_384, 16_385, 65_535, 65_536, 65_537, 300_000, 3_000_000, 2]
    contents = [random.Random(size).randbytes(size) for size in sizes]

    async def story() -> None:
        handler = Recorder()
        async with serving(handler, server_side) as scene:
            peer = await connect(scene.port, client_side)
            sending = asyncio.ensure_future(peer.send(*contents))
            for content in contents:
                assert await peer.receive() == content
            await sending
            assert handler.connections[0].listener == "SSL"
            assert handler.connections[0].peer_certificate is None
            peer.close()
            await until(lambda: bool(handler.closings))
            assert handler.closings == ["the peer closed the connection"]

    play(story)


def test_bytes_that_wait_inside_tls_are_read_without_another_packet(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    """The limit of unanswered frames stops reading in the middle of a record; nothing new arrives after that."""

    async def story() -> None:
        handler = Later()
        async with serving(handler, server_side, Limits(max_pending_replies=2)) as scene:
            peer = await connect(scene.port, client_side)
            await peer.send(*(b"%d" % number for number in range(500)))
            for number in range(500):
                await until(lambda number=number: len(handler.replies) > number)  # type: ignore[misc]
                handler.replies[number].send([framed(b"%d" % number)])
            assert [await peer.receive() for _ in range(500)] == [b"%d" % number for number in range(500)]
            peer.close()

    play(story)


def test_file_regions_are_encrypted_and_a_slow_reader_gets_every_byte(
    tmp_path: Path, server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    content = random.Random(7).randbytes(6_000_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    file = PosixFiles().open(str(path))
    reply: list[Chunk] = [
        framed(content)[:4],
        Region(file, 0, 5_000_000),
        content[5_000_000:5_000_010],
        Region(file, 5_000_010, 100),
        memoryview(content)[5_000_110:5_900_000],
        Region(file, 5_900_000, 100_000),
    ]

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send(reply))
        async with serving(handler, server_side, Limits(send_buffer_bytes=8_192)) as scene:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
            sock.connect(("127.0.0.1", scene.port))
            sock.setblocking(False)
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=client_side, server_hostname="localhost", limit=8_192
            )
            peer = Peer(reader, writer)
            await peer.send(b"?", b"?")
            for _ in range(2):
                assert await peer.receive() == content
            peer.close()

    try:
        play(story)
    finally:
        file.close()


def test_a_plaintext_client_on_a_tls_port_is_closed_with_a_reason(
    server_side: Callable[[], ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, server_side) as scene:
            peer = await connect(scene.port, None)
            await peer.send(b"\0\x12\0\3\0\0\0\1")
            assert await asyncio.wait_for(peer.reader.read(), PATIENCE_S) == b""
            assert handler.connections == []
            assert not scene.server.connections
            peer.close()
        assert handler.closings == []

    with caplog.at_level(logging.WARNING):
        play(story)
    assert "the first bytes are not TLS; clients of this listener need security.protocol=SSL or SASL_SSL" in caplog.text


def test_a_tls_client_on_a_plaintext_port_is_closed_with_a_reason(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(Recorder(), server_side) as scene:
            with pytest.raises((OSError, EOFError)):
                await connect(scene.plain_port, client_side)

    with caplog.at_level(logging.WARNING):
        play(story)
    assert "this looks like a TLS handshake" in caplog.text


def test_a_handshake_that_is_not_finished_in_time_is_given_up(
    server_side: Callable[[], ssl.SSLContext], caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(Recorder(), server_side, Limits(handshake_ms=50)) as scene:
            silent = await connect(scene.port, None)
            half = await connect(scene.port, None)
            half.writer.write(b"\x16\x03\x01\x02\x00")
            assert await asyncio.wait_for(silent.reader.read(), PATIENCE_S) == b""
            assert await asyncio.wait_for(half.reader.read(), PATIENCE_S) == b""
            assert not scene.server.connections
            silent.close()
            half.close()

    with caplog.at_level(logging.WARNING):
        play(story)
    assert "the TLS handshake took longer than 50 ms" in caplog.text


def test_handshakes_that_hang_make_room_for_new_ones(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, server_side, Limits(max_handshakes=3)) as scene:
            hanging = [await connect(scene.port, None) for _ in range(3)]
            await until(lambda: len(scene.server.connections) == 3)
            peer = await connect(scene.port, client_side)
            await peer.send(b"hello")
            assert await peer.receive() == b"hello"
            assert await asyncio.wait_for(hanging[0].reader.read(), PATIENCE_S) == b""
            assert len(scene.server.connections) == 3
            # An established connection does not count.
            second = await connect(scene.port, client_side)
            await second.send(b"again")
            assert await second.receive() == b"again"
            assert len(scene.server.connections) == 4
            for each in (*hanging, peer, second):
                each.close()

    play(story)


def test_the_handler_gets_the_certificate_of_the_peer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    context = server_context(broker_settings(tmp_path, client_auth="required"))
    trust = {"ssl.truststore.location": write_ca(tmp_path)}
    alice = client_context({**trust, "ssl.keystore.location": write_client(tmp_path, "alice")})
    anonymous = client_context(trust)

    async def story() -> None:
        handler = Recorder()
        async with serving(handler, lambda: context) as scene:
            peer = await connect(scene.port, alice)
            await peer.send(b"hello")
            assert await peer.receive() == b"hello"
            certificate = handler.connections[0].peer_certificate
            assert certificate is not None
            assert b"alice" in certificate
            with pytest.raises((OSError, EOFError)):
                await ask(scene.port, anonymous)
            await until(lambda: len(scene.server.connections) == 1)
            assert len(handler.connections) == 1
            peer.close()

    with caplog.at_level(logging.WARNING):
        play(story)
    assert "the client sent no certificate" in caplog.text


def handshaken(port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A blocking connection that tells a closed one from a cut one."""
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


def test_the_peer_learns_why_its_handshake_failed_and_that_a_connection_was_closed(
    tmp_path: Path, server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    strict = server_context(broker_settings(tmp_path, client_auth="required"))
    trust = client_context({"ssl.truststore.location": write_ca(tmp_path)})

    def is_rejected(port: int) -> None:
        with handshaken(port, trust) as peer, pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            peer.recv(1)

    def is_closed(port: int) -> None:
        with handshaken(port, client_side) as peer:
            peer.sendall(framed(b"x" * 101))
            assert peer.recv(1) == b""

    async def story() -> None:
        async with serving(Recorder(), lambda: strict) as scene:
            await asyncio.to_thread(is_rejected, scene.port)
        async with serving(Recorder(), server_side, Limits(max_frame_bytes=100)) as scene:
            await asyncio.to_thread(is_closed, scene.port)

    play(story)


@pytest.mark.parametrize("record_bytes", [1, 100, 4_096, 16_384])
def test_the_size_of_a_peers_records_changes_nothing(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext, record_bytes: int
) -> None:
    sizes = [0, 1, 3_000, 70_000, 5] if record_bytes > 1 else [0, 1, 300, 5]
    contents = [random.Random(size).randbytes(size) for size in sizes]
    data = memoryview(b"".join(map(framed, contents)))

    def talk(port: int) -> None:
        with handshaken(port, client_side) as peer:
            for start in range(0, len(data), record_bytes):
                assert peer.send(data[start : start + record_bytes]) == len(data[start : start + record_bytes])
            received = b""
            while len(received) < len(data):
                received += peer.recv(65_536)
            assert received == data

    async def story() -> None:
        async with serving(Recorder(), server_side) as scene:
            await asyncio.to_thread(talk, scene.port)

    play(story)


def test_many_small_records_are_received_together(client_side: ssl.SSLContext, tmp_path: Path) -> None:
    """One system call for 64 KiB, where OpenSSL itself makes two for each record."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        counting = CountingSocket(ours)
        server = TlsSocket(counting, memoryview(bytearray(65_536)))  # type: ignore[arg-type]
        server.wrap(server_context(broker_settings(tmp_path)))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = client_side.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        theirs.sendall(outgoing.read())
        with pytest.raises(ssl.SSLWantReadError):
            server.shake_hands()
        incoming.write(theirs.recv(65_536))
        client.do_handshake()
        for number in range(100):
            client.write(b"%03d" % number * 100)
        theirs.sendall(outgoing.read())
        server.shake_hands()
        pending = [server.has_pending]
        counting.receives = 0
        buffer = bytearray(65_536)
        assert server.recv_into(buffer) == 30_000
        assert buffer[:30_000] == b"".join(b"%03d" % number * 100 for number in range(100))
        assert counting.receives <= 2
        pending.append(server.has_pending)
        assert pending == [True, False]
        with pytest.raises(BlockingIOError):
            server.recv_into(buffer)


class CountingSocket:
    def __init__(self, sock: socket.socket) -> None:
        self.send, self.fileno = sock.send, sock.fileno
        self._receive = sock.recv_into
        self.receives = 0

    def recv_into(self, buffer: memoryview) -> int:
        self.receives += 1
        return self._receive(buffer)


def test_a_write_is_reported_when_its_encrypted_bytes_have_left(client_side: ssl.SSLContext, tmp_path: Path) -> None:
    """Until then it is repeated, also behind more bytes and in other buffers."""
    content = random.Random(3).randbytes(400_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_608)
        server = TlsSocket(ours, memoryview(bytearray(65_536)))
        server.wrap(server_context(broker_settings(tmp_path)))
        received = bytearray()

        def read() -> None:
            with client_side.wrap_socket(theirs, server_hostname="localhost") as peer:
                while len(received) < len(content):
                    received.extend(peer.recv(3_000))

        reader = threading.Thread(target=read)
        reader.start()
        poll = select.poll()
        while True:
            try:
                server.shake_hands()
                break
            except ssl.SSLWantReadError:
                poll.register(ours, select.POLLIN)
            except ssl.SSLWantWriteError:
                poll.register(ours, select.POLLOUT)
            poll.poll()
        poll.register(ours, select.POLLOUT)
        sent, blocked = 0, 0
        step = random.Random(4)
        while sent < len(content):
            size = 70_000 if blocked else step.choice([1, 200, 16_384, 70_000])
            rest = content[sent : sent + size + 70_000 * blocked]
            middle = step.randrange(len(rest) + 1)
            try:
                taken = server.sendmsg([rest[:middle], b"", memoryview(rest)[middle:]])
                assert 0 < taken <= len(rest)
                sent += taken
            except BlockingIOError:
                taken = 0
            blocked = taken < len(rest)
            if blocked:
                poll.poll()
        reader.join(PATIENCE_S)
    assert received == content


def test_a_new_connection_uses_the_newest_certificate(tmp_path: Path, client_side: ssl.SSLContext) -> None:
    contexts = [server_context(broker_settings(tmp_path / str(number))) for number in range(2)]
    current = [contexts[0]]

    async def story() -> None:
        current[0] = contexts[0]
        async with serving(Recorder(), lambda: current[0]) as scene:
            serials = []
            for context in contexts:
                current[0] = context
                peer = await connect(scene.port, client_side)
                found = peer.writer.get_extra_info("peercert")
                serials.append(found["serialNumber"])
                peer.close()
            assert serials[0] != serials[1]

    play(story)


def test_frames_can_be_limited_for_a_while(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    def unlimited_after_go(connection: Connection, frame: bytearray) -> None:
        connection.limit_frames(None if frame == b"go" else 100)
        echo(connection, frame)

    async def story() -> None:
        async with serving(Recorder(unlimited_after_go), server_side) as scene:
            peer = await connect(scene.port, client_side)
            for content in (b"x" * 200, b"x" * 100, b"go", b"x" * 200):
                await peer.send(content)
                assert await peer.receive() == content
            await peer.send(b"x" * 101)
            with pytest.raises(asyncio.IncompleteReadError):
                await peer.receive()
            peer.close()

    with caplog.at_level(logging.WARNING):
        play(story)
    assert "frame of 101 bytes exceeds 100" in caplog.text


def test_replies_that_are_ready_leave_before_the_server_closes(
    server_side: Callable[[], ssl.SSLContext], client_side: ssl.SSLContext
) -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, server_side) as scene:
            peer = await connect(scene.port, client_side)
            await peer.send(b"?")
            await until(lambda: len(handler.replies) == 1)
            closing = asyncio.ensure_future(scene.server.close(5_000))
            await asyncio.sleep(0)
            handler.replies[0].send([framed(b"x" * 500_000)])
            assert await peer.receive() == b"x" * 500_000
            peer.close()
            await closing

    play(story)
