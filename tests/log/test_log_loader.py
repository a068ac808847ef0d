from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    open_new,
    overwrite,
    path_of,
    put,
    reopen,
    stopped,
)

from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.errors import DamagedLog
from penstock.log.partition_log import PartitionLog
from penstock.log.retention import enforce_retention
from penstock.log.segment import MANIFEST_NAME
from penstock.log.settings import LogSettings
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_disk import LOSE_UNSYNCED
from penstock.testing.simulated_files import SimulatedFile, SimulatedFiles

BATCH = len(batch_of())
ALL = [0, 2, 4, 6, 8, 10, 12]


def killed(settings: LogSettings = TINY, *, batches: int = 7) -> SimulatedFiles:
    """A folder with a log of this many batches whose process was killed."""
    files = SimulatedFiles()
    put(open_new(files, settings), *range(batches))
    files.kill()
    return files


def append_raw(files: SimulatedFiles, base_offset: int, data: bytes) -> None:
    overwrite(files, path_of(base_offset), content_of(files, path_of(base_offset)) + data)


# --- a new log


def test_a_folder_is_made_if_there_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "t-0"
    log = open_new(PosixFiles(), folder=str(folder))
    assert (log.log_start_offset, log.log_end_offset, log.size, log.segment_count) == (0, 0, 0, 1)
    assert sorted(entry.name for entry in folder.iterdir()) == [
        f"{0:020d}{suffix}" for suffix in (".index", ".log", ".timeindex")
    ]
    log.close()


def test_a_new_log_may_start_anywhere() -> None:
    files = SimulatedFiles()
    log = reopen(files, clean=False, log_start_offset=1000).log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
    put(log, 0)
    assert base_offsets(log) == [1000]


# --- after a clean stop


@pytest.mark.parametrize("manifest", [True, False])
def test_after_a_clean_stop_everything_is_as_it_was(manifest: bool) -> None:
    files = stopped(leader_epoch=3)
    if not manifest:
        files.remove(f"{FOLDER}/{MANIFEST_NAME}")
    opened = reopen(files, clean=True)
    log = opened.log
    assert (opened.was_clean, opened.damages, opened.walked_bytes) == (True, [], 0)
    assert bases(log) == [0, 4, 8, 12]
    assert base_offsets(log) == ALL
    assert (log.size, log.flushed_offset, log.log_end_offset) == (7 * BATCH, 14, 14)
    assert [tuple(entry) for entry in log.epochs.entries] == [(3, 0)]
    put(log, 7, leader_epoch=3)
    assert base_offsets(log) == [*ALL, 14]


def test_opening_after_a_clean_stop_lists_no_folder_and_touches_only_the_newest_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = stopped(batches=60)
    listed: list[str] = []
    opened: list[str] = []
    list_folder, open_file = files.list_folder, files.open

    def watched_list(path: str) -> list[str]:
        listed.append(path)
        return list_folder(path)

    def watched_open(path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        opened.append(path)
        return open_file(path, create=create, writable=writable)

    monkeypatch.setattr(files, "list_folder", watched_list)
    monkeypatch.setattr(files, "open", watched_open)
    log = reopen(files, clean=True).log
    assert log.segment_count == 30
    assert listed == []
    assert {path.rpartition("/")[2] for path in opened} == {
        MANIFEST_NAME,
        LEADER_EPOCH_FILE,
        f"{120:020d}.snapshot",
        *(f"{116:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")),
    }


