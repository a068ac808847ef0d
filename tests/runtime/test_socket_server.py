"""Frames in, replies out, in order."""

from __future__ import annotations

import asyncio
import socket
from itertools import permutations
from typing import Any, cast

import pytest
from tests.runtime.socket_stories import Later, Recorder, framed, play, serving, until

from penstock.runtime.clock import SystemClock
from penstock.runtime.network import (
    AddressInUse,
    CannotListen,
    Connection,
    Limits,
    ReplyAnswered,
    Server,
    ServerClosed,
)
from penstock.runtime.socket_server import SocketServer


def test_a_frame_comes_in_and_its_answer_leaves() -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"hello")
            assert await peer.receive() == b"hello"
            assert handler.connections[0].peer == peer.address
            assert not handler.connections[0].closed
            peer.close()
            await until(lambda: bool(handler.closings))
            assert handler.closings == ["the peer closed the connection"]
            assert handler.connections[0].closed

    play(story)


def test_answers_leave_in_the_order_of_the_frames_however_they_are_completed() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            for order in permutations(range(4)):
                handler.replies.clear()
                await peer.send(*[b"?"] * 4)
                await until(lambda: len(handler.replies) == 4)
                for number in order:
                    handler.replies[number].send([framed(b"%d" % number)])
                assert [await peer.receive() for _ in range(4)] == [b"0", b"1", b"2", b"3"]

    play(story)


def test_a_reply_that_is_skipped_leaves_no_gap() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"a", b"b", b"c", b"d")
            await until(lambda: len(handler.replies) == 4)
            first, second, third, fourth = handler.replies
            third.send([framed(b"third")])
            second.skip()
            fourth.skip()
            first.skip()
            assert await peer.receive() == b"third"
            assert scene.connection().pending_replies == 0

    play(story)


def test_a_reply_is_completed_once() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"a", b"b")
            await until(lambda: len(handler.replies) == 2)
            handler.replies[1].skip()
            handler.replies[0].send([framed(b"one")])
            for reply in handler.replies:
                with pytest.raises(ReplyAnswered):
                    reply.send([framed(b"two")])
                with pytest.raises(ReplyAnswered):
                    reply.skip()
            await peer.send(b"c")
            await until(lambda: len(handler.replies) == 3)
            handler.replies[2].send([framed(b"three")])
            assert [await peer.receive(), await peer.receive()] == [b"one", b"three"]

    play(story)


def test_a_stream_may_be_cut_at_any_byte() -> None:
    contents = [b"one", b"", b"three" * 3]
    stream = b"".join(framed(content) for content in contents)

    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peer = await scene.peer()
            arrived = 0
            for cut in range(1, len(stream)):
                for part in (stream[:cut], stream[cut:]):
                    await peer.send_raw(part)
                    arrived += len(part)
                    await scene.received(arrived)
                assert [await peer.receive() for _ in contents] == contents

    play(story)


def test_a_peer_that_sends_byte_by_byte_is_understood() -> None:
    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peer = await scene.peer()
            for count, byte in enumerate(framed(b"slow") * 2, start=1):
                await peer.send_raw(bytes([byte]))
                await scene.received(count)
            assert handler.frames == [b"slow", b"slow"]

    play(story)


def test_frames_much_larger_than_the_buffer_arrive_whole_with_small_ones_around() -> None:
    large = bytes(range(256)) * 4 * 5000

    async def story() -> None:
        handler = Recorder()
        async with serving(handler) as scene:
            peer = await scene.peer()
            sending = asyncio.create_task(peer.send(b"before", large, b"between", large[:70_000], b"after"))
            expected = [b"before", large, b"between", large[:70_000], b"after"]
            assert [await peer.receive() for _ in expected] == expected
            await sending
            assert scene.server.counters.frames == 5

    play(story)


