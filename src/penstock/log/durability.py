"""What of a log is on the disk for good, and how the rest gets there.

Noun: `Durability`, of one log: the offset below which everything is durable, the sealed segments and the changes of the
folder that are not, how old the oldest of that is, and the marks for the next start after a crash.

Rule: a flush is prepared from what is there at that moment, runs elsewhere, and counts when it is completed, for what
was there when it was prepared; one from before a truncation says nothing of what is there now.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.flush import Flush
from penstock.log.marks import Marks
from penstock.log.producers.snapshot import snapshot_name
from penstock.log.segment import Segment
from penstock.log.segment_mark import Marker
from penstock.runtime.files import File

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


class Durability:
    def __init__(self, log: PartitionLog, flushed_offset: int, now_ms: int, unsynced: Sequence[Segment]) -> None:
        self._log = log
        self.flushed_offset = flushed_offset
        self.unsynced: list[Segment] = list(unsynced)
        """Sealed, and not known to be durable."""
        self.folder_changes = 1  # its files may be new
        self._folder_changes_synced = 0
        self._prepared_size = self._flushed_size = 0  # of the log at its last flush
        self._prepared: list[tuple[Segment, int]] = []  # the segments of the last flush, and their sizes then
        self._unflushed_ms: int | None = None  # when the oldest of what is not durable was appended
        self._appended_ms = now_ms
        self.marks = Marks()
        self._marker: Marker | None = None  # that a flush is writing

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

    def cut(self, end_offset: int) -> None:
        self.marks.cut(self._log.active)
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def relocated(self) -> None:
        """The log is in another folder now, and all of it is durable there; its snapshots went along."""
        self.cancel_mark()
        self.flushed_offset = self._log.log_end_offset
        self.unsynced = []
        self._prepared = []
        self._prepared_size = self._flushed_size = self._log.size
        self.folder_changes += 1
        self._folder_changes_synced = self.folder_changes
        self._unflushed_ms = None

    def cancel_mark(self) -> None:
        """Let none come of the flush that is under way."""
        if self._marker is not None:
            self._marker.is_cancelled, self._marker = True, None

    # --- when to flush

    @property
    def unflushed_bytes(self) -> int:
        """About; deletions count as flushes."""
        return max(0, self._log.size - self._flushed_size)

    def is_older(self, now_ms: int, most_ms: int) -> bool:
        """Whether something that is not durable has been there for so long.

        What recovery found is not known to be durable, either, and nobody knows how old it is.
        """
        return self._unflushed_ms is None or now_ms - self._unflushed_ms >= most_ms

    # --- flush

    def prepare(self, mark: bool) -> Flush | None:
        """OSError if what goes along cannot be written."""
        log = self._log
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
        marker = self._begin_mark(targets) if mark else None
        log.epochs.save(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}")
        self._prepared_size = log.size
        self._prepared = [(segment, segment.size) for segment in self.unsynced]
        self._prepared.append((log.active, log.active.size))
        folder = log.folder if folder_is_dirty else None
        sealed = frozenset(segment.base_offset for segment in self.unsynced)
        return Flush(log.files, log.log_end_offset, log.generation, targets, folder, sealed, changes, marker)

    def _begin_mark(self, targets: list[File]) -> Marker:
        active = self._log.active
        marker = Marker(self._log.files, active, self._log.producers.snapshot())
        targets += [active.index.file, active.time_index.file]
        self.marks.tried(active.base_offset, active.size, self._appended_ms)
        self._marker = marker
        return marker

    def complete(self, flush: Flush) -> None:
        is_of_before = flush.generation != self._log.generation
        if flush.marker is not None and (is_of_before or flush.marker is not self._marker):
            flush.marker.drop()
        if is_of_before:
            return
        self.flushed_offset = max(self.flushed_offset, flush.end_offset)
        self._flushed_size = self._prepared_size
        for segment, size in self._prepared:
            segment.synced_size = size
        self._folder_changes_synced = max(self._folder_changes_synced, flush.folder_changes)
        self.unsynced = [segment for segment in self.unsynced if segment.base_offset not in flush.sealed]
        # What was appended while the flush ran is at most as old as that.
        self._unflushed_ms = None if self.flushed_offset >= self._log.log_end_offset else self._appended_ms
        if flush.marker is not None and flush.marker is self._marker:
            self._marker = None
            self._keep_mark(flush.marker)

    def _keep_mark(self, marker: Marker) -> None:
        """Let a mark count that was written, and remove those that it makes needless."""
        log = self._log
        if not marker.is_written or log.failure is not None:
            marker.drop()
            return
        if marker.offset == log.active.base_offset:
            marker.drop()  # the segment was rolled there, and its own snapshot tells the same
            return
        try:
            marker.keep()
            self.folder_changes += 1
            self.marks.added(marker.offset, self.folder_changes)
            for offset in self.marks.take_old(log.checkpointed_offset, self._folder_changes_synced):
                self.remove_snapshot(offset)
        except OSError as error:
            log.fail(error)

    def remove_snapshot(self, offset: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._log.files.remove(f"{self._log.folder}/{snapshot_name(offset)}")
