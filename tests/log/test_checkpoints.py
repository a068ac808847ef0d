from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log import checkpoints
from penstock.log.checkpoints import (
    CheckpointError,
    atomic_write,
    parent_folder,
    read_checkpoint,
    read_epochs,
    read_offsets,
    write_checkpoint,
    write_epochs,
    write_offsets,
)
from penstock.runtime.files import Files, PosixFiles
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import (
    KEEP_NAMES_ONLY,
    KEEP_SIZES_ONLY,
    KEEP_UNSYNCED,
    LOSE_UNSYNCED,
    RANDOM_GARBAGE,
    PowerLoss,
)
from penstock.testing.simulated_files import SimulatedFiles

FILES = PosixFiles()
OLD, NEW = b"old" * 3000, b"new!" * 3000


def content_of(files: Files, path: str) -> bytes:
    file = files.open(path)
    return file.read_at(0, file.size())


def kept(folder: Path, content: bytes) -> str:
    path = folder / "checkpoint"
    path.write_bytes(content)
    return str(path)


def test_offsets_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    path = str(tmp_path / "replication-offset-checkpoint")
    write_offsets(FILES, path, {("clicks", 0): 42, ("page.views_by-user", 11): 2**63 - 1})
    assert Path(path).read_bytes() == b"0\n2\nclicks 0 42\npage.views_by-user 11 9223372036854775807\n"
    assert read_offsets(FILES, path) == {("clicks", 0): 42, ("page.views_by-user", 11): 2**63 - 1}


def test_epochs_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    path = str(tmp_path / "leader-epoch-checkpoint")
    write_epochs(FILES, path, [(0, 0), (7, 120)])
    assert Path(path).read_bytes() == b"0\n2\n0 0\n7 120\n"
    assert read_epochs(FILES, path) == [(0, 0), (7, 120)]


def test_no_rows_are_a_checkpoint_too(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    write_offsets(FILES, path, {})
    assert Path(path).read_bytes() == b"0\n0\n"
    assert read_offsets(FILES, path) == {}


def test_an_empty_file_has_no_rows_because_kafka_makes_such_files(tmp_path: Path) -> None:
    assert read_checkpoint(FILES, kept(tmp_path, b"")) == []


def test_a_missing_file_is_not_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_offsets(FILES, str(tmp_path / "none"))


@pytest.mark.parametrize(
    "content",
    [
        b"0",
        b"0\n",
        b"0\n1",
        b"0\n1\n",
        b"0\n1\nclicks 0 4",
        b"0\n2\nclicks 0 42\n",
        b"0\n1\nclicks 0 42\nclicks 1 42\n",
        b"0\n1\nclicks 0 42\n\n",
        b"0\n1\nclicks 0\n",
        b"0\n1\nclicks 0 42 7\n",
        b"0\n1\n\n",
        b"0\n2\nclicks 0 42\nclicks 0 43\n",
        b"1\n1\nclicks 0 42\n",
        b"\n1\nclicks 0 42\n",
        b"0\n-1\nclicks 0 42\n",
        b"0\n+1\nclicks 0 42\n",
        b"0\n1\nclicks 0 -42\n",
        b"0\n1\nclicks 0 4_2\n",
        b"0\n1\nclicks 0 0x2a\n",
        b"0\n1\nclicks -1 42\n",
        b"0\n1\nclicks 2147483648 42\n",
        b"0\n1\nclicks 0 9223372036854775808\n",
        b"0\n1\nclicks 0 " + b"9" * 5000 + b"\n",
        "0\n1\nclicks 0 \u0664\u0662\n".encode(),
        b"0\n99999999999999999999\n",
        b"0\n2147483647\n",
        b"0\n1\n\xff\xfe 0 42\n",
        b"\0" * 20,
        b"0\n1\nclicks 0 42\n" + b"\0" * 9,
    ],
)
def test_damaged_offsets_are_a_typed_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_offsets(FILES, kept(tmp_path, content))
    assert caught.value.path.endswith("checkpoint")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("rows", ["1 5\n1 6\n", "2 5\n1 6\n", "1 5\n2 5\n", "1 5\n2 4\n", "1 5 9\n2 6\n", "a 5\n2 6\n"])
def test_epochs_that_do_not_rise_are_damage(tmp_path: Path, rows: str) -> None:
    with pytest.raises(CheckpointError):
        read_epochs(FILES, kept(tmp_path, f"0\n2\n{rows}".encode()))


def test_an_oversized_file_is_rejected_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path, b"0\n1\nclicks 0 42\n")
    monkeypatch.setattr(checkpoints, "MAX_CHECKPOINT_BYTES", 15)
    with pytest.raises(CheckpointError, match="exceed"):
        read_offsets(FILES, path)
    with pytest.raises(CheckpointError, match="exceed"):
        write_offsets(FILES, path, {("clicks", 0): 43})
    assert Path(path).read_bytes() == b"0\n1\nclicks 0 42\n"


