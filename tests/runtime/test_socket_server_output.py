"""Replies of all kinds and sizes, and peers that do not read them."""

from __future__ import annotations

import asyncio
import os
import weakref
from pathlib import Path

import pytest
from tests.runtime.socket_stories import Later, Recorder, Region, framed, play, serving, until

from penstock.runtime.files import File, PosixFiles
from penstock.runtime.network import Chunk, Connection, Limits
from penstock.runtime.socket_io import STEP_BYTES, TURN_BYTES, PageMover
from penstock.testing.simulated_files import SimulatedFiles

CONTENT = os.urandom(3 * 1024 * 1024)


@pytest.fixture
def file(tmp_path: Path) -> File:
    path = tmp_path / "content"
    path.write_bytes(CONTENT)
    return PosixFiles().open(str(path))


def expected(chunks: list[Chunk]) -> bytes:
    parts = []
    for chunk in chunks:
        if isinstance(chunk, bytes | bytearray | memoryview):
            parts.append(bytes(chunk))
        else:
            parts.append(chunk.file.read_at(chunk.position, chunk.size))
    return b"".join(parts)


def medley(file: File) -> list[Chunk]:
    """Buffers of every type between regions: large, small, empty, neighbours."""
    return [
        b"head",
        Region(file, 0, 2_500_000),
        bytearray(b"between"),
        b"",
        Region(file, 17, 100),
        Region(file, 5, 0),
        Region(file, 1_000_000, 16 * 1024),
        memoryview(CONTENT)[7:900_000],
        Region(file, 2_000_000, 20_000),
        Region(file, 2_000_001, len(CONTENT) - 2_000_001),
        b"tail",
    ]


@pytest.mark.parametrize("send_buffer_bytes", [-1, 4096])
def test_regions_and_buffers_leave_in_their_order_whatever_the_socket_takes(file: File, send_buffer_bytes: int) -> None:
    chunks = medley(file)
    content = expected(chunks)

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send(chunks))
        async with serving(handler, Limits(send_buffer_bytes=send_buffer_bytes)) as scene:
            peer = await scene.peer(receive_buffer_bytes=max(0, send_buffer_bytes))
            await peer.send(b"1", b"2")
            assert await peer.receive_raw(2 * len(content)) == content * 2
            await until(lambda: scene.connection().unsent_bytes == 0)
            assert scene.server.counters.bytes_out == 2 * len(content)

    play(story)


@pytest.mark.parametrize("has_splice", [True, False])
def test_large_regions_are_moved_and_small_ones_are_read(
    has_splice: bool, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_splice and not hasattr(os, "splice"):
        pytest.skip("splice is Linux's")
    if not has_splice:
        monkeypatch.delattr(os, "splice", raising=False)
    large = Region(file, 1000, 2_500_000)
    chunks: list[Chunk] = [b"head", large, Region(file, 17, 100), b"tail"]
    moved: list[tuple[int, int]] = []
    send = PageMover.send

    def counted(self: PageMover, target: int, source: int, position: int, count: int) -> tuple[int, int]:
        assert source == file.fileno()
        sent, taken = send(self, target, source, position, count)
        moved.append((position, sent))
        return sent, taken

    monkeypatch.setattr(PageMover, "send", counted)

    async def story() -> None:
        moved.clear()
        handler = Recorder(lambda connection, frame: connection.reply().send(chunks))
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            assert await peer.receive_raw(len(expected(chunks))) == expected(chunks)
        position = large.position
        for begin, count in moved:
            assert begin == position
            position += count
        # The last pages may be read together with what follows them.
        assert 0 <= large.position + large.size - position <= 16 * 1024

    play(story)


def test_regions_of_a_disk_without_descriptors_are_read() -> None:
    file = SimulatedFiles().open("/content", create=True)
    file.write_at(0, CONTENT)
    chunks = medley(file)

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send(chunks))
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            assert await peer.receive_raw(len(expected(chunks))) == expected(chunks)

    play(story)


