"""What a data folder remembers of its partitions' offsets: four checkpoints, held in memory as the disk has them.

    recovery point    below it everything is durable: after an unclean stop only what is above is checked
    log start         records below it were deleted by request, though their segment may still be there
    high watermark    records below it were replicated
    cleaner           compaction has been up to here

Rule: a file is written only when its rows change. A row that is too low costs work, one that is too high costs data
(unchecked bytes, a log emptied up to a start that is not its own), so rows are lowered before the log is cut, and
those of a name's earlier life are gone before it is used again. What cannot be read is answered with the assumption
that loses nothing, and a warning: no recovery point (None, which is not 0: then gaps are taken for compaction's), the
log's own first offset as start and high watermark, and compaction from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from penstock.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    TopicPartition,
    read_offsets,
    write_offsets,
)
from penstock.log.partition_log import PartitionLog
from penstock.runtime.files import Files

logger = logging.getLogger(__name__)


class OffsetFile:
    """One checkpoint, and its rows."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._rows: dict[TopicPartition, int] = {}
        self._known = False
        self._in_doubt = False  # a write failed, and may have happened all the same

    @property
    def is_known(self) -> bool:
        """Whether the rows are what was written: not if the file was missing or damaged, and none written since."""
        return self._known

    @property
    def rows(self) -> Mapping[TopicPartition, int]:
        return self._rows

    def load(self, otherwise: str) -> None:
        """Read the file; if it is damaged say what is assumed `otherwise`."""
        self._rows, self._known = {}, False
        try:
            self._rows = read_offsets(self._files, self._path)
            self._known = True
        except FileNotFoundError:
            return
        except CheckpointError as error:
            logger.warning("%s: %s", error, otherwise)

    def replace(self, rows: Mapping[TopicPartition, int]) -> bool:
        """Make these the rows, durably; whether that took a write."""
        if self._known and not self._in_doubt and rows == self._rows:
            return False
        self._in_doubt = True
        write_offsets(self._files, self._path, rows)
        self._rows = dict(rows)
        self._known, self._in_doubt = True, False
        return True

    def put(self, key: TopicPartition, offset: int) -> bool:
        """Change one row, durably; whether that took a write."""
        return self.replace({**self._rows, key: offset})

    def lower(self, key: TopicPartition, offset: int) -> bool:
        """Let the row of `key` be `offset` at most; whether that took a write."""
        return self._rows.get(key, -1) > offset and self.put(key, offset)

    def forget(self, key: TopicPartition) -> bool:
        """Drop the row of `key`; whether that took a write."""
        if key not in self._rows:
            return False
        return self.replace({other: offset for other, offset in self._rows.items() if other != key})


class DirectoryCheckpoints:
    """The four checkpoints of a data folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self.recovery = OffsetFile(files, f"{folder}/{RECOVERY_POINT_FILE}")
        self.start = OffsetFile(files, f"{folder}/{LOG_START_FILE}")
        self.high_watermark = OffsetFile(files, f"{folder}/{HIGH_WATERMARK_FILE}")
        self.cleaner = OffsetFile(files, f"{folder}/{CLEANER_FILE}")

    @property
    def all(self) -> tuple[OffsetFile, ...]:
        return self.recovery, self.start, self.high_watermark, self.cleaner

    def load(self) -> None:
        self.recovery.load("after an unclean stop all segments are checked")
        self.start.load("records deleted by request may be seen again until their segments go")
        self.high_watermark.load("high watermarks begin at the logs' starts")
        self.cleaner.load("compaction begins anew")

    def recovery_point(self, key: TopicPartition) -> int | None:
        """Below which offset a log was durable; None if that is not known."""
        return self.recovery.rows.get(key, 0) if self.recovery.is_known else None

    def write(self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]) -> int:
        """Remember where the logs are, and of the `unread` ones what was known; the number of files written."""
        items = logs.items()
        written = self._write_recovery(logs, unread)
        written += _replace(self.start, {k: log.log_start_offset for k, log in items if log.log_start_offset}, unread)
        written += _replace(self.high_watermark, {key: log.high_watermark for key, log in items}, unread)
        cleaned = {key: offset for key, offset in self.cleaner.rows.items() if key in logs}
        return written + _replace(self.cleaner, cleaned, unread)

    def _write_recovery(self, logs: Mapping[TopicPartition, PartitionLog], unread: Collection[TopicPartition]) -> int:
        if not self.recovery.is_known:
            if unread:
                # No row can say "not known", which is what the next start must assume of these.
                return 0
            for log in logs.values():
                # A row of 0 would make the next start take compaction's gaps for losses.
                log.flush()
        flushed = {key: log.flushed_offset for key, log in logs.items()}
        written = _replace(self.recovery, dict(flushed), unread)
        for key, log in logs.items():
            log.checkpointed_offset = flushed[key]
        return written

    def forget(self, key: TopicPartition) -> None:
        """Drop all that is remembered of a partition, durably."""
        for file in self.all:
            file.forget(key)

    def lower(self, key: TopicPartition, offset: int) -> None:
        """A log is going to be cut somewhere above `offset`: claim nothing beyond it."""
        for file in (self.recovery, self.high_watermark, self.cleaner):
            file.lower(key, offset)


def _replace(file: OffsetFile, rows: dict[TopicPartition, int], unread: Collection[TopicPartition]) -> int:
    for key in unread:
        if key in file.rows:
            rows[key] = file.rows[key]
    return int(file.replace(rows))