def make_short(data: bytes) -> bytes:
    return data[: len(data) // 2 + 1]


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "empty": lambda data: b"",
    "torn": make_short,
    "one byte short": lambda data: data[:-1],
    "too long": lambda data: data + data,
    "zeros": lambda data: bytes(len(data)),
    "followed by zeros": lambda data: data + bytes(24),
    "nonsense": lambda data: b"\x7f" * len(data),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("base_offset", [0, 12, 20])
def test_no_damaged_index_costs_a_record(clean: bool, suffix: str, damage: str, base_offset: int) -> None:
    settings = replace(TINY, segment_bytes=4 * BATCH)
    files = stopped(settings, batches=12)
    path = path_of(base_offset // 8 * 8, suffix)
    change = DAMAGES[damage]
    if change is None:
        files.remove(path)
    else:
        overwrite(files, path, change(content_of(files, path)))
    opened = reopen(files, settings, clean=clean)
    assert opened.damages == []
    log = opened.log
    assert log.log_end_offset == 24
    assert base_offsets(log) == list(range(0, 24, 2))
    for offset in range(24):
        region = log.read(offset, 1)
        assert region is not None
        assert region.position == offset // 2 * BATCH % (4 * BATCH)
    assert list(log.stamped_table().stamps) == [NOW_MS + 3, NOW_MS + 7]
    assert log.active.max_timestamp == NOW_MS + 11


def test_a_stale_manifest_is_ignored() -> None:
    files = stopped()
    manifest = content_of(files, f"{FOLDER}/{MANIFEST_NAME}")
    log = reopen(files, clean=True).log
    put(log, 7, 8, 9)
    log.close()
    overwrite(files, f"{FOLDER}/{MANIFEST_NAME}", manifest)
    assert base_offsets(reopen(files, clean=True).log) == [*ALL, 14, 16, 18]


def test_a_damaged_manifest_is_ignored() -> None:
    for damage in (b"", b"PSM1", bytes(100)):
        files = stopped()
        overwrite(files, f"{FOLDER}/{MANIFEST_NAME}", damage)
        assert base_offsets(reopen(files, clean=True).log) == ALL


def test_removed_or_restored_segments_are_detected() -> None:
    files = stopped()
    kept = {suffix: content_of(files, path_of(0, suffix)) for suffix in (".log", ".index", ".timeindex")}
    for suffix in kept:
        files.remove(path_of(0, suffix))
    log = reopen(files, clean=True).log
    assert (log.log_start_offset, base_offsets(log)) == (4, ALL[2:])
    log.close()
    for suffix, data in kept.items():
        overwrite(files, path_of(0, suffix), data)
    log = reopen(files, clean=True).log
    assert (log.log_start_offset, base_offsets(log)) == (0, ALL)


def test_deleted_files_left_at_a_clean_stop_are_removed_at_the_next_start() -> None:
    files = SimulatedFiles()
    settings = replace(TINY, retention_ms=5)
    log = open_new(files, settings)
    put(log, *range(7))
    log.advance_high_watermark(14)
    deleted = enforce_retention(log, NOW_MS + 10)
    log.close()
    assert all(files.exists(path) for path in deleted)
    log = reopen(files, settings, clean=True).log
    assert not any(files.exists(path) for path in deleted)
    log.close()
    assert files.exists(f"{FOLDER}/{MANIFEST_NAME}"), "and then there is nothing to look for any more"


def test_an_active_segment_damaged_after_a_clean_stop_is_truncated_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = stopped()
    append_raw(files, 12, b"nonsense")
    with caplog.at_level(logging.WARNING):
        opened = reopen(files, clean=True)
    assert [(damage.position, damage.size, damage.was_synced) for damage in opened.damages] == [(BATCH, 8, True)]
    assert "were_durable=True" in caplog.text
    assert opened.walked_bytes == BATCH
    assert base_offsets(opened.log) == ALL


def test_an_active_segment_truncated_after_a_clean_stop_is_reported() -> None:
    for length in (0, BATCH):
        files = stopped(ROOMY, batches=3)
        data = content_of(files, path_of(0))
        overwrite(files, path_of(0), data[:length])
        opened = reopen(files, ROOMY, clean=True)
        assert [damage.was_synced for damage in opened.damages] == [True]
        assert opened.log.log_end_offset == length // BATCH * 2
        assert base_offsets(opened.log) == [0, 2, 4][: length // BATCH]
        put(opened.log, 5)
        assert base_offsets(opened.log)[-1] == length // BATCH * 2


# --- after an unclean stop


def test_after_a_kill_nothing_that_was_appended_is_missing() -> None:
    opened = reopen(killed(), clean=False)
    assert (opened.was_clean, opened.damages, opened.removed_segments) == (False, [], 0)
    assert opened.walked_bytes == 7 * BATCH
    log = opened.log
    assert (bases(log), base_offsets(log)) == ([0, 4, 8, 12], ALL)
    assert log.flushed_offset == 0


def test_only_what_was_not_known_to_be_durable_is_walked() -> None:
    for recovery_point, walked in ((0, 7), (3, 7), (4, 5), (11, 3), (12, 1), (14, 1)):
        opened = reopen(killed(), clean=False, recovery_point=recovery_point)
        assert opened.walked_bytes == walked * BATCH, recovery_point
        assert opened.log.flushed_offset == recovery_point
        assert base_offsets(opened.log) == ALL


def test_a_recovery_point_beyond_the_log_is_taken_back() -> None:
    log = reopen(killed(), clean=False, recovery_point=500).log
    assert (log.log_end_offset, log.flushed_offset) == (14, 14)


TAILS = {
    "torn batch": bytes(batch_of(7, base_offset=14, leader_epoch=0))[:-9],
    "torn header": bytes(batch_of(7, base_offset=14, leader_epoch=0))[:20],
    "zeros": bytes(5000),
    "nonsense": bytes(range(1, 255)) * 9,
    "a batch of the past": bytes(batch_of(7, base_offset=3, leader_epoch=0)),
    "a lying length": bytes(8) + b"\x7f\xff\xff\xff" + bytes(5) + bytes(1000),
    "magic 1": bytes(16) + b"\1" + bytes(500),
}


@pytest.mark.parametrize("tail", TAILS)
def test_the_log_ends_before_a_bad_tail(tail: str) -> None:
    files = killed()
    append_raw(files, 12, TAILS[tail])
    opened = reopen(files, clean=False)
    assert [damage.position for damage in opened.damages] == [BATCH]
    assert base_offsets(opened.log) == ALL
    put(opened.log, 7)
    opened.log.close()
    assert base_offsets(reopen(files, clean=True).log) == [*ALL, 14]


def test_nonsense_inside_the_file_ends_the_log_there_and_removes_what_follows() -> None:
    files = killed(replace(TINY, segment_bytes=4 * BATCH), batches=12)
    settings = replace(TINY, segment_bytes=4 * BATCH)
    data = bytearray(content_of(files, path_of(8)))
    data[BATCH + 50 : BATCH + 450] = bytes(400)
    overwrite(files, path_of(8), bytes(data))
    opened = reopen(files, settings, clean=False)
    assert opened.removed_segments == 1
    assert [(damage.path, damage.position) for damage in opened.damages] == [(path_of(8), BATCH)]
    assert (bases(opened.log), base_offsets(opened.log)) == ([0, 8], [0, 2, 4, 6, 8])
    assert not any(f"{16:020d}" in name for name in files.list_folder(FOLDER))
    put(opened.log, 20)
    assert base_offsets(opened.log)[-1] == 10


def test_damage_below_the_recovery_point_is_left_for_readers_to_find() -> None:
    files = killed()
    files.corrupt(path_of(4), 100)
    opened = reopen(files, clean=False, recovery_point=14)
    assert opened.damages == []
    log = opened.log
    assert log.log_end_offset == 14
    with pytest.raises(DamagedLog):
        log.read(4, 100)
    region = log.read(8, 10**6)
    assert region is not None


def test_damage_to_what_had_been_durable_is_an_error_in_the_journal(caplog: pytest.LogCaptureFixture) -> None:
    files = killed(ROOMY, batches=5)
    files.corrupt(path_of(0), 2 * BATCH + 16)
    with caplog.at_level(logging.ERROR):
        opened = reopen(files, ROOMY, clean=False, recovery_point=8)
    assert [damage.was_synced for damage in opened.damages] == [True]
    assert "were_durable=True" in caplog.text
    assert (opened.log.log_end_offset, opened.log.flushed_offset) == (4, 4)


def test_a_missing_middle_segment_ends_the_log_if_it_was_not_durable() -> None:
    files = killed()
    files.remove(path_of(4))
    opened = reopen(files, clean=False, recovery_point=2)
    assert opened.removed_segments == 2
    assert (bases(opened.log), base_offsets(opened.log)) == ([0], [0, 2])
    assert not files.exists(path_of(4, ".index")), "an index without a log is of no use"


@pytest.mark.parametrize("recovery_point", [14, None])
def test_a_gap_between_durable_segments_is_compactions(recovery_point: int | None) -> None:
    files = killed()
    files.remove(path_of(4))
    opened = reopen(files, clean=False, recovery_point=recovery_point)
    assert opened.removed_segments == 0
    assert base_offsets(opened.log) == [0, 2, 8, 10, 12]


def test_segments_that_overlap_end_the_log_at_the_first() -> None:
    files = killed()
    append_raw(files, 0, bytes(batch_of(9, base_offset=4, leader_epoch=0)))
    opened = reopen(files, clean=False)
    assert (bases(opened.log), base_offsets(opened.log)) == ([0], [0, 2, 4])


def test_an_empty_newest_segment_is_not_damage() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    put(log, 0)
    log.roll(2, NOW_MS)
    files.kill()
    opened = reopen(files, clean=False)
    assert (opened.damages, opened.removed_segments, bases(opened.log)) == ([], 0, [0, 2])


@pytest.mark.parametrize("clean", [True, False])
def test_files_of_others_stay_and_do_not_matter(clean: bool) -> None:
    files = stopped()
    foreign = [
        "notes.txt",
        "123.log",
        f"{7:020d}.log.bak",
        f"{7:021d}.log",
        "partition.metadata",
        f"{7:020d}.snapshot.x",
    ]
    for name in foreign:
        overwrite(files, f"{FOLDER}/{name}", b"mine")
    files.make_folder(f"{FOLDER}/{99:020d}")
    opened = reopen(files, clean=clean)
    assert base_offsets(opened.log) == ALL
    put(opened.log, 7)
    opened.log.close()
    assert set(foreign) <= set(files.list_folder(FOLDER))
    assert files.is_folder(f"{FOLDER}/{99:020d}")


# --- starts and epochs


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_before_its_start_is_emptied(clean: bool) -> None:
    files = stopped()
    opened = reopen(files, clean=clean, log_start_offset=50)
    log = opened.log
    assert (log.log_start_offset, log.log_end_offset, bases(log)) == (50, 50, [50])
    put(log, 0)
    assert base_offsets(log) == [50]
    assert not [name for name in files.list_folder(FOLDER) if name.startswith("0000000000000000000")]


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_starts_where_its_checkpoint_says(clean: bool) -> None:
    log = reopen(stopped(), clean=clean, log_start_offset=5).log
    assert (log.log_start_offset, log.high_watermark) == (5, 5)
    assert base_offsets(log) == [4, *ALL[3:]]
    assert log.epochs.entries[0].start_offset == 5


def three_leaders() -> tuple[SimulatedFiles, PartitionLog]:
    files = SimulatedFiles()
    log = open_new(files)
    for number, epoch in enumerate([1, 1, 1, 4, 4, 6, 6]):
        put(log, number, leader_epoch=epoch)
    return files, log


EPOCHS = [(1, 0), (4, 6), (6, 10)]


@pytest.mark.parametrize("content", [None, b"", b"0\n9\n", b"nonsense", bytes(50), b"0\n1\n7 -3\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_checkpoint_of_epochs_is_rebuilt_from_the_batches(content: bytes | None, clean: bool) -> None:
    files, log = three_leaders()
    log.close()
    path = f"{FOLDER}/{LEADER_EPOCH_FILE}"
    if content is None:
        files.remove(path)
    else:
        overwrite(files, path, content)
    log = reopen(files, clean=clean, recovery_point=14).log
    assert [tuple(entry) for entry in log.epochs.entries] == EPOCHS
    log.append(batch_of(7), leader_epoch=6, now_ms=NOW_MS)
    log.flush()
    assert content_of(files, path) == b"0\n3\n1 0\n4 6\n6 10\n"


@pytest.mark.parametrize("flushed_after", [0, 2, 5, 7])
def test_epochs_that_were_never_saved_begin_where_their_batches_do(flushed_after: int) -> None:
    files = SimulatedFiles()
    log = open_new(files)
    for number, epoch in enumerate([1, 1, 1, 4, 4, 6, 6]):
        if number == flushed_after:
            log.flush()
        put(log, number, leader_epoch=epoch)
    files.kill()
    # The snapshots of later rolls are all there, but they hold no epochs.
    again = reopen(files, clean=False, recovery_point=log.flushed_offset).log
    assert [tuple(entry) for entry in again.epochs.entries] == EPOCHS


def test_epochs_of_batches_that_were_lost_are_forgotten() -> None:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    files.sync_folder("/data")
    files.sync_folder("/")
    log = open_new(files)
    put(log, 0, leader_epoch=1)
    log.flush()
    put(log, 1, leader_epoch=2)
    log.epochs.save(files, f"{FOLDER}/{LEADER_EPOCH_FILE}")
    files.crash(LOSE_UNSYNCED)
    again = reopen(files, clean=False, recovery_point=2).log
    assert again.log_end_offset == 2
    assert [tuple(entry) for entry in again.epochs.entries] == [(1, 0)]


def test_a_log_goes_through_many_stops_of_both_kinds() -> None:
    files = SimulatedFiles()
    log = open_new(files)
    for number in range(30):
        put(log, number)
        if number % 3 == 0:
            log.close()
            log = reopen(files, clean=True).log
        elif number % 4 == 0:
            files.kill()
            log = reopen(files, clean=False, recovery_point=number).log
    assert [batch.keys[0] for batch in contents(log)] == [b"%03d-0" % number for number in range(30)]
    snapshots = [name for name in files.list_folder(FOLDER) if name.endswith(".snapshot")]
    assert len(snapshots) <= log.segment_count + 1, "each stop leaves one, and takes away the last stop's"
