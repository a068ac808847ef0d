"""Durable bytes that differ from what was written: found, never served, never removed automatically."""

from __future__ import annotations

import logging
from dataclasses import replace

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
    open_new,
    overwrite,
    path_of,
    put,
    reopen,
)

from penstock.log.errors import DamagedLog
from penstock.log.log_loader import Opened
from penstock.log.partition_log import PartitionLog
from penstock.log.recovery import ACCEPT_LOSS_FILE, DAMAGE_NOTE_FILE
from penstock.log.retention import enforce_retention
from penstock.log.settings import COMPACT, LogSettings
from penstock.log.truncation import cut_damage, truncate_fully, truncate_to
from penstock.records import HEADER_SIZE, scan
from penstock.testing.simulated_files import SimulatedFiles

BATCH = len(batch_of(0))
BATCHES = 5
END = BATCHES * 2


def flushed(settings: LogSettings = ROOMY, batches: int = BATCHES) -> SimulatedFiles:
    """A log of several leaders, all of it durable, that was not closed."""
    files = SimulatedFiles()
    log = open_new(files, settings)
    for number in range(batches):
        log.append(batch_of(number), leader_epoch=3 + number // 2, now_ms=NOW_MS)
    log.flush()
    log.release()
    return files


def killed(files: SimulatedFiles, settings: LogSettings = ROOMY, recovery_point: int = END) -> Opened:
    return reopen(files, settings, clean=False, recovery_point=recovery_point)


def damaged() -> tuple[SimulatedFiles, PartitionLog]:
    files = flushed()
    files.corrupt(path_of(0), 2 * BATCH + 70)
    return files, killed(files).log


def damaged_in_the_first_segment() -> tuple[SimulatedFiles, PartitionLog]:
    files = flushed(TINY)
    files.corrupt(path_of(0), 70)
    return files, killed(files, TINY, recovery_point=2).log


# --- a start finds it


@pytest.mark.parametrize("batch", [0, 2, BATCHES - 1])
@pytest.mark.parametrize("mask", [0x01, 0x10, 0x80])
def test_every_flipped_bit_of_a_durable_header_is_detected(batch: int, mask: int) -> None:
    for byte in range(HEADER_SIZE):
        files = flushed()
        files.corrupt(path_of(0), batch * BATCH + byte, mask=mask)
        before = content_of(files, path_of(0))
        log = killed(files).log
        assert log.is_cut_short, byte
        assert log.log_end_offset <= batch * 2, byte
        assert content_of(files, path_of(0)) == before, "nothing is taken away"
        assert log.epochs.entries == [entry for entry in [(3, 0), (4, 4), (5, 8)] if entry[1] < log.log_end_offset]


def test_a_flipped_offset_does_not_take_the_sound_batch_before_it_along() -> None:
    for byte in range(8):
        for batch in range(BATCHES):
            files = flushed()
            files.corrupt(path_of(0), batch * BATCH + byte, mask=0x20)
            assert killed(files).log.log_end_offset == batch * 2


def test_what_is_before_damage_is_served_and_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        _, log = damaged()
    assert f"log damaged: path={path_of(0)} position={2 * BATCH}" in caplog.text
    region = log.read(0, 10**6)
    assert region is not None
    assert [header.base_offset for header in scan(region.read()).headers] == [0, 2]
    for offset in (4, 6, END):
        with pytest.raises(DamagedLog) as caught:
            log.read(offset, 100)
        assert (caught.value.path, caught.value.position) == (path_of(0), 2 * BATCH)


def test_nothing_is_appended_over_durable_bytes() -> None:
    _, log = damaged()
    with pytest.raises(DamagedLog):
        put(log, 9)
    with pytest.raises(DamagedLog):
        log.append_as_follower(batch_of(9, base_offset=4, leader_epoch=9), now_ms=NOW_MS)


def test_later_segments_stay_until_the_damage_is_cut() -> None:
    files, log = damaged_in_the_first_segment()
    assert bases(log) == [0]
    later = [path_of(4), path_of(8)]
    assert all(files.exists(path) for path in later)
    assert enforce_retention(log, NOW_MS + 10**12) == []
    log.close()
    assert all(files.exists(path) for path in later)
    log = killed(files, TINY, recovery_point=2).log
    assert log.is_cut_short, "the next start finds the same"
    cut_damage(log, NOW_MS)
    assert not any(files.exists(path) for path in later)
    assert (log.log_end_offset, log.damage) == (0, None)
    assert content_of(files, path_of(0)) == b""


def test_a_segment_that_lost_its_durable_end_does_not_take_the_later_ones_along() -> None:
    files = flushed(TINY)
    overwrite(files, path_of(0), b"")
    log = killed(files, TINY, recovery_point=2).log
    assert log.is_cut_short
    assert log.log_end_offset == 0
    assert files.exists(path_of(4))
    cut_damage(log, NOW_MS)
    assert not files.exists(path_of(4))
    put(log, 9, leader_epoch=9)
    assert base_offsets(log) == [0]


def test_in_a_compacted_log_a_gap_over_the_recovery_point_is_not_damage() -> None:
    compacted = replace(ROOMY, cleanup_policy=frozenset({COMPACT}))
    for settings, is_newest, is_damaged in ((ROOMY, False, True), (compacted, True, True), (compacted, False, False)):
        files = SimulatedFiles()
        log = open_new(files, settings)
        for base_offset in (0, 6):
            log.append_as_follower(batch_of(1, base_offset=base_offset, leader_epoch=0), now_ms=NOW_MS)
        if not is_newest:
            log.roll(8, NOW_MS)
        log.flush()
        log.release()
        log = killed(files, settings, recovery_point=4).log
        assert log.is_cut_short == is_damaged
        assert log.log_end_offset == (2 if is_damaged else 8)


def test_a_flipped_offset_is_found_in_a_compacted_topic_too() -> None:
    compacted = replace(ROOMY, cleanup_policy=frozenset({COMPACT}))
    for batch in range(BATCHES):
        files = flushed(compacted)
        files.corrupt(path_of(0), batch * BATCH + 4, mask=0x08)
        log = killed(files, compacted).log
        assert log.is_cut_short
        assert log.log_end_offset == batch * 2


def test_a_torn_end_that_was_not_durable_is_cut_as_ever() -> None:
    files = flushed()
    data = content_of(files, path_of(0))
    overwrite(files, path_of(0), data + bytes(batch_of(7, base_offset=END, leader_epoch=5))[:-9])
    log = killed(files).log
    assert log.damage is None
    assert content_of(files, path_of(0)) == data
    put(log, 9, leader_epoch=5)


def test_a_log_that_lost_its_end_continues_and_reports_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = flushed()
    overwrite(files, path_of(0), content_of(files, path_of(0))[: 3 * BATCH])
    with caplog.at_level(logging.ERROR):
        log = killed(files).log
    assert "ends at offset 6, but offsets up to 10 were durable" in caplog.text
    assert not log.is_cut_short
    log = killed(files, recovery_point=6).log
    assert log.damage is not None, "although the checkpoint has been lowered since"
    log.forget_damage()
    assert killed(files, recovery_point=6).log.damage is None


def test_the_end_of_a_segment_damaged_after_a_clean_stop_is_kept() -> None:
    files = SimulatedFiles()
    log = open_new(files, ROOMY)
    put(log, 0, 1, 2)
    log.close()
    data = bytearray(content_of(files, path_of(0)))
    data[2 * BATCH + 16] ^= 1
    overwrite(files, path_of(0), bytes(data))
    log = reopen(files, ROOMY, clean=True).log
    assert log.is_cut_short
    assert log.log_end_offset == 4
    assert content_of(files, path_of(0)) == bytes(data)


# --- what may be done about it


def test_only_reported_damage_is_cut() -> None:
    files, log = damaged()
    before = content_of(files, path_of(0))
    for cut in (lambda: truncate_to(log, 4, NOW_MS), lambda: truncate_fully(log, 0, NOW_MS)):
        with pytest.raises(DamagedLog):
            cut()
    assert content_of(files, path_of(0)) == before
    assert log.damage is not None
    log.damage.is_reported = True
    assert not truncate_to(log, 4, NOW_MS)
    assert content_of(files, path_of(0)) == before[: 2 * BATCH]
    log.append_as_follower(batch_of(2, base_offset=4, leader_epoch=4), now_ms=NOW_MS)
    assert base_offsets(log) == [0, 2, 4]


def test_a_log_whose_leader_begins_behind_the_damage_starts_over() -> None:
    files, log = damaged_in_the_first_segment()
    assert log.damage is not None
    log.damage.is_reported = True
    truncate_fully(log, 50, NOW_MS)
    assert bases(log) == [50]
    put(log, 9, leader_epoch=9)
    assert [name for name in files.list_folder(FOLDER) if name.endswith(".log")] == [f"{50:020d}.log"]


def test_the_operator_of_a_single_broker_may_accept_the_loss() -> None:
    files, log = damaged_in_the_first_segment()
    log.release()
    files.open(f"{FOLDER}/{ACCEPT_LOSS_FILE}", create=True).close()
    log = killed(files, TINY, recovery_point=2).log
    assert (log.log_end_offset, log.damage) == (0, None)
    assert not files.exists(f"{FOLDER}/{ACCEPT_LOSS_FILE}"), "it was said once"
    put(log, 9, leader_epoch=9)
    assert base_offsets(log) == [0]


# --- a reader finds it


def rotten() -> tuple[SimulatedFiles, PartitionLog]:
    """Damaged in a sealed segment, below all that a start looks at."""
    files = flushed(TINY)
    files.corrupt(path_of(0), BATCH + 70)
    return files, killed(files, TINY).log


def test_what_a_reader_finds_is_known_to_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    files, log = rotten()
    assert log.damage is None
    with pytest.raises(DamagedLog):
        log.read(2, 100)
    with pytest.raises(DamagedLog):
        log.read(2, 100)
    assert caplog.text.count("to be repaired from another replica") == 1
    assert log.read(4, 100) is not None, "the others continue"
    put(log, 9, leader_epoch=9)
    log.close()
    log = reopen(files, TINY, clean=True).log
    assert log.damage is not None
    assert (log.damage.base_offset, log.damage.position, log.is_cut_short) == (0, BATCH, False)
    put(log, 10, leader_epoch=9)
    cut_damage(log, NOW_MS)
    assert log.log_end_offset == 2
    assert not files.exists(f"{FOLDER}/{DAMAGE_NOTE_FILE}")


def test_an_epoch_that_another_leader_wrote_in_is_damage_to_a_reader() -> None:
    files = flushed(TINY)
    files.corrupt(path_of(0), BATCH + 15, mask=0x04)
    log = killed(files, TINY).log
    with pytest.raises(DamagedLog, match="was not written in epoch 7"):
        log.read(2, 100)


def test_damage_that_retention_deleted_is_no_longer_reported() -> None:
    files, log = rotten()
    with pytest.raises(DamagedLog):
        log.read(2, 100)
    log.advance_high_watermark(END)
    assert enforce_retention(log, NOW_MS + 10**12)
    cut_damage(log, NOW_MS)
    assert log.damage is None
    assert log.log_end_offset == END
    assert not files.exists(f"{FOLDER}/{DAMAGE_NOTE_FILE}")


def test_a_damage_note_of_a_missing_segment_or_unreadable_note_is_ignored() -> None:
    for content in (b'{"file": "00000000000000000099.log", "position": 3, "reason": ""}', b"\0\1", b'{"file": "x"}'):
        files = flushed()
        overwrite(files, f"{FOLDER}/{DAMAGE_NOTE_FILE}", content)
        assert killed(files).log.damage is None
