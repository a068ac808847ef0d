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
from penstock.log.partition_folder import CLEANED, DELETED, SPARE, SWAP, segment_files
from penstock.log.producer_state import SNAPSHOT_SUFFIX
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, MAX_RELATIVE_OFFSET, TIME_INDEX_SUFFIX, segment_name
from penstock.records import HEADER_SIZE, BatchHeader, scan
from penstock.runtime.files import File, Files, Lock, Space

IN_PROGRESS_SUFFIXES: Final = (CLEANED, SWAP, DELETED, SPARE)
PIECE: Final = 4 * 1024 * 1024

_PARTITION_FOLDER: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")
_INACTIVE_FOLDER: Final = re.compile(r".+-\d+\.[0-9a-f]{32}-(delete|future|stray)")
_PARTITION_FILES: Final = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
_LOG_DIRECTORY_FILES: Final = frozenset(
    {META_FILE, RECOVERY_POINT_FILE, HIGH_WATERMARK_FILE, LOG_START_FILE, CLEANER_FILE}
)

_LENGTH_END: Final = 12
_MAGIC_AT: Final = 16
_BATCH_CHECKED_FROM: Final = 21
_MESSAGE_CHECKED_FROM: Final = 16
_MESSAGE: Final = Struct(">qiIbb")  # offset, size, crc, magic, attributes
_INT64: Final = Struct(">q")
_SMALLEST_MESSAGE: Final = (14, 22)  # the size field, by magic
_MAGIC_2: Final = b"\x02"
# Bounds of a search for the next batch: places to try, and how many times the searched bytes are checksummed.
_MAX_PLACES: Final = 20_000_000
_MAX_CHECKS: Final = 4
_MAX_READS: Final = 10


# ----------------------------------------------------------------------------------------------- read-only file system


class ReadOnlyFiles:
    """A file system that can only be read."""

    __slots__ = ("_files",)

    def __init__(self, files: Files) -> None:
        self._files = files

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
        """Opens for reading, whatever `writable` says. Only writing fails."""
        if create and not self._files.exists(path):
            _reject_change(path)
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
        _reject_change(path)

    def rename(self, old: str, new: str) -> None:
        _reject_change(old)

    def remove(self, path: str) -> None:
        _reject_change(path)

    def remove_folder(self, path: str) -> None:
        _reject_change(path)

    def sync_folder(self, path: str) -> None:
        _reject_change(path)

    def lock(self, path: str) -> Lock:
        _reject_change(path)


def _reject_change(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "opened for inspection only", path)


# ---------------------------------------------------------------------------------------------------------- path kinds


class PathKind(StrEnum):
    """What a path is, judged by names."""

    LOG = LOG_SUFFIX
    OFFSET_INDEX = INDEX_SUFFIX
    TIME_INDEX = TIME_INDEX_SUFFIX
    TRANSACTION_INDEX = TRANSACTION_INDEX_SUFFIX
    SNAPSHOT = SNAPSHOT_SUFFIX
    PARTITION = "partition folder"
    LOG_DIRECTORY = "log directory"
    OTHER = "other"


_FILE_KINDS: Final = (
    PathKind.LOG,
    PathKind.OFFSET_INDEX,
    PathKind.TIME_INDEX,
    PathKind.TRANSACTION_INDEX,
    PathKind.SNAPSHOT,
)


def kind_of(files: Files, path: str) -> PathKind:
    """What a path is. FileNotFoundError if it does not exist."""
    if files.is_folder(path):
        if is_partition_folder(files, path):
            return PathKind.PARTITION
        return PathKind.LOG_DIRECTORY if is_log_directory(files, path) else PathKind.OTHER
    files.size_of(path)
    suffix = split_name(path)[1]
    return next((kind for kind in _FILE_KINDS if kind == suffix), PathKind.OTHER)


def split_name(path: str) -> tuple[str, str, str]:
    """A file's path without suffixes, the suffix of its kind, and the suffix of an operation in progress.

    "/t-0/00042.log.swap" gives ("/t-0/00042", ".log", ".swap"), "/t-0/00042.log" ("/t-0/00042", ".log", "").
    """
    in_progress = next((suffix for suffix in IN_PROGRESS_SUFFIXES if path.endswith(suffix)), "")
    stem = path.removesuffix(in_progress)
    name = stem.rpartition("/")[2]
    suffix = name[name.rfind(".") :] if "." in name else ""
    return stem.removesuffix(suffix), suffix, in_progress


def base_offset_of(path: str) -> int | None:
    """The offset in the name of a segment's file; None if it has none."""
    digits = split_name(path)[0].rpartition("/")[2]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdigit() else None


def is_partition_folder(files: Files, path: str) -> bool:
    """Whether it contains a partition's files, or is an empty partition folder of a log directory."""
    names = files.list_folder(path)
    if segment_files(names) or not _PARTITION_FILES.isdisjoint(names):
        return True
    parent = parent_folder(path)
    is_named = _PARTITION_FOLDER.fullmatch(name_of(path)) is not None
    return is_named and not names and files.is_folder(parent) and _has_broker_files(files, parent)


def is_log_directory(files: Files, path: str) -> bool:
    """Whether it has a broker's metadata files or contains partitions."""
    return _has_broker_files(files, path) or any(
        is_partition_folder(files, each) for each in partition_folders(files, path)
    )


def _has_broker_files(files: Files, path: str) -> bool:
    return not _LOG_DIRECTORY_FILES.isdisjoint(files.list_folder(path))


def is_inactive_folder(name: str) -> bool:
    """Whether a folder is a partition that is being deleted or moved, or was set aside."""
    return _INACTIVE_FOLDER.fullmatch(name) is not None