def test_more_chunks_than_one_call_takes() -> None:
    chunks: list[Chunk] = [b"%04d" % number for number in range(5000)]

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send(chunks))
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            assert await peer.receive_raw(20_000) == expected(chunks)

    play(story)


@pytest.mark.parametrize(
    ("size", "missing"), [(100, 10), (1_000_000, 10), (1_000_000, 100_000), (1_000_000, 2_000_000)]
)
def test_a_file_that_is_shorter_than_promised_ends_the_connection(
    file: File, size: int, missing: int, caplog: pytest.LogCaptureFixture
) -> None:
    region = Region(file, len(CONTENT) - size + missing, size)
    absent = min(missing, size)

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send([b"head", region, b"tail"]))
        async with serving(handler) as scene:
            peer, other = await scene.peer(), await scene.peer()
            await peer.send(b"?")
            received = await peer.receive_raw(size + 8)
            assert len(received) <= size - absent + 4
            assert b"tail" not in received[-8:]
            await until(lambda: bool(handler.closings))
            assert handler.closings == [f"{file.path} ends {absent} bytes before the end of the region to send"]
            assert not scene.connection().closed
            other.close()

    play(story)
    assert f"ends {absent} bytes before" in caplog.text


def test_a_file_that_was_closed_ends_the_connection(file: File) -> None:
    file.close()

    async def story() -> None:
        handler = Recorder(lambda connection, frame: connection.reply().send([Region(file, 0, 100_000)]))
        async with serving(handler) as scene:
            peer = await scene.peer()
            await peer.send(b"?")
            assert await peer.ended()
            assert "Bad file descriptor" in handler.closings[0]

    play(story)


def test_a_region_keeps_its_file_until_it_has_left_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "content"

    async def story() -> None:
        path.write_bytes(CONTENT)
        handler = Later()
        async with serving(handler, Limits(send_buffer_bytes=4096)) as scene:
            peer = await scene.peer(receive_buffer_bytes=4096)
            await peer.send(b"?")
            await until(lambda: len(handler.replies) == 1)
            file = PosixFiles().open(str(path))
            witness = weakref.ref(file)
            handler.replies.pop().send([Region(file, 0, len(CONTENT))])
            del file
            path.unlink()
            assert witness() is not None
            assert await peer.receive_raw(len(CONTENT)) == CONTENT
            await until(lambda: witness() is None)

    play(story)


def test_a_peer_that_does_not_read_is_not_read_from_and_blocks_no_other() -> None:
    answer = framed(b"x" * 50_000)
    limits = Limits(max_output_bytes=200_000, send_buffer_bytes=8192)

    def answer_long(connection: Connection, frame: bytearray) -> None:
        connection.reply().send([answer] if frame == b"long" else [framed(frame)])

    async def story() -> None:
        handler = Recorder(answer_long)
        async with serving(handler, limits) as scene:
            deaf, other = await scene.peer(receive_buffer_bytes=8192), await scene.peer()
            asking = asyncio.create_task(deaf.send(*[b"long"] * 20_000))
            connection = scene.connection()
            await until(lambda: connection.unsent_bytes > limits.max_output_bytes // 2)
            for number in range(200):
                await other.send(b"%d" % number)
                assert await other.receive() == b"%d" % number
                assert connection.unsent_bytes <= limits.max_output_bytes + len(answer)
                assert connection.unread_bytes <= 64 * 1024
            asked = handler.frames.count(b"long")
            assert asked < 100
            # It begins to read, and gets everything that it asks for.
            for _ in range(200):
                assert await deaf.receive_raw(len(answer)) == answer
            assert handler.frames.count(b"long") > asked
            asking.cancel()

    play(story)


def test_a_peer_with_too_many_unanswered_frames_is_read_again_at_half() -> None:
    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(max_pending_replies=10)) as scene:
            peer, other = await scene.peer(), await scene.peer()
            await peer.send(*[b"%d" % number for number in range(100)])
            await until(lambda: len(handler.replies) == 10)
            connection = scene.connection()
            await other.send(b"other")
            await until(lambda: handler.frames[-1] == b"other")
            handler.replies.pop().skip()
            assert (len(handler.replies), connection.pending_replies) == (10, 10)
            for number in range(4):
                handler.replies[number].send([framed(b"%d" % number)])
            for number in range(4):
                assert await peer.receive() == b"%d" % number
            assert (len(handler.replies), connection.pending_replies) == (10, 6)
            handler.replies[4].send([framed(b"4")])
            await until(lambda: len(handler.replies) == 15)
            assert connection.pending_replies == 10
            number = 5
            while number < 100:
                await until(lambda: len(handler.replies) > number)  # noqa: B023 - awaited before it changes
                handler.replies[number].send([framed(b"%d" % number)])
                number += 1
            assert [int(await peer.receive()) for _ in range(96)] == list(range(4, 100))
            assert handler.frames[:10] + handler.frames[11:] == [b"%d" % number for number in range(100)]

    play(story)


