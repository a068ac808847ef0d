"""The indexes of a segment, in Kafka's formats, big-endian:

    .index      u32 offset relative to the segment's base, u32 position in the log
    .timeindex  i64 timestamp, u32 relative offset
    .txnindex   i16 version = 0, i64 producer id, i64 first offset, i64 marker's offset, i64 last stable offset

The log is the truth. Offset and time index are sparse (one entry every few KiB), ascend in both columns, may lack
entries, and are rebuilt when they contradict the log. New entries stay in memory until `flush`, so an append makes no
system call here; stored entries are searched in the file, so opening reads nothing.

The transaction index lists the transactions whose abort marker is in the segment. Most segments have none, so the file
exists only after the first abort. It has no checksum: from the first entry that breaks the order on, the file is cut
(`cut_damaged_tail`) and the segment's markers must be indexed again, or readers would see aborted records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from penstock.log.checkpoints import parent_folder
from penstock.log.errors import LogError
from penstock.runtime.files import OPEN_FILES, File, Files

OFFSET_ENTRY: Final = Struct(">II")
TIME_ENTRY: Final = Struct(">qI")
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"

_BLOCK_ENTRIES: Final = 256
_LARGEST: Final = 2**32 - 1
_LARGEST_TIME: Final = 2**63 - 1
_TRANSACTION: Final = Struct(">hqqqq")
_TRANSACTION_VERSION: Final = 0
ENTRY_BYTES: Final = _TRANSACTION.size  # of the transaction index
_CHUNK_ENTRIES: Final = 1024  # read at a time: 34 KiB


class Entry(NamedTuple):
    key: int
    value: int


# A block that never reached the disk reads as zeros, so no valid entry is zero.
_ZEROS: Final = Entry(0, 0)


# ----------------------------------------------------------------------------------------------- offset and time index


class SparseIndex:
    """One index file: `append`, `floor`, `truncate`."""

    def __init__(self, files: Files, path: str, entry: Struct) -> None:
        self._files = files
        self.path = path
        self._entry = entry
        self._largest_key = _LARGEST if entry is OFFSET_ENTRY else _LARGEST_TIME
        self._file: File | None = None
        self._stored = 0  # entries in the file
        self._keys = array("q")  # entries added since the file was opened
        self._values = array("q")
        self._pending = 0  # how many of them are not yet in the file
        self._last: Entry | None = None

    def create(self) -> None:
        """Start with an empty file."""
        file = self._open(create=True)
        if file.size():
            file.truncate(0)
        self._forget()
        self.close()  # thousands of idle partitions must not hold three descriptors each

    def load(self) -> str | None:
        """Load the file; why it is wrong (missing, torn, zeroed), or None."""
        self._forget()
        try:
            return self._load()
        except FileNotFoundError:
            return "is missing"
        finally:
            self.close()

    def _load(self) -> str | None:
        size = self._open().size()
        if size % self._entry.size:
            return f"has {size} bytes, not a multiple of {self._entry.size}"
        self._stored = size // self._entry.size
        if self._stored == 0:
            return None
        first, last = self._read(0, 1)[0], self._read(self._stored - 1, 1)[0]
        if first == _ZEROS or last == _ZEROS:
            return "has entries of zeros"
        if last.key < first.key or last.value < first.value or (self._stored > 1 and last == first):
            return f"ends with {last}, before its first entry {first}"
        self._last = last
        return None

    def resume(self, count: int) -> None:
        """Load the first `count` entries of the file, which the caller has verified, and cut the others."""
        self._forget()
        try:
            file = self._open(create=True)
            if file.size() > count * self._entry.size:
                file.truncate(count * self._entry.size)
            self._stored = count
            self._last = self._read(count - 1, 1)[0] if count else None
        finally:
            self.close()

    def _forget(self) -> None:
        self._stored = 0
        self._pending = 0
        self._last = None
        del self._keys[:]
        del self._values[:]

    def __len__(self) -> int:
        return self._stored + len(self._keys)

    @property
    def entry_bytes(self) -> int:
        return self._entry.size

    @property
    def last(self) -> Entry | None:
        return self._last

    def append(self, key: int, value: int) -> None:
        """Add an entry after the last one.

        An entry that does not ascend, or that the format cannot hold, is left out: lookups then scan a little more.
        """
        last = self._last or _ZEROS
        if key <= last.key or (value <= last.value and self._last is not None):
            return
        if key > self._largest_key or not 0 <= value <= _LARGEST:
            return
        self._keys.append(key)
        self._values.append(value)
        self._pending += 1
        self._last = Entry(key, value)

    @property
    def pending(self) -> int:
        """Entries that are not yet in the file."""
        return self._pending

    def flush(self) -> None:
        """Write pending entries to the file, without sync."""
        if not self._pending:
            return
        start = len(self._keys) - self._pending
        pack = self._entry.pack
        data = b"".join(map(pack, self._keys[start:], self._values[start:]))
        self._open(create=True).write_at((self._stored + start) * self._entry.size, data)
        self._pending = 0

    def seal(self) -> None:
        """Write all entries and drop them from memory: the segment is no longer appended to."""
        self.flush()
        self._stored += len(self._keys)
        del self._keys[:]
        del self._values[:]

    def floor(self, key: int) -> Entry | None:
        """The last entry whose key is at most `key`."""
        if self._keys and key >= self._keys[0]:
            at = bisect_right(self._keys, key) - 1
            return Entry(self._keys[at], self._values[at])
        return self._search(key, 0)

    def floor_value(self, value: int) -> Entry | None:
        """The last entry whose value is at most `value`."""
        if self._values and value >= self._values[0]:
            at = bisect_right(self._values, value) - 1
            return Entry(self._keys[at], self._values[at])
        return self._search(value, 1)

    def ceiling_value(self, value: int) -> Entry | None:
        """The first entry whose value is at least `value`."""
        if self._stored and not (self._values and value > self._values[0]):
            at = self._count_below(value)
            if at < self._stored:
                return self._read(at, 1)[0]
        at = bisect_left(self._values, value)
        return Entry(self._keys[at], self._values[at]) if at < len(self._values) else None

    def _search(self, target: int, column: int) -> Entry | None:
        """Search the file: for the block first, then inside it."""
        low, high = 0, (self._stored + _BLOCK_ENTRIES - 1) // _BLOCK_ENTRIES
        while low < high:  # the first block that starts above target
            middle = (low + high) // 2
            if self._read(middle * _BLOCK_ENTRIES, 1)[0][column] > target:
                high = middle
            else:
                low = middle + 1
        if low == 0:
            return None
        block = self._read((low - 1) * _BLOCK_ENTRIES, _BLOCK_ENTRIES)
        at = bisect_right(block, target, key=lambda entry: entry[column])
        return block[at - 1] if at else None

    def _read(self, first: int, count: int) -> list[Entry]:
        count = min(count, self._stored - first)
        size = self._entry.size
        data = self._open().read_at(first * size, count * size)
        if len(data) != count * size:
            raise OSError(f"{self.path} ends at byte {first * size + len(data)}, {self._stored * size} were expected")
        return [Entry(*pair) for pair in self._entry.iter_unpack(data)]

    def entries(self) -> list[Entry]:
        """All entries, for tools and tests."""
        stored = self._read(0, self._stored) if self._stored else []
        return [*stored, *map(Entry, self._keys, self._values)]

    def truncate(self, value: int) -> None:
        """Drop the entries whose value is at least `value`."""
        keep = bisect_right(self._values, value - 1)
        if keep == 0 and self._stored:
            kept = self._count_below(value)
            self._open().truncate(kept * self._entry.size)
            self._forget()
            self._stored = kept
            self._last = self._read(kept - 1, 1)[0] if kept else None
            return
        in_file = len(self._keys) - self._pending
        # Even if no entry goes: a failed flush may have left more bytes than it counted.
        self._open(create=True).truncate((self._stored + min(keep, in_file)) * self._entry.size)
        self._pending = max(0, keep - in_file)
        del self._keys[keep:]
        del self._values[keep:]
        self._last = Entry(self._keys[-1], self._values[-1]) if self._keys else None

    def _count_below(self, value: int) -> int:
        low, high = 0, self._stored
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1)[0].value >= value:
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def file(self) -> File:
        return self._open(create=True)

    def _open(self, *, create: bool = False) -> File:
        file = self._file  # another thread may drop it
        if file is None:
            file = self._file = OPEN_FILES.open(self, self._files, self.path, create=create)
        return file

    def close(self) -> None:
        # Not closed: a flush on another thread may still sync it, and then drops the last reference.
        if self._file is not None:
            self._file = None
            OPEN_FILES.forget(self)

    def drop_file(self) -> None:
        self._file = None

    @property
    def growth(self) -> int:
        return len(self)

    @property
    def is_unsynced(self) -> bool:
        return False  # an index is rebuilt after a crash


# --------------------------------------------------------------------------------------------------- transaction index


class TransactionIndexError(LogError):
    """An entry that cannot follow the last one, or bytes that are not an entry."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"transaction index {path}: {reason}")
        self.path = path
        self.reason = reason


