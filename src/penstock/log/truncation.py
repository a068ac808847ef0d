"""Truncation of a log's end, and deletion of its oldest segments.

What remains has no gap at any moment at which power may fail: from the end the newest goes first, from the start the
oldest. A cut is durable before anything is written after it. Deleted segments are only renamed here; the caller removes
their files later, off the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import overload

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.errors import DamagedLog, DiskFull, OffsetOutOfRange
from penstock.log.partition_folder import DELETED, segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_name
from penstock.log.recovery import LogDamage, load_newest_snapshot, remove_snapshots, replay
from penstock.log.retention import LogView, RetentionPolicy, SegmentInfo, removable_segments, retention_policy
from penstock.log.segment import Segment, SegmentTable


def truncate_to(log: PartitionLog, offset: int, now_ms: int) -> bool:
    """Drop everything from `offset` on; whether there was anything. A batch that holds `offset` goes whole.

    Batches 0..9, 10..19, 20..29: truncate_to(20) ends the log at 20, truncate_to(25) too. DiskFull: nothing was cut.
    """
    log.require_online()
    _cut_reported_damage(log, now_ms)
    if offset >= log.log_end_offset:
        return False
    if offset < log.log_start_offset:
        truncate_fully(log, offset, now_ms)
        return True
    try:
        # The only thing that needs room is written first: a full disk rejects the cut while nothing is cut yet. If the
        # power goes in between, recovery finds the epochs of what is left in the batches themselves.
        log.epochs.save_truncated(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}", offset)
    except OSError as error:
        raise log.disk_error(error) from error
    try:
        _drop_segments_from(log, offset)
        active = log.active
        place = active.locate(offset)
        active.truncate(active.size if place is None else place.position)
        if active.next_offset < log.log_start_offset:
            # The start was inside of a batch that is gone, or in a gap: what is left is all before it.
            truncate_fully(log, log.log_start_offset, now_ms)
            return True
        active.aborted.truncate_to(active.next_offset)
        _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error
    return True


def _cut_reported_damage(log: PartitionLog, now_ms: int) -> None:
    """Before a log is cut elsewhere: its damage goes first, or, where nobody counts on others to have it, nothing."""
    damage = log.damage
    if damage is not None and damage.is_told:
        cut_damage(log, now_ms)
    elif damage is not None and damage.ends_log:
        raise damage.error()


def cut_damage(log: PartitionLog, now_ms: int) -> None:
    """End the log where it is damaged, durably: what is behind goes, whether it is sound or not."""
    log.require_online()
    damage = log.damage
    if damage is None:
        return
    if not damage.ends_log and not _is_there(log, damage):
        log.forget_damage()
        return
    try:
        _drop_segments_from(log, damage.base_offset)
        _remove_files_from(log, damage.base_offset + 1)
        active = log.active
        if active.base_offset == damage.base_offset:
            try:
                active.truncate(damage.position)
            except DamagedLog:
                active.truncate(0)  # what is before it is no better: it comes from another replica, too
        active.aborted.truncate_to(active.next_offset)
        log.forget_damage()
        if active.next_offset < log.log_start_offset:
            truncate_fully(log, log.log_start_offset, now_ms)
        else:
            _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error


def _is_there(log: PartitionLog, damage: LogDamage) -> bool:
    """Whether what was noted is still part of the log: retention or another cut may have taken it."""
    index = log.find_segment(damage.base_offset)
    segment = log.segment_at(index)
    return segment.base_offset == damage.base_offset and segment.size > damage.position


def _remove_files_from(log: PartitionLog, base_offset: int) -> None:
    """Segments that are no part of a log that is cut short, newest first."""
    names = segment_files(log.files.list_folder(log.folder))
    for base in sorted((base for base in names if base >= base_offset), reverse=True):
        Segment(log.files, log.folder, base).remove()


def truncate_fully(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Empty the log and let it begin at `offset`: it holds nothing of what its leader has."""
    log.require_online()
    if offset < 0:
        raise OffsetOutOfRange(offset, 0, log.log_end_offset)
    if log.damage is not None and log.damage.ends_log and not log.damage.is_told:
        raise log.damage.error()
    try:
        _remove_files_from(log, log.active.base_offset + 1)
        log.active.remove()
        for base in reversed(log.table.bases):
            log.forget_segment(base)
            Segment(log.files, log.folder, base).remove()
        log.forget_damage()
        # What producers wrote into another history, transactions left open above all, says nothing of this one.
        remove_snapshots(log.files, log.folder)
        fresh = Segment.create(log.files, log.folder, offset, log.settings.index_interval_bytes)
        log.replace_segments(SegmentTable.of([]), fresh)
        log.log_start_offset = offset
        log.epochs.clear()
        _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error


