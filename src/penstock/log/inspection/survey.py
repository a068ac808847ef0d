"""Walking a segment file past its damage.

Noun: all that is in a `.log` file, in order: runs of sound batches, messages of the formats before batches (magic 0
and 1), and damaged stretches. Together they cover the file without a hole.

Theory: where a log is served, a walk stops at the first bad byte. Here it goes on: a batch whose checksum is wrong is
left by its own length, if something that looks like a batch follows there; where even the length lies, the bytes are
searched for the next batch that proves itself by its checksum and by an offset that could come next. No batch, however
long it claims to be, is held in memory: what does not fit a piece is checked in pieces. A file that a broker appends
to or cuts meanwhile is looked at again before anything in it is called damaged: an append is one write, but the file
grows page by page while it lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from crc32c import crc32c

from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File

PIECE: Final = 4 * 1024 * 1024

_LENGTH_END = 12
_MAGIC_AT = 16
_BATCH_CHECKED_FROM = 21
_MESSAGE_CHECKED_FROM = 16
_MESSAGE = Struct(">qiIbb")  # offset, size, crc, magic, attributes
_INT64 = Struct(">q")
_SMALLEST_MESSAGE = (14, 22)  # the size field, by magic
_MAGIC_2 = b"\x02"
# A search ends, whatever the bytes are: so many places looked at, and so often the searched bytes checksummed.
_MOST_PLACES = 20_000_000
_MOST_CHECKS = 4
_MOST_LOOKS = 10


class Run(NamedTuple):
    """Sound batches: header.position is relative to `position`. Of one that is longer than a piece, `buffer` has only
    the beginning.
    """

    position: int
    buffer: bytes
    headers: list[BatchHeader]


class Message(NamedTuple):
    """A sound message of magic 0 or 1; with a codec it is a wrapper, and `offset` that of its last message."""

    position: int
    size: int
    magic: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    codec: int
    crc: int


class Damaged(NamedTuple):
    """Bytes [position, end) that are not what was written.

    `header`: of a batch that is whole and plausible, and only its checksum is wrong. `at_end`: nothing sound follows.
    `is_empty`: all zeros.
    """

    position: int
    end: int
    reason: str
    header: BatchHeader | None
    at_end: bool
    is_empty: bool

    @property
    def size(self) -> int:
        return self.end - self.position


Item = Run | Message | Damaged


def survey(file: File, base_offset: int = 0, pause: Callable[[], None] | None = None) -> Iterator[Item]:
    """All that is in the file now, from its first byte on. OSError if it cannot be read.

    `pause` lets a moment pass: a batch that seems cut off may be one that is being written.
    """
    end = file.size()
    position, floor, looks = 0, base_offset, 0
    while position < end:
        buffer = file.read_at(position, min(PIECE, end - position))
        found = scan(buffer)
        if found.headers:
            yield Run(position, buffer, found.headers)
            floor = found.headers[-1].next_offset
            position, looks = position + found.end, 0
            continue
        start = position
        for message in _messages(file, position, end, buffer):
            yield message
            floor = message.offset + 1
            position, looks = position + message.size, 0
        if position > start:
            continue
        item = _single(file, position, end, buffer, found.problem or "", found.needed)
        if isinstance(item, Run):
            yield item
            floor = item.headers[0].next_offset
            position, looks = position + item.headers[0].size, 0
            continue
        seen, end = end, _look_again(file, end, found.problem == "incomplete", pause)
        looks += 1
        if looks == 1 or (end != seen and looks < _MOST_LOOKS):
            continue
        damaged = _delimit(file, position, end, buffer, item, floor)
        yield damaged
        position, looks = damaged.end, 0


def _look_again(file: File, end: int, seems_cut_off: bool, pause: Callable[[], None] | None) -> int:
    """The size that the file has by now."""
    if seems_cut_off and pause is not None and file.size() == end:
        pause()
    return file.size()


def first_offset(file: File) -> int:
    """Where a file whose name does not tell seems to begin."""
    data = file.read_at(0, _INT64.size)
    return max(0, _INT64.unpack(data)[0]) if len(data) == _INT64.size else 0


def read_batch(file: File, run: Run, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """A buffer that holds the whole batch, and its header there."""
    if header.position + header.size <= len(run.buffer):
        return run.buffer, header
    data = file.read_at(run.position + header.position, header.size)
    return data, scan(data, verify=False, whole=False, most=1).headers[0]


def _single(file: File, position: int, end: int, buffer: bytes, problem: str, needed: int) -> Run | str:
    """The batch at `position`, if it is sound and only too long for the buffer; else what is wrong there."""
    left = end - position
    magic = buffer[_MAGIC_AT] if len(buffer) > _MAGIC_AT else 2
    if magic < 2:
        return f"magic {magic}: neither a batch nor a sound message of that format"
    if problem != "incomplete":
        return problem
    if needed == 0 or left < HEADER_SIZE:
        return f"a batch header is cut off after {left} bytes"
    header = scan(buffer, verify=False, whole=False, most=1).headers
    if needed > left or not header:
        return f"a batch of {needed} bytes does not fit the {left} that are left"
    if _checksum(file, position + _BATCH_CHECKED_FROM, position + needed) != header[0].crc:
        return "checksum does not match"
    return Run(position, buffer[:HEADER_SIZE], header)


def _messages(file: File, position: int, end: int, buffer: bytes) -> Iterator[Message]:
    """The sound messages of magic 0 and 1 that begin in the buffer, which begins at `position`, without a gap."""
    at = 0
    while at + _MESSAGE.size + _INT64.size <= len(buffer) and buffer[at + _MAGIC_AT] < 2:
        offset, size, crc, magic, attributes = _MESSAGE.unpack_from(buffer, at)
        stop = at + _LENGTH_END + size
        if offset < 0 or size < _SMALLEST_MESSAGE[magic] or position + stop > end:
            return
        found = 0
        if stop <= len(buffer):
            found = crc32(memoryview(buffer)[at + _MESSAGE_CHECKED_FROM : stop])
        else:
            for data in _pieces(file, position + at + _MESSAGE_CHECKED_FROM, position + stop):
                found = crc32(data, found)
        if found != crc:
            return
        timestamp_ms = _INT64.unpack_from(buffer, at + _MESSAGE.size)[0] if magic else -1
        timestamp_type = (attributes >> 3) & 1 if magic else 0
        yield Message(position + at, stop - at, magic, offset, timestamp_ms, timestamp_type, attributes & 7, crc)
        at = stop


def _delimit(file: File, position: int, end: int, buffer: bytes, reason: str, floor: int) -> Damaged:
    """How far the damage reaches."""
    headers = scan(buffer, verify=False, whole=False, most=1).headers
    header = headers[0] if headers and position + headers[0].size <= end else None
    resumes = _leap(file, position, end, buffer, floor)
    if resumes is None:
        header = header if header is not None and position + header.size == end else None
        resumes = _search(file, position + 1, end, floor)
    is_empty = _all_zeros(file, position, resumes)
    if is_empty:
        reason = f"{resumes - position} bytes of zeros: a block that was never written"
    return Damaged(position, resumes, reason, header, resumes >= end, is_empty)


def _leap(file: File, position: int, end: int, buffer: bytes, floor: int) -> int | None:
    """Where the damaged batch's own length leads, if that is the end or something plausible."""
    if len(buffer) <= _MAGIC_AT:
        return None
    _, length, _, magic, _ = _MESSAGE.unpack_from(buffer.ljust(_MESSAGE.size, b"\0"))
    follows: int = position + _LENGTH_END + length
    if length < _SMALLEST_MESSAGE[0] or follows > end:
        return None
    if follows == end or _plausible(file, follows, end, floor) is not None:
        return follows
    if magic in (0, 1):
        ahead = file.read_at(follows, _MESSAGE.size + _INT64.size)
        if next(_messages(file, follows, end, ahead), None) is not None:
            return follows
    return None


