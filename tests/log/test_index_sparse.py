from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.log.log_stories import content_of, overwrite

from penstock.log.index import OFFSET_ENTRY, TIME_ENTRY, Entry, SparseIndex
from penstock.runtime.files import Files, PosixFiles
from penstock.testing.simulated_files import SimulatedFiles

FILES = PosixFiles()
PATH = "/index"


def index_at(files: Files, path: str = PATH, *pairs: tuple[int, int]) -> SparseIndex:
    index = SparseIndex(files, path, OFFSET_ENTRY)
    index.create()
    for key, value in pairs:
        index.append(key, value)
    return index


def packed(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">II", *pair) for pair in pairs)


def test_entries_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    path = str(tmp_path / "0.index")
    index = index_at(FILES, path, (3, 4100), (9, 8200))
    assert (tmp_path / "0.index").read_bytes() == b""
    index.flush()
    assert (tmp_path / "0.index").read_bytes() == struct.pack(">IIII", 3, 4100, 9, 8200)
    times = SparseIndex(FILES, str(tmp_path / "0.timeindex"), TIME_ENTRY)
    times.create()
    times.append(1_700_000_000_000, 5)
    times.seal()
    assert (tmp_path / "0.timeindex").read_bytes() == struct.pack(">qI", 1_700_000_000_000, 5)


def test_an_append_costs_no_operation_until_the_flush() -> None:
    files = SimulatedFiles()
    index = index_at(files)
    before = files.operations.count
    for number in range(1, 50):
        index.append(number, number * 4096)
    assert files.operations.count == before
    assert index.pending == 49
    index.flush()
    index.flush()
    assert files.operations.count == before + 1
    assert index.pending == 0


def test_a_new_index_takes_the_place_of_what_was_there() -> None:
    files = SimulatedFiles()
    index_at(files, PATH, (1, 2)).flush()
    index = index_at(files)
    assert len(index) == 0
    assert index.last is None
    assert index.floor(100) is None
    assert content_of(files, PATH) == b""


@pytest.mark.parametrize("pair", [(5, 400), (4, 600), (6, 500), (0, 0)])
def test_an_entry_that_is_not_beyond_the_last_is_left_out(pair: tuple[int, int]) -> None:
    index = index_at(SimulatedFiles(), PATH, (5, 500))
    index.append(*pair)
    assert index.entries() == [Entry(5, 500)]


def test_no_entry_looks_like_a_block_that_never_reached_the_disk() -> None:
    index = index_at(SimulatedFiles(), PATH, (0, 0), (0, 7))
    assert index.entries() == []


@pytest.mark.parametrize("sealed", [0, 1, 300, 1000])
def test_floor_finds_the_last_entry_not_above_wherever_it_is(sealed: int) -> None:
    files = SimulatedFiles()
    index = index_at(files)
    for number in range(1, 1001):
        index.append(number * 10, number * 100)
        if number == sealed:
            index.seal()
    assert index.floor(9) is None
    assert index.floor_value(99) is None
    for key in (10, 11, 19, 20, 2555, 2560, 2561, 3000, 3001, 5119, 5120, 9999, 10_000, 10**6):
        number = min(key // 10, 1000)
        assert index.floor(key) == Entry(number * 10, number * 100)
        assert index.floor_value(key * 10) == Entry(number * 10, number * 100)


def test_what_was_flushed_is_there_after_a_restart() -> None:
    files = SimulatedFiles()
    index_at(files, PATH, (1, 10), (2, 20), (3, 30)).seal()
    index = SparseIndex(files, PATH, OFFSET_ENTRY)
    assert index.load() is None
    assert len(index) == 3
    assert index.last == Entry(3, 30)
    index.append(4, 40)
    index.append(3, 50)
    assert index.floor(3) == Entry(3, 30)
    assert index.floor(9) == Entry(4, 40)
    assert index.entries() == [Entry(1, 10), Entry(2, 20), Entry(3, 30), Entry(4, 40)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (packed((1, 10))[:-1], "not a multiple"),
        (packed((1, 10)) + b"\0", "not a multiple"),
        (packed((0, 0)), "zeros"),
        (packed((0, 0), (2, 20)), "zeros"),
        (packed((1, 10), (0, 0)), "zeros"),
        (bytes(4096), "zeros"),
        (packed((5, 50), (3, 60)), "before its first"),
        (packed((5, 50), (6, 40)), "before its first"),
        (packed((5, 50), (5, 50)), "before its first"),
    ],
)
def test_an_index_that_cannot_be_trusted_says_why(content: bytes, reason: str) -> None:
    files = SimulatedFiles()
    overwrite(files, PATH, content)
    trouble = SparseIndex(files, PATH, OFFSET_ENTRY).load()
    assert trouble is not None
    assert reason in trouble


