"""Checkpoints of a log directory: written when something changed, and damage answered by safe assumptions."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest
from tests.log.directory_stories import (
    NOW,
    SMALL,
    TOPIC_ID,
    numbered,
    open_directory,
    put,
    read_file,
    values_in,
    write_file,
)
from tests.log.log_stories import overwrite

from penstock.log.checkpoints import read_offsets
from penstock.log.errors import DiskFull, OffsetOutOfRange
from penstock.log.log_dirs.log_directory import LogDirectory
from penstock.log.retention import enforce_retention
from penstock.records import encode_batch
from penstock.testing.simulated_disk import KEEP_SIZES_ONLY, KEEP_UNSYNCED
from penstock.testing.simulated_files import SimulatedFiles

T0, T1 = ("t", 0), ("t", 1)
RECOVERY = "/data/recovery-point-offset-checkpoint"
START = "/data/log-start-offset-checkpoint"
WATERMARK = "/data/replication-offset-checkpoint"
CLEANER = "/data/cleaner-offset-checkpoint"


def replicated(files: SimulatedFiles, count: int = 40) -> LogDirectory:
    """A partition of `count` records, all durable, replicated and checkpointed."""
    directory = open_directory(files)
    log = directory.create(T0, TOPIC_ID, SMALL, NOW)
    put(log, *numbered(count))
    log.flush()
    log.advance_high_watermark(count)
    directory.checkpoint()
    return directory


def test_a_checkpoint_says_where_the_logs_are() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    log = directory.get(T0).log
    put(log, b"not flushed")
    put(directory.create(T1, TOPIC_ID, SMALL, NOW), b"x")
    directory.checkpoint()
    assert read_offsets(files, RECOVERY) == {T0: 40, T1: 0}
    assert read_offsets(files, WATERMARK) == {T0: 40, T1: 0}
    assert read_offsets(files, START) == {}
    assert log.checkpointed_offset == 40
    log.flush()
    assert log.checkpointed_offset == 40
    directory.checkpoint()
    assert log.checkpointed_offset == 41


def test_only_what_changed_is_written() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    before = files.operations.count
    assert directory.checkpoint() == 0
    assert files.operations.count == before
    directory.get(T0).log.set_high_watermark(39)
    assert directory.checkpoint() == 1


def test_a_restart_continues_from_the_checkpoints() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.set_cleaner_offset(T0, 15)
    files.crash()
    directory = open_directory(files)
    log = directory.get(T0).log
    assert (log.flushed_offset, log.checkpointed_offset, log.high_watermark) == (40, 40, 40)
    assert directory.cleaner_offset(T0) == 15
    assert directory.cleaner_offset(T1) is None


def test_a_new_folder_has_its_checkpoints_before_its_first_partition() -> None:
    """Without, a crash before the first checkpoint would look like a lost recovery point."""
    files = SimulatedFiles()
    put(open_directory(files).create(T0, TOPIC_ID, SMALL, NOW), b"x")
    files.crash()
    assert open_directory(files, load=False).checkpoints.recovery_point(T0) == 0


def test_checkpoints_of_deleted_partitions_go() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.set_cleaner_offset(T0, 15)
    directory.delete(T0, NOW)
    directory.checkpoint()
    for path in (RECOVERY, START, WATERMARK, CLEANER):
        assert read_offsets(files, path) == {}


# --- deleting records


def test_deleted_records_do_not_come_back_after_a_power_loss() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    assert directory.advance_start(T0, 33)
    files.crash()
    log = open_directory(files).get(T0).log
    assert log.log_start_offset == 33
    assert values_in(log) == numbered(40)[33:]


def test_retention_then_a_power_loss_does_not_bring_deleted_records_back() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.advance_start(T0, 33)
    assert enforce_retention(directory.get(T0).log, NOW)
    directory.checkpoint()
    files.crash()  # the names of the removed segments are back
    assert open_directory(files).get(T0).log.log_start_offset == 33


def test_records_are_deleted_only_below_the_high_watermark_and_once() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    put(directory.get(T0).log, b"not replicated")
    with pytest.raises(OffsetOutOfRange):
        directory.advance_start(T0, 41)
    assert directory.advance_start(T0, 10)
    before = files.operations.count
    assert not directory.advance_start(T0, 10)
    assert not directory.advance_start(T0, 9)
    assert files.operations.count == before


def test_on_a_full_disk_records_are_not_deleted_halfway() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    files.operations.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        directory.advance_start(T0, 10)
    assert directory.failure is None
    assert directory.get(T0).log.log_start_offset == 0
    assert directory.advance_start(T0, 10)


# --- truncation


def test_what_follows_a_truncation_is_checked_after_a_power_loss() -> None:
    """With the old recovery point, the torn batches after the cut would pass for durable ones."""
    files = SimulatedFiles()
    directory = replicated(files)
    assert directory.truncate_to(T0, 20, NOW)
    log = directory.get(T0).log
    put(log, *[b"other" + value for value in numbered(15)])
    assert log.log_end_offset == 35
    files.crash(KEEP_SIZES_ONLY)
    log = open_directory(files).get(T0).log
    assert values_in(log) == numbered(40)[:20]


def test_no_checkpoint_claims_more_than_a_truncation_leaves() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.set_cleaner_offset(T0, 30)
    directory.truncate_to(T0, 20, NOW)
    for path in (RECOVERY, WATERMARK, CLEANER):
        assert read_offsets(files, path)[T0] <= 20
    before = files.operations.count
    assert not directory.truncate_to(T0, 20, NOW)
    assert files.operations.count == before


def test_a_cut_inside_a_batch_takes_the_batch_and_the_claim() -> None:
    files = SimulatedFiles()
    directory = open_directory(files)
    log = directory.create(T0, TOPIC_ID, SMALL, NOW)
    for _ in range(3):
        log.append(encode_batch([(NOW, None, b"v", ())] * 10), leader_epoch=0, now_ms=NOW)
    log.flush()
    directory.checkpoint()
    directory.truncate_to(T0, 25, NOW)
    assert log.log_end_offset == 20
    assert read_offsets(files, RECOVERY)[T0] <= 20


def test_a_log_emptied_to_an_earlier_start_is_not_emptied_again_by_the_old_one() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.advance_start(T0, 35)
    directory.truncate_fully(T0, 5, NOW)
    log = directory.get(T0).log
    put(log, *numbered(3))
    log.flush()
    files.crash()
    log = open_directory(files).get(T0).log
    assert (log.log_start_offset, log.log_end_offset) == (5, 8)
    assert values_in(log) == numbered(3)


def test_a_truncation_below_the_start_empties_the_log() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.advance_start(T0, 35)
    assert directory.truncate_to(T0, 10, NOW)
    log = directory.get(T0).log
    put(log, *numbered(2))
    log.flush()
    files.crash()
    log = open_directory(files).get(T0).log
    assert (log.log_start_offset, values_in(log)) == (10, numbered(2))


def test_a_log_emptied_to_a_later_start_begins_there() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.truncate_fully(T0, 1000, NOW)
    log = directory.get(T0).log
    put(log, b"x")
    log.flush()
    files.crash()
    log = open_directory(files).get(T0).log
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1001, 1000)


def test_on_a_full_disk_a_truncation_does_not_begin() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    files.operations.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        directory.truncate_to(T0, 20, NOW)
    assert directory.get(T0).log.log_end_offset == 40
    assert directory.truncate_to(T0, 20, NOW)


def test_a_log_that_lost_durable_records_does_not_keep_their_recovery_point() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.close()
    files.remove("/data/.kafka_cleanshutdown")
    newest = max(name for name in files.list_folder("/data/t-0") if name.endswith(".log"))
    overwrite(files, f"/data/t-0/{newest}", b"")
    directory = open_directory(files)
    end = directory.get(T0).log.log_end_offset
    assert end < 40
    assert read_offsets(files, RECOVERY)[T0] == end
    put(directory.get(T0).log, *numbered(40))
    files.crash(KEEP_SIZES_ONLY)
    assert values_in(open_directory(files).get(T0).log) == numbered(40)[:end]


def test_a_log_that_is_damaged_keeps_the_recovery_point_that_shows_it() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.close()
    files.remove("/data/.kafka_cleanshutdown")
    newest = max(name for name in files.list_folder("/data/t-0") if name.endswith(".log"))
    files.corrupt(f"/data/t-0/{newest}", 0, length=20)
    for _ in range(2):
        directory = open_directory(files)
        assert directory.get(T0).log.is_cut_short
        assert read_offsets(files, RECOVERY)[T0] == 40
        assert not directory.close(), "a clean stop would let the next start believe the files"


def test_a_batch_that_begins_in_a_lost_sector_is_damaged() -> None:
    """Its base offset is not under its checksum: believed, it would make the log jump ahead by quintillions."""
    files = SimulatedFiles()
    directory = open_directory(files)
    log = directory.create(T0, TOPIC_ID, SMALL, NOW)
    put(log, *numbered(4))
    size = log.size // 4
    files.kill()
    files.corrupt("/data/t-0/00000000000000000000.log", 3 * size, length=2, mask=0x39)
    log = open_directory(files).get(T0).log
    assert log.log_end_offset == 3
    assert values_in(log) == numbered(3)


# --- damaged checkpoints


DAMAGES: list[bytes] = [b"\0" * 30, b"0\n5\nt 0 40\n", b"0\n1\nt 0 x\n", b"7\n0\n", b"\xff\xfe", b"0\n1\nt 0 40"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_sound_recovery_point_everything_is_checked(damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFiles()
    replicated(files)
    files.kill()
    write_file(files, RECOVERY, damage)
    with caplog.at_level(logging.WARNING):
        directory = open_directory(files, load=False)
        step = next(directory.loading(lambda topic: SMALL, NOW))
    assert "all segments are checked" in caplog.text
    assert step.opened is not None
    assert step.opened.walked_bytes == step.opened.log.size
    assert values_in(directory.get(T0).log) == numbered(40)


@pytest.mark.parametrize(
    "loss", [lambda files: files.remove(RECOVERY), lambda files: write_file(files, RECOVERY, b"?")]
)
def test_gaps_of_compaction_survive_a_lost_recovery_point_and_the_crash_after(
    loss: Callable[[SimulatedFiles], None],
) -> None:
    """As 0, an unknown recovery point would make the second start take the gap for a lost segment."""
    files = SimulatedFiles()
    replicated(files)
    files.kill()
    segments = sorted(name for name in files.list_folder("/data/t-0") if name.endswith(".log"))
    files.remove(f"/data/t-0/{segments[1]}")  # as if compaction had left nothing of it
    loss(files)
    end = 40
    for _ in range(3):
        directory = open_directory(files)
        assert directory.get(T0).log.log_end_offset == end
        files.kill()


def test_a_lost_recovery_point_stays_unknown_while_a_partition_cannot_be_read() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    put(directory.create(T1, TOPIC_ID, SMALL, NOW), b"x")
    files.kill()
    write_file(files, RECOVERY, b"?")
    files.rename("/data/t-1/00000000000000000000.log", "/data/kept")
    files.make_folder("/data/t-1/00000000000000000000.log")
    directory = open_directory(files)
    assert list(directory.damaged) == [T1]
    put(directory.get(T0).log, b"y")
    directory.get(T0).log.flush()
    directory.checkpoint()
    directory.close()
    assert read_file(files, RECOVERY) == b"?"
    assert open_directory(files).checkpoints.recovery_point(T1) is None


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    ("path", "assumption"),
    [(START, "may be visible"), (WATERMARK, "start at the log start offsets"), (CLEANER, "starts over")],
)
def test_damage_of_another_checkpoint_costs_no_records(
    path: str, assumption: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    directory.advance_start(T0, 5)
    directory.set_cleaner_offset(T0, 20)
    files.kill()
    write_file(files, path, damage)
    with caplog.at_level(logging.WARNING):
        directory = open_directory(files)
    assert assumption in caplog.text
    log = directory.get(T0).log
    assert log.log_end_offset == 40
    assert log.log_start_offset == (0 if path == START else 5)
    assert log.high_watermark == (5 if path == WATERMARK else 40)
    assert directory.cleaner_offset(T0) == (None if path == CLEANER else 20)
    directory.close()
    assert read_offsets(files, path) is not None


def test_a_high_watermark_beyond_the_log_is_cut_to_it() -> None:
    files = SimulatedFiles()
    replicated(files)
    files.kill()
    write_file(files, WATERMARK, b"0\n1\nt 0 5000\n")
    assert open_directory(files).get(T0).log.high_watermark == 40


def test_checkpoints_on_a_full_disk_stay_as_they_were_and_are_tried_again() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    log = directory.get(T0).log
    put(log, b"one more")
    log.flush()
    before = read_file(files, RECOVERY)
    files.operations.fail("write", errno.ENOSPC, path_ending=".tmp")
    with pytest.raises(DiskFull):
        directory.checkpoint()
    assert directory.failure is None
    assert read_file(files, RECOVERY) == before
    assert log.checkpointed_offset == 40
    assert not files.exists(RECOVERY + ".tmp")
    assert directory.checkpoint() == 1
    assert log.checkpointed_offset == 41
    assert directory.close()


def test_a_checkpoint_whose_fate_is_not_known_is_written_again() -> None:
    files = SimulatedFiles()
    directory = replicated(files)
    log = directory.get(T0).log
    log.set_high_watermark(30)
    files.operations.fail("sync_folder", errno.ENOSPC)
    with pytest.raises(DiskFull):
        directory.checkpoint()
    log.set_high_watermark(40)  # as the rows that were written before
    assert directory.checkpoint() == 1
    files.crash(KEEP_UNSYNCED)
    assert open_directory(files).get(T0).log.high_watermark == 40
