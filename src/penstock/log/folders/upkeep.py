"""What a data folder needs done from time to time, and how to tell cheaply that nothing is.

Rule: time is an argument, and a tick that finds nothing to do makes no system call, however many partitions there are.
Trouble with one partition does not keep the others from their upkeep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.log.errors import DiskFull, LogError, TooManyOpenFiles
from penstock.log.flush import GroupCommit
from penstock.log.folders.directory import Hosted, LogDirectory
from penstock.log.folders.errors import DirectoryOffline, is_partitions_own
from penstock.log.partition_log import PartitionLog
from penstock.log.segment_table import UNKNOWN_TIMESTAMP
from penstock.log.settings import NEVER
from penstock.log.trimming import enforce_retention
from penstock.records import NO_TIMESTAMP
from penstock.runtime.workers import Outcome, Workers, WorkersError

logger = logging.getLogger(__name__)

IsBusy = Callable[[PartitionLog], bool]

UNFLUSHED_BYTES: Final = 64 * 1024 * 1024
UNFLUSHED_MS: Final = 30_000
# A start after a crash walks what is behind the recovery point that was written last.
UNCHECKPOINTED_BYTES: Final = 512 * 1024 * 1024


def may_expire(log: PartitionLog, now_ms: int) -> bool:
    """Whether retention could find something; no is certain, yes is not."""
    settings, table, active = log.settings, log.table, log.active
    sealed = len(table)
    if sealed and log.log_start_offset >= (table.bases[1] if sealed > 1 else active.base_offset):
        return True
    if not settings.deletes or not (sealed or active.size):
        return False
    if sealed and 0 <= settings.retention_bytes <= log.size - table.sizes[0]:
        return True
    if settings.retention_ms < 0:
        return False
    newest_ms = table.stamps[0] if sealed else active.max_timestamp
    if newest_ms in (UNKNOWN_TIMESTAMP, NO_TIMESTAMP):
        return True
    return now_ms - newest_ms > settings.retention_ms


def expire(directory: LogDirectory, now_ms: int, is_busy: IsBusy | None = None) -> int:
    """Take out the segments whose time is over, but not of logs that are busy; how many files now wait for removal."""
    if not directory.check_logs():
        return 0
    count = 0
    for hosted in list(directory.hosted.values()):
        if not may_expire(hosted.log, now_ms) or (is_busy is not None and is_busy(hosted.log)):
            continue
        try:
            with directory.disk():
                doomed = _expire_one(hosted, now_ms)
        except DirectoryOffline:
            break
        except LogError as error:
            logger.warning("retention of %s: %s", hosted.log.folder, error)
            continue
        directory.doom(doomed, now_ms + hosted.log.settings.file_delete_delay_ms)
        count += len(doomed)
    return count


def _expire_one(hosted: Hosted, now_ms: int) -> list[str]:
    try:
        return enforce_retention(hosted.log, now_ms)
    except OSError as error:
        if is_partitions_own(error):
            raise LogError(str(error)) from error
        raise


def start_due_flushes(directory: LogDirectory, commits: GroupCommit, now_ms: int) -> int:
    """Begin to flush the logs whose own flush policy asks for it; how many."""
    if not directory.check_logs():
        return 0
    count = 0

    def done(error: LogError | None) -> None:
        if error is not None:
            logger.warning("flush in %s: %s", directory.path, error)
            directory.check_logs()

    for hosted in list(directory.hosted.values()):
        log = hosted.log
        if log.settings.flush_ms == NEVER and log.settings.flush_messages == NEVER:
            continue  # as most do; asking them is what a tick costs
        if log.flush_due(now_ms) and not commits.pending(log):
            count += 1
            commits.when_durable(log, log.log_end_offset, done)
    return count


def flush_in_background(directory: LogDirectory, workers: Workers, now_ms: int) -> bool:
    """Begin to flush the logs of which much, or something old, is not durable; whether there are any.

    Whatever the flush policy: that is for those who must not lose records, while this bounds what the start after a
    crash has to check, and the system would write the bytes out soon in any case. One log after the other, since nobody
    waits for them, and never on the loop, since they are many bytes.
    """
    if directory.is_flushing or not directory.check_logs():
        return False
    for hosted in directory.hosted.values():
        log = hosted.log
        if not log.active.size and not len(log.table):
            continue  # it never held a record: the cheapest answer, where there are thousands
        if log.flush_wanted(now_ms, UNFLUSHED_BYTES, UNFLUSHED_MS):
            try:
                if _flush_one(directory, log, workers, now_ms):
                    return True
            except (LogError, WorkersError) as error:
                logger.warning("flush of %s: %s", log.folder, error)
                if not directory.check_logs():
                    break
    return False


def _flush_one(directory: LogDirectory, log: PartitionLog, workers: Workers, now_ms: int) -> bool:
    flush = log.prepare_flush(mark=True)
    if flush is None:
        return False
    size = log.unflushed_bytes

    def done(outcome: Outcome[None]) -> None:
        directory.is_flushing = False
        if isinstance(outcome.error, TooManyOpenFiles):
            logger.warning("flush of %s: %s", log.folder, outcome.error)
        elif outcome.error is not None:
            log.fail(outcome.error)
            directory.check_logs()
        else:
            log.complete_flush(flush)
            directory.flushed_bytes += size
            if directory.flushed_bytes >= UNCHECKPOINTED_BYTES:
                checkpoint(directory)
            flush_in_background(directory, workers, now_ms)

    directory.is_flushing = True
    try:
        workers.run(flush.run, done)
    except WorkersError:
        directory.is_flushing = False
        raise
    return True


def checkpoint(directory: LogDirectory) -> int:
    """Write the checkpoints that changed; a disk that is full or fails is not the caller's affair."""
    try:
        return directory.checkpoint()
    except DiskFull as error:
        logger.warning("checkpoints of %s are tried again: %s", directory.path, error)
    except DirectoryOffline:
        logger.debug("%s failed while its checkpoints were written", directory.path)
    return 0


def expire_producers(directory: LogDirectory, now_ms: int) -> int:
    """Forget producers that were idle for long; how many."""
    count = 0
    for hosted in directory.hosted.values():
        producers = hosted.log.producers
        if producers.producer_count:
            count += producers.remove_expired(now_ms, hosted.log.settings.producer_id_expiration_ms)
    return count