class AbortedTransaction(NamedTuple):
    """A producer's records from `first_offset` to its abort marker at `last_offset`.

    `last_stable_offset`: once the marker is replicated, all transactions below it are decided.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Aborted(Protocol):
    """The part of a completed transaction that the index stores."""

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


def contradiction(
    entry: AbortedTransaction, previous: AbortedTransaction | None, base_offset: int, next_offset: int | None = None
) -> str | None:
    """Why `entry` cannot follow `previous` in a segment with offsets [base_offset, next_offset), or None."""
    if entry.producer_id < 0 or not 0 <= entry.first_offset <= entry.last_offset:
        return f"impossible values: {tuple(entry)}"
    if entry.last_offset < base_offset or (next_offset is not None and entry.last_offset >= next_offset):
        return f"names a marker at offset {entry.last_offset}, outside the segment"
    if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
        return f"the last stable offset {entry.last_stable_offset} is after the marker at {entry.last_offset}"
    if previous is not None and entry.last_offset <= previous.last_offset:
        return f"the marker at {entry.last_offset} does not follow the one at {previous.last_offset}"
    if previous is not None and entry.last_stable_offset < previous.last_stable_offset:
        return f"the last stable offset falls from {previous.last_stable_offset} to {entry.last_stable_offset}"
    return None


class TransactionIndex:
    """The `.txnindex` file of the segment at `base_offset`, opened on first use."""

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
            # The next entry overwrites a torn one at the end.
            self._count = files.size_of(path) // ENTRY_BYTES
            self._last = self._read_last()
            # A log of many segments would otherwise start with as many open files.
            self.close()

    @property
    def path(self) -> str:
        return self._path

    @property
    def entry_count(self) -> int:
        return self._count

    # --- write

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction, whose marker must follow that of the last one. Creates the file if needed."""
        reason = contradiction(aborted, self._last, self._base_offset)
        if reason:
            raise TransactionIndexError(self._path, f"cannot append {aborted}: {reason}")
        if not self._exists:
            self._file = OPEN_FILES.open(self, self._files, self._path, create=True)
            self._exists = True
            self._name_is_durable = False
        self._opened().write_at(self._count * ENTRY_BYTES, _TRANSACTION.pack(_TRANSACTION_VERSION, *aborted))
        self._count += 1
        self._last = aborted
        self._dirty = True

    def flush(self) -> None:
        """Make all entries durable."""
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
        """Drop all entries, to index the segment again. The file stays, empty."""
        self._cut(0)

    def cut_damaged_tail(self) -> int:
        """Cut the file at the first damaged entry; how many bytes were cut."""
        if not self._exists:
            return 0
        size = self._opened().size()
        sound, previous = 0, None
        for version, entry in self._scan(0, self._count):
            if version != _TRANSACTION_VERSION or contradiction(entry, previous, self._base_offset):
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

    # --- read

    def entries(self) -> Iterator[AbortedTransaction]:
        """All entries, oldest marker first. TransactionIndexError at an unknown version."""
        return self._read(0, self._count)

    def aborted_between(self, fetch_offset: int, upper_bound_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records or marker in [fetch_offset, upper_bound_offset).

        With aborts 10-15 and 12-30: a fetch of [16, 20) gets the second, one of [0, 11) the first, one of [31, 40)
        none. Later segments may also list transactions in the range: continue with them until `covers` is True.
        """
        found = []
        for entry in self._read(self._first_ending_from(fetch_offset), self._count):
            if entry.first_offset < upper_bound_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_bound_offset:
                break
        return found

    def covers(self, upper_bound_offset: int) -> bool:
        """Whether the last marker here decides all transactions with records below `upper_bound_offset`."""
        return self._last is not None and self._last.last_stable_offset >= upper_bound_offset

    def _first_ending_from(self, offset: int) -> int:
        """The index of the first entry with its marker at `offset` or later."""
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
            if version != _TRANSACTION_VERSION:
                raise TransactionIndexError(self._path, f"unknown entry version {version}")
            yield entry

    def _scan(self, first: int, end: int) -> Iterator[tuple[int, AbortedTransaction]]:
        while first < end:
            count = min(end - first, _CHUNK_ENTRIES)
            data = self._opened().read_at(first * ENTRY_BYTES, count * ENTRY_BYTES)
            if len(data) != count * ENTRY_BYTES:
                raise TransactionIndexError(self._path, f"entry {first + len(data) // ENTRY_BYTES} is incomplete")
            for version, *fields in _TRANSACTION.iter_unpack(data):
                yield version, AbortedTransaction(*fields)
            first += count

    def _read_last(self) -> AbortedTransaction | None:
        return next(self._scan(self._count - 1, self._count))[1] if self._count else None

    # --- the file

    def _opened(self) -> File:
        file = self._file  # another thread may drop it
        if file is None:
            file = self._file = OPEN_FILES.open(self, self._files, self._path)
        return file

    def drop_file(self) -> None:
        self._file = None

    @property
    def growth(self) -> int:
        return self._count

    @property
    def is_unsynced(self) -> bool:
        return self._dirty

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        file, self._file = self._file, None
        if file is not None:
            OPEN_FILES.forget(self)
            file.close()
