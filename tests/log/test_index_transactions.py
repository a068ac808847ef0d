from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.index import ENTRY_BYTES, AbortedTransaction, TransactionIndex, TransactionIndexError
from penstock.runtime.files import PosixFile, PosixFiles
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_files import SimulatedFiles

FILES = PosixFiles()
FIRST = AbortedTransaction(1, 10, 15, 12)
SECOND = AbortedTransaction(2, 12, 30, 20)
THIRD = AbortedTransaction(1, 20, 40, 41)


def index_in(folder: Path, *aborted: AbortedTransaction, base_offset: int = 0) -> TransactionIndex:
    index = TransactionIndex(FILES, str(folder / "00000000000000000000.txnindex"), base_offset)
    for transaction in aborted:
        index.append(transaction)
    return index


def content(index: TransactionIndex) -> bytes:
    return Path(index.path).read_bytes()


def test_the_file_does_not_exist_until_the_first_abort(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    assert index.aborted_between(0, 100) == []
    assert not index.covers(0)
    index.truncate_to(0)
    index.clear()
    index.flush()
    assert index.cut_damaged_tail() == 0
    assert list(tmp_path.iterdir()) == []
    index.append(FIRST)
    assert [entry.name for entry in tmp_path.iterdir()] == ["00000000000000000000.txnindex"]
    index.close()


def test_entries_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST, SECOND)
    assert content(index) == struct.pack(">hqqqqhqqqq", 0, 1, 10, 15, 12, 0, 2, 12, 30, 20)
    assert ENTRY_BYTES == 34
    index.close()
    again = index_in(tmp_path)
    assert list(again.entries()) == [FIRST, SECOND]
    again.append(THIRD)
    assert again.entry_count == 3
    assert list(again.entries()) == [FIRST, SECOND, THIRD]
    again.close()


@pytest.mark.parametrize(
    ("fetch_offset", "upper_bound", "found"),
    [
        (0, 10, []),
        (0, 11, [FIRST]),
        (0, 13, [FIRST, SECOND]),
        (15, 16, [FIRST, SECOND]),
        (16, 20, [SECOND]),
        (16, 21, [SECOND, THIRD]),
        (30, 31, [SECOND, THIRD]),
        (31, 40, [THIRD]),
        (40, 41, [THIRD]),
        (41, 99, []),
    ],
)
def test_a_fetch_gets_the_aborts_that_touch_it(
    tmp_path: Path, fetch_offset: int, upper_bound: int, found: list[AbortedTransaction]
) -> None:
    index = index_in(tmp_path, FIRST, SECOND, THIRD)
    assert index.aborted_between(fetch_offset, upper_bound) == found
    index.close()


def test_the_search_continues_in_later_segments_until_one_covers_the_fetch(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST, SECOND)
    assert [index.covers(bound) for bound in (0, 19, 20, 21)] == [True, True, True, False]
    index.close()


@pytest.mark.parametrize(
    "aborted",
    [
        AbortedTransaction(3, 20, 30, 31),
        AbortedTransaction(3, 20, 29, 30),
        AbortedTransaction(3, 36, 35, 20),
        AbortedTransaction(-1, 31, 35, 20),
        AbortedTransaction(3, -1, 35, 20),
        AbortedTransaction(3, 31, 35, 37),
        AbortedTransaction(3, 31, 35, 19),
        AbortedTransaction(3, 31, 35, -1),
    ],
)
def test_an_entry_that_cannot_follow_is_rejected_and_nothing_written(
    tmp_path: Path, aborted: AbortedTransaction
) -> None:
    index = index_in(tmp_path, FIRST, SECOND)
    with pytest.raises(TransactionIndexError):
        index.append(aborted)
    assert list(index.entries()) == [FIRST, SECOND]
    index.close()


def test_a_marker_below_the_segment_is_rejected_and_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(TransactionIndexError, match="outside the segment"):
        index_in(tmp_path, FIRST, base_offset=16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "kept"),
    [(41, [FIRST, SECOND, THIRD]), (40, [FIRST, SECOND]), (26, [FIRST]), (16, [FIRST]), (15, []), (0, [])],
)
def test_truncation_forgets_markers_at_or_behind_the_end(
    tmp_path: Path, offset: int, kept: list[AbortedTransaction]
) -> None:
    index = index_in(tmp_path, FIRST, SECOND, THIRD)
    index.truncate_to(offset)
    assert list(index.entries()) == kept
    assert len(content(index)) == len(kept) * ENTRY_BYTES
    assert index.covers(12) == bool(kept)
    index.append(AbortedTransaction(5, 41, 50, 45))
    assert index.entry_count == len(kept) + 1
    index.close()


def test_a_cleared_index_can_be_written_again(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST, SECOND)
    index.clear()
    assert content(index) == b""
    index.append(FIRST)
    assert list(index.entries()) == [FIRST]
    index.close()


# --- damage


def entry_bytes(aborted: AbortedTransaction, version: int = 0) -> bytes:
    return struct.pack(">hqqqq", version, *aborted)


