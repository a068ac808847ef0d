"""A segment: the file `<base offset, 20 digits>.log`, its indexes, and the table of a log's sealed segments.

An append is one write at the logical end. The end moves only after the write succeeded, so bytes of a failed write are
not part of the segment. A read returns a region of the file, never its bytes, and only bytes that this process wrote or
has verified once (`VerifiedRanges`).

Sealed segments are rows of an immutable table (base offset, size, largest timestamp): no object and no open file per
segment, and a lookup is a binary search. The manifest stores the table at a clean stop; a start uses it only if the
folder has not changed since. `OpenSegments` keeps the eight most recently read segments open.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from penstock.log.checkpoints import read_file
from penstock.log.errors import DamagedLog, DiskFull, LogFailed, TooManyOpenFiles, is_disk_full, is_process_limit
from penstock.log.file_records import Piece, Place, Run, walk, walk_headers, walk_runs
from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_INDEX_SUFFIX, Entry, SparseIndex, TransactionIndex
from penstock.log.leader_epochs import LeaderEpochs
from penstock.records import HEADER_SIZE, NO_TIMESTAMP, BatchHeader, Buffer, scan
from penstock.runtime.files import OPEN_FILES, File, Files

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
MANIFEST_NAME: Final = ".segments"

MAX_RELATIVE_OFFSET: Final = 2**31 - 1
UNKNOWN_TIMESTAMP: Final = -(2**62)

_FLUSH_INDEX_ENTRIES: Final = 64
_MAX_OPEN_SEGMENTS: Final = 8
_MAX_CONTINUED: Final = 8
_MANIFEST_MAGIC: Final = b"PSM1"
_MANIFEST_HEAD: Final = Struct("<4sqI")  # magic, the folder's modification time in ns, number of rows
_MANIFEST_CRC: Final = Struct("<I")


class VerifiedRanges:
    """A set of positions as [start, end) ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def covers(self, start: int, end: int) -> bool:
        return start >= end or self.end_of(start) >= end

    def end_of(self, start: int) -> int:
        """The end of the range that contains `start`; `start` itself if none does.

        With [10, 20) and [30, 40): end_of(12) is 20, end_of(25) is 25.
        """
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def add(self, start: int, end: int) -> None:
        """Cover [start, end), joined with the ranges that it touches.

        [10, 20), [30, 40) and add(20, 35): [10, 40).
        """
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        if ends and starts[-1] <= start <= ends[-1]:  # an append, or a sequential reader
            ends[-1] = max(ends[-1], end)
            return
        first = bisect_right(ends, start - 1)
        last = bisect_right(starts, end)
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last] = [start]
        ends[first:last] = [end]

    def cut(self, end: int) -> None:
        """Forget everything from `end` on."""
        keep = bisect_right(self._starts, end - 1)
        del self._starts[keep:], self._ends[keep:]
        if self._ends:
            self._ends[-1] = min(self._ends[-1], end)


def segment_name(base_offset: int) -> str:
    """ "00000000000000000042" for 42."""
    return f"{base_offset:020d}"


class Region(NamedTuple):
    """Bytes of a file, ready for sendfile. Holding it keeps the file readable."""

    file: File
    position: int
    size: int

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.size)


