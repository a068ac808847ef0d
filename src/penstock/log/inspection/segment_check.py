"""Verification of segments, in order: checksums, offsets, leader epochs, indexes and, on request, records.

One pass over the log's bytes serves all checks; index files are read in step with it, so neither is held in memory. A
finding is one place in one file: what is wrong, how far it reaches, what to do. `damage` is bytes that differ from what
was written, `format` is sound data in a format the log does not hold, `note` is information only.

An `.index` entry must name the position of a batch and an offset in it (or the last offset appended with it: Kafka's
followers write those). A `.timeindex` entry must name an offset, its batch's timestamp, and no earlier batch may be
newer. Entries ascend. Only the first wrong entry is described; all are counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from penstock.log.index import (
    ENTRY_BYTES,
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    Entry,
    TransactionIndex,
    TransactionIndexError,
    contradiction,
)
from penstock.log.inspection.log_files import Damaged, Item, Message, Run, read_batch, scan_past_damage
from penstock.log.segment import MAX_RELATIVE_OFFSET, SEGMENT_SUFFIXES, segment_name
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, BatchHeader, CorruptBatch, RecordError, records_of
from penstock.records.batch import decode_marker
from penstock.runtime.files import File, Files

NEVER_DUE: Final = 2**64
# A file with more damaged places than this is not a log.
MAX_FINDINGS: Final = 100

REPLACE_FOLDER: Final = (
    "With replicas: stop the broker, delete the partition's folder, start the broker: it copies the partition again."
)
INDEX_ADVICE: Final = (
    "No record is lost. If a broker is running, verify again; otherwise delete this index: it is rebuilt from the log."
)
TRANSACTION_INDEX_ADVICE: Final = (
    "Consumers of committed records may see aborted ones. Stop the broker, delete this file and the folder's .snapshot "
    "files: the next start rebuilds them from the log."
)
MAGIC_ADVICE: Final = (
    "This is not damage: an older Kafka wrote it. Penstock stores magic 2 only and would cut it off: do not start a "
    "broker on it. `penstock log dump --records` shows it; to keep it, copy it with a consumer and a producer."
)

_CHUNK_ENTRIES: Final = 4096
_ZEROS: Final = Entry(0, 0)


# ------------------------------------------------------------------------------------------------- findings and advice


class Severity(StrEnum):
    DAMAGE = "damage"
    FORMAT = "format"
    NOTE = "note"


class Kind(StrEnum):
    """What a finding is about, for programs."""

    BATCH = "batch"
    RECORDS = "records"
    OFFSETS = "offsets"
    LEADER_EPOCH = "leader-epoch"
    MAGIC = "magic"
    OFFSET_INDEX = "offset-index"
    TIME_INDEX = "time-index"
    TRANSACTION_INDEX = "transaction-index"
    SNAPSHOT = "snapshot"
    CHECKPOINT = "checkpoint"
    GAP = "gap"
    LEFTOVER = "leftover"
    UNREADABLE = "unreadable"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One place in one file.

    `position` and `size` are bytes of the file, `offset` is the first one affected, `resumes` is where the log is sound
    again, if it is.
    """

    severity: Severity
    kind: Kind
    path: str
    reason: str
    advice: str = ""
    position: int | None = None
    size: int | None = None
    offset: int | None = None
    resumes: int | None = None


@dataclass(slots=True)
class Tally:
    """How much was read, and how much of it was sound."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    sound_bytes: int = 0
    first_offset: int | None = None
    next_offset: int | None = None


@dataclass(slots=True)
class Report:
    """The findings for a partition, a file, or a log directory without its partitions."""

    path: str
    findings: list[Finding] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    @property
    def is_sound(self) -> bool:
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


@dataclass(frozen=True, slots=True)
class Options:
    """`deep`: decode every record, decompressing up to `limit_bytes` per batch. `on_bytes` is called with progress.
    `pause` waits a moment for a write in progress.
    """

    deep: bool = False
    limit_bytes: int = DEFAULT_DECOMPRESSED_LIMIT
    on_bytes: Callable[[int], None] | None = None
    pause: Callable[[], None] | None = None


def unreadable(path: str, error: OSError) -> Finding:
    """A file that cannot be read. One that was removed meanwhile is only a note."""
    if isinstance(error, FileNotFoundError):
        return Finding(Severity.NOTE, Kind.CHANGED, path, "removed while the folder was read")
    advice = "Run it as the broker's user." if isinstance(error, PermissionError) else "The disk may be failing."
    return Finding(Severity.DAMAGE, Kind.UNREADABLE, path, error.strerror or str(error), advice)


def reason_of(error: RecordError) -> str:
    """What is wrong with a batch's records, without the position, which the caller adds."""
    return error.reason if isinstance(error, CorruptBatch) else str(error)


