"""Long messages, read and written in slices: the same bytes, with pauses and a bound on elements."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest
from tests.wire.generate import ALL_CASES, Case, check_every
from tests.wire.generate import Generator as Made

from penstock.wire.codec import codec_for
from penstock.wire.errors import TooManyElements
from penstock.wire.schemas.fetch import FetchPartition, FetchRequest, FetchTopic

T = TypeVar("T")


def through(slices: Generator[None, None, T]) -> tuple[T, int]:
    """What a generator returns, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


def joined(chunks: list[Any]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


def test_what_is_read_and_written_in_slices_is_the_same() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        for seed in range(2):
            message = Made(seed).message(case.message, case.version)
            data = codec.encode(message)
            chunks, _ = through(codec.encode_slices(message))
            assert joined(chunks) == data
            for buffer in (data, bytearray(data)):
                (read, end), _ = through(codec.decode_slices(buffer, 0, 10**6))
                assert (read, end) == codec.decode(buffer)

    # Slices are compiled from the same plan as the rest, which is tested in every version.
    check_every([case for case in ALL_CASES if case.version in case.api.versions[:2]], check)


def test_long_messages_pause_after_a_thousand_elements_wherever_they_are() -> None:
    flat = [FetchPartition(partition=index) for index in range(10_000)]
    for request in (
        FetchRequest(topics=[FetchTopic(topic="a", partitions=flat)]),
        FetchRequest(topics=[FetchTopic(topic="a", partitions=[each]) for each in flat]),
    ):
        codec = codec_for(FetchRequest, 12)
        chunks, pauses = through(codec.encode_slices(request))
        assert pauses >= 9
        data = joined(chunks)
        assert data == codec.encode(request)
        (read, _), pauses = through(codec.decode_slices(data, 0, 20_000))
        assert pauses >= 9
        assert read == request


def test_more_elements_than_allowed_are_rejected_before_they_are_built() -> None:
    codec = codec_for(FetchRequest, 12)
    data = codec.encode(FetchRequest(topics=[FetchTopic(topic="a", partitions=[FetchPartition()] * 50)]))
    assert through(codec.decode_slices(data, 0, 51))[0] == codec.decode(data)
    with pytest.raises(TooManyElements, match=r"FetchTopic\.partitions"):
        next(codec.decode_slices(data, 0, 50))
    # A count that the bytes could hold, with nothing behind it that could be read.
    announced = data[:-1] + bytes(10_000)
    position = announced.index(b"\x02a") + 2
    lying = announced[:position] + b"\xff\x01" + announced[position + 1 :]
    with pytest.raises(TooManyElements):
        next(codec.decode_slices(lying, 0, 100))


def test_tagged_fields_count_too() -> None:
    codec = codec_for(FetchRequest, 12)
    partition = FetchPartition(unknown_tags=dict.fromkeys(range(100, 200), b""))
    data = codec.encode(FetchRequest(topics=[FetchTopic(topic="a", partitions=[partition] * 10)]))
    assert through(codec.decode_slices(data, 0, 1011))[0] == codec.decode(data)
    with pytest.raises(TooManyElements):
        through(codec.decode_slices(data, 0, 1010))
    many = FetchRequest(unknown_tags=dict.fromkeys(range(100, 1101), b""))
    with pytest.raises(TooManyElements):
        codec.decode(codec.encode(many))
