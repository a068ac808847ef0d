"""One compaction of one log: what is due, reading the old segments, and replacing them.

    segments   | clean ........ | dirty .............. | not yet ....... active |
               start        first dirty            end offset

Below the first dirty offset each key occurs once. Only whole sealed segments are compacted, and only below the last
stable offset and the checkpointed recovery point: above it, a gap between segments means data loss.

    begin      on the log's thread    copies what it needs to know about the log
    prepare    any thread             the next group of segments becomes one `.cleaned` segment, durable
    install    on the log's thread    it replaces them if they are still part of the log; otherwise it is discarded

The event loop only waits for renames. Groups go oldest first and each is installed before the next is prepared, so the
space needed is one group's, and a crash never removes a tombstone before what it deletes. Before `install` the log is
only read; if the disk fails during `install`, the log goes offline and the next start completes the swap. Code that
truncates or deletes the log meanwhile sets `cancelled` first and lowers the first dirty offset.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.log.compaction.record_filter import (
    DEFAULT_MAP_BYTES,
    AbortedRanges,
    BatchCleaner,
    FilterStats,
    LastBatch,
    OffsetMap,
)
from penstock.log.errors import (
    CompactionCancelled,
    CompactionError,
    CompactionFailed,
    CompactionOvertaken,
    DamagedLog,
    DiskFull,
    LogFailed,
    is_disk_full,
)
from penstock.log.file_records import Piece, walk, walk_headers
from penstock.log.index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction, TransactionIndex
from penstock.log.partition_folder import CLEANED, begin_swap, complete_swap
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_name, snapshot_offset
from penstock.log.segment import LOG_SUFFIX, MAX_RELATIVE_OFFSET, Row, Segment, SegmentTable, segment_name
from penstock.log.settings import NEVER, LogSettings
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, Buffer, CorruptBatch, TooLarge, scan
from penstock.runtime.files import File, Files

Cancelled: TypeAlias = Callable[[], bool]

_INDEX_ENTRY_BYTES: Final = 8
_LARGE_BYTES: Final = 1024 * 1024
_MAX_HELD: Final = 64


# ------------------------------------------------------------------------------------------------------------ planning


class SegmentTimes(Protocol):
    """When the records of a sealed segment were written, by its index in the table."""

    def newest_ms(self, index: int) -> int:
        """The largest timestamp; if records have none, the time of the file's last change."""

    def first_ms(self, index: int) -> int:
        """The timestamp of the first batch; zero or less if unknown."""


class LogFacts(NamedTuple):
    """What a plan needs to know about a log."""

    table: SegmentTable
    times: SegmentTimes
    active_base_offset: int
    start_offset: int
    end_offset: int
    last_stable_offset: int
    checkpointed_offset: int

    def next_base(self, index: int) -> int:
        """The base offset of the segment after `index`."""
        return self.table.bases[index + 1] if index + 1 < len(self.table) else self.active_base_offset

    def segments_below(self, offset: int) -> int:
        """How many sealed segments are entirely below `offset`."""
        if self.active_base_offset <= offset:
            return len(self.table)
        return max(0, bisect_right(self.table.bases, offset) - 1)


class Plan(NamedTuple):
    """What a compaction would do now."""

    first_dirty_offset: int
    end_offset: int
    first_dirty_segment: int
    segment_count: int  # how many of the oldest segments are rewritten
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int  # how long the oldest dirty record has waited beyond max.compaction.lag.ms
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """Of several logs that are due, the one with the highest ratio comes first."""
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0


