"""What a simulated disk shows after the power went."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.runtime.randomness import SeededRandom
from penstock.testing.crash_points import ALL_LOSSES, crash_everywhere
from penstock.testing.simulated_disk import (
    KEEP_NAMES_ONLY,
    KEEP_SIZES_ONLY,
    KEEP_UNSYNCED,
    LOSE_UNSYNCED,
    PAGE_BYTES,
    RANDOM_GARBAGE,
    RANDOM_LOSS,
    SECTOR_BYTES,
    PowerLoss,
)
from penstock.testing.simulated_faults import PowerLost
from penstock.testing.simulated_files import SimulatedFile, SimulatedFiles


def _durable_file(files: SimulatedFiles, path: str, data: bytes = b"") -> SimulatedFile:
    file = files.open(path, create=True)
    file.write_at(0, data)
    file.sync()
    files.sync_folder(path.rpartition("/")[0])
    return file


def _content(files: SimulatedFiles, path: str) -> bytes:
    return files.open(path).read_at(0, files.size_of(path))


def _found(setup: SimulatedFiles, loss: PowerLoss, path: str, seeds: int) -> set[bytes]:
    """The contents that many power losses leave."""
    contents = set()
    for seed in range(seeds):
        fork = setup.fork(SeededRandom(seed))
        fork.crash(loss)
        contents.add(_content(fork, path))
    return contents


@pytest.mark.parametrize("loss", ALL_LOSSES)
def test_what_was_synced_survives_any_power_loss(loss: PowerLoss) -> None:
    for seed in range(50):
        files = SimulatedFiles(SeededRandom(seed))
        file = _durable_file(files, "/a", b"x" * 700)
        file.write_at(700, b"y" * 6000)
        files.crash(loss)
        assert _content(files, "/a")[:700] == b"x" * 700


def test_what_was_not_synced_is_lost() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"synced")
    file.write_at(6, b" and not")
    file.write_at(0, b"S")
    assert _content(files, "/a") == b"Synced and not"
    assert files.durable_content("/a") == b"synced"
    files.crash(LOSE_UNSYNCED)
    assert _content(files, "/a") == b"synced"


def test_everything_may_also_survive() -> None:
    files = SimulatedFiles()
    files.make_folder("/f")
    file = files.open("/f/a", create=True)
    file.write_at(0, b"abc" * 3000)
    file.truncate(4)
    file.write_at(4, b"!")
    files.rename("/f/a", "/f/b")
    files.crash(KEEP_UNSYNCED)
    assert files.list_folder("/f") == ["b"]
    assert _content(files, "/f/b") == b"abca!"


def test_a_killed_process_loses_nothing_but_its_open_files() -> None:
    files = SimulatedFiles()
    file = files.open("/a", create=True)
    file.write_at(0, b"unsynced")
    lock = files.lock("/lock")
    files.kill()
    with pytest.raises(PowerLost):
        file.read_at(0, 1)
    assert _content(files, "/a") == b"unsynced"
    files.lock("/lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        files.lock("/lock")
    files.crash(LOSE_UNSYNCED)
    assert files.list_folder("/") == []


def test_open_files_are_dead_and_locks_gone_after_a_power_loss() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"abc")
    lock = files.lock("/lock")
    files.crash()
    for attempt in (
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        file.size,
        file.sync,
    ):
        with pytest.raises(PowerLost):
            attempt()
    file.close()
    again = files.lock("/lock")
    lock.release()
    with pytest.raises(BlockingIOError):
        files.lock("/lock")
    again.release()
    assert _content(files, "/a") == b"abc"


def test_a_new_file_is_not_found_until_its_folder_was_synced() -> None:
    files = SimulatedFiles()
    file = files.open("/a", create=True)
    file.write_at(0, b"x")
    file.sync()
    files.crash()
    assert not files.exists("/a")
    _durable_file(files, "/a", b"x")
    files.crash()
    assert _content(files, "/a") == b"x"


def test_a_new_folder_needs_its_parent_synced() -> None:
    files = SimulatedFiles()
    files.make_folder("/f/g")
    _durable_file(files, "/f/g/a", b"x")
    files.sync_folder("/f")
    lost = files.fork(SeededRandom(0))
    lost.crash()
    assert lost.list_folder("/") == []
    files.sync_folder("/")
    files.crash()
    assert _content(files, "/f/g/a") == b"x"


def test_a_rename_is_not_durable_until_the_folder_was_synced() -> None:
    files = SimulatedFiles()
    _durable_file(files, "/a", b"old")
    _durable_file(files, "/a.tmp", b"new")
    files.rename("/a.tmp", "/a")
    lost = files.fork(SeededRandom(0))
    lost.crash()
    assert (_content(lost, "/a"), _content(lost, "/a.tmp")) == (b"old", b"new")
    files.sync_folder("/")
    files.crash()
    assert _content(files, "/a") == b"new"
    assert not files.exists("/a.tmp")


def test_a_name_may_survive_without_its_bytes() -> None:
    files = SimulatedFiles()
    files.open("/a", create=True).write_at(0, b"x" * 9)
    sized = files.fork(SeededRandom(0))
    files.crash(KEEP_NAMES_ONLY)
    assert _content(files, "/a") == b""
    sized.crash(KEEP_SIZES_ONLY)
    assert _content(sized, "/a") == bytes(9)


def test_a_removal_that_was_not_synced_comes_back() -> None:
    files = SimulatedFiles()
    _durable_file(files, "/a", b"x")
    files.remove("/a")
    files.crash()
    assert _content(files, "/a") == b"x"
    files.remove("/a")
    files.sync_folder("/")
    files.crash()
    assert not files.exists("/a")


def test_names_survive_as_a_prefix_in_the_order_they_were_changed() -> None:
    files = SimulatedFiles()
    for name in "abcde":
        files.open(f"/{name}", create=True)
    found = set()
    for seed in range(200):
        fork = files.fork(SeededRandom(seed))
        fork.crash(RANDOM_LOSS)
        found.add("".join(sorted(fork.list_folder("/"))))
    assert found == {"", "a", "ab", "abc", "abcd", "abcde"}


def test_each_folder_gets_its_own_way() -> None:
    files = SimulatedFiles()
    files.make_folder("/f")
    files.make_folder("/g")
    files.sync_folder("/")
    files.open("/f/a", create=True)
    files.open("/g/b", create=True)
    found = set()
    for seed in range(100):
        fork = files.fork(SeededRandom(seed))
        fork.crash(RANDOM_LOSS)
        found.add((fork.exists("/f/a"), fork.exists("/g/b")))
    assert found == {(False, False), (False, True), (True, False), (True, True)}


def test_a_file_renamed_between_folders_is_always_in_exactly_one() -> None:
    files = SimulatedFiles()
    files.make_folder("/f")
    files.make_folder("/g")
    files.sync_folder("/")
    _durable_file(files, "/f/a", b"x")
    files.open("/g/earlier", create=True)
    files.rename("/f/a", "/g/a")
    files.open("/f/later", create=True)
    where = set()
    for seed in range(200):
        fork = files.fork(SeededRandom(seed))
        fork.crash(RANDOM_LOSS)
        places = tuple(path for path in ("/f/a", "/g/a") if fork.exists(path))
        assert len(places) == 1
        assert fork.exists("/g/earlier") or places == ("/f/a",)
        assert not fork.exists("/f/later") or places == ("/g/a",)
        where |= set(places)
    assert where == {"/f/a", "/g/a"}


def test_syncing_one_folder_of_a_rename_brings_the_other_along() -> None:
    files = SimulatedFiles()
    files.make_folder("/f")
    files.make_folder("/g")
    files.sync_folder("/")
    _durable_file(files, "/f/a", b"x")
    files.open("/f/earlier", create=True)
    files.rename("/f/a", "/g/a")
    files.open("/f/later", create=True)
    files.sync_folder("/g")
    files.crash()
    assert files.list_folder("/f") == ["earlier"]
    assert _content(files, "/g/a") == b"x"


def test_a_folder_half_removed_may_come_back_in_part() -> None:
    files = SimulatedFiles()
    files.make_folder("/f")
    files.sync_folder("/")
    for name in "ab":
        _durable_file(files, f"/f/{name}", b"x")
    files.remove_folder("/f")
    found = set()
    for seed in range(100):
        fork = files.fork(SeededRandom(seed))
        fork.crash(RANDOM_LOSS)
        found.add("".join(sorted(fork.list_folder("/f"))) if fork.exists("/f") else None)
    assert found == {None, "", "b", "ab"}


def test_a_page_in_the_middle_may_be_missing_within_the_length() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a")
    for number in range(4):
        file.write_at(number * PAGE_BYTES, bytes([65 + number]) * PAGE_BYTES)
    holes = set()
    for content in _found(files, RANDOM_LOSS, "/a", 300):
        pages = [content[start : start + PAGE_BYTES] for start in range(0, len(content), PAGE_BYTES)]
        if len(pages) == 4 and all(len(set(page)) == 1 for page in pages):
            holes.add("".join(chr(page[0]) if page[0] else "." for page in pages))
    assert {"ABCD", "A.CD", ".BCD", "...."} <= holes


def test_a_page_tears_at_sectors_and_an_overwrite_shows_old_or_new() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"o" * PAGE_BYTES)
    file.write_at(0, b"n" * PAGE_BYTES)
    torn = 0
    for content in _found(files, RANDOM_LOSS, "/a", 100):
        sectors = [content[start : start + SECTOR_BYTES] for start in range(0, PAGE_BYTES, SECTOR_BYTES)]
        assert len(content) == PAGE_BYTES
        assert set(sectors) <= {b"o" * SECTOR_BYTES, b"n" * SECTOR_BYTES}
        torn += len(set(sectors)) == 2
    assert torn > 10


def test_a_sector_shows_one_moment_not_a_mixture() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"....")
    for position, letter in enumerate((b"1", b"2", b"3", b"4")):
        file.write_at(position, letter)
    assert _found(files, RANDOM_LOSS, "/a", 200) == {b"....", b"1...", b"12..", b"123.", b"1234"}


def test_garbage_spoils_only_bytes_that_were_being_written() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"s" * 100)
    file.write_at(100, b"u" * 2000)
    nonsense = 0
    for content in _found(files, RANDOM_GARBAGE, "/a", 100):
        assert content[:100] == b"s" * 100
        nonsense += bool(set(content) - set(b"su\0"))
    assert nonsense > 10


def test_a_cut_that_did_not_get_there_takes_what_was_written_behind_it_along() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"old " * 1000)
    file.truncate(1000)
    file.write_at(1000, b"NEW." * 250)
    sizes = set()
    for content in _found(files, RANDOM_LOSS, "/a", 200):
        sizes.add(len(content))
        assert content[:1000] == b"old " * 250
        if len(content) == 4000:
            assert content == b"old " * 1000
        else:
            assert b"old" not in content[1000:]
    assert sizes == {1000, 2000, 4000}


def test_a_fork_goes_its_own_way() -> None:
    files = SimulatedFiles()
    file = _durable_file(files, "/a", b"one")
    fork = files.fork(SeededRandom(0))
    file.write_at(0, b"two")
    file.sync()
    fork.remove("/a")
    assert _content(files, "/a") == b"two"
    assert files.exists("/a")
    assert not fork.exists("/a")


def _atomic_write(files: SimulatedFiles, data: bytes, *, leave_out: str = "") -> None:
    file = files.open("/state.tmp", create=True)
    file.truncate(0)
    file.write_at(0, data)
    if leave_out != "sync":
        file.sync()
    file.close()
    files.rename("/state.tmp", "/state")
    if leave_out != "sync_folder":
        files.sync_folder("/")


def _broken_promises(leave_out: str) -> int:
    """How often a state that was replaced, with one step left out, is found as none of those it may be."""
    versions = [bytes([number]) * 1500 for number in range(1, 4)]
    promised = 0

    def scenario(files: SimulatedFiles) -> None:
        nonlocal promised
        promised = 0
        for number, version in enumerate(versions, start=1):
            _atomic_write(files, version, leave_out=leave_out)
            promised = number

    broken = 0
    for point in crash_everywhere(scenario, seed=3):
        found = _content(point.files, "/state") if point.files.exists("/state") else None
        allowed = [None, *versions][promised:]
        broken += found not in allowed
    return broken


def test_an_atomic_replacement_keeps_its_promise_at_every_crash_point() -> None:
    assert _broken_promises(leave_out="") == 0


@pytest.mark.parametrize("step", ["sync", "sync_folder"])
def test_an_atomic_replacement_without_one_of_its_steps_is_found_out(step: str) -> None:
    assert _broken_promises(leave_out=step) > 0


def test_an_error_of_the_scenario_itself_is_not_a_power_loss() -> None:
    def scenario(files: SimulatedFiles) -> None:
        files.open("/a", create=True)
        if files.operations.count and len(runs) > 1:
            raise KeyError("bug")
        runs.append(1)

    runs = [1]
    with pytest.raises(KeyError):
        list(crash_everywhere(scenario))


def test_recovery_itself_may_lose_power_when_started_from_a_damaged_disk() -> None:
    damaged = SimulatedFiles()
    _durable_file(damaged, "/a", b"good" + b"bad" * 9)

    def recover(files: SimulatedFiles) -> None:
        file = files.open("/a")
        file.truncate(4)
        file.sync()

    points = list(crash_everywhere(recover, start=damaged))
    assert {point.files.size_of("/a") for point in points} == {4, 31}
    assert all(_content(point.files, "/a").startswith(b"good") for point in points)
    assert "truncate" in str(points[0])
    assert damaged.size_of("/a") == 31


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=30)),
        st.tuples(st.just("append"), st.just(b"\xee" * 3000)),
        st.tuples(st.just("overwrite"), st.binary(min_size=1, max_size=700)),
        st.tuples(st.just("cut"), st.just(b"")),
        st.tuples(st.just("sync"), st.just(b"")),
    ),
    max_size=10,
)


@given(steps=_steps, seed=st.integers(0, 1000), loss=st.sampled_from(ALL_LOSSES))
@settings(max_examples=150, deadline=None)
def test_what_is_found_was_there_once_and_repeats_from_its_seed(
    steps: list[tuple[str, bytes]], seed: int, loss: PowerLoss
) -> None:
    def run() -> tuple[SimulatedFiles, list[bytes]]:
        files = SimulatedFiles(SeededRandom(seed))
        file = _durable_file(files, "/a")
        versions = [b""]
        for kind, data in steps:
            if kind == "append":
                file.write_at(file.size(), data)
            elif kind == "overwrite":
                file.write_at(file.size() // 2, data)
            elif kind == "cut":
                file.truncate(file.size() // 3)
            else:
                file.sync()
                versions.clear()
            versions.append(_content(files, "/a"))
        files.crash(loss)
        return files, versions

    files, versions = run()
    found = _content(files, "/a")
    assert found == _content(run()[0], "/a")
    assert len(found) in {len(version) for version in versions}
    if loss is not RANDOM_GARBAGE:
        for position, byte in enumerate(found):
            assert byte in {version[position] if position < len(version) else 0 for version in versions} | {0}
    files.crash(LOSE_UNSYNCED)
    assert _content(files, "/a") == found
