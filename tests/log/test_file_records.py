from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pytest
from tests.log.log_stories import batch_of

from penstock.log.file_records import Piece, Place, walk, walk_headers
from penstock.records import BatchHeader
from penstock.runtime.files import Buffer
from penstock.testing.simulated_files import SimulatedFiles

MIB = 1024 * 1024


class CountedFile:
    """A file of these bytes that remembers how much was read of it, and in how large pieces."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0
        self.bytes_read = 0
        self.largest_read = 0

    @property
    def path(self) -> str:
        return "/file"

    @property
    def closed(self) -> bool:
        return False

    def size(self) -> int:
        return len(self.data)

    def read_at(self, position: int, length: int) -> bytes:
        self.reads += 1
        data = self.data[position : position + length]
        self.bytes_read += len(data)
        self.largest_read = max(self.largest_read, len(data))
        return data

    def write_at(self, position: int, data: Buffer) -> None:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def fileno(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def log_of(*sizes: int) -> tuple[bytes, list[int]]:
    """Batches of one record with values of these sizes, and where each begins (and the last ends)."""
    batches = [bytes(batch_of(number, records=1, size=size, base_offset=number)) for number, size in enumerate(sizes)]
    return b"".join(batches), [0, *accumulate(map(len, batches))]


def positions(pieces: list[Piece]) -> list[int]:
    return [piece.position + header.position for piece in pieces for header in piece.headers]


def places(found: Iterator[Place | str]) -> tuple[list[Place], str | None]:
    walked: list[Place] = []
    for item in found:
        if isinstance(item, str):
            return walked, item
        walked.append(item)
    return walked, None


def test_every_batch_is_found_where_it_stands() -> None:
    data, starts = log_of(*[100, 5000, 10] * 400)
    pieces = list(walk(CountedFile(data), 0, len(data)))
    assert positions(pieces) == starts[:-1]
    assert pieces[-1].end == len(data)
    assert {piece.problem for piece in pieces} == {None}
    first = pieces[0].headers[1]
    assert pieces[0].bytes_of(first) == data[starts[1] : starts[2]]
    walked, problem = places(walk_headers(CountedFile(data), 0, len(data)))
    assert [place.position for place in walked] == starts[:-1]
    assert [place.end for place in walked] == starts[1:]
    assert problem is None


def test_a_walk_may_begin_and_end_at_any_batch() -> None:
    data, starts = log_of(*range(100, 120))
    assert positions(list(walk(CountedFile(data), starts[3], starts[9]))) == starts[3:9]
    walked, problem = places(walk_headers(CountedFile(data), starts[3], starts[9]))
    assert ([place.position for place in walked], problem) == (starts[3:9], None)


def test_nothing_is_found_in_an_empty_range() -> None:
    data, starts = log_of(100)
    assert list(walk(CountedFile(data), starts[1], starts[1])) == []
    assert places(walk_headers(CountedFile(data), 0, 0)) == ([], None)


def test_batches_larger_than_a_piece_are_read_whole() -> None:
    data, starts = log_of(3 * MIB, 100, MIB - 40, 2 * MIB, 7)
    assert positions(list(walk(CountedFile(data), 0, len(data)))) == starts[:-1]


def test_headers_of_large_batches_are_read_without_their_bodies() -> None:
    data, starts = log_of(*[MIB] * 5)
    file = CountedFile(data)
    walked, _ = places(walk_headers(file, 0, len(data)))
    assert [place.position for place in walked] == starts[:-1]
    assert file.bytes_read <= 5 * 4096


def test_headers_of_small_batches_are_read_many_at_a_time() -> None:
    data, _ = log_of(*[20] * 3000)
    file = CountedFile(data)
    walked, _ = places(walk_headers(file, 0, len(data)))
    assert len(walked) == 3000
    assert file.reads < 20


@pytest.mark.parametrize("missing", [1, 50, 100, 150, 170])
def test_a_torn_tail_ends_the_walk_before_it(missing: int) -> None:
    data, starts = log_of(100, 100, 100)
    torn = data[:-missing]
    pieces = list(walk(CountedFile(torn), 0, len(torn)))
    assert positions(pieces) == starts[:2]
    assert pieces[-1].end == starts[2]
    assert pieces[-1].problem == "incomplete"
    walked, problem = places(walk_headers(CountedFile(torn), 0, len(torn)))
    assert [place.position for place in walked] == starts[:2]
    assert problem is not None


@pytest.mark.parametrize("length", [0, 60, 171, 172, 300])
def test_a_file_shorter_than_it_was_ends_the_walk(length: int) -> None:
    data, starts = log_of(100, 100, 100)
    short = CountedFile(data[:length])
    whole = sum(end <= length for end in starts[1:])
    pieces = list(walk(short, 0, len(data)))
    assert positions(pieces) == starts[:whole]
    assert pieces[-1].problem is not None
    assert pieces[-1].end == starts[whole]
    _, problem = places(walk_headers(short, 0, len(data)))
    assert problem is not None or length > starts[2]


def test_a_wrong_checksum_is_found_only_with_verify() -> None:
    data, starts = log_of(100, 100, 100)
    damaged = bytearray(data)
    damaged[starts[1] + 90] ^= 1
    pieces = list(walk(CountedFile(bytes(damaged)), 0, len(data)))
    assert positions(pieces) == starts[:1]
    assert pieces[-1].problem == "checksum does not match"
    assert positions(list(walk(CountedFile(bytes(damaged)), 0, len(data), verify=False))) == starts[:-1]


@pytest.mark.parametrize(
    ("position", "byte", "reason"), [(16, 1, "magic 1"), (16, 255, "magic -1"), (8, 128, "length"), (0, 255, "offset")]
)
def test_a_header_that_makes_no_sense_ends_the_walk(position: int, byte: int, reason: str) -> None:
    data, starts = log_of(100, 100)
    damaged = bytearray(data)
    damaged[starts[1] + position] = byte
    pieces = list(walk(CountedFile(bytes(damaged)), 0, len(data)))
    assert pieces[-1].end == starts[1]
    assert reason in (pieces[-1].problem or "")
    walked, problem = places(walk_headers(CountedFile(bytes(damaged)), 0, len(data)))
    assert len(walked) == 1
    assert reason in (problem or "")


@pytest.mark.parametrize("blank", [11, 12, 61, 5000, 2 * MIB])
def test_zeros_are_not_batches(blank: int) -> None:
    data, starts = log_of(100)
    data += bytes(blank)
    pieces = list(walk(CountedFile(data), 0, len(data)))
    assert pieces[-1].end == starts[1]
    assert pieces[-1].problem is not None
    walked, problem = places(walk_headers(CountedFile(data), 0, len(data)))
    assert len(walked) == 1
    assert problem is not None


@pytest.mark.parametrize("claim", [2**31 - 1, 2**30, 4 * MIB])
def test_a_length_that_lies_takes_no_memory(claim: int) -> None:
    data, starts = log_of(100, 100)
    liar = bytearray(data)
    liar[starts[1] + 8 : starts[1] + 12] = claim.to_bytes(4, "big")
    file = CountedFile(bytes(liar) + bytes(3 * MIB))
    pieces = list(walk(file, 0, file.size()))
    assert pieces[-1].end == starts[1]
    assert "exceeds the rest of the file" in (pieces[-1].problem or "")
    assert file.largest_read <= MIB
    walked, problem = places(walk_headers(file, 0, file.size()))
    assert len(walked) == 1
    assert "exceeds the rest of the file" in (problem or "")


def test_a_length_that_lies_but_fits_the_file_is_rejected_without_holding_that_much() -> None:
    data, starts = log_of(100, 100)
    liar = bytearray(data)
    liar[starts[1] + 8 : starts[1] + 12] = (20 * MIB).to_bytes(4, "big")
    file = CountedFile(bytes(liar) + bytes(24 * MIB))
    pieces = list(walk(file, 0, file.size()))
    assert pieces[-1].end == starts[1]
    assert pieces[-1].problem == "checksum does not match"
    assert file.largest_read <= MIB


def test_a_batch_that_truly_is_very_large_is_read_whole() -> None:
    data, starts = log_of(100, 17 * MIB, 100)
    pieces = list(walk(CountedFile(data), 0, len(data)))
    assert positions(pieces) == starts[:-1]
    assert pieces[-1].problem is None


def test_places_are_positions_in_the_file_not_in_a_buffer() -> None:
    files = SimulatedFiles()
    data, starts = log_of(*[900] * 50)
    file = files.open("/file", create=True)
    file.write_at(0, data)
    walked, _ = places(walk_headers(file, starts[20], len(data)))
    assert [place.position for place in walked] == starts[20:-1]
    assert [place.header.base_offset for place in walked] == list(range(20, 50))
    assert all(isinstance(place.header, BatchHeader) for place in walked)
