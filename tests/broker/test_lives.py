"""What the data folders tell of a broker's former life."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.lives import LIFE_FILE, forget_life, read_former_life, take_back_good_end, write_life
from penstock.cluster.layout import UNKNOWN_EPOCH
from penstock.runtime.posix_files import PosixFiles

FILES = PosixFiles()


def _folders(tmp_path: Path, count: int = 2) -> list[str]:
    folders = [tmp_path / str(number) for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return [str(folder) for folder in folders]


def told(folders: list[str]) -> tuple[int, bool]:
    life = read_former_life(FILES, folders)
    return life.clean_epoch, life.is_emptied


def test_folders_that_tell_nothing_are_new(tmp_path: Path) -> None:
    assert told(_folders(tmp_path)) == (UNKNOWN_EPOCH, True)


def test_a_good_end_is_told_once(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders, 7, clean=False)
    assert told(folders) == (UNKNOWN_EPOCH, False)
    write_life(FILES, folders, 7, clean=True)
    assert told(folders) == (7, False)
    take_back_good_end(FILES, folders)
    assert told(folders) == (UNKNOWN_EPOCH, False)


def test_one_new_disk_among_old_ones_is_an_emptied_broker(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders[:1], 7, clean=True)
    assert told(folders) == (UNKNOWN_EPOCH, True)


def test_folders_that_disagree_and_damaged_ones_tell_of_no_good_end(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders[:1], 7, clean=True)
    write_life(FILES, folders[1:], 8, clean=True)
    assert told(folders) == (UNKNOWN_EPOCH, False)
    write_life(FILES, folders, 8, clean=True)
    Path(folders[0], LIFE_FILE).write_bytes(b"\x00" * 20)
    assert told(folders) == (UNKNOWN_EPOCH, False)


def test_what_is_found_damaged_before_the_broker_registers_makes_the_folders_new_ones(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders, 7, clean=True)
    life = read_former_life(FILES, folders)
    before = life.is_emptied
    forget_life(FILES, folders)
    assert (before, life.is_emptied) == (False, True)
    assert told(folders) == (UNKNOWN_EPOCH, True), "also for the next process, if this one does not get to register"
    forget_life(FILES, folders)
