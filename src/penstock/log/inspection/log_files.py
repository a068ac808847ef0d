"""Reading log files of any origin without changing them: a read-only file system, path kinds, and a scan past damage.

`ReadOnlyFiles` rejects every change with EROFS. `kind_of` classifies a path by names alone; a folder counts as a
partition's only by files that a broker writes there (`/etc/dbus-1` is not one).

`scan_past_damage` covers a `.log` file without a gap: runs of sound batches, messages of magic 0 and 1, and damaged
ranges. A batch with a wrong checksum is skipped by its length if a batch follows there; otherwise the bytes are
searched for the next batch with a valid checksum and a possible offset. Memory is bounded whatever a batch claims.
Before anything is called damaged the file is read again, because a broker may be appending to it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple, NoReturn
from zlib import crc32

from crc32c import crc32c

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    parent_folder,
)
from penstock.log.index import TRANSACTION_INDEX_SUFFIX
from penstock.log.log_dirs.identity import META_FILE, PARTITION_METADATA_FILE
from penstock.log.partition_folder import CLEANED, DELETED, SWAP, segment_files
from penstock.log.producer_state import SNAPSHOT_SUFFIX
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, MAX_RELATIVE_OFFSET, TIME_INDEX_SUFFIX, segment_name
from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File, Files, Lock, Space


class ReadOnlyFiles:
    """Another file system's names and bytes, and nothing else of it."""

    __slots__ = ("_files",)

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Opens for reading whatever `writable` says: who asks for more fails when it writes, not before."""
        if create and not self._files.exists(path):
            _refuse(path)
        return self._files.open(path, writable=False)

    def exists(self, path: str) -> bool:
        return self._files.exists(path)

    def is_folder(self, path: str) -> bool:
        return self._files.is_folder(path)

    def list_folder(self, path: str) -> list[str]:
        return self._files.list_folder(path)

    def size_of(self, path: str) -> int:
        return self._files.size_of(path)

    def modified_ns(self, path: str) -> int:
        return self._files.modified_ns(path)

    def space(self, path: str) -> Space:
        return self._files.space(path)

    def make_folder(self, path: str) -> None:
        _refuse(path)

    def rename(self, old: str, new: str) -> None:
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def remove_folder(self, path: str) -> None:
        _refuse(path)

    def sync_folder(self, path: str) -> None:
        _refuse(path)

    def lock(self, path: str) -> Lock:
        _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "opened for inspection only", path)


IN_PROGRESS_SUFFIXES = (CLEANED, SWAP, DELETED)

_PARTITION_FOLDER = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")
_PARTITION_FILES = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
_DATA_FOLDER_FILES = frozenset({META_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE})
_INACTIVE_FOLDER = re.compile(r".+-\d+\.[0-9a-f]{32}-(delete|future|stray)")


class PathKind(StrEnum):
    LOG = LOG_SUFFIX
    OFFSET_INDEX = INDEX_SUFFIX
    TIME_INDEX = TIME_INDEX_SUFFIX
    TRANSACTION_INDEX = TRANSACTION_INDEX_SUFFIX
    SNAPSHOT = SNAPSHOT_SUFFIX
    PARTITION = "partition folder"
    DATA_FOLDER = "data folder"
    OTHER = "other"


_FILE_KINDS = (
    PathKind.LOG,
    PathKind.OFFSET_INDEX,
    PathKind.TIME_INDEX,
    PathKind.TRANSACTION_INDEX,
    PathKind.SNAPSHOT,
)


def kind_of(files: Files, path: str) -> PathKind:
    """FileNotFoundError if nothing is there."""
    if files.is_folder(path):
        if is_partition_folder(files, path):
            return PathKind.PARTITION
        return PathKind.DATA_FOLDER if is_data_folder(files, path) else PathKind.OTHER
    files.size_of(path)
    suffix = split_name(path)[1]
    return next((kind for kind in _FILE_KINDS if kind == suffix), PathKind.OTHER)


def split_name(path: str) -> tuple[str, str, str]:
    """A file's path without its suffixes, its kind's suffix, and what is under way with it.

    "/t-0/00042.log.swap" gives ("/t-0/00042", ".log", ".swap"), "/t-0/00042.log" ("/t-0/00042", ".log", "").
    """
    under_way = next((suffix for suffix in IN_PROGRESS_SUFFIXES if path.endswith(suffix)), "")
    stem = path.removesuffix(under_way)
    name = stem.rpartition("/")[2]
    suffix = name[name.rfind(".") :] if "." in name else ""
    return stem.removesuffix(suffix), suffix, under_way


def base_offset_of(path: str) -> int | None:
    """The offset in the name of a segment's file; None if there is none."""
    digits = split_name(path)[0].rpartition("/")[2]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def is_partition_folder(files: Files, path: str) -> bool:
    """Whether it holds what a partition's folder does, or is an empty one of a data folder."""
    names = files.list_folder(path)
    if segment_files(names) or not _PARTITION_FILES.isdisjoint(names):
        return True
    parent = parent_folder(path)
    is_named = _PARTITION_FOLDER.fullmatch(name_of(path)) is not None
    return is_named and not names and files.is_folder(parent) and _has_marks(files, parent)


def is_data_folder(files: Files, path: str) -> bool:
    """Whether a broker has marked it as its own, or partitions are in it."""
    return _has_marks(files, path) or any(is_partition_folder(files, each) for each in partition_folders(files, path))


def _has_marks(files: Files, path: str) -> bool:
    return not _DATA_FOLDER_FILES.isdisjoint(files.list_folder(path))


def is_inactive_folder(name: str) -> bool:
    """Whether a folder of a data folder is a partition that is being deleted or moved."""
    return _INACTIVE_FOLDER.fullmatch(name) is not None


def partition_folders(files: Files, path: str) -> list[str]:
    """The partitions of a data folder, by name."""
    names = sorted(name for name in files.list_folder(path) if _PARTITION_FOLDER.fullmatch(name))
    return [f"{path}/{name}" for name in names if files.is_folder(f"{path}/{name}")]


def log_paths(files: Files, folder: str) -> dict[int, str]:
    """The `.log` files of a partition by base offset, oldest first."""
    found = segment_files(files.list_folder(folder))
    bases = sorted(base for base, suffixes in found.items() if LOG_SUFFIX in suffixes)
    return {base: f"{folder}/{segment_name(base)}{LOG_SUFFIX}" for base in bases}


def log_bytes(files: Files, path: str, kind: PathKind) -> int:
    """How much a verification of it reads, about: for progress."""
    if kind is PathKind.DATA_FOLDER:
        return sum(log_bytes(files, folder, PathKind.PARTITION) for folder in partition_folders(files, path))
    if kind is PathKind.PARTITION:
        return sum(_size(files, log) for log in log_paths(files, path).values())
    if kind in (PathKind.LOG, PathKind.OFFSET_INDEX, PathKind.TIME_INDEX):
        stem, _, under_way = split_name(path)
        return _size(files, stem + LOG_SUFFIX + under_way)
    return 0


def _size(files: Files, path: str) -> int:
    try:
        return files.size_of(path)
    except OSError:  # deleted meanwhile, or told of when it is read
        return 0


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


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


def scan_past_damage(file: File, base_offset: int = 0, pause: Callable[[], None] | None = None) -> Iterator[Item]:
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
