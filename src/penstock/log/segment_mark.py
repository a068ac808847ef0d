"""How far a segment's files were when they were made durable: where a recovery may begin.

Noun: a mark. It stands in a producer snapshot, whose name says up to which offset it holds, and tells the segment, the
position of that offset in the log, the largest timestamp below it, and of each index how long it was and its checksum:

    base offset i64 | position i64 | largest timestamp i64 | its offset i64
      | .index, .timeindex, .txnindex: size u32, crc32c u32 of so many first bytes

Rule: a mark is written after the sync of all that it tells of. Whatever is appended later leaves those bytes alone, and
whoever cuts them off removes the mark before anything is written in their place. It only saves work: one that cannot be
written is done without, and one that does not fit the files is not believed.
"""

from __future__ import annotations

import contextlib
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.errors import is_disk_full, is_process_limit
from penstock.log.producers.snapshot import ProducerSnapshot, encode_snapshot, snapshot_name
from penstock.log.segment import Segment
from penstock.log.transaction_index import ENTRY_BYTES
from penstock.runtime.files import Files

BEGUN_SUFFIX: Final = ".tmp"

_MARK = Struct(">qqqqIIIIII")


class Extent(NamedTuple):
    """The first bytes of a file."""

    size: int
    crc: int


class SegmentMark(NamedTuple):
    base_offset: int
    position: int
    max_timestamp: int
    max_timestamp_offset: int
    offset_index: Extent
    time_index: Extent
    aborted: Extent

    def encode(self) -> bytes:
        return _MARK.pack(*self[:4], *self.offset_index, *self.time_index, *self.aborted)


def decode_mark(data: bytes) -> SegmentMark | None:
    """None if these bytes are no mark, or that of a later version."""
    if len(data) != _MARK.size:
        return None
    base_offset, position, stamp, stamp_offset, *extents = _MARK.unpack(data)
    index, time_index, aborted = (Extent(*extents[at : at + 2]) for at in (0, 2, 4))
    return SegmentMark(base_offset, position, stamp, stamp_offset, index, time_index, aborted)


def crc_of(files: Files, path: str, size: int) -> int | None:
    """The checksum of a file's first bytes; None if there are not as many."""
    if size == 0:
        return 0
    try:
        file = files.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        data = file.read_at(0, size)
    finally:
        file.close()
    return crc32c(data) if len(data) == size else None


class Marker:
    """A mark in the making: begun on the thread that owns the log, written on any, kept or dropped by the owner."""

    def __init__(self, files: Files, segment: Segment, producers: ProducerSnapshot) -> None:
        """Of the segment as it is now; its index entries go to their files."""
        self._files = files
        self._producers = producers
        self.offset = segment.next_offset
        self.base_offset = segment.base_offset
        self.position = segment.size
        self._stamp = segment.max_timestamp, segment.max_timestamp_offset
        segment.flush_indexes()
        # Entries that could not be written are missing in the file, but no others: the walk begins a little earlier.
        self._extents = tuple(
            (each.path, (len(each) - each.pending) * each.entry_bytes) for each in (segment.index, segment.time_index)
        )
        self._extents += ((segment.aborted.path, segment.aborted.entry_count * ENTRY_BYTES),)
        self.path = f"{segment.folder}/{snapshot_name(self.offset)}"
        self.is_written = False
        self.is_cancelled = False

    def encode(self) -> bytes | None:
        """The whole snapshot; None if the files are not as they were."""
        extents = []
        for path, size in self._extents:
            crc = crc_of(self._files, path, size)
            if crc is None:
                return None
            extents.append(Extent(size, crc))
        mark = SegmentMark(self.base_offset, self.position, *self._stamp, *extents)
        return encode_snapshot(self._producers._replace(mark=mark.encode()))

    def write(self) -> None:
        """Write it durably, under a name that nobody reads: while this runs the log may be cut."""
        if self.is_cancelled:
            return
        begun = self.path + BEGUN_SUFFIX
        try:
            data = self.encode()
            if data is None:
                return
            file = self._files.open(begun, create=True)
            try:
                file.truncate(0)
                file.write_at(0, data)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(begun)
            if is_disk_full(error) or is_process_limit(error) or isinstance(error, FileNotFoundError):
                return
            raise
        self.is_written = True

    def keep(self) -> None:
        """Let it count; its name is durable with the next sync of the folder."""
        self._files.rename(self.path + BEGUN_SUFFIX, self.path)

    def drop(self) -> None:
        self.is_cancelled = True
        with contextlib.suppress(OSError):
            self._files.remove(self.path + BEGUN_SUFFIX)
