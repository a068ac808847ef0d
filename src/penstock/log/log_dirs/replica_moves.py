"""Moving replicas between the log directories of a broker (KIP-113, AlterReplicaLogDirs).

    /a/t-0          /b/t-0.future    copying, one piece of 16 MiB at a time; continues after a restart
    /a/t-0          /b/t-0.ready     the copy is complete and durable
    /a/t-0.…-delete /b/t-0.ready     from this rename on the copy is the replica
    /a/t-0.…-delete /b/t-0

The replica is read and written in its old place meanwhile. When at most 256 KiB are missing, the rest is copied in one
step with no flush running. A crash before the third line keeps the original, after it the next start completes the
move. The `PartitionLog` object stays the same. Compaction skips a moving replica; retention and truncation are
followed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from penstock.log.checkpoints import LEADER_EPOCH_FILE, TopicPartition, write_epochs
from penstock.log.errors import DiskFull, LogError, LogFailed
from penstock.log.group_commit import GroupCommit
from penstock.log.index import TRANSACTION_INDEX_SUFFIX
from penstock.log.log_dirs.identity import folder_name, future_name, ready_name, write_topic_id
from penstock.log.log_dirs.log_directory import Hosted, LogDirectory, Removal
from penstock.log.partition_folder import segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_offset
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment, segment_name
from penstock.runtime.files import File, Files
from penstock.runtime.threads import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 16 * 1024 * 1024
"""Bytes copied at a time; other work may use the worker in between."""
REST_BYTES: Final = 256 * 1024
"""At most this much is copied on the event loop, before the copy takes the replica's place."""

_READ_BYTES: Final = 1024 * 1024
_COPYING: Final = ".copying"
_COMPANIONS: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_RETRY_MS: Final = 10_000
_BUSY_MS: Final = 100


class _Unreadable(LogError):
    """The source cannot be read now. The disk of the copy is fine."""


class FutureReplica(NamedTuple):
    """A copy in progress, for DescribeLogDirs."""

    key: TopicPartition
    size: int
    offset_lag: int


class _Move:
    """One replica being moved."""

    def __init__(self, hosted: Hosted, source: LogDirectory, target: LogDirectory) -> None:
        self.key = (hosted.topic, hosted.partition)
        self.hosted = hosted
        self.source = source
        self.target = target
        self.folder = f"{target.path}/{future_name(*self.key)}"
        self.copied: dict[int, _Copied] = {}  # copied sealed segments, by base offset
        self.partial_base = -1  # of the segment that is copied in part
        self.partial_bytes = 0
        self.generation = hosted.log.generation
        self.not_before_ms = 0
        self.is_ended = False

    @property
    def log(self) -> PartitionLog:
        return self.hosted.log

    def follow_cuts(self) -> None:
        """Forget copied segments that were truncated or deleted since."""
        log = self.log
        if log.generation != self.generation:
            cut = [base for base, each in self.copied.items() if log.was_cut(each.next_offset, self.generation)]
            for base in cut:
                del self.copied[base]
            self.partial_base, self.partial_bytes = -1, 0
            self.generation = log.generation
        left = set(log.table.bases)
        self.copied = {base: each for base, each in self.copied.items() if base in left}

    def next_segment(self) -> tuple[int, int, int | None]:
        """Base offset and size of the first segment to copy, and the offset of the next one (None for the last)."""
        table = self.log.table
        bases = [*table.bases, self.log.active.base_offset]
        for index, base in enumerate(table.bases):
            if base not in self.copied:
                return base, table.sizes[index], bases[index + 1]
        return self.log.active.base_offset, self.log.active.size, None

    def future(self) -> FutureReplica:
        base, _, _ = self.next_segment()
        active = self.log.active
        reached = base
        if base == self.partial_base == active.base_offset:
            with contextlib.suppress(OSError):
                entry = active.index.floor_value(self.partial_bytes)
                reached = base if entry is None else base + entry.key
            if self.partial_bytes == active.size:
                reached = active.next_offset
        size = sum(each.size for each in self.copied.values()) + self.partial_bytes
        return FutureReplica(self.key, size, max(0, self.log.log_end_offset - reached))


class _Copied(NamedTuple):
    size: int
    next_offset: int