def _drop_segments_from(log: PartitionLog, offset: int) -> None:
    """Remove the segments that begin after `offset`, newest first, and make the one before them the active one.

    One that begins at `offset` stays, empty: the one before may end earlier, where compaction left a gap.
    """
    while len(log.table) and log.active.base_offset > offset:
        last = len(log.table) - 1
        gone, kept = log.active, log.segment_at(last)
        log.forget_segment(kept.base_offset)
        log.replace_segments(log.table.spliced(last, last + 1, []), kept)
        gone.remove()
        with contextlib.suppress(FileNotFoundError):
            log.files.remove(f"{log.folder}/{snapshot_name(gone.base_offset)}")


def _apply_truncation(log: PartitionLog, now_ms: int) -> None:
    """Bring everything that follows from the batches in line with the new end, durably."""
    end = log.log_end_offset
    log.after_truncation(end)
    log.epochs.truncate_from_end(end)
    log.epochs.save(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}")
    start = load_newest_snapshot(log.files, log.folder, end, log.producers)
    if start is None:
        start = log.log_start_offset
    for index in range(log.find_segment(start), log.segment_count):
        replay(log.segment_at(index), start, log.producers, log.epochs, now_ms)
    # A snapshot knows as undecided what was not replicated when it was written.
    log.producers.on_high_watermark(log.high_watermark)
    log.files.sync_folder(log.folder)


class _Infos(Sequence[SegmentInfo]):
    """The log's segments as retention sees them, made one at a time as it walks."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._table = log.table

    def __len__(self) -> int:
        return len(self._table) + 1

    @overload
    def __getitem__(self, index: int) -> SegmentInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SegmentInfo]: ...
    def __getitem__(self, index: int | slice) -> SegmentInfo | Sequence[SegmentInfo]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        active = self._log.active
        if index == len(self._table):
            return SegmentInfo(active.base_offset, active.next_offset, active.size, self._age_of(active))
        row = self._table[index]
        following = active.base_offset if index + 1 == len(self._table) else self._table.bases[index + 1]
        stamp = row.max_timestamp if row.max_timestamp >= 0 else self._age_of(self._log.segment_at(index))
        return SegmentInfo(row.base_offset, following, row.size, stamp)

    def _age_of(self, segment: Segment) -> int:
        if segment.max_timestamp >= 0:
            return segment.max_timestamp
        return self._log.files.modified_ns(segment.path) // 1_000_000


def enforce_retention(log: PartitionLog, now_ms: int, policy: RetentionPolicy | None = None) -> list[str]:
    """Take the segments whose time is over out of the log; the files that are now to be removed, already renamed.

    Segments 0, 100, 200 (active) with retention over for the first: the log starts at 100 afterwards.
    """
    if log.failure is not None or log.is_cut_short:
        return []
    settings = log.settings
    if policy is None:
        policy = retention_policy(
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
            delete_expired=settings.deletes,
        )
    infos = _Infos(log)
    view = LogView(log.size, log.log_start_offset, log.high_watermark)
    count = removable_segments(policy, infos, view, now_ms)
    if count == 0:
        return []
    try:
        if count == len(infos):
            try:
                log.roll(log.log_end_offset, now_ms)
            except DiskFull:
                count -= 1  # the others make room first
        return _drop_oldest(log, count)
    except OSError as error:
        raise log.fail(error) from error


def _drop_oldest(log: PartitionLog, count: int) -> list[str]:
    doomed: list[str] = []
    bases = list(log.table.bases[:count])
    log.replace_segments(log.table.spliced(0, count, []), log.active)
    log.deletions_pending = True
    for base in bases:
        log.forget_segment(base)
        for path in Segment(log.files, log.folder, base).paths:
            with contextlib.suppress(FileNotFoundError):
                log.files.rename(path, path + DELETED)
                doomed.append(path + DELETED)
        snapshot = f"{log.folder}/{snapshot_name(base)}"
        if log.files.exists(snapshot):
            log.files.remove(snapshot)
    first = log.table.bases[0] if len(log.table) else log.active.base_offset
    if first > log.log_start_offset:
        log.log_start_offset = first
        log.epochs.truncate_from_start(first)
    return doomed
