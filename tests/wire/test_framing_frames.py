"""Frames out of a stream that arrives in any pieces, and lengths that must not be believed."""

from __future__ import annotations

import tracemalloc
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import FrameTooLarge, NegativeFrame
from penstock.wire.framing import FrameDecoder


def framed(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


@given(st.lists(st.binary(max_size=60), max_size=8), st.lists(st.integers(1, 40), max_size=40))
def test_any_split_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = framed(*bodies)
    decoder = FrameDecoder()
    frames: list[bytearray] = []
    position = 0
    for cut in [*cuts, len(stream) + 1]:
        frames += decoder.feed(stream[position : position + cut])
        position += cut
    assert frames == bodies
    assert decoder.pending == 0


def test_a_truncated_frame_waits_for_more() -> None:
    decoder = FrameDecoder()
    stream = framed(b"hello")
    for end in range(1, len(stream)):
        assert decoder.feed(stream[end - 1 : end]) == []
        assert decoder.pending == end
    assert decoder.missing == 1
    assert decoder.feed(stream[-1:]) == [b"hello"]
    assert (decoder.pending, decoder.missing) == (0, 0)


def test_an_empty_frame_is_a_frame() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(framed(b"", b"a", b"")) == [b"", b"a", b""]
    assert decoder.feed(b"\0\0") == []
    assert decoder.feed(b"\0\0") == [b""]


def test_frames_are_writable_and_do_not_share_memory_with_what_was_received() -> None:
    received = bytearray(framed(b"hello", b"world") + b"\0\0\0\5he")
    decoder = FrameDecoder()
    first, second = decoder.feed(memoryview(received))
    received[:] = bytes(len(received))
    (third,) = decoder.feed(b"llo")
    assert [first, second, third] == [b"hello", b"world", b"hello"]
    memoryview(first)[0:1] = b"j"
    assert [first, second] == [b"jello", b"world"]


@pytest.mark.parametrize("split", [1, 4])
def test_an_oversize_length_is_refused_as_soon_as_it_is_seen(split: int) -> None:
    decoder = FrameDecoder(max_size=1000)
    prefix = pack(">i", 1001)
    for position in range(0, 4 - split, split):
        assert decoder.feed(prefix[position : position + split]) == []
    with pytest.raises(FrameTooLarge, match="1001") as refusal:
        decoder.feed(prefix[4 - split :])
    assert (refusal.value.size, refusal.value.limit) == (1001, 1000)


def test_a_frame_of_exactly_the_limit_passes() -> None:
    assert FrameDecoder(max_size=1000).feed(framed(bytes(1000))) == [bytes(1000)]


def test_a_negative_length_is_refused() -> None:
    with pytest.raises(NegativeFrame):
        FrameDecoder().feed(b"\xff\xff\xff\xff")
    # What an HTTP client sends to the wrong port reads as a length of over a gigabyte.
    with pytest.raises(FrameTooLarge):
        FrameDecoder().feed(b"GET / HTTP/1.1\r\n")


def test_frames_before_a_bad_length_are_not_lost() -> None:
    decoder = FrameDecoder(max_size=1000)
    with pytest.raises(FrameTooLarge) as refusal:
        decoder.feed(framed(b"good", b"also") + pack(">i", 5000))
    assert refusal.value.frames == [b"good", b"also"]


def test_after_a_bad_length_nothing_is_taken_any_more() -> None:
    decoder = FrameDecoder(max_size=1000)
    for data in (pack(">i", -5), framed(b"good"), b""):
        with pytest.raises(NegativeFrame):
            decoder.feed(data)


def test_memory_grows_with_what_arrives_not_with_what_is_announced() -> None:
    decoder = FrameDecoder(max_size=1 << 30)
    tracemalloc.start()
    try:
        decoder.feed(pack(">i", 1 << 29) + bytes(10))
        for _ in range(100):
            decoder.feed(bytes(1000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert decoder.missing == (1 << 29) - 100_010


def test_a_large_frame_in_small_pieces_is_not_copied_over_and_over() -> None:
    size, piece = 4 << 20, bytes(256)
    decoder = FrameDecoder()
    assert decoder.feed(pack(">i", size)) == []
    moved_bytes = capacity = 0
    for _ in range(size // len(piece) - 1):
        decoder.feed(piece)
        frame = decoder._frame
        assert frame is not None
        if frame.__alloc__() != capacity:
            capacity = frame.__alloc__()
            moved_bytes += len(frame)
    assert [len(frame) for frame in decoder.feed(piece)] == [size]
    # It grows in proportion: at worst, all reallocations together move a small multiple of the frame.
    assert moved_bytes < 20 * size
