"""Reading the batches of a segment file in pieces of bounded size.

The walk stops at the first batch that is damaged or incomplete and reports where and why. What it yields was checked:
the header always, the checksum with `verify`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File

_PIECE_BYTES: Final = 1024 * 1024
_FIRST_READ_BYTES: Final = 4096
# A larger batch is not read as a whole before its checksum was verified.
_VERY_LARGE_BYTES: Final = 16 * 1024 * 1024
# Reading over a batch of this size costs as much as a second read after it.
_SKIP_BYTES: Final = 32 * 1024
_CRC_POSITION: Final = 17
_CRC_START: Final = 21


class Piece(NamedTuple):
    """Whole batches. `header.position` is relative to `buffer`, which starts at `position` of the file."""

    position: int
    buffer: bytes
    headers: list[BatchHeader]
    end: int
    problem: str | None

    def bytes_of(self, header: BatchHeader) -> memoryview:
        return memoryview(self.buffer)[header.position : header.position + header.size]


class Run(NamedTuple):
    """Headers of consecutive batches. `header.position` is relative to `position` of the file."""

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
    """The batches of file[start:end] in pieces. The last piece has in `problem` why the walk stopped early.

    A batch that claims to be very large is read as a whole only after its checksum was verified in pieces.
    """
    position, wanted = start, _PIECE_BYTES
    while position < end:
        buffer = file.read_at(position, min(wanted, end - position))
        if not buffer:
            yield Piece(position, buffer, [], position, f"the file ends {end - position} bytes early")
            return
        found = scan(buffer, verify=verify)
        at_end = position + len(buffer) >= end or len(buffer) < wanted
        problem = found.problem
        if problem == "incomplete" and not at_end:
            if found.needed > end - position - found.end:
                problem = f"batch of {found.needed} bytes exceeds the rest of the file"
            elif found.needed > _VERY_LARGE_BYTES and not _checksum_matches(file, position + found.end, found.needed):
                problem = "checksum does not match"
            else:
                problem = None
                # Keep it: after one large batch the next ones are large too, and would first be read in part.
                wanted = max(wanted, found.needed)
        yield Piece(position, buffer, found.headers, position + found.end, problem)
        if problem is not None:
            return
        position += found.end


def _checksum_matches(file: File, position: int, size: int) -> bool:
    stored = int.from_bytes(file.read_at(position + _CRC_POSITION, _CRC_START - _CRC_POSITION), "big")
    crc, at, end = 0, position + _CRC_START, position + size
    while at < end:
        part = file.read_at(at, min(_PIECE_BYTES, end - at))
        if not part:
            return False
        crc = crc32c(part, crc)
        at += len(part)
    return crc == stored


def walk_runs(file: File, start: int, end: int) -> Iterator[Run | str]:
    """The headers of the batches in file[start:end]. If the walk stops early, the last item is the reason."""
    position, look = start, _FIRST_READ_BYTES
    while position < end:
        buffer = file.read_at(position, min(look, end - position))
        found = scan(buffer, verify=False, whole=False)
        headers = found.headers
        beyond = headers.pop() if headers and position + found.end > end else None
        if headers:
            yield Run(position, headers)
        if beyond is not None:
            yield f"batch of {beyond.size} bytes exceeds the rest of the file"
            return
        if found.problem not in (None, "incomplete"):
            yield found.problem or ""
            return
        if found.end == 0:
            yield "incomplete batch header" if len(buffer) < HEADER_SIZE else f"{found.problem}"
            return
        position += found.end
        # Small batches: read many at once, with their records. Large ones: read headers only and skip the rest.
        look = min(look * 4, _PIECE_BYTES) if found.end <= _SKIP_BYTES * len(headers) else _FIRST_READ_BYTES


def walk_headers(file: File, start: int, end: int) -> Iterator[Place | str]:
    """The place of every batch in file[start:end]. If the walk stops early, the last item is the reason."""
    for run in walk_runs(file, start, end):
        if isinstance(run, str):
            yield run
            return
        for header in run.headers:
            yield Place(run.position + header.position, header)
