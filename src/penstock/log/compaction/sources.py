"""Reading the segments that a compaction rewrites, beside the log that owns them.

Noun: sealed segments of a folder, by their rows in the table. Rule: files are opened here for reading only, one at a
time and by name, so that this may happen in another thread; every batch is checked against its checksum before its
bytes are used. Damage is a DamagedLog that names file and byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from penstock.log.compaction.errors import CompactionCancelled, CompactionFailed
from penstock.log.compaction.filtering import AbortedRanges, BatchCleaner, KeyMap
from penstock.log.errors import DamagedLog
from penstock.log.segment import LOG_SUFFIX, segment_name
from penstock.log.segment_table import Row
from penstock.log.transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, TransactionIndex
from penstock.log.walk import Piece, walk, walk_headers
from penstock.records import Buffer, CorruptBatch, TooLarge
from penstock.runtime.files import File, Files

Cancelled = Callable[[], bool]


class SourceReader:
    """The old segments of one folder; `cancelled` is asked every megabyte or so."""

    def __init__(self, files: Files, folder: str, cancelled: Cancelled, decompressed_limit: int) -> None:
        self._files = files
        self._folder = folder
        self._cancelled = cancelled
        self._decompressed_limit = decompressed_limit

    def aborted_transactions(self, bases: Iterable[int], end_offset: int) -> list[AbortedTransaction]:
        """Those with records below `end_offset`, of the indexes of the segments that begin at `bases`."""
        found: list[AbortedTransaction] = []
        for base in bases:
            path = f"{self._folder}/{segment_name(base)}{TRANSACTION_INDEX_SUFFIX}"
            if not self._files.exists(path):
                continue
            index = TransactionIndex(self._files, path, base)
            try:
                found += [entry for entry in index.entries() if entry.first_offset < end_offset]
                if index.covers(end_offset):
                    break
            finally:
                index.close()
        return found

    def index_keys(self, rows: Sequence[Row], first_offset: int, keys: KeyMap, aborted: AbortedRanges) -> int | None:
        """Note the keys of the batches from `first_offset` on; the first batch that found no room, or None."""
        for row in rows:
            with self._opened(row) as file:
                start = _position_of(file, row, first_offset)
                for piece in self._pieces(file, row, start):
                    with _placed(file, piece):
                        full_at = self._index_piece(piece, keys, aborted)
                    if full_at is not None:
                        return full_at
        return None

    def _index_piece(self, piece: Piece, keys: KeyMap, aborted: AbortedRanges) -> int | None:
        for header in piece.headers:
            if header.is_control or header.record_count == 0 or aborted.hold(header):
                continue
            if not keys.has_room_for(header):
                return header.base_offset
            keys.add(piece.buffer, header, self._decompressed_limit)
        return None

    def hold_open(self, rows: Iterable[Row], at_least_bytes: int) -> list[File]:
        """The files of the larger segments: while somebody has them open, removing their names takes no time."""
        large = [row for row in rows if row.size >= at_least_bytes]
        return [self._files.open(self._path_of(row), writable=False) for row in large]

    def cleaned(self, rows: Sequence[Row], cleaner: BatchCleaner) -> Iterator[list[Buffer]]:
        """What is left of the segments, a piece at a time."""
        last = max((row.base_offset for row in rows if row.size), default=None)
        for row in rows:
            with self._opened(row) as file:
                for piece in self._pieces(file, row):
                    last_end = row.size - piece.position if row.base_offset == last else -1
                    with _placed(file, piece):
                        left = cleaner.clean_all(piece.buffer, piece.headers, last_end)
                    yield left

    def _path_of(self, row: Row) -> str:
        return f"{self._folder}/{segment_name(row.base_offset)}{LOG_SUFFIX}"

    @contextlib.contextmanager
    def _opened(self, row: Row) -> Iterator[File]:
        file = self._files.open(self._path_of(row), writable=False)
        try:
            yield file
        finally:
            file.close()

    def _pieces(self, file: File, row: Row, start: int = 0) -> Iterator[Piece]:
        for piece in walk(file, start, row.size):
            if self._cancelled():
                raise CompactionCancelled(self._folder)
            if piece.problem is not None:
                raise DamagedLog(file.path, piece.end, piece.problem)
            yield piece


def _position_of(file: File, row: Row, offset: int) -> int:
    """Where the batch begins that holds `offset` or a later one."""
    position = 0
    if offset <= row.base_offset:
        return position
    for place in walk_headers(file, 0, row.size):
        if isinstance(place, str):
            raise DamagedLog(file.path, position, place)
        if place.header.last_offset >= offset:
            break
        position = place.end
    return position


@contextlib.contextmanager
def _placed(file: File, piece: Piece) -> Iterator[None]:
    """Say of damage inside a batch where in the file it is."""
    try:
        yield
    except CorruptBatch as error:
        raise DamagedLog(file.path, piece.position + error.position, error.reason) from error
    except TooLarge as error:
        raise CompactionFailed(file.path, str(error)) from error
