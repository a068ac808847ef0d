"""Frames from a stream that arrives in any pieces, and lengths that must not be trusted."""

from __future__ import annotations

import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.errors import FrameTooLarge, NegativeFrame
from penstock.wire.framing import BUFFER_BYTES, FrameReceiver


def framed(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


def receive(receiver: FrameReceiver, stream: bytes, piece: int) -> list[bytes]:
    frames: list[bytes] = []
    position = 0
    while position < len(stream):
        buffer = receiver.get_buffer()
        count = min(piece, len(buffer), len(stream) - position)
        buffer[:count] = stream[position : position + count]
        frames += map(bytes, receiver.received(count))
        position += count
    return frames


@given(st.lists(st.integers(0, 5_000), max_size=12), st.integers(1, 7_000))
@settings(max_examples=60, deadline=None)
def test_any_split_of_the_stream_gives_the_same_frames(sizes: list[int], piece: int) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    receiver = FrameReceiver(1 << 20)
    assert receive(receiver, framed(*payloads), piece) == payloads
    assert receiver.pending_bytes == 0


@pytest.mark.parametrize("piece", [1 << 30, 40_000, 65_537])
def test_a_frame_larger_than_the_buffer_is_received_into_its_own_memory(piece: int) -> None:
    large = bytes(range(256)) * 20_000
    assert receive(FrameReceiver(1 << 30), framed(b"before", large, b"after"), piece) == [b"before", large, b"after"]


def test_a_truncated_frame_waits_for_more() -> None:
    receiver = FrameReceiver(1 << 20)
    stream = framed(b"hello")
    for end in range(1, len(stream)):
        assert receive(receiver, stream[end - 1 : end], 1) == []
        assert receiver.pending_bytes == end
    assert receive(receiver, stream[-1:], 1) == [b"hello"]
    assert receiver.pending_bytes == 0


def test_an_empty_frame_is_a_frame() -> None:
    receiver = FrameReceiver(1 << 20)
    assert receive(receiver, framed(b"", b"a", b""), 100) == [b"", b"a", b""]
    assert receive(receiver, b"\0\0", 2) == []
    assert receive(receiver, b"\0\0", 2) == [b""]


def test_frames_do_not_share_memory_with_the_receive_buffer() -> None:
    receiver = FrameReceiver(1 << 20)
    stream = framed(b"hello", b"world") + b"\0\0\0\5he"
    receiver.get_buffer()[: len(stream)] = stream
    first, second = receiver.received(len(stream))
    receiver._view[:] = bytes(BUFFER_BYTES)
    receiver.get_buffer()[:3] = b"llo"
    (third,) = receiver.received(3)
    assert [first, second, third] == [b"hello", b"world", b"hello"]


@pytest.mark.parametrize("piece", [1, 4])
def test_a_length_above_the_limit_is_rejected_as_soon_as_it_is_read(piece: int) -> None:
    with pytest.raises(FrameTooLarge, match="1001") as caught:
        receive(FrameReceiver(1000), pack(">i", 1001), piece)
    assert (caught.value.size, caught.value.limit) == (1001, 1000)


def test_a_frame_of_exactly_the_limit_passes() -> None:
    assert receive(FrameReceiver(1000), framed(bytes(1000)), 2000) == [bytes(1000)]


def test_a_negative_length_is_rejected() -> None:
    with pytest.raises(NegativeFrame):
        receive(FrameReceiver(1000), b"\xff\xff\xff\xff", 4)
    # What an HTTP client sends to the wrong port reads as a length of over a gigabyte.
    with pytest.raises(FrameTooLarge):
        receive(FrameReceiver(100 << 20), b"GET / HTTP/1.1\r\n", 100)


def test_frames_before_a_bad_length_are_not_lost() -> None:
    with pytest.raises(FrameTooLarge) as caught:
        receive(FrameReceiver(1000), framed(b"good", b"also") + pack(">i", 5000), 100)
    assert caught.value.frames == [b"good", b"also"]


def test_memory_grows_with_arrival_not_with_the_announced_length() -> None:
    receiver = FrameReceiver(1 << 30)
    tracemalloc.start()
    try:
        receive(receiver, pack(">i", 500 << 20) + bytes(10), 100)
        receive(receiver, bytes(100_000), 1000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 << 20
    assert len(receiver.get_buffer()) <= 1 << 20
    receive(receiver, bytes(3 << 20), BUFFER_BYTES)
    assert len(receiver.get_buffer()) <= 4 << 20


def test_a_large_frame_in_small_pieces_is_not_copied_over_and_over() -> None:
    size, piece = 16 << 20, bytes(4096)
    receiver = FrameReceiver(size)
    receive(receiver, pack(">i", size), 4)
    moved_bytes = capacity = 0
    for _ in range(size // len(piece) - 1):
        receive(receiver, piece, len(piece))
        frame = receiver._frame
        assert frame is not None
        if frame.__alloc__() != capacity:
            capacity = frame.__alloc__()
            moved_bytes += len(frame)
    assert [len(frame) for frame in receive(receiver, piece, len(piece))] == [size]
    # It grows in proportion: all reallocations together move a small multiple of the frame.
    assert moved_bytes < 4 * size