def partition_folders(files: Files, path: str) -> list[str]:
    """The partition folders of a log directory, by name."""
    names = sorted(name for name in files.list_folder(path) if _PARTITION_FOLDER.fullmatch(name))
    return [f"{path}/{name}" for name in names if files.is_folder(f"{path}/{name}")]


def log_paths(files: Files, folder: str) -> dict[int, str]:
    """The `.log` files of a partition by base offset, oldest first."""
    found = segment_files(files.list_folder(folder))
    bases = sorted(base for base, suffixes in found.items() if LOG_SUFFIX in suffixes)
    return {base: f"{folder}/{segment_name(base)}{LOG_SUFFIX}" for base in bases}


def log_bytes(files: Files, path: str, kind: PathKind) -> int:
    """Roughly how many bytes its verification reads, for progress."""
    if kind is PathKind.LOG_DIRECTORY:
        return sum(log_bytes(files, folder, PathKind.PARTITION) for folder in partition_folders(files, path))
    if kind is PathKind.PARTITION:
        return sum(_size(files, log) for log in log_paths(files, path).values())
    if kind in (PathKind.LOG, PathKind.OFFSET_INDEX, PathKind.TIME_INDEX):
        stem, _, in_progress = split_name(path)
        return _size(files, stem + LOG_SUFFIX + in_progress)
    return 0


def _size(files: Files, path: str) -> int:
    try:
        return files.size_of(path)
    except OSError:  # deleted meanwhile, or reported when it is read
        return 0


def name_of(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rpartition("/")[2]


# ---------------------------------------------------------------------------------------------------- scan past damage


class Run(NamedTuple):
    """Sound batches. `header.position` is relative to `position`. For a batch longer than a piece, `buffer` has only
    its start.
    """

    position: int
    buffer: bytes
    headers: list[BatchHeader]


class Message(NamedTuple):
    """A sound message of magic 0 or 1. With a codec it is a wrapper, and `offset` is that of its last message."""

    position: int
    size: int
    magic: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    codec: int
    crc: int


class Damaged(NamedTuple):
    """Bytes [position, end) that differ from what was written.

    `header`: set if it is a whole, plausible batch with a wrong checksum. `at_end`: nothing sound follows. `is_empty`:
    all zeros.
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
    """Everything in the file, from its first byte. OSError if it cannot be read.

    `pause` waits a moment, because an incomplete batch may be one that a broker is writing.
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
        seen, end = end, _size_after_pause(file, end, found.problem == "incomplete", pause)
        looks += 1
        if looks == 1 or (end != seen and looks < _MAX_READS):
            continue
        damaged = _delimit(file, position, end, buffer, item, floor)
        yield damaged
        position, looks = damaged.end, 0


def _size_after_pause(file: File, end: int, seems_incomplete: bool, pause: Callable[[], None] | None) -> int:
    """The size of the file now."""
    if seems_incomplete and pause is not None and file.size() == end:
        pause()
    return file.size()


def first_offset(file: File) -> int:
    """The first offset of a file whose name has none."""
    data = file.read_at(0, _INT64.size)
    return max(0, _INT64.unpack(data)[0]) if len(data) == _INT64.size else 0


def read_batch(file: File, run: Run, header: BatchHeader) -> tuple[bytes, BatchHeader]:
    """A buffer that holds the whole batch, and its header there."""
    if header.position + header.size <= len(run.buffer):
        return run.buffer, header
    data = file.read_at(run.position + header.position, header.size)
    return data, scan(data, verify=False, whole=False, most=1).headers[0]


def _single(file: File, position: int, end: int, buffer: bytes, problem: str, needed: int) -> Run | str:
    """The batch at `position`, if it is sound but longer than the buffer; otherwise what is wrong."""
    left = end - position
    magic = buffer[_MAGIC_AT] if len(buffer) > _MAGIC_AT else 2
    if magic < 2:
        return f"magic {magic}: neither a batch nor a valid message of that format"
    if problem != "incomplete":
        return problem
    if needed == 0 or left < HEADER_SIZE:
        return f"incomplete batch header of {left} bytes"
    header = scan(buffer, verify=False, whole=False, most=1).headers
    if needed > left or not header:
        return f"batch of {needed} bytes exceeds the {left} left in the file"
    if _checksum(file, position + _BATCH_CHECKED_FROM, position + needed) != header[0].crc:
        return "checksum does not match"
    return Run(position, buffer[:HEADER_SIZE], header)


def _messages(file: File, position: int, end: int, buffer: bytes) -> Iterator[Message]:
    """The consecutive sound messages of magic 0 and 1 in the buffer, which starts at `position`."""
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
    """The damaged range that starts at `position`."""
    headers = scan(buffer, verify=False, whole=False, most=1).headers
    header = headers[0] if headers and position + headers[0].size <= end else None
    resumes = _skip_by_length(file, position, end, buffer, floor)
    if resumes is None:
        header = header if header is not None and position + header.size == end else None
        resumes = _search(file, position + 1, end, floor)
    is_empty = _all_zeros(file, position, resumes)
    if is_empty:
        reason = f"{resumes - position} zero bytes: a block that was never written"
    return Damaged(position, resumes, reason, header, resumes >= end, is_empty)


def _skip_by_length(file: File, position: int, end: int, buffer: bytes, floor: int) -> int | None:
    """The position after the damaged batch by its own length, if the file ends or a plausible batch starts there."""
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
    """The first position from `start` of a sound batch that may follow `floor`; `end` if there is none."""
    tops = {((floor + ahead) >> 32).to_bytes(4, "big") for ahead in (0, MAX_RELATIVE_OFFSET)}
    places, bytes_to_check = _MAX_PLACES, _MAX_CHECKS * (end - start)
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
        # The next piece overlaps by the bytes before a magic byte.
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
