"""Making a log durable: flushes, group commit, inline sync, and the marks that shorten the next recovery.

A flush is a list of files whose sync makes everything below an offset durable. It is prepared and completed on the
thread that owns the log; only `Flush.run` runs elsewhere. Waiters that arrive during a flush share the next one, so the
disk bounds the number of syncs. After a failed sync the contents of the disk are unknown: the log goes offline and the
sync is never retried. A flush from before a truncation says nothing about the log as it is now.

`InlineSync` runs the sync on the event loop when handing it to a thread would cost more: at most 64 KiB, a single
waiter for the last 4 flushes, and the last 64 syncs of so few bytes each under 2 ms. One slow sync sends the next ones
to the threads. Syncs of many bytes take long on any disk, and do not count.

A recovery mark records how long a segment's files were when they were synced, so that recovery can start there. It is
stored in a producer snapshot, written after that sync, and removed before anything it covers is cut. It only saves
work: a mark that cannot be written is skipped, and one that does not match the files is ignored. A segment gets marks
once it has 1 MiB. Format, big-endian:

    base offset i64 | position i64 | largest timestamp i64 | its offset i64
      | .index, .timeindex, .txnindex: size u32, crc32c u32 of that many first bytes
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from crc32c import crc32c

from penstock.log.checkpoints import LEADER_EPOCH_FILE, note_failed_sync, parent_folder, read_file
from penstock.log.errors import (
    DiskFull,
    LogError,
    LogFailed,
    RecordsTruncated,
    TooManyOpenFiles,
    is_disk_full,
    is_process_limit,
)
from penstock.log.index import ENTRY_BYTES
from penstock.log.producer_state import ProducerSnapshot, encode_snapshot, snapshot_name
from penstock.log.segment import Segment
from penstock.runtime.files import OPEN_FILES, File, Files
from penstock.runtime.threads import Outcome, Workers, WorkersError

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


TEMPORARY_SUFFIX: Final = ".tmp"
LEAST_MARKED_BYTES: Final = 1024 * 1024
FAST_MS: Final = 2.0
FAST_IN_A_ROW: Final = 64
ALONE_IN_A_ROW: Final = 4
FEW_BYTES: Final = 64 * 1024

_MARK: Final = Struct(">qqqqIIIIII")
_RUNNING_MAX: Final = 32


# ------------------------------------------------------------------------------------------------------ recovery marks


class Extent(NamedTuple):
    """The first bytes of a file."""

    size: int
    crc: int


class RecoveryMark(NamedTuple):
    """How long the files of the segment at `base_offset` were when they were synced."""

    base_offset: int
    position: int
    max_timestamp: int
    max_timestamp_offset: int
    offset_index: Extent
    time_index: Extent
    aborted: Extent

    def encode(self) -> bytes:
        return _MARK.pack(*self[:4], *self.offset_index, *self.time_index, *self.aborted)


def decode_mark(data: bytes) -> RecoveryMark | None:
    """None if these bytes are not a mark, or one of a later version."""
    if len(data) != _MARK.size:
        return None
    base_offset, position, stamp, stamp_offset, *extents = _MARK.unpack(data)
    index, time_index, aborted = (Extent(*extents[at : at + 2]) for at in (0, 2, 4))
    return RecoveryMark(base_offset, position, stamp, stamp_offset, index, time_index, aborted)


def crc_of(files: Files, path: str, size: int) -> int | None:
    """The checksum of a file's first `size` bytes; None if it is shorter."""
    if size == 0:
        return 0
    data = read_file(files, path, size)
    return crc32c(data) if data is not None and len(data) == size else None


