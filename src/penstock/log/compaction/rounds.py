"""Compaction: rewriting the old segments of a log so that of every key only the newest record is left.

Noun: a compaction, one round over one log. It goes in steps, so that the event loop is held up only for renames:

    begin      on the log's thread    takes what it needs to know of the log, and no more looks at it
    prepare    anywhere               the next group of old segments becomes one `.cleaned` segment, durable
    install    on the log's thread    that one takes their place, if they are still the log's; else it is discarded

until `prepare` says None. A group is installed before the next is prepared: so no more room is needed than for one,
and, since groups go oldest first, whatever a crash undoes is newer than what stands. A tombstone or a marker is never
gone before what it ends.

Rule: bytes of the log are only read. Whatever goes wrong before `install`, the log is as it was and the `.cleaned`
files are removed; if the disk fails in the midst of `install` the log goes offline, and opening it finishes the work
(`sweeping`). Reads under way keep the old files.

Whoever truncates a log, deletes it or trims it while a compaction is under way makes `cancelled` true first, and
lowers the first dirty offset to the new end. Otherwise the compaction may take a file that changes for a damaged one.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.log.compaction.errors import CompactionCancelled, CompactionError, CompactionFailed, CompactionOvertaken
from penstock.log.compaction.filtering import (
    DEFAULT_MAP_BYTES,
    AbortedRanges,
    BatchCleaner,
    KeyMap,
    LastBatch,
    Tally,
)
from penstock.log.compaction.plan import LogFacts, Plan, group_segments, plan
from penstock.log.compaction.sources import Cancelled, SourceReader
from penstock.log.errors import DamagedLog, DiskFull, LogFailed, is_disk_full
from penstock.log.partition_log import PartitionLog
from penstock.log.producers.snapshot import snapshot_name, snapshot_offset
from penstock.log.segment import LOG_SUFFIX, Segment, segment_name
from penstock.log.segment_table import Row
from penstock.log.settings import LogSettings
from penstock.log.sweeping import CLEANED, begin_swap, complete_swap
from penstock.log.transaction_index import AbortedTransaction
from penstock.records import DEFAULT_DECOMPRESSED_LIMIT, Buffer, scan
from penstock.runtime.files import File, Files

_LARGE_BYTES = 1024 * 1024
_MOST_HELD = 64


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What a round did. `first_dirty_offset` is where the next one begins, for the cleaner's checkpoint."""

    first_dirty_offset: int
    segments_before: int
    segments_after: int
    map_bytes: int
    tally: Tally


class CleanedGroup(NamedTuple):
    """A `.cleaned` segment, and those that it is to replace, oldest first."""

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
    """Whether the log is due, and how much there is to gain: see `plan.plan`."""
    return plan(facts_of(log), log.settings, first_dirty_offset, now_ms)


def compact(
    log: PartitionLog,
    first_dirty_offset: int | None,
    now_ms: int,
    *,
    map_bytes: int = DEFAULT_MAP_BYTES,
    only_if_due: bool = True,
    cancelled: Cancelled = _never,
) -> CompactionResult | None:
    """A whole round, here and now; None if the log is not due."""
    decision = plan_for(log, first_dirty_offset, now_ms)
    if only_if_due and not decision.is_due:
        return None
    compaction = Compaction.begin(log, decision, now_ms, map_bytes=map_bytes)
    while (group := compaction.prepare(cancelled)) is not None:
        compaction.install(log, group)
    return compaction.result


class Compaction:
    """One round over one log; `begin` makes it."""

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
        self._keys = KeyMap(map_bytes)
        self._decompressed_limit = decompressed_limit
        self._cleaner: BatchCleaner | None = None
        self._first_dirty_offset = decision.first_dirty_offset
        self._end_offset = decision.end_offset
        self._groups: deque[list[Row]] = deque()
        self._waiting: CleanedGroup | None = None
        self._ended = False
        self._held: list[File] = []  # of segments that were replaced: closing them frees their bytes
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
        """Take down what of the log a round needs to know."""
        count = decision.segment_count
        # Not read by `prepare`: the log goes on writing it.
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
            self._cleaner.tally,
        )

    def is_current(self, log: PartitionLog) -> bool:
        """Whether the log still holds all that is to be rewritten. If not, damage that `prepare` met may be none."""
        todo = list(self._waiting.replaced) if self._waiting is not None else []
        todo += [row for group in self._groups for row in group] if self._cleaner is not None else self._rows
        return self._place_in(log, todo) is not None

    # --- prepare

    def prepare(self, cancelled: Cancelled = _never) -> CleanedGroup | None:
        """Write the next group's `.cleaned` segment; None if all are done. Touches nothing of the log."""
        if self._ended or self._waiting is not None:
            raise CompactionError(f"{self._folder}: the round has ended, or its last group is not installed yet")
        source = SourceReader(self._files, self._folder, cancelled, self._decompressed_limit)
        # What is half done cannot be taken up again: the cleaner has seen some of the batches.
        self._ended = True
        self._let_go()
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
            # A file that is cut or removed under our hands looks like this too.
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
        """Build the map of keys, and see how far it reaches."""
        decision, rows = self._plan, self._rows
        bases = [*(row.base_offset for row in rows), *self._later_bases]
        # The marker of a transaction that began in the part to clean may lie behind it.
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
            self._held = source.hold_open(rows, max(_LARGE_BYTES, self._settings.segment_bytes // _MOST_HELD))
        except BaseException:
            self._remove_cleaned(base)
            raise
        finally:
            cleaned.release()
        return Row(base, cleaned.size, cleaned.max_timestamp)

    # --- install

    def install(self, log: PartitionLog, group: CleanedGroup) -> None:
        """Put a prepared segment in the place of those that it was made from.

        CompactionOvertaken, and the prepared segment is discarded, if these are no longer the log's.
        """
        if self._ended or group is not self._waiting:
            raise CompactionError(f"{self._folder}: the group at {group.row.base_offset} is not the one to install")
        start = self._place_in(log, group.replaced)
        if log.failure is not None or start is None:
            self.discard()
            if log.failure is not None:
                raise LogFailed(log.failure.path, log.failure.reason)
            raise CompactionOvertaken(self._folder, "its segments are not the log's any more")
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
        """The number of the first of these segments in the log's table; None if they are not there as they were."""
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
        """Producers' state as of an offset inside what is rewritten no longer fits the batches that follow it there.

        It may tell of an open transaction whose marker is gone: who began from it would wait for the end for ever.
        """
        for offset in map(snapshot_offset, self._files.list_folder(self._folder)):
            if offset is not None and offset < self._end_offset:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(f"{self._folder}/{snapshot_name(offset)}")

    def discard(self) -> None:
        """End the round here: what is prepared and not installed is removed."""
        self._ended = True
        self._let_go()
        if self._waiting is not None:
            self._remove_cleaned(self._waiting.row.base_offset)

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()

    def _remove_cleaned(self, base_offset: int) -> None:
        # What cannot be removed now, the next start removes.
        with contextlib.suppress(OSError):
            Segment(self._files, self._folder, base_offset, suffix=CLEANED).remove()


def _write(segment: Segment, left: list[Buffer]) -> None:
    if not left:
        return
    data = left[0] if len(left) == 1 else b"".join(left)
    segment.append(data, scan(data, verify=False).headers)