@pytest.mark.parametrize("row", [("a b", 0, 1), ("", 0, 1), ("a\n", 0, 1), ("a", 0, -1), ("a", -1, 1), ()])
def test_a_row_that_could_not_be_read_back_is_not_written(tmp_path: Path, row: tuple[str | int, ...]) -> None:
    with pytest.raises(CheckpointError):
        write_checkpoint(FILES, str(tmp_path / "checkpoint"), [row])
    assert list(tmp_path.iterdir()) == []


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_file_cut_or_flipped_anywhere_gives_rows_or_a_typed_error(data: st.DataObject) -> None:
    files = SimulatedFiles(SeededRandom(1))
    write_offsets(files, "/c", {("clicks", 0): 42, ("clicks", 1): 1234567, ("views", 0): 0})
    file = files.open("/c")
    size = file.size()
    if data.draw(st.booleans(), label="cut"):
        file.truncate(data.draw(st.integers(1, size - 1)))
        with pytest.raises(CheckpointError):
            read_offsets(files, "/c")
    else:
        files.corrupt("/c", data.draw(st.integers(0, size - 1)), mask=data.draw(st.integers(1, 255)))
        try:
            offsets = read_offsets(files, "/c")
        except CheckpointError:
            return
        assert all(partition >= 0 and offset >= 0 for (_, partition), offset in offsets.items())


NAMES = st.text("abcXYZ019._-", min_size=1, max_size=30)


@given(st.dictionaries(st.tuples(NAMES, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=20))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_again(offsets: dict[tuple[str, int], int]) -> None:
    files = SimulatedFiles(SeededRandom(1))
    write_offsets(files, "/c", offsets)
    assert read_offsets(files, "/c") == offsets


def test_a_longer_left_over_file_does_not_show_through(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    (tmp_path / "checkpoint.tmp").write_bytes(b"x" * 1000)
    atomic_write(FILES, str(path), b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("loss", [LOSE_UNSYNCED, KEEP_UNSYNCED, KEEP_NAMES_ONLY, KEEP_SIZES_ONLY, RANDOM_GARBAGE])
def test_power_lost_at_any_step_leaves_the_old_or_the_new_whole(loss: PowerLoss) -> None:
    files = SimulatedFiles(SeededRandom(7))
    atomic_write(files, "/c", OLD)
    begun = files.fork(SeededRandom(7))
    atomic_write(begun, "/c", NEW)
    assert begun.operations.count >= 5
    for step in range(begun.operations.count):
        for seed in range(5):
            crashing = files.fork(SeededRandom(seed))
            crashing.operations.lose_power_at(step, applied_bytes=100)
            with pytest.raises(OSError, match="power"):
                atomic_write(crashing, "/c", NEW)
            crashing.crash(loss)
            assert content_of(crashing, "/c") in (OLD, NEW), f"step {step}, seed {seed}"
    begun.crash(loss)
    assert content_of(begun, "/c") == NEW


def test_a_full_disk_keeps_the_old_one_and_no_debris() -> None:
    files = SimulatedFiles(SeededRandom(7))
    atomic_write(files, "/c", b"old")
    files.operations.fail("write", errno.ENOSPC, applied_bytes=2)
    with pytest.raises(OSError, match=r"(?i)space") as caught:
        atomic_write(files, "/c", b"new")
    assert caught.value.errno == errno.ENOSPC
    assert files.durable_content("/c") == b"old"
    assert files.list_folder("/") == ["c"]


def test_without_sync_nothing_waits_for_the_disk() -> None:
    files = SimulatedFiles(SeededRandom(7))
    atomic_write(files, "/c", b"data", sync=False)
    assert files.operations.counts["sync"] == files.operations.counts["sync_folder"] == 0
    assert files.open("/c").read_at(0, 9) == b"data"


@pytest.mark.parametrize(("path", "folder"), [("/data/t-0/x", "/data/t-0"), ("/x", "/"), ("x", "."), ("a/x", "a")])
def test_the_folder_of_a_path(path: str, folder: str) -> None:
    assert parent_folder(path) == folder