def plan(facts: LogFacts, settings: LogSettings, first_dirty_offset: int | None, now_ms: int) -> Plan:
    """The plan for a log that was cleaned up to `first_dirty_offset` (None: never).

    Segments 0, 100, 200 and an active one at 300, cleaned up to 100, last stable offset 250, checkpoint 300: only
    segment 100 is dirty, and a compaction rewrites segments 0 and 100.
    """
    first_dirty = _inside(facts, first_dirty_offset)
    dirty_from = facts.segments_below(first_dirty)
    count = facts.segments_below(min(facts.last_stable_offset, facts.checkpointed_offset))
    count = _old_enough(facts, settings, dirty_from, count, now_ms)
    sizes = facts.table.sizes
    dirty_bytes = sum(sizes[dirty_from:count])
    clean_bytes = sum(sizes[: min(dirty_from, count)])
    overdue_ms = _overdue_ms(facts, settings, dirty_from, count, now_ms)
    decision = Plan(
        first_dirty,
        facts.next_base(count - 1) if count else first_dirty,
        min(dirty_from, count),
        count,
        clean_bytes,
        dirty_bytes,
        overdue_ms,
        is_due=False,
    )
    worth_it = overdue_ms > 0 or decision.dirty_ratio >= settings.min_cleanable_dirty_ratio
    return decision._replace(is_due=settings.compacts and dirty_bytes > 0 and worth_it)


def _inside(facts: LogFacts, first_dirty_offset: int | None) -> int:
    # Beyond the end: the log was truncated since, and later records were never cleaned.
    if first_dirty_offset is None or not facts.start_offset <= first_dirty_offset <= facts.end_offset:
        return facts.start_offset
    return first_dirty_offset


def _old_enough(facts: LogFacts, settings: LogSettings, dirty_from: int, count: int, now_ms: int) -> int:
    if settings.min_compaction_lag_ms > 0:
        for index in range(dirty_from, count):
            if facts.times.newest_ms(index) > now_ms - settings.min_compaction_lag_ms:
                return index
    return count


def _overdue_ms(facts: LogFacts, settings: LogSettings, dirty_from: int, count: int, now_ms: int) -> int:
    if settings.max_compaction_lag_ms >= NEVER:
        return 0
    known = [stamp for stamp in map(facts.times.first_ms, range(dirty_from, count)) if stamp > 0]
    return max(0, now_ms - settings.max_compaction_lag_ms - min(known)) if known else 0


def group_segments(rows: Sequence[Row], end_offset: int, settings: LogSettings) -> list[list[Row]]:
    """Groups of adjacent segments, each of which fits one segment even if all records stay.

    The segment after the last one starts at `end_offset`. With 40, 30, 50 and 20 bytes and segment.bytes=80: the first
    two, and the other two.
    """
    groups: list[list[Row]] = []
    group: list[Row] = []
    size_bytes = 0
    for index, row in enumerate(rows):
        size_bytes += row.size
        next_base = rows[index + 1].base_offset if index + 1 < len(rows) else end_offset
        if group and not _fits(size_bytes, next_base - 1 - group[0].base_offset, settings):
            groups.append(group)
            group, size_bytes = [], row.size
        group.append(row)
    return [*groups, group] if group else groups


def _fits(size_bytes: int, relative_offset: int, settings: LogSettings) -> bool:
    # Upper bound: an index entry is written only after more than an interval's bytes.
    index_entries = size_bytes // max(1, settings.index_interval_bytes) + 1
    return (
        size_bytes <= settings.segment_bytes
        and index_entries * _INDEX_ENTRY_BYTES <= settings.segment_index_bytes
        and relative_offset <= MAX_RELATIVE_OFFSET
    )


# ------------------------------------------------------------------------------------------------ reading old segments