class MarkWriter:
    """Writes a mark: created on the thread that owns the log, written on any, kept or dropped by the owner."""

    def __init__(self, files: Files, segment: Segment, producers: ProducerSnapshot) -> None:
        """A mark of the segment as it is now. Writes its pending index entries."""
        self._files = files
        self._producers = producers
        self.offset = segment.next_offset
        self.base_offset = segment.base_offset
        self.position = segment.size
        self._stamp = segment.max_timestamp, segment.max_timestamp_offset
        segment.flush_indexes()
        # Only entries that could not be written are missing in the file: the walk starts a little earlier.
        self._extents = tuple(
            (each.path, (len(each) - each.pending) * each.entry_bytes) for each in (segment.index, segment.time_index)
        )
        self._extents += ((segment.aborted.path, segment.aborted.entry_count * ENTRY_BYTES),)
        self.path = f"{segment.folder}/{snapshot_name(self.offset)}"
        self.is_written = False
        self.is_cancelled = False

    def encode(self) -> bytes | None:
        """The snapshot with the mark; None if the files are shorter than they were."""
        extents = []
        for path, size in self._extents:
            crc = crc_of(self._files, path, size)
            if crc is None:
                return None
            extents.append(Extent(size, crc))
        mark = RecoveryMark(self.base_offset, self.position, *self._stamp, *extents)
        return encode_snapshot(self._producers._replace(mark=mark.encode()))

    def write(self) -> None:
        """Write it durably under a temporary name, because the log may be truncated meanwhile."""
        if self.is_cancelled:
            return
        temporary = self.path + TEMPORARY_SUFFIX
        try:
            data = self.encode()
            if data is None:
                return
            file = self._files.open(temporary, create=True)
            try:
                file.truncate(0)
                file.write_at(0, data)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(temporary)
            if is_disk_full(error) or is_process_limit(error) or isinstance(error, FileNotFoundError):
                return
            raise
        self.is_written = True

    def keep(self) -> None:
        """Give it its name, which is durable with the next sync of the folder."""
        self._files.rename(self.path + TEMPORARY_SUFFIX, self.path)

    def drop(self) -> None:
        self.is_cancelled = True
        with contextlib.suppress(OSError):
            self._files.remove(self.path + TEMPORARY_SUFFIX)


def is_worth_marking(size: int) -> bool:
    """Whether a segment of `size` bytes should have a mark at its end."""
    return size >= LEAST_MARKED_BYTES


class _Mark(NamedTuple):
    offset: int
    folder_changes: int  # its name is durable once this many changes of the folder are


