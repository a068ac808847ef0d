"""What only the real machine has: descriptors, other processes, short system calls."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.timeouts import PATIENCE_S

from penstock.runtime import files
from penstock.runtime.files import PosixFiles

_HOLD_LOCK = """
import sys
from penstock.runtime.files import PosixFiles
lock = PosixFiles().lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
lock.release()
print("released", flush=True)
sys.stdin.close()
"""


def _descriptor_is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _lock_holder(path: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _HOLD_LOCK, path]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def test_a_lock_held_by_another_process_is_rejected_naming_it_and_freed_by_its_release(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with _lock_holder(path) as holder:
        with pytest.raises(BlockingIOError, match=f"locked by process {holder.pid}"):
            PosixFiles().lock(path)
        assert holder.communicate(timeout=PATIENCE_S)[0] == "released\n"
    PosixFiles().lock(path).release()
    assert os.path.getsize(path) == 0


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    with _lock_holder(path) as holder:
        holder.kill()
        holder.wait(timeout=PATIENCE_S)
    lock = PosixFiles().lock(path)
    assert Path(path).read_text() == f"{os.getpid()}\n"
    lock.release()


def test_the_error_names_this_process_as_the_holder(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = PosixFiles().lock(path)
    with pytest.raises(BlockingIOError, match=f"locked by this process \\({os.getpid()}\\)"):
        PosixFiles().lock(path)
    os.truncate(path, 0)
    with pytest.raises(BlockingIOError, match="locked by another process"):
        PosixFiles().lock(path)
    lock.release()


def test_a_rejected_lock_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = PosixFiles().lock(path)
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            PosixFiles().lock(path)
    after = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    assert len(after) == len(before)
    lock.release()


def test_a_release_frees_the_lock_though_a_child_shares_the_descriptor(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = PosixFiles().lock(path)
    shared = os.dup(lock._descriptor)
    try:
        lock.release()
        PosixFiles().lock(path).release()
    finally:
        os.close(shared)


def test_a_full_device_says_so_and_names_the_file() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    file = PosixFiles().open("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        file.write_at(0, b"x")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, "/dev/full")
    file.close()


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three_bytes_at_most(descriptor: int, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(descriptor, memoryview(data)[:3], position)

    monkeypatch.setattr(files, "_pwrite", three_bytes_at_most)
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    file.write_at(2, bytearray(b"0123456789"))
    assert file.read_at(0, 99) == b"\0\x000123456789"


def test_a_device_that_takes_nothing_and_says_nothing_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_pwrite", lambda descriptor, data, position: 0)
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    with pytest.raises(OSError, match="accepts no further") as raised:
        file.write_at(0, b"x")
    assert raised.value.errno == errno.EIO


def test_short_reads_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    file.write_at(0, b"0123456789")

    def three_bytes_at_most(descriptor: int, length: int, position: int) -> bytes:
        return os.pread(descriptor, min(3, length), position)

    monkeypatch.setattr(files, "_pread", three_bytes_at_most)
    assert file.read_at(1, 8) == b"12345678"
    assert file.read_at(1, 80) == b"123456789"


def test_a_write_that_meets_the_limit_leaves_its_first_part(tmp_path: Path) -> None:
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
        with pytest.raises(OSError, match="too large") as raised:
            file.write_at(0, b"x" * 9000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert file.read_at(0, 9000) == b"x" * 5000


def test_closing_while_another_thread_syncs_releases_the_descriptor_after_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow_sync(descriptor: int) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)
        os.fsync(descriptor)

    monkeypatch.setattr(files, "_sync_data", slow_sync)
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    descriptor = file.fileno()
    errors: list[OSError] = []

    def sync() -> None:
        try:
            file.sync()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert entered.wait(PATIENCE_S)
    file.close()
    assert file.closed
    assert _descriptor_is_open(descriptor)
    leave.set()
    thread.join(PATIENCE_S)
    assert errors == []
    assert not _descriptor_is_open(descriptor)


def test_a_failed_sync_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "_sync_data", broken)
    monkeypatch.setattr(files, "_sync_names", broken)
    path = str(tmp_path / "a")
    file = PosixFiles().open(path, create=True)
    with pytest.raises(OSError, match="Input/output") as raised:
        file.sync()
    assert raised.value.filename == path
    with pytest.raises(OSError, match="Input/output") as raised:
        PosixFiles().sync_folder(str(tmp_path))
    assert raised.value.filename == str(tmp_path)


def test_a_forgotten_file_is_closed(tmp_path: Path) -> None:
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    descriptor = file.fileno()
    assert _descriptor_is_open(descriptor)
    del file
    gc.collect()
    assert not _descriptor_is_open(descriptor)


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    file = PosixFiles().open(str(tmp_path / "a"), create=True)
    assert not os.get_inheritable(file.fileno())
    file.close()


def test_a_sync_of_file_and_folder_returns(tmp_path: Path) -> None:
    files = PosixFiles()
    file = files.open(str(tmp_path / "a"), create=True)
    file.write_at(0, b"x")
    file.sync()
    files.sync_folder(str(tmp_path))
    assert "a" in repr(file)
    file.close()
    assert "closed" in repr(file)
