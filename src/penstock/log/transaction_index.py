"""The aborted transactions of a segment: what a reader of committed records must skip.

Noun: one `.txnindex` file beside a segment, in Kafka's format. It lists the transactions whose abort marker
is in the segment; their records may lie in earlier segments. Entries of 34 bytes, big-endian, in the order of
the markers:

    version i16 = 0 | producer id i64 | first offset i64 | marker's offset i64 | last stable offset i64

Rule: the markers' offsets rise strictly, the last stable offsets never fall; so a binary search in the file
finds where a fetch begins and the stable offset tells where it may stop; nothing is kept in memory. Most
segments see no abort, so there is no file until the first. The format has no checksum: what contradicts the
rule, or itself, is damage. From there on the file cannot be trusted, `cut_damaged_tail` cuts it, and if it
cut anything the caller must index the segment's markers again, because an abort that is missing here shows
aborted records to readers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penstock.log.checkpoints import parent_folder
from penstock.log.errors import LogError
from penstock.runtime.files import File, Files
from penstock.runtime.open_files import OPEN_FILES

TRANSACTION_INDEX_SUFFIX = ".txnindex"

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
# Entries read at a time: 34 KiB.
_CHUNK_ENTRIES = 1024


class TransactionIndexError(LogError):
    """An entry that cannot follow those in the index, or bytes in it that are no entry."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"transaction index {path}: {reason}")
        self.path = path
        self.reason = reason


class AbortedTransaction(NamedTuple):
    """A producer's records from `first_offset` to its abort marker at `last_offset`.

    `last_stable_offset`: once the marker is replicated, nothing below it is undecided.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Aborted(Protocol):
    """What of a completed transaction goes into the index."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...


def entry_of(aborted: Aborted) -> AbortedTransaction:
    return AbortedTransaction(
        aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset
    )