class ReplicaMoves:
    """The moves of one broker, continued by `tick`."""

    def __init__(
        self,
        files: Files,
        workers: Workers,
        commits: GroupCommit,
        moved: Callable[[TopicPartition, LogDirectory], None],
    ) -> None:
        """`moved` is called with the new directory of a replica."""
        self._files = files
        self._workers = workers
        self._commits = commits
        self._moved = moved
        self.moving: dict[TopicPartition, _Move] = {}  # read by the broker, which skips ticks while it is empty
        self._is_working = False
        self._is_ticking = False
        self._is_closed = False
        self.is_busy: Callable[[PartitionLog], bool] = lambda _: False
        """Whether the cleaner is changing the files of a log."""

    def __len__(self) -> int:
        return len(self.moving)

    def futures(self, directory: LogDirectory) -> list[FutureReplica]:
        """The copies in progress in a log directory."""
        return [move.future() for move in self.moving.values() if move.target is directory]

    # --- begin and end

    def begin(self, hosted: Hosted, source: LogDirectory, target: LogDirectory, now_ms: int) -> None:
        """Move a replica to `target`. A move to another directory is cancelled. LogError."""
        key = (hosted.topic, hosted.partition)
        known = self.moving.get(key)
        if known is not None:
            if known.target is target:
                return
            self.cancel(key, now_ms)
        if target is source:
            return
        hosted.log.require_online()
        if hosted.log.damage is not None:
            raise hosted.log.damage.error()
        move = _Move(hosted, source, target)
        with target.disk():
            if self._files.exists(move.folder):
                _discard(self._files, target, key, move.folder, now_ms)
            self._files.make_folder(move.folder)
            if hosted.topic_id is not None:
                write_topic_id(self._files, move.folder, hosted.topic_id)
        self._add(move)
        logger.info(
            "replica move started: partition=%s source=%s target=%s", folder_name(*key), source.path, target.path
        )

    def resume(self, hosted: Hosted, source: LogDirectory, target: LogDirectory) -> None:
        """Continue a copy after a restart. A segment with its final name was copied completely and durably."""
        move = _Move(hosted, source, target)
        table = hosted.log.table
        bases = [*table.bases, hosted.log.active.base_offset]
        with target.disk():
            names = segment_files(self._files.list_folder(move.folder))
            for index, base in enumerate(table.bases):
                path = f"{move.folder}/{segment_name(base)}{LOG_SUFFIX}"
                if LOG_SUFFIX in names.get(base, ()) and self._files.size_of(path) == table.sizes[index]:
                    move.copied[base] = _Copied(table.sizes[index], bases[index + 1])
        self._add(move)
        logger.info(
            "replica move resumed: partition=%s source=%s target=%s copied_segments=%d of=%d",
            folder_name(*move.key), source.path, target.path, len(move.copied), len(table),
        )  # fmt: skip

    def _add(self, move: _Move) -> None:
        self.moving[move.key] = move
        move.hosted.is_moving = True

    def cancel(self, key: TopicPartition, now_ms: int) -> None:
        """Cancel a move, if there is one; the replica stays where it is."""
        move = self.moving.pop(key, None)
        if move is None:
            return
        move.is_ended = True
        move.hosted.is_moving = False
        with contextlib.suppress(LogError), move.target.disk():
            _discard(self._files, move.target, key, move.folder, now_ms)
        logger.info("replica move cancelled: partition=%s target=%s", folder_name(*key), move.target.path)

    def forget_copy(self, directory: LogDirectory, key: TopicPartition, now_ms: int) -> None:
        """Remove a copy from before the restart whose replica is gone. LogError."""
        with directory.disk():
            _discard(self._files, directory, key, f"{directory.path}/{future_name(*key)}", now_ms)

    def close(self) -> None:
        """Stop copying; the next start continues."""
        self._is_closed = True

    # --- copying

    def tick(self, now_ms: int) -> None:
        """Continue the move that waited longest, unless one is running; at most one swap, because it syncs."""
        if self._is_ticking:
            return  # called from `done` of work that ran immediately
        self._is_ticking = True
        try:
            while not self._is_working and not self._is_closed and self._step(now_ms):
                pass
        finally:
            self._is_ticking = False

    def _step(self, now_ms: int) -> bool:
        """Start the next piece of work; whether there may be more."""
        for key, move in list(self.moving.items()):
            if move.source.failure is not None or move.target.failure is not None or move.log.failure is not None:
                self._abandon(move)
            elif move.log.damage is not None:
                logger.error("replica move cancelled, log is damaged: partition=%s", folder_name(*key))
                self.cancel(key, now_ms)
            elif now_ms >= move.not_before_ms and not self.is_busy(move.log):
                del self.moving[key]
                self.moving[key] = move  # last in line
                return self._copy_next(move, now_ms)
        return False

    def _abandon(self, move: _Move) -> None:
        """Stop a move after a disk error. Its files stay for the next start or the operator."""
        self.moving.pop(move.key, None)
        move.is_ended = True
        move.hosted.is_moving = False
        logger.error(
            "replica move stopped, disk failed: partition=%s target=%s", folder_name(*move.key), move.target.path
        )

    def _copy_next(self, move: _Move, now_ms: int) -> bool:
        move.follow_cuts()
        base, size, next_offset = move.next_segment()
        start = move.partial_bytes if base == move.partial_base else 0
        if next_offset is None and size - start <= REST_BYTES:
            self._is_working = True
            self._commits.hold(move.log, lambda: self._swap_held(move, now_ms))
            return False
        end = min(size, start + PIECE_BYTES)
        is_whole = next_offset is not None and end == size
        source = f"{move.log.folder}/{segment_name(base)}"
        target = f"{move.folder}/{segment_name(base)}"
        work = partial(_copy_segment, self._files, source, target, start, end, is_whole=is_whole)

        def done(outcome: Outcome[None]) -> None:
            self._is_working = False
            if move.is_ended or self._is_closed:
                return
            if outcome.error is not None:
                self._failed(move, outcome.error, now_ms)
            elif is_whole and next_offset is not None:
                move.copied[base] = _Copied(size, next_offset)
                move.partial_base, move.partial_bytes = -1, 0
            else:
                move.partial_base, move.partial_bytes = base, end
            self.tick(now_ms)

        self._is_working = True
        try:
            self._workers.run(work, done)
        except WorkersError:
            self._is_working = False
            move.not_before_ms = now_ms + _BUSY_MS
        return True

    def _failed(self, move: _Move, error: BaseException, now_ms: int) -> None:
        move.partial_base, move.partial_bytes = -1, 0
        if isinstance(error, FileNotFoundError):
            move.not_before_ms = now_ms + _BUSY_MS  # after retention or a truncation: try again
            return
        move.not_before_ms = now_ms + _RETRY_MS
        try:
            with move.target.disk():
                raise error
        except (DiskFull, _Unreadable) as reason:
            logger.warning("replica move delayed: partition=%s error=%s", folder_name(*move.key), reason)
        except (OSError, LogError) as reason:
            logger.error("replica move failed: partition=%s error=%s", folder_name(*move.key), reason)
            self._abandon(move)

    # --- the swap

    def _swap_held(self, move: _Move, now_ms: int) -> None:
        """Replace the replica by its copy, while no flush of the log runs."""
        try:
            if move.is_ended or self._is_closed:
                return
            if move.source.is_flushing or self.is_busy(move.log) or not self._is_little_left(move):
                move.not_before_ms = now_ms + _BUSY_MS
                return
            self._swap(move, now_ms)
        except DiskFull as full:
            move.not_before_ms = now_ms + _RETRY_MS
            move.partial_base, move.partial_bytes = -1, 0
            logger.warning("replica move delayed: partition=%s error=%s", folder_name(*move.key), full)
        except LogError as error:
            logger.error("replica move failed: partition=%s error=%s", folder_name(*move.key), error)
            self._abandon(move)
        finally:
            self._is_working = False
            self._commits.resume(move.log)

    def _is_little_left(self, move: _Move) -> bool:
        """Whether little is left to copy, checked again after waiting for a flush."""
        if move.log.failure is not None or move.log.generation != move.generation:
            return False
        base, size, next_offset = move.next_segment()
        start = move.partial_bytes if base == move.partial_base else 0
        return next_offset is None and size - start <= 2 * REST_BYTES

    def _swap(self, move: _Move, now_ms: int) -> None:
        files, log, source, target = self._files, move.log, move.source, move.target
        name = folder_name(*move.key)
        ready = f"{target.path}/{ready_name(*move.key)}"
        with target.disk():
            self._complete(move)
            self._write_checkpoints(move)
            files.rename(move.folder, ready)
            files.sync_folder(target.path)
        deleted = source.deleted_path(move.key)
        try:
            with source.disk():
                files.rename(log.folder, deleted)
                files.sync_folder(source.path)
            with target.disk():
                files.rename(ready, f"{target.path}/{name}")
                files.sync_folder(target.path)
                active = _opened_active(files, f"{target.path}/{name}", log)
        except LogError as error:
            # Nothing may write to the old files any more: the next start removes them.
            log.fail(error if isinstance(error, LogFailed) else LogFailed(log.folder, str(error)))
            raise
        log.relocate(f"{target.path}/{name}", active)
        log.checkpointed_offset = log.log_end_offset
        del source.hosted[move.key]
        target.hosted[move.key] = move.hosted
        source.removals.add([Removal(now_ms + log.settings.file_delete_delay_ms, deleted, is_folder=True)])
        del self.moving[move.key]
        move.is_ended = True
        move.hosted.is_moving = False
        self._moved(move.key, target)
        logger.info("replica move completed: partition=%s target=%s", name, target.path)

    def _write_checkpoints(self, move: _Move) -> None:
        """Write the rows that must survive a crash now: the log start, and a recovery point, without which compaction's
        gaps would count as data loss.
        """
        log, rows = move.log, move.target.checkpoints
        rows.forget(move.key)
        rows.recovery.put(move.key, log.log_end_offset)
        if log.log_start_offset:
            rows.start.put(move.key, log.log_start_offset)
        cleaned = move.source.checkpoints.cleaner.rows.get(move.key)
        if cleaned is not None:
            rows.cleaner.put(move.key, cleaned)

    def _complete(self, move: _Move) -> None:
        """Copy the rest and make the copy durable. OSError, LogError."""
        files, log = self._files, move.log
        active = log.active
        active.flush_indexes()
        active.aborted.flush()
        stem = segment_name(active.base_offset)
        start = move.partial_bytes if move.partial_base == active.base_offset else 0
        _copy_segment(files, f"{log.folder}/{stem}", f"{move.folder}/{stem}", start, active.size, is_whole=True)
        for name in files.list_folder(log.folder):
            if snapshot_offset(name) is not None:
                _copy_file(files, f"{log.folder}/{name}", f"{move.folder}/{name}", sync=False)
        write_epochs(files, f"{move.folder}/{LEADER_EPOCH_FILE}", log.epochs.entries)
        kept = {*log.table.bases, active.base_offset}
        for base in segment_files(files.list_folder(move.folder)):
            if base not in kept:
                Segment(files, move.folder, base).remove()
        copy = _opened_active(files, move.folder, log)
        copy.release()
        files.sync_folder(move.folder)


