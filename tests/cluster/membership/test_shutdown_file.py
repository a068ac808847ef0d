"""What the data folders tell of a broker's former life."""

from __future__ import annotations

from pathlib import Path

from penstock.cluster.membership.shutdown import (
    CLEAN_SHUTDOWN_FILE,
    clear_clean_shutdown,
    forget_previous_epoch,
    read_previous_epoch,
    write_broker_epoch,
)
from penstock.cluster.tree.layout import UNKNOWN_EPOCH
from penstock.runtime.files import PosixFiles

FILES = PosixFiles()


def _folders(tmp_path: Path, count: int = 2) -> list[str]:
    folders = [tmp_path / str(number) for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return [str(folder) for folder in folders]


def previous_epoch(folders: list[str]) -> tuple[int, bool]:
    life = read_previous_epoch(FILES, folders)
    return life.clean_epoch, life.is_emptied


def test_folders_without_the_file_are_new(tmp_path: Path) -> None:
    assert previous_epoch(_folders(tmp_path)) == (UNKNOWN_EPOCH, True)


def test_clean_shutdown_counts_once(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders, 7, clean=False)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, False)
    write_broker_epoch(FILES, folders, 7, clean=True)
    assert previous_epoch(folders) == (7, False)
    clear_clean_shutdown(FILES, folders)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, False)


def test_one_new_disk_among_old_ones_is_an_emptied_broker(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders[:1], 7, clean=True)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, True)


def test_disagreeing_and_damaged_folders_count_as_unclean(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders[:1], 7, clean=True)
    write_broker_epoch(FILES, folders[1:], 8, clean=True)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, False)
    write_broker_epoch(FILES, folders, 8, clean=True)
    Path(folders[0], CLEAN_SHUTDOWN_FILE).write_bytes(b"\x00" * 20)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, False)


def test_damage_found_before_the_registration_makes_the_folders_new(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders, 7, clean=True)
    life = read_previous_epoch(FILES, folders)
    before = life.is_emptied
    forget_previous_epoch(FILES, folders)
    assert (before, life.is_emptied) == (False, True)
    assert previous_epoch(folders) == (UNKNOWN_EPOCH, True), "also for the next process, if this one does not register"
    forget_previous_epoch(FILES, folders)