def test_a_missing_index_says_so_and_is_not_made() -> None:
    files = SimulatedFiles()
    assert SparseIndex(files, PATH, OFFSET_ENTRY).load() == "is missing"
    assert not files.exists(PATH)


def test_zeros_in_the_middle_lead_to_a_longer_scan_not_to_a_later_place() -> None:
    files = SimulatedFiles()
    pairs = [(number, number * 10) for number in range(1, 1025)]
    blank = [(0, 0) if 256 <= number <= 600 else (number, position) for number, position in pairs]
    overwrite(files, PATH, packed(*blank))
    index = SparseIndex(files, PATH, OFFSET_ENTRY)
    assert index.load() is None
    for key in range(1, 1025, 7):
        entry = index.floor(key)
        assert entry is None or entry.key <= key


def test_an_index_cut_off_behind_our_back_is_an_error_not_an_answer() -> None:
    files = SimulatedFiles()
    index = index_at(files, PATH, *[(number, number) for number in range(1, 700)])
    index.seal()
    overwrite(files, PATH, b"")
    with pytest.raises(OSError, match="were expected"):
        index.floor(300)


def test_truncating_leaves_nothing_of_a_flush_that_failed_half_way() -> None:
    files = SimulatedFiles()
    index = index_at(files, PATH, (1, 10), (2, 20))
    index.flush()
    index.append(3, 30)
    index.append(4, 40)
    files.operations.fail("write", errno.ENOSPC, applied_bytes=13)
    with pytest.raises(OSError, match="No space"):
        index.flush()
    index.truncate(25)
    assert content_of(files, PATH) == packed((1, 10), (2, 20))
    index.append(3, 33)
    index.flush()
    assert content_of(files, PATH) == packed((1, 10), (2, 20), (3, 33))


def test_truncating_needs_no_room_on_the_disk() -> None:
    files = SimulatedFiles()
    index = index_at(files, PATH, (1, 10), (2, 20))
    index.seal()
    index.append(3, 30)
    files.capacity_bytes = 0
    index.truncate(20)
    assert index.entries() == [Entry(1, 10)]


def test_a_file_held_by_a_flush_can_be_synced_after_the_index_dropped_it() -> None:
    files = SimulatedFiles()
    index = index_at(files, PATH, (1, 10))
    index.flush()
    file = index.file
    index.close()
    file.sync()
    assert files.durable_content(PATH) == packed((1, 10))
    assert index.floor(1) == Entry(1, 10)


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 60), st.integers(0, 600)),
    st.tuples(st.just("truncate"), st.integers(0, 600), st.just(0)),
    st.tuples(st.sampled_from(["flush", "seal", "reload"]), st.just(0), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_it_behaves_as_a_list_of_pairs_does(operations: list[tuple[str, int, int]]) -> None:
    files = SimulatedFiles()
    index = index_at(files)
    model: list[Entry] = []
    for name, first, second in operations:
        if name == "append":
            index.append(first, second)
            if first > (model[-1].key if model else 0) and (not model or second > model[-1].value):
                model.append(Entry(first, second))
        elif name == "truncate":
            index.truncate(first)
            model = [entry for entry in model if entry.value < first]
        elif name == "flush":
            index.flush()
        else:
            index.seal()
            if name == "reload":
                index.close()
                index = SparseIndex(files, PATH, OFFSET_ENTRY)
                assert index.load() is None
        assert index.entries() == model
        assert index.last == (model[-1] if model else None)
        for key in (0, 1, 30, 60):
            assert index.floor(key) == next((e for e in reversed(model) if e.key <= key), None)
            assert index.floor_value(key * 10) == next((e for e in reversed(model) if e.value <= key * 10), None)
    index.seal()
    assert content_of(files, PATH) == packed(*model)