def _opened_active(files: Files, folder: str, log: PartitionLog) -> Segment:
    """The active segment of a copy. LogError if it differs from the log's."""
    active = Segment(files, folder, log.active.base_offset, index_interval_bytes=log.settings.index_interval_bytes)
    if active.load(size=log.active.size) is not None:
        active.rebuild_indexes()
    if active.next_offset != log.log_end_offset:
        active.release()
        raise LogError(f"copy {folder} ends at offset {active.next_offset}, the log at {log.log_end_offset}")
    return active


def _discard(files: Files, directory: LogDirectory, key: TopicPartition, folder: str, now_ms: int) -> None:
    """Rename a copy for removal."""
    deleted = directory.deleted_path(key)
    with contextlib.suppress(FileNotFoundError):
        files.rename(folder, deleted)
        directory.removals.add([Removal(now_ms, deleted, is_folder=True)])


# --- copying files, off the event loop


def _copy_segment(files: Files, source: str, target: str, start: int, end: int, *, is_whole: bool) -> None:
    """Copy bytes of a segment's log. If it is then complete, copy its indexes and give it its name."""
    temporary = f"{target}{LOG_SUFFIX}{_COPYING}"
    _copy_bytes(files, f"{source}{LOG_SUFFIX}", temporary, start, end)
    if is_whole:
        for suffix in _COMPANIONS:
            if files.exists(f"{source}{suffix}"):
                _copy_file(files, f"{source}{suffix}", f"{target}{suffix}")
            else:
                with contextlib.suppress(FileNotFoundError):
                    files.remove(f"{target}{suffix}")
        files.rename(temporary, f"{target}{LOG_SUFFIX}")


def _copy_file(files: Files, source: str, target: str, *, sync: bool = True) -> None:
    _copy_bytes(files, source, target, 0, files.size_of(source), sync=sync)


def _read(file: File, position: int, size: int) -> bytes:
    try:
        data = file.read_at(position, size)
    except OSError as error:
        raise _Unreadable(f"{file.path} cannot be read: {error}") from error
    if not data:
        raise _Unreadable(f"{file.path} ends at {position}")
    return data


def _copy_bytes(files: Files, source: str, target: str, start: int, end: int, *, sync: bool = True) -> None:
    read = files.open(source, writable=False)
    try:
        write = files.open(target, create=True)
        try:
            if write.size() != start:
                write.truncate(start)
            position = start
            while position < end:
                data = _read(read, position, min(_READ_BYTES, end - position))
                write.write_at(position, data)
                position += len(data)
            if sync:
                write.sync()
        finally:
            write.close()
    finally:
        read.close()
