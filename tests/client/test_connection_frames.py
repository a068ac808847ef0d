"""Frames, however they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.connection import BUFFER_BYTES, FrameReceiver
from penstock.wire.errors import FrameTooLarge, NegativeFrame


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


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
def test_frames_come_out_as_they_went_in_whatever_the_pieces(sizes: list[int], piece: int) -> None:
    payloads = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    receiver = FrameReceiver(1 << 20)
    assert receive(receiver, b"".join(map(framed, payloads)), piece) == payloads
    assert receiver.pending_bytes == 0


@pytest.mark.parametrize("piece", [1 << 30, 40_000, 65_537])
def test_a_frame_larger_than_the_buffer_is_received_into_its_own(piece: int) -> None:
    large = bytes(range(256)) * 20_000
    stream = framed(b"before") + framed(large) + framed(b"after")
    assert receive(FrameReceiver(1 << 30), stream, piece) == [b"before", large, b"after"]


def test_a_truncated_frame_waits_for_more() -> None:
    receiver = FrameReceiver(1 << 20)
    stream = framed(b"x" * 100)
    assert receive(receiver, stream[:50], 50) == []
    assert receiver.pending_bytes == 50
    assert receive(receiver, stream[50:], 50) == [b"x" * 100]


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_arrive() -> None:
    receiver = FrameReceiver(1000)
    with pytest.raises(FrameTooLarge) as caught:
        receive(receiver, framed(b"good") + (1001).to_bytes(4, "big"), 100)
    assert caught.value.frames == [bytearray(b"good")]


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(NegativeFrame):
        receive(FrameReceiver(1000), b"\xff\xff\xff\xff", 4)


def test_memory_follows_arrival_not_announcement() -> None:
    receiver = FrameReceiver(1 << 30)
    receive(receiver, (500 << 20).to_bytes(4, "big") + b"x" * 10, 100)
    assert len(receiver.get_buffer()) <= 1 << 20
    receive(receiver, bytes(3 << 20), BUFFER_BYTES)
    assert len(receiver.get_buffer()) <= 4 << 20
