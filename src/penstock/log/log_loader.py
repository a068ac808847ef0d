"""Opening a partition's folder: what is there, what needs recovery, where the log ends.

After a clean stop only the manifest and the end of the last segment are read. After an unclean one the segments that
were not known to be durable are walked, the first from its newest recovery mark, and the log is cut at the first batch
that is torn, damaged or out of order: what remains is a prefix that contains everything that was synced. Damage to
durable bytes ends the log but nothing is cut. After a failed sync, walked data is rewritten to new files, because it
may exist only in the page cache. Interrupted compactions and deletions are completed or undone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from penstock.log.checkpoints import (
    LEADER_EPOCH_FILE,
    CheckpointError,
    forget_failed_sync,
    has_failed_sync,
    rewrite_file,
)
from penstock.log.errors import DamagedLog
from penstock.log.group_commit import is_worth_marking
from penstock.log.leader_epochs import LeaderEpochs
from penstock.log.partition_folder import CLEANED, recover_folder, segment_files
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_state import ProducerStates
from penstock.log.recovery import (
    ACCEPT_LOSS_FILE,
    Damage,
    LogDamage,
    is_loss_accepted,
    load_newest_snapshot,
    mark_at,
    newest_mark,
    read_damage_note,
    recover,
    remove_loss_acceptance,
    remove_snapshots,
    replay,
    write_damage_note,
)
from penstock.log.segment import LOG_SUFFIX, SEGMENT_SUFFIXES, UNKNOWN_TIMESTAMP, Row, Segment, SegmentTable
from penstock.log.settings import LogSettings
from penstock.log.truncation import cut_damage
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Opened:
    """An open log, and what recovery did. `log.damage` is set if durable data is damaged or missing."""

    log: PartitionLog
    was_clean: bool
    damages: list[Damage] = field(default_factory=list)
    removed_segments: int = 0
    walked_bytes: int = 0


@dataclass(slots=True)
class _Found:
    """The segments of the log.

    `ended`: damage to durable bytes, after which nothing was read. `is_short`: durable bytes are missing at the end.
    """

    sealed: SegmentTable
    active: Segment
    unsynced: list[Segment] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    removed: int = 0
    walked: int = 0
    ended: LogDamage | None = None
    is_short: bool = False


def open_log(
    files: Files,
    folder: str,
    settings: LogSettings,
    *,
    clean: bool,
    recovery_point: int | None = 0,
    log_start_offset: int = 0,
    now_ms: int = 0,
    max_producers: int = 100_000,
) -> Opened:
    """The log in `folder`, created if there is none.

    `clean`: the last stop was clean. `recovery_point`: everything below it was durable at the last stop; None if
    unknown (its checkpoint is damaged), and then gaps between segments count as compaction's.
    """
    files.make_folder(folder)
    table = SegmentTable.load(files, folder) if clean else None
    has_manifest = table is not None and len(table) > 0
    if table is None or not has_manifest:
        table = _list_segments(files, folder)
    found = _load_segments(files, folder, table, settings, clean, recovery_point, log_start_offset)
    damage = found.ended or _missing_end(found, None if clean else recovery_point)
    if damage is None and not has_manifest:  # damage is noted only where no manifest was left
        damage = read_damage_note(files, folder)
    end = found.active.next_offset
    if log_start_offset > end and found.ended is None:
        logger.warning("log emptied: folder=%s end_offset=%d log_start_offset=%d", folder, end, log_start_offset)
        found = _start_over(files, folder, found, log_start_offset, settings.index_interval_bytes)
        end = log_start_offset
    first = found.sealed.bases[0] if len(found.sealed) else found.active.base_offset
    epochs = _load_epochs(files, folder, needed=end > first and (clean or bool(recovery_point)))
    log = PartitionLog(
        files,
        folder,
        settings,
        table=found.sealed,
        active=found.active,
        epochs=LeaderEpochs() if epochs is None else epochs,
        producers=ProducerStates(max_producers),
        log_start_offset=min(max(log_start_offset, first), end),
        flushed_offset=end if clean else min(recovery_point or 0, end),
        now_ms=now_ms,
        unsynced=found.unsynced,
    )
    log.damage = damage
    if epochs is None:
        _rebuild_epochs(log)
    log.epochs.truncate_from_end(end)
    log.epochs.truncate_from_start(log.log_start_offset)
    if clean:
        _restore_producers(log, end, now_ms)
        _note_mark(log, now_ms)
        if has_manifest and not found.damages and log.restored_offset == end:
            log.found_closed_at = end
    else:
        _restore_after_crash(log, [*found.unsynced, found.active], recovery_point or 0, now_ms)
    if log.damage is not None:
        _judge_damage(log, log.damage, now_ms)
    return Opened(log, clean, found.damages, found.removed, found.walked)


def _list_segments(files: Files, folder: str) -> SegmentTable:
    recover_folder(files, folder)
    names = segment_files(files.list_folder(folder))
    bases = sorted(base for base, suffixes in names.items() if LOG_SUFFIX in suffixes)
    for base, suffixes in names.items():
        if LOG_SUFFIX not in suffixes:
            for suffix in suffixes & set(SEGMENT_SUFFIXES):
                files.remove(f"{folder}/{base:020d}{suffix}")
    sizes = [files.size_of(f"{folder}/{base:020d}{LOG_SUFFIX}") for base in bases]
    return SegmentTable.of([Row(base, size, UNKNOWN_TIMESTAMP) for base, size in zip(bases, sizes, strict=True)])


def _load_segments(
    files: Files,
    folder: str,
    table: SegmentTable,
    settings: LogSettings,
    clean: bool,
    recovery_point: int | None,
    log_start_offset: int,
) -> _Found:
    if not len(table):
        found = _Found(table, Segment.create(files, folder, log_start_offset, settings.index_interval_bytes))
    elif clean:
        return _open_clean(files, folder, table, settings.index_interval_bytes)
    else:
        found = _recover(files, folder, list(table), settings, recovery_point)
        if has_failed_sync(files, folder):
            _rewrite_segments(files, folder, [*found.unsynced, found.active])
    found.is_short = not clean and found.active.next_offset < (recovery_point or 0)
    return found


def _open_clean(files: Files, folder: str, table: SegmentTable, interval: int) -> _Found:
    active = Segment(files, folder, table.bases[-1], index_interval_bytes=interval)
    found = _Found(table.without_last(), active)
    before = table[len(table) - 1]
    trouble, damage = active.load(), None
    if trouble is None and before.max_timestamp not in (UNKNOWN_TIMESTAMP, active.max_timestamp):
        trouble = "lost its end"
    if trouble is not None:
        logger.warning("index rebuilt: path=%s reason=%s", active.path, trouble)
        damage = recover(active, active.base_offset, active.base_offset, durable_bytes=before.size)
        found.walked = active.size
        found.ended = _ended(damage)
    found.is_short = active.size < before.size
    if damage is None and found.is_short:
        damage = Damage(active.path, active.size, before.size - active.size, "the file is shorter than it was", True)
    # After a clean stop everything was durable, so whatever is wrong was damaged since.
    if damage is not None:
        found.damages.append(damage._replace(was_synced=True))
        _log_damage(found.damages[0])
    return found


def _ended(damage: Damage | None) -> LogDamage | None:
    """Damage to durable bytes, which ends the log. A torn end does not."""
    if damage is None or not damage.was_synced:
        return None
    found = LogDamage.of(DamagedLog(damage.path, damage.position, damage.reason))
    return None if found is None else replace(found, ends_log=True)


def _recover(files: Files, folder: str, rows: list[Row], settings: LogSettings, recovery_point: int | None) -> _Found:
    """Walk the segments that may contain data that was not durable, and leave earlier ones alone."""
    known = recovery_point or 0
    first = len(rows) - 1
    while first > 0 and rows[first].base_offset > known:
        first -= 1
    sealed = rows[:first]
    walked: list[Segment] = []
    damages: list[Damage] = []
    removed = 0
    ended = None
    epochs = _load_epochs(files, folder, needed=True) if known else None
    for index in range(first, len(rows)):
        segment = Segment(files, folder, rows[index].base_offset, index_interval_bytes=settings.index_interval_bytes)
        walked.append(segment)
        # Without the epochs file every batch is needed to rebuild it, so no mark is used.
        marked = None
        if index == first and epochs is not None and known > segment.base_offset:
            marked = newest_mark(files, folder, segment.base_offset, known)
        # The newest segment is never compacted.
        is_as_written = index + 1 == len(rows) or not settings.compacts
        damage = recover(segment, known, segment.base_offset, marked, epochs=epochs, is_as_written=is_as_written)
        if damage is not None:
            damages.append(damage)
            _log_damage(damage)
            ended = _ended(damage)
        elif index + 1 < len(rows) and segment.next_offset < known:
            reason = f"it ends at offset {segment.next_offset}, but offsets up to {known} were durable"
            ended = LogDamage(segment.base_offset, segment.size, segment.path, reason, ends_log=True)
        if index + 1 == len(rows) or ended is not None:
            break
        following = rows[index + 1].base_offset
        # Segments that were not durable are never compacted, so a gap before the next one means data loss.
        gap = segment.next_offset < following and recovery_point is not None and following > known
        if damage is not None or segment.next_offset > following or gap:
            logger.warning(
                "later segments removed: path=%s end_offset=%d next_segment=%d removed=%d",
                segment.path, segment.next_offset, following, len(rows) - index - 1,
            )  # fmt: skip
            removed = _remove(files, folder, rows[index + 1 :])
            break
        segment.seal()
        sealed.append(Row(segment.base_offset, segment.size, segment.max_timestamp))
    total = sum(segment.size - segment.recovered_from for segment in walked)
    return _Found(SegmentTable.of(sealed), walked[-1], walked[:-1], damages, removed, total, ended)


def _missing_end(found: _Found, recovery_point: int | None) -> LogDamage | None:
    """Note missing durable bytes now: once the checkpoints are written, nothing else shows that the log was longer."""
    if not found.is_short:
        return None
    active = found.active
    known = "more" if recovery_point is None else f"offsets up to {recovery_point}"
    reason = f"the log ends at offset {active.next_offset}, but {known} were durable"
    damage = LogDamage(active.base_offset, active.size, active.path, reason)
    write_damage_note(active.files, active.folder, damage)
    return damage


def _judge_damage(log: PartitionLog, damage: LogDamage, now_ms: int) -> None:
    """Log the damage, or cut it off if the operator accepted the loss."""
    if is_loss_accepted(log.files, log.folder):
        logger.error("damage cut off, loss accepted: path=%s position=%d", damage.path, damage.position)
        cut_damage(log, now_ms)
        remove_loss_acceptance(log.files, log.folder)
        return
    until = "accepts no records" if damage.ends_log else "is not complete"
    logger.error(
        "log damaged: path=%s position=%d reason=%s. The log %s until another replica has repaired it. If there is "
        "none, inspect it with `penstock log verify %s`; to continue without the damaged data and everything after it, "
        "create an empty file %s/%s and restart",
        damage.path, damage.position, damage.reason, until, log.folder, log.folder, ACCEPT_LOSS_FILE,
    )  # fmt: skip


def _rewrite_segments(files: Files, folder: str, segments: list[Segment]) -> None:
    """After a failed sync segments may exist only in the page cache, which later syncs skip: write new files."""
    logger.warning("segments rewritten after a failed sync: folder=%s count=%d", folder, len(segments))
    for segment in segments:
        for path in (segment.path, segment.aborted.path):
            if files.exists(path):
                rewrite_file(files, path, path + CLEANED)
        segment.release()
    files.sync_folder(folder)
    forget_failed_sync(files, folder)


def _log_damage(damage: Damage) -> None:
    level = logging.ERROR if damage.was_synced else logging.WARNING
    logger.log(
        level, "log ends early: path=%s position=%d lost_bytes=%d were_durable=%s reason=%s",
        damage.path, damage.position, damage.size, damage.was_synced, damage.reason,
    )  # fmt: skip


def _remove(files: Files, folder: str, rows: list[Row]) -> int:
    """Delete segments, the newest first, so that a crash leaves no gap."""
    for row in reversed(rows):
        Segment(files, folder, row.base_offset).remove()
    files.sync_folder(folder)
    return len(rows)


def _start_over(files: Files, folder: str, found: _Found, offset: int, interval: int) -> _Found:
    found.active.release()
    rows = [*found.sealed, Row(found.active.base_offset, found.active.size, UNKNOWN_TIMESTAMP)]
    removed = _remove(files, folder, rows)
    remove_snapshots(files, folder)
    fresh = Segment.create(files, folder, offset, interval)
    return _Found(
        SegmentTable.of([]), fresh, damages=found.damages, removed=found.removed + removed, walked=found.walked
    )


def _load_epochs(files: Files, folder: str, *, needed: bool) -> LeaderEpochs | None:
    """The leader epochs from the checkpoint; None if it is damaged, or empty although `needed`."""
    try:
        epochs = LeaderEpochs.load(files, f"{folder}/{LEADER_EPOCH_FILE}")
    except CheckpointError as error:
        logger.warning("leader epochs rebuilt from the log: error=%s", error)
        return None
    return epochs if epochs.entries or not needed else None


def _rebuild_epochs(log: PartitionLog) -> None:
    for index in range(log.segment_count):
        for place in log.segment_at(index).places():
            if place.header.leader_epoch > log.epochs.latest_epoch:
                log.epochs.assign(place.header.leader_epoch, place.header.base_offset)


def _restore_after_crash(log: PartitionLog, recovered: list[Segment], recovery_point: int, now_ms: int) -> None:
    """Replay everything that was not durable, despite snapshots: they hold no epochs and aborted transactions."""
    # A snapshot inside a segment needs the segment's transaction index, which is only trusted up to a mark.
    limit = min(recovery_point, log.log_end_offset, recovered[0].trusted_offset)
    for segment in recovered:
        segment.aborted.cut_damaged_tail()
    _restore_producers(log, limit, now_ms)
    for segment in recovered:
        segment.walked = None
        if segment.recovered_from:
            log.marks.found(segment.trusted_offset)
    if log.active.recovered_from:
        log.marks.tried(log.active.base_offset, log.active.recovered_from, now_ms)
    kept = {*log.table.bases, log.active.base_offset, log.restored_offset or 0, *log.marks.offsets}
    remove_snapshots(log.files, log.folder, keep=kept)


def _note_mark(log: PartitionLog, now_ms: int) -> None:
    """After a clean stop, note the mark that it wrote, if the active segment is large enough to have one."""
    active, offset = log.active, log.restored_offset
    if is_worth_marking(active.size) and offset is not None and offset > active.base_offset:
        mark = mark_at(log.files, log.folder, offset)
        if mark is not None and mark.base_offset == active.base_offset:
            log.marks.tried(active.base_offset, mark.position, now_ms)


def _restore_producers(log: PartitionLog, limit: int, now_ms: int) -> None:
    """Restore producers and aborted transactions from the newest snapshot up to `limit` and the batches after it."""
    start = load_newest_snapshot(log.files, log.folder, limit, log.producers)
    log.restored_offset = start
    if start is None:
        start = log.log_start_offset
    elif start not in log.table.bases and start != log.active.base_offset:
        log.marks.found(start)
    for index in range(log.find_segment(start), log.segment_count):
        replay(log.segment_at(index), start, log.producers, log.epochs, now_ms)
