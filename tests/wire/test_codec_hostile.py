"""Hostile bytes give a typed error or a message, with little memory, and nothing else."""

from __future__ import annotations

import tracemalloc
from random import Random
from struct import pack

import pytest
from tests.wire.generate import ALL_CASES, Case, Generator, check_every

from penstock.wire.codec import codec_for
from penstock.wire.errors import DecodeError, InvalidLength, InvalidUtf8, Truncated, UnexpectedNull
from penstock.wire.layout import Kind
from penstock.wire.schemas.describe_cluster import DescribeClusterResponse
from penstock.wire.schemas.fetch import FetchRequest
from penstock.wire.schemas.heartbeat import HeartbeatRequest
from penstock.wire.schemas.metadata import MetadataRequest, MetadataResponse
from penstock.wire.schemas.produce import ProduceRequest
from penstock.wire.types import BYTES, STRING, Message, Primitive

HUGE = 0x7FFFFFFF
HUGE_COMPACT = b"\xff\xff\xff\xff\x07"
MOST_BYTES = 2_000_000


class SmallGenerator(Generator):
    """Short content, so that every byte of a message can be tried."""

    def value(self, kind: Kind, name: str) -> object:
        if kind is STRING:
            return self.random.choice(("", "ab", "Ü"))
        if kind is BYTES or (isinstance(kind, Primitive) and kind.name == "records"):
            return self.random.randbytes(3)
        return super().value(kind, name)


def sample(case: Case, seed: int = 1) -> bytes:
    return codec_for(case.message, case.version).encode(SmallGenerator(seed).message(case.message, case.version))


def test_a_message_cut_anywhere_is_rejected() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        data = sample(case)
        for length in range(len(data)):
            with pytest.raises(DecodeError):
                codec.decode(data[:length])
            with pytest.raises(DecodeError):
                codec.decode(memoryview(data)[:length])

    check_every(ALL_CASES, check)


def test_random_bytes_are_a_message_or_a_typed_error() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        random = Random(str(case))
        for _ in range(60):
            data = random.randbytes(random.randrange(200))
            try:
                message, end = codec.decode(data)
            except DecodeError:
                continue
            assert type(message) is case.message
            assert end <= len(data)

    check_every(ALL_CASES, check)


def test_damage_at_any_byte_is_a_message_or_a_typed_error_in_little_memory() -> None:
    def check(case: Case) -> None:
        codec = codec_for(case.message, case.version)
        data = sample(case)
        codec.decode(data)
        tracemalloc.start()
        try:
            for position in range(0, len(data), 1 + len(data) // 40):
                for damage in (pack(">i", HUGE), HUGE_COMPACT, b"\xff", b"\x80\x00", b"\x7f"):
                    damaged = data[:position] + damage + data[position + len(damage) :]
                    try:
                        codec.decode(damaged)
                    except DecodeError:
                        continue
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < MOST_BYTES

    check_every(ALL_CASES, check)


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (MetadataRequest, 0, pack(">i", HUGE)),
        (MetadataRequest, 9, HUGE_COMPACT),
        (ProduceRequest, 9, b"\0" + pack(">hi", 1, 1000) + HUGE_COMPACT),
        (FetchRequest, 4, pack(">iiiibi", -1, 500, 1, 1 << 20, 0, HUGE)),
        (MetadataResponse, 0, pack(">ii", HUGE, HUGE)),
    ],
)
def test_a_count_beyond_the_bytes_left_takes_no_memory(message: type[Message], version: int, data: bytes) -> None:
    codec = codec_for(message, version)
    padded = data + bytes(4096)
    tracemalloc.start()
    try:
        with pytest.raises(Truncated, match="announces 214748364"):
            codec.decode(padded)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_an_announced_count_may_use_every_byte_left_but_not_one_more() -> None:
    codec = codec_for(MetadataRequest, 0)
    message, end = codec.decode(pack(">i", 3) + bytes(6))
    assert (len(message.topics or []), end) == (3, 10)
    with pytest.raises(Truncated):
        codec.decode(pack(">i", 4) + bytes(6))