class SourceReader:
    """Reads the old segments of a folder. `cancelled` is checked about every megabyte."""

    def __init__(self, files: Files, folder: str, cancelled: Cancelled, decompressed_limit: int) -> None:
        self._files = files
        self._folder = folder
        self._cancelled = cancelled
        self._decompressed_limit = decompressed_limit

    def aborted_transactions(self, bases: Iterable[int], end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records below `end_offset`, from the indexes of the segments at `bases`."""
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

    def index_keys(self, rows: Sequence[Row], first_offset: int, keys: OffsetMap, aborted: AbortedRanges) -> int | None:
        """Add the keys of the batches from `first_offset`; the offset of the first batch that does not fit, or None."""
        for row in rows:
            with self._opened(row) as file:
                start = _position_of(file, row, first_offset)
                for piece in self._pieces(file, row, start):
                    with _placed(file, piece):
                        full_at = self._index_piece(piece, keys, aborted)
                    if full_at is not None:
                        return full_at
        return None

    def _index_piece(self, piece: Piece, keys: OffsetMap, aborted: AbortedRanges) -> int | None:
        for header in piece.headers:
            if header.is_control or header.record_count == 0 or aborted.hold(header):
                continue
            if not keys.has_room_for(header):
                return header.base_offset
            keys.add(piece.buffer, header, self._decompressed_limit)
        return None

    def hold_open(self, rows: Iterable[Row], at_least_bytes: int) -> list[File]:
        """Open the larger segments: while they are open, unlinking them takes no time."""
        large = [row for row in rows if row.size >= at_least_bytes]
        return [self._files.open(self._path_of(row), writable=False) for row in large]

    def cleaned(self, rows: Sequence[Row], cleaner: BatchCleaner) -> Iterator[list[Buffer]]:
        """What is left of the segments, in pieces."""
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
    """The position of the batch that contains `offset` or a later one."""
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
    """Add the position in the file to errors inside a batch."""
    try:
        yield
    except CorruptBatch as error:
        raise DamagedLog(file.path, piece.position + error.position, error.reason) from error
    except TooLarge as error:
        raise CompactionFailed(file.path, str(error)) from error


# ------------------------------------------------------------------------------------------------------------- the job


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a compaction did. `first_dirty_offset` is where the next one starts, for the cleaner checkpoint."""

    first_dirty_offset: int
    segments_before: int
    segments_after: int
    map_bytes: int
    stats: FilterStats


class CleanedGroup(NamedTuple):
    """A `.cleaned` segment and the segments that it replaces, oldest first."""

    replaced: tuple[Row, ...]
    row: Row


class _Times:
    """When a log's sealed segments were written."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def newest_ms(self, index: int) -> int:
        row = self._log.table[index]
        if row.max_timestamp >= 0:
            return row.max_timestamp
        path = f"{self._log.folder}/{segment_name(row.base_offset)}{LOG_SUFFIX}"
        return self._log.files.modified_ns(path) // 1_000_000

    def first_ms(self, index: int) -> int:
        return self._log.segment_at(index).first_timestamp or 0


def facts_of(log: PartitionLog) -> LogFacts:
    return LogFacts(
        log.stamped_table(),
        _Times(log),
        log.active.base_offset,
        log.log_start_offset,
        log.log_end_offset,
        log.last_stable_offset,
        log.checkpointed_offset,
    )


def plan_for(log: PartitionLog, first_dirty_offset: int | None, now_ms: int) -> Plan:
    """`plan` for a log as it is now."""
    return plan(facts_of(log), log.settings, first_dirty_offset, now_ms)


def _never() -> bool:
    return False


def compact(
    log: PartitionLog,
    first_dirty_offset: int | None,
    now_ms: int,
    *,
    map_bytes: int = DEFAULT_MAP_BYTES,
    only_if_due: bool = True,
    cancelled: Cancelled = _never,
) -> CompactionResult | None:
    """Compact a log on this thread; None if it is not due."""
    decision = plan_for(log, first_dirty_offset, now_ms)
    if only_if_due and not decision.is_due:
        return None
    compaction = Compaction.begin(log, decision, now_ms, map_bytes=map_bytes)
    while (group := compaction.prepare(cancelled)) is not None:
        compaction.install(log, group)
    return compaction.result


class Compaction:
    """One compaction of one log, created by `begin`."""

    def __init__(
        self,
        files: Files,
        folder: str,
        settings: LogSettings,
        decision: Plan,
        *,
        rows: list[Row],
        later_bases: list[int],
        aborted: list[AbortedTransaction],
        last_batches: Mapping[int, LastBatch],
        generation: int,
        now_ms: int,
        map_bytes: int,
        decompressed_limit: int,
    ) -> None:
        self._files = files
        self._folder = folder
        self._settings = settings
        self._plan = decision
        self._rows = rows
        self._later_bases = later_bases
        self._aborted = aborted
        self._last_batches = last_batches
        self._generation = generation
        self._now_ms = now_ms
        self._keys = OffsetMap(map_bytes)
        self._decompressed_limit = decompressed_limit
        self._cleaner: BatchCleaner | None = None
        self._first_dirty_offset = decision.first_dirty_offset
        self._end_offset = decision.end_offset
        self._groups: deque[list[Row]] = deque()
        self._waiting: CleanedGroup | None = None
        self._ended = False
        self._held: list[File] = []  # replaced segments: closing them frees their space
        self._segments_before = 0
        self._segments_after = 0

    @classmethod
    def begin(
        cls,
        log: PartitionLog,
        decision: Plan,
        now_ms: int,
        *,
        map_bytes: int = DEFAULT_MAP_BYTES,
        decompressed_limit: int = DEFAULT_DECOMPRESSED_LIMIT,
    ) -> Compaction:
        """Copy what the compaction needs to know about the log."""
        count = decision.segment_count
        # Read here, because the log keeps writing it while `prepare` runs.
        aborted = log.active.aborted.aborted_between(log.log_start_offset, decision.end_offset)
        return cls(
            log.files,
            log.folder,
            log.settings,
            decision,
            rows=[log.table[index] for index in range(count)],
            later_bases=list(log.table.bases[count:]),
            aborted=aborted,
            last_batches={
                entry.producer_id: LastBatch(entry.epoch, entry.batches[-1].last_offset if entry.batches else -1)
                for entry in log.producers.entries()
            },
            generation=log.generation,
            now_ms=now_ms,
            map_bytes=map_bytes,
            decompressed_limit=decompressed_limit,
        )

    @property
    def result(self) -> CompactionResult | None:
        """None until the last group is installed."""
        if self._cleaner is None or self._groups or self._waiting is not None:
            return None
        return CompactionResult(
            self._first_dirty_offset,
            self._segments_before,
            self._segments_after,
            self._keys.used_bytes,
            self._cleaner.stats,
        )

    def is_current(self, log: PartitionLog) -> bool:
        """Whether the log still has the segments to rewrite. If not, `prepare` may have reported damage wrongly."""
        todo = list(self._waiting.replaced) if self._waiting is not None else []
        todo += [row for group in self._groups for row in group] if self._cleaner is not None else self._rows
        return self._place_in(log, todo) is not None

    # --- prepare

    def prepare(self, cancelled: Cancelled = _never) -> CleanedGroup | None:
        """Write the next group's `.cleaned` segment; None if all are done. The log is only read."""
        if self._ended or self._waiting is not None:
            raise CompactionError(f"{self._folder}: the compaction has ended, or its last group is not installed yet")
        source = SourceReader(self._files, self._folder, cancelled, self._decompressed_limit)
        # After an error it cannot continue: the cleaner has seen some of the batches.
        self._ended = True
        self._close_held()
        with self._typed_errors(cancelled):
            if self._cleaner is None:
                self._cleaner = self._begin_cleaning(source)
            if not self._groups:
                return None
            replaced = self._groups[0]
            row = self._clean_group(source, self._cleaner, replaced)
        self._ended = False
        self._groups.popleft()
        self._waiting = CleanedGroup(tuple(replaced), row)
        return self._waiting

    @contextlib.contextmanager
    def _typed_errors(self, cancelled: Cancelled) -> Iterator[None]:
        try:
            yield
        except (DamagedLog, OSError) as error:
            # A file that was truncated or removed meanwhile gives the same errors.
            if cancelled():
                raise CompactionCancelled(self._folder) from error
            if isinstance(error, FileNotFoundError):
                raise CompactionOvertaken(self._folder, f"{error.filename} is gone") from error
            if isinstance(error, DamagedLog):
                raise
            if is_disk_full(error):
                raise DiskFull(self._folder) from error
            raise CompactionFailed(error.filename or self._folder, str(error)) from error
        except LogFailed as error:
            raise CompactionFailed(error.path, error.reason) from error

    def _begin_cleaning(self, source: SourceReader) -> BatchCleaner:
        """Build the offset map and determine how far it reaches."""
        decision, rows = self._plan, self._rows
        bases = [*(row.base_offset for row in rows), *self._later_bases]
        # The marker of a transaction in the part to clean may come after it.
        aborted = AbortedRanges(self._aborted + source.aborted_transactions(bases, decision.end_offset))
        dirty = rows[decision.first_dirty_segment :]
        full_at = source.index_keys(dirty, decision.first_dirty_offset, self._keys, aborted)
        known_until = decision.end_offset if full_at is None else full_at
        kept = sum(row.base_offset < known_until for row in rows)
        if kept < len(rows):
            self._end_offset = rows[kept].base_offset
        self._first_dirty_offset = max(known_until, decision.first_dirty_offset)
        self._groups.extend(group_segments(rows[:kept], self._end_offset, self._settings))
        return BatchCleaner(
            self._keys.newest,
            known_until,
            aborted,
            self._last_batches,
            now_ms=self._now_ms,
            delete_retention_ms=self._settings.delete_retention_ms,
            decompressed_limit=self._decompressed_limit,
        )

    def _clean_group(self, source: SourceReader, cleaner: BatchCleaner, rows: list[Row]) -> Row:
        base = rows[0].base_offset
        interval = self._settings.index_interval_bytes
        cleaned = Segment(self._files, self._folder, base, index_interval_bytes=interval, suffix=CLEANED)
        try:
            cleaned.create_files()
            for left in source.cleaned(rows, cleaner):
                _write(cleaned, left)
            cleaned.seal()
            for file in (cleaned.file, cleaned.index.file, cleaned.time_index.file):
                file.sync()
            self._held = source.hold_open(rows, max(_LARGE_BYTES, self._settings.segment_bytes // _MAX_HELD))
        except BaseException:
            self._remove_cleaned(base)
            raise
        finally:
            cleaned.release()
        return Row(base, cleaned.size, cleaned.max_timestamp)

    # --- install

    def install(self, log: PartitionLog, group: CleanedGroup) -> None:
        """Replace segments of the log by a prepared one.

        If they are no longer part of the log, the prepared segment is discarded: CompactionOvertaken.
        """
        if self._ended or group is not self._waiting:
            raise CompactionError(f"{self._folder}: the group at {group.row.base_offset} is not the next to install")
        start = self._place_in(log, group.replaced)
        if log.failure is not None or start is None:
            self.discard()
            if log.failure is not None:
                raise LogFailed(log.failure.path, log.failure.reason)
            raise CompactionOvertaken(self._folder, "its segments are no longer part of the log")
        base = group.row.base_offset
        try:
            if self._segments_before == 0:
                self._remove_snapshots()
            begin_swap(self._files, self._folder, base)
            log.replace_segments(log.table.spliced(start, start + len(group.replaced), [group.row]), log.active)
            for row in group.replaced:
                log.forget_segment(row.base_offset)
            complete_swap(self._files, self._folder, base, [row.base_offset for row in group.replaced[1:]])
        except OSError as error:
            raise log.fail(error) from error
        self._waiting = None
        self._segments_before += len(group.replaced)
        self._segments_after += 1

    def _place_in(self, log: PartitionLog, rows: Sequence[Row]) -> int | None:
        """The index of the first of these segments in the log's table; None if they changed."""
        if log.generation != self._generation:
            return None
        start = log.table.find(rows[0].base_offset) if rows else 0
        stop = start + len(rows)
        if start < 0 or stop > len(log.table):
            return None
        bases, sizes = log.table.bases[start:stop], log.table.sizes[start:stop]
        same = list(bases) == [row.base_offset for row in rows] and list(sizes) == [row.size for row in rows]
        return start if same else None

    def _remove_snapshots(self) -> None:
        """Remove producer snapshots inside the rewritten part: they no longer match the batches after them.

        One may have an open transaction whose marker is gone, and the last stable offset would never advance.
        """
        for offset in map(snapshot_offset, self._files.list_folder(self._folder)):
            if offset is not None and offset < self._end_offset:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(f"{self._folder}/{snapshot_name(offset)}")

    def discard(self) -> None:
        """End the compaction and remove a prepared segment."""
        self._ended = True
        self._close_held()
        if self._waiting is not None:
            self._remove_cleaned(self._waiting.row.base_offset)

    def _close_held(self) -> None:
        while self._held:
            self._held.pop().close()

    def _remove_cleaned(self, base_offset: int) -> None:
        # If that fails, the next start removes them.
        with contextlib.suppress(OSError):
            Segment(self._files, self._folder, base_offset, suffix=CLEANED).remove()


def _write(segment: Segment, left: list[Buffer]) -> None:
    if not left:
        return
    data = left[0] if len(left) == 1 else b"".join(left)
    segment.append(data, scan(data, verify=False).headers)
