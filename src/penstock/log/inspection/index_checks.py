"""Whether a segment's indexes say the truth of its log.

Noun: a check goes through one index file in step with a walk over the log, so neither is held in memory.

Rule: an entry of `.index` names a position at which a batch begins and an offset in that batch (or the last offset of
what was appended with it: Kafka's followers write such). An entry of `.timeindex` names an offset and the time of the
batch that holds it, and nothing before that batch is stamped later. Entries ascend. Where the log is damaged nothing
can be said of the entries that point there. Only the first wrong entry is described, all are counted.

`due` says when a check wants to see a batch: most batches are in no index, and asking would cost more than comparing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from penstock.log.sparse_index import OFFSET_ENTRY, TIME_ENTRY, Entry
from penstock.log.transaction_index import AbortedTransaction
from penstock.runtime.files import File

NEVER_DUE: Final = 2**64

_CHUNK_ENTRIES = 4096
_ZEROS = Entry(0, 0)


class Wrong(NamedTuple):
    """The first wrong entry of an index, by its position in the index file."""

    position: int
    offset: int | None
    reason: str


def index_entries(file: File, entry: Struct, end: int) -> Iterator[Entry]:
    """The whole entries in the first `end` bytes of an index file, as they stand."""
    position = 0
    while position < end:
        data = file.read_at(position, min(_CHUNK_ENTRIES * entry.size, end - position))
        whole = len(data) - len(data) % entry.size
        yield from map(Entry._make, entry.iter_unpack(memoryview(data)[:whole]))
        if whole == 0:
            return
        position += whole


class IndexCheck(ABC):
    """What the checks of both indexes share: taking entries in order, and remembering what is wrong."""

    entry: Struct

    def __init__(self, file: File, base_offset: int) -> None:
        self.base_offset = base_offset
        self.first_wrong: Wrong | None = None
        self.wrong_count = 0
        self.entry_count = 0
        self.zeros_at_end = 0
        # What a broker adds from here on may be of batches that the walk does not reach.
        self.size = file.size()
        self.due = NEVER_DUE
        self._entries = index_entries(file, self.entry, self.size)
        self._current: Entry | None = None
        self._last: Entry | None = None
        self._take()

    def _take(self) -> None:
        """Go on to the next entry that is in order."""
        self._current = None
        self.due = NEVER_DUE
        try:
            self._current = self._next_in_order()
        except OSError as error:
            self._note_wrong(f"cannot be read: {error.strerror or error}", None)
        if self._current is not None:
            self._last = self._current
            self.due = self._due_of(self._current)

    def _next_in_order(self) -> Entry | None:
        for entry in self._entries:
            self.entry_count += 1
            if entry == _ZEROS:
                self.zeros_at_end += 1
                continue
            if self.zeros_at_end:
                self._note_wrong("entries of zeros before it", self.base_offset + self._offset_of(entry))
                self.zeros_at_end = 0
            if self._last is not None and not self._follows(self._last, entry):
                self._note_wrong(f"{tuple(entry)} does not follow {tuple(self._last)}", None)
                continue
            return entry
        return None

    def _note_wrong(self, reason: str, offset: int | None) -> None:
        if self.first_wrong is None:
            self.first_wrong = Wrong(max(0, self.entry_count - 1) * self.entry.size, offset, reason)
        self.wrong_count += 1

    @abstractmethod
    def _offset_of(self, entry: Entry) -> int: ...

    @abstractmethod
    def _follows(self, last: Entry, entry: Entry) -> bool: ...

    @abstractmethod
    def _due_of(self, entry: Entry) -> int: ...


class OffsetIndexCheck(IndexCheck):
    """For `.index`: show it each batch that begins at `due` or later, by position."""

    entry = OFFSET_ENTRY

    def __init__(self, file: File, base_offset: int) -> None:
        self._awaited: int | None = None
        super().__init__(file, base_offset)

    def _offset_of(self, entry: Entry) -> int:
        return entry.key

    def _follows(self, last: Entry, entry: Entry) -> bool:
        return entry.key > last.key and entry.value > last.value

    def _due_of(self, entry: Entry) -> int:
        return entry.value

    def see(self, position: int, base_offset: int, last_offset: int) -> None:
        """A batch that begins at `position` and holds these offsets."""
        while self._current is not None and self.due <= position:
            entry = self._current
            named = self.base_offset + entry.key
            if self._awaited is not None:
                if last_offset < self._awaited:
                    return
                if last_offset > self._awaited:
                    self._note_wrong(f"names offset {named}, which no batch ends with", named)
                self._awaited = None
            elif entry.value != position:
                self._note_wrong(f"names byte {entry.value} of the log, where no batch begins", named)
            elif named < base_offset:
                self._note_wrong(f"names offset {named} for the batch at byte {position}, from {base_offset} on", named)
            elif named > last_offset:
                self._awaited = named
                return
            self._take()

    def lost(self, end: int) -> None:
        """The log is damaged up to position `end`."""
        self._awaited = None
        while self._current is not None and self.due < end:
            self._take()

    def finish(self, end: int) -> None:
        """The log ends at position `end`: whatever is left points beyond it."""
        while self._current is not None:
            named = self.base_offset + self._current.key
            if self._awaited is not None:
                self._note_wrong(f"names offset {named}, which no batch ends with", named)
                self._awaited = None
            else:
                self._note_wrong(f"names byte {self._current.value} of a log of {end}", named)
            self._take()


class TimeIndexCheck(IndexCheck):
    """For `.timeindex`: show it each batch that ends at offset `due` or later, and keep `newest_ms` up to date."""

    entry = TIME_ENTRY

    def __init__(self, file: File, base_offset: int) -> None:
        self.newest_ms = -1
        self._is_blind = False
        super().__init__(file, base_offset)

    def _offset_of(self, entry: Entry) -> int:
        return entry.value

    def _follows(self, last: Entry, entry: Entry) -> bool:
        return entry.key > last.key and entry.value >= last.value

    def _due_of(self, entry: Entry) -> int:
        return self._named(entry)

    def see(self, base_offset: int, last_offset: int, newest_ms: int) -> None:
        """A batch with these offsets whose newest record is stamped `newest_ms`."""
        while self._current is not None and self._named(self._current) <= last_offset:
            stamp, named = self._current.key, self._named(self._current)
            if named < base_offset:
                if not self._is_blind:
                    self._note_wrong(f"names offset {named}, which no batch holds", named)
            elif stamp != newest_ms:
                self._note_wrong(f"names time {stamp} for offset {named}, whose batch has {newest_ms}", named)
            elif self.newest_ms > stamp:
                self._note_wrong(f"names time {stamp}, but {self.newest_ms} comes before offset {named}", named)
            self._take()
        if self._is_blind:
            self._is_blind = False
            self.due = NEVER_DUE if self._current is None else self._named(self._current)

    def _named(self, entry: Entry) -> int:
        return self.base_offset + entry.value

    def lost(self) -> None:
        """The log is damaged from here to the next batch, which must be shown whatever was due."""
        self._is_blind = True
        self.due = -1

    def finish(self, next_offset: int) -> None:
        """The log ends before `next_offset`: whatever is left points beyond it."""
        while self._current is not None:
            named = self._named(self._current)
            if not self._is_blind:
                self._note_wrong(f"names offset {named} of a segment that ends before {next_offset}", named)
            self._take()


def aborted_contradiction(
    entry: AbortedTransaction, previous: AbortedTransaction | None, base_offset: int, next_offset: int | None
) -> str | None:
    """Why `entry` of a `.txnindex` cannot stand behind `previous`, or None."""
    if entry.producer_id < 0 or not 0 <= entry.first_offset <= entry.last_offset:
        return f"impossible values: {tuple(entry)}"
    if entry.last_offset < base_offset or (next_offset is not None and entry.last_offset >= next_offset):
        return f"names a marker at offset {entry.last_offset}, outside of the segment"
    if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
        return f"the last stable offset {entry.last_stable_offset} is behind the marker at {entry.last_offset}"
    if previous is not None and entry.last_offset <= previous.last_offset:
        return f"the marker at {entry.last_offset} does not follow the one at {previous.last_offset}"
    if previous is not None and entry.last_stable_offset < previous.last_stable_offset:
        return f"the last stable offset falls from {previous.last_stable_offset} to {entry.last_stable_offset}"
    return None