def test_the_handler_owns_a_frame_and_may_change_and_keep_it() -> None:
    kept: list[bytearray] = []

    def keep(connection: Connection, frame: bytearray) -> None:
        frame[0:1] = b"longer than it was"
        kept.append(frame)
        connection.reply().send([framed(b"ok")])

    async def story() -> None:
        kept.clear()
        async with serving(Recorder(keep)) as scene:
            peer = await scene.peer()
            await peer.send(b"1:a", b"2:b", b"3:" + b"c" * 200_000)
            for _ in range(3):
                await peer.receive()
            assert [bytes(frame[-2:]) for frame in kept] == [b":a", b":b", b"cc"]
            assert all(frame.startswith(b"longer") for frame in kept)

    play(story)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Every send and sendmsg of the process: which, by the socket of which local port, how many chunks."""
    made: list[tuple[str, int, int]] = []
    send, sendmsg = socket.socket.send, socket.socket.sendmsg

    def counted_send(self: socket.socket, data: Any, *rest: Any) -> int:
        made.append(("send", self.getsockname()[1], 1))
        return send(self, data, *rest)

    def counted_sendmsg(self: socket.socket, chunks: Any, *rest: Any) -> int:
        made.append(("sendmsg", self.getsockname()[1], len(chunks)))
        return sendmsg(self, chunks, *rest)

    monkeypatch.setattr(socket.socket, "send", counted_send, raising=False)
    monkeypatch.setattr(socket.socket, "sendmsg", counted_sendmsg, raising=False)
    return made


def test_many_frames_in_one_packet_are_answered_by_one_call(calls: list[tuple[str, int, int]]) -> None:
    async def story() -> None:
        calls.clear()
        async with serving(Recorder()) as scene:
            peer = await scene.peer()
            contents = [b"%d" % number for number in range(90)]
            await peer.send(*contents)
            assert [await peer.receive() for _ in contents] == contents
            by_server = [call for call in calls if call[1] == scene.port]
            # A packet may be received in two parts, hardly in more.
            assert sum(count for _, _, count in by_server) == 90
            assert len(by_server) <= 2

    play(story)


def test_answers_that_become_ready_in_one_turn_of_the_loop_leave_together(calls: list[tuple[str, int, int]]) -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(*[b"?"] * 50)
            await until(lambda: len(handler.replies) == 50)
            calls.clear()
            for reply in handler.replies[:49]:
                reply.send([framed(b"!")])
            for _ in range(49):
                assert await peer.receive() == b"!"
            assert [call for call in calls if call[1] == scene.port] == [("sendmsg", scene.port, 49)]

    play(story)


def test_a_lone_answer_leaves_in_the_call_that_completes_it(calls: list[tuple[str, int, int]]) -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            await until(lambda: len(handler.replies) == 1)
            calls.clear()
            handler.replies[0].send([framed(b"!")])
            assert calls == [("send", scene.port, 1)]
            assert scene.connection().unsent_bytes == 0
            assert await peer.receive() == b"!"

    play(story)


def test_an_answer_sent_just_before_closing_still_arrives() -> None:
    def answer_and_close(connection: Connection, frame: bytearray) -> None:
        connection.reply().send([framed(b"bye"), framed(frame)])
        connection.close("enough")

    async def story() -> None:
        handler = Recorder(answer_and_close)
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"last")
            assert [await peer.receive(), await peer.receive()] == [b"bye", b"last"]
            assert await peer.ended()
            assert handler.closings == ["enough"]

    play(story)


def test_what_came_behind_the_last_frame_does_not_cost_the_peer_its_answer() -> None:
    """A socket that is closed with bytes unread resets the connection, unless they are taken out first."""
    answer = framed(b"x" * 300_000)

    def answer_and_close(connection: Connection, frame: bytearray) -> None:
        connection.reply().send([answer])
        connection.close("enough")

    async def story() -> None:
        async with serving(Recorder(answer_and_close)) as scene:
            peer = await scene.peer(receive_buffer_bytes=8192)
            await peer.send(b"last", b"never seen" * 10_000)
            assert await peer.receive_raw(len(answer)) == answer
            assert await peer.ended()

    play(story)


def test_closed_is_never_called_from_within_the_handlers_calls() -> None:
    told_meanwhile: list[int] = []

    async def story() -> None:
        def close(connection: Connection, frame: bytearray) -> None:
            connection.close("first")
            connection.close("second")
            told_meanwhile.append(len(handler.closings))
            connection.reply().send([framed(b"to no one")])

        told_meanwhile.clear()
        handler = Recorder(close)
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"1", b"2")
            assert await peer.ended()
            await until(lambda: bool(handler.closings))
        assert told_meanwhile == [0]
        assert handler.closings == ["first"]
        assert handler.frames == [b"1"]

    play(story)


def test_a_handler_that_fails_loses_that_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    def fail_on_demand(connection: Connection, frame: bytearray) -> None:
        if frame == b"fail":
            raise LookupError("a mistake")
        connection.reply().send([framed(frame)])

    async def story() -> None:
        handler = Recorder(fail_on_demand)
        async with serving(handler) as scene:
            unlucky, other = await scene.peer(), await scene.peer()
            await unlucky.send(b"works", b"fail", b"never seen")
            assert await unlucky.receive() == b"works"
            assert await unlucky.ended()
            await other.send(b"still here")
            assert await other.receive() == b"still here"
            assert "a mistake" in handler.closings[0]
            assert b"never seen" not in handler.frames

    play(story)
    assert "handler failed" in caplog.text
    assert "LookupError: a mistake" in caplog.text


def test_a_handler_that_rejects_a_connection_by_an_exception_hears_of_its_end() -> None:
    class Rejecting(Recorder):
        def connected(self, connection: Connection) -> None:
            raise PermissionError("not you")

    async def story() -> None:
        handler = Rejecting()
        async with serving(handler) as scene:
            peer = await scene.peer()
            assert await peer.ended()
            assert len(handler.closings) == 1
            assert scene.server.counters.connections == 0

    play(story)


def test_state_belongs_to_the_user_of_the_connection() -> None:
    def count(connection: Connection, frame: bytearray) -> None:
        connection.state = (connection.state or 0) + 1
        connection.reply().send([framed(b"%d" % connection.state)])

    async def story() -> None:
        async with serving(Recorder(count)) as scene:
            first, second = await scene.peer(), await scene.peer()
            for expected in (b"1", b"2"):
                for peer in (first, second):
                    await peer.send(b"?")
                    assert await peer.receive() == expected

    play(story)


def test_the_counters_show_what_went_through() -> None:
    async def story() -> None:
        async with serving(Recorder()) as scene:
            peer, other = await scene.peer(), await scene.peer()
            await peer.send(b"12345", b"678")
            await peer.receive()
            await peer.receive()
            counters = scene.server.counters
            await until(lambda: counters.accepted == 2)
            assert (counters.connections, counters.frames, counters.rejected) == (2, 2, 0)
            assert counters.bytes_in == counters.bytes_out == 16
            other.close()
            await until(lambda: counters.connections == 1)
            assert counters.accepted == 2

    play(story)


def test_a_port_in_use_is_named() -> None:
    async def story() -> None:
        async with serving(Recorder()) as scene:
            second = SocketServer(asyncio.get_running_loop(), Recorder(), Limits(), SystemClock())
            with pytest.raises(AddressInUse, match=f"127.0.0.1:{scene.port}: the address is in use") as caught:
                second.listen("127.0.0.1", scene.port)
            assert caught.value.address == f"127.0.0.1:{scene.port}"
            await second.close(0)

    play(story)


@pytest.mark.parametrize(
    ("host", "port"), [("192.0.2.1", 0), ("no.such.host.invalid", 0), ("x" * 300, 0), ("127.0.0.1", 70_000)]
)
def test_an_address_that_cannot_be_bound_is_named(host: str, port: int) -> None:
    async def story() -> None:
        server = SocketServer(asyncio.get_running_loop(), Recorder(), Limits(), SystemClock())
        with pytest.raises(CannotListen) as caught:
            server.listen(host, port)
        assert caught.value.address == f"{host}:{port}"
        await server.close(0)
        with pytest.raises(ServerClosed):
            server.listen("127.0.0.1", 0)

    play(story)


def test_a_server_listens_at_several_addresses_ipv6_among_them() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")

    async def story() -> None:
        handler = Recorder()
        server = SocketServer(asyncio.get_running_loop(), handler, Limits(), SystemClock())
        loopback = server.listen("::1", 0)
        everywhere = server.listen("", 0)
        assert loopback[0] == "::1"
        for target in (loopback, ("127.0.0.1", everywhere[1]), ("::1", everywhere[1])):
            reader, writer = await asyncio.open_connection(*target)
            writer.write(framed(b"hi"))
            assert await reader.readexactly(6) == framed(b"hi")
            writer.close()
            await writer.wait_closed()
        hosts = [connection.peer.rpartition(":")[0] for connection in handler.connections]
        assert hosts == ["[::1]", "127.0.0.1", "[::1]"]
        await server.close(0)

    play(story)


def test_a_name_is_listened_on_at_its_first_ipv4_address() -> None:
    async def story() -> None:
        server: Server = SocketServer(asyncio.get_running_loop(), Recorder(), Limits(), SystemClock())
        assert server.listen("localhost", 0)[0] == "127.0.0.1"
        await server.close(0)

    play(story)


def test_limits_that_make_no_sense_are_rejected() -> None:
    for name in ("max_frame_bytes", "max_pending_replies", "max_output_bytes", "backlog"):
        with pytest.raises(ValueError, match=name):
            Limits(**cast(Any, {name: 0}))
    with pytest.raises(ValueError, match="idle_ms"):
        Limits(idle_ms=-1)
