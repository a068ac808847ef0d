"""An index with an entry every few kilobytes: small enough to search, dense enough to make the scan short.

Noun: a file of fixed-size big-endian pairs, ascending in both columns, in Kafka's formats:

    .index      u32 offset relative to the segment's base, u32 position in the log
    .timeindex  i64 timestamp, u32 relative offset

Rule: the log is the truth. An index may lack entries (a lookup then scans longer), and one that contradicts the log is
rebuilt from it. New entries stay in memory until `flush`, so an append costs no system call here; opening costs none
that grows with the file, since what is in the file is searched there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct
from typing import Final, NamedTuple

from penstock.runtime.files import File, Files
from penstock.runtime.open_files import OPEN_FILES

OFFSET_ENTRY: Final = Struct(">II")
TIME_ENTRY: Final = Struct(">qI")

_BLOCK_ENTRIES = 256
_LARGEST = 2**32 - 1
_LARGEST_TIME = 2**63 - 1


class Entry(NamedTuple):
    key: int
    value: int


# A block that never reached the disk reads as zeros, so no entry may look like that.
_ZEROS = Entry(0, 0)


class SparseIndex:
    """One index file: `append`, `floor`, `truncate`."""

    def __init__(self, files: Files, path: str, entry: Struct) -> None:
        self._files = files
        self.path = path
        self._entry = entry
        self._largest_key = _LARGEST if entry is OFFSET_ENTRY else _LARGEST_TIME
        self._file: File | None = None
        self._stored = 0  # entries in the file
        self._keys = array("q")  # those that are not in the file as it was opened
        self._values = array("q")
        self._pending = 0  # how many of these wait for flush
        self._last: Entry | None = None

    def create(self) -> None:
        """Begin an empty file, whatever was there."""
        file = self._open(create=True)
        if file.size():
            file.truncate(0)
        self._forget()
        self.close()  # thousands of idle partitions must not hold three descriptors each

    def load(self) -> str | None:
        """Take over the file; why it cannot be trusted, or None. Missing, torn and zeroed files cannot."""
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
        """Take over the first `count` entries of the file, which the caller knows to be sound, and no others."""
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
    def size_bytes(self) -> int:
        return len(self) * self._entry.size

    @property
    def last(self) -> Entry | None:
        return self._last

    def append(self, key: int, value: int) -> None:
        """Add an entry beyond the last; one that is not, or that the format cannot hold, is left out, which only makes
        lookups scan more.
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
        """Entries that only memory holds."""
        return self._pending

    def flush(self) -> None:
        """Write what is pending to the file (not synced)."""
        if not self._pending:
            return
        start = len(self._keys) - self._pending
        pack = self._entry.pack
        data = b"".join(map(pack, self._keys[start:], self._values[start:]))
        self._open(create=True).write_at((self._stored + start) * self._entry.size, data)
        self._pending = 0

    def seal(self) -> None:
        """Write everything and keep nothing in memory: no more entries will come soon."""
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

    def _search(self, target: int, column: int) -> Entry | None:
        """Among the entries in the file: whole blocks first, then inside one."""
        low, high = 0, (self._stored + _BLOCK_ENTRIES - 1) // _BLOCK_ENTRIES
        while low < high:  # the first block that begins above target
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
        """All of them: for tools and tests."""
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
        # Even if no whole entry goes: a flush that failed half way may have left more than it counted.
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

    def sync(self) -> None:
        file = self._file
        if file is not None:
            file.sync()

    @property
    def file(self) -> File:
        return self._open(create=True)

    def _open(self, *, create: bool = False) -> File:
        file = self._file  # another thread may let go of it
        if file is None:
            file = self._file = OPEN_FILES.open(self, self._files, self.path, create=create)
        return file

    def close(self) -> None:
        # Only let go: a flush that runs elsewhere may be about to sync it, and closes it by being the last holder.
        if self._file is not None:
            self._file = None
            OPEN_FILES.forget(self)

    def let_go(self) -> None:
        self._file = None

    @property
    def growth(self) -> int:
        return len(self)

    @property
    def is_unsynced(self) -> bool:
        return False  # what is lost of it is built anew