class Segment:
    """A segment, open for reading and, while it is the last of its log, for appending."""

    def __init__(
        self,
        files: Files,
        folder: str,
        base_offset: int,
        *,
        index_interval_bytes: int = 4096,
        suffix: str = "",
    ) -> None:
        self.files = files
        self.folder = folder
        self.base_offset = base_offset
        stem = f"{folder}/{segment_name(base_offset)}"
        self.path = f"{stem}{LOG_SUFFIX}{suffix}"
        self.index = SparseIndex(files, f"{stem}{INDEX_SUFFIX}{suffix}", OFFSET_ENTRY)
        self.time_index = SparseIndex(files, f"{stem}{TIME_INDEX_SUFFIX}{suffix}", TIME_ENTRY)
        self.aborted = TransactionIndex(files, f"{stem}{TRANSACTION_INDEX_SUFFIX}{suffix}", base_offset)
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1
        self.first_timestamp: int | None = None
        self.interval = index_interval_bytes
        self.since_index = 0
        self._file: File | None = None
        self.synced_size = 0  # bytes known to be durable
        self._torn = False
        self._broken: tuple[int, str] | None = None  # damage after which the end of the segment is unknown
        self.verified = VerifiedRanges()
        self.tail_position = 0
        self.tail_header: BatchHeader | None = None
        self.walked: list[Run] | None = None  # headers that recovery keeps for the replay
        self.recovered_from = 0  # the position where the last recovery started to walk
        self.trusted_offset = base_offset  # the offset at that position
        self._continued: dict[int, Place] = {}  # where readers continue that got everything before, by offset

    # --- files

    @classmethod
    def create(
        cls, files: Files, folder: str, base_offset: int, index_interval_bytes: int, suffix: str = ""
    ) -> Segment:
        """A new, empty segment. Existing files of its name are emptied."""
        segment = cls(files, folder, base_offset, index_interval_bytes=index_interval_bytes, suffix=suffix)
        segment.create_files()
        return segment

    def create_files(self) -> None:
        file = self._file = OPEN_FILES.open(self, self.files, self.path, create=True)
        if file.size():
            file.truncate(0)
        self.index.create()
        self.time_index.create()
        self.aborted.clear()

    @property
    def file(self) -> File:
        file = self._file  # another thread may drop it
        if file is None:
            file = self._file = OPEN_FILES.open(self, self.files, self.path)
        return file

    def drop_file(self) -> None:
        """Close the log's file once it is no longer in use: the descriptor is needed elsewhere."""
        self._file = None

    @property
    def growth(self) -> int:
        return self.size

    @property
    def is_unsynced(self) -> bool:
        return self.synced_size < self.size

    @property
    def paths(self) -> tuple[str, ...]:
        """Its files, the log first."""
        return (self.path, self.index.path, self.time_index.path, self.aborted.path)

    @property
    def is_torn(self) -> bool:
        """Whether a failed write may have left bytes beyond the logical end."""
        return self._torn

    def seal(self) -> None:
        """End the appends: the indexes are written and dropped from memory."""
        if self._torn:
            self.file.truncate(self.size)
            self._torn = False
        if self.max_timestamp > NO_TIMESTAMP:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.time_index.seal()
        self.index.seal()

    def close(self) -> None:
        """Write the indexes and close the files. Regions that were handed out stay readable."""
        self.seal()
        self.release()

    def release(self) -> None:
        """Close the files without writing."""
        self.index.close()
        self.time_index.close()
        self.aborted.close()
        if self._file is not None:
            self._file = None
            OPEN_FILES.forget(self)

    def remove(self) -> None:
        """Delete the files, the log first: the next start removes an index without a log."""
        self.release()
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):
                self.files.remove(path)

    # --- append

    def append(self, data: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches that have their offsets. On an error the segment is as it was."""
        position = self.size
        size = len(data)
        try:
            if self._torn:
                self._reopened().truncate(position)
                self._torn = False
            file = self._file
            if file is None:
                file = self._reopened()
            file.write_at(position, data)
        except OSError as error:
            self._cut_back(position)
            if is_disk_full(error):
                raise DiskFull(self.path) from error
            raise LogFailed(self.path, f"write failed: {error}") from error
        origin = position - headers[0].position
        for header in headers:
            self.note(header, origin + header.position)
        self.size = position + size
        self.verified.add(position, position + size)
        if self.index.pending >= _FLUSH_INDEX_ENTRIES:
            self.flush_indexes()

    def _reopened(self) -> File:
        """The file, for writing. Too many open files is not an error of the disk."""
        try:
            return self.file
        except OSError as error:
            if is_process_limit(error):
                raise TooManyOpenFiles(self.folder) from error
            raise

    def _cut_back(self, position: int) -> None:
        self._torn = True
        with contextlib.suppress(OSError):
            self.file.truncate(position)
            self._torn = False

    def note(self, header: BatchHeader, position: int) -> None:
        """Update offsets, timestamps and indexes for a batch at `position`."""
        if self.since_index > self.interval:
            self.index.append(header.last_offset - self.base_offset, position)
            if self.max_timestamp > NO_TIMESTAMP:
                self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
            self.since_index = 0
        self.take(header, position)

    def take(self, header: BatchHeader, position: int) -> None:
        """Like `note`, for a batch that the indexes cover already."""
        self.since_index += header.size
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = header.last_offset
        if self.first_timestamp is None:
            self.first_timestamp = header.max_timestamp
        self.next_offset = header.next_offset
        self.tail_position = position
        self.tail_header = header

    def flush_indexes(self) -> None:
        # The log is the truth: an index that cannot be written now is written later, or rebuilt.
        with contextlib.suppress(OSError):
            self.time_index.flush()  # first: it must cover whatever the offset index covers
            self.index.flush()

    # --- lookup

    def locate(self, offset: int) -> Place | None:
        """The first batch that contains `offset` or a later one; None if the segment ends before."""
        if offset >= self.next_offset or self.size == 0:
            if self._broken is not None:
                raise DamagedLog(self.path, *self._broken)
            return None
        tail = self.tail_header
        if tail is not None and offset >= tail.base_offset:
            return Place(self.tail_position, tail)
        continued = self._continued.get(offset)
        if continued is not None:
            return continued
        found = self._find(offset)
        if isinstance(found, str):
            self.rebuild_indexes()
            found = self._find(offset)
        if isinstance(found, str):
            raise DamagedLog(self.path, 0, found)
        return found

    def _find(self, offset: int) -> Place | str | None:
        """Like `locate`, from the nearest index entry; a string if the index contradicts the log."""
        try:
            entry = self.index.floor(offset - self.base_offset)
        except OSError as error:
            return str(error)
        position = 0 if entry is None else entry.value
        for place in walk_headers(self.file, position, self.size):
            if isinstance(place, str):
                if entry is None:
                    raise DamagedLog(self.path, position, place)
                return f"names position {position}: {place}"
            if entry is not None:
                named = entry.key + self.base_offset
                if not place.header.base_offset <= named <= place.header.last_offset:
                    return f"names offset {named} for the batch at {place.position}"
                entry = None
            if place.header.last_offset >= offset:
                return place
            position = place.end
        return None if entry is None else f"names position {position} of a log of {self.size} bytes"

    def places(self, start: int = 0) -> Iterator[Place]:
        """Every batch from position `start`, headers only. DamagedLog at the first bad batch."""
        position = start
        for place in walk_headers(self.file, start, self.size):
            if isinstance(place, str):
                raise DamagedLog(self.path, position, place)
            position = place.end
            yield place

    def runs(self, start: int = 0) -> Iterator[Run]:
        """Like `places`, many headers at a time."""
        position = start
        for run in walk_runs(self.file, start, self.size):
            if isinstance(run, str):
                raise DamagedLog(self.path, position, run)
            position = run.position + run.headers[-1].end
            yield run

    def pieces(self, start: int = 0, end: int | None = None, *, verify: bool = True) -> Iterator[Piece]:
        """The batches' bytes, in pieces. DamagedLog at the first bad batch."""
        for piece in walk(self.file, start, self.size if end is None else end, verify=verify):
            if piece.problem is not None:
                raise DamagedLog(self.path, piece.end, piece.problem)
            yield piece

    def find_time(self, timestamp: int) -> Place | None:
        """The first batch with a record of at least `timestamp`."""
        if timestamp > self.max_timestamp:
            return None
        # No record before an entry's offset has a later timestamp than the entry.
        entry = None
        with contextlib.suppress(OSError):
            entry = self.time_index.floor(timestamp - 1)
        place = self.locate(self.base_offset + entry.value) if entry is not None else None
        for candidate in self.places(place.position if place is not None else 0):
            if candidate.header.max_timestamp >= timestamp:
                return candidate
        return None

    # --- read

    def read(
        self, offset: int, max_bytes: int, until_position: int | None = None, epochs: LeaderEpochs | None = None
    ) -> Region | None:
        """The region from the batch that contains `offset`: at most `max_bytes`, at least one whole batch.

        It ends before `until_position` (the high watermark). None if there is nothing to serve. With `epochs`, batches
        must have the leader epochs of that list.
        """
        place = self.locate(offset)
        limit = self.size if until_position is None else min(until_position, self.size)
        if place is None or place.position >= limit:
            return None
        end = limit
        if limit - place.position > max_bytes:
            end = self._batch_boundary(place, place.position + max_bytes)
        end = self._verify(place.position, end, epochs)
        return Region(self.file, place.position, end - place.position)

    def offset_bound(self, position: int) -> int:
        """An offset above all records before `position`, as near as the index tells."""
        with contextlib.suppress(OSError):
            entry = self.index.ceiling_value(position)
            if entry is not None and self._batch_at(entry) is not None:
                return self.base_offset + entry.key
        return self.next_offset

    def _batch_boundary(self, first: Place, wanted: int) -> int:
        """The last indexed batch start at or before `wanted`; at least the first batch's end."""
        end = first.end
        if end >= wanted:
            return end
        with contextlib.suppress(OSError):
            entry = self.index.floor_value(wanted)
            if entry is not None and entry.value > end:
                found = self._batch_at(entry)
                if found is not None:
                    self._continue_at(found)
                    return entry.value
        for place in walk_headers(self.file, end, self.size):
            # Damage further on does not affect the batches before it.
            if isinstance(place, str):
                break
            if place.end > wanted:
                self._continue_at(place)
                break
            end = place.end
        return end

    def _batch_at(self, entry: Entry) -> Place | None:
        """The batch that an index entry names; None if it is not there."""
        found = scan(self.file.read_at(entry.value, HEADER_SIZE), verify=False, whole=False)
        named = self.base_offset + entry.key
        if found.headers and found.headers[0].base_offset <= named <= found.headers[0].last_offset:
            return Place(entry.value, found.headers[0])
        return None

    def _continue_at(self, place: Place) -> None:
        """Remember the batch after a region: its reader will ask for it next."""
        if len(self._continued) >= _MAX_CONTINUED:
            self._continued.clear()
        self._continued[place.header.base_offset] = place

    def _verify(self, start: int, end: int, epochs: LeaderEpochs | None) -> int:
        """Verify what was not yet verified in [start, end). Returns where the sound part ends, after `start`."""
        position = self.verified.end_of(start)
        while position < end:
            for piece in walk(self.file, position, self.size):
                position, problem = self._sound_part(piece, epochs)
                self.verified.add(piece.position, position)
                if problem is not None:
                    if position > start:
                        return min(position, end)
                    raise DamagedLog(self.path, position, problem)
                if position >= end:
                    break
            position = max(position, self.verified.end_of(position))
        return end

    def _sound_part(self, piece: Piece, epochs: LeaderEpochs | None) -> tuple[int, str | None]:
        """Where a piece with valid checksums stops being sound, and why.

        The checksum does not cover offset and epoch, but they must ascend. Of two batches out of order either may be
        the damaged one, so the sound part ends before both.
        """
        expected, epoch, before = self.base_offset, -1, 0
        foreign = len(piece.headers) if epochs is None else epochs.first_foreign(piece.headers)
        for number, header in enumerate(piece.headers):
            if number == foreign:
                reason = f"offset {header.base_offset} was not written in epoch {header.leader_epoch}"
                return piece.position + header.position, reason
            if header.base_offset < expected or header.leader_epoch < epoch or header.next_offset > self.next_offset:
                reason = f"offset {header.base_offset} of epoch {header.leader_epoch} cannot follow {expected - 1}"
                return piece.position + before, reason
            expected, epoch, before = header.next_offset, header.leader_epoch, header.position
        return piece.end, piece.problem

    # --- load, rebuild, truncate

    def load(self, *, size: int | None = None) -> str | None:
        """Load a file that was closed cleanly; why its indexes need rebuilding, or None.

        It walks from the last index entry to the end, however large the segment is.
        """
        self.size = self.file.size() if size is None else size
        self.synced_size = self.size  # assumed
        trouble = self._load_indexes()
        if trouble is not None:
            self.reset()
        return trouble

    def _load_indexes(self) -> str | None:
        trouble = self.index.load() or self.time_index.load()
        if trouble is not None:
            return trouble
        last, stamp = self.index.last, self.time_index.last
        start = 0 if last is None else last.value
        if stamp is not None:
            self.max_timestamp, self.max_timestamp_offset = stamp.key, self.base_offset + stamp.value
        if last is not None:
            if last.value + HEADER_SIZE > self.size:
                return f"names position {last.value} of a log of {self.size} bytes"
            self.since_index = 0
            self.first_timestamp = self.read_first_timestamp()
        position = start
        for place in walk_headers(self.file, start, self.size):
            if isinstance(place, str):
                return place
            if position == start and last is not None:
                named = self.base_offset + last.key
                if not place.header.base_offset <= named <= place.header.last_offset:
                    return f"names offset {named} for the batch at {place.position}"
            self.take(place.header, place.position)
            position = place.end
        return None if stamp is None else self._time_trouble(stamp)

    def _time_trouble(self, last: Entry) -> str | None:
        """Why the time index's last entry is wrong, or None."""
        offset = self.base_offset + last.value
        if offset >= self.next_offset:
            return f"names offset {offset} of a segment that ends at {self.next_offset}"
        try:
            place = self._find(offset)
        except DamagedLog:
            return None  # the log is damaged, not the index
        if isinstance(place, str):
            return place
        if place is None or place.header.max_timestamp != last.key:
            return f"names time {last.key} for offset {offset}"
        return None

    def read_first_timestamp(self) -> int | None:
        for place in walk_headers(self.file, 0, self.size):
            return None if isinstance(place, str) else place.header.max_timestamp
        return None

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the log, up to the first damage."""
        end, tail_position, tail = self.next_offset, self.tail_position, self.tail_header
        newest, newest_offset = self.max_timestamp, self.max_timestamp_offset
        self.reset()
        self.index.create()
        self.time_index.create()
        position = 0
        for place in walk_headers(self.file, 0, self.size):
            if isinstance(place, str):
                self._broken = position, place
                break
            self.note(place.header, place.position)
            position = place.end
        if self._broken is not None and end > self.next_offset:
            # The end of the segment was known: damage before it does not change that.
            self._broken = None
            self.next_offset, self.tail_position, self.tail_header = end, tail_position, tail
            self.max_timestamp, self.max_timestamp_offset = newest, newest_offset
        self.flush_indexes()

    def reset(self) -> None:
        self.next_offset = self.base_offset
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, -1
        self.first_timestamp = None
        self.since_index = 0
        self.tail_header = None
        self._broken = None
        self._continued.clear()

    def truncate(self, position: int) -> None:
        """Cut the log at a batch boundary, durably, and the indexes with it."""
        self.file.truncate(position)
        self.file.sync()
        self.size = position
        self.verified.cut(position)
        self.index.truncate(position)
        self.rewind_time_index()

    def rewind_time_index(self) -> None:
        """After a truncation, recompute offsets and timestamps from the end of the log."""
        self.reset()
        last = self.index.last
        self.time_index.truncate(0 if last is None else last.key + 1)
        stamp = self.time_index.last
        if stamp is not None:
            self.max_timestamp, self.max_timestamp_offset = stamp.key, self.base_offset + stamp.value
        for place in self.places(0 if last is None else last.value):
            self.take(place.header, place.position)
        if last is not None:
            self.first_timestamp = self.read_first_timestamp()


class Row(NamedTuple):
    """A sealed segment."""

    base_offset: int
    size: int
    max_timestamp: int  # UNKNOWN_TIMESTAMP until it is needed


class SegmentTable:
    """Sealed segments, oldest first."""

    __slots__ = ("_running", "_stamps_known", "_total_size", "bases", "sizes", "stamps")

    def __init__(self, bases: array[int], sizes: array[int], stamps: array[int]) -> None:
        self.bases = bases
        self.sizes = sizes
        self.stamps = stamps
        # Computed on first use: opening a log needs none of them.
        self._total_size: int | None = None
        self._stamps_known: bool | None = None
        self._running: array[int] | None = None

    @classmethod
    def of(cls, rows: list[Row]) -> SegmentTable:
        return cls(
            array("q", [row.base_offset for row in rows]),
            array("q", [row.size for row in rows]),
            array("q", [row.max_timestamp for row in rows]),
        )

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, index: int) -> Row:
        return Row(self.bases[index], self.sizes[index], self.stamps[index])

    def __iter__(self) -> Iterator[Row]:
        return map(Row, self.bases, self.sizes, self.stamps)

    @property
    def total_size(self) -> int:
        if self._total_size is None:
            self._total_size = sum(self.sizes)
        return self._total_size

    @property
    def stamps_known(self) -> bool:
        if self._stamps_known is None:
            self._stamps_known = UNKNOWN_TIMESTAMP not in self.stamps
        return self._stamps_known

    def find(self, offset: int) -> int:
        """The last segment that starts at or before `offset`; -1 if all start later."""
        return bisect_right(self.bases, offset) - 1

    def first_stamped_from(self, timestamp: int) -> int:
        """The first segment with a record at or after `timestamp`; the number of segments if there is none.

        Timestamps need not rise from segment to segment, but their running maximum does, and both reach a time in the
        same segment first.
        """
        if self._running is None:
            self._running = array("q", accumulate(self.stamps, max))
        return bisect_left(self._running, timestamp)

    # --- changed copies

    def spliced(self, start: int, stop: int, rows: list[Row]) -> SegmentTable:
        """A table with rows [start, stop) replaced."""
        new = SegmentTable.of(rows)
        return SegmentTable(
            self.bases[:start] + new.bases + self.bases[stop:],
            self.sizes[:start] + new.sizes + self.sizes[stop:],
            self.stamps[:start] + new.stamps + self.stamps[stop:],
        )

    def without_last(self) -> SegmentTable:
        return SegmentTable(self.bases[:-1], self.sizes[:-1], self.stamps[:-1])

    def with_row(self, row: Row) -> SegmentTable:
        return self.spliced(len(self), len(self), [row])

    def with_stamps(self, stamps: array[int]) -> SegmentTable:
        return SegmentTable(self.bases, self.sizes, stamps)

    # --- manifest

    def save(self, files: Files, folder: str) -> None:
        path = f"{folder}/{MANIFEST_NAME}"
        file = files.open(path, create=True)
        try:
            # Creating the manifest changes the folder's modification time, so it is read after that.
            head = _MANIFEST_HEAD.pack(_MANIFEST_MAGIC, files.modified_ns(folder), len(self))
            body = head + b"".join(_little(column).tobytes() for column in (self.bases, self.sizes, self.stamps))
            file.truncate(0)
            file.write_at(0, body + _MANIFEST_CRC.pack(crc32c(body)))
        finally:
            file.close()

    @classmethod
    def load(cls, files: Files, folder: str) -> SegmentTable | None:
        """The table from the manifest; None if there is none, or the folder has changed since."""
        data = read_file(files, f"{folder}/{MANIFEST_NAME}")
        if data is None or len(data) < _MANIFEST_HEAD.size + _MANIFEST_CRC.size:
            return None
        if crc32c(data[: -_MANIFEST_CRC.size]) != _MANIFEST_CRC.unpack(data[-_MANIFEST_CRC.size :])[0]:
            return None
        magic, modified_ns, count = _MANIFEST_HEAD.unpack_from(data)
        if magic != _MANIFEST_MAGIC or modified_ns != files.modified_ns(folder):
            return None
        width = count * 8
        if len(data) != _MANIFEST_HEAD.size + 3 * width + _MANIFEST_CRC.size:
            return None
        columns = []
        for index in range(3):
            column = array("q")
            column.frombytes(data[_MANIFEST_HEAD.size + index * width : _MANIFEST_HEAD.size + (index + 1) * width])
            columns.append(_little(column))
        return cls(*columns)


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


class OpenSegments:
    """The most recently read sealed segments of a log."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._open: OrderedDict[int, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, row: Row, index_interval_bytes: int) -> Segment:
        """The segment of that row, with its indexes rebuilt if they are wrong."""
        segment = self._open.get(row.base_offset)
        if segment is not None:
            self._open.move_to_end(row.base_offset)
            return segment
        segment = Segment(self._files, self._folder, row.base_offset, index_interval_bytes=index_interval_bytes)
        trouble = segment.load(size=row.size)
        # A time index without its end contains no error, but records would be deleted too early.
        if trouble is not None or row.max_timestamp not in (UNKNOWN_TIMESTAMP, segment.max_timestamp):
            segment.rebuild_indexes()
            with contextlib.suppress(OSError):  # reading works on a full disk
                segment.seal()
        self.add(segment)
        return segment

    def add(self, segment: Segment) -> None:
        self._open[segment.base_offset] = segment
        while len(self._open) > _MAX_OPEN_SEGMENTS:
            self._open.popitem(last=False)[1].release()

    def forget(self, base_offset: int) -> None:
        segment = self._open.pop(base_offset, None)
        if segment is not None:
            segment.release()

    def release(self) -> None:
        while self._open:
            self._open.popitem()[1].release()
