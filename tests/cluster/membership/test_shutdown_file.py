"""What the data folders show of a broker's previous run."""

from __future__ import annotations

from pathlib import Path

from penstock.cluster.membership.shutdown import (
    CLEAN_SHUTDOWN_FILE,
    clear_clean_shutdown,
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


def test_only_the_folder_without_the_file_is_new(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders[:1], 7, clean=True, others=folders)
    found = read_previous_epoch(FILES, folders)
    assert (found.is_emptied, found.new_folders, found.outdated) == (True, frozenset({folders[1]}), frozenset())


def test_folder_that_is_no_longer_configured_is_missed_until_the_next_epoch(tmp_path: Path) -> None:
    folders = _folders(tmp_path, 3)
    write_broker_epoch(FILES, folders, 7, clean=True)
    found = read_previous_epoch(FILES, folders[:2])
    assert (found.is_emptied, found.new_folders) == (True, frozenset())
    clear_clean_shutdown(FILES, folders[:2])
    assert read_previous_epoch(FILES, folders[:2]).is_emptied
    write_broker_epoch(FILES, folders[:2], 8, clean=True)
    assert not read_previous_epoch(FILES, folders[:2]).is_emptied


def test_folder_that_had_failed_is_outdated_and_not_new(tmp_path: Path) -> None:
    folders = _folders(tmp_path)
    write_broker_epoch(FILES, folders, 7, clean=False)
    for epoch in (7, 8):
        write_broker_epoch(FILES, folders[1:], epoch, clean=False, failed=folders[:1])
        found = read_previous_epoch(FILES, [f"{folder}/" for folder in folders])
        assert (found.clean_epoch, found.is_emptied, found.outdated) == (UNKNOWN_EPOCH, False, frozenset({folders[0]}))
        clear_clean_shutdown(FILES, folders)
    assert read_previous_epoch(FILES, folders).outdated == frozenset({folders[0]})
    write_broker_epoch(FILES, folders, 9, clean=False)
    assert not read_previous_epoch(FILES, folders).outdated
