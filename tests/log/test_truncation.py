from __future__ import annotations

import errno

import pytest
from tests.log.log_stories import (
    FOLDER,
    NOW_MS,
    ROOMY,
    TINY,
    base_offsets,
    bases,
    batch_of,
    content_of,
    contents,
    files_of,
    marker_of,
    open_new,
    put,
    reopen,
    served,
    seven,
)

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.errors import DiskFull, LogFailed, OffsetOutOfRange
from penstock.log.partition_log import PartitionLog
from penstock.log.settings import LogSettings
from penstock.log.truncation import truncate_fully, truncate_to
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_faults import GROWING
from penstock.testing.simulated_files import SimulatedFiles

ALL = [0, 2, 4, 6, 8, 10, 12]


def test_a_disk_too_full_for_the_epochs_rejects_the_cut_before_anything_is_cut() -> None:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    log = seven(files)
    put(log, 7, leader_epoch=3)
    log.flush()
    files.operations.fail("write", errno.ENOSPC, path_ending=f"{LEADER_EPOCH_FILE}.tmp")
    with pytest.raises(DiskFull):
        truncate_to(log, 6, NOW_MS)
    assert (log.failure, log.log_end_offset, log.epochs.latest_epoch) == (None, 16, 3)
    assert truncate_to(log, 6, NOW_MS)
    assert (log.log_end_offset, log.epochs.latest_epoch) == (6, 0)
    files.crash(LOSE_UNSYNCED)
    assert reopen(files, clean=False).log.epochs.latest_epoch == 0


@pytest.mark.parametrize(("kind", "skip"), [("create", 0), ("create", 1), ("create", 2), ("create", 3), ("write", 0)])
def test_a_full_disk_rejects_emptying_a_log_before_anything_is_removed(kind: str, skip: int) -> None:
    files = SimulatedFiles()
    log = seven(files)
    put(log, 7, leader_epoch=3)
    log.flush()
    before = sorted(files.list_folder(FOLDER))
    files.operations.fail(kind, errno.ENOSPC, skip=skip)
    with pytest.raises(DiskFull):
        truncate_fully(log, 40, NOW_MS)
    assert (log.failure, log.log_end_offset, log.epochs.latest_epoch) == (None, 16, 3)
    assert [name for name in sorted(files.list_folder(FOLDER)) if not name.endswith(".tmp")] == before
    assert base_offsets(log) == [*ALL, 14]
    truncate_fully(log, 40, NOW_MS)
    assert (log.failure, log.log_start_offset, log.log_end_offset, log.epochs.entries) == (None, 40, 40, [])
    put(log, 8, leader_epoch=4)
    assert base_offsets(log) == [40]


def test_what_a_compaction_still_writes_does_not_reach_a_log_that_was_emptied_meanwhile() -> None:
    files = SimulatedFiles()
    log = seven(files)
    log.flush()
    cleaned = files.open(f"{FOLDER}/{4:020d}.log.cleaned", create=True)
    truncate_fully(log, 4, NOW_MS)
    put(log, 20, leader_epoch=1)
    before = log.size
    cleaned.write_at(0, b"old records" * 100)
    assert base_offsets(log) == [4]
    assert files.open(f"{FOLDER}/{4:020d}.log").size() == before


def test_a_disk_that_is_full_after_the_first_steps_does_not_keep_a_log_from_being_emptied() -> None:
    files = SimulatedFiles()
    log = seven(files)
    log.flush()
    for kind in GROWING:
        files.operations.fail(kind, errno.ENOSPC, skip=5)
    truncate_fully(log, 40, NOW_MS)
    assert (log.failure, log.log_start_offset, log.log_end_offset) == (None, 40, 40)


