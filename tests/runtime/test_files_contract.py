"""The contract of a file system, for POSIX files and simulated ones."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.runtime.files import Files, PosixFiles
from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_files import SimulatedFiles


class Place(NamedTuple):
    """A file system and an empty folder in it."""

    files: Files
    folder: str

    def at(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def put(self, name: str, data: bytes) -> str:
        file = self.files.open(self.at(name), create=True)
        file.write_at(0, data)
        file.close()
        return self.at(name)

    def content(self, name: str) -> bytes:
        file = self.files.open(self.at(name), writable=False)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()


@pytest.fixture(params=["posix", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "posix":
        return Place(PosixFiles(), str(tmp_path))
    files = SimulatedFiles(SeededRandom(1))
    files.make_folder("/var/log")
    return Place(files, "/var/log")


def test_a_missing_file_is_not_opened_unless_created(place: Place) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        place.files.open(place.at("a"))
    assert raised.value.filename == place.at("a")
    with pytest.raises(FileNotFoundError):
        place.files.open(place.at("no/a"), create=True)
    file = place.files.open(place.at("a"), create=True)
    assert (file.size(), file.path, file.closed) == (0, place.at("a"), False)


def test_a_file_cannot_be_a_folder_in_a_path(place: Place) -> None:
    place.put("a", b"x")
    for attempt in (
        lambda: place.files.open(place.at("a/b"), create=True),
        lambda: place.files.list_folder(place.at("a")),
        lambda: place.files.sync_folder(place.at("a")),
        lambda: place.files.remove_folder(place.at("a")),
        lambda: place.files.size_of(place.at("a/b")),
    ):
        with pytest.raises(NotADirectoryError):
            attempt()
    assert not place.files.exists(place.at("a/b"))
    assert not place.files.is_folder(place.at("a/b"))


def test_a_folder_cannot_be_opened_as_a_file(place: Place) -> None:
    place.files.make_folder(place.at("f"))
    for attempt in (
        lambda: place.files.open(place.at("f")),
        lambda: place.files.open(place.at("f"), writable=False),
        lambda: place.files.size_of(place.at("f")),
        lambda: place.files.remove(place.at("f")),
    ):
        with pytest.raises(IsADirectoryError):
            attempt()


def test_a_name_too_long_is_rejected(place: Place) -> None:
    with pytest.raises(OSError, match="name too long"):
        place.files.open(place.at("n" * 256), create=True)
    place.put("n" * 255, b"")


def test_negative_positions_lengths_and_sizes_are_invalid(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.write_at(0, b"abc")
    for attempt in (
        lambda: file.write_at(-1, b"x"),
        lambda: file.read_at(-1, 1),
        lambda: file.read_at(0, -1),
        lambda: file.truncate(-1),
    ):
        with pytest.raises(OSError, match=r".") as raised:
            attempt()
        assert raised.value.errno == errno.EINVAL
        assert raised.value.filename == place.at("a")
    assert file.read_at(0, 9) == b"abc"


def test_a_closed_file_is_bad_and_closing_again_is_harmless(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.close()
    file.close()
    assert file.closed
    for attempt in (
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        lambda: file.read_at(0, 1 << 20),
        lambda: file.truncate(0),
        file.size,
        file.sync,
        file.fileno,
    ):
        with pytest.raises(OSError, match=r".") as raised:
            attempt()
        assert raised.value.errno == errno.EBADF


def test_a_file_opened_for_reading_takes_no_writes(place: Place) -> None:
    path = place.put("a", b"abc")
    file = place.files.open(path, writable=False)
    with pytest.raises(OSError, match=r".") as raised:
        file.write_at(0, b"x")
    assert raised.value.errno == errno.EBADF
    with pytest.raises(OSError, match=r".") as raised:
        file.truncate(0)
    assert raised.value.errno == errno.EINVAL
    file.sync()
    assert file.read_at(0, 3) == b"abc"


def test_reads_are_short_only_at_the_end_and_hostile_lengths_take_no_memory(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.write_at(0, b"0123456789")
    assert file.read_at(2, 3) == b"234"
    assert file.read_at(8, 5) == b"89"
    assert file.read_at(0, 0) == b""
    assert file.read_at(10, 1) == b""
    assert file.read_at(1 << 40, 1 << 40) == b""
    assert file.read_at(3, 1 << 40) == b"3456789"


def test_every_kind_of_buffer_is_written(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.write_at(0, b"ab")
    file.write_at(2, bytearray(b"cd"))
    file.write_at(4, memoryview(b"xxefxx")[2:4])
    file.write_at(6, b"")
    assert file.read_at(0, 99) == b"abcdef"


def test_writing_beyond_the_end_leaves_zeros_between(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.write_at(10_000, b"x")
    assert file.size() == 10_001
    assert file.read_at(0, 20_000) == bytes(10_000) + b"x"
    file.write_at(30_000, b"")
    assert file.size() == 10_001


def test_truncation_cuts_and_extends_with_zeros(place: Place) -> None:
    file = place.files.open(place.at("a"), create=True)
    file.write_at(0, b"x" * 9000)
    file.truncate(5000)
    file.truncate(9000)
    assert file.read_at(0, 9000) == b"x" * 5000 + bytes(4000)
    file.truncate(0)
    file.truncate(1 << 40)
    assert file.size() == 1 << 40
    assert file.read_at((1 << 40) - 3, 100) == bytes(3)


def test_two_openings_see_one_content(place: Place) -> None:
    path = place.put("a", b"abc")
    one, two = place.files.open(path), place.files.open(path, writable=False)
    one.write_at(1, b"X")
    assert two.read_at(0, 3) == b"aXc"
    one.close()
    assert two.read_at(0, 3) == b"aXc"


def test_a_removed_file_stays_readable_while_open(place: Place) -> None:
    path = place.put("a", b"old")
    file = place.files.open(path)
    place.files.remove(path)
    assert not place.files.exists(path)
    place.put("a", b"new")
    file.write_at(3, b"er")
    file.sync()
    assert file.read_at(0, 9) == b"older"
    assert place.content("a") == b"new"
    with pytest.raises(FileNotFoundError):
        place.files.remove(place.at("b"))


def test_a_rename_replaces_and_keeps_open_files_open(place: Place) -> None:
    old = place.files.open(place.put("a", b"old"))
    place.put("a.tmp", b"new")
    new = place.files.open(place.at("a.tmp"))
    place.files.rename(place.at("a.tmp"), place.at("a"))
    assert place.content("a") == b"new"
    assert not place.files.exists(place.at("a.tmp"))
    assert (old.read_at(0, 9), new.read_at(0, 9)) == (b"old", b"new")
    assert new.path == place.at("a.tmp")
    place.files.rename(place.at("a"), place.at("a"))
    assert place.content("a") == b"new"


def test_a_folder_is_renamed_with_all_in_it(place: Place) -> None:
    place.files.make_folder(place.at("f/g"))
    place.put("f/g/a", b"deep")
    file = place.files.open(place.at("f/g/a"))
    place.files.rename(place.at("f"), place.at("f-delete"))
    assert place.content("f-delete/g/a") == b"deep"
    assert file.read_at(0, 4) == b"deep"
    assert place.files.list_folder(place.folder) == ["f-delete"]


def test_impossible_renames_are_rejected(place: Place) -> None:
    place.put("a", b"")
    place.files.make_folder(place.at("empty"))
    place.files.make_folder(place.at("full/inner"))
    place.files.make_folder(place.at("f"))
    cases = [
        ("none", "b", errno.ENOENT),
        ("a", "none/a", errno.ENOENT),
        ("a", "empty", errno.EISDIR),
        ("f", "a", errno.ENOTDIR),
        ("f", "full", errno.ENOTEMPTY),
        ("full", "full/inner/full", errno.EINVAL),
    ]
    for old, new, number in cases:
        with pytest.raises(OSError, match=r".") as raised:
            place.files.rename(place.at(old), place.at(new))
        assert raised.value.errno == number, (old, new)
    place.files.rename(place.at("f"), place.at("empty"))
    assert sorted(place.files.list_folder(place.folder)) == ["a", "empty", "full"]


def test_folders_are_made_with_parents_listed_and_removed_with_all_in_them(place: Place) -> None:
    place.files.make_folder(place.at("f/g/h"))
    place.files.make_folder(place.at("f/g"))
    place.put("f/g/a", b"1")
    place.put("f/b", b"2")
    assert place.files.is_folder(place.at("f/g"))
    assert not place.files.is_folder(place.at("f/b"))
    assert sorted(place.files.list_folder(place.at("f"))) == ["b", "g"]
    assert sorted(place.files.list_folder(place.at("f/g"))) == ["a", "h"]
    with pytest.raises(FileExistsError):
        place.files.make_folder(place.at("f/b"))
    with pytest.raises(NotADirectoryError):
        place.files.make_folder(place.at("f/b/c"))
    place.files.remove_folder(place.at("f"))
    assert not place.files.exists(place.at("f"))
    for attempt in (place.files.remove_folder, place.files.list_folder, place.files.sync_folder):
        with pytest.raises(FileNotFoundError):
            attempt(place.at("f"))


def test_sizes_times_and_space_are_reported(place: Place) -> None:
    path = place.put("a", b"abc")
    assert place.files.size_of(path) == 3
    assert place.files.modified_ns(path) > 0
    assert place.files.modified_ns(place.folder) > 0
    space = place.files.space(path)
    assert 0 < space.free <= space.total
    for attempt in (place.files.size_of, place.files.modified_ns, place.files.space):
        with pytest.raises(FileNotFoundError):
            attempt(place.at("none"))


def test_a_lock_has_one_holder_at_a_time(place: Place) -> None:
    path = place.at(".lock")
    lock = place.files.lock(path)
    assert place.files.exists(path)
    with pytest.raises(BlockingIOError, match="locked by") as raised:
        place.files.lock(path)
    assert raised.value.filename == path
    other = place.files.lock(place.at("other.lock"))
    lock.release()
    again = place.files.lock(path)
    lock.release()
    with pytest.raises(BlockingIOError):
        place.files.lock(path)
    again.release()
    other.release()


def test_a_lock_needs_its_folder(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.files.lock(place.at("none/.lock"))
    with pytest.raises(IsADirectoryError):
        place.files.lock(place.folder)


_edits = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 20_000), st.binary(min_size=1, max_size=40)),
        st.tuples(st.just("write"), st.integers(0, 20_000), st.just(b"\xab" * 9_000)),
        st.tuples(st.just("truncate"), st.integers(0, 20_000), st.just(b"")),
        st.tuples(st.just("sync"), st.just(0), st.just(b"")),
    ),
    max_size=12,
)


@given(edits=_edits, window=st.tuples(st.integers(0, 30_000), st.integers(0, 30_000)))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_content_is_what_an_array_of_bytes_would_hold(
    place: Place, edits: list[tuple[str, int, bytes]], window: tuple[int, int]
) -> None:
    model = bytearray()
    file = place.files.open(place.at("model"), create=True)
    file.truncate(0)
    for kind, position, data in edits:
        if kind == "write":
            model.extend(bytes(max(0, position + len(data) - len(model))))
            model[position : position + len(data)] = data
            file.write_at(position, data)
        elif kind == "truncate":
            del model[position:]
            model.extend(bytes(position - len(model)))
            file.truncate(position)
        else:
            file.sync()
        assert file.size() == len(model)
    position, length = window
    assert file.read_at(position, length) == model[position : position + length]
    assert file.read_at(0, 40_000) == model
    file.close()
