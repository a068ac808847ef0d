"""The sealed segments of a log, as three columns of numbers.

Noun: an immutable table, oldest first, of base offset, size and largest timestamp. A change makes a new table, so a
reader that holds one is not disturbed by rolls, deletions and compaction.

Rule: no object and no open file a segment. Opening a log of ten thousand segments reads one small file, the manifest,
and finding a segment among them is a binary search. The manifest is written at a clean stop and believed only after
one, and only if the folder was not touched in between; else the folder is listed.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from penstock.runtime.files import Files

MANIFEST_NAME = ".segments"
UNKNOWN_TIMESTAMP = -(2**62)

_MAGIC = b"PSM1"
_HEAD = Struct("<4sqI")
_CRC = Struct("<I")


class Row(NamedTuple):
    base_offset: int
    size: int
    max_timestamp: int  # UNKNOWN_TIMESTAMP until somebody asks


class SegmentTable:
    """Sealed segments, oldest first."""

    __slots__ = ("_running", "_stamps_known", "_total_size", "bases", "sizes", "stamps")

    def __init__(self, bases: array[int], sizes: array[int], stamps: array[int]) -> None:
        self.bases = bases
        self.sizes = sizes
        self.stamps = stamps
        # Worked out when first asked for: opening asks for none of them.
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
        """The last segment that begins at or before `offset`; -1 if all begin later."""
        return bisect_right(self.bases, offset) - 1

    def first_stamped_from(self, timestamp: int) -> int:
        """The first segment with a record at or after `timestamp`; the number of segments if there is none.

        Timestamps need not rise from segment to segment, but their running maximum does, and the first segment whose
        own maximum reaches a time is the first whose running maximum does.
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
            # The folder's time is taken after the manifest was made in it, and written into it in place.
            head = _HEAD.pack(_MAGIC, files.modified_ns(folder), len(self))
            body = head + b"".join(_little(column).tobytes() for column in (self.bases, self.sizes, self.stamps))
            file.truncate(0)
            file.write_at(0, body + _CRC.pack(crc32c(body)))
        finally:
            file.close()

    @classmethod
    def load(cls, files: Files, folder: str) -> SegmentTable | None:
        """The table of the manifest; None if there is none to believe."""
        path = f"{folder}/{MANIFEST_NAME}"
        try:
            file = files.open(path, writable=False)
        except FileNotFoundError:
            return None
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        if len(data) < _HEAD.size + _CRC.size or crc32c(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
            return None
        magic, modified_ns, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or modified_ns != files.modified_ns(folder):
            return None
        width = count * 8
        if len(data) != _HEAD.size + 3 * width + _CRC.size:
            return None
        columns = []
        for index in range(3):
            column = array("q")
            column.frombytes(data[_HEAD.size + index * width : _HEAD.size + (index + 1) * width])
            columns.append(_little(column))
        return cls(*columns)


def _little(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped
