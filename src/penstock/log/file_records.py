"""Reading the batches of a segment file in pieces of bounded size, whatever its bytes say.

The walk stops at the first batch that is damaged or incomplete and reports where and why. What it yields was checked:
the header always, the checksum with `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File

_PIECE = 1024 * 1024
_FIRST_LOOK = 4096
# Beyond this a length is taken for a lie until the checksum agrees.
_VERY_LARGE = 16 * 1024 * 1024
_CRC_POSITION, _CRC_START = 17, 21
# Reading a batch of this size on the way costs as much as another read behind it.
_LEAP = 32 * 1024


class Piece(NamedTuple):
    """A run of whole batches: header.position is relative to `buffer`, which begins at `position` of the file."""

    position: int
    buffer: bytes
    headers: list[BatchHeader]
    end: int
    problem: str | None

    def bytes_of(self, header: BatchHeader) -> memoryview:
        return memoryview(self.buffer)[header.position : header.position + header.size]


class Run(NamedTuple):
    """Headers of batches in a row: header.position is relative to `position` of the file."""

    position: int
    headers: list[BatchHeader]


class Place(NamedTuple):
    """A batch by its header and its position in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


def walk(file: File, start: int, end: int, *, verify: bool = True) -> Iterator[Piece]:
    """The batches of file[start:end], piece by piece; the last piece tells in `problem` why the walk ended early.

    A batch that claims to be very large is read whole only after its checksum has borne that out, piece by piece.
    """
    position, wanted = start, _PIECE
    while position < end:
        buffer = file.read_at(position, min(wanted, end - position))
        if not buffer:
            yield Piece(position, buffer, [], position, f"the file ends here, {end - position} bytes early")
            return
        found = scan(buffer, verify=verify)
        at_end = position + len(buffer) >= end or len(buffer) < wanted
        problem = found.problem
        if problem == "incomplete" and not at_end:
            if found.needed > end - position - found.end:
                problem = f"a batch of {found.needed} bytes does not fit what is left"
            elif found.needed > _VERY_LARGE and not _checksum_matches(file, position + found.end, found.needed):
                problem = "checksum does not match"
            else:
                problem = None
                # It stays so: where one batch is large the next ones are, and would be read in part first.
                wanted = max(wanted, found.needed)
        yield Piece(position, buffer, found.headers, position + found.end, problem)
        if problem is not None:
            return
        position += found.end


def _checksum_matches(file: File, position: int, size: int) -> bool:
    stored = int.from_bytes(file.read_at(position + _CRC_POSITION, _CRC_START - _CRC_POSITION), "big")
    crc, at, end = 0, position + _CRC_START, position + size
    while at < end:
        part = file.read_at(at, min(_PIECE, end - at))
        if not part:
            return False
        crc = crc32c(part, crc)
        at += len(part)
    return crc == stored


def walk_runs(file: File, start: int, end: int) -> Iterator[Run | str]:
    """The headers of the batches in file[start:end], run by run; a string, last, says what stopped the walk."""
    position, look = start, _FIRST_LOOK
    while position < end:
        buffer = file.read_at(position, min(look, end - position))
        found = scan(buffer, verify=False, whole=False)
        headers = found.headers
        beyond = headers.pop() if headers and position + found.end > end else None
        if headers:
            yield Run(position, headers)
        if beyond is not None:
            yield f"a batch of {beyond.size} bytes does not fit what is left"
            return
        if found.problem not in (None, "incomplete"):
            yield found.problem or ""
            return
        if found.end == 0:
            yield "a batch header is cut off" if len(buffer) < HEADER_SIZE else f"{found.problem}"
            return
        position += found.end
        # Small batches: read many at once, bodies and all. Large ones: read headers only and leap over the rest.
        look = min(look * 4, _PIECE) if found.end <= _LEAP * len(headers) else _FIRST_LOOK


def walk_headers(file: File, start: int, end: int) -> Iterator[Place | str]:
    """Every batch's header and place in file[start:end]; a string, last, says what stopped the walk."""
    for run in walk_runs(file, start, end):
        if isinstance(run, str):
            yield run
            return
        for header in run.headers:
            yield Place(run.position + header.position, header)