def batch_advice(*, is_last_segment: bool, at_end: bool, offset: int, resumes: int | None) -> str:
    """What to do about a damaged range of a log."""
    if is_last_segment:
        again = "If a broker is writing here, verify again. " if at_end else ""
        later = "" if resumes is None else ", and everything after it goes too"
        return f"{again}The broker cuts the log here at its next unclean start{later}. {REPLACE_FOLDER}"
    around = "" if resumes is None else f" Without: read up to offset {offset} and continue from {resumes}."
    return f"Reading from offset {offset} fails. {REPLACE_FOLDER}{around}"


def order_advice(*, is_last_segment: bool) -> str:
    """What to do about offsets or leader epochs that do not ascend: checksums do not cover them."""
    cut = "The broker cuts the log here at its next unclean start. " if is_last_segment else ""
    return f"{cut}One of the two batches is damaged or was written twice. {REPLACE_FOLDER}"


# --------------------------------------------------------------------------------------------------------- index files


class WrongEntry(NamedTuple):
    """The first wrong entry of an index, by its position in the index file."""

    position: int
    offset: int | None
    reason: str


def index_entries(file: File, entry: Struct, end: int) -> Iterator[Entry]:
    """The complete entries in the first `end` bytes of an index file."""
    position = 0
    while position < end:
        data = file.read_at(position, min(_CHUNK_ENTRIES * entry.size, end - position))
        whole = len(data) - len(data) % entry.size
        yield from map(Entry._make, entry.iter_unpack(memoryview(data)[:whole]))
        if whole == 0:
            return
        position += whole


class IndexCheck(ABC):
    """Base of the index checks: reads entries in order and notes what is wrong."""

    entry: Struct

    def __init__(self, file: File, base_offset: int) -> None:
        self.base_offset = base_offset
        self.first_wrong: WrongEntry | None = None
        self.wrong_count = 0
        self.entry_count = 0
        self.zeros_at_end = 0
        # A broker may add entries later, for batches that the walk does not reach.
        self.size = file.size()
        self.due = NEVER_DUE
        self._entries = index_entries(file, self.entry, self.size)
        self._current: Entry | None = None
        self._last: Entry | None = None
        self._take()

    def _take(self) -> None:
        """Take the next entry that is in order."""
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
                self._note_wrong("follows entries of zeros", self.base_offset + self._offset_of(entry))
                self.zeros_at_end = 0
            if self._last is not None and not self._follows(self._last, entry):
                self._note_wrong(f"{tuple(entry)} does not follow {tuple(self._last)}", None)
                continue
            return entry
        return None

    def _note_wrong(self, reason: str, offset: int | None) -> None:
        if self.first_wrong is None:
            self.first_wrong = WrongEntry(max(0, self.entry_count - 1) * self.entry.size, offset, reason)
        self.wrong_count += 1

    @abstractmethod
    def _offset_of(self, entry: Entry) -> int: ...

    @abstractmethod
    def _follows(self, last: Entry, entry: Entry) -> bool: ...

    @abstractmethod
    def _due_of(self, entry: Entry) -> int: ...


