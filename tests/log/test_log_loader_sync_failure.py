"""A sync fails, only the process restarts, and finds bytes in the page cache that are on no disk."""

from __future__ import annotations

import errno

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    ROOMY,
    TINY,
    base_offsets,
    batch_of,
    marker_of,
    open_new,
    path_of,
    put,
    reopen,
)

from penstock.log.errors import LogFailed
from penstock.log.partition_log import PartitionLog
from penstock.log.truncation import truncate_to
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles


def durable_folder() -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    return files


def fail_to_flush(files: SimulatedFiles, log: PartitionLog, ending: str = ".log") -> None:
    files.operations.fail("sync", errno.EIO, path_ending=ending, loss=LOSE_UNSYNCED)
    with pytest.raises(LogFailed):
        log.flush()


def test_what_a_failed_sync_left_in_the_cache_is_durable_once_a_restart_has_synced() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, *range(5))
    log.flush()
    put(log, 5, 6)
    fail_to_flush(files, log)
    files.kill()
    again = reopen(files, ROOMY, clean=False, recovery_point=10).log
    put(again, 7)
    again.flush()
    assert again.flushed_offset == 16
    files.crash(LOSE_UNSYNCED)
    assert base_offsets(reopen(files, ROOMY, clean=False, recovery_point=16).log) == [*range(0, 16, 2)]


def test_so_it_is_in_segments_that_were_sealed_before_the_sync_failed() -> None:
    files = durable_folder()
    log = open_new(files, TINY)
    put(log, *range(7))
    assert len(log.table.bases) > 1
    fail_to_flush(files, log)
    files.kill()
    again = reopen(files, TINY, clean=False).log
    again.flush()
    files.crash(LOSE_UNSYNCED)
    assert base_offsets(reopen(files, TINY, clean=False, recovery_point=14).log) == [*range(0, 14, 2)]


def test_nothing_is_written_again_where_no_sync_failed() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, *range(5))
    log.flush()
    put(log, 5, 6)
    files.kill()
    before = files.operations.count
    reopen(files, ROOMY, clean=False, recovery_point=10)
    written = [each.path for each in files.operations.recent if each.number >= before and each.kind == "write"]
    assert not [path for path in written if ".log" in path]


def test_bytes_that_are_durable_already_are_not_written_over() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, *range(5))
    log.flush()
    put(log, 5, 6)
    fail_to_flush(files, log)
    files.kill()
    before = files.operations.count
    reopen(files, ROOMY, clean=False)
    touched = [each for each in files.operations.recent if each.number >= before and each.kind in ("write", "truncate")]
    assert not [each for each in touched if each.path == path_of(0)]
    again = files.operations.count
    files.kill()
    reopen(files, ROOMY, clean=False)
    assert not [each for each in files.operations.recent if each.number >= again and each.path.endswith(".cleaned")]


def test_a_cut_that_no_sync_confirmed_is_repeated() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    put(log, *range(5))
    log.flush()
    files.operations.fail("sync", errno.EIO, path_ending=".log", loss=LOSE_UNSYNCED)
    with pytest.raises(LogFailed):
        truncate_to(log, 6, now_ms=NOW_MS)
    files.kill()
    again = reopen(files, ROOMY, clean=False, recovery_point=6).log
    put(again, 9)
    again.flush()
    files.crash(LOSE_UNSYNCED)
    assert base_offsets(reopen(files, ROOMY, clean=False, recovery_point=8).log) == [0, 2, 4, 6]


def test_aborts_that_a_failed_sync_left_in_the_cache_are_durable_once_a_restart_has_synced() -> None:
    files = durable_folder()
    log = open_new(files, ROOMY)
    log.flush()
    log.append(batch_of(0, producer=9, transactional=True), leader_epoch=0, now_ms=NOW_MS)
    log.append(marker_of(9, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)
    fail_to_flush(files, log, ".txnindex")
    files.kill()
    again = reopen(files, ROOMY, clean=False).log
    again.flush()
    files.crash(LOSE_UNSYNCED)
    last = reopen(files, ROOMY, clean=False, recovery_point=3).log
    assert [each.producer_id for each in last.active.aborted.entries()] == [9]
