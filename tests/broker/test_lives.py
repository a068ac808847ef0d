"""What the data folders tell of a broker's former life."""

from __future__ import annotations

from pathlib import Path

from penstock.broker.lives import LIFE_FILE, FormerLife, read_former_life, take_back_good_end, write_life
from penstock.cluster.layout import UNKNOWN_EPOCH
from penstock.runtime.posix_files import PosixFiles

FILES = PosixFiles()


def _folders(tmp_path: Path, count: int = 2) -> list[str]:
    folders = [tmp_path / str(number) for number in range(count)]
    for folder in folders:
        folder.mkdir()
    return [str(folder) for folder in folders]


def test_folders_that_tell_nothing_are_new(tmp_path: Path) -> None:
    assert read_former_life(FILES, _folders(tmp_path)) == FormerLife(UNKNOWN_EPOCH, is_emptied=True)


def test_a_good_end_is_told_once(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders, 7, clean=False)
    assert read_former_life(FILES, folders) == FormerLife(UNKNOWN_EPOCH, is_emptied=False)
    write_life(FILES, folders, 7, clean=True)
    assert read_former_life(FILES, folders) == FormerLife(7, is_emptied=False)
    take_back_good_end(FILES, folders)
    assert read_former_life(FILES, folders) == FormerLife(UNKNOWN_EPOCH, is_emptied=False)


def test_one_new_disk_among_old_ones_is_an_emptied_broker(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders[:1], 7, clean=True)
    assert read_former_life(FILES, folders) == FormerLife(UNKNOWN_EPOCH, is_emptied=True)


def test_folders_that_disagree_and_damaged_ones_tell_of_no_good_end(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_life(FILES, folders[:1], 7, clean=True)
    write_life(FILES, folders[1:], 8, clean=True)
    assert read_former_life(FILES, folders) == FormerLife(UNKNOWN_EPOCH, is_emptied=False)
    write_life(FILES, folders, 8, clean=True)
    Path(folders[0], LIFE_FILE).write_bytes(b"\x00" * 20)
    assert read_former_life(FILES, folders) == FormerLife(UNKNOWN_EPOCH, is_emptied=False)