def test_back_pressure_stops_in_the_middle_of_a_large_frame_and_resumes() -> None:
    large = os.urandom(1_000_000)

    async def story() -> None:
        handler = Later()
        async with serving(handler, Limits(max_pending_replies=1)) as scene:
            peer = await scene.peer()
            sending = asyncio.create_task(peer.send(b"1", large, b"3", large))
            for number in range(4):
                await until(lambda: len(handler.replies) > number)  # noqa: B023 - awaited before it changes
                assert len(handler.replies) == number + 1
                assert scene.connection().unread_bytes <= 128 * 1024
                handler.replies[number].send([framed(b"%d" % number)])
                assert await peer.receive() == b"%d" % number
            await sending
            assert handler.frames == [b"1", large, b"3", large]

    play(story)


def test_replies_that_wait_for_an_earlier_one_count_as_output() -> None:
    limits = Limits(max_output_bytes=100_000)

    async def story() -> None:
        handler = Later()
        async with serving(handler, limits) as scene:
            peer = await scene.peer()
            await peer.send(b"1", b"2", b"3")
            await until(lambda: len(handler.replies) == 3)
            handler.replies[1].send([b"x" * 60_000])
            handler.replies[2].send([b"y" * 60_000])
            assert scene.connection().unsent_bytes == 120_000
            await peer.send(b"4")
            await scene.received(4 * 5)
            assert len(handler.replies) == 3
            handler.replies[0].send([b"first"])
            assert await peer.receive_raw(120_005) == b"first" + b"x" * 60_000 + b"y" * 60_000
            await until(lambda: len(handler.replies) == 4)

    play(story)


def test_one_reader_of_much_leaves_turns_to_the_others(file: File) -> None:
    """However much the socket takes, a connection sends a megabyte or two, and then others are served before it
    continues."""
    many: list[Chunk] = [Region(file, 0, len(CONTENT)), *[b"x" * 60_000] * 100] * 3

    async def story() -> None:
        handler = Later()
        async with serving(handler) as scene:
            greedy, modest = await scene.peer(), await scene.peer()
            await greedy.send(b"much")
            await until(lambda: len(handler.replies) == 1)
            reading = asyncio.create_task(greedy.receive_raw(len(expected(many))))
            counters = scene.server.counters
            handler.replies[0].send(many)
            sent = counters.bytes_out
            assert 0 < sent <= TURN_BYTES + STEP_BYTES
            await modest.send(b"hi")
            while len(handler.replies) == 1:
                await asyncio.sleep(0)
                assert counters.bytes_out - sent <= TURN_BYTES + STEP_BYTES
                sent = counters.bytes_out
            handler.replies[1].send([framed(b"hi")])
            assert await modest.receive() == b"hi"
            assert await reading == expected(many)

    play(story)