class OffsetIndexCheck(IndexCheck):
    """For `.index`: call `see` for each batch at position `due` or later."""

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
        """A batch at `position` with these offsets."""
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
                self._note_wrong(f"names byte {entry.value} of the log, where no batch starts", named)
            elif named < base_offset:
                self._note_wrong(
                    f"names offset {named} for the batch at {position}, which starts at {base_offset}", named
                )
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
        """The log ends at position `end`: the remaining entries point beyond it."""
        while self._current is not None:
            named = self.base_offset + self._current.key
            if self._awaited is not None:
                self._note_wrong(f"names offset {named}, which no batch ends with", named)
                self._awaited = None
            else:
                self._note_wrong(f"names byte {self._current.value} of a log of {end}", named)
            self._take()


class TimeIndexCheck(IndexCheck):
    """For `.timeindex`: call `see` for each batch that ends at offset `due` or later, and update `newest_ms`."""

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
        """A batch with these offsets and the largest timestamp `newest_ms`."""
        while self._current is not None and self._named(self._current) <= last_offset:
            stamp, named = self._current.key, self._named(self._current)
            if named < base_offset:
                if not self._is_blind:
                    self._note_wrong(f"names offset {named}, which no batch contains", named)
            elif stamp != newest_ms:
                self._note_wrong(f"names time {stamp} for offset {named}, but its batch has {newest_ms}", named)
            elif self.newest_ms > stamp:
                self._note_wrong(f"names time {stamp}, but {self.newest_ms} comes before offset {named}", named)
            self._take()
        if self._is_blind:
            self._is_blind = False
            self.due = NEVER_DUE if self._current is None else self._named(self._current)

    def _named(self, entry: Entry) -> int:
        return self.base_offset + entry.value

    def lost(self) -> None:
        """The log is damaged up to the next batch, for which `see` must be called."""
        self._is_blind = True
        self.due = -1

    def finish(self, next_offset: int) -> None:
        """The log ends before `next_offset`: the remaining entries point beyond it."""
        while self._current is not None:
            named = self._named(self._current)
            if not self._is_blind:
                self._note_wrong(f"names offset {named}, but the segment ends before {next_offset}", named)
            self._take()


_Check = TypeVar("_Check", bound=IndexCheck)


# ------------------------------------------------------------------------------------------------------------ segments


class SegmentCheck:
    """Checks the segments of a folder: call `run` for each, oldest first."""

    def __init__(self, files: Files, folder: str, options: Options, tally: Tally) -> None:
        self._files = files
        self._folder = folder
        self.options = options
        self.tally = tally
        self.epoch = -1
        self._ended_damaged = False

    def run(
        self, base_offset: int, *, is_last: bool, stem: str = "", suffix: str = "", expects_indexes: bool = True
    ) -> Iterator[Finding]:
        """One segment and its indexes.

        `stem` and `suffix`: the start and the end of its files' names, if they are not the usual ones.
        """
        stem = stem or f"{self._folder}/{segment_name(base_offset)}"
        path, offset_index, time_index, aborted = (stem + kind + suffix for kind in SEGMENT_SUFFIXES)
        walk, unreadable_files = None, list[Finding]()
        with ExitStack() as stack:
            try:
                offsets = self._index(stack, offset_index, OffsetIndexCheck, base_offset, unreadable_files)
                times = self._index(stack, time_index, TimeIndexCheck, base_offset, unreadable_files)
                yield from unreadable_files
                log = stack.enter_context(closing(self._files.open(path)))
                yield from self._continuation(path, base_offset, log.size())
                walk = _SegmentWalk(self, path, log, base_offset, is_last, offsets, times)
                yield from walk.findings()
                if walk.is_complete:
                    expected = expects_indexes and log.size() > 0 and not unreadable_files
                    yield from _index_findings(offset_index, Kind.OFFSET_INDEX, offsets, is_last, expected)
                    yield from _index_findings(time_index, Kind.TIME_INDEX, times, is_last, expected)
            except OSError as error:
                yield unreadable(error.filename or path, error)
        if walk is not None:
            # A broker may have written more to the last segment since.
            known_end = None if is_last else walk.next_offset
            yield from verify_aborted(self._files, aborted, base_offset, known_end)
            self.tally.segments += 1
            self.tally.next_offset = walk.next_offset
            self._ended_damaged = walk.ended_damaged

    def _index(
        self, stack: ExitStack, path: str, check: type[_Check], base_offset: int, unreadable_files: list[Finding]
    ) -> _Check | None:
        # The indexes are opened before the log: see `verification`.
        try:
            return check(stack.enter_context(closing(self._files.open(path))), base_offset)
        except FileNotFoundError:
            return None
        except OSError as error:
            unreadable_files.append(unreadable(path, error))
            return None

    def _continuation(self, path: str, base_offset: int, size: int) -> Iterator[Finding]:
        expected = self.tally.next_offset
        if expected is None:
            self.tally.first_offset = base_offset
        elif base_offset < expected:
            reason = f"starts at offset {base_offset}, but the segment before it ends with {expected - 1}"
            yield Finding(
                Severity.DAMAGE, Kind.OFFSETS, path, reason, order_advice(is_last_segment=False), 0, size, base_offset
            )
        elif base_offset > expected and not self._ended_damaged:
            reason = f"starts at offset {base_offset}, the segment before it ends with {expected - 1}"
            advice = "Compaction leaves such gaps. In a log that was never compacted, a segment is missing."
            yield Finding(Severity.NOTE, Kind.GAP, path, reason, advice, 0, None, expected, base_offset)