@pytest.mark.parametrize("data", [b"\x02\xff", b"\x03\xc3\x28", b"\x02\xc3"])
def test_a_string_that_is_not_utf8_is_rejected(data: bytes) -> None:
    rest = pack(">i", 1) + b"\2m\0\0"
    with pytest.raises(InvalidUtf8):
        codec_for(HeartbeatRequest, 4).decode(data + rest)


def test_a_string_that_is_not_utf8_is_rejected_beside_records() -> None:
    data = b"\2\xff" + pack(">hi", 1, 1000) + b"\1\0"
    with pytest.raises(InvalidUtf8):
        codec_for(ProduceRequest, 9).decode(memoryview(data))


def test_null_where_a_value_is_required_is_rejected() -> None:
    with pytest.raises(UnexpectedNull, match="group_id"):
        codec_for(HeartbeatRequest, 0).decode(pack(">hih", -1, 1, 0))
    with pytest.raises(UnexpectedNull, match="group_id"):
        codec_for(HeartbeatRequest, 4).decode(bytes(20))
    with pytest.raises(UnexpectedNull, match="topics"):
        codec_for(MetadataRequest, 0).decode(pack(">i", -1))


def test_lengths_below_minus_one_are_rejected() -> None:
    with pytest.raises(InvalidLength):
        codec_for(HeartbeatRequest, 0).decode(pack(">hih", -2, 1, 0))
    with pytest.raises(InvalidLength):
        codec_for(MetadataRequest, 1).decode(pack(">i", -2))
    with pytest.raises(InvalidLength):
        codec_for(DescribeClusterResponse, 0).decode(pack(">ih", 0, 0) + b"\xff\xff\xff\xff\xff\xff")


def test_a_string_longer_than_the_protocol_allows_is_rejected() -> None:
    too_long = b"\x81\x80\x02"
    data = too_long + b"x" * 0x8000 + pack(">i", 1) + b"\2m\0\0"
    with pytest.raises(InvalidLength, match="32768"):
        codec_for(HeartbeatRequest, 4).decode(data)


def test_a_tagged_section_that_promises_more_than_there_is_is_rejected() -> None:
    start = b"\2g" + pack(">i", 1) + b"\2m" + b"\0"
    codec = codec_for(HeartbeatRequest, 4)
    for tags in (HUGE_COMPACT, b"\1\0" + HUGE_COMPACT, b"\1\0\5ab", b"\1", b"\2\0\0", b"\1\xff"):
        with pytest.raises(DecodeError):
            codec.decode(start + tags)


def test_a_tag_given_twice_is_rejected() -> None:
    start = b"\2g" + pack(">i", 1) + b"\2m" + b"\0"
    with pytest.raises(DecodeError, match="twice"):
        codec_for(HeartbeatRequest, 4).decode(start + b"\2\7\1a\7\1b")


@pytest.mark.parametrize("value", [b"\3a", b"\2", b"\2ab", b"\0\0", b""])
def test_a_known_tagged_field_must_fill_its_size(value: bytes) -> None:
    codec = codec_for(FetchRequest, 12)
    data = codec.encode(FetchRequest())
    assert data[-1] == 0
    cluster_id = b"\1\0" + bytes([len(value)]) + value
    with pytest.raises(DecodeError):
        codec.decode(data[:-1] + cluster_id)


@pytest.mark.parametrize("announced", [6, 1000, HUGE])
def test_records_beyond_the_end_are_rejected(announced: int) -> None:
    start = pack(">hii", 1, 1000, 1) + pack(">h1si", 1, b"t", 1)
    with pytest.raises(Truncated):
        codec_for(ProduceRequest, 0).decode(start + pack(">ii", 0, announced) + b"short")