def _plausible(file: File, position: int, end: int, floor: int) -> BatchHeader | None:
    headers = scan(file.read_at(position, HEADER_SIZE), verify=False, whole=False, most=1).headers
    if not headers or position + headers[0].size > end:
        return None
    return headers[0] if floor <= headers[0].base_offset <= floor + MAX_RELATIVE_OFFSET else None


def _search(file: File, start: int, end: int, floor: int) -> int:
    """The first position from `start` on at which a sound batch begins that may follow `floor`; `end` if none does."""
    tops = {((floor + ahead) >> 32).to_bytes(4, "big") for ahead in (0, MAX_RELATIVE_OFFSET)}
    places, bytes_to_check = _MOST_PLACES, _MOST_CHECKS * (end - start)
    origin = start
    while end - origin >= HEADER_SIZE:
        buffer = file.read_at(origin, min(PIECE, end - origin))
        if len(buffer) < HEADER_SIZE:
            break
        at = buffer.find(_MAGIC_2, _MAGIC_AT)
        while at >= 0:
            places -= 1
            if buffer[at - _MAGIC_AT : at - _MAGIC_AT + 4] in tops:
                candidate = origin + at - _MAGIC_AT
                header = _plausible(file, candidate, end, floor)
                if header is not None:
                    bytes_to_check -= header.size
                    if _checksum(file, candidate + _BATCH_CHECKED_FROM, candidate + header.size) == header.crc:
                        return candidate
            if places <= 0 or bytes_to_check <= 0:
                return end
            at = buffer.find(_MAGIC_2, at + 1)
        # The next piece begins with what lies before its first place for a magic byte.
        origin += len(buffer) - _MAGIC_AT
    return end


def _checksum(file: File, start: int, end: int) -> int:
    found = 0
    for data in _pieces(file, start, end):
        found = crc32c(data, found)
    return found


def _all_zeros(file: File, start: int, end: int) -> bool:
    return all(data.count(0) == len(data) for data in _pieces(file, start, end))


def _pieces(file: File, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        data = file.read_at(start, min(PIECE, end - start))
        if not data:
            return
        yield data
        start += len(data)
