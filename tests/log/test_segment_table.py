from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.log_stories import FOLDER, content_of, overwrite

from penstock.log.segment import MANIFEST_NAME, UNKNOWN_TIMESTAMP, Row, SegmentTable
from penstock.runtime.files import PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

ROWS = [Row(0, 100, 50), Row(10, 200, 40), Row(20, 300, 90)]
MANIFEST = f"{FOLDER}/{MANIFEST_NAME}"


def saved(rows: list[Row]) -> SimulatedFiles:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    SegmentTable.of(rows).save(files, FOLDER)
    return files


def loaded(files: SimulatedFiles) -> list[Row] | None:
    table = SegmentTable.load(files, FOLDER)
    return None if table is None else list(table)


def rewrite_in_place(files: SimulatedFiles, data: bytes) -> None:
    """The folder's set of names stays, so only the bytes can give the damage away."""
    overwrite(files, MANIFEST, data)


@pytest.mark.parametrize(("offset", "index"), [(-1, -1), (0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (10**9, 2)])
def test_a_segment_is_found_by_offset(offset: int, index: int) -> None:
    assert SegmentTable.of(ROWS).find(offset) == index


@pytest.mark.parametrize(("timestamp", "index"), [(0, 0), (50, 0), (51, 2), (90, 2), (91, 3)])
def test_a_segment_is_found_by_time_though_times_fall(timestamp: int, index: int) -> None:
    assert SegmentTable.of(ROWS).first_stamped_from(timestamp) == index


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-1, 30), max_size=12), st.integers(-2, 32))
def test_the_first_segment_stamped_late_enough_is_the_one_a_walk_would_find(stamps: list[int], timestamp: int) -> None:
    table = SegmentTable.of([Row(number, 1, stamp) for number, stamp in enumerate(stamps)])
    naive = next((index for index, stamp in enumerate(stamps) if stamp >= timestamp), len(stamps))
    assert table.first_stamped_from(timestamp) == naive


def test_a_change_makes_a_new_table_and_leaves_the_old_one() -> None:
    table = SegmentTable.of(ROWS)
    longer = table.with_row(Row(30, 400, 1))
    shorter = longer.spliced(0, 2, [])
    merged = longer.spliced(1, 3, [Row(10, 350, 90)])
    assert list(table) == ROWS
    assert list(longer) == [*ROWS, Row(30, 400, 1)]
    assert list(shorter) == [ROWS[2], Row(30, 400, 1)]
    assert list(merged) == [ROWS[0], Row(10, 350, 90), Row(30, 400, 1)]
    assert list(longer.without_last()) == ROWS
    assert [each.total_size for each in (table, longer, shorter, merged)] == [600, 1000, 700, 850]


def test_timestamps_may_be_filled_in_later() -> None:
    table = SegmentTable.of([Row(0, 1, 5), Row(1, 1, UNKNOWN_TIMESTAMP)])
    assert not table.stamps_known
    filled = table.with_stamps(array("q", [5, 9]))
    assert filled.stamps_known
    assert filled[1] == Row(1, 1, 9)
    assert table[1].max_timestamp == UNKNOWN_TIMESTAMP


@pytest.mark.parametrize("rows", [[], ROWS, [Row(2**62, 2**31, -1)]])
def test_a_manifest_brings_the_table_back(rows: list[Row]) -> None:
    assert loaded(saved(rows)) == rows


def test_a_manifest_on_a_real_disk_is_used_until_the_folder_changes(tmp_path: Path) -> None:
    files, folder = PosixFiles(), str(tmp_path)
    SegmentTable.of(ROWS).save(files, folder)
    SegmentTable.of(ROWS[:2]).save(files, folder)
    again = SegmentTable.load(files, folder)
    assert again is not None
    assert list(again) == ROWS[:2]
    before = files.modified_ns(folder)
    while files.modified_ns(folder) == before:  # a disk's clock has ticks
        (tmp_path / "foreign").touch()
        (tmp_path / "foreign").unlink()
    assert SegmentTable.load(files, folder) is None


def test_without_a_manifest_load_returns_none() -> None:
    files = SimulatedFiles()
    files.make_folder(FOLDER)
    assert loaded(files) is None


def test_a_manifest_is_ignored_once_a_name_in_the_folder_changed() -> None:
    for change in ("make", "rename", "remove"):
        files = saved(ROWS)
        overwrite(files, f"{FOLDER}/a", b"")
        SegmentTable.of(ROWS).save(files, FOLDER)
        assert loaded(files) == ROWS
        if change == "make":
            overwrite(files, f"{FOLDER}/b", b"")
        elif change == "rename":
            files.rename(f"{FOLDER}/a", f"{FOLDER}/b")
        else:
            files.remove(f"{FOLDER}/a")
        assert loaded(files) is None


def test_a_manifest_with_a_flipped_byte_is_ignored() -> None:
    files = saved(ROWS)
    sound = content_of(files, MANIFEST)
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 0x40
        rewrite_in_place(files, bytes(damaged))
        assert loaded(files) is None, f"byte {position}"
    rewrite_in_place(files, sound)
    assert loaded(files) == ROWS


@pytest.mark.parametrize("damage", [b"", b"PSM1", bytes(16), bytes(4096)])
def test_a_short_or_zeroed_manifest_is_ignored(damage: bytes) -> None:
    files = saved(ROWS)
    rewrite_in_place(files, damage)
    assert loaded(files) is None


def test_a_truncated_or_too_long_manifest_is_ignored() -> None:
    files = saved(ROWS)
    sound = content_of(files, MANIFEST)
    for damaged in (sound[:-1], sound[:-8], sound + b"\0", sound + sound):
        rewrite_in_place(files, damaged)
        assert loaded(files) is None