class TransactionIndex:
    """The `.txnindex` file of the segment that begins at `base_offset`; open only after it was used."""

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._files = files
        self._path = path
        self._base_offset = base_offset
        self._exists = files.exists(path)
        self._file: File | None = None
        self._count = 0
        self._last: AbortedTransaction | None = None
        self._name_is_durable = True
        self._dirty = False
        if self._exists:
            # A torn entry at the end is written over by the next one.
            self._count = files.size_of(path) // ENTRY_BYTES
            self._last = self._read_last()
            # A log of many segments would otherwise begin with as many open files.
            self.close()

    @property
    def path(self) -> str:
        return self._path

    @property
    def entry_count(self) -> int:
        return self._count

    # --- write

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction; its marker must be behind that of the last one. Makes the file if need be."""
        reason = self._contradiction(aborted, self._last)
        if reason:
            raise TransactionIndexError(self._path, f"{aborted} cannot follow {self._last}: {reason}")
        if not self._exists:
            self._file = OPEN_FILES.open(self, self._files, self._path, create=True)
            self._exists = True
            self._name_is_durable = False
        self._opened().write_at(self._count * ENTRY_BYTES, _ENTRY.pack(_VERSION, *aborted))
        self._count += 1
        self._last = aborted
        self._dirty = True

    def flush(self) -> None:
        """Return when everything appended would survive a power loss."""
        if not self._dirty:
            return
        self._opened().sync()
        self._dirty = False
        if not self._name_is_durable:
            self._files.sync_folder(parent_folder(self._path))
            self._name_is_durable = True

    def truncate_to(self, offset: int) -> None:
        """The log now ends at `offset`: forget transactions whose marker is there or later.

        Markers at 15, 25 and 40: truncate_to(25) keeps the one at 15, truncate_to(26) also the one at 25.
        """
        keep = self._first_ending_from(offset)
        if keep < self._count:
            self._cut(keep)

    def clear(self) -> None:
        """Forget all, to index the segment again. The file stays, empty."""
        self._cut(0)

    def cut_damaged_tail(self) -> int:
        """Read all of it, cut from the first damaged entry on, and return how many bytes were cut."""
        if not self._exists:
            return 0
        size = self._opened().size()
        sound, previous = 0, None
        for version, entry in self._scan(0, self._count):
            if version != _VERSION or self._contradiction(entry, previous):
                break
            sound, previous = sound + 1, entry
        if sound * ENTRY_BYTES == size:
            return 0
        self._cut(sound)
        return size - sound * ENTRY_BYTES

    def _cut(self, count: int) -> None:
        if self._exists:
            self._opened().truncate(count * ENTRY_BYTES)
            self._dirty = True
            self._count = count
            self._last = self._read_last()

    def _contradiction(self, entry: AbortedTransaction, previous: AbortedTransaction | None) -> str:
        """Why `entry` cannot stand behind `previous`; empty if it can."""
        if entry.producer_id < 0 or not 0 <= entry.first_offset <= entry.last_offset:
            return "impossible values"
        if entry.last_offset < self._base_offset:
            return f"the marker is below the segment's base offset {self._base_offset}"
        if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            return "the last stable offset is behind the marker"
        if previous is not None and entry.last_offset <= previous.last_offset:
            return "the markers do not rise"
        if previous is not None and entry.last_stable_offset < previous.last_stable_offset:
            return "the last stable offsets fall"
        return ""

    # --- read

    def entries(self) -> Iterator[AbortedTransaction]:
        """All of them, oldest marker first. TransactionIndexError at one of an unknown version."""
        return self._read(0, self._count)

    def aborted_between(self, fetch_offset: int, upper_bound_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records or marker in [fetch_offset, upper_bound_offset).

        With aborts 10-15 and 12-30: a fetch of [16, 20) gets the second, one of [0, 11) the first, one of
        [31, 40) none. Transactions that touch the range may also be listed by the segments that follow:
        search on there until `covers` says that no later marker can matter.
        """
        found = []
        for entry in self._read(self._first_ending_from(fetch_offset), self._count):
            if entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                break
        return found

    def covers(self, upper_bound_offset: int) -> bool:
        """Whether all transactions with records below `upper_bound_offset` were decided by the last marker
        here.
        """
        return self._last is not None and self._last.last_stable_offset >= upper_bound_offset

    def _first_ending_from(self, offset: int) -> int:
        """The number of the first entry whose marker is at `offset` or later."""
        if self._last is None or self._last.last_offset < offset:
            return self._count
        low, high = 0, self._count - 1
        while low < high:
            middle = (low + high) // 2
            if next(self._scan(middle, middle + 1))[1].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _read(self, first: int, end: int) -> Iterator[AbortedTransaction]:
        for version, entry in self._scan(first, end):
            if version != _VERSION:
                raise TransactionIndexError(self._path, f"an entry of version {version}")
            yield entry

    def _scan(self, first: int, end: int) -> Iterator[tuple[int, AbortedTransaction]]:
        while first < end:
            count = min(end - first, _CHUNK_ENTRIES)
            data = self._opened().read_at(first * ENTRY_BYTES, count * ENTRY_BYTES)
            if len(data) != count * ENTRY_BYTES:
                raise TransactionIndexError(self._path, f"entry {first + len(data) // ENTRY_BYTES} is cut off")
            for version, *fields in _ENTRY.iter_unpack(data):
                yield version, AbortedTransaction(*fields)
            first += count

    def _read_last(self) -> AbortedTransaction | None:
        return next(self._scan(self._count - 1, self._count))[1] if self._count else None

    # --- the file

    def _opened(self) -> File:
        file = self._file  # another thread may let go of it
        if file is None:
            file = self._file = OPEN_FILES.open(self, self._files, self._path)
        return file

    def let_go(self) -> None:
        self._file = None

    @property
    def growth(self) -> int:
        return self._count

    @property
    def is_unsynced(self) -> bool:
        return self._dirty

    def rename(self, path: str) -> None:
        """Give the file another name (as the segment's files get before they are removed)."""
        if self._exists:
            self._files.rename(self._path, path)
            self._name_is_durable = False
        self._path = path

    def close(self) -> None:
        """Let go of the file; what is asked next opens it again."""
        file, self._file = self._file, None
        if file is not None:
            OPEN_FILES.forget(self)
            file.close()

    def remove(self) -> None:
        """Close it and remove the file if there is one."""
        self.close()
        if self._exists:
            self._files.remove(self._path)
            self._exists = False
        self._count = 0
        self._last = None
