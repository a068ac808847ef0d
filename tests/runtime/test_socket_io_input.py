"""Frames arrive complete whatever the pieces, and memory follows arrival."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.socket_io import BUFFER_BYTES, FrameInput, FrameRejected

SIZES = st.one_of(
    st.integers(0, 40),
    st.integers(BUFFER_BYTES - 10, BUFFER_BYTES + 10),
    st.integers(0, 5 * BUFFER_BYTES),
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    with near, far:
        yield near, far


def content(number: int, size: int) -> bytes:
    return (pack(">i", number) * (size // 4 + 1))[:size]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(SIZES, max_size=8),
    cuts=st.lists(st.integers(1, 150_000), min_size=1, max_size=12),
    holds=st.booleans(),
)
def test_frames_come_out_as_they_went_in(sizes: list[int], cuts: list[int], holds: bool) -> None:
    frames = [content(number, size) for number, size in enumerate(sizes)]
    stream = b"".join(pack(">i", len(frame)) + frame for frame in frames)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        source = FrameInput(near, memoryview(bytearray(BUFFER_BYTES)), 2**30)
        found: list[bytes] = []
        # One cut of a byte among large ones is enough to meet every edge; only such cuts would take forever.
        cuts = [*cuts, 100_000]
        position = turn = arrived = 0
        while position < len(stream):
            position += far.send(stream[position : position + cuts[turn % len(cuts)]])
            turn += 1
            while arrived < position:
                arrived += source.receive()
                if holds:
                    source.hold()
                    source.unhold()
                while (frame := source.next_frame()) is not None:
                    found.append(bytes(frame))
                assert source.memory_bytes <= 2 * arrived
    assert found == frames
    assert source.memory_bytes == 0


def test_the_memory_of_a_frame_grows_with_what_has_arrived(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    source = FrameInput(near, memoryview(bytearray(BUFFER_BYTES)), 2**31 - 1)
    far.send(pack(">i", 2**31 - 1))
    arrived = source.receive() - 4
    assert source.next_frame() is None
    for _ in range(200):
        far.send(b"x" * 30_000)
        arrived += source.receive()
        assert source.next_frame() is None
        assert arrived <= source.memory_bytes <= 2 * arrived
    source.forget()
    assert source.memory_bytes == 0


def test_an_invalid_length_is_rejected_before_its_content_arrives(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    source = FrameInput(near, memoryview(bytearray(BUFFER_BYTES)), 10)
    for size, prefix in ((11, b"\x00\x00\x00\x0b"), (-2, b"\xff\xff\xff\xfe")):
        for part in (prefix[:3], prefix[3:]):
            far.send(part)
            source.receive()
            if part == prefix[:3]:
                assert source.next_frame() is None
        with pytest.raises(FrameRejected) as caught:
            source.next_frame()
        assert caught.value.size == size
        source.forget()


def test_the_end_of_a_stream_is_zero_bytes_and_an_empty_socket_an_error(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    source = FrameInput(near, memoryview(bytearray(BUFFER_BYTES)), 1000)
    with pytest.raises(BlockingIOError):
        source.receive()
    far.send(b"\x00\x00")
    source.receive()
    assert source.next_frame() is None
    with pytest.raises(BlockingIOError):
        source.receive()
    far.send(b"\x00\x01x")
    source.receive()
    assert source.next_frame() == bytearray(b"x")
    far.close()
    assert source.receive() == 0