class RecoveryMarks:
    """The marks of a log, and when it needs another."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []  # rising
        self._base_offset, self._position = -1, 0  # of the last attempt
        self._unmarked_ms: int | None = None  # when the oldest record after it was appended

    @property
    def offsets(self) -> list[int]:
        return [mark.offset for mark in self._marks]

    # --- when

    def appended(self, now_ms: int) -> None:
        if self._unmarked_ms is None:
            self._unmarked_ms = now_ms

    def unmarked_bytes(self, active: Segment) -> int:
        """Bytes after the last mark."""
        return active.size - (self._position if active.base_offset == self._base_offset else 0)

    def worth_it(self, active: Segment) -> bool:
        """Whether there is enough after the last mark for another one."""
        return is_worth_marking(self.unmarked_bytes(active))

    def wanted(self, active: Segment, now_ms: int, most_bytes: int, most_ms: int) -> bool:
        """Whether enough is after the last mark, and it is `most_bytes` or as old as `most_ms`."""
        if not self.worth_it(active):
            return False
        too_old = self._unmarked_ms is None or now_ms - self._unmarked_ms >= most_ms
        return too_old or self.unmarked_bytes(active) >= most_bytes

    def tried(self, base_offset: int, position: int, appended_ms: int) -> None:
        """A mark is being written. If that fails, the next attempt waits for as much new data."""
        self._base_offset, self._position = base_offset, position
        self._unmarked_ms = appended_ms

    # --- which

    def found(self, offset: int) -> None:
        """A mark found at the start."""
        self._marks = sorted({*self._marks, _Mark(offset, 0)})

    def added(self, offset: int, folder_changes: int) -> None:
        self._marks = [mark for mark in self._marks if mark.offset != offset]
        self._marks.append(_Mark(offset, folder_changes))

    def take_old(self, recovery_point: int, folder_changes_synced: int) -> list[int]:
        """Forget and return all marks but the newest, and the newest below the recovery point."""
        if not self._marks:
            return []
        covered = [
            mark
            for mark in self._marks
            if mark.offset <= recovery_point and mark.folder_changes <= folder_changes_synced
        ]
        keep = (covered[-1] if covered else self._marks[0], self._marks[-1])
        old = [mark.offset for mark in self._marks if mark not in keep]
        self._marks = [mark for mark in self._marks if mark in keep]
        return old

    def take_all(self) -> list[int]:
        offsets, self._marks = self.offsets, []
        return offsets

    def forget(self, offset: int) -> None:
        """The snapshot at `offset` belongs to a new segment from now on."""
        self._marks = [mark for mark in self._marks if mark.offset != offset]

    def cut(self, active: Segment) -> None:
        """The log was truncated."""
        self._marks = [mark for mark in self._marks if mark.offset <= active.next_offset]
        if self._base_offset > active.base_offset or self._position > active.size:
            self._base_offset, self._position = -1, 0


# ------------------------------------------------------------------------------------------------------------- flushes


class Flush:
    """Files to sync, and the offset below which everything is durable afterwards."""

    __slots__ = ("end_offset", "files", "folder", "folder_changes", "generation", "mark_writer", "sealed", "targets")

    def __init__(
        self,
        files: Files,
        end_offset: int,
        generation: int,
        targets: list[File],
        folder: str | None,
        sealed: frozenset[int],
        folder_changes: int,
        mark_writer: MarkWriter | None = None,
    ) -> None:
        self.files = files
        self.end_offset = end_offset
        self.generation = generation
        self.targets = targets
        self.folder = folder
        self.sealed = sealed  # base offsets of the sealed segments that it covers
        self.folder_changes = folder_changes  # how often the folder had changed when it was prepared
        self.mark_writer = mark_writer

    def run(self) -> None:
        try:
            for file in self.targets:
                file.sync()
            if self.folder is not None:
                self.files.sync_folder(self.folder)
        except OSError as error:
            if is_process_limit(error):
                raise TooManyOpenFiles(parent_folder(self.targets[0].path)) from error
            note_failed_sync(self.files, parent_folder(self.targets[0].path))
            raise
        if self.mark_writer is not None:
            self.mark_writer.write()  # last: it describes what is durable


# -------------------------------------------------------------------------------------------------------- group commit


class Flushable(Protocol):
    """What group commit needs from a log."""

    @property
    def flushed_offset(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def unflushed_bytes(self) -> int: ...

    def was_cut(self, offset: int, generation: int) -> bool:
        """Whether a truncation after `generation` took anything below `offset`."""

    def prepare_flush(self) -> Flush | None: ...

    def complete_flush(self, flush: Flush) -> None: ...

    def fail(self, error: BaseException) -> LogFailed: ...


Done = Callable[[LogError | None], None]


class _Waiter(NamedTuple):
    offset: int
    generation: int  # after a truncation, other records may have these offsets
    done: Done


class InlineSync:
    """Decides whether to sync on the event loop.

    `later` runs a function at the end of the loop's turn; `here` runs work immediately, on the loop.
    """

    def __init__(self, here: Workers, later: Callable[[Callable[[], None]], object]) -> None:
        self.here = here
        self.later = later
        self._fast = 0
        self._alone = 0
        self._took_ms = 0.0

    def may(self, unflushed_bytes: int) -> bool:
        """Whether the next sync is likely to be fast and to serve one waiter."""
        return self._fast >= FAST_IN_A_ROW and self._alone >= ALONE_IN_A_ROW and unflushed_bytes <= FEW_BYTES

    def took(self, milliseconds: float) -> None:
        """How long a sync took, wherever it ran. `served` follows."""
        self._took_ms = milliseconds

    def served(self, waiters: int, flushed_bytes: int) -> None:
        """How many waiters the flush of that sync had, and how much it flushed."""
        self._alone = self._alone + 1 if waiters <= 1 else 0
        if flushed_bytes <= FEW_BYTES:
            self._fast = self._fast + 1 if self._took_ms < FAST_MS else 0


class GroupCommit:
    """Calls back when a log is durable up to an offset. At most one flush per log runs at a time."""

    def __init__(self, workers: Workers, inline: InlineSync | None = None) -> None:
        self._workers = workers
        self._inline = inline
        self._waiting: dict[Flushable, deque[_Waiter]] = {}
        self._running: set[Flushable] = set()
        self._held: dict[Flushable, Callable[[], None]] = {}
        self._queued: dict[Flushable, None] = {}  # started when fewer flushes run

    def when_durable(self, log: Flushable, offset: int, done: Done, *, is_urgent: bool = True) -> None:
        """Call `done` with None once everything below `offset` is durable, or with the error.

        A flush that is not urgent, because no client waits for it, never runs on the event loop.
        """
        if log.flushed_offset >= offset:
            done(None)
            return
        self._waiting.setdefault(log, deque()).append(_Waiter(offset, log.generation, done))
        if log not in self._running and log not in self._held and log not in self._queued:
            inline = self._inline
            if inline is not None and is_urgent and inline.may(log.unflushed_bytes):
                # At the end of the turn, because more waiters may arrive for the same sync.
                self._running.add(log)
                inline.later(lambda: self._start_after_turn(log, inline.here))
            else:
                self._start(log)

    def pending(self, log: Flushable) -> int:
        return len(self._waiting.get(log, ()))

    def hold(self, log: Flushable, ready: Callable[[], None]) -> None:
        """Start no flush of the log until `resume`; call `ready` when none is running, possibly immediately."""
        self._held[log] = ready
        if log not in self._running:
            ready()

    def resume(self, log: Flushable) -> None:
        """Allow flushes again, and start one if there are waiters."""
        self._held.pop(log, None)
        if log in self._waiting and log not in self._running:
            self._start(log)

    def _start_after_turn(self, log: Flushable, here: Workers) -> None:
        self._running.discard(log)
        if log in self._held:
            self._held[log]()
            return
        is_alone = len(self._waiting) == 1 and len(self._waiting.get(log, ())) == 1 and not self._running
        self._start(log, here if is_alone else None)
        if self._queued:
            self._start_queued()

    def _start(self, log: Flushable, workers: Workers | None = None) -> None:
        if len(self._running) >= self._running_max:
            self._queued[log] = None
            return
        try:
            flush = log.prepare_flush()
        except (DiskFull, TooManyOpenFiles) as error:
            self._answer_all(log, error)
            return
        except (LogError, OSError) as error:
            self._answer_all(log, log.fail(error))
            return
        if flush is None:
            # Nothing is left to sync: another flush did it, or the records were truncated.
            for waiter in self._waiting.pop(log, ()):
                is_cut = waiter.offset > log.flushed_offset or log.was_cut(waiter.offset, waiter.generation)
                waiter.done(RecordsTruncated(waiter.offset) if is_cut else None)
            return
        self._running.add(log)
        size = log.unflushed_bytes
        try:
            (workers or self._workers).run(flush.run, lambda outcome: self._finish(log, flush, size, outcome))
        except WorkersError as error:
            self._running.discard(log)
            self._answer_all(log, LogError(f"cannot start the flush: {error}"))

    @property
    def _running_max(self) -> int:
        """A prepared flush holds about four files open, and the disk gains nothing from many at once."""
        return min(_RUNNING_MAX, max(2, OPEN_FILES.most // 8))

    def _start_queued(self) -> None:
        while self._queued and len(self._running) < self._running_max:
            log = next(iter(self._queued))
            del self._queued[log]
            if log in self._waiting and log not in self._held:
                self._start(log)

    def _finish(self, log: Flushable, flush: Flush, flushed_bytes: int, outcome: Outcome[None]) -> None:
        self._running.discard(log)
        if self._queued:
            self._start_queued()
        if outcome.error is not None:
            error = outcome.error
            self._answer_all(log, error if isinstance(error, TooManyOpenFiles) else log.fail(error))
            if log in self._held:
                self._held[log]()
            return
        log.complete_flush(flush)
        waiting = self._waiting.pop(log, ())
        answers: list[tuple[Done, LogError | None]] = []
        still: deque[_Waiter] = deque()
        for waiter in waiting:
            if log.was_cut(waiter.offset, waiter.generation):
                answers.append((waiter.done, RecordsTruncated(waiter.offset)))
            elif waiter.offset <= log.flushed_offset:
                answers.append((waiter.done, None))
            else:
                still.append(waiter)
        if still:
            self._waiting[log] = still
        if self._inline is not None:
            self._inline.served(len(waiting), flushed_bytes)
        for done, error_or_none in answers:
            done(error_or_none)
        if log in self._held:
            self._held[log]()
        elif log in self._waiting and log not in self._running:
            self._start(log)

    def _answer_all(self, log: Flushable, error: LogError) -> None:
        for waiter in self._waiting.pop(log, ()):
            waiter.done(error)


# ------------------------------------------------------------------------------------------------------------- one log


class Durability:
    """What of a log is durable: prepares its flushes and notes their results.

    The log is an argument: with a reference to it, a log that is dropped would be memory until the next collection of
    garbage, and 33 objects that it has to look at.
    """

    def __init__(self, flushed_offset: int, now_ms: int, unsynced: Sequence[Segment]) -> None:
        self.flushed_offset = flushed_offset
        self.unsynced: list[Segment] = list(unsynced)
        """Sealed segments that are not known to be durable."""
        self.folder_changes = 1  # the files may be new
        self._folder_changes_synced = 0
        self._prepared_size = self._flushed_size = 0  # of the log at its last flush
        self._prepared: list[tuple[Segment, int]] = []  # segments of the last flush and their sizes
        self._unflushed_ms: int | None = None  # when the oldest record that is not durable was appended
        self._appended_ms = now_ms
        self.marks = RecoveryMarks()
        self._mark_writer: MarkWriter | None = None  # of the running flush

    # --- what happens to the log

    def appended(self, now_ms: int) -> None:
        self._appended_ms = now_ms
        if self._unflushed_ms is None:
            self._unflushed_ms = now_ms
        self.marks.appended(now_ms)

    def rolled(self, sealed: Segment, base_offset: int) -> None:
        self.unsynced.append(sealed)
        self.folder_changes += 1
        self.marks.forget(base_offset)

    def forget_segment(self, base_offset: int) -> None:
        self.unsynced = [waiting for waiting in self.unsynced if waiting.base_offset != base_offset]

    def cut(self, log: PartitionLog, end_offset: int) -> None:
        self.marks.cut(log.active)
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def relocated(self, log: PartitionLog) -> None:
        """The log was moved to another folder, with its snapshots, and is durable there."""
        self.cancel_mark()
        self.flushed_offset = log.log_end_offset
        self.unsynced = []
        self._prepared = []
        self._prepared_size = self._flushed_size = log.size
        self.folder_changes += 1
        self._folder_changes_synced = self.folder_changes
        self._unflushed_ms = None

    def cancel_mark(self) -> None:
        """Discard the mark of the running flush."""
        if self._mark_writer is not None:
            self._mark_writer.is_cancelled, self._mark_writer = True, None

    # --- when to flush

    def unflushed_bytes(self, log: PartitionLog) -> int:
        """Approximate: deletions count as flushes."""
        return max(0, log.size - self._flushed_size)

    def is_older(self, now_ms: int, most_ms: int) -> bool:
        """Whether the oldest record that is not durable is at least `most_ms` old.

        Records found by recovery are not known to be durable, and their age is unknown: they count as old.
        """
        return self._unflushed_ms is None or now_ms - self._unflushed_ms >= most_ms

    # --- flush

    def prepare(self, log: PartitionLog, mark: bool) -> Flush | None:
        """The flush of everything appended so far; None if it is durable. OSError."""
        changes = self.folder_changes
        folder_is_dirty = changes != self._folder_changes_synced
        mark = mark and self.marks.worth_it(log.active)
        is_durable = self.flushed_offset >= log.log_end_offset and not self.unsynced and not folder_is_dirty
        if is_durable and not mark:
            return None
        targets: list[File] = []
        for segment in self.unsynced:
            targets += [segment.file, segment.index.file, segment.time_index.file]
            segment.aborted.flush()
        log.active.aborted.flush()
        targets.append(log.active.file)
        mark_writer = self._begin_mark(log, targets) if mark else None
        log.epochs.save(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}")
        self._prepared_size = log.size
        self._prepared = [(segment, segment.size) for segment in self.unsynced]
        self._prepared.append((log.active, log.active.size))
        folder = log.folder if folder_is_dirty else None
        sealed = frozenset(segment.base_offset for segment in self.unsynced)
        return Flush(log.files, log.log_end_offset, log.generation, targets, folder, sealed, changes, mark_writer)

    def _begin_mark(self, log: PartitionLog, targets: list[File]) -> MarkWriter:
        active = log.active
        mark_writer = MarkWriter(log.files, active, log.producers.snapshot())
        targets += [active.index.file, active.time_index.file]
        self.marks.tried(active.base_offset, active.size, self._appended_ms)
        self._mark_writer = mark_writer
        return mark_writer

    def complete(self, log: PartitionLog, flush: Flush) -> None:
        is_outdated = flush.generation != log.generation
        if flush.mark_writer is not None and (is_outdated or flush.mark_writer is not self._mark_writer):
            flush.mark_writer.drop()
        if is_outdated:
            return
        self.flushed_offset = max(self.flushed_offset, flush.end_offset)
        self._flushed_size = self._prepared_size
        for segment, size in self._prepared:
            segment.synced_size = size
        self._folder_changes_synced = max(self._folder_changes_synced, flush.folder_changes)
        self.unsynced = [segment for segment in self.unsynced if segment.base_offset not in flush.sealed]
        # Records appended during the flush are at most this old.
        self._unflushed_ms = None if self.flushed_offset >= log.log_end_offset else self._appended_ms
        if flush.mark_writer is not None and flush.mark_writer is self._mark_writer:
            self._mark_writer = None
            self._keep_mark(log, flush.mark_writer)

    def _keep_mark(self, log: PartitionLog, mark_writer: MarkWriter) -> None:
        """Keep a written mark, and remove those that are no longer needed."""
        if not mark_writer.is_written or log.failure is not None:
            mark_writer.drop()
            return
        if mark_writer.offset == log.active.base_offset:
            mark_writer.drop()  # the log was rolled there, and the segment has its own snapshot
            return
        try:
            mark_writer.keep()
            self.folder_changes += 1
            self.marks.added(mark_writer.offset, self.folder_changes)
            for offset in self.marks.take_old(log.checkpointed_offset, self._folder_changes_synced):
                remove_snapshot(log, offset)
        except OSError as error:
            log.fail(error)


def remove_snapshot(log: PartitionLog, offset: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        log.files.remove(f"{log.folder}/{snapshot_name(offset)}")
