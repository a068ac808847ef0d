"""Errors that a simulated disk can be set to raise: full, broken, rotten."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.runtime.randomness import SeededRandom
from penstock.testing.simulated_disk import KEEP_UNSYNCED, LOSE_UNSYNCED, PAGE_BYTES, RANDOM_LOSS
from penstock.testing.simulated_faults import Fault, Operation, PowerLost
from penstock.testing.simulated_files import SimulatedFile, SimulatedFiles


def _new_file(files: SimulatedFiles, path: str = "/a", data: bytes = b"") -> SimulatedFile:
    file = files.open(path, create=True)
    file.write_at(0, data)
    file.sync()
    files.sync_folder("/")
    return file


def _content(file: SimulatedFile) -> bytes:
    return file.read_at(0, file.size())


def test_operations_are_numbered_counted_and_remembered() -> None:
    files = SimulatedFiles()
    files.make_folder("/f/g")
    file = files.open("/f/g/a", create=True)
    file.write_at(3, b"abcd")
    file.truncate(5)
    file.sync()
    files.rename("/f/g/a", "/f/b")
    files.sync_folder("/f")
    files.remove_folder("/f")
    kinds = [(operation.kind, operation.path) for operation in files.operations.recent]
    assert kinds == [
        ("make_folder", "/f"),
        ("make_folder", "/f/g"),
        ("create", "/f/g/a"),
        ("write", "/f/g/a"),
        ("truncate", "/f/g/a"),
        ("sync", "/f/g/a"),
        ("rename", "/f/g/a"),
        ("sync_folder", "/f"),
        ("remove_folder", "/f/g"),
        ("remove", "/f/b"),
        ("remove_folder", "/f"),
    ]
    assert files.operations.recent[3] == Operation(3, "write", "/f/g/a", 3, 4)
    assert files.operations.recent[4].position == 5
    assert files.operations.count == 11
    assert files.operations.counts["sync"] == 1


def test_reads_and_failures_before_the_disk_do_not_count_as_operations() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"abc")
    before = files.operations.count
    file.read_at(0, 3)
    file.write_at(0, b"")
    files.open("/a", create=True)
    with pytest.raises(FileNotFoundError):
        files.remove("/b")
    assert files.operations.count == before


def test_a_write_may_fail_after_a_part_of_it() -> None:
    files = SimulatedFiles()
    file = _new_file(files)
    files.operations.fail("write", errno.ENOSPC, applied_bytes=3)
    with pytest.raises(OSError, match="No space left") as raised:
        file.write_at(0, b"abcdef")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/a")
    assert _content(file) == b"abc"
    file.write_at(0, b"abcdef")
    assert _content(file) == b"abcdef"


def test_a_fault_waits_for_its_kind_its_path_and_its_turn() -> None:
    files = SimulatedFiles()
    one, two = _new_file(files, "/a.log"), _new_file(files, "/a.index")
    files.operations.fail("write", errno.EIO, path_ending=".index", skip=1)
    one.write_at(0, b"x")
    two.write_at(0, b"x")
    one.write_at(0, b"x")
    with pytest.raises(OSError, match="Input/output"):
        two.write_at(0, b"y")
    assert _content(two) == b"x"


@pytest.mark.parametrize(
    "kind", ["create", "truncate", "rename", "remove", "make_folder", "remove_folder", "sync_folder"]
)
def test_any_operation_may_fail_and_then_had_no_effect(kind: str) -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"abc")
    files.make_folder("/empty")
    attempts: dict[str, Callable[[], object]] = {
        "create": lambda: files.open("/new", create=True),
        "truncate": lambda: file.truncate(0),
        "rename": lambda: files.rename("/a", "/b"),
        "remove": lambda: files.remove("/a"),
        "make_folder": lambda: files.make_folder("/new"),
        "remove_folder": lambda: files.remove_folder("/empty"),
        "sync_folder": lambda: files.sync_folder("/"),
    }
    files.operations.fail(kind, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        attempts[kind]()
    assert sorted(files.list_folder("/")) == ["a", "empty"]
    assert _content(file) == b"abc"
    files.crash(LOSE_UNSYNCED)
    assert files.list_folder("/") == ["a"]


def test_a_failed_sync_drops_its_pages_though_readers_see_them_and_the_next_sync_succeeds() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"good ")
    file.write_at(5, b"lost ")
    files.operations.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert _content(file) == b"good lost "
    file.write_at(10, b"kept")
    file.sync()
    assert _content(file) == b"good lost kept"
    files.crash(KEEP_UNSYNCED)
    assert _content(files.open("/a")) == b"good \0\0\0\0\0kept"


def test_a_failed_sync_may_have_saved_some_of_it() -> None:
    found = set()
    for seed in range(60):
        files = SimulatedFiles(SeededRandom(seed))
        file = _new_file(files)
        file.write_at(0, b"1" * 512 + b"2" * 512)
        files.operations.fail("sync", errno.EIO, loss=RANDOM_LOSS)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        found.add(files.durable_content("/a"))
    assert len(found) > 3


def test_a_hook_sees_each_operation_and_may_fail_it() -> None:
    files = SimulatedFiles()
    seen: list[str] = []

    def hook(operation: Operation) -> Fault | None:
        seen.append(operation.kind)
        if operation.kind == "sync":
            raise OSError(errno.EIO, "broken")
        if operation.kind == "write":
            return Fault(OSError(errno.EDQUOT, "quota"), applied_bytes=1)
        return None

    files.operations.hook = hook
    file = files.open("/a", create=True)
    with pytest.raises(OSError, match="quota"):
        file.write_at(0, b"xyz")
    with pytest.raises(OSError, match="broken"):
        file.sync()
    assert seen == ["create", "write", "sync"]
    assert _content(file) == b"x"


def test_the_power_goes_at_an_operation_and_nothing_works_until_the_restart() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"abc")
    files.operations.lose_power_at(files.operations.count + 1)
    file.write_at(3, b"d")
    with pytest.raises(PowerLost):
        file.write_at(4, b"e")
    assert not files.powered
    for attempt in (
        lambda: file.truncate(0),
        lambda: files.remove("/a"),
        lambda: files.open("/a"),
        lambda: files.list_folder("/"),
        lambda: files.exists("/a"),
        lambda: files.lock("/lock"),
        lambda: files.make_folder("/f"),
    ):
        with pytest.raises(PowerLost):
            attempt()
    file.close()
    survivor = files.fork(SeededRandom(0))
    survivor.crash(KEEP_UNSYNCED)
    assert _content(survivor.open("/a")) == b"abcd"
    files.crash(LOSE_UNSYNCED)
    assert _content(files.open("/a")) == b"abc"


def test_the_power_goes_in_the_middle_of_a_write() -> None:
    files = SimulatedFiles()
    file = _new_file(files)
    files.operations.lose_power_at(files.operations.count, applied_bytes=2)
    with pytest.raises(PowerLost):
        file.write_at(0, b"abcdef")
    files.crash(KEEP_UNSYNCED)
    assert _content(files.open("/a")) == b"ab"


def test_the_power_goes_while_syncing_and_nothing_is_promised() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"abc")
    file.write_at(3, b"def")
    files.operations.lose_power_at(files.operations.count)
    with pytest.raises(PowerLost):
        file.sync()
    both = files.fork(SeededRandom(0))
    both.crash(KEEP_UNSYNCED)
    assert _content(both.open("/a")) == b"abcdef"
    files.crash(LOSE_UNSYNCED)
    assert _content(files.open("/a")) == b"abc"


def test_a_full_disk_takes_what_fits_and_allows_overwriting() -> None:
    files = SimulatedFiles(capacity_bytes=3 * PAGE_BYTES)
    file = _new_file(files, data=b"x" * 100)
    assert files.space("/") == (3 * PAGE_BYTES, 2 * PAGE_BYTES)
    with pytest.raises(OSError, match="No space left") as raised:
        file.write_at(100, b"y" * 4 * PAGE_BYTES)
    assert raised.value.errno == errno.ENOSPC
    assert file.size() == 3 * PAGE_BYTES
    assert files.space("/").free == 0
    file.write_at(0, b"z" * 3 * PAGE_BYTES)
    with pytest.raises(OSError, match="No space left"):
        file.write_at(3 * PAGE_BYTES, b"z")
    assert file.size() == 3 * PAGE_BYTES
    other = files.open("/b", create=True)
    with pytest.raises(OSError, match="No space left"):
        other.write_at(0, b"z")
    file.truncate(1)
    other.write_at(0, b"z")
    assert files.space("/").free == PAGE_BYTES


def test_a_hole_takes_no_room() -> None:
    files = SimulatedFiles(capacity_bytes=PAGE_BYTES)
    file = _new_file(files)
    file.truncate(1 << 30)
    assert files.space("/").free == PAGE_BYTES
    file.write_at(1 << 20, b"x")
    assert files.space("/").free == 0


def test_a_removed_file_frees_its_room_when_the_last_reader_closes_it() -> None:
    files = SimulatedFiles(capacity_bytes=4 * PAGE_BYTES)
    file = _new_file(files, data=b"x" * PAGE_BYTES)
    reader = files.open("/a", writable=False)
    files.remove("/a")
    assert files.space("/").free == 3 * PAGE_BYTES
    file.close()
    file.close()
    assert files.space("/").free == 3 * PAGE_BYTES
    del reader
    assert files.space("/").free == 4 * PAGE_BYTES


def test_closing_a_file_from_before_the_crash_frees_nothing_that_is_open_now() -> None:
    files = SimulatedFiles(capacity_bytes=4 * PAGE_BYTES)
    stale = _new_file(files, data=b"x" * PAGE_BYTES)
    files.crash(LOSE_UNSYNCED)
    file = files.open("/a")
    stale.close()
    files.remove("/a")
    assert files.space("/").free == 3 * PAGE_BYTES
    file.close()
    assert files.space("/").free == 4 * PAGE_BYTES


def test_a_replaced_file_frees_its_room_and_a_crash_takes_it_again() -> None:
    files = SimulatedFiles(capacity_bytes=4 * PAGE_BYTES)
    _new_file(files, "/a", b"x" * PAGE_BYTES)
    _new_file(files, "/b", b"x" * PAGE_BYTES)
    files.rename("/a", "/b")
    assert files.space("/").free == 3 * PAGE_BYTES
    files.crash(LOSE_UNSYNCED)
    assert files.space("/").free == 2 * PAGE_BYTES


def test_capacity_can_change_as_an_operator_adds_room() -> None:
    files = SimulatedFiles(capacity_bytes=0)
    file = files.open("/a", create=True)
    with pytest.raises(OSError, match="No space left"):
        file.write_at(0, b"x")
    files.capacity_bytes = PAGE_BYTES
    file.write_at(0, b"x")
    files.capacity_bytes = 0
    assert files.space("/").free == 0


def test_corruption_flips_bits_on_disk_and_in_the_cache_unnoticed() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"\x00\x0f\xf0\xff")
    before = (files.modified_ns("/a"), files.operations.count)
    files.corrupt("/a", 1, mask=0x01)
    files.corrupt("/a", 2, length=2)
    assert _content(file) == b"\x00\x0e\x0f\x00"
    assert (files.modified_ns("/a"), files.operations.count) == before
    files.crash(LOSE_UNSYNCED)
    assert _content(files.open("/a")) == b"\x00\x0e\x0f\x00"


def test_corruption_of_what_is_not_synced_yet_stays_when_it_is() -> None:
    files = SimulatedFiles()
    file = _new_file(files, data=b"abc")
    file.write_at(2, b"cdef")
    files.corrupt("/a", 2, length=2, mask=0x20)
    assert _content(file) == b"abCDef"
    file.sync()
    files.crash(LOSE_UNSYNCED)
    assert _content(files.open("/a")) == b"abCDef"


@pytest.mark.parametrize(("position", "length", "mask"), [(-1, 1, 1), (3, 1, 1), (0, 4, 1), (0, 0, 1), (0, 1, 0)])
def test_only_bytes_that_exist_can_be_corrupted(position: int, length: int, mask: int) -> None:
    files = SimulatedFiles()
    _new_file(files, data=b"abc")
    with pytest.raises(ValueError, match="to corrupt"):
        files.corrupt("/a", position, length=length, mask=mask)


def test_a_simulated_file_has_no_descriptor() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        _new_file(SimulatedFiles()).fileno()


def test_absurd_sizes_are_rejected_and_large_ones_take_no_memory() -> None:
    file = _new_file(SimulatedFiles())
    attempts: list[Callable[[], None]] = [
        lambda: file.truncate(1 << 60),
        lambda: file.write_at(1 << 60, b"x"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="too large") as raised:
            attempt()
        assert raised.value.errno == errno.EFBIG
    file.write_at(1 << 43, b"x")
    file.truncate(1 << 44)
    file.truncate(10)
    assert _content(file) == bytes(10)


def test_times_only_grow() -> None:
    files = SimulatedFiles()
    file = _new_file(files)
    times = [files.modified_ns("/a")]
    file.write_at(0, b"x")
    times.append(files.modified_ns("/a"))
    file.truncate(0)
    times.append(files.modified_ns("/a"))
    folder_before = files.modified_ns("/")
    files.open("/b", create=True)
    times.append(files.modified_ns("/b"))
    assert times == sorted(set(times))
    assert folder_before < files.modified_ns("/")


def test_the_root_stays() -> None:
    files = SimulatedFiles()
    attempts: list[Callable[[], None]] = [
        lambda: files.remove_folder("/"),
        lambda: files.rename("/", "/a"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="busy"):
            attempt()


def test_a_listing_is_in_no_order() -> None:
    files = SimulatedFiles(SeededRandom(5))
    for number in range(8):
        files.open(f"/{number}", create=True)
    assert len({tuple(files.list_folder("/")) for _ in range(10)}) > 1
