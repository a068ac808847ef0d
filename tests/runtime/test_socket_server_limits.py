"""Hostile, failing and numerous peers, and closing the server."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import weakref
from struct import pack

import pytest
from tests.runtime.socket_stories import Later, Recorder, descriptors, framed, play, serving, until

from penstock.runtime import files
from penstock.runtime.clock import ManualClock, SystemClock
from penstock.runtime.network import Connection, Limits, RateLimitedLogger
from penstock.runtime.socket_server import SocketServer


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (pack(">i", -1), "frame length -1 is negative"),
        (pack(">i", -(2**31)), "frame length -2147483648 is negative"),
        (pack(">i", 1001), "frame of 1001 bytes exceeds 1000"),
        (pack(">i", 2**31 - 1), "frame of 2147483647 bytes exceeds 1000"),
        (b"GET / HTTP/1.1\r\n\r\n", "this looks like an HTTP request"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "this looks like a TLS handshake"),
    ],
)
def test_a_length_that_no_frame_may_have_ends_the_connection(
    stream: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, Limits(max_frame_bytes=1000)) as scene:
            peer, other = await scene.peer(), await scene.peer()
            await peer.send_raw(framed(b"y" * 1000) + framed(b"x") + stream)
            assert await peer.receive() == b"y" * 1000
            assert await peer.receive() == b"x"
            assert await peer.ended()
            await other.send(b"fine")
            assert await other.receive() == b"fine"
            assert reason in handler.closings[0]

    play(story)
    assert reason in caplog.text


def test_garbage_never_does_worse_than_end_its_connection() -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, Limits(max_frame_bytes=5000)) as scene:
            for number in range(50):
                peer = await scene.peer()
                await peer.send_raw(os.urandom(100 + 37 * number))
                peer.close()
            await until(lambda: len(handler.closings) == 50)
            last = await scene.peer()
            await last.send(b"fine")
            assert await last.receive() == b"fine"

    play(story)


def test_an_announced_length_takes_no_memory_before_its_bytes_arrive() -> None:
    async def story() -> None:
        async with serving(Recorder()) as scene:
            peer = await scene.peer()
            await peer.send_raw(pack(">i", 100 * 1024 * 1024) + b"x" * 10)
            await scene.received(14)
            assert scene.connection().unread_bytes == 10
            await peer.send_raw(b"x" * 200_000)
            await scene.received(200_014)
            assert scene.connection().unread_bytes <= 2 * 200_010

    play(story)


def test_two_thousand_connections_are_served_at_once() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may have {hard} descriptors only")

    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peers = [await scene.peer() for _ in range(2000)]
            for peer in peers:
                await peer.send(peer.address.encode())
            for peer in peers:
                assert await peer.receive() == peer.address.encode()
            assert scene.server.counters.connections == 2000
            for peer in peers:
                peer.close()
            await until(lambda: len(handler.closings) == 2000)
            assert scene.server.counters.connections == 0

    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        play(story)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_beyond_the_limit_are_rejected_until_one_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler, Limits(max_connections=3), ManualClock()) as scene:
            peers = [await scene.peer() for _ in range(3)]
            await until(lambda: len(handler.connections) == 3)
            for _ in range(5):
                assert await (await scene.peer()).ended()
            assert scene.server.counters.rejected == 5
            peers[0].close()
            await until(lambda: scene.server.counters.connections == 2)
            late = await scene.peer()
            await late.send(b"at last")
            assert await late.receive() == b"at last"
            assert len(handler.connections) == 4
        # Five rejections in a short time are one line.
        assert caplog.text.count("reason=the limit of 3 connections is reached") == 1
        caplog.clear()

    play(story)


def test_connections_of_one_address_beyond_its_limit_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    async def connect_from(address: str, port: int) -> socket.socket:
        sock = socket.socket()
        sock.bind((address, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return sock

    async def story() -> None:
        handler = Recorder()
        async with serving(handler, Limits(max_connections_per_address=2)) as scene:
            peers = [await scene.peer(), await scene.peer()]
            assert await (await scene.peer()).ended()
            others = [await connect_from("127.0.0.2", scene.port) for _ in range(2)]
            await until(lambda: len(handler.connections) == 4)
            assert (scene.server.counters.rejected, scene.server.counters.accepted) == (1, 4)
            peers[0].close()
            await until(lambda: scene.server.counters.connections == 3)
            await scene.peer()
            await until(lambda: len(handler.connections) == 5)
            for other in others:
                other.close()

    play(story)
    assert "reason=the limit of 2 connections from this address is reached" in caplog.text


def test_log_lines_that_peers_cause_are_limited_to_one_per_second_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log_limited = RateLimitedLogger(clock, logging.getLogger("penstock.runtime.socket_server"))
    for number in range(10):
        log_limited("frame", f"bad frame {number}")
    log_limited("rejection", "rejected")
    clock.advance(1000)
    log_limited("frame", "bad frame again")
    clock.advance(1000)
    log_limited("frame", "bad frame at last")
    assert [record.getMessage() for record in caplog.records] == [
        "bad frame 0",
        "rejected",
        "bad frame again suppressed=9",
        "bad frame at last",
    ]


def test_a_process_without_descriptors_pauses_accepting_and_resumes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    relieved: list[int] = []
    monkeypatch.setattr(files, "relief", lambda: relieved.append(1))

    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1")
            assert await peer.receive() == b"1"
            waiting = [socket.socket() for _ in range(3)]
            free = os.dup(0)
            os.close(free)
            try:
                # The lowest number that is free is beyond the limit: no more descriptors.
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
                for sock in waiting:
                    sock.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", scene.port))
                await until(lambda: "cannot accept connections: retry_in_ms=100" in caplog.text)
                assert relieved  # files are asked to close before the next try
                await peer.send(b"2")
                assert await peer.receive() == b"2"
                assert len(handler.connections) == 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await until(lambda: len(handler.connections) == 4)
            for sock in waiting:
                sock.close()
        caplog.clear()

    play(story)


def closed_within(server: SocketServer, clock: ManualClock, seconds: int) -> int:
    count = 0
    for _ in range(seconds):
        clock.advance(1000)
        count += server.close_idle()
    return count


def test_idle_connections_are_closed_and_others_are_not() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Recorder()
        async with serving(handler, Limits(idle_ms=16_000), clock) as scene:
            quiet, lively = await scene.peer(), await scene.peer()
            await until(lambda: len(handler.connections) == 2)
            for second in range(17):
                assert scene.server.close_idle() == 0
                clock.advance(1000)
                await lively.send(b"%d" % second)
                await lively.receive()
            assert scene.server.close_idle() == 1
            assert await quiet.ended()
            assert handler.closings == ["idle for too long"]
            assert scene.server.counters.idle_closed == 1
            assert closed_within(scene.server, clock, seconds=17) == 1
            assert await lively.ended()

    play(story)


def test_a_peer_that_waits_for_an_answer_is_not_idle_but_one_that_does_not_take_it_is() -> None:
    async def story() -> None:
        clock = ManualClock()
        handler = Later()
        limits = Limits(idle_ms=16_000, send_buffer_bytes=4096)
        async with serving(handler, limits, clock) as scene:
            peer = await scene.peer(receive_buffer_bytes=4096)
            await peer.send(b"?", b"never answered")
            await until(lambda: len(handler.replies) == 2)
            assert closed_within(scene.server, clock, seconds=100) == 0
            handler.replies[0].send([b"x" * 10_000_000])
            connection = scene.connection()
            before = -1
            while before != connection.unsent_bytes:
                before = connection.unsent_bytes
                for _ in range(20):
                    await asyncio.sleep(0)
            assert closed_within(scene.server, clock, seconds=35) == 1
            assert connection.closed

    play(story)


def test_the_loop_closes_idle_connections_by_itself() -> None:
    async def story() -> None:
        async with serving(Recorder(), Limits(idle_ms=32), SystemClock()) as scene:
            assert await (await scene.peer()).ended()
            assert scene.server.counters.idle_closed == 1

    play(story)


def test_completing_replies_after_a_reset_is_harmless() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1", b"2", b"3")
            await until(lambda: len(handler.replies) == 3)
            handler.replies[1].send([framed(b"waits")])
            peer.reset()
            await until(lambda: bool(handler.closings))
            assert "reset" in handler.closings[0]
            handler.replies[0].send([framed(b"late")])
            handler.replies[2].skip()
            assert handler.connections[0].closed
            assert scene.server.counters.bytes_out == 0

    play(story)


def test_a_peer_that_resets_in_the_middle_of_a_long_answer_is_forgotten() -> None:
    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send([b"x" * 20_000_000]))
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            assert len(await peer.receive_raw(100_000)) == 100_000
            peer.reset()
            await until(lambda: len(handler.closings) == 1)
            assert scene.server.counters.connections == 0

    play(story)


def test_a_peer_that_closes_its_half_is_closed() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send_raw(framed(b"whole") + b"\x00\x00\x00\x09half")
            peer.sock.shutdown(socket.SHUT_WR)
            assert await peer.ended()
            assert handler.frames == [b"whole"]
            handler.replies[0].send([framed(b"late")])

    play(story)


def test_nothing_is_kept_of_connections_that_are_gone() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            before = descriptors()
            for number in range(100):
                peer = await scene.peer()
                await peer.send_raw(framed(b"?") + b"\x00\x00\xff\xff" + b"x" * number)
                await until(lambda: len(handler.replies) == number + 1)  # noqa: B023 - awaited before it changes
                (peer.reset if number % 2 else peer.close)()
            await until(lambda: scene.server.counters.connections == 0)
            await until(lambda: len(handler.closings) == 100)
            assert descriptors() == before
            witnesses = [weakref.ref(connection) for connection in handler.connections]
            handler.connections.clear()
            # Some replies come late and are kept, some never come: the connections go, even without a collector.
            for reply in handler.replies[::2]:
                reply.send([b"late"])
            handler.replies = handler.replies[::2]
            assert [witness() for witness in witnesses if witness() is not None] == []

    gc.collect()
    gc.disable()
    try:
        play(story)
    finally:
        gc.enable()


def test_closing_waits_for_pending_replies_and_accepts_no_further_frames() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(send_buffer_bytes=4096)) as scene:
            owed, idle = await scene.peer(receive_buffer_bytes=4096), await scene.peer()
            await owed.send(b"1", b"2")
            await until(lambda: len(handler.replies) == 2)
            closing = asyncio.create_task(scene.server.close(timeout_ms=60_000))
            assert await idle.ended()
            await owed.send(b"3")
            handler.replies[1].send([b"y" * 3_000_000])
            assert not closing.done()
            handler.replies[0].send([b"first"])
            assert await owed.receive_raw(3_000_005) == b"first" + b"y" * 3_000_000
            assert await owed.ended()
            assert not closing.done()
            owed.close()
            await closing
            assert len(handler.replies) == 2
            assert handler.closings == ["the server closes"] * 2
            assert scene.server.counters.connections == 0
            with pytest.raises(ConnectionError):
                await scene.peer()

    play(story)


def test_closing_does_not_wait_forever(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1")
            await until(lambda: len(handler.replies) == 1)
            await peer.send(b"2")
            await scene.server.close(timeout_ms=10)
            assert await peer.ended()
            assert handler.closings == ["the server closes"]
            handler.replies[0].send([b"late"])
            await scene.server.close(timeout_ms=10)

    play(story)
    assert "connections closed with pending replies: count=1" in caplog.text


def test_a_peer_that_resets_while_the_server_closes_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers that stop together do this to one another."""

    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1")
            await until(lambda: len(handler.replies) == 1)
            connection = scene.connection()
            connection.finish()
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            peer.sock.close()
            # The error of the reset is taken once; what comes after it finds a socket that is not connected.
            await until(lambda: connection._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0)
            connection._linger()
            await until(lambda: len(handler.closings) == 1)
            assert handler.closings[0].startswith("the peer")

    with caplog.at_level(logging.WARNING):
        play(story)
    assert caplog.text == ""


