"""What a log leaves behind when it is closed: what a quick start needs, and nothing that would mislead one.

Rule: the manifest is written last, and says that all of it is there: the indexes, a snapshot of the producers at the
end, with a mark if there is much before it. A start that must look at the files itself finds no manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.log.marks import is_worth_marking
from penstock.log.segment_mark import Marker
from penstock.log.segment_table import Row, SegmentTable
from penstock.log.sweeping import DELETED

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


def is_as_found(log: PartitionLog) -> bool:
    """Whether all that closing would leave is there already, durable: nothing changed since the last clean stop."""
    if log.found_closed_at != log.log_end_offset or log.generation or log.failure is not None:
        return False
    # The manifest below tells of most of these, but by the folder's time, which may stand still for milliseconds.
    if log.durability.folder_changes > 1 or log.durability.unsynced or log.deletions_pending:
        return False
    if log.epochs.dirty or log.active.is_torn:
        return False
    try:
        return SegmentTable.load(log.files, log.folder) is not None
    except OSError:
        return False  # closing it meets the same error, and says what it means


def leave_behind(log: PartitionLog) -> None:
    """Make everything durable and leave what a quick start needs. OSError, LogError."""
    log.active.seal()
    log.flush()
    _replace_marks(log)
    _save_manifest(log)


def _replace_marks(log: PartitionLog) -> None:
    """Leave a snapshot for the end, with a mark if there is much before it, and no other inside of a segment."""
    end, active, data = log.log_end_offset, log.active, None
    if is_worth_marking(active.size):
        data = Marker(log.files, active, log.producers.snapshot()).encode()
    log.write_producer_snapshot(end, data)
    for offset in log.marks.take_all():
        if offset != end:
            log.durability.remove_snapshot(offset)


def _save_manifest(log: PartitionLog) -> None:
    if log.damage is not None:
        return  # the next start must look for the note of it
    if log.deletions_pending and any(name.endswith(DELETED) for name in log.files.list_folder(log.folder)):
        return  # the next start must list the folder to find them
    active = Row(log.active.base_offset, log.active.size, log.active.max_timestamp)
    log.stamped_table().with_row(active).save(log.files, log.folder)