@pytest.mark.parametrize("offset", range(15))
@pytest.mark.parametrize("settings", [TINY, ROOMY], ids=["tiny", "roomy"])
def test_everything_from_an_offset_on_is_dropped_and_its_batch_with_it(offset: int, settings: LogSettings) -> None:
    files = SimulatedFiles()
    log = seven(files, settings)
    log.flush()
    log.advance_high_watermark(14)
    assert truncate_to(log, offset, NOW_MS) == (offset < 14)
    end = offset // 2 * 2
    assert log.log_end_offset == end
    assert (log.flushed_offset, log.high_watermark) == (end, end)
    assert base_offsets(log) == ALL[: end // 2]
    assert log.generation == (offset < 14)
    put(log, 20, 21, 22)
    assert base_offsets(log) == [*ALL[: end // 2], end, end + 2, end + 4]
    log.close()
    again = reopen(files, settings, clean=True).log
    assert [batch.keys[0] for batch in contents(again)][end // 2 :] == [b"020-0", b"021-0", b"022-0"]


@pytest.mark.parametrize("offset", range(0, 14, 3))
def test_a_truncation_is_durable_when_it_returns(offset: int) -> None:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    log = open_new(files)
    for number in range(7):
        put(log, number, leader_epoch=number)
    log.flush()
    truncate_to(log, offset, NOW_MS)
    files.crash(LOSE_UNSYNCED)
    end = offset // 2 * 2
    again = reopen(files, clean=False, recovery_point=log.flushed_offset).log
    assert base_offsets(again) == ALL[: end // 2]
    assert again.epochs.latest_epoch == end // 2 - 1


def test_nothing_is_truncated_at_or_beyond_the_end() -> None:
    files = SimulatedFiles()
    log = seven(files)
    before = files.operations.count
    assert not truncate_to(log, 14, NOW_MS)
    assert not truncate_to(log, 10**9, NOW_MS)
    assert files.operations.count == before
    assert log.generation == 0


def test_a_truncation_before_the_logs_start_empties_it() -> None:
    files = SimulatedFiles()
    log = seven(files)
    log.advance_high_watermark(14)
    log.advance_start(9)
    assert truncate_to(log, 3, NOW_MS)
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (3, 3, [3])
    assert log.epochs.entries == []


@pytest.mark.parametrize("offset", [3, 4, 5])
def test_a_log_never_ends_before_its_start(offset: int) -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    log.append(batch_of(0, records=6), leader_epoch=0, now_ms=NOW_MS)
    log.advance_high_watermark(6)
    log.advance_start(3)
    assert truncate_to(log, offset, NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (3, 3, 3)
    gap = open_new(SimulatedFiles(), ROOMY)
    gap.append_as_follower(batch_of(0, base_offset=5, leader_epoch=0), now_ms=NOW_MS)
    gap.advance_high_watermark(7)
    gap.advance_start(offset)
    truncate_to(gap, 5, NOW_MS)
    assert (gap.log_start_offset, gap.log_end_offset) == (offset, offset)


def test_a_negative_offset_is_rejected() -> None:
    log = seven(SimulatedFiles())
    for truncate in (truncate_to, truncate_fully):
        with pytest.raises(OffsetOutOfRange):
            truncate(log, -1, NOW_MS)
    assert base_offsets(log) == ALL


def test_a_truncation_at_a_segments_beginning_keeps_the_offset_though_compaction_left_a_gap_before_it() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0)
    log.roll(10, NOW_MS)
    put(log, 1)
    log.advance_high_watermark(12)
    truncate_to(log, 10, NOW_MS)
    assert (log.log_end_offset, log.high_watermark) == (10, 10)
    assert log.read(10, 100) is None
    put(log, 2)
    assert base_offsets(log) == [0, 10]


def test_what_follows_from_the_batches_follows_the_truncation() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    for number in range(7):
        log.append(batch_of(number, producer=9), leader_epoch=number // 2, now_ms=NOW_MS)
    truncate_to(log, 7, NOW_MS)
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 0), (1, 4)]
    assert content_of(files, f"{FOLDER}/{LEADER_EPOCH_FILE}") == b"0\n2\n0 0\n1 4\n"
    assert log.append(batch_of(2, producer=9), leader_epoch=1, now_ms=NOW_MS).is_duplicate
    assert log.append(batch_of(3, producer=9), leader_epoch=1, now_ms=NOW_MS).base_offset == 6
    assert files_of(files, 8) == []
    assert files_of(files, 12) == []


def transactions(log: PartitionLog, count: int) -> None:
    for number in range(count):
        log.append(batch_of(number, producer=1, transactional=True), leader_epoch=0, now_ms=NOW_MS)
        log.append(marker_of(1, commit=False), leader_epoch=0, now_ms=NOW_MS, from_client=False)


@pytest.mark.parametrize("offset", range(1, 18))
def test_aborts_and_open_transactions_follow_the_truncation(offset: int) -> None:
    log = open_new(SimulatedFiles())
    transactions(log, 6)  # three offsets each: 0-2, 3-5, ...
    log.advance_high_watermark(18)
    truncate_to(log, offset, NOW_MS)
    end = offset if offset % 3 != 1 else offset - 1
    assert log.log_end_offset == end
    found = log.aborted_between(0, 100)
    assert [each.last_offset for each in found] == list(range(2, end, 3))
    log.advance_high_watermark(end)
    assert log.last_stable_offset == (end if end % 3 == 0 else end - 2)


@pytest.mark.parametrize("offset", [0, 4, 5, 12, 14, 20, 1000])
def test_a_log_can_be_emptied_and_begin_anywhere(offset: int) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    for number in range(7):
        log.append(batch_of(number, producer=9, transactional=True), leader_epoch=2, now_ms=NOW_MS)
    log.flush()
    truncate_fully(log, offset, NOW_MS)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (offset, offset, offset)
    assert (bases(log), log.size, log.epochs.entries) == ([offset], 0, [])
    assert log.flushed_offset <= offset
    names = [name for name in files.list_folder(FOLDER) if name != LEADER_EPOCH_FILE]
    assert sorted(names) == [f"{offset:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")]
    # No producer is left that could be in a transaction.
    assert log.producers.producer_count == 0
    assert log.last_stable_offset == offset
    put(log, 30, leader_epoch=1)
    log.close()
    assert base_offsets(reopen(files, clean=True, log_start_offset=offset).log) == [offset]


def test_emptying_a_log_leaves_no_hole_wherever_it_stops() -> None:
    count = 0
    while True:
        files = SimulatedFiles()
        log = seven(files)
        log.flush()
        files.operations.lose_power_at(files.operations.count + count)
        try:
            truncate_fully(log, 4, NOW_MS)
        except LogFailed:
            count += 1
        else:
            break
        files.kill()
        again = reopen(files, clean=False, recovery_point=14, log_start_offset=0).log
        found = base_offsets(again)
        assert found == ALL[: len(found)], f"stopped at operation {count}"
    assert count > 10


@pytest.mark.parametrize("kind", ["truncate", "sync", "remove", "sync_folder", "rename"])
def test_a_disk_error_in_a_truncation_takes_the_log_offline(kind: str) -> None:
    files = SimulatedFiles()
    log = seven(files)
    log.flush()
    files.operations.fail(kind, errno.EIO)
    with pytest.raises(LogFailed):
        truncate_to(log, 1, NOW_MS)
    with pytest.raises(LogFailed):
        truncate_to(log, 1, NOW_MS)
    with pytest.raises(LogFailed):
        truncate_fully(log, 1, NOW_MS)
    assert log.failure is not None


def test_a_reader_keeps_what_a_truncation_takes_away_from_others() -> None:
    log = seven(SimulatedFiles())
    region = log.read(8, 10**6)
    truncate_to(log, 4, NOW_MS)
    assert region is not None
    assert [batch.base_offset for batch in served(region.read())] == [8, 10]
    with pytest.raises(OffsetOutOfRange):
        log.read(8, 10**6)


def test_a_bound_remembered_before_a_truncation_is_forgotten() -> None:
    log = open_new(SimulatedFiles(), ROOMY)
    put(log, 0, 1, 2, 3)
    assert log.read(0, 10**6, upper_offset=5) is not None
    truncate_to(log, 2, NOW_MS)
    log.append(batch_of(9, records=4, size=300), leader_epoch=0, now_ms=NOW_MS)
    put(log, 10)
    region = log.read(0, 10**6, upper_offset=5)
    assert region is not None
    assert [batch.base_offset for batch in served(region.read())] == [0]


def test_truncation_needs_no_room_for_the_log_itself() -> None:
    files = SimulatedFiles()
    log = seven(files, ROOMY)
    log.flush()
    files.capacity_bytes = 4096 * 16
    while True:
        try:
            put(log, 50, size=2000)
        except DiskFull:
            break
    truncate_to(log, 9, NOW_MS)
    put(log, 60)
    assert base_offsets(log) == [*ALL[:4], 8]
