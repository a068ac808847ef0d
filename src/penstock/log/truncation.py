"""Truncation: cutting off the end of a log, or all of it.

The newest segment goes first, so the rest has no gap whenever power fails. A cut is durable before anything is written
after it, and epochs, indexes and producer state then follow from the batches that are left.
"""

from __future__ import annotations

import contextlib

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.errors import DamagedLog, DiskFull, OffsetOutOfRange
from penstock.log.partition_folder import SPARE, segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import snapshot_name
from penstock.log.recovery import LogDamage, load_newest_snapshot, remove_snapshots, replay
from penstock.log.segment import Segment, SegmentTable


def truncate_to(log: PartitionLog, offset: int, now_ms: int) -> bool:
    """Drop everything from `offset` on, including the batch that contains it; False if there was nothing.

    Batches 0..9, 10..19, 20..29: truncate_to(20) ends the log at 20, and so does truncate_to(25). DiskFull: nothing was
    cut.
    """
    log.require_online()
    _cut_reported_damage(log, now_ms)
    if offset >= log.log_end_offset:
        return False
    if offset < log.log_start_offset:
        truncate_fully(log, offset, now_ms)
        return True
    try:
        # The only write that needs space comes first: a full disk rejects the truncation before anything is cut. If
        # power fails in between, recovery reads the epochs from the batches that are left.
        log.epochs.save_truncated(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}", offset)
    except OSError as error:
        raise log.disk_error(error) from error
    try:
        _drop_segments_from(log, offset)
        active = log.active
        place = active.locate(offset)
        active.truncate(active.size if place is None else place.position)
        if active.next_offset < log.log_start_offset:
            # The log start was inside a batch that was cut, or in a gap: everything left is before it.
            _truncate_the_rest(log, now_ms)
            return True
        active.aborted.truncate_to(active.next_offset)
        _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error
    return True


def _cut_reported_damage(log: PartitionLog, now_ms: int) -> None:
    """Before another cut, cut reported damage. Damage that was not reported must stay: this may be the only replica."""
    damage = log.damage
    if damage is not None and damage.is_reported:
        cut_damage(log, now_ms)
    elif damage is not None and damage.ends_log:
        raise damage.error()


def cut_damage(log: PartitionLog, now_ms: int) -> None:
    """End the log at its damage, durably. Everything after it goes, sound or not."""
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
                active.truncate(0)  # damaged before that as well: all of it is copied from another replica
        active.aborted.truncate_to(active.next_offset)
        log.forget_damage()
        if active.next_offset < log.log_start_offset:
            _truncate_the_rest(log, now_ms)
        else:
            _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error


def _is_there(log: PartitionLog, damage: LogDamage) -> bool:
    """Whether the damage is still part of the log: retention or a truncation may have removed it."""
    index = log.find_segment(damage.base_offset)
    segment = log.segment_at(index)
    return segment.base_offset == damage.base_offset and segment.size > damage.position


def _remove_files_from(log: PartitionLog, base_offset: int) -> None:
    """Segments beyond the end of a log that ends at damage, newest first."""
    names = segment_files(log.files.list_folder(log.folder))
    for base in sorted((base for base in names if base >= base_offset), reverse=True):
        Segment(log.files, log.folder, base).remove()


def truncate_fully(log: PartitionLog, offset: int, now_ms: int) -> None:
    """Empty the log and start it at `offset`: its leader no longer has what it holds. DiskFull: nothing was removed."""
    log.require_online()
    if offset < 0:
        raise OffsetOutOfRange(offset, 0, log.log_end_offset)
    if log.damage is not None and log.damage.ends_log and not log.damage.is_reported:
        raise log.damage.error()
    # All that needs space comes first: a full disk rejects the truncation before anything is removed. A compaction on a
    # worker may be writing a `.cleaned` file of the same offset, so this segment has a suffix of its own.
    spare = Segment(log.files, log.folder, offset, suffix=SPARE)
    try:
        spare.create_files()
        log.epochs.save_truncated(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}", 0)
    except OSError as error:
        with contextlib.suppress(OSError):
            spare.remove()
        raise log.disk_error(error) from error
    try:
        _remove_files_from(log, log.active.base_offset + 1)
        log.active.remove()
        for base in reversed(log.table.bases):
            log.forget_segment(base)
            Segment(log.files, log.folder, base).remove()
        log.forget_damage()
        # Producer state of the old log, open transactions above all, does not apply to the new one.
        remove_snapshots(log.files, log.folder)
        spare.release()
        for path in spare.paths:
            if log.files.exists(path):
                log.files.rename(path, path.removesuffix(SPARE))
        fresh = Segment.create(log.files, log.folder, offset, log.settings.index_interval_bytes)
        log.replace_segments(SegmentTable.of([]), fresh)
        log.log_start_offset = offset
        log.epochs.clear()
        _apply_truncation(log, now_ms)
    except OSError as error:
        raise log.fail(error) from error


def _truncate_the_rest(log: PartitionLog, now_ms: int) -> None:
    """Empty a log whose end was cut already, so that a full disk cannot reject it any more."""
    try:
        truncate_fully(log, log.log_start_offset, now_ms)
    except DiskFull as error:
        raise log.fail(error) from error


def _drop_segments_from(log: PartitionLog, offset: int) -> None:
    """Remove the segments that begin after `offset`, newest first; the one before them becomes active.

    A segment that begins at `offset` stays, empty: after compaction the one before it may end earlier.
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
    """Bring epochs, producer state and checkpoints in line with the new end, durably."""
    end = log.log_end_offset
    log.after_truncation(end)
    log.epochs.truncate_from_end(end)
    log.epochs.save(log.files, f"{log.folder}/{LEADER_EPOCH_FILE}")
    start = load_newest_snapshot(log.files, log.folder, end, log.producers)
    if start is None:
        start = log.log_start_offset
    for index in range(log.find_segment(start), log.segment_count):
        replay(log.segment_at(index), start, log.producers, log.epochs, now_ms)
    # A snapshot lists transactions as undecided that were not replicated when it was written.
    log.producers.on_high_watermark(log.high_watermark)
    log.files.sync_folder(log.folder)