@pytest.mark.parametrize(
    "tail",
    [
        b"\0",
        entry_bytes(THIRD)[:-1],
        b"\0" * ENTRY_BYTES,
        b"\0" * (ENTRY_BYTES * 3 + 5),
        b"\xff" * ENTRY_BYTES,
        entry_bytes(THIRD, version=1),
        entry_bytes(THIRD, version=-1),
        entry_bytes(SECOND),
        entry_bytes(AbortedTransaction(1, 20, 40, 42)),
        entry_bytes(AbortedTransaction(1, 41, 40, 41)),
        entry_bytes(AbortedTransaction(1, 20, 40, 19)),
        b"\0" * ENTRY_BYTES + entry_bytes(THIRD),
    ],
)
def test_a_damaged_tail_is_cut_and_reported(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    sound = entry_bytes(FIRST) + entry_bytes(SECOND)
    path.write_bytes(sound + tail)
    index = index_in(tmp_path)
    assert index.cut_damaged_tail() == len(tail)
    assert path.read_bytes() == sound
    assert list(index.entries()) == [FIRST, SECOND]
    assert index.cut_damaged_tail() == 0
    index.append(THIRD)
    assert list(index.entries()) == [FIRST, SECOND, THIRD]
    index.close()


def test_a_sound_index_loses_nothing_to_the_check(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST, SECOND, THIRD)
    assert index.cut_damaged_tail() == 0
    assert index.entry_count == 3
    index.close()


def test_an_entry_of_a_later_version_is_not_served_as_if_known(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.txnindex"
    path.write_bytes(entry_bytes(FIRST, version=1))
    index = index_in(tmp_path)
    with pytest.raises(TransactionIndexError, match="version 1"):
        index.aborted_between(0, 100)
    index.close()


def test_a_file_cut_behind_its_back_is_a_typed_error(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST, SECOND)
    Path(index.path).write_bytes(entry_bytes(FIRST))
    with pytest.raises(TransactionIndexError, match="is incomplete"):
        list(index.entries())
    index.close()


def test_a_torn_write_is_written_over() -> None:
    files = SimulatedFiles(SeededRandom(3))
    file = files.open("/x.txnindex", create=True)
    file.write_at(0, entry_bytes(FIRST) + entry_bytes(SECOND)[:20])
    index = TransactionIndex(files, "/x.txnindex", 0)
    assert list(index.entries()) == [FIRST]
    index.append(SECOND)
    assert list(index.entries()) == [FIRST, SECOND]
    assert files.size_of("/x.txnindex") == 2 * ENTRY_BYTES


# --- the file


def test_closed_it_opens_again_when_asked(tmp_path: Path) -> None:
    index = index_in(tmp_path, FIRST)
    index.close()
    assert index.aborted_between(0, 99) == [FIRST]
    index.close()
    index.append(SECOND)
    index.close()
    index.flush()
    index.close()
    index.truncate_to(16)
    index.close()
    index.close()
    assert content(index) == entry_bytes(FIRST)


def test_flushed_entries_and_the_files_name_survive_a_power_loss() -> None:
    files = SimulatedFiles(SeededRandom(3))
    index = TransactionIndex(files, "/x.txnindex", 0)
    index.append(FIRST)
    index.flush()
    index.append(SECOND)
    files.crash()
    after = TransactionIndex(files, "/x.txnindex", 0)
    assert after.cut_damaged_tail() == 0
    assert list(after.entries()) == [FIRST]


# --- against a naive model


@st.composite
def histories(draw: st.DrawFn) -> list[AbortedTransaction]:
    """Aborts as a log makes them: the stable offset is where the oldest transaction still open begins."""
    offset, opened, aborted = 0, dict[int, int](), list[AbortedTransaction]()
    for producer_id in draw(st.lists(st.integers(1, 4), max_size=60)):
        offset += draw(st.integers(0, 2))
        if producer_id in opened:
            first = opened.pop(producer_id)
            stable = min(opened.values(), default=offset + 1)
            if draw(st.booleans()):
                aborted.append(AbortedTransaction(producer_id, first, offset, stable))
        else:
            opened[producer_id] = offset
        offset += 1
    return aborted


@given(histories(), st.integers(0, 130), st.integers(0, 130), st.integers(0, 130))
@settings(max_examples=150, deadline=None)
def test_searches_and_truncations_agree_with_a_plain_list(
    aborted: list[AbortedTransaction], fetch_offset: int, upper_bound: int, end: int
) -> None:
    index = TransactionIndex(SimulatedFiles(SeededRandom(0)), "/x.txnindex", 0)
    for transaction in aborted:
        index.append(transaction)
    assert index.cut_damaged_tail() == 0
    for _ in range(2):
        touching = [t for t in aborted if t.last_offset >= fetch_offset and t.first_offset < upper_bound]
        if fetch_offset < upper_bound:
            assert index.aborted_between(fetch_offset, upper_bound) == touching
        aborted = [t for t in aborted if t.last_offset < end]
        index.truncate_to(end)
        assert list(index.entries()) == aborted


def test_a_search_among_very_many_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [AbortedTransaction(1, at, at + 1, at + 2) for at in range(0, 40_000, 2)]
    (tmp_path / "00000000000000000000.txnindex").write_bytes(b"".join(map(entry_bytes, many)))
    index = index_in(tmp_path)
    bytes_read: list[int] = []
    read_at = PosixFile.read_at

    def counted(file: PosixFile, position: int, length: int) -> bytes:
        bytes_read.append(length)
        return read_at(file, position, length)

    monkeypatch.setattr(PosixFile, "read_at", counted)
    assert index.aborted_between(15_000, 15_004) == many[7500:7502]
    assert len(bytes_read) <= 17
    assert sum(bytes_read) < 40_000
    assert index.cut_damaged_tail() == 0
    assert list(index.entries()) == many
    assert max(bytes_read) < 40_000
    index.close()