class _SegmentWalk:
    """One pass over a segment's log. `next_offset` is where it ends."""

    def __init__(
        self,
        check: SegmentCheck,
        path: str,
        file: File,
        base_offset: int,
        is_last: bool,
        offsets: OffsetIndexCheck | None,
        times: TimeIndexCheck | None,
    ) -> None:
        self.next_offset = base_offset
        self.is_complete = False
        self.ended_damaged = False
        self._check = check
        self._tally = check.tally
        self._path = path
        self._file = file
        self._base_offset = base_offset
        self._is_last = is_last
        self._offsets = offsets
        self._times = times
        self._found = 0
        self._items = 0
        self._read = 0
        self._magics: Counter[int] = Counter()

    def findings(self) -> Iterator[Finding]:
        damaged: Damaged | None = None
        end = 0
        for item in scan_past_damage(self._file, self._base_offset, self._check.options.pause):
            if self._found >= MAX_FINDINGS:
                reason = f"more than {MAX_FINDINGS} damaged places: the rest of the file was not read"
                yield self._finding(Severity.DAMAGE, Kind.BATCH, reason, REPLACE_FOLDER, end, None, self.next_offset)
                self.ended_damaged = True
                break
            if damaged is not None:
                yield self._damage(damaged, item)
            damaged = item if isinstance(item, Damaged) else None
            if isinstance(item, Run):
                end = item.position + item.headers[-1].position + item.headers[-1].size
                yield from self._run(item)
            else:
                end = item.position + item.size
                yield from self._message(item) if isinstance(item, Message) else self._lost(item)
            self._report_progress(end)
        else:
            self.is_complete = True
        if damaged is not None:
            self.ended_damaged = True
            yield self._damage(damaged, None)
        yield from self._old_formats()
        yield from self._finish(end)

    def _report_progress(self, end: int) -> None:
        on_bytes = self._check.options.on_bytes
        read, self._read = end - self._read, end
        self._tally.bytes += read
        if on_bytes is not None:
            on_bytes(read)

    def _finding(
        self,
        severity: Severity,
        kind: Kind,
        reason: str,
        advice: str,
        position: int,
        size: int | None,
        offset: int,
        resumes: int | None = None,
    ) -> Finding:
        self._found += severity is Severity.DAMAGE
        return Finding(severity, kind, self._path, reason, advice, position, size, offset, resumes)

    # --- sound batches

    def _run(self, run: Run) -> Iterator[Finding]:
        """The loop over all batches. With small batches it costs more than the checksums."""
        offsets, times = self._offsets, self._times
        expected, epoch = self.next_offset, self._check.epoch
        deep = self._check.options.deep
        records = size = 0
        for header in run.headers:
            base, last = header.base_offset, header.last_offset
            if base < expected or header.leader_epoch < epoch or last - self._base_offset > MAX_RELATIVE_OFFSET:
                yield from self._disorder(run.position + header.position, header, expected, epoch)
            expected, epoch = last + 1, header.leader_epoch
            if offsets is not None and run.position + header.position >= offsets.due:
                offsets.see(run.position + header.position, base, last)
            if times is not None:
                if last >= times.due:
                    times.see(base, last, header.max_timestamp)
                if header.max_timestamp > times.newest_ms:
                    times.newest_ms = header.max_timestamp
            records += header.record_count
            size += header.size
            if deep:
                yield from self._records(run, header)
        self.next_offset, self._check.epoch = expected, epoch
        self._items += len(run.headers)
        self._tally.batches += len(run.headers)
        self._tally.records += records
        self._tally.sound_bytes += size

    def _disorder(self, position: int, header: BatchHeader, expected: int, epoch: int) -> Iterator[Finding]:
        advice = order_advice(is_last_segment=self._is_last)
        base, size = header.base_offset, header.size
        if base < expected:
            reason = f"offset {base}, expected {expected} or later"
            yield self._finding(Severity.DAMAGE, Kind.OFFSETS, reason, advice, position, size, base)
        if header.leader_epoch < epoch:
            reason = f"leader epoch {header.leader_epoch} follows {epoch}"
            yield self._finding(Severity.DAMAGE, Kind.LEADER_EPOCH, reason, advice, position, size, base)
        if header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET:
            reason = f"offset {header.last_offset} is too far from the segment's base offset {self._base_offset}"
            yield self._finding(Severity.DAMAGE, Kind.OFFSETS, reason, advice, position, size, base)

    def _records(self, run: Run, header: BatchHeader) -> Iterator[Finding]:
        limit = self._check.options.limit_bytes
        reason = None
        if header.size > limit:
            reason = f"batch of {header.size} bytes exceeds the limit of {limit}"
        else:
            try:
                reason = _record_damage(*read_batch(self._file, run, header), limit)
            except RecordError as error:
                reason = reason_of(error)
        if reason is not None:
            advice = "The checksum is valid, so the producer sent the batch like this. Consumers fail here; skip it."
            position = run.position + header.position
            yield self._finding(
                Severity.DAMAGE, Kind.RECORDS, reason, advice, position, header.size, header.base_offset,
                header.next_offset,
            )  # fmt: skip

    # --- messages of old formats

    def _message(self, message: Message) -> Iterator[Finding]:
        expected = self.next_offset
        if message.offset < expected:
            reason = f"offset {message.offset}, expected {expected} or later"
            advice = order_advice(is_last_segment=self._is_last)
            yield self._finding(
                Severity.DAMAGE, Kind.OFFSETS, reason, advice, message.position, message.size, message.offset
            )
        if self._offsets is not None and message.position >= self._offsets.due:
            self._offsets.see(message.position, min(expected, message.offset), message.offset)
        if self._times is not None:
            if message.offset >= self._times.due:
                self._times.see(min(expected, message.offset), message.offset, message.timestamp_ms)
            self._times.newest_ms = max(self._times.newest_ms, message.timestamp_ms)
        self.next_offset = message.offset + 1
        self._magics[message.magic] += 1
        self._items += 1
        self._tally.batches += 1
        self._tally.sound_bytes += message.size

    def _old_formats(self) -> Iterator[Finding]:
        for magic, count in sorted(self._magics.items()):
            reason = f"format magic {magic}: {count} message{'s' * (count != 1)} from before Kafka 0.11"
            yield self._finding(Severity.FORMAT, Kind.MAGIC, reason, MAGIC_ADVICE, 0, None, self._base_offset)

    # --- damage

    def _lost(self, damaged: Damaged) -> Iterator[Finding]:
        if self._offsets is not None:
            self._offsets.lost(damaged.end)
        if self._times is not None:
            self._times.lost()
        return iter(())

    def _damage(self, damaged: Damaged, follows: Item | None) -> Finding:
        """The finding for a damaged range, given what follows it."""
        offset = self.next_offset if damaged.header is None else max(self.next_offset, damaged.header.base_offset)
        resumes = None
        if isinstance(follows, Run):
            resumes = follows.headers[0].base_offset
        elif isinstance(follows, Message):
            resumes = follows.offset
        reason = damaged.reason
        if self._items == 0 and damaged.at_end and not damaged.is_empty:
            reason += "; the file contains no record batch: is it a log segment?"
        advice = batch_advice(
            is_last_segment=self._is_last, at_end=damaged.at_end, offset=self.next_offset, resumes=resumes
        )
        position, size = damaged.position, damaged.size
        return self._finding(Severity.DAMAGE, Kind.BATCH, reason, advice, position, size, offset, resumes)

    def _finish(self, end: int) -> Iterator[Finding]:
        if self._file.size() < end:
            self.is_complete = False
            yield self._finding(
                Severity.NOTE,
                Kind.CHANGED,
                "truncated meanwhile: verify again",
                "",
                end,
                None,
                self.next_offset,
            )
        if self.is_complete:
            if self._offsets is not None:
                self._offsets.finish(end)
            if self._times is not None:
                self._times.finish(self.next_offset)