def test_a_close_that_is_cancelled_closes_all_the_same() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1")
            await until(lambda: len(handler.replies) == 1)
            closing = asyncio.create_task(scene.server.close(timeout_ms=60_000))
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert await peer.ended()

    play(story)


def test_a_closed_server_leaves_nothing_behind() -> None:
    async def story() -> None:
        before = descriptors()
        handler = Recorder()
        server = SocketServer(asyncio.get_running_loop(), handler, Limits(), SystemClock())
        ports = [server.listen("127.0.0.1", 0)[1] for _ in range(3)]
        assert len(set(ports)) == 3
        await server.close(0)
        assert descriptors() == before
        witness = weakref.ref(server)
        del server
        # Turns of the loop: what was scheduled and cancelled goes.
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        assert witness() is None

    play(story)


def test_a_connection_that_is_admitted_while_frames_are_rejected_by_its_handler_counts_once() -> None:
    """Closing from `connected` is allowed, and gives the place back."""

    class Closing(Recorder):
        def connected(self, connection: Connection) -> None:
            connection.close("not today")

    async def story() -> None:
        handler = Closing()
        async with serving(handler, Limits(max_connections=1)) as scene:
            for _ in range(5):
                assert await (await scene.peer()).ended()
            await until(lambda: len(handler.closings) == 5)
            assert scene.server.counters.rejected == 0

    play(story)
