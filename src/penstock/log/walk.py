"""Walking the batches of a segment file.

Rule: a file is read in pieces that are bounded whatever its bytes say, and the walk stops at the first batch that is
damaged or cut off, saying where and why. What is yielded was checked: by its header, and with `verify` by its checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File

_PIECE = 1024 * 1024
_FIRST_LOOK = 4096


class Piece(NamedTuple):
    """A run of whole batches: header.position is relative to `buffer`, which begins at `position` of the file."""

    position: int
    buffer: bytes
    headers: list[BatchHeader]
    end: int
    problem: str | None

    def bytes_of(self, header: BatchHeader) -> memoryview:
        return memoryview(self.buffer)[header.position : header.position + header.size]


class Place(NamedTuple):
    """A batch by its header and its position in the file."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        return self.position + self.header.size


def walk(file: File, start: int, end: int, *, verify: bool = True, largest: int = 2**31) -> Iterator[Piece]:
    """The batches of file[start:end], piece by piece; the last piece tells in `problem` why the walk ended early.

    A batch that claims more than `largest` bytes is damage, not a reason to read that much.
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
            if found.needed > min(largest, end - position - found.end):
                problem = f"a batch of {found.needed} bytes does not fit what is left"
            else:
                problem = None
                wanted = max(_PIECE, found.needed)
        else:
            wanted = _PIECE
        yield Piece(position, buffer, found.headers, position + found.end, problem)
        if problem is not None:
            return
        position += found.end


def walk_headers(file: File, start: int, end: int) -> Iterator[Place | str]:
    """Every batch's header and place in file[start:end], bodies unread; a string, last, says what stopped the walk."""
    position, look = start, _FIRST_LOOK
    while position < end:
        buffer = file.read_at(position, min(look, end - position))
        found = scan(buffer, verify=False, whole=False)
        for header in found.headers:
            place = Place(position + header.position, header)
            if place.end > end:
                yield f"a batch of {header.size} bytes does not fit what is left"
                return
            yield place
        if found.problem not in (None, "incomplete"):
            yield found.problem or ""
            return
        if found.end == 0:
            yield "a batch header is cut off" if len(buffer) < HEADER_SIZE else f"{found.problem}"
            return
        position += found.end
        # Small batches: read many at once. Large ones: read headers only and leap over the rest.
        look = min(look * 4, _PIECE) if len(found.headers) >= 4 else _FIRST_LOOK