def _record_damage(data: bytes, header: BatchHeader, limit: int) -> str | None:
    """What is wrong with the records of a batch with a valid checksum. RecordError if they do not parse."""
    last = header.base_offset - 1
    for record in records_of(data, header, limit):
        if record.offset <= last:
            return f"record offset {record.offset} follows {last}"
        if record.offset > header.last_offset:
            return f"record offset {record.offset} is after the batch's last, {header.last_offset}"
        if record.timestamp > header.max_timestamp:
            return f"record {record.offset} has timestamp {record.timestamp}, its batch at most {header.max_timestamp}"
        last = record.offset
    if header.is_control:
        decode_marker(data, header)
    return None


def _index_findings(
    path: str, kind: Kind, check: IndexCheck | None, is_last: bool, is_expected: bool
) -> Iterator[Finding]:
    if check is None:
        if is_expected:
            yield Finding(Severity.NOTE, kind, path, "is missing: rebuilt from the log when needed")
        return
    torn = check.size % check.entry.size
    if torn:
        reason = f"has {check.size} bytes, not a multiple of {check.entry.size}"
        yield Finding(Severity.DAMAGE, kind, path, reason, INDEX_ADVICE, check.size - torn, torn)
    if check.first_wrong is not None:
        position, offset, reason = check.first_wrong
        more = f" ({check.wrong_count - 1} more wrong entries)" if check.wrong_count > 1 else ""
        yield Finding(
            Severity.DAMAGE, kind, path, f"entry {position // check.entry.size} {reason}{more}", INDEX_ADVICE,
            position, check.entry.size, offset,
        )  # fmt: skip
    if check.zeros_at_end:
        severity = Severity.NOTE if is_last else Severity.DAMAGE
        reason = f"ends with {check.zeros_at_end} entries of zeros: preallocated, or a block that was never written"
        size = check.zeros_at_end * check.entry.size
        yield Finding(severity, kind, path, reason, INDEX_ADVICE, check.size - torn - size, size)


def verify_aborted(files: Files, path: str, base_offset: int, next_offset: int | None) -> Iterator[Finding]:
    """Check the `.txnindex` of a segment, if it has one. `next_offset`: the end of the segment, if known."""
    previous: AbortedTransaction | None = None
    position = 0
    try:
        if not files.exists(path):
            return
        torn = files.size_of(path) % ENTRY_BYTES
        index = TransactionIndex(files, path, base_offset)
        try:
            for entry in index.entries():
                reason = contradiction(entry, previous, base_offset, next_offset)
                if reason is not None:
                    raise TransactionIndexError(path, reason)
                previous, position = entry, position + ENTRY_BYTES
            if torn:
                raise TransactionIndexError(path, f"{torn} bytes follow the last complete entry")
        finally:
            index.close()
    except TransactionIndexError as error:
        yield Finding(
            Severity.DAMAGE, Kind.TRANSACTION_INDEX, path, error.reason, TRANSACTION_INDEX_ADVICE, position,
            offset=None if previous is None else previous.last_offset + 1,
        )  # fmt: skip
    except OSError as error:
        yield unreadable(path, error)
